#!/bin/bash
# Prefill and decode apart, behind llm-d's endpoint picker: two prefill pods and a decode pod. Either the routing
# side-car before decode asks the prefill pod that the picker chose, or the coordinator leads each request through
# the phases, with a pick for each.
#
#   EPP=path SIDECAR=path ./pd.sh
#   EPP=path COORDINATOR=path ./pd.sh
#
# Both are of github.com/llm-d/llm-d-router: `go build -o sidecar ./cmd/pd-sidecar`, `go build -o coordinator
# ./cmd/coordinator`; the rest is as for run.sh.
. "$(dirname "$0")/lab.sh"
[ -n "${SIDECAR:-}" ] || [ -n "${COORDINATOR:-}" ] || { echo "SIDECAR=path or COORDINATOR=path"; exit 2; }
roles=(prefill prefill decode)
if [ -n "${COORDINATOR:-}" ]; then
  # The coordinator names the profile of each call in the header EPP-Profile.
  handler='  - { type: header-profile-handler }'
  picker_flags=--allow-experimental-plugins
else
  # Prompts of which few tokens are unknown to the decode pod are not worth the way over prefill.
  handler='  - { type: prefix-based-pd-decider, parameters: { nonCachedTokens: 64 } }
  - { type: disagg-profile-handler, parameters: { deciders: { prefill: prefix-based-pd-decider } } }'
fi

picker_config() {
  cat <<YAML
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - { type: file-discovery, name: pods, parameters: { path: $work/endpoints.yaml } }
  - { type: metrics-data-source }
  - { type: core-metrics-extractor }
  - { type: prefix-cache-scorer }
  - { type: queue-scorer }
  - { type: prefill-filter }
  - { type: decode-filter }
  - { type: max-score-picker }
$handler
schedulingProfiles:
$(for role in prefill decode; do cat <<PROFILE
  - name: $role
    plugins:
      - { pluginRef: $role-filter }
      - { pluginRef: prefix-cache-scorer, weight: 2 }
      - { pluginRef: queue-scorer, weight: 1 }
      - { pluginRef: max-score-picker }
PROFILE
done)
dataLayer:
  discovery: { pluginRef: pods }
  sources:
    - { pluginRef: metrics-data-source, extractors: [{ pluginRef: core-metrics-extractor }] }
YAML
}

transfer='{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
pod 1 --kv-transfer-config "$transfer"
pod 2 --kv-transfer-config "$transfer"
if [ -n "${COORDINATOR:-}" ]; then
  pod 3 --kv-transfer-config "$transfer"
else
  pod 3 --kv-transfer-config "$transfer" --port 8200
  nsenter --net="/proc/$last/ns/net" "$SIDECAR" --port=8000 --vllm-port=8200 --kv-connector=nixlv2 --secure-proxy=false \
    >"$work/sidecar.log" 2>&1 &
fi
await_pods
picker
proxy
if [ -n "${COORDINATOR:-}" ]; then
  cat >"$work/coordinator.yaml" <<YAML
server: { listen_addr: "127.0.0.1:8090" }
gateway: { address: "http://127.0.0.1:${PORT:-8080}" }
pipeline:
  kv_connector: kv-nixl
  steps: [{ type: prefill }, { type: decode }]
YAML
  "$COORDINATOR" --config "$work/coordinator.yaml" >"$work/coordinator.log" 2>&1 &
  for _ in $(seq 100); do curl -sf -o "$work/ready" 127.0.0.1:8090/readyz && break || sleep 0.1; done
  python3 "$here/situations.py" http://127.0.0.1:8090 disaggregated
else
  situations disaggregated local-prefill
fi
