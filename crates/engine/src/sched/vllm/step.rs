use std::collections::VecDeque;
use std::time::Duration;

use crate::SimTime;
use crate::kv::{BlockTable, HostStoreCopy};
use crate::latency::BatchWork;
use crate::sched::AdmittedSequence;
use crate::step_log::StepLogRecord;
use crate::{
    InjectedKvLoadFailure, Outbox, PrefixCacheResetScope, PromptMediaItem, SchedulerEvent, SeqId,
    SequenceEndReason, StepDraftCounts,
};

use super::config::VllmSchedulerConfig;
use super::seqs::{SequenceRunState, SequenceSlab, SequenceSlot};

#[derive(Debug, Clone, Copy)]
pub(in crate::sched) struct SequenceStepOutput {
    pub slot: SequenceSlot,
    pub emit: u32,
    pub last: bool,
    pub drafts: StepDraftCounts,
}

#[derive(Debug, Clone, Copy)]
pub(in crate::sched) struct SequenceStepWork {
    pub slot: SequenceSlot,
    /// Number of the sequence's tokens that were computed or cached before the step.
    pub past: u32,
    pub new: u32,
    pub prompt: u32,
    pub known: u32,
    /// Whether the number of the sequence's output tokens is chosen at random after the step is
    /// scheduled. The choice then adds a decode to the step.
    pub later: bool,
    /// Whether the prompt's KV cache was fetched, and its last token is computed only for the
    /// logits.
    pub fetched: bool,
}

#[derive(Debug, Default)]
pub(in crate::sched) struct ScheduledStep {
    pub entries: Vec<SequenceStepOutput>,
    /// Work of the step by sequence, without sequences that only decode one token.
    pub work: Vec<SequenceStepWork>,
    pub events: Vec<SchedulerEvent>,
    pub rejected: Vec<SeqId>,
    pub batch: BatchWork,
    /// Number of sequences of the step that are decoded in bulk: they compute one token each and
    /// have no entry of their own.
    pub bulk_decodes: u32,
    /// Number of further decode steps that the step covers, equal to it and of the same instant.
    pub repeats: u32,
    /// Whether a running sequence got no tokens or no KV blocks in this step.
    pub short: bool,
    /// Step number; set when the step is scheduled.
    pub number: u64,
    pub loading: Duration,
    /// Media items to encode before the step's computation, each with its sequence and its index in
    /// the prompt.
    pub encoded: Vec<(SequenceSlot, u32, PromptMediaItem)>,
    /// KV blocks to copy to host memory after the step.
    pub stores: Vec<HostStoreCopy>,
    /// Earliest start of the step's computation: until then, copies to host memory still read KV
    /// blocks that the step may overwrite.
    pub copied: SimTime,
    pub begun: SimTime,
    /// End time of the step; set when the step starts.
    pub end: SimTime,
    /// End time of the step if it did not wait for other data-parallel ranks.
    pub own_end: SimTime,
    /// Number of sequences that had arrived when the step was planned.
    pub arrivals: u64,
    /// Whether the step has no sequences and only keeps pace with other data-parallel ranks.
    pub is_dummy: bool,
    /// Whether the rank of a dummy step had no unfinished sequence when the step began.
    pub is_rank_idle: bool,
    /// Number of prompt tokens that the step computes, including recomputed output.
    pub prompt_tokens: u32,
}

impl ScheduledStep {
    /// Empties the step but keeps its allocations for reuse.
    pub(in crate::sched) fn clear(&mut self) {
        self.entries.clear();
        self.work.clear();
        self.events.clear();
        self.rejected.clear();
        self.batch = BatchWork::default();
        self.bulk_decodes = 0;
        self.repeats = 0;
        self.short = false;
        self.loading = Duration::ZERO;
        self.encoded.clear();
        self.stores.clear();
        self.copied = SimTime::ZERO;
        self.prompt_tokens = 0;
        self.is_dummy = false;
    }

    pub(in crate::sched) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.bulk_decodes == 0
    }

    pub(in crate::sched) fn have_all_sequences_ended(&self, seqs: &SequenceSlab) -> bool {
        let over = |entry: &SequenceStepOutput| seqs[entry.slot].state == SequenceRunState::Dead;
        self.bulk_decodes == 0 && self.entries.iter().all(over)
    }

    pub(in crate::sched) fn report_rejected_sequences(&mut self, now: SimTime, out: &mut Outbox) {
        if self.rejected.is_empty() {
            return;
        }
        let end = SequenceEndReason::Cancelled;
        let ended = self.rejected.drain(..).map(|id| (now, SchedulerEvent::Ended { id, end }));
        out.extend(ended);
    }

    pub(in crate::sched) fn push_sequence(
        &mut self,
        entry: SequenceStepOutput,
        work: SequenceStepWork,
        cost: BatchWork,
        prompt_tokens: u32,
    ) {
        self.entries.push(entry);
        self.work.push(work);
        self.batch += cost;
        self.prompt_tokens += prompt_tokens;
    }

    /// Removes a sequence from the step, but not from the step's batch counts. Returns the
    /// sequence's output tokens and its recorded work in the step, or `plain` if no work is
    /// recorded.
    pub(in crate::sched) fn remove_sequence(
        &mut self,
        slot: SequenceSlot,
        plain: SequenceStepWork,
    ) -> Option<(u32, SequenceStepWork)> {
        let at = self.entries.iter().position(|entry| entry.slot == slot)?;
        let entry = self.entries.remove(at);
        let own = self.work.iter().position(|work| work.slot == slot);
        let work = own.map_or(plain, |at| self.work.remove(at));
        Some((entry.emit, work))
    }
}

impl SequenceStepWork {
    /// Returns whether a sequence only decodes in a step, because all its tokens but the newest
    /// were already computed.
    pub(in crate::sched) fn is_decode(&self) -> bool {
        self.past >= self.loaded_prompt_tokens() && self.past + 1 == self.known
    }

    /// Returns the prompt length, without the last token of a fetched prompt, which is computed as
    /// a decode.
    pub(in crate::sched) fn loaded_prompt_tokens(&self) -> u32 {
        self.prompt - u32::from(self.fetched)
    }
}

/// Holds the events that the scheduler reports, and the KV blocks that it frees, when a step ends.
#[derive(Debug)]
pub(in crate::sched) struct StepReports {
    /// KV events to publish at the end of the next step.
    ///
    /// **Source:** `take_events` in `update_from_output`, `vllm/v1/core/sched/scheduler.py`.
    pub events: Vec<SchedulerEvent>,
    /// Whether an empty step, without sequences, is queued behind the steps in flight. The empty
    /// step ends as soon as another step is planned; then the scheduler publishes its KV events.
    ///
    /// **Source:** `step_with_batch_queue`, `vllm/v1/engine/core.py`.
    pub has_empty_step: bool,
    /// KV blocks to free later; each block table comes with the number of the step that must have
    /// ended before.
    pub deferred_frees: VecDeque<(u64, BlockTable)>,
    /// Resets of the prefix cache to do when the running step has ended.
    pub resets: Vec<PrefixCacheResetScope>,
    /// Sequences to end with an error when the running step has ended: their grammars do not
    /// compile.
    pub invalid_grammars: Vec<(SequenceSlot, u32)>,
    /// Failed KV loads to handle when the running step has ended.
    pub failed_loads: Vec<(SequenceSlot, u32, InjectedKvLoadFailure)>,
    /// The sequences whose KV load ended during a pause or a dummy step.
    pub loads_in_pause: Vec<(SequenceSlot, u32)>,
    /// Sequences preempted by a reset of the prefix cache, for the step log's record of the next
    /// planned step.
    pub reset_preempted: Vec<SeqId>,
    pub log: Option<Vec<StepLogRecord>>,
    pub admissions: Vec<AdmittedSequence>,
}

impl StepReports {
    pub(super) fn has_pending_failures_or_loads(&self) -> bool {
        !(self.invalid_grammars.is_empty()
            && self.failed_loads.is_empty()
            && self.loads_in_pause.is_empty())
    }

    pub(super) fn new(config: &VllmSchedulerConfig) -> Self {
        Self {
            events: Vec::new(),
            has_empty_step: false,
            deferred_frees: VecDeque::new(),
            resets: Vec::new(),
            invalid_grammars: Vec::new(),
            failed_loads: Vec::new(),
            loads_in_pause: Vec::new(),
            reset_preempted: Vec::new(),
            log: config.reporting.step_log.then(Vec::new),
            admissions: Vec::new(),
        }
    }
}
