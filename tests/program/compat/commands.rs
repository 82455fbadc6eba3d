/// A command line, and what its server is like.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    /// Where it comes from.
    pub(crate) name: &'static str,
    /// The words behind the program's name.
    pub(crate) words: &'static str,
    /// The model that its chat names.
    pub(crate) model: &'static str,
    /// Servers on ports that follow each other.
    pub(crate) servers: u16,
    /// Whether it would answer after seconds.
    pub(crate) slow: bool,
    /// Whether some requests fail on purpose.
    pub(crate) fails: bool,
}

impl Line {
    pub(crate) const NONE: Self =
        Self { name: "", words: "", model: "m", servers: 1, slow: false, fails: false };
}

const fn line(name: &'static str, model: &'static str, words: &'static str) -> Line {
    Line { name, words, model, ..Line::NONE }
}

const fn slow(name: &'static str, model: &'static str, words: &'static str) -> Line {
    Line { slow: true, ..line(name, model, words) }
}

const fn many(servers: u16, line: Line) -> Line {
    Line { servers, ..line }
}

const fn failing(line: Line) -> Line {
    Line { fails: true, ..line }
}

/// Command lines, as they are written where they come from.
pub(crate) const COMMANDS: &[Line] = &[
    slow(
        "seed 003: docker run, v0.6.1",
        "tweet-summary-0",
        r#"--port 8000 --model "Qwen/Qwen2.5-1.5B-Instruct" --lora-modules '[{"name":"tweet-summary-0"}]' --time-to-first-token 1000 --inter-token-latency 50"#,
    ),
    many(
        4,
        line(
            "seed 003: data parallel",
            "my_model",
            "--model my_model --port 8000 --data-parallel-size 4",
        ),
    ),
    line("seed 003: development", "test-model", r#"--model "test-model" --mode echo --port 8000"#),
    many(
        8,
        slow(
            "seed 003: load",
            "benchmark-model",
            r#"--model "benchmark-model" --mode random --time-to-first-token 2000 --inter-token-latency 100 --max-num-seqs 10 --data-parallel-size 8"#,
        ),
    ),
    line(
        "seed 003: basics",
        "model1",
        r#"--model "model-name" --port 8000 --served-model-name "model1 model2" --mode "random" --max-num-seqs 5 --max-waiting-queue-length 1000 --max-model-len 1024"#,
    ),
    slow(
        "seed 003: delays",
        "m",
        "--model m --time-to-first-token 1000 --time-to-first-token-std-dev 100 --inter-token-latency 50 --inter-token-latency-std-dev 10 --kv-cache-transfer-latency 200 --kv-cache-transfer-latency-std-dev 20 --time-factor-under-load 1.0",
    ),
    line(
        "seed 003: prefill",
        "m",
        "--model m --prefill-overhead 100 --prefill-time-per-token 2 --prefill-time-std-dev 0.5 --kv-cache-transfer-time-per-token 1.5 --kv-cache-transfer-time-std-dev 0.3",
    ),
    line(
        "seed 003: adapters",
        "adapter1",
        r#"--model base-model --lora-modules '[{"name":"adapter1","path":"/path/to/lora1","base_model_name":"base-model"}]' --max-loras 10 --max-cpu-loras 20"#,
    ),
    line(
        "seed 003: KV cache",
        "m",
        r#"--model m --enable-kvcache --kv-cache-size 100000 --block-size 64 --tokenizers-cache-dir "/tmp/cache" --zmq-endpoint "tcp://localhost:5555" --event-batch-size 16"#,
    ),
    failing(line(
        "seed 003: failures",
        "m",
        r#"--model m --failure-injection-rate 5 --failure-types "rate_limit,invalid_api_key,context_length,server_error""#,
    )),
    line("seed 003: logs", "m", "--model m --v=5 --logtostderr=true"),
    line(
        "seed 004: adapters",
        "my-lora",
        r#"--model Qwen/Qwen2.5-1.5B-Instruct --lora-modules '{"name":"my-lora","path":"/path/to/lora","base_model_name":"Qwen/Qwen2.5-1.5B-Instruct"}'"#,
    ),
    many(
        4,
        line(
            "seed 001: mocker",
            "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
            "--model-path TinyLlama/TinyLlama-1.1B-Chat-v1.0 --num-gpu-blocks-override 8192 --block-size 16 --speedup-ratio 10.0 --max-num-seqs 512 --num-workers 4 --enable-prefix-caching",
        ),
    ),
    line("seed 002: mocker", "Qwen/Qwen3-0.6B", "--model-path Qwen/Qwen3-0.6B"),
    line(
        "seed 002: mocker, cache",
        "Qwen/Qwen3-0.6B",
        "--model-path Qwen/Qwen3-0.6B --num-gpu-blocks-override 8192 --block-size 64 --max-num-seqs 256",
    ),
    line(
        "seed 002: mocker, prefill worker",
        "Qwen/Qwen3-0.6B",
        "--model-path Qwen/Qwen3-0.6B --disaggregation-mode prefill --bootstrap-ports 50100",
    ),
    line(
        "seed 002: mocker, decode worker",
        "Qwen/Qwen3-0.6B",
        "--model-path Qwen/Qwen3-0.6B --disaggregation-mode decode",
    ),
    line(
        "seed 002: mocker, reasoning",
        "Qwen/Qwen3-0.6B",
        r#"--model-path Qwen/Qwen3-0.6B --reasoning '{"start_thinking_token_id":123,"end_thinking_token_id":456,"thinking_ratio":0.6}'"#,
    ),
    line(
        "seed 002: mocker, GPU",
        "nvidia/Llama-3.1-8B-Instruct-FP8",
        "--model-path nvidia/Llama-3.1-8B-Instruct-FP8 --engine-type vllm --aic-perf-model --aic-system h200_sxm",
    ),
    line(
        "llm-d before 0.3: old names",
        "m",
        r#"--model m --max-running-requests 4 --lora '{"name":"a"}' --max-loras 2"#,
    ),
    line(
        "llm-d v0.6: removed flags",
        "m",
        "--model m --enable-kvcache --zmq-max-connect-attempts 3 --tokenizers-cache-dir /tmp/t --time-to-first-token 2 --inter-token-latency 1",
    ),
    line(
        "llm-d v0.9: Go durations",
        "m",
        "--model m --time-to-first-token 2ms --inter-token-latency 250us --prefill-time-per-token 1us --latency-calculator per-token --render-url http://localhost:8082 --render-timeout 30s --mm-render-timeout 60s --force-dummy-tokenizer --startup-duration 0",
    ),
    line(
        "llm-d HEAD: the rest",
        "m",
        "--model m --use-vllm-map-event-format false --kv-events-replay-queue-size 64 --tool-call-extra-call-probability 45 --skip-tool-validation --max-request-body-size-mb 4 --default-embedding-dimensions 384 --enable-sleep-mode --no-enforce-eager --enable-request-id-headers --log-http --mm-processor-kwargs {} --ec-transfer-config {} --tensor-parallel-size 2 --dataset-table-name llmd -v 4",
    ),
    line(
        "llm-d manifests: KV cache",
        "Qwen/Qwen2.5-1.5B-Instruct",
        r#"--model Qwen/Qwen2.5-1.5B-Instruct --port 8000 --max-loras 2 --lora-modules '{"name":"food-review-1"}' --enable-kvcache true --kv-cache-size 1024 --block-size 16 --zmq-endpoint tcp://localhost:5557 --event-batch-size 16"#,
    ),
    line(
        "llm-d manifests: prefill and decode",
        "m",
        "--model m --port 8200 --prefill-time-per-token 200 --prefill-time-std-dev 3 --max-num-seqs 2",
    ),
];

/// Configuration files, and their servers.
pub(crate) const FILES: &[(&str, Line)] = &[
    (
        SEED_004,
        Line {
            name: "seed 004: manifests/config.yaml",
            model: "qwen-1.5b",
            servers: 4,
            slow: true,
            fails: true,
            ..Line::NONE
        },
    ),
    (CHART, slow("llm-d's chart 0.1.0: config.yaml", "Qwen/Qwen2-0.5B", "")),
    (PROFILE, line("llm-d's latency profile of an 8B model", "m", "")),
];

/// Of it the dataset is left out: it is a download.
const SEED_004: &str = r#"
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
failure-injection-rate: 5
failure-types:
  - "rate_limit"
  - "server_error"
data-parallel-size: 4
lora-modules:
  - name: "math-lora"
    path: "/models/loras/math"
    base_model_name: "Qwen/Qwen2.5-1.5B-Instruct"
"#;

const CHART: &str = r#"
port: 8001
model: "Qwen/Qwen2-0.5B"
max-loras: 2
max-cpu-loras: 5
max-num-seqs: 1000
max-model-len: 32768
mode: "echo"
time-to-first-token: 500
inter-token-latency: 50
kv-cache-transfer-latency: 50
lora-modules:
  - '{"name":"a","path":"/p"}'
"#;

const PROFILE: &str = r#"
model: m
time-to-first-token: 100ms
time-to-first-token-std-dev: 20ms
inter-token-latency: 12ms
inter-token-latency-std-dev: 2ms
kv-cache-transfer-latency: 2ms
kv-cache-transfer-latency-std-dev: 400us
time-factor-under-load: 2.0
max-num-seqs: 16
"#;
