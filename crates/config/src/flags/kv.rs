//! Flags of the KV cache and KV events.

use crate::choices::OffloadBackend;
use crate::flag::{Flag, MANY};
use crate::group::FlagGroup::{KvCache, KvEvents};
use crate::read::JsonMap;
use vllm_sim_engine::kv::HashAlgo;

flags! {
    ENABLE_KVCACHE: bool = Flag::new("enable-kvcache", KvCache, "llm-d's switch: find blocks again and publish events about them.")
        .or("false");
    KV_CACHE_SIZE: Option<u32> = Flag::new("kv-cache-size", KvCache, "Blocks of the KV cache [with `serve`: what GPU and model leave].")
        .by_mode("1024", "").range(0, MANY, "KV cache size cannot be negative");
    NUM_GPU_BLOCKS_OVERRIDE: Option<u32> = Flag::new("num-gpu-blocks-override", KvCache, "The same in vLLM's words; wins.")
        .range(1, MANY, "num-gpu-blocks-override cannot be less than 1");
    KV_CACHE_MEMORY_BYTES: Option<i64> = Flag::new("kv-cache-memory-bytes", KvCache, "Bytes of the KV cache; the number of blocks follows from the model.")
        .suffixed();
    BLOCK_SIZE: u32 = Flag::new("block-size", KvCache, "Tokens per block [with `serve` and --gpu 32, 64 or 128 where the attention backend wants it].")
        .or("16").also(&["sglang-page-size"])
        .range(1, 65_536, "block-size must be between 1 and 65536");
    ENABLE_PREFIX_CACHING: Option<bool> = Flag::new("enable-prefix-caching", KvCache, "Find full blocks again [as enable-kvcache; with `serve` yes].")
        .by_mode("", "true");
    PREFIX_CACHING_HASH_ALGO: HashAlgo = Flag::choice("prefix-caching-hash-algo", KvCache, words![("sha256", HashAlgo::Sha256), ("sha256_cbor", HashAlgo::Sha256Cbor), ("xxhash", HashAlgo::Xxhash), ("xxhash_cbor", HashAlgo::XxhashCbor), ("fnv64_cbor", HashAlgo::LlmdFnv)], "How blocks are named [sha256; with llm-d's events fnv64_cbor].");
    HASH_SEED: Option<String> = Flag::new("hash-seed", KvCache, "Seed of block names.")
        .env(&["PYTHONHASHSEED"]);
    GLOBAL_CACHE_HIT_THRESHOLD: f64 = Flag::new("global-cache-hit-threshold", KvCache, "Refuse requests whose cached share of the prompt is below this, 0 to 1; 0: none.")
        .or("0").within(0.0, 1.0, "global cache hit threshold must be between in range [0, 1]");
    KV_CACHE_DTYPE: String = Flag::new("kv-cache-dtype", KvCache, "Data type of the cache.")
        .or("auto");
    PREFIX_CACHE_RETENTION_INTERVAL: Option<u32> = Flag::new("prefix-cache-retention-interval", KvCache, "Layers with a sliding window or a state keep their cache where a prompt ends and at every multiple of so many tokens; 0: there alone; none: everywhere.")
        .or("0").range(0, MANY, "prefix-cache-retention-interval cannot be negative");
    DISABLE_HYBRID_KV_CACHE_MANAGER: bool = Flag::new("disable-hybrid-kv-cache-manager", KvCache, "Keep the cache of layers with a sliding window as if they saw everything.")
        .or("false");
    KV_TRANSFER_CONFIG: Option<JsonMap> = Flag::new("kv-transfer-config", KvCache, "Disaggregated prefill: {\"kv_connector\", \"kv_role\", …}.");
    KV_OFFLOADING_SIZE: Option<f64> = Flag::new("kv-offloading-size", KvCache, "GiB of host memory that keep KV cache, all GPUs of an engine together [none].")
        .within(0.0, 1_048_576.0, "kv-offloading-size must be between 0 and 1048576 GiB");
    KV_OFFLOADING_BACKEND: OffloadBackend = Flag::choice("kv-offloading-backend", KvCache, words![("native", OffloadBackend::Native), ("lmcache", OffloadBackend::LmCache)], "Who keeps it: the engine itself, or an LMCache server, which is not simulated.")
        .or("native");
    KV_OFFLOADING_BANDWIDTH: Option<f64> = Flag::new("kv-offloading-bandwidth", KvCache, "GB/s between a GPU and the memory of its host, in each direction [by GPU; 52].")
        .within(0.001, 1_000_000.0, "kv-offloading-bandwidth must be between 0.001 and 1000000 GB/s");
    SIMPLE_KV_OFFLOAD: bool = Flag::new("simple-kv-offload", KvCache, "Let --kv-offloading-size mean SimpleCPUOffloadConnector.")
        .or("false").env(&["VLLM_USE_SIMPLE_KV_OFFLOAD"]).hide();
    CPU_OFFLOAD_GB: f64 = Flag::new("cpu-offload-gb", KvCache, "GiB of weights of each GPU that stay in the memory of the host: room for more blocks, and every step reads them over the bus.")
        .or("0").within(0.0, 1_048_576.0, "cpu-offload-gb must be between 0 and 1048576 GiB");
    KV_SIDE_CHANNEL_HOST: Option<String> = Flag::new("kv-side-channel-host", KvCache, "Host at which decoding servers reach this one (NIXL).")
        .or("localhost").env(&["VLLM_NIXL_SIDE_CHANNEL_HOST"]);
    KV_SIDE_CHANNEL_PORT: u16 = Flag::new("kv-side-channel-port", KvCache, "Its port; rank n takes the n-th after it, and replicas the ports after those.")
        .or("5600").env(&["VLLM_NIXL_SIDE_CHANNEL_PORT"])
        .range(1, 65_535, "invalid kv-side-channel-port: 1 to 65535 are allowed");
    MOONCAKE_BOOTSTRAP_PORT: u16 = Flag::new("mooncake-bootstrap-port", KvCache, "Port of Mooncake's registry of prefilling engines; replica n takes the n-th after it.")
        .or("8998").env(&["VLLM_MOONCAKE_BOOTSTRAP_PORT"])
        .range(1, 65_535, "invalid mooncake-bootstrap-port: 1 to 65535 are allowed");
    KV_TRANSFER_BANDWIDTH: Option<f64> = Flag::new("kv-transfer-bandwidth", KvCache, "Bandwidth between pods in GB/s [transfers take the delays above].")
        .hide().within(0.0, f64::MAX, "kv-transfer-bandwidth cannot be negative");
    KV_BYTES_PER_TOKEN: Option<u64> = Flag::new("kv-bytes-per-token", KvCache, "Bytes that one prompt token takes in a transfer [from config.json].")
        .hide().range(1, i64::MAX, "kv-bytes-per-token cannot be less than 1");
    KV_EVENTS_CONFIG: Option<JsonMap> = Flag::new("kv-events-config", KvEvents, "vLLM's events: {\"enable_kv_cache_events\", \"endpoint\", \"replay_endpoint\", \"topic\", …}.");
    ZMQ_ENDPOINT: Option<String> = Flag::new("zmq-endpoint", KvEvents, "llm-d's events: address to publish at.")
        .or("tcp://127.0.0.1:5557");
    EVENT_BATCH_SIZE: usize = Flag::new("event-batch-size", KvEvents, "llm-d's events: most events per message.")
        .or("16").range(1, 1_000_000, "event batch size cannot less than 1");
    KV_EVENTS_REPLAY_ENDPOINT: Option<String> = Flag::new("kv-events-replay-endpoint", KvEvents, "llm-d's events: address that replays lost messages [none].");
    KV_EVENTS_REPLAY_QUEUE_SIZE: i64 = Flag::new("kv-events-replay-queue-size", KvEvents, "Messages it keeps.")
        .or("1024");
    USE_VLLM_MAP_EVENT_FORMAT: bool = Flag::new("use-vllm-map-event-format", KvEvents, "llm-d's events: maps instead of arrays.")
        .or("false");
    KV_EVENT_TOPIC: Option<String> = Flag::new("kv-event-topic", KvEvents, "Topic, with {pod_ip}, {host}, {port}, {rank} and {model} filled in [empty; llm-d: kv@{pod_ip}:{port}@{model}].");
    KV_EVENTS_INT_HASHES: bool = Flag::new("kv-events-int-hashes", KvEvents, "Block names as 64-bit numbers instead of whole digests.")
        .or("true").env(&["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"]);
}
