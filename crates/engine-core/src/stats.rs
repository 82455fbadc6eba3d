//! Scheduler statistics for front ends: counters since the last message, and current gauges.
//!
//! Source: vLLM 0.33 `vllm/v1/metrics/stats.py`, `SchedulerStats`, `PrefixCacheStats`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::encode::MsgpackWriter;
use vllm_sim_engine::EngineStats;
use vllm_sim_engine::driver::SequenceRecord;

#[derive(Debug, Clone, Default)]
pub(crate) struct SchedulerStats {
    pub(crate) gauges: EngineStats,
    pub(crate) wave: u64,
    pub(crate) prefix: CacheLookupCounts,
    /// Counts of lookups in external KV caches since the last statistics message; `None` without a
    /// KV connector.
    pub(crate) external: Option<CacheLookupCounts>,
    /// Counts of proposed and accepted draft tokens in speculative decoding; `None` without it.
    pub(crate) drafts: Option<DraftTokenCounts>,
    pub(crate) loras: BTreeMap<Arc<str>, LoraSequenceCounts>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CacheLookupCounts {
    requests: u64,
    queries: u64,
    hits: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct DraftTokenCounts {
    drafts: u64,
    /// Number of proposed draft tokens, by their position among the drafts of a step.
    proposed: Vec<u64>,
    accepted: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LoraSequenceCounts {
    pub(crate) waiting: u64,
    pub(crate) running: u64,
}

impl CacheLookupCounts {
    fn add_lookup(&mut self, queries: u32, hits: u32) {
        self.requests += 1;
        self.queries += u64::from(queries);
        self.hits += u64::from(hits);
    }

    fn write(self, w: &mut MsgpackWriter) {
        w.write_map_len(8);
        w.write_text("reset");
        w.write_bool(false);
        w.write_count_entry("requests", self.requests);
        w.write_count_entry("queries", self.queries);
        w.write_count_entry("hits", self.hits);
        w.write_count_entry("preempted_requests", 0);
        w.write_count_entry("preempted_queries", 0);
        w.write_count_entry("preempted_hits", 0);
        w.write_text("hits_by_source");
        w.write_map_len(0);
    }
}

impl DraftTokenCounts {
    pub(crate) fn zero_draft_counts(num_speculative_tokens: usize) -> Self {
        Self {
            drafts: 0,
            proposed: vec![0; num_speculative_tokens],
            accepted: vec![0; num_speculative_tokens],
        }
    }

    fn add_draft(&mut self, proposed: u32, accepted: u32) {
        let count = |positions: &mut [u64], n: u32| {
            positions.iter_mut().take(n as usize).for_each(|at| *at += 1);
        };
        self.drafts += 1;
        count(&mut self.proposed, proposed);
        count(&mut self.accepted, accepted);
    }

    fn write(&self, w: &mut MsgpackWriter) {
        w.write_map_len(6);
        w.write_count_entry("num_spec_tokens", self.proposed.len() as u64);
        w.write_count_entry("num_drafts", self.drafts);
        w.write_count_entry("num_draft_tokens", self.proposed.iter().sum());
        w.write_count_entry("num_accepted_tokens", self.accepted.iter().sum());
        w.write_text("num_accepted_tokens_per_pos");
        w.write_count_array(&self.accepted);
        w.write_text("num_draft_tokens_per_pos");
        w.write_count_array(&self.proposed);
    }
}

impl SchedulerStats {
    pub(crate) fn count_draft_tokens(&mut self, proposed: u32, accepted: u32) {
        if let Some(drafts) = &mut self.drafts {
            drafts.add_draft(proposed, accepted);
        }
    }

    /// Counts the prefix cache lookup of a sequence that left the waiting queue.
    pub(crate) fn count_prefix_cache_lookup(&mut self, record: &SequenceRecord) {
        self.prefix.add_lookup(record.prompt, record.cached);
    }

    pub(crate) fn count_external_cache_lookup(&mut self, record: &SequenceRecord) {
        let external = self.external.get_or_insert_default();
        external.add_lookup(record.prompt.saturating_sub(record.cached), record.external);
    }

    /// Returns the scheduler statistics for the next message to a front end or the coordinator, and
    /// resets the statistics' counters.
    pub(crate) fn take_scheduler_stats(&mut self) -> Self {
        let taken = self.clone();
        self.prefix = CacheLookupCounts::default();
        self.external = self.external.map(|_| CacheLookupCounts::default());
        let drafts = self.drafts.as_ref();
        self.drafts =
            drafts.map(|drafts| DraftTokenCounts::zero_draft_counts(drafts.proposed.len()));
        taken
    }

    pub(crate) fn write_scheduler_stats(&self, w: &mut MsgpackWriter) {
        let EngineStats { running, waiting, deferred, used_blocks, total_blocks, .. } = self.gauges;
        let usage = f64::from(used_blocks) / f64::from(total_blocks.max(1));
        // `vllm-rs` requires every key whose value may not be nil.
        w.write_map_len(12);
        w.write_count_entry("num_running_reqs", running as u64);
        w.write_count_entry("num_waiting_reqs", waiting as u64);
        w.write_count_entry("num_skipped_waiting_reqs", deferred as u64);
        w.write_count_entry("step_counter", 0);
        w.write_count_entry("current_wave", self.wave);
        w.write_text("kv_cache_usage");
        w.write_float(usage);
        w.write_text("prefix_cache_stats");
        self.prefix.write(w);
        w.write_text("connector_prefix_cache_stats");
        match self.external {
            Some(external) => external.write(w),
            None => w.write_nil(),
        }
        w.write_text("spec_decoding_stats");
        match self.drafts.as_ref().filter(|drafts| drafts.drafts > 0) {
            Some(drafts) => drafts.write(w),
            None => w.write_nil(),
        }
        w.write_text("kv_cache_eviction_events");
        w.write_array_len(0);
        self.write_loras(w);
    }

    fn write_loras(&self, w: &mut MsgpackWriter) {
        let mut write = |key: &str, count: fn(&LoraSequenceCounts) -> u64| {
            let used = self.loras.iter().map(|(name, used)| (name, count(used)));
            let used: Vec<_> = used.filter(|(_, count)| *count > 0).collect();
            w.write_text(key);
            w.write_map_len(used.len());
            used.into_iter().for_each(|(name, count)| w.write_count_entry(name, count));
        };
        write("waiting_lora_adapters", |used| used.waiting);
        write("running_lora_adapters", |used| used.running);
    }
}
