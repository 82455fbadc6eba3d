#!/bin/bash
# The table of docs/gateway-score.md: plays the same chats through every gateway whose program is here, a row for each.
#
#   examples/gateway/table.sh [--request-count 300] [flags of `vllm-sim gateway score`]
#
# VLLM_SIM is the program; EPP that of llm-d's endpoint picker, ENVOY Envoy's. With --require it fails when one does.
set -uo pipefail
cd "$(dirname "$0")"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
bad=0

# A folder's run.sh with a variable, under a name.
row() {
  local name=$1 folder=$2 variable=$3
  shift 3
  local run=("$folder/run.sh")
  [ "$folder" != llm-d ] || run+=(score)
  if ! env "$variable" "${run[@]}" --request-count 300 --json "$out/score.json" "$@" >"$out/log" 2>&1; then
    bad=1
    echo "$name, $variable: failed"
    tail -n 5 "$out/log"
    [ -s "$out/score.json" ] || return
  fi
  python3 - "$name" "$variable" "$out/score.json" <<'PY'
import json, sys
name, variable, file = sys.argv[1:]
report = json.load(open(file))
one, share = report["gateway"], report["share_of_ideal"]
percent = lambda value: "-" if value is None else f"{100 * value:.1f} %"
print(f"| {name} | `{variable}` | {percent(one['reuse'])} | {share['reuse']:.3f} | {percent(one['stickiness'])} | {percent(one['balance'])}"
      f" | {one['ttft']:.0f} ms | {one['e2e']:.0f} ms | {100 * report['score']:.1f} |")
PY
  mv "$out/score.json" "$out/last.json"
}
# The same chats behind the routers that are known, as they were last played offline.
offline() {
  [ -s "$out/last.json" ] || return 0
  python3 - "$out/last.json" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
best = report["ideal"]["reuse"]
for name in ("oracle", "kv-aware", "llm-d", "least-loaded", "round-robin", "random"):
    one = report["policies"][name]
    print(f"| offline | {name} | {100 * one['reuse']:.1f} % | {one['reuse'] / best:.3f} | {100 * one['stickiness']:.1f} % | {100 * one['balance']:.1f} %"
          f" | {one['ttft']:.0f} ms | {one['e2e']:.0f} ms | |")
PY
}
have() { command -v "$1" >/dev/null 2>&1; }

envoy=${ENVOY:-envoy}
echo "| Gateway | Policy | Prefix reuse | of the ideal | Sessions stay | Balance | TTFT mean | E2E mean | Score |"
echo "|---|---|---|---|---|---|---|---|---|"
if have nginx; then
  # The last one is broken on purpose: all to one pod.
  for method in '' 'least_conn;' "hash \$http_x_session_id consistent;" 'hash all;'; do row nginx nginx "METHOD=$method" "$@"; done
fi
if have haproxy; then
  for balance in roundrobin leastconn; do row HAProxy haproxy "BALANCE=$balance" "$@"; done
fi
if have "$envoy"; then
  PATH="$(dirname "$(command -v "$envoy")"):$PATH"
  for policy in ROUND_ROBIN LEAST_REQUEST RING_HASH; do row Envoy envoy "LB_POLICY=$policy" "$@"; done
fi
if have vllm-router; then
  for policy in round_robin cache_aware consistent_hash kv_aware; do row vllm-router vllm-router "POLICY=$policy" "$@"; done
fi
if python3 -c 'import sglang_router' 2>/dev/null; then
  for policy in round_robin cache_aware; do row sglang-router sglang-router "POLICY=$policy" "$@"; done
fi
if have litellm; then
  for strategy in simple-shuffle least-busy; do row LiteLLM litellm "STRATEGY=$strategy" "$@"; done
fi
if [ -n "${EPP:-}" ] && have "$envoy"; then
  for pick in approximate dialled; do row "llm-d's picker" llm-d "PICK=$pick" "$@"; done
fi
offline
exit $bad
