# Sourced by run.sh and pd.sh: pods with addresses of their own, the endpoint picker, Envoy.
set -eu
if [ -z "${OWN_NETWORK:-}" ]; then
  OWN_NETWORK=1 exec unshare --user --map-root-user --net bash "$0" "$@"
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
  if [ "${ENGINE:-vllm}" = sglang ]; then
    with_address "$address" "$sim" sglang --model-path demo --host 0.0.0.0 --port 8000 --enable-metrics --enable-cache-report \
      --page-size 16 --max-total-tokens 32000 --latency-model polynomial --dev-mode --pod-name "pod-$((address - 10))" \
      --request-history 10000 --ready-file "$work/ready.$address"
    return
  fi
  # shellcheck disable=SC2086
  with_address "$address" "$sim" serve demo --host 0.0.0.0 --port 8000 $engine --dev-mode --pod-name "pod-$((address - 10))" \
    --request-history 10000 --enable-prompt-tokens-details --enable-scale-out \
    --enable-lora --max-loras 2 --max-cpu-loras 4 --lora-modules sql=/sql chat=/chat law=/law --ready-file "$work/ready.$address" "$@"
}

events() { # address, endpoint
  echo "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"topic\": \"kv@10.99.0.$1:8000@demo\", \"endpoint\": \"$2\",
    \"replay_endpoint\": \"tcp://*:5657\", \"buffer_steps\": 10000}"
}

# The file that the picker finds its pods in; roles are those of pods 1 to 3.
roles=(both both both)
endpoints() {
  echo "endpoints:"
  for n in 1 2 3; do
    printf '  - { name: pod-%d, address: 10.99.0.%d, port: "8000", labels: { llm-d.ai/role: %s, llm-d.ai/engine-type: %s } }\n' \
      "$n" $((10 + n)) "${roles[n - 1]}" "${ENGINE:-vllm}"
  done
}

await_pods() {
  for n in 11 12 13; do
    for _ in $(seq 150); do [ -e "$work/ready.$n" ] && break || sleep 0.1; done
    [ -e "$work/ready.$n" ] || { cat "$work/$n.log"; exit 1; }
  done
}

picker() {
  endpoints >"$work/endpoints.yaml"
  picker_config "$@" >"$work/picker.yaml"
  # shellcheck disable=SC2086
  "$epp" --pool-name demo --pool-namespace demo --config-file "$work/picker.yaml" --grpc-port 9002 --grpc-health-port 9003 \
    --metrics-port 9090 --metrics-endpoint-auth=false --secure-serving=false --tracing=false ${picker_flags:-} >>"$work/picker.log" 2>&1 &
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
