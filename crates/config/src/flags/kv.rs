use super::{
    Flag,
    Group::{KvCache, KvEvents},
    Kind::{Choice, Count, Float, Int, Json, Switch, Text},
};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "enable-kvcache",
        KvCache,
        Switch,
        "llm-d's switch: find blocks again and publish events about them.",
    )
    .or("false"),
    Flag::new(
        "kv-cache-size",
        KvCache,
        Int,
        "Blocks of the KV cache [behind `serve`: what GPU and model leave].",
    )
    .doors("1024", ""),
    Flag::new(
        "num-gpu-blocks-override",
        KvCache,
        Int,
        "The same in vLLM's words; wins.",
    ),
    Flag::new(
        "kv-cache-memory-bytes",
        KvCache,
        Count,
        "Bytes of the KV cache; the number of blocks follows from the model.",
    ),
    Flag::new("block-size", KvCache, Int, "Tokens per block.")
        .or("16")
        .also(&["sglang-page-size"]),
    Flag::new(
        "enable-prefix-caching",
        KvCache,
        Switch,
        "Find full blocks again [as enable-kvcache; behind `serve` yes].",
    )
    .doors("", "true"),
    Flag::new(
        "prefix-caching-hash-algo",
        KvCache,
        Choice(&[
            "sha256",
            "sha256_cbor",
            "xxhash",
            "xxhash_cbor",
            "fnv64_cbor",
        ]),
        "How blocks are named [sha256; with llm-d's events fnv64_cbor].",
    ),
    Flag::new("hash-seed", KvCache, Text, "Seed of block names.").env(&["PYTHONHASHSEED"]),
    Flag::new(
        "global-cache-hit-threshold",
        KvCache,
        Float,
        "Refuse requests whose cached share of the prompt is below this, 0 to 1; 0: none.",
    )
    .or("0"),
    Flag::new("kv-cache-dtype", KvCache, Text, "Data type of the cache.").or("auto"),
    Flag::new(
        "kv-transfer-config",
        KvCache,
        Json,
        "Disaggregated prefill: {\"kv_connector\", \"kv_role\", …}.",
    ),
    Flag::new(
        "kv-side-channel-host",
        KvCache,
        Text,
        "Host at which decoding servers reach this one (NIXL).",
    )
    .or("localhost")
    .env(&["VLLM_NIXL_SIDE_CHANNEL_HOST"]),
    Flag::new(
        "kv-side-channel-port",
        KvCache,
        Int,
        "Its port; rank n takes the n-th after it, and replicas the ports after those.",
    )
    .or("5600")
    .env(&["VLLM_NIXL_SIDE_CHANNEL_PORT"]),
    Flag::new(
        "mooncake-bootstrap-port",
        KvCache,
        Int,
        "Port of Mooncake's registry of prefilling engines; replica n takes the n-th after it.",
    )
    .or("8998")
    .env(&["VLLM_MOONCAKE_BOOTSTRAP_PORT"]),
    Flag::new(
        "kv-transfer-bandwidth",
        KvCache,
        Float,
        "Bandwidth between pods in GB/s [transfers take the delays above].",
    )
    .hide(),
    Flag::new(
        "kv-bytes-per-token",
        KvCache,
        Int,
        "Bytes that one prompt token takes in a transfer [from config.json].",
    )
    .hide(),
    Flag::new(
        "kv-events-config",
        KvEvents,
        Json,
        "vLLM's events: {\"enable_kv_cache_events\", \"endpoint\", \"replay_endpoint\", \"topic\", …}.",
    ),
    Flag::new(
        "zmq-endpoint",
        KvEvents,
        Text,
        "llm-d's events: address to publish at.",
    )
    .or("tcp://127.0.0.1:5557"),
    Flag::new(
        "event-batch-size",
        KvEvents,
        Int,
        "llm-d's events: most events per message.",
    )
    .or("16"),
    Flag::new(
        "kv-events-replay-endpoint",
        KvEvents,
        Text,
        "llm-d's events: address that replays lost messages [none].",
    ),
    Flag::new(
        "kv-events-replay-queue-size",
        KvEvents,
        Int,
        "Messages it keeps.",
    )
    .or("1024"),
    Flag::new(
        "use-vllm-map-event-format",
        KvEvents,
        Switch,
        "llm-d's events: maps instead of arrays.",
    )
    .or("false"),
    Flag::new(
        "kv-event-topic",
        KvEvents,
        Text,
        "Topic, with {pod_ip}, {host}, {port}, {rank} and {model} filled in [empty; llm-d: kv@{pod_ip}:{port}@{model}].",
    ),
    Flag::new(
        "kv-events-int-hashes",
        KvEvents,
        Switch,
        "Block names as 64-bit numbers instead of whole digests.",
    )
    .or("true")
    .env(&["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"]),
];
