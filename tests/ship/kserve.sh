#!/usr/bin/env bash
# Starts the program as KServe's pods do: ask `vllm --version`, choose flags by it, serve over TLS under
# two names, and as a tokenizer pod.
#
#   tests/ship/kserve.sh BINARY [PORT]
#
# Source: kserve config/llmisvcconfig/config-llm-{template,decode-template,tokenizer}.yaml.
set -euo pipefail
cd "$(dirname "$0")/../.."
port=${2:-21490}
model=$PWD/tests/fixtures/tiny-llama
work=$(mktemp -d)
pods=()
finish() {
  [ ${#pods[@]} = 0 ] || kill "${pods[@]}" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap finish EXIT
ln -s "$(realpath "$1")" "$work/vllm"
PATH=$work:$PATH
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost -out "$work/tls.crt" -keyout "$work/tls.key" 2>/dev/null

version=$(vllm --version | tail -n 1 | awk '{print $NF}')
at_least() { [ "$(printf '%s\n' "$1" "$version" | sort -V | head -n 1)" = "$1" ]; }
flags=(--disable-uvicorn-access-log)
! at_least 0.16.0 || flags=(--disable-access-log-for-endpoints /health,/metrics,/ping)
! at_least 0.18.0 || flags+=(--shutdown-timeout 15)
! at_least 0.22.0 || flags+=(--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}')
[ ${#flags[@]} = 6 ] || { echo "vllm --version says $version"; exit 1; }

vllm serve "$model" --served-model-name a/model publishers/test/models/a/model --port "$port" \
  --tensor-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel "${flags[@]}" \
  --enable-ssl-refresh --ssl-certfile "$work/tls.crt" --ssl-keyfile "$work/tls.key" >"$work/serve.log" 2>&1 &
pods+=($!)
vllm launch render "$model" --port "$((port + 1))" >"$work/render.log" 2>&1 &
pods+=($!)

ask() { curl --silent --fail --cacert "$work/tls.crt" --retry 20 --retry-all-errors --retry-delay 1 --max-time 10 "$@"; }
# A probe has a second.
ask --max-time 1 "https://localhost:$port/health"
for name in a/model publishers/test/models/a/model; do
  body="{\"model\": \"$name\", \"max_tokens\": 3, \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}"
  ask "https://localhost:$port/v1/chat/completions" -H 'Content-Type: application/json' -d "$body" >"$work/answer"
  grep -q '"finish_reason"' "$work/answer"
  echo "ok   vLLM $version answers as $name"
done
ask --max-time 1 "http://localhost:$((port + 1))/health"
ask "http://localhost:$((port + 1))/tokenize" -H 'Content-Type: application/json' -d '{"prompt": "Hello"}' | grep -q '"tokens"'
ask "http://localhost:$((port + 1))/v1/chat/completions/render" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Hello"}]}' | grep -q '"token_ids"'
echo "ok   vllm launch render"
