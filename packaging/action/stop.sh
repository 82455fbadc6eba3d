#!/usr/bin/env bash
# Step of action.yml: ends the server and shows its log.
set -euo pipefail

# In a job's container nothing waits for processes without a parent: they stay, as zombies.
runs() { kill -0 "${SERVER_PID:?}" 2>/dev/null && ! grep -q '^State:[[:space:]]*Z' "/proc/$SERVER_PID/status"; }

if runs; then
  kill "$SERVER_PID"
else
  echo '::error title=vllm-sim::the server ended before it was stopped; its log is below' >&2
  code=1
fi
for ((tenths = 0; tenths < 100; tenths++)); do
  runs || break
  sleep 0.1
done
kill -9 "$SERVER_PID" 2>/dev/null || true
echo '::group::log of vllm-sim'
cat "${SERVER_LOG:?}"
echo '::endgroup::'
exit "${code:-0}"
