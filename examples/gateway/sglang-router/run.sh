#!/bin/sh
# sglang-router (`pip install sglang-router`): POLICY=round_robin, random, power_of_two or cache_aware.
. "$(dirname "$0")/../score.sh"

pods
gateway python3 -m sglang_router.launch_router --host 127.0.0.1 --port "$port" --prometheus-host 127.0.0.1 \
  --prometheus-port "${PROMETHEUS_PORT:-29000}" --policy "${POLICY:-round_robin}" \
  --worker-urls "http://$(pod 0)" "http://$(pod 1)" "http://$(pod 2)"
score "$@"
