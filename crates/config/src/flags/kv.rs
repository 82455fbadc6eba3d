//! Flags of the KV cache and KV events.

use crate::choices::KvOffloadBackend;
use crate::flag::{Flag, MAX_COUNT_FLAG_VALUE};
use crate::group::FlagHelpGroup::{KvCache, KvEvents};
use crate::read::JsonMap;
use vllm_sim_engine::kv::BlockHashAlgorithm;

flags! {
    ENABLE_KVCACHE: bool = Flag::new("enable-kvcache", KvCache, "Simulate the KV cache and publish KV events, as in llm-d-inference-sim.")
        .with_default("false");
    KV_CACHE_SIZE: Option<u32> = Flag::new("kv-cache-size", KvCache, "Number of KV cache blocks. Default with `serve`: from GPU memory and model size.")
        .with_default_by_mode("1024", "").with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "KV cache size cannot be negative");
    NUM_GPU_BLOCKS_OVERRIDE: Option<u32> = Flag::new("num-gpu-blocks-override", KvCache, "Number of KV cache blocks; overrides --kv-cache-size.")
        .with_integer_bounds(1, MAX_COUNT_FLAG_VALUE, "num-gpu-blocks-override cannot be less than 1");
    KV_CACHE_MEMORY_BYTES: Option<i64> = Flag::new("kv-cache-memory-bytes", KvCache, "Size of the KV cache per GPU, in bytes; the number of blocks is derived from the model.")
        .allow_size_suffixes();
    BLOCK_SIZE: u32 = Flag::new("block-size", KvCache, "Number of tokens per KV cache block. Default with `serve` and --gpu: 32, 64 or 128 if the attention backend needs it.")
        .with_default("16").with_aliases(&["sglang-page-size"])
        .with_integer_bounds(1, 65_536, "block-size must be between 1 and 65536");
    ENABLE_PREFIX_CACHING: Option<bool> = Flag::new("enable-prefix-caching", KvCache, "Reuse full blocks of earlier prompts. Default: as --enable-kvcache; with `serve`: true.")
        .with_default_by_mode("", "true");
    PREFIX_CACHING_HASH_ALGO: BlockHashAlgorithm = Flag::choice("prefix-caching-hash-algo", KvCache, words![("sha256", BlockHashAlgorithm::Sha256), ("sha256_cbor", BlockHashAlgorithm::Sha256Cbor), ("xxhash", BlockHashAlgorithm::Xxhash), ("xxhash_cbor", BlockHashAlgorithm::XxhashCbor), ("fnv64_cbor", BlockHashAlgorithm::LlmdFnv)], "Hash algorithm of KV cache blocks. Default: sha256; with llm-d's KV events fnv64_cbor.");
    HASH_SEED: Option<String> = Flag::new("hash-seed", KvCache, "Seed of block hashes.")
        .with_env_names(&["PYTHONHASHSEED"]);
    GLOBAL_CACHE_HIT_THRESHOLD: f64 = Flag::new("global-cache-hit-threshold", KvCache, "Reject requests whose cached fraction of the prompt is lower, 0 to 1; 0: off.")
        .with_default("0").with_float_bounds(0.0, 1.0, "global cache hit threshold must be between in range [0, 1]");
    KV_CACHE_DTYPE: String = Flag::new("kv-cache-dtype", KvCache, "Data type of the KV cache, such as bfloat16 or fp8; auto: that of the checkpoint.")
        .with_default("auto");
    PREFIX_CACHE_RETENTION_INTERVAL: Option<u32> = Flag::new("prefix-cache-retention-interval", KvCache, "Sliding-window and state layers keep cache at the prompt end and at multiples of this many tokens; 0: at the end only; none: everywhere.")
        .with_default("0").with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "prefix-cache-retention-interval cannot be negative");
    DISABLE_HYBRID_KV_CACHE_MANAGER: bool = Flag::new("disable-hybrid-kv-cache-manager", KvCache, "Keep the KV cache of sliding-window layers as for full attention.")
        .with_default("false");
    KV_TRANSFER_CONFIG: Option<JsonMap> = Flag::new("kv-transfer-config", KvCache, "Disaggregated prefill, as a JSON object: {\"kv_connector\", \"kv_role\", …}.");
    KV_OFFLOADING_SIZE: Option<f64> = Flag::new("kv-offloading-size", KvCache, "CPU memory for KV cache offloading, in GiB for all GPUs of an engine. Default: none.")
        .with_float_bounds(0.0, 1_048_576.0, "kv-offloading-size must be between 0 and 1048576 GiB");
    KV_OFFLOADING_BACKEND: KvOffloadBackend = Flag::choice("kv-offloading-backend", KvCache, words![("native", KvOffloadBackend::Native), ("lmcache", KvOffloadBackend::LmCache)], "Backend of KV cache offloading: native (the engine itself) or lmcache (an LMCache server, not simulated).")
        .with_default("native");
    KV_OFFLOADING_BANDWIDTH: Option<f64> = Flag::new("kv-offloading-bandwidth", KvCache, "Bandwidth between a GPU and CPU memory, in GB/s per direction. Default: by GPU, else 52.")
        .with_float_bounds(0.001, 1_000_000.0, "kv-offloading-bandwidth must be between 0.001 and 1000000 GB/s");
    SIMPLE_KV_OFFLOAD: bool = Flag::new("simple-kv-offload", KvCache, "Use SimpleCPUOffloadConnector for --kv-offloading-size.")
        .with_default("false").with_env_names(&["VLLM_USE_SIMPLE_KV_OFFLOAD"]).hidden_from_help();
    CPU_OFFLOAD_GB: f64 = Flag::new("cpu-offload-gb", KvCache, "Weights kept in CPU memory, in GiB per GPU. Leaves room for more KV cache blocks, but every step reads the weights over the bus.")
        .with_default("0").with_float_bounds(0.0, 1_048_576.0, "cpu-offload-gb must be between 0 and 1048576 GiB");
    KV_SIDE_CHANNEL_HOST: Option<String> = Flag::new("kv-side-channel-host", KvCache, "Host name under which decode servers reach this server (NIXL).")
        .with_default("localhost").with_env_names(&["VLLM_NIXL_SIDE_CHANNEL_HOST"]);
    KV_SIDE_CHANNEL_PORT: u16 = Flag::new("kv-side-channel-port", KvCache, "Port for decode servers (NIXL); rank n uses port + n, and replicas use the ports after those.")
        .with_default("5600").with_env_names(&["VLLM_NIXL_SIDE_CHANNEL_PORT"])
        .with_integer_bounds(1, 65_535, "invalid kv-side-channel-port: 1 to 65535 are allowed");
    MOONCAKE_BOOTSTRAP_PORT: u16 = Flag::new("mooncake-bootstrap-port", KvCache, "Port of Mooncake's registry of prefill engines; replica n uses port + n.")
        .with_default("8998").with_env_names(&["VLLM_MOONCAKE_BOOTSTRAP_PORT"])
        .with_integer_bounds(1, 65_535, "invalid mooncake-bootstrap-port: 1 to 65535 are allowed");
    MOONCAKE_ABORT_REQUEST_TIMEOUT: u32 = Flag::new("mooncake-abort-request-timeout", KvCache, "Mooncake: seconds after which a prefill server gives a request up; a decode server waits 60 s longer.")
        .with_default("480").with_env_names(&["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"])
        .with_integer_bounds(0, MAX_COUNT_FLAG_VALUE, "mooncake-abort-request-timeout cannot be negative").hidden_from_help();
    KV_TRANSFER_BANDWIDTH: Option<f64> = Flag::new("kv-transfer-bandwidth", KvCache, "Bandwidth between pods for KV transfers, in GB/s. Default: the --kv-cache-transfer delays; 10 for the prefill and decode workers of replay, sweep and plan.")
        .hidden_from_help().with_float_bounds(0.0, f64::MAX, "kv-transfer-bandwidth cannot be negative");
    KV_BYTES_PER_TOKEN: Option<u64> = Flag::new("kv-bytes-per-token", KvCache, "Size of the KV cache per prompt token in a transfer, in bytes. Default: from config.json.")
        .hidden_from_help().with_integer_bounds(1, i64::MAX, "kv-bytes-per-token cannot be less than 1");
    KV_EVENTS_CONFIG: Option<JsonMap> = Flag::new("kv-events-config", KvEvents, "KV events in vLLM's format, as a JSON object: {\"enable_kv_cache_events\", \"endpoint\", \"replay_endpoint\", \"topic\", …}.");
    ZMQ_ENDPOINT: Option<String> = Flag::new("zmq-endpoint", KvEvents, "KV events in llm-d's format: ZMQ address to publish on.")
        .with_default("tcp://127.0.0.1:5557");
    EVENT_BATCH_SIZE: usize = Flag::new("event-batch-size", KvEvents, "KV events in llm-d's format: maximum number of events per message.")
        .with_default("16").with_integer_bounds(1, 1_000_000, "event batch size cannot less than 1");
    KV_EVENTS_REPLAY_ENDPOINT: Option<String> = Flag::new("kv-events-replay-endpoint", KvEvents, "KV events in llm-d's format: ZMQ address that replays past messages. Default: none.");
    KV_EVENTS_REPLAY_QUEUE_SIZE: i64 = Flag::new("kv-events-replay-queue-size", KvEvents, "Number of KV event messages kept for --kv-events-replay-endpoint.")
        .with_default("1024");
    USE_VLLM_MAP_EVENT_FORMAT: bool = Flag::new("use-vllm-map-event-format", KvEvents, "KV events in llm-d's format: encode events as maps instead of arrays.")
        .with_default("false");
    KV_EVENT_TOPIC: Option<String> = Flag::new("kv-event-topic", KvEvents, "KV event topic; {pod_ip}, {host}, {port}, {rank} and {model} are replaced. Default: empty; llm-d: kv@{pod_ip}:{port}@{model}.");
    KV_EVENTS_INT_HASHES: bool = Flag::new("kv-events-int-hashes", KvEvents, "Block hashes in KV events as 64-bit numbers instead of full digests.")
        .with_default("true").with_env_names(&["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"]);
}
