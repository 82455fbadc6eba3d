//! Describes the steps of a batching scheduler: one record when a step is planned, one when its
//! output is processed.
//!
//! A scheduler keeps the log if its configuration asks for it
//! ([`SchedulerReportingConfig::step_log`](crate::sched::vllm::SchedulerReportingConfig)). The
//! caller takes the records with [`Scheduler::take_step_log`](crate::Scheduler::take_step_log).

use serde_json::{Value, json};

use crate::{
    BlockKey, HostCacheEvent, LayerGroupCacheEvent, SchedulerEvent, SeqId, SequenceEndReason,
    SimTime, StepDraftCounts,
};

/// Record of one change of a scheduler's steps: a step was planned, or its output was processed.
#[derive(Debug, Clone, PartialEq)]
pub struct StepLogRecord {
    /// Simulated time at which the step was planned or its output was processed.
    pub at: SimTime,
    /// Kind of the change of a step, with its details.
    pub change: StepLogChange,
    /// Number of KV blocks held by sequences after the step was planned or processed.
    pub used_blocks: u32,
    /// Index of the main layer group, whose changes are recorded as [`SchedulerEvent::Stored`] and
    /// [`SchedulerEvent::Removed`].
    pub first_group: u32,
}

/// Kind of a change of a step: its planning, or the processing of its output.
#[derive(Debug, Clone, PartialEq)]
pub enum StepLogChange {
    /// A step was planned.
    Planned(PlannedStep),
    /// The output of a step was processed. With asynchronous scheduling, the next step was already
    /// planned.
    Updated(ProcessedStep),
}

/// Lists what one scheduling pass planned: the work, admissions, preemptions and encodings of a
/// step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlannedStep {
    /// Work of the step by sequence, in scheduling order.
    pub scheduled: Vec<ScheduledSequence>,
    /// Ids of the sequences admitted for the first time.
    pub admitted: Vec<SeqId>,
    /// Ids of the sequences admitted again after a preemption.
    pub resumed: Vec<SeqId>,
    /// Ids of the sequences preempted in the scheduling pass.
    pub preempted: Vec<SeqId>,
    /// Indices of the media items to encode in the step, by sequence.
    pub encoded: Vec<(SeqId, Vec<u32>)>,
}

/// Describes the work of a sequence in a planned step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduledSequence {
    /// Id of the scheduled sequence.
    pub id: SeqId,
    /// Number of the sequence's tokens that need no computation in this step: computed before,
    /// loaded or found in the prefix cache.
    pub computed: u32,
    /// Number of the sequence's tokens that the step computes, including draft tokens.
    pub new: u32,
}

/// Lists the results of one engine step, as recorded when the step's output is processed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessedStep {
    /// Draft tokens verified in the step, by sequence.
    pub drafts: Vec<(SeqId, StepDraftCounts)>,
    /// Ids of the ended sequences, with the reasons.
    pub ended: Vec<(SeqId, SequenceEndReason)>,
    /// KV events published after the step, in order.
    pub events: Vec<SchedulerEvent>,
}

impl StepLogRecord {
    /// Formats the step record as one JSON object. `sequence_name` converts sequence ids to JSON
    /// names.
    ///
    /// A planned step has `scheduled` (`[name, computed, new]`), `admitted`, `resumed` and
    /// `preempted`, and `encoded` (`[name, [index, ...]]`) if it encodes media items. An updated
    /// step has `drafts` (`[name, proposed, accepted]`), `ended` and `events` (`[kind, hashes,
    /// parent, group, medium]`). Both have `t` (ns) and `used` (blocks).
    pub fn to_step_log_json(&self, sequence_name: impl Fn(SeqId) -> Value) -> Value {
        let names = |ids: &[SeqId]| ids.iter().map(|&id| sequence_name(id)).collect::<Vec<_>>();
        let (t, used) = (self.at.as_nanos(), self.used_blocks);
        match &self.change {
            StepLogChange::Planned(plan) => {
                let work = plan.scheduled.iter();
                let work = work.map(|one| json!([sequence_name(one.id), one.computed, one.new]));
                let mut line = json!({"t": t, "scheduled": work.collect::<Vec<_>>(),
                    "admitted": names(&plan.admitted), "resumed": names(&plan.resumed),
                    "preempted": names(&plan.preempted), "used": used});
                if !plan.encoded.is_empty() {
                    let encoded =
                        plan.encoded.iter().map(|(id, items)| json!([sequence_name(*id), items]));
                    line["encoded"] = encoded.collect();
                }
                line
            }
            StepLogChange::Updated(update) => {
                let drafts = update.drafts.iter();
                let drafts =
                    drafts.map(|(id, d)| json!([sequence_name(*id), d.proposed, d.accepted]));
                let ended: Vec<SeqId> = update.ended.iter().map(|(id, _)| *id).collect();
                let events =
                    update.events.iter().flat_map(|event| kv_events(event, self.first_group));
                json!({"t": t, "drafts": drafts.collect::<Vec<_>>(), "ended": names(&ended),
                    "events": events.collect::<Vec<_>>(), "used": used})
            }
        }
    }
}

/// Formats the KV events for the step log as `[kind, hashes, parent, group, medium]`, and skips
/// other events. An event about host memory has one KV block.
fn kv_events(event: &SchedulerEvent, first: u32) -> Vec<Value> {
    if let SchedulerEvent::Host(event) = event {
        return host_events(event, first);
    }
    let numbers = |keys: &[BlockKey]| keys.iter().map(|key| key.0).collect::<Vec<_>>();
    let removed = |keys: &[(BlockKey, Option<[u8; 32]>)], group: u32, medium: &str| {
        let keys: Vec<u64> = keys.iter().map(|(key, _)| key.0).collect();
        json!(["BlockRemoved", keys, null, group, medium])
    };
    let parent = |keys: &[BlockKey], from: u32| {
        let before = from.checked_sub(1).and_then(|at| keys.get(at as usize));
        before.map(|key| key.0)
    };
    vec![match event {
        SchedulerEvent::Stored { plan, from, to } => {
            let keys = numbers(&plan.keys[*from as usize..*to as usize]);
            json!(["BlockStored", keys, parent(&plan.keys, *from), first, "GPU"])
        }
        SchedulerEvent::Removed { keys } => removed(keys, first, "GPU"),
        SchedulerEvent::Cleared => json!(["AllBlocksCleared", [], null, null, null]),
        SchedulerEvent::Group(event) => match &**event {
            LayerGroupCacheEvent::Stored { group, plan, from, kept, .. } => {
                let keys = kept.iter().map(|&i| plan.keys[i as usize].0);
                let keys: Vec<u64> = keys.collect();
                json!(["BlockStored", keys, parent(&plan.keys, *from), group, "GPU"])
            }
            LayerGroupCacheEvent::Removed { group, keys } => removed(keys, *group, "GPU"),
        },
        _ => return Vec::new(),
    }]
}

/// Formats the events of the prefix cache in host memory for the step log. A chunk has the hash of
/// its last block.
fn host_events(event: &HostCacheEvent, first: u32) -> Vec<Value> {
    let one =
        |kind: &str, group: u32, key: BlockKey| json!([kind, [key.0], null, first + group, "CPU"]);
    match event {
        HostCacheEvent::Stored { plan, chunks, blocks_per_chunk } => {
            let last = |at: u32| (u64::from(at) + 1) * u64::from(*blocks_per_chunk) - 1;
            let stored = chunks.iter().filter_map(|&(group, at)| {
                Some(one("BlockStored", group, *plan.keys.get(usize::try_from(last(at)).ok()?)?))
            });
            stored.collect()
        }
        HostCacheEvent::Removed { keys } => {
            keys.iter().map(|&(group, key, _)| one("BlockRemoved", group, key)).collect()
        }
        _ => Vec::new(),
    }
}
