//! Publishes the KV events of steps, and records the steps from the events that they produce.

use std::collections::VecDeque;

use crate::kv::BlockTable;
use crate::sched::AdmittedSequence;
use crate::step_log::{PlannedStep, ScheduledSequence, StepChange, StepRecord, UpdatedStep};
use crate::{Outbox, PrefixCacheReset, SchedulerEvent, SeqId, SimTime, StepDrafts};

use super::step::ScheduledStep;
use super::{BatchScheduler, SchedulingRules, VllmConfig};

/// Holds what the scheduler reports or frees when a step ends.
#[derive(Debug)]
pub(in crate::sched) struct StepReports {
    /// KV events to publish at the end of the next step.
    ///
    /// **Source:** `take_events` in `update_from_output`, `vllm/v1/core/sched/scheduler.py`.
    pub events: Vec<SchedulerEvent>,
    /// Whether a step without sequences waits behind the steps in flight. It ends as soon as
    /// another step is planned, and then publishes KV events.
    ///
    /// **Source:** `step_with_batch_queue`, `vllm/v1/engine/core.py`.
    pub has_empty_step: bool,
    /// KV blocks to free when the step with this number has ended.
    pub deferred_frees: VecDeque<(u64, BlockTable)>,
    /// Resets of the prefix cache to do when the running step has ended.
    pub resets: Vec<PrefixCacheReset>,
    /// Sequences preempted by a reset of the prefix cache, for the record of the next plan.
    pub reset_preempted: Vec<SeqId>,
    pub log: Option<Vec<StepRecord>>,
    pub admissions: Vec<AdmittedSequence>,
}

impl StepReports {
    pub(super) fn new(config: &VllmConfig) -> Self {
        Self {
            events: Vec::new(),
            has_empty_step: false,
            deferred_frees: VecDeque::new(),
            resets: Vec::new(),
            reset_preempted: Vec::new(),
            log: config.reporting.step_log.then(Vec::new),
            admissions: Vec::new(),
        }
    }
}

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Publishes the KV events that were made until now.
    pub(super) fn publish(&mut self, now: SimTime, out: &mut Outbox) {
        if !self.reports.events.is_empty() {
            out.extend(self.reports.events.drain(..).map(|event| (now, event)));
        }
    }

    /// Publishes KV events between two steps.
    pub(super) fn publish_alone(&mut self, now: SimTime, out: &mut Outbox) {
        if !self.reports.events.is_empty() {
            let before = out.len();
            self.publish(now, out);
            self.record_update(now, out, before);
        }
    }

    /// Records a planned step. `from` is the length of the outbox before the scheduling pass.
    pub(super) fn record_plan(
        &mut self,
        now: SimTime,
        step: &ScheduledStep,
        out: &Outbox,
        from: usize,
    ) {
        let Some(log) = &mut self.reports.log else {
            return;
        };
        let mut plan = PlannedStep::default();
        let mut work = step.work.iter().peekable();
        for entry in &step.entries {
            let seq = &self.seqs[entry.slot];
            // Plain decodes compute one token and have no work of their own.
            let own = work.next_if(|work| work.slot == entry.slot);
            let new = own.map_or(1, |work| work.new);
            // vLLM counts draft tokens as accepted until their step ends.
            let computed = (seq.computed + seq.step.ahead).saturating_sub(new);
            let id = seq.id;
            plan.scheduled.push(ScheduledSequence { id, computed, new });
        }
        plan.preempted.append(&mut self.reports.reset_preempted);
        for (_, event) in out.iter().skip(from) {
            match event {
                SchedulerEvent::Scheduled { id, .. } => plan.admitted.push(*id),
                SchedulerEvent::Resumed { id } => plan.resumed.push(*id),
                SchedulerEvent::Preempted { id } => plan.preempted.push(*id),
                _ => {}
            }
        }
        if plan != PlannedStep::default() {
            log.push(StepRecord {
                at: now,
                change: StepChange::Planned(plan),
                used_blocks: self.pool.used_blocks(),
                first_group: self.pool.first_group(),
            });
        }
    }

    /// Records an updated step. `from` is the length of the outbox before the update.
    pub(super) fn record_update(&mut self, now: SimTime, out: &Outbox, from: usize) {
        let Some(log) = &mut self.reports.log else {
            return;
        };
        let mut update = UpdatedStep::default();
        for (_, event) in out.iter().skip(from) {
            match event {
                SchedulerEvent::Drafts { id, proposed, accepted } => {
                    let draft = StepDrafts {
                        proposed: u8::try_from(*proposed).unwrap_or(u8::MAX),
                        accepted: u8::try_from(*accepted).unwrap_or(u8::MAX),
                    };
                    update.drafts.push((*id, draft));
                }
                SchedulerEvent::Ended { id, end } => update.ended.push((*id, *end)),
                SchedulerEvent::Stored { .. }
                | SchedulerEvent::Removed { .. }
                | SchedulerEvent::Group(_)
                | SchedulerEvent::Cleared
                | SchedulerEvent::Host(_) => update.events.push(event.clone()),
                _ => {}
            }
        }
        log.push(StepRecord {
            at: now,
            change: StepChange::Updated(update),
            used_blocks: self.pool.used_blocks(),
            first_group: self.pool.first_group(),
        });
    }
}
