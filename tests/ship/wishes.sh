#!/usr/bin/env bash
# Ten wishes of users, as `helm template` answers them: each is a few --set and what must stand in the result.
#
#   tests/ship/wishes.sh [FOLDER]    FOLDER gets the manifests of each wish
#
# Needs helm.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-$(mktemp -d)}
mkdir -p "$out"
number=0

# The values, `--`, then extended regular expressions, each of which some line must match; `! X`: no line may.
wish() {
  local name=$1 values=() number_name
  shift
  while [ "$1" != -- ]; do
    values+=("$1")
    shift
  done
  shift
  number=$((number + 1))
  number_name=$(printf '%02d' $number)
  helm template sim helm/vllm-sim --namespace test "${values[@]}" >"$out/$number_name.yaml"
  for line in "$@"; do
    case $line in
      '! '*) ! grep -qE -- "${line#! }" "$out/$number_name.yaml" || { echo "$name: has ${line#! }"; exit 1; } ;;
      *) grep -qE -- "$line" "$out/$number_name.yaml" || { echo "$name: lacks $line"; exit 1; } ;;
    esac
  done
  echo "ok   $number_name $name"
}

wish "three replicas of a model, on a port of my own" \
  --set replicaCount=3,config.model=demo,config.port=9000 -- \
  '^  replicas: 3$' 'containerPort: 9000' '^ +model: "demo"'
wish "as vllm serve on an H100, slowly" \
  --set config.cliMode=vllm,config.gpu=h100,config.model=Qwen/Qwen3-8B,config.latency-factor=2 -- \
  'cli-mode: "vllm"' 'gpu: "h100"' 'latency-factor: 2'
wish "an API key from a secret, and none in the config map" \
  --set apiKey.existingSecret=keys -- \
  'name: VLLM_API_KEY' 'secretKeyRef' 'name: keys$' '! ^    api-key:'
wish "one to eight pods by the waiting requests, by the horizontal autoscaler" \
  --set autoscaling.enabled=true,autoscaling.waitingPerPod=3 -- \
  'kind: HorizontalPodAutoscaler' 'averageValue: "3"' 'name: vllm_num_requests_waiting' 'maxReplicas: 8' '! ^  replicas:'
wish "the same by KEDA" \
  --set autoscaling.enabled=true,autoscaling.type=keda -- \
  'kind: ScaledObject' 'query: .*vllm:num_requests_waiting' '! HorizontalPodAutoscaler'
wish "sixteen data-parallel ranks, a pod each" \
  --set config.cliMode=vllm,dataParallel.size=16,dataParallel.mode=pods -- \
  'kind: StatefulSet' '^  replicas: 16$' 'data-parallel-size: 16'
wish "prefill and decode apart" \
  --set disaggregation.enabled=true,disaggregation.prefill.replicaCount=2 -- \
  'llm-d-router-disagg-sidecar' 'llm-d.ai/role: "?prefill' 'llm-d.ai/role: "?decode'
wish "a pool with its own endpoint picker, behind a Gateway" \
  --set gateway.inferencePool.enabled=true,gateway.inferencePool.endpointPicker.deploy=true,gateway.httpRoute.enabled=true -- \
  'kind: InferencePool' 'kind: HTTPRoute' 'name: sim-vllm-sim-epp$' 'kind: Role$' 'inferencepools'
wish "KV events that my router subscribes to" \
  --set kvEvents.enabled=true,kvEvents.format=vllm,kvEvents.topic=kv -- \
  'name: sim-vllm-sim-kv-events' 'port: 5557' 'clusterIP: None'
wish "TLS, a network policy, a disruption budget, scrapes and alerts" \
  --set tls.selfSigned=true,networkPolicy.enabled=true,podDisruptionBudget.enabled=true,monitoring.serviceMonitor.enabled=true,monitoring.rules.enabled=true -- \
  'self-signed-certs: true' 'kind: NetworkPolicy' 'kind: PodDisruptionBudget' 'kind: ServiceMonitor' 'kind: PrometheusRule' 'scheme: https$'

# What cannot be granted is refused.
if helm template sim helm/vllm-sim --set dataParallel.size=16,dataParallel.mode=pods >/dev/null 2>"$out/refused"; then
  echo "not refused: 16 ranks of llm-d's command line"
  exit 1
fi
grep -q 'needs config.cliMode: vllm' "$out/refused"
