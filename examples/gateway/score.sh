# Sourced by the run.sh of each gateway: pods, the gateway, its score.
set -eu
sim=${VLLM_SIM:-vllm-sim}
port=${PORT:-8000}
base=${BASE_PORT:-8001}
engine="--num-gpu-blocks-override 2000 --latency-model polynomial"
work=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$work"' EXIT

# Three pods on 127.0.0.1 and the ports from $base on, with more flags of `serve`.
pods() {
  # shellcheck disable=SC2086
  "$sim" serve demo --host 127.0.0.1 --port "$base" --replicas 3 $engine --dev-mode --pod-name pod \
    --request-history 10000 --enable-prompt-tokens-details --ready-file "$work/ready" "$@" \
    >"$work/pods.log" 2>&1 &
  started="$started $!"
  for _ in $(seq 150); do
    [ ! -e "$work/ready" ] || return 0
    sleep 0.2
  done
  cat "$work/pods.log"
  exit 1
}

pod() { echo "127.0.0.1:$((base + $1))"; }

gateway() {
  "$@" >"$work/gateway.log" 2>&1 &
  started="$started $!"
}

# Scores what listens on $port; with more flags of `gateway score`.
score() {
  fleet=http://$(pod 0),http://$(pod 1),http://$(pod 2)
  code=0
  # shellcheck disable=SC2086
  "$sim" gateway score --target "http://127.0.0.1:$port" --fleet "$fleet" $engine \
    --target-api chat "$@" || code=$?
  [ $code = 0 ] || tail -n 5 "$work/gateway.log"
  return $code
}
