#!/usr/bin/env bash
# Seconds from `pip install WHEEL` in a fresh virtual environment to the end of a first streamed reply.
set -euo pipefail
wheel=$(realpath "${1:?usage: first_token.sh WHEEL}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
begin=$(date +%s.%N)
venv/bin/pip install --quiet --disable-pip-version-check --no-index "$wheel"
installed=$(date +%s.%N)
venv/bin/python - <<'PY'
from vllm_sim import Server

ask = {"model": "demo", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
with Server() as server:
    assert "[DONE]" in server.request("POST", "/v1/chat/completions", ask).text
PY
end=$(date +%s.%N)
awk -v a="$begin" -v b="$installed" -v c="$end" \
  'BEGIN { printf "install %.2f s, start and reply %.2f s, together %.2f s\n", b - a, c - b, c - a }'
