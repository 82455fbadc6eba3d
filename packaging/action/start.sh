#!/usr/bin/env bash
# Step of action.yml: starts the program with INPUT_ARGS, waits until it listens, tells the job its address.
set -euo pipefail

fail() {
  echo "::error title=vllm-sim::$1" >&2
  exit 1
}

# xargs takes quotes as a shell does, and expands nothing.
words=$(xargs -r -n 1 printf '%s\n' <<<"${INPUT_ARGS:?}") || fail "args: $INPUT_ARGS has an unclosed quote"
mapfile -t words <<<"$words"
[[ ${INPUT_TIMEOUT:=60} =~ ^[0-9]+$ ]] || fail "timeout: $INPUT_TIMEOUT is not a number of seconds"

work=$(mktemp -d "${RUNNER_TEMP:?}/vllm-sim.XXXXXX")
log=$work/server.log
ready=$work/ready.json
"${PROGRAM:?}" "${words[@]}" --ready-file "$ready" >"$log" 2>&1 </dev/null &
pid=$!

for ((tenths = 0; ; tenths++)); do
  [ -e "$ready" ] && break
  if ! kill -0 "$pid" 2>/dev/null || ((tenths >= 10 * 10#$INPUT_TIMEOUT)); then
    kill "$pid" 2>/dev/null || true
    cat "$log" >&2
    fail "the server does not listen; its log is above"
  fi
  sleep 0.1
done

url=$(sed -n '1s/^[^[]*"servers":\[{"url":"\([^"]*\)".*/\1/p' "$ready")
[ -n "$url" ] || fail "the server has no URL: $(cat "$ready")"
printf '%s\n' "url=$url" "base-url=$url/v1" "log=$log" "pid=$pid" >>"$GITHUB_OUTPUT"
printf '%s\n' "OPENAI_BASE_URL=$url/v1" "ANTHROPIC_BASE_URL=$url" >>"$GITHUB_ENV"
# Clients refuse to start without a key; one of the job's own stays.
[ -n "${OPENAI_API_KEY:-}" ] || echo OPENAI_API_KEY=none >>"$GITHUB_ENV"
[ -n "${ANTHROPIC_API_KEY:-}" ] || echo ANTHROPIC_API_KEY=none >>"$GITHUB_ENV"
echo "vllm-sim listens on $url, its log is $log"
