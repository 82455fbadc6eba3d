use std::time::Duration;

use crate::latency::{LatencyModel, SimulationSpeedFactors};
use crate::sched::{SchedulerConfigError, check_at_least_one, check_range};

/// Configures the SGLang scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct SglangConfig {
    /// Latency model of the time of a forward pass.
    pub latency: LatencyModel,
    /// Divisors of the time of a forward pass and of other durations.
    pub speed: SimulationSpeedFactors,
    /// Number of KV cache pages.
    pub num_pages: u32,
    /// Number of tokens per KV cache page. Default: 1.
    pub page_size: u32,
    /// Maximum number of running sequences. Default: 256.
    pub max_num_seqs: u32,
    /// Maximum number of prompt plus output tokens. Longer outputs are cut, longer prompts
    /// cancelled. Default: no limit.
    pub max_model_len: u32,
    /// Whether KV cache pages are kept for later prompts. Default: true.
    pub enable_prefix_caching: bool,
    /// Order of the waiting sequences. Default: by arrival.
    pub schedule_policy: SglangSchedulePolicy,
    /// Maximum number of prompt tokens of a prefill pass, over all prompts; a longer chunk is cut.
    /// Default: 16384.
    pub max_prefill_tokens: u32,
    /// Maximum number of tokens that a pass computes of one prompt; a multiple of the page size.
    /// Default: 8192.
    pub chunked_prefill_size: u32,
    /// Maximum number of output tokens for which admission reserves room, per sequence. Default:
    /// 4096.
    pub clip_max_new_tokens: u32,
    /// Factor of the fraction of a sequence's output tokens for which admission reserves room.
    /// Default: 1.
    pub schedule_conservativeness: f64,
    /// Number of passes without prefill after each prefill pass. Default: 0.
    pub prefill_decode_interval: u32,
    /// Whether the caller transfers the KV cache of prompts between engines, as for
    /// [`Scheduler::take_reserved_prompts`](crate::Scheduler::take_reserved_prompts). Default:
    /// false.
    pub handoff: bool,
    /// Time to fetch the KV cache of a prompt from another engine, if `handoff` is set: fixed, and
    /// per token. `None`: the caller ends each transfer. Default: `None`.
    pub fetch: Option<(Duration, Duration)>,
    /// Whether computing prompts takes no time, as in a decode worker of Dynamo's mocker. Default:
    /// false.
    pub free_prompts: bool,
    /// Acceptance probability of draft token i if all draft tokens before it were accepted. Empty:
    /// no drafts. Default: empty.
    pub accept: Vec<f64>,
    /// Seed of the random acceptance of draft tokens. Default: 0.
    pub seed: u64,
    /// Maximum number of waiting sequences. Default: no limit.
    pub max_waiting: Option<usize>,
    /// Whether events of KV cache pages are emitted. Default: false.
    pub kv_events: bool,
    /// Whether admissions of sequences are recorded for
    /// [`Scheduler::take_admissions`](crate::Scheduler::take_admissions). Default: false.
    pub log_admissions: bool,
}

/// Selects the order in which waiting sequences are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SglangSchedulePolicy {
    /// Waiting sequences are admitted in order of arrival.
    #[default]
    Fifo,
    /// The waiting sequence with the longest cached prefix is admitted first.
    Lpm,
}

impl Default for SglangConfig {
    fn default() -> Self {
        Self {
            latency: LatencyModel::ZERO,
            speed: SimulationSpeedFactors::default(),
            num_pages: 16_384,
            page_size: 1,
            max_num_seqs: 256,
            max_model_len: u32::MAX,
            enable_prefix_caching: true,
            schedule_policy: SglangSchedulePolicy::default(),
            max_prefill_tokens: 16_384,
            chunked_prefill_size: 8192,
            clip_max_new_tokens: 4096,
            schedule_conservativeness: 1.0,
            prefill_decode_interval: 0,
            handoff: false,
            fetch: None,
            free_prompts: false,
            accept: Vec::new(),
            seed: 0,
            max_waiting: None,
            kv_events: false,
            log_admissions: false,
        }
    }
}

impl SglangConfig {
    pub(super) fn check_config(&self) -> Result<(), SchedulerConfigError> {
        check_at_least_one("num_pages", self.num_pages)?;
        check_at_least_one("page_size", self.page_size)?;
        check_at_least_one("max_num_seqs", self.max_num_seqs)?;
        check_at_least_one("max_model_len", self.max_model_len)?;
        check_at_least_one("chunked_prefill_size", self.chunked_prefill_size)?;
        check_range("schedule_conservativeness", self.schedule_conservativeness, 0.0, f64::MAX)?;
        check_range("speedup_ratio", self.speed.all, 0.0, f64::MAX)?;
        check_range("decode_speedup_ratio", self.speed.decode, 0.0, f64::MAX)?;
        for &rate in &self.accept {
            check_range("acceptance rate", rate, 0.0, 1.0)?;
        }
        let (chunk, page) = (self.chunked_prefill_size, self.page_size);
        if !chunk.is_multiple_of(page) {
            let field = "chunked_prefill_size";
            return Err(SchedulerConfigError::Multiple { field, value: chunk, of: page });
        }
        let most = f64::from(u32::MAX);
        check_range("chunked_prefill_size", chunk.into(), page.into(), most)?;
        let prefill = self.max_prefill_tokens.into();
        check_range("max_prefill_tokens", prefill, page.into(), most)
    }

    pub(super) fn pages_for_tokens(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_size)
    }

    pub(super) fn round_up_to_page(&self, tokens: u32) -> u32 {
        self.pages_for_tokens(tokens).saturating_mul(self.page_size)
    }
}
