#!/usr/bin/env bash
# Runs `promtool check metrics` over the pages of used servers and fails on every complaint but those
# about names that vLLM 0.33 and llm-d-inference-sim chose and clients expect.
#
#   tests/ship/metrics_lint.sh BINARY [PORT]
#
# promtool (PROMTOOL) is in Debian's package prometheus and in Prometheus' releases.
set -euo pipefail
binary=$1
port=${2:-21480}
promtool=${PROMTOOL:-promtool}
work=$(mktemp -d)
server=
stop() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  [ -z "$server" ] || wait "$server" || true
  server=
}
trap 'stop; rm -rf "$work"' EXIT

# All names with a colon, as vLLM's are; ours begin with vllm_sim_.
sort >"$work/colon" <<'END'
admission_rejections
cache_config_info
e2e_request_latency_seconds
engine_sleep_state
estimated_flops_per_gpu
estimated_read_bytes_per_gpu
estimated_write_bytes_per_gpu
external_prefix_cache_hits
external_prefix_cache_queries
generation_tokens
gpu_cache_usage_perc
gpu_prefix_cache_hit_rate
gpu_prefix_cache_hits
gpu_prefix_cache_queries
inter_token_latency_seconds
iteration_tokens_total
kv_block_idle_before_evict_seconds
kv_block_lifetime_seconds
kv_block_reuse_gap_seconds
kv_cache_usage_perc
lora_requests_info
max_num_generation_tokens
mm_cache_hits
mm_cache_queries
nixl_bytes_transferred
nixl_num_descriptors
nixl_num_failed_notifications
nixl_num_failed_transfers
nixl_num_kv_expired_reqs
nixl_num_notifications_after_expiry
nixl_post_time_seconds
nixl_xfer_time_seconds
num_preemptions
num_requests_kv_fetch_by_stage
num_requests_running
num_requests_waiting
num_requests_waiting_by_reason
prefix_cache_hits
prefix_cache_queries
prompt_tokens
prompt_tokens_by_source
prompt_tokens_cached
prompt_tokens_cached_by_source
request_decode_time_seconds
request_generation_tokens
request_inference_time_seconds
request_max_num_generation_tokens
request_num_preemptions
request_params_max_tokens
request_params_n
request_prefill_kv_computed_tokens
request_prefill_time_seconds
request_prompt_tokens
request_queue_time_seconds
request_success
request_time_per_output_token_seconds
rl_weight_update_operation_duration_seconds
rl_weight_update_operations_in_flight
sleep_mode_operation_duration_seconds
sleep_mode_operations_in_flight
spec_decode_num_accepted_tokens
spec_decode_num_accepted_tokens_per_pos
spec_decode_num_draft_tokens
spec_decode_num_drafts
time_per_output_token_seconds
time_to_first_token_seconds
tool_call_parser_invocations
websocket_connection_duration_seconds
websocket_connections
websocket_connections_active
END
# vLLM's histogram whose own name ends in _total; llm-d's counters without it.
cat >"$work/other" <<'END'
vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix
vllm:prefix_cache_hits counter metrics should have "_total" suffix
vllm:prefix_cache_queries counter metrics should have "_total" suffix
END

# Complaints that are not on the lists.
unknown() {
  grep -vxFf "$work/other" | while IFS= read -r line; do
    name=${line%" metric names should not contain ':'"}
    name=${name#vllm:}
    # A counter's name has _total in the page, and a twin in _created.
    for name in "$name" "${name%_total}" "${name%_created}"; do
      ! grep -qxF "$name" "$work/colon" || continue 2
    done
    echo "$line"
  done
}

bad=0
# Starts the server with the words after the name, uses it, and checks its page.
check() {
  local name=$1 model body
  shift
  "$binary" "$@" --port "$port" --host 127.0.0.1 >"$work/log" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    curl -sf "$base/health" >"$work/health" && break
    sleep 0.05
  done
  if ! curl -sf "$base/health" >"$work/health"; then
    echo "$name: does not answer"
    tail -5 "$work/log"
    exit 1
  fi
  model=$(curl -sf "$base/v1/models" | sed 's/.*"data":\[{"id":"\([^"]*\)".*/\1/')
  for model in "$model" sql; do
    # Faults cut replies, and an adapter may be unknown: what curl thinks of it is no matter.
    for text in "Hello" "Tell me of the sea and of all its ships, please." "Tell me of the sea and of all its ships, please."; do
      body="{\"model\": \"$model\", \"max_tokens\": 20, \"messages\": [{\"role\": \"user\", \"content\": \"$text\"}]}"
      curl -s "$base/v1/chat/completions" -H 'Content-Type: application/json' -d "$body" >"$work/reply" || true
      curl -s "$base/v1/chat/completions" -H 'Content-Type: application/json' -d "${body%\}}, \"stream\": true}" >"$work/reply" || true
    done
  done
  curl -s "$base/v1/chat/completions" -d '{' >"$work/reply" || true
  curl -s "$base/nowhere" >"$work/reply" || true
  curl -s -X POST "$base/sleep?level=1" >"$work/reply" || true
  curl -s -X POST "$base/wake_up" >"$work/reply" || true
  curl -sf "$base/metrics" >"$work/page"
  stop
  # Its exit code is 3 for complaints.
  "$promtool" check metrics <"$work/page" >"$work/out" 2>&1 || true
  unknown <"$work/out" >"$work/bad"
  printf '%-22s %4d families, %3d complaints, %d of them not upstream'"'"'s\n' "$name" \
    "$(grep -c '^# TYPE' "$work/page")" "$(wc -l <"$work/out")" "$(wc -l <"$work/bad")"
  if [ -s "$work/bad" ] || ! grep -q "^vllm:num_requests_running" "$work/page"; then
    cat "$work/bad"
    bad=1
  fi
}

base=http://127.0.0.1:$port
export VLLM_SERVER_DEV_MODE=1
lora=(--enable-lora --lora-modules sql=/adapters/sql --max-loras 2)
check llm-d --model demo "${lora[@]}" --enable-kvcache --kv-cache-size 200 --block-size 8
check faults --model demo --failure-injection-rate 50
check faults-in-streams --model demo --stream-fault-rate 50 --stream-faults cut_after=5 'stall=3:10ms'
check fake --model demo "${lora[@]}" --fake-metrics '{"running-requests": 7, "waiting-requests": "ramp:0:10:30s", "kv-cache-usage": 0.4, "loras": [{"running": "sql", "waiting": "", "timestamp": 1257894567}], "ttft-buckets-values": [1, 2, 3], "request-success-total": {"stop": 20}}'
check vllm serve demo "${lora[@]}" --enable-sleep-mode --enable-auto-tool-choice --tool-call-parser hermes
check speculation serve demo --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}' --kv-cache-metrics --enable-mfu-metrics
check ranks serve demo --data-parallel-size 2
check prefill serve demo --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}' --scheduler vllm
check sglang --model demo --scheduler sglang
check pool serve demo --scheduler pool --legacy-metrics
exit "$bad"
