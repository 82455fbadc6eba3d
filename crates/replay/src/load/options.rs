use std::str::FromStr;

use super::loaded::SessionOrder;

/// Format of a workload file: a trace or a result of a load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkloadFormat {
    /// The format is detected from the first bytes of the workload file.
    #[default]
    Auto,
    /// Format of Mooncake's JSONL traces.
    Mooncake,
    /// Format of Mooncake's JSONL traces in which later turns hold only the added tokens.
    MooncakeDelta,
    /// Format of Mooncake's agent traces: rows with dependencies on other requests.
    AgenticMooncake,
    /// Format of Alibaba Bailian's JSONL traces of Qwen.
    Bailian,
    /// Format of Applied Compute's agent sessions.
    AppliedComputeAgentic,
    /// Format of Weka's agent traces (AgentX), with sub-agents and hash ids.
    Weka,
    /// Format of Weka's agent traces in which one list has the requests of several agents, which
    /// are split.
    WekaSplit,
    /// OpenTelemetry spans of `gen_ai` requests: OTLP in JSON, or one span per line.
    Otel,
    /// Format of NVIDIA Dynamo's request traces.
    Dynamo,
    /// Format of conversations in the JSON of ShareGPT or OpenAI.
    ShareGpt,
    /// Format of BurstGPT's CSV traces.
    BurstGpt,
    /// Format of the CSV traces of Azure's LLM inference.
    Azure,
    /// Format of the result files of `vllm bench serve`.
    VllmBench,
    /// Format of guidellm's benchmark reports.
    Guidellm,
    /// Format of inference-perf's benchmark reports.
    InferencePerf,
    /// Format of aiperf's `profile_export.jsonl`.
    Aiperf,
    /// Format of InferenceX's published benchmark points, one per line.
    InferenceX,
    /// Format of a CSV file with one measured request per row.
    Csv,
    /// Format of the JSON reports of this program and of Dynamo's replay.
    Report,
    /// Format of a dataset written by `vllm-sim record`.
    Recording,
}

impl WorkloadFormat {
    /// All formats of workload files, with their names.
    pub const NAMED_WORKLOAD_FORMATS: [(&str, Self); 21] = [
        ("auto", Self::Auto),
        ("mooncake", Self::Mooncake),
        ("mooncake-delta", Self::MooncakeDelta),
        ("agentic_mooncake", Self::AgenticMooncake),
        ("bailian", Self::Bailian),
        ("applied_compute_agentic", Self::AppliedComputeAgentic),
        ("weka", Self::Weka),
        ("weka-split", Self::WekaSplit),
        ("otel", Self::Otel),
        ("dynamo", Self::Dynamo),
        ("sharegpt", Self::ShareGpt),
        ("burstgpt", Self::BurstGpt),
        ("azure", Self::Azure),
        ("vllm-bench", Self::VllmBench),
        ("guidellm", Self::Guidellm),
        ("inference-perf", Self::InferencePerf),
        ("aiperf", Self::Aiperf),
        ("inferencex", Self::InferenceX),
        ("csv", Self::Csv),
        ("report", Self::Report),
        ("recording", Self::Recording),
    ];
}

impl FromStr for WorkloadFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let same = |name: &str| name.replace('_', "-") == text.replace('_', "-");
        let found = Self::NAMED_WORKLOAD_FORMATS.iter().find(|(name, _)| same(name));
        found.map(|(_, format)| *format).ok_or_else(|| {
            let names: Vec<&str> =
                Self::NAMED_WORKLOAD_FORMATS.iter().map(|(name, _)| *name).collect();
            format!("{text:?} is not known, must be one of {}", names.join(", "))
        })
    }
}

/// Order of the requests of an agent trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentRunOrder {
    /// Requests are sorted by start time, each after all requests that it depends on.
    #[default]
    ByStart,
    /// Requests are sorted by request id, as in Dynamo; they depend only on requests of their agent
    /// run.
    ByRequestId,
}

/// Options for reading workload files.
#[derive(Debug, Clone)]
pub struct WorkloadReadOptions {
    /// Format of the workload files.
    pub format: WorkloadFormat,
    /// Number of tokens per hash id of a Mooncake trace. Default 512.
    pub trace_block_size: u32,
    /// Fraction of the first prompt shared by the sessions of a prefix group, 0 to 1. Default 0.
    ///
    /// Applies to traces with lengths only (`applied_compute_agentic`).
    pub shared_prefix_ratio: f64,
    /// Number of prefix groups in traces with lengths only. Default 0: no shared prefixes.
    pub prefix_groups: u32,
    /// Maximum number of sessions, or of agent runs, to read from the workload files. Default: all.
    pub limit: Option<u64>,
    /// Order of the sessions. Default: by start time; a closed loop keeps the order of the file.
    pub session_order: SessionOrder,
    /// Whether each row of a Mooncake trace without a session id becomes a session named
    /// `request_<line>`.
    ///
    /// Default false.
    pub name_rows: bool,
    /// Order of the requests of agent runs. Default: by start time; a limit on concurrent agent
    /// runs needs the order by id.
    pub agent_order: AgentRunOrder,
    /// Seed of random arrival times for result files without send times. Default 42.
    pub seed: u64,
}

impl Default for WorkloadReadOptions {
    fn default() -> Self {
        Self {
            format: WorkloadFormat::Auto,
            trace_block_size: 512,
            shared_prefix_ratio: 0.0,
            prefix_groups: 0,
            limit: None,
            session_order: SessionOrder::ByStart,
            name_rows: false,
            agent_order: AgentRunOrder::ByStart,
            seed: 42,
        }
    }
}
