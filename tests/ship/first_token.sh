#!/usr/bin/env bash
# Seconds from `pip install WHEEL` in a fresh virtual environment to the first token of a streamed reply.
set -euo pipefail
wheel=$(realpath "${1:?usage: first_token.sh WHEEL}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
begin=$(date +%s.%N)
venv/bin/pip install --quiet --disable-pip-version-check --no-index "$wheel"
installed=$(date +%s.%N)
token=$(venv/bin/python - <<'PY'
import json
import time
import urllib.request

from vllm_sim import Server

ask = {"model": "demo", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
with Server() as server:
    body = json.dumps(ask).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", body, kind)
    with urllib.request.urlopen(request) as stream:
        for line in stream:
            # The first event has the role alone.
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                print(time.time())
                break
PY
)
awk -v a="$begin" -v b="$installed" -v c="$token" \
  'BEGIN { printf "install %.2f s, start to first token %.2f s, together %.2f s\n", b - a, c - b, c - a }'
