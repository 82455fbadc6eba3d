//! Publishes the KV events of steps, and records the steps from the events that they produce.

use crate::step_log::{PlannedStep, ScheduledSequence, StepChange, StepRecord, UpdatedStep};
use crate::{Outbox, SchedulerEvent, SimTime, StepDrafts};

use super::step::ScheduledStep;
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Publishes the KV events collected until now.
    pub(super) fn publish_kv_events(&mut self, now: SimTime, out: &mut Outbox) {
        let events = &mut self.reports.events;
        if self.host.is_some() {
            // vLLM collects the events of its connector after those of the GPU.
            events.sort_by_key(|event| matches!(event, SchedulerEvent::Host(_)));
        }
        if !events.is_empty() {
            out.extend(events.drain(..).map(|event| (now, event)));
        }
    }

    /// Publishes KV events between two steps, and ends sequences whose grammar does not compile or
    /// whose prompt could not be loaded.
    pub(super) fn publish_between_steps(&mut self, now: SimTime, out: &mut Outbox) {
        let before = out.len();
        self.publish_kv_events(now, out);
        self.end_failed_sequences(now, out);
        let ended = |(_, event): &(SimTime, SchedulerEvent)| event.is_end_or_cache_change();
        if out.iter().skip(before).any(ended) {
            self.record_updated_step(now, out, before);
        }
    }

    /// Records in the step log that a step was planned. `from` is the length of the outbox before
    /// the scheduling pass.
    pub(super) fn record_planned_step(
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
        for &(slot, at, _) in &step.encoded {
            let id = self.seqs[slot].id;
            match plan.encoded.last_mut().filter(|(last, _)| *last == id) {
                Some((_, items)) => items.push(at),
                None => plan.encoded.push((id, vec![at])),
            }
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
                used_blocks: self.pool.used_block_count(),
                first_group: self.pool.first_full_attention_group(),
            });
        }
    }

    /// Records in the step log that the output of a step was processed. `from` is the length of the
    /// outbox before that.
    pub(super) fn record_updated_step(&mut self, now: SimTime, out: &Outbox, from: usize) {
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
            used_blocks: self.pool.used_block_count(),
            first_group: self.pool.first_full_attention_group(),
        });
    }
}
