#!/usr/bin/env bash
# Plays every command of the documents that describe the simulators we replace, and prints a line
# of a table for each: seeds.sh PROGRAM
#
# Commands stand as they are written there, with our program in place of theirs. Moved are ports,
# files under /path/to and /tmp, the host of the dataset download and a profile that nobody has:
# stand-ins for those are made here. Servers get a chat and SIGTERM, replays must exit with 0.
set -u
program=$(realpath "${1:?which program?}")
port=${PORT:-21300}
files_port=$((port + 1))
dir=$(mktemp -d)
here=$(cd "$(dirname "$0")" && pwd)
failed=0
server=
files=
trap 'kill $server $files 2>/dev/null; rm -rf "$dir"' EXIT
cd "$dir" || exit 1
export POD_IP=127.0.0.1

say() { # result, source, command
  printf '| %s | %s | `%s` |\n' "$1" "$2" "$(printf '%s' "$3" | tr '\n' ' ' | sed 's/|/\\|/g; s/  */ /g')"
  case $1 in ok*) ;; *) failed=$((failed + 1)); grep error "$dir/log" | tail -1 | cut -c1-300 >&2 ;; esac
}

chat() { # port, model
  curl -sS -m 20 "http://127.0.0.1:$1/v1/chat/completions" -H 'Content-Type: application/json' \
    -d "{\"model\":\"$2\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":3}"
}

# serve SOURCE MODEL RANKS COMMAND [MORE]: MORE is put behind, to move ports and shorten seconds.
serve() {
  local source=$1 model=$2 ranks=$3 command=$4 more=${5:-} result=ok rank answer
  port=$((port + 20))
  eval "exec \"$program\" $command $more --port $port" >"$dir/log" 2>&1 &
  server=$!
  for rank in $(seq 0 $((ranks - 1))); do
    for _ in $(seq 150); do
      curl -s -o /dev/null -m 2 "http://127.0.0.1:$((port + rank))/ready" && break
      kill -0 $server 2>/dev/null || break
      sleep 0.1
    done
    # Where failures are injected, a few tries.
    for _ in 1 2 3 4 5 6; do
      answer=$(chat $((port + rank)) "$model" 2>&1)
      case $answer in *'"choices"'*) break ;; esac
    done
    case $answer in *'"choices"'*) ;; *) result="NO CHAT: $answer" ;; esac
  done
  kill -TERM $server 2>/dev/null
  wait $server
  local code=$?
  server=
  [ $code = 0 ] || result="EXIT $code"
  say "$result" "$source" "$command"
}

# refuse SOURCE WORDS COMMAND: it cannot start and says why.
refuse() {
  timeout 20 bash -c "\"$program\" $3" >"$dir/log" 2>&1
  local code=$?
  if [ $code = 2 ] && grep -q "$2" "$dir/log"; then say "ok: refused, $2" "$1" "$3"
  else say "EXIT $code, not refused" "$1" "$3"; fi
}

replay() { # source, command
  local words=${2//\/tmp\//$dir/} code
  words=${words//\/path\/to/$dir}
  rm -f "$dir/replay-report.json"
  timeout 300 bash -c "\"$program\" replay $words" >"$dir/log" 2>&1
  code=$?
  if [ $code != 0 ]; then say "EXIT $code" "$1" "$2"; return; fi
  case $2 in
    *--report-json*) [ -s "$dir/replay-report.json" ] || { say "NO REPORT" "$1" "$2"; return; } ;;
  esac
  say "ok" "$1" "$2"
}

# Stand-ins.
python3 - <<'P'
import json
rows = [{"timestamp": 40 * i, "input_length": 512 * (1 + i % 4) , "output_length": 16,
         "hash_ids": [j if j < 2 else 100 * i + j for j in range(1 + i % 4)]} for i in range(60)]
for name in ("trace.jsonl", "mooncake_trace.jsonl"):
    with open(name, "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
with open("sessions.jsonl", "w") as out:
    out.write('{"session_id":"session-a","timestamp":1000,"input_length":2048,"output_length":128,"hash_ids":[1,2,3,4]}\n')
    out.write('{"session_id":"session-a","delay":250,"input_length":2560,"output_length":128,"hash_ids":[1,2,3,4,5]}\n')
json.dump({"prefill_isl": [100, 1000, 4000], "prefill_ttft": [8, 30, 110]},
          open("prefill_raw_data.json", "w"))
json.dump({"x_kv_usage": [.1, .5, .9, .2, .6], "y_context_length": [500, 500, 1000, 2000, 4000],
           "z_itl": [6, 9, 12, 7, 10], "max_kv_tokens": 100000}, open("decode_raw_data.json", "w"))
P
profile=tests/planner/profiling_results/H200_TP1P_TP1D
mkdir -p "$dir/$profile" "$dir/data" "$dir/cache" "$dir/www"
cp ./*_raw_data.json "$dir/$profile/"
cp "$here/../../datasets/sample.sqlite3" "$dir/www/conversations.sqlite3"
(cd www && exec python3 -m http.server $files_port --bind 127.0.0.1 >/dev/null 2>&1) &
files=$!

echo '| Result | Source | Command |'
echo '|---|---|---|'
quick='--time-to-first-token 1ms --time-to-first-token-std-dev 0 --inter-token-latency 0 --inter-token-latency-std-dev 0'

s='llm-d v0.6, introduction'
serve "$s: docker" tweet-summary-0 1 '--port 8000 --model "Qwen/Qwen2.5-1.5B-Instruct" --lora-modules '\''[{"name":"tweet-summary-0"}]'\'' --time-to-first-token 1000 --inter-token-latency 50'
serve "$s: Kubernetes" meta-llama/Llama-3.1-8B-Instruct 1 '"--model \"meta-llama/Llama-3.1-8B-Instruct\"" "--port 8000" "--mode echo" "--time-to-first-token 500" "--inter-token-latency 30"'
serve "$s: data parallel" my_model 4 '--model my_model --port 8000 --data-parallel-size 4'
serve "$s: development" test-model 1 '--model "test-model" --mode echo --port 8000'
serve "$s: load" benchmark-model 8 '--model "benchmark-model" --mode random --time-to-first-token 2000 --inter-token-latency 100 --max-num-seqs 10 --data-parallel-size 8' "$quick"
serve "$s: basics" model1 1 '--model "model-name" --port 8000 --served-model-name "model1 model2" --mode "random" --max-num-seqs 5 --max-waiting-queue-length 1000 --max-model-len 1024'
serve "$s: delays" m 1 '--model m --time-to-first-token 1000 --time-to-first-token-std-dev 100 --inter-token-latency 50 --inter-token-latency-std-dev 10 --kv-cache-transfer-latency 200 --kv-cache-transfer-latency-std-dev 20 --time-factor-under-load 1.0' "$quick"
serve "$s: prefill" m 1 '--model m --prefill-overhead 100 --prefill-time-per-token 2 --prefill-time-std-dev 0.5 --kv-cache-transfer-time-per-token 1.5 --kv-cache-transfer-time-std-dev 0.3'
serve "$s: adapters" adapter1 1 '--model base-model --lora-modules '\''[{"name":"adapter1","path":"/path/to/lora1","base_model_name":"base-model"}]'\'' --max-loras 10 --max-cpu-loras 20'
serve "$s: KV cache" m 1 '--model m --enable-kvcache --kv-cache-size 100000 --block-size 64 --tokenizers-cache-dir "/tmp/cache" --zmq-endpoint "tcp://localhost:5555" --event-batch-size 16'
serve "$s: failures" m 1 '--model m --failure-injection-rate 5 --failure-types "rate_limit,invalid_api_key,context_length,server_error"'
serve "$s: dataset" m 1 "--model m --dataset-path \"$dir/data/dataset.sqlite3\" --dataset-url \"http://127.0.0.1:$files_port/conversations.sqlite3\" --dataset-in-memory"
refuse "$s: logs" 'model parameter is empty' '--v=2 --logtostderr=true'
refuse "$s: debugging" 'model parameter is empty' '--v=5 --logtostderr=true'
serve "$s: debugging, with a model" test 1 '--v=5 --logtostderr=true --model test'

s='llm-d v0.6, architecture'
serve "$s: adapters" my-lora 1 '--model Qwen/Qwen2.5-1.5B-Instruct --lora-modules '\''{"name":"my-lora","path":"/path/to/lora","base_model_name":"Qwen/Qwen2.5-1.5B-Instruct"}'\'''
cat >config.yaml <<Y
port: 8000
model: "Qwen/Qwen2.5-1.5B-Instruct"
served-model-name:
  - "Qwen/Qwen2.5-1.5B-Instruct"
  - "qwen-1.5b"
max-num-seqs: 10
max-model-len: 2048
max-loras: 5
time-to-first-token: 100
time-to-first-token-std-dev: 10
inter-token-latency: 20
inter-token-latency-std-dev: 2
time-factor-under-load: 1.5
mode: random
seed: 12345
enable-kvcache: true
kv-cache-size: 2048
block-size: 16
zmq-endpoint: "tcp://localhost:5557"
event-batch-size: 32
dataset-path: "$dir/data/conversations.sqlite3"
dataset-url: "http://127.0.0.1:$files_port/conversations.sqlite3"
dataset-in-memory: true
failure-injection-rate: 5
failure-types:
  - "rate_limit"
  - "server_error"
data-parallel-size: 4
lora-modules:
  - name: "math-lora"
    path: "/models/loras/math"
    base_model_name: "Qwen/Qwen2.5-1.5B-Instruct"
Y
serve "$s: manifests/config.yaml" qwen-1.5b 4 '--config config.yaml'

s='mocker, engine'
serve "$s: custom" TinyLlama/TinyLlama-1.1B-Chat-v1.0 4 '--model-path TinyLlama/TinyLlama-1.1B-Chat-v1.0 --num-gpu-blocks-override 8192 --block-size 16 --speedup-ratio 10.0 --max-num-seqs 512 --num-workers 4 --enable-prefix-caching'
serve "$s: profile" nvidia/Llama-3.1-8B-Instruct-FP8 1 "--model-path nvidia/Llama-3.1-8B-Instruct-FP8 --planner-profile-data $profile --speedup-ratio 1.0"

s='mocker, guide'
q=Qwen/Qwen3-0.6B
serve "$s: start" $q 1 '--model-path Qwen/Qwen3-0.6B'
serve "$s: cache" $q 1 '--model-path Qwen/Qwen3-0.6B --num-gpu-blocks-override 8192 --block-size 64 --max-num-seqs 256'
serve "$s: faster" $q 1 '--model-path Qwen/Qwen3-0.6B --speedup-ratio 10.0'
serve "$s: prefill worker" $q 1 '--model-path Qwen/Qwen3-0.6B --disaggregation-mode prefill --bootstrap-ports 50100'
serve "$s: decode worker" $q 1 '--model-path Qwen/Qwen3-0.6B --disaggregation-mode decode'
serve "$s: workers" $q 4 '--model-path Qwen/Qwen3-0.6B --num-workers 4'
serve "$s: profile" nvidia/Llama-3.1-8B-Instruct-FP8 1 "--model-path nvidia/Llama-3.1-8B-Instruct-FP8 --planner-profile-data $profile --speedup-ratio 1.0"
serve "$s: kernel tables" nvidia/Llama-3.1-8B-Instruct-FP8 1 '--model-path nvidia/Llama-3.1-8B-Instruct-FP8 --engine-type vllm --aic-perf-model --aic-system h200_sxm'
serve "$s: reasoning" $q 1 '--model-path Qwen/Qwen3-0.6B --reasoning '\''{"start_thinking_token_id":123,"end_thinking_token_id":456,"thinking_ratio":0.6}'\'''

s='mocker, replay'
replay "$s: trace" '/path/to/mooncake_trace.jsonl --num-workers 4 --replay-mode offline --router-mode kv_router --arrival-speedup-ratio 5 --extra-engine-args '\''{"block_size":512}'\'' --router-config '\''{"router_queue_policy":"fcfs"}'\'' --report-json /tmp/replay-report.json'
replay "$s: synthetic" '--input-tokens 5000 --output-tokens 500 --request-count 1000 --arrival-interval-ms 1.0 --num-workers 1 --replay-mode offline --replay-concurrency 100 --extra-engine-args '\''{"block_size":512}'\'' --report-json /tmp/replay-report.json'
replay "$s: turns" '--input-tokens 5000 --output-tokens 500 --request-count 200 --turns-per-session 3 --shared-prefix-ratio 0.5 --num-prefix-groups 8 --inter-turn-delay-ms 250 --replay-mode offline --replay-concurrency 32 --extra-engine-args '\''{"block_size":512}'\'' --report-json /tmp/replay-report.json'
replay "$s: sessions of a trace" '/path/to/sessions.jsonl --report-json /tmp/replay-report.json'
replay "$s: prefill and decode" '--input-tokens 4096 --output-tokens 256 --request-count 100 --replay-mode offline --router-mode kv_router --replay-concurrency 32 --num-prefill-workers 2 --num-decode-workers 6 --prefill-engine-args '\''{"worker_type":"prefill","block_size":512}'\'' --decode-engine-args '\''{"worker_type":"decode","block_size":512}'\'' --router-config '\''{"router_queue_policy":"wspt"}'\'' --report-json /tmp/replay-report.json'
replay "$s: kernel tables" '/path/to/trace.jsonl --extra-engine-args '\''{"aic_backend":"vllm","aic_system":"h200_sxm","aic_model_path":"nvidia/Llama-3.1-8B-Instruct-FP8","aic_tp_size":1}'\'''
replay "$s: kernel tables, prefill and decode" '/path/to/trace.jsonl --replay-mode offline --router-mode kv_router --prefill-engine-args '\''{"worker_type":"prefill","aic_backend":"vllm","aic_system":"h200_sxm","aic_model_path":"nvidia/Llama-3.1-8B-Instruct-FP8","aic_tp_size":1,"block_size":512}'\'' --decode-engine-args '\''{"worker_type":"decode","aic_backend":"vllm","aic_system":"h200_sxm","aic_model_path":"nvidia/Llama-3.1-8B-Instruct-FP8","aic_tp_size":1,"block_size":512}'\'' --num-prefill-workers 2 --num-decode-workers 6'

echo "$failed failed" >&2
[ $failed = 0 ]
