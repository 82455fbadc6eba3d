#!/usr/bin/env bash
# Throws requests made from /openapi.json at two servers: no 500, nothing that the document does
# not say. Needs `pip install schemathesis` (4.x).
#
#   tests/python/schemathesis.sh BINARY MODEL_FOLDER [EXAMPLES] [PORT]
#
# PHASES=coverage tries every border of every field instead: 46,000 requests, minutes.
#
# /v1/systemone and /v1/decisions answer 501, as vLLM does for a model that cannot decide; so they
# are spared the check for server errors. Of the development routes those are left out that stop
# the server (sleep, pause) or that fail by design (release_kv_cache_memory without a pause). So are
# the routes that vLLM does not have (tag vllm-sim), whose errors and replies are not in the schema.
set -euo pipefail
binary=$1 model=$2 examples=${3:-20} port=${4:-20190}
checks=status_code_conformance,content_type_conformance,response_schema_conformance
options=(--phases "${PHASES:-examples,fuzzing}" -n "$examples" --seed 1 -w 2 --warnings off
    --suppress-health-check all --continue-on-failure --request-timeout 20)
decisions=(/v1/systemone /v1/decisions)
stopping=(/sleep /wake_up /pause /resume /release_kv_cache_memory)

serve() {
    "$binary" serve "$model" --served-model-name tiny-llama --host 127.0.0.1 --port "$port" "$@" &
    server=$!
    for _ in $(seq 100); do
        curl -sf -o /dev/null "http://127.0.0.1:$port/health" && return
        sleep 0.1
    done
    echo "the server does not start" >&2
    return 1
}
trap 'kill "$server" 2>/dev/null || true' EXIT
run() { st run "http://127.0.0.1:$port/openapi.json" --exclude-tag vllm-sim "${options[@]}" "$@"; }

serve --max-model-len 1024 --enable-scale-out --enable-auto-tool-choice --tool-call-parser hermes \
    --enable-tokenizer-info-endpoint
run --checks "not_a_server_error,$checks" "${decisions[@]/#/--exclude-path=}"
run --checks "$checks" "${decisions[@]/#/--include-path=}"
kill "$server"
wait "$server" || true

export VLLM_SERVER_DEV_MODE=1
serve --max-model-len 1024 --enable-lora
run --checks "not_a_server_error,$checks" "${decisions[@]/#/--exclude-path=}" \
    "${stopping[@]/#/--exclude-path=}" --exclude-path-regex '^/(v1|v2)/'
echo "schemathesis: nothing found"
