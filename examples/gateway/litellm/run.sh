#!/bin/sh
# LiteLLM proxy (`pip install 'litellm[proxy]'`): STRATEGY=simple-shuffle, least-busy, or latency-based-routing.
. "$(dirname "$0")/../score.sh"

{
  echo "model_list:"
  for n in 0 1 2; do
    echo "  - { model_name: demo, litellm_params: { model: hosted_vllm/demo, api_base: 'http://$(pod $n)/v1', api_key: none } }"
  done
  echo "router_settings: { routing_strategy: ${STRATEGY:-simple-shuffle}, num_retries: 2 }"
} >"$work/litellm.yaml"
pods
# It takes the list of prices that it brings along.
# A proxy without a key is for this machine only.
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true
gateway litellm --config "$work/litellm.yaml" --host 127.0.0.1 --port "$port" --telemetry False
for _ in $(seq 300); do
  ! curl -sf "http://127.0.0.1:$port/health/liveliness" >"$work/health" || break
  sleep 0.2
done
# It renames the headers by which pods tell their names: the report does without.
score "$@"
