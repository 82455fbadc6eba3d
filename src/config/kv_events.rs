use serde_json::Value;

/// Events about cached blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct KvEvents {
    /// Whether they are published.
    pub enabled: bool,
    /// How an event looks: vLLM's when `--kv-events-config` switched them on, else llm-d's.
    pub form: EventForm,
    /// Socket of rank 0; rank r adds r to its port.
    pub endpoint: String,
    /// Whether the publisher binds; it connects otherwise (vLLM's rule: `*`, `::`, ipc, inproc).
    pub bind: bool,
    /// Replay socket of rank 0; `None`: none.
    pub replay_endpoint: Option<String>,
    /// Batches kept for replay [10000; llm-d 1024].
    pub buffer_steps: usize,
    /// High-water mark of the socket [100000].
    pub hwm: u32,
    /// Longest queue to the publisher [100000].
    pub max_queue_size: usize,
    /// First frame: `{pod_ip}`, `{pod_name}`, `{port}`, `{rank}`, `{model}` are filled in
    /// [empty; llm-d `kv@{pod_ip}:{port}@{model}`].
    pub topic: String,
    /// Events per batch; vLLM's form sends one batch per step instead [16].
    pub batch_size: usize,
    /// How block names travel.
    pub hash_form: HashForm,
}

/// How an event looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventForm {
    /// vLLM 0.33: maps, sequence from 0.
    #[default]
    Vllm,
    /// llm-d: positional arrays, sequence from 1.
    LlmdArray,
    /// llm-d: maps, sequence from 1.
    LlmdMap,
}

/// How block names travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashForm {
    /// The last 64 bits as a number.
    #[default]
    Int,
    /// The whole digest.
    Bytes,
}

/// Disaggregated prefill (`--kv-transfer-config`).
#[derive(Debug, Clone, PartialEq)]
pub struct KvTransfer {
    /// vLLM's `kv_connector`.
    pub connector: Option<String>,
    /// Whether this server computes prompts for others.
    pub producer: bool,
    /// Whether this server takes prompts from others.
    pub consumer: bool,
    /// vLLM's `engine_id`.
    pub engine_id: Option<String>,
    /// The whole object as typed.
    pub raw: Value,
}
