#!/usr/bin/env bash
# Checks the Helm chart: lint, every value set of helm/vllm-sim/ci rendered and checked against the
# schemas of Kubernetes and of the custom resources, and the server started as each set asks.
#
#   tests/ship/chart.sh [BINARY]
#
# Needs Go, and Python (PYTHON) with PyYAML and kubernetes-validate from PyPI. helm and kubeconform
# come with
#   go install helm.sh/helm/v3/cmd/helm@latest github.com/yannh/kubeconform/cmd/kubeconform@latest
set -euo pipefail
cd "$(dirname "$0")/../.."
chart=helm/vllm-sim
work=${SHIP_DIR:-$(mktemp -d)}
mkdir -p "$work"
python=${PYTHON:-python3}

helm lint --strict "$chart"
"$python" tests/ship/schemas.py "$work/schemas" >"$work/schemas.log"

for values in "$chart"/ci/*-values.yaml; do
  name=$(basename "$values" -values.yaml)
  helm lint --strict --quiet -f "$values" "$chart"
  helm template check "$chart" --namespace test -f "$values" >"$work/$name.yaml"
  printf '%-28s ' "$name"
  kubeconform -strict -summary \
    -schema-location "$work/schemas/{{.ResourceKind}}{{.KindSuffix}}.json" \
    -schema-location "$work/schemas/{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json" \
    "$work/$name.yaml"
done

# Mistakes are refused before anything is installed.
refused() {
  if helm template check "$chart" "$@" >/dev/null 2>"$work/refused"; then
    echo "not refused: $*" >&2
    exit 1
  fi
}
refused --set config.max-num-sequences=3
refused --set config.timeToFirstToken=soon
refused --set config.failure-injection-rate=often
refused --set replicas=3
refused --set tls.clientCertificates=3
refused --set dataParallel.mode=pods,dataParallel.size=2,autoscaling.enabled=true
refused --set kserve.enabled=true,dataset.enabled=true
refused --set scenario.phases=none
refused --set-json 'scenario={"phases": [{"name": "a", "untl": "5s"}]}'
refused --set-json 'scenario={"phases": [{"replicas": {"0": {"do": ["abort-requests"]}}}]}'
echo "mistakes refused"

mkdir -p "$work/wishes"
tests/ship/wishes.sh "$work/wishes"

if [ $# -gt 0 ]; then
  "$python" tests/ship/chart_args.py "$1" "$work"
fi
