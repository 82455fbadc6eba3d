#!/usr/bin/env bash
# Client libraries against BINARY, each script of tests/python with the server it asks for.
# Needs Python 3.11 and PyPI.
set -euo pipefail
binary=$(realpath "${1:?usage: clients.sh BINARY}")
cd "$(dirname "$0")/../.."
model=$PWD/tests/fixtures/tiny-llama

cache=${VLLM_SIM_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/vllm-sim-gate}
venv=$cache/clients
if [ ! -f "$venv/whole-2" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check \
    openai anthropic openai-agents instructor pydantic langgraph langchain-openai \
    jsonschema grpcio grpcio-reflection grpcio-health-checking
  touch "$venv/whole-2"
fi

work=$(mktemp -d)
server=
stop() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
  server=
}
trap 'stop; rm -rf "$work"' EXIT

# with FLAGS… -- SCRIPT…: the scripts, against a server of these flags.
with() {
  local flags=()
  while [ "$1" != -- ]; do flags+=("$1") && shift; done
  shift
  rm -f "$work/ready.json"
  "$binary" "${flags[@]}" --host 127.0.0.1 --port 0 --ready-file "$work/ready.json" 2>"$work/log" &
  server=$!
  until [ -f "$work/ready.json" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.05
  done
  url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$work/ready.json")
  for script in "$@"; do
    echo "==> $script"
    "$venv/bin/python" "tests/python/$script.py" "$url" || { tail -20 "$work/log" >&2; exit 1; }
  done
  stop
}

tiny=(serve "$model" --served-model-name tiny-llama --enable-auto-tool-choice --tool-call-parser hermes)
with "${tiny[@]}" -- openai_sdk anthropic_sdk agent_loops satisfiable_schemas
with "${tiny[@]}" --inter-token-latency 1ms -- load_disconnect
with --model m --inter-token-latency 20ms -- grpc_client
with serve demo --task transcription -- openai_audio
with --model demo -- fault_errors fault_stream
with --model demo --enable-auto-tool-choice --tool-call-parser hermes -- langgraph_agent
