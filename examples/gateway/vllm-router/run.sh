#!/bin/sh
# vllm-router (`pip install vllm-router`): POLICY=round_robin, random, power_of_two, cache_aware, consistent_hash,
# sticky_least_loaded, or kv_aware, which follows the pods' KV events.
. "$(dirname "$0")/../score.sh"

policy=${POLICY:-round_robin}
events=${EVENTS_PORT:-5557}
if [ "$policy" = kv_aware ]; then
  # It asks the pods' render routes for the tokens of a prompt, and takes events without a topic only. An endpoint
  # with a star is the pod's own to listen on.
  pods --enable-scale-out --kv-events-config "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\",
    \"endpoint\": \"tcp://*:$events\", \"topic\": \"\"}"
  sources="--kv-event-block-size 16 --kv-event-model demo"
  for n in 0 1 2; do
    sources="$sources --kv-event-source http://$(pod $n)=tcp://127.0.0.1:$((events + n))"
  done
else
  pods
  sources=
fi
# shellcheck disable=SC2086
gateway vllm-router --host 127.0.0.1 --port "$port" --prometheus-host 127.0.0.1 \
  --prometheus-port "${PROMETHEUS_PORT:-29000}" --policy "$policy" $sources \
  --worker-urls "http://$(pod 0)" "http://$(pod 1)" "http://$(pod 2)"
score "$@"
