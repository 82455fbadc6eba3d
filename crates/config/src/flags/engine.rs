//! Flags of delays, schedulers, step times and parallelism.

use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{EncoderTensorParallelMode, LatencyModelKind, PerformanceMode, SchedulerKind};
use crate::flag::{Flag, MAX_COUNT_FLAG_VALUE, RuntimeChangeScope};
use crate::group::FlagHelpGroup::{Delays, Parallel, Scheduler, Timing};
use crate::read::JsonMap;
use vllm_sim_engine::TtftFormula;
use vllm_sim_engine::sched::sglang::SglangSchedulePolicy;
use vllm_sim_engine::sched::vllm::{PreemptionVictim, SchedulingPolicy};
use vllm_sim_service::ServingRole;

flags! {
    TIME_TO_FIRST_TOKEN: Duration = Flag::new("time-to-first-token", Delays, "Delay before the first token (pool scheduler).")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine).with_bounds_error("time to first token cannot be negative");
    TIME_TO_FIRST_TOKEN_STD_DEV: Duration = Flag::new("time-to-first-token-std-dev", Delays, "Standard deviation of --time-to-first-token, at most 30 % of it.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine)
        .with_bounds_error("time to first token standard deviation cannot be negative");
    INTER_TOKEN_LATENCY: Duration = Flag::new("inter-token-latency", Delays, "Delay before each token after the first (pool scheduler).")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine).with_bounds_error("inter token latency cannot be negative");
    INTER_TOKEN_LATENCY_STD_DEV: Duration = Flag::new("inter-token-latency-std-dev", Delays, "Standard deviation of --inter-token-latency, at most 30 % of it.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine)
        .with_bounds_error("inter token latency standard deviation cannot be negative");
    PREFILL_OVERHEAD: Duration = Flag::new("prefill-overhead", Delays, "Fixed part of the prefill time with --latency-calculator per-token.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine).with_bounds_error("prefill overhead cannot be negative");
    PREFILL_TIME_PER_TOKEN: Duration = Flag::new("prefill-time-per-token", Delays, "Prefill time per prompt token that is not cached, with --latency-calculator per-token.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine).with_bounds_error("prefill time per token cannot be negative");
    PREFILL_TIME_STD_DEV: Duration = Flag::new("prefill-time-std-dev", Delays, "Standard deviation of the prefill time with --latency-calculator per-token.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine).with_bounds_error("prefill time standard deviation cannot be negative");
    KV_CACHE_TRANSFER_LATENCY: Duration = Flag::new("kv-cache-transfer-latency", Delays, "Delay before the first token if another server computed the prompt.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine).with_bounds_error("kv-cache transfer time cannot be negative");
    KV_CACHE_TRANSFER_LATENCY_STD_DEV: Duration = Flag::new("kv-cache-transfer-latency-std-dev", Delays, "Standard deviation of --kv-cache-transfer-latency, at most 30 % of it.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine)
        .with_bounds_error("kv-cache transfer time standard deviation cannot be negative");
    KV_CACHE_TRANSFER_TIME_PER_TOKEN: Duration = Flag::new("kv-cache-transfer-time-per-token", Delays, "Delay per prompt token if another server computed the prompt.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine).with_bounds_error("kv-cache transfer time per token cannot be negative");
    KV_CACHE_TRANSFER_TIME_STD_DEV: Duration = Flag::new("kv-cache-transfer-time-std-dev", Delays, "Standard deviation of the delay of --kv-cache-transfer-time-per-token.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Engine)
        .with_bounds_error("kv-cache transfer time standard deviation cannot be negative");
    TIME_FACTOR_UNDER_LOAD: f64 = Flag::new("time-factor-under-load", Delays, "Factor on delays at full load, relative to a single request. Between, it grows with the number of running requests.")
        .with_default("1.0").changeable_at_run_time(RuntimeChangeScope::Engine)
        .with_float_bounds(1.0, 1e9, "time factor under load cannot be less than 1.0");
    LATENCY_CALCULATOR: TtftFormula = Flag::choice("latency-calculator", Delays, words![("constant", TtftFormula::Constant), ("per-token", TtftFormula::PerToken)], "constant: fixed delays; per-token: delays grow with the prompt. Default: constant if a fixed delay is set.")
        .changeable_at_run_time(RuntimeChangeScope::Engine);
    SPEEDUP_RATIO: f64 = Flag::new("speedup-ratio", Delays, "Divisor of all modelled times; 2 halves them.")
        .with_default("1.0").with_float_bounds(0.0, 1e9, "speedup-ratio cannot be negative");
    DECODE_SPEEDUP_RATIO: f64 = Flag::new("decode-speedup-ratio", Delays, "Additional divisor of decode times.")
        .with_default("1.0").with_float_bounds(0.0, 1e9, "decode-speedup-ratio cannot be negative");
    SCHEDULER: SchedulerKind = Flag::choice("scheduler", Scheduler, words![("pool", SchedulerKind::Pool), ("vllm", SchedulerKind::Vllm), ("sglang", SchedulerKind::Sglang)], "pool: slots, each sequence has its own timeline; vllm: continuous batching; sglang: continuous batching with a radix cache.")
        .with_default_by_mode("pool", "vllm").with_aliases(&["engine-type"]);
    MAX_NUM_SEQS: u32 = Flag::new("max-num-seqs", Scheduler, "Maximum number of running sequences. Default with `serve`: 1024 if --gpu has at least 70 GiB and is no A100.")
        .with_default_by_mode("5", "256").with_aliases(&["max-running-requests"]).changeable_at_run_time(RuntimeChangeScope::Server)
        .with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "max num seqs cannot be less than 1");
    MAX_NUM_ACTIVE_SEQS: Option<i64> = Flag::new("max-num-active-seqs", Scheduler, "Maximum number of running sequences, below the value of --max-num-seqs that is reported.")
        .hidden_from_help();
    MAX_NUM_BATCHED_TOKENS: Option<u32> = Flag::new("max-num-batched-tokens", Scheduler, "Maximum number of tokens per step. Default with `serve`: 8192 if --gpu has at least 70 GiB and is no A100, 16384 from 160 GiB.")
        .with_default_by_mode("8192", "2048").allow_size_suffixes()
        .with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "max-num-batched-tokens cannot be less than 1");
    MAX_WAITING_QUEUE_LENGTH: Option<u32> = Flag::new("max-waiting-queue-length", Scheduler, "Maximum number of waiting requests; further requests get HTTP 429. none: no limit.")
        .with_default_by_mode("1000", "none").changeable_at_run_time(RuntimeChangeScope::Server)
        .with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "max waiting queue size cannot be less than 0");
    MAX_NUM_QUEUED_REQS: Option<u32> = Flag::new("max-num-queued-reqs", Scheduler, "Maximum number of requests in flight. Further requests get HTTP 503.")
        .changeable_at_run_time(RuntimeChangeScope::Server).with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "max-num-queued-reqs cannot be less than 0");
    MAX_NUM_QUEUED_TOKENS: Option<u64> = Flag::new("max-num-queued-tokens", Scheduler, "Maximum number of prompt tokens of requests without output so far. Further requests get HTTP 503.")
        .changeable_at_run_time(RuntimeChangeScope::Server).allow_size_suffixes()
        .with_integer_bounds(0, i64::MAX, "max-num-queued-tokens cannot be less than 0");
    ENABLE_CHUNKED_PREFILL: bool = Flag::new("enable-chunked-prefill", Scheduler, "Allow a prompt to be computed in chunks over several steps.")
        .with_default("true");
    LONG_PREFILL_TOKEN_THRESHOLD: u32 = Flag::new("long-prefill-token-threshold", Scheduler, "Maximum tokens of one prompt per step, unless it runs alone; 0: --max-num-batched-tokens.")
        .with_default("0").with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "long-prefill-token-threshold cannot be less than 0");
    LONG_PREFILL_TOKEN_THRESHOLD_ADAPTIVE: bool = Flag::new("long-prefill-token-threshold-adaptive", Scheduler, "Raise --long-prefill-token-threshold to the token budget divided by the number of requests.")
        .with_default("false");
    PREFILL_SCHEDULE_INTERVAL: u32 = Flag::new("prefill-schedule-interval", Scheduler, "Number of steps from one prefill to the next while requests decode.")
        .with_default("1").with_integer_bounds(1, 1_000_000, "prefill-schedule-interval must be between 1 and 1000000");
    SCHEDULING_POLICY: SchedulingPolicy = Flag::choice("scheduling-policy", Scheduler, words![("fcfs", SchedulingPolicy::Fcfs), ("priority", SchedulingPolicy::Priority)], "Order of the waiting queue: by arrival (fcfs) or by request priority.")
        .with_default("fcfs");
    PREEMPTION_MODE: PreemptionVictim = Flag::choice("preemption-mode", Scheduler, words![("lifo", PreemptionVictim::Last), ("fifo", PreemptionVictim::First), ("recompute", PreemptionVictim::Last), ("swap", PreemptionVictim::Last)], "Which running sequence is preempted when blocks run out: the youngest (lifo) or the oldest (fifo).")
        .with_default("lifo");
    ASYNC_SCHEDULING: bool = Flag::new("async-scheduling", Scheduler, "Schedule the next step while one runs, so that two steps are in flight.")
        .with_default("true");
    MAX_NUM_SCHEDULED_TOKENS: Option<u32> = Flag::new("max-num-scheduled-tokens", Scheduler, "Maximum number of tokens scheduled per step; does not affect memory. Default: --max-num-batched-tokens.")
        .allow_size_suffixes().with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "max-num-scheduled-tokens cannot be less than 1");
    SCHEDULER_RESERVE_FULL_ISL: bool = Flag::new("scheduler-reserve-full-isl", Scheduler, "Admit a prompt only when all of it fits into the KV cache, and not just its first chunk.")
        .with_default("true");
    PERFORMANCE_MODE: PerformanceMode = Flag::choice("performance-mode", Scheduler, words![("balanced", PerformanceMode::Balanced), ("interactivity", PerformanceMode::Interactivity), ("throughput", PerformanceMode::Throughput)], "throughput: doubles the defaults of max-num-seqs and max-num-batched-tokens; interactivity: a CUDA graph for every size up to 32.")
        .with_default("balanced");
    DISABLE_CHUNKED_MM_INPUT: bool = Flag::new("disable-chunked-mm-input", Scheduler, "Compute an image, audio clip or video in one step, never in parts.")
        .with_default("false");
    ENFORCE_EAGER: Option<bool> = Flag::new("enforce-eager", Scheduler, "Disable CUDA graphs: every step waits for kernel launches. Requires --gpu.");
    CUDAGRAPH_CAPTURE_SIZES: Vec<String> = Flag::new("cudagraph-capture-sizes", Scheduler, "Batch sizes with a CUDA graph, in tokens; a smaller batch is padded. Default: by max-num-seqs.");
    MAX_CUDAGRAPH_CAPTURE_SIZE: Option<u32> = Flag::new("max-cudagraph-capture-size", Scheduler, "Maximum batch size with a CUDA graph, in tokens. Default: by max-num-seqs, at most 512 (B200: 1024).")
        .with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "max-cudagraph-capture-size cannot be negative");
    OPTIMIZATION_LEVEL: Option<u32> = Flag::new("optimization-level", Scheduler, "0: as --enforce-eager; 1 to 3: CUDA graphs. Default: 2.")
        .with_short_names(&["O"]).with_integer_bounds(0, 3, "optimization-level must be between 0 and 3");
    COMPILATION_CONFIG: Option<JsonMap> = Flag::new("compilation-config", Scheduler, "Compilation settings of vLLM, as a JSON object. Only cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size apply.")
        .with_short_names(&["cc"]);
    ATTENTION_BACKEND: Option<String> = Flag::new("attention-backend", Scheduler, "Attention backend, such as FLASHMLA or CUTLASS_MLA; determines the default of --block-size.");
    ALL2ALL_BACKEND: Option<String> = Flag::new("all2all-backend", Parallel, "All-to-all kernels of expert parallelism, which determine the time of experts. With deepep_low_latency or nixl_ep, max-num-batched-tokens defaults to 256.");
    WATERMARK: f64 = Flag::new("watermark", Scheduler, "Fraction of KV cache blocks kept free on admission, 0 to 1.")
        .with_default("0").with_float_bounds(0.0, 0.999_999, "watermark must be at least 0 and less than 1");
    SPECULATIVE_CONFIG: Option<JsonMap> = Flag::new("speculative-config", Scheduler, "Speculative decoding, as a JSON object: {\"method\", \"num_speculative_tokens\", …}.")
        .with_short_names(&["sc"]);
    SPEC_METHOD: Option<String> = Flag::new("spec-method", Scheduler, "Speculative decoding method; sets `method` of --speculative-config.");
    SPEC_MODEL: Option<String> = Flag::new("spec-model", Scheduler, "Draft model; sets `model` of --speculative-config.")
        .with_aliases(&["speculative-model"]);
    SPEC_TOKENS: Option<u32> = Flag::new("spec-tokens", Scheduler, "Draft tokens per step; sets `num_speculative_tokens` of --speculative-config.")
        .with_aliases(&["num-speculative-tokens", "aic-nextn", "ais-nextn"])
        .with_integer_bounds(1, 64, "num_speculative_tokens must be between 1 and 64");
    SPEC_ACCEPTANCE_RATES: Vec<String> = Flag::new("spec-acceptance-rates", Scheduler, "Chances that draft 1, 2, … is accepted if all before it were accepted.")
        .with_default("[0.85, 0.3, 0, 0, 0]").with_aliases(&["aic-nextn-accept-rates", "ais-nextn-accept-rates"]);
    DISAGGREGATION_MODE: ServingRole = Flag::choice("disaggregation-mode", Scheduler, words![("agg", ServingRole::Whole), ("prefill", ServingRole::Prefill), ("decode", ServingRole::Decode)], "prefill: compute prompts and one token each; decode: load every prompt from a prefill server, and publish no KV events.")
        .with_default("agg");
    IS_PREFILL_WORKER: bool = Flag::new("is-prefill-worker", Scheduler, "Alias of --disaggregation-mode prefill.")
        .with_default("false");
    IS_DECODE_WORKER: bool = Flag::new("is-decode-worker", Scheduler, "Alias of --disaggregation-mode decode.")
        .with_default("false");
    DISAGGREGATION_BOOTSTRAP_PORT: u16 = Flag::new("disaggregation-bootstrap-port", Scheduler, "SGLang: port of the bootstrap server of a prefill server; replica n uses port + n.")
        .with_default("8998").with_integer_bounds(1, 65_535, "invalid disaggregation-bootstrap-port: 1 to 65535 are allowed").hidden_from_help();
    DISAGGREGATION_TRANSFER_BACKEND: String = Flag::new("disaggregation-transfer-backend", Scheduler, "SGLang: fake lets a decode server work without prefill servers; all others act alike.")
        .with_default("mooncake").hidden_from_help();
    DISAGGREGATION_BOOTSTRAP_TIMEOUT: u32 = Flag::new("disaggregation-bootstrap-timeout", Scheduler, "SGLang: seconds in which a decode server must announce itself to a prefill server.")
        .with_default("300").with_env_names(&["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"]).with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "disaggregation-bootstrap-timeout cannot be negative").hidden_from_help();
    DISAGGREGATION_WAITING_TIMEOUT: u32 = Flag::new("disaggregation-waiting-timeout", Scheduler, "SGLang: seconds in which a decode server must receive a prompt.")
        .with_default("300").with_env_names(&["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"]).with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "disaggregation-waiting-timeout cannot be negative").hidden_from_help();
    DISAGGREGATION_HEARTBEAT_INTERVAL: f64 = Flag::new("disaggregation-heartbeat-interval", Scheduler, "SGLang: seconds between two checks of a decode server whether a prefill server is alive, at least 2.")
        .with_default("5").with_env_names(&["SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL"]).with_float_bounds(0.0, 1e9, "disaggregation-heartbeat-interval must be between 0 and 1e9").hidden_from_help();
    DISAGGREGATION_HEARTBEAT_MAX_FAILURE: u32 = Flag::new("disaggregation-heartbeat-max-failure", Scheduler, "SGLang: number of failed checks after which a prefill server is lost.")
        .with_default("2").with_env_names(&["SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"]).with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "disaggregation-heartbeat-max-failure cannot be less than 1").hidden_from_help();
    EXTRA_ENGINE_ARGS: Option<PathBuf> = Flag::new("extra-engine-args", Scheduler, "Engine arguments of Dynamo's mocker, as a JSON file or text; replaces the engine flags.");
    SGLANG_SCHEDULE_POLICY: SglangSchedulePolicy = Flag::choice("sglang-schedule-policy", Scheduler, words![("fifo", SglangSchedulePolicy::Fifo), ("fcfs", SglangSchedulePolicy::Fifo), ("lpm", SglangSchedulePolicy::Lpm)], "SGLang: order of the waiting queue; fifo and fcfs: by arrival, lpm: longest prefix match first.")
        .with_default("fifo");
    SGLANG_MAX_PREFILL_TOKENS: u32 = Flag::new("sglang-max-prefill-tokens", Scheduler, "SGLang: maximum prompt tokens of a prefill batch.")
        .with_default("16384").with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "sglang-max-prefill-tokens cannot be less than 1");
    SGLANG_CHUNKED_PREFILL_SIZE: u32 = Flag::new("sglang-chunked-prefill-size", Scheduler, "SGLang: maximum tokens of one prompt per prefill batch.")
        .with_default("8192").with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "sglang-chunked-prefill-size cannot be less than 1");
    SGLANG_CLIP_MAX_NEW_TOKENS: u32 = Flag::new("sglang-clip-max-new-tokens", Scheduler, "SGLang: maximum output tokens per request that admission reserves.")
        .with_default("4096").with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "sglang-clip-max-new-tokens cannot be less than 1");
    SGLANG_SCHEDULE_CONSERVATIVENESS: f64 = Flag::new("sglang-schedule-conservativeness", Scheduler, "SGLang: conservativeness of admission; higher values admit fewer requests.")
        .with_default("1.0").with_float_bounds(0.0, 1e9, "sglang-schedule-conservativeness cannot be negative");
    LATENCY_MODEL: LatencyModelKind = Flag::choice("latency-model", Timing, words![("auto", LatencyModelKind::Auto), ("aic", LatencyModelKind::Aic), ("delays", LatencyModelKind::Delays), ("polynomial", LatencyModelKind::Polynomial), ("profile", LatencyModelKind::Profile), ("roofline", LatencyModelKind::Roofline)], "Source of step times. auto: the profile, kernel tables or GPU set by other flags, else the delays.")
        .with_default("auto");
    AIC_DATA: Option<PathBuf> = Flag::new("aic-data", Timing, "Folder of NVIDIA's kernel tables: an installed aiconfigurator-core or aisimulate. Default: search $VIRTUAL_ENV and $CONDA_PREFIX.");
    AIC_BACKEND_VERSION: Option<String> = Flag::new("aic-backend-version", Timing, "Version of the engine in the kernel tables: current, previous or a supported number. Default: current.")
        .with_aliases(&["ais-backend-version"]);
    LATENCY_PROFILE: Option<PathBuf> = Flag::new("latency-profile", Timing, "Measured step times: an NPZ file or the folder of a profiler.")
        .with_aliases(&["planner-profile-data"]);
    LATENCY_COEFFICIENTS: Option<PathBuf> = Flag::new("latency-coefficients", Timing, "Roofline coefficients written by `vllm-sim calibrate`: a file, or the mapping itself.");
    GPU: Option<String> = Flag::new("gpu", Timing, "GPU to imitate, such as h100, a100, l40s, h200, b200, mi300x.")
        .with_aliases(&["aic-system", "ais-system"]);
    GPU_MEMORY_UTILIZATION: f64 = Flag::new("gpu-memory-utilization", Timing, "Fraction of GPU memory for weights and KV cache, 0 to 1.")
        .with_default("0.92").with_aliases(&["device-memory-utilization"])
        .with_float_bounds(f64::MIN_POSITIVE, 1.0, "gpu-memory-utilization must be more than 0 and at most 1");
    TENSOR_PARALLEL_SIZE: u32 = Flag::new("tensor-parallel-size", Parallel, "Number of GPUs that share each layer.")
        .with_default("1").with_short_names(&["tp"]).with_aliases(&["aic-tp-size", "ais-tp-size"])
        .with_integer_bounds(1, 65_535, "tensor parallel size cannot be less than 1");
    PIPELINE_PARALLEL_SIZE: u32 = Flag::new("pipeline-parallel-size", Parallel, "Number of pipeline stages, each with a part of the layers.")
        .with_default("1").with_short_names(&["pp"]).with_integer_bounds(1, 65_535, "pipeline parallel size cannot be less than 1");
    DECODE_CONTEXT_PARALLEL_SIZE: u32 = Flag::new("decode-context-parallel-size", Parallel, "GPUs of a tensor-parallel group that share the KV cache of each context; multiplies the tokens per block.")
        .with_default("1").with_short_names(&["dcp"]).with_integer_bounds(1, 65_535, "decode context parallel size cannot be less than 1");
    PREFILL_CONTEXT_PARALLEL_SIZE: u32 = Flag::new("prefill-context-parallel-size", Parallel, "Number of tensor-parallel groups that share the tokens of each prompt. Requires --gpu.")
        .with_default("1").with_short_names(&["pcp"]).with_integer_bounds(1, 65_535, "prefill context parallel size cannot be less than 1");
    MM_ENCODER_TP_MODE: EncoderTensorParallelMode = Flag::choice("mm-encoder-tp-mode", Parallel, words![("weights", EncoderTensorParallelMode::Weights), ("data", EncoderTensorParallelMode::Data)], "Work of each GPU in the multimodal encoder: a part of each item (weights) or whole items (data). Requires --gpu.")
        .with_default("weights");
    ENABLE_EXPERT_PARALLEL: bool = Flag::new("enable-expert-parallel", Parallel, "Distribute the experts of a model over ranks.")
        .with_default("false").with_short_names(&["ep"]);
    DATA_PARALLEL_SIZE: u32 = Flag::new("data-parallel-size", Parallel, "Number of engines. `vllm-sim --model` gives each its own port; `serve` puts all behind one port.")
        .with_default("1").with_short_names(&["dp"])
        .with_integer_bounds_by_mode((1, 8), (1, 1024), "data parallel size must be between 1 and {most}");
    DATA_PARALLEL_RANK: i64 = Flag::new("data-parallel-rank", Parallel, "Run only this data-parallel rank; -1: all ranks.")
        .with_default("-1").with_short_names(&["dpn"]);
    DATA_PARALLEL_START_RANK: Option<i64> = Flag::new("data-parallel-start-rank", Parallel, "First data-parallel rank of this process.")
        .with_short_names(&["dpr"]);
    DATA_PARALLEL_SIZE_LOCAL: Option<i64> = Flag::new("data-parallel-size-local", Parallel, "Number of data-parallel ranks of this process. Default: all.")
        .with_short_names(&["dpl"]);
    DATA_PARALLEL_EXTERNAL_LB: bool = Flag::new("data-parallel-external-lb", Parallel, "One data-parallel rank per server; an external load balancer distributes requests.")
        .with_default("false").with_short_names(&["dpe"]);
    DATA_PARALLEL_HYBRID_LB: bool = Flag::new("data-parallel-hybrid-lb", Parallel, "Local data-parallel ranks behind one port; an external load balancer distributes requests between hosts.")
        .with_default("false").with_short_names(&["dph"]);
    DATA_PARALLEL_MULTI_PORT_EXTERNAL_LB: bool = Flag::new("data-parallel-multi-port-external-lb", Parallel, "A port for each local data-parallel rank, and a supervisor port.")
        .with_default("false").with_short_names(&["dpm"]);
    DATA_PARALLEL_SUPERVISOR_PORT: u16 = Flag::new("data-parallel-supervisor-port", Parallel, "Port of the supervisor with --data-parallel-multi-port-external-lb.")
        .with_default("9256")
        .with_integer_bounds(1, 65_535, "invalid data-parallel-supervisor-port: 1 to 65535 are allowed");
    DATA_PARALLEL_ADDRESS: String = Flag::new("data-parallel-address", Parallel, "Host of the API server that --headless engines join.")
        .with_default("127.0.0.1").with_short_names(&["dpa"]);
    DATA_PARALLEL_RPC_PORT: u16 = Flag::new("data-parallel-rpc-port", Parallel, "RPC port of the API server that --headless engines join.")
        .with_default("29550").with_short_names(&["dpp"]).with_integer_bounds(1, 65_535, "invalid data-parallel-rpc-port: 1 to 65535 are allowed");
    API_SERVER_COUNT: Option<u32> = Flag::new("api-server-count", Parallel, "Number of API server processes to report. Default: --data-parallel-size.")
        .with_short_names(&["asc"]).with_integer_bounds(0, 1024, "api-server-count cannot be negative");
}
