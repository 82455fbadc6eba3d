use crate::SimTime;
use crate::kv::BlockAllocationRequest;
use crate::{Outbox, SchedulerEvent, StepDraftCounts};

use crate::sched::vllm::config::{PreemptionVictim, SchedulingPolicy};
use crate::sched::vllm::pass::SchedulingPass;
use crate::sched::vllm::seqs::{
    SequenceRunState, SequenceSlot, SequenceStepState, StaleSteps, StepOutputUse, WaitingClass,
};
use crate::sched::vllm::step::{ScheduledStep, SequenceStepOutput, SequenceStepWork};
use crate::sched::vllm::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Schedules the next token or prompt chunk of every running sequence.
    pub(in crate::sched) fn schedule_running_sequences(&mut self, pass: &mut SchedulingPass) {
        while pass.at < self.running.len() && pass.max_next_sequence_tokens() > 0 {
            if self.decodes_one_token_each() {
                self.schedule_decodes(pass);
                if pass.at >= self.running.len() || pass.budget == 0 {
                    break;
                }
            }
            let slot = self.running[pass.at];
            let seq = &self.seqs[slot];
            let past = seq.computed;
            let is_over = match self.config.async_scheduling && self.config.drafts_per_step() > 0 {
                true => seq.ends_without_accepted_drafts(),
                false => seq.state == SequenceRunState::Draining,
            };
            if is_over || (pass.holds_prefill && seq.step.is_prefill_chunk) {
                pass.at += 1;
                continue;
            }
            let new = match seq.state {
                SequenceRunState::Draining => {
                    self.wanted_in_vain(slot, pass.max_next_sequence_tokens())
                }
                _ => self.tokens_to_schedule(slot, past, pass.max_next_sequence_tokens()),
            };
            let new = self.tokens_before_unencodable_media(slot, past, new, pass.step.is_empty());
            if new == 0 {
                // The chunk would not end at a block boundary, or its item cannot be encoded.
                pass.step.short = true;
                pass.at += 1;
                continue;
            }
            if !self.allocate_or_preempt(slot, new, pass) {
                // Under the priority policy the sequence may have preempted itself as the lowest;
                // the others are still scheduled.
                let gave_way = self.running.get(pass.at) != Some(&slot);
                match self.config.policy {
                    _ if R::PREEMPTION_SKIPS_A_TURN => continue,
                    SchedulingPolicy::Priority if gave_way => {
                        pass.step.short = true;
                        continue;
                    }
                    _ => break,
                }
            }
            self.record_lora_use(slot, pass.step);
            pass.has_prefill |= self.seqs[slot].step.is_prefill_chunk;
            match self.seqs[slot].state {
                SequenceRunState::Draining => self.compute_in_vain(slot, past, new, pass.step),
                _ => self.add_sequence_to_step(slot, past, new, pass.step),
            }
            pass.spend_tokens(new);
            pass.at += 1;
        }
        pass.step.short |= pass.at < self.running.len();
    }

    /// Returns the number of tokens to schedule for a sequence that a step in flight may end,
    /// depending on how many draft tokens that step accepts.
    fn wanted_in_vain(&self, slot: SequenceSlot, room: u32) -> u32 {
        let seq = &self.seqs[slot];
        let left = self.config.max_model_len.saturating_sub(seq.computed + seq.step.ahead + 1);
        (1 + self.config.drafts_per_step()).min(room).min(left)
    }

    /// Adds a sequence to a step although a step in flight will end the sequence, which gets no
    /// output tokens from the added step.
    fn compute_in_vain(
        &mut self,
        slot: SequenceSlot,
        past: u32,
        new: u32,
        step: &mut ScheduledStep,
    ) {
        let seq = &mut self.seqs[slot];
        seq.step.ahead += new;
        seq.in_flight += 1;
        let work = SequenceStepWork {
            slot,
            past,
            new,
            prompt: seq.prompt,
            known: seq.known,
            later: false,
            fetched: false,
        };
        let entry =
            SequenceStepOutput { slot, emit: 0, last: false, drafts: StepDraftCounts::default() };
        let cost = self.rules.step_cost(&work, self.window);
        step.push_sequence(entry, work, cost, 0);
    }

    /// Returns `tokens` plus the token slots that the drafter writes after them.
    pub(super) fn tokens_with_lookahead_slots(&self, tokens: u32) -> u32 {
        match &self.config.speculation {
            None => tokens,
            Some(speculation) => {
                let all = tokens.saturating_add(speculation.lookahead_slots);
                all.min(self.config.max_model_len.max(tokens))
            }
        }
    }

    /// Returns whether decoding sequences compute one token each, without draft tokens or LoRA
    /// adapters.
    fn decodes_one_token_each(&self) -> bool {
        self.config.drafts_per_step() == 0
            && !self.rules.draws_after_scheduling()
            && self.config.loras.max_loras == 0
            && self.config.prefill.prefill_schedule_interval <= 1
    }

    /// Schedules consecutive running sequences that decode into a KV block that they already have.
    /// This is the hot path.
    fn schedule_decodes(&mut self, pass: &mut SchedulingPass) {
        let batch = &mut pass.step.batch;
        let window = self.window.unwrap_or(u32::MAX);
        let late = u32::from(self.config.async_scheduling);
        let from = pass.at;
        let rest = &self.running[from..];
        let rest = &rest[..rest.len().min(pass.budget as usize)];
        for &slot in rest {
            let seq = &mut self.seqs[slot];
            let known = seq.known;
            let decodes = seq.computed + 1 == known && seq.computed >= seq.prompt;
            // A block that was filled is cached as soon as all its tokens are known.
            let may_fill = seq.computed + late >= seq.settled;
            let is_known = late == 0 || seq.released == known;
            if !decodes
                || (may_fill && (is_known || seq.computed >= seq.settled))
                || seq.state != SequenceRunState::Running
            {
                break;
            }
            seq.computed = known;
            seq.known = known + 1;
            seq.in_flight += 1;
            seq.reset_recent_preemptions();
            let last = seq.known == seq.total;
            if last {
                seq.state = SequenceRunState::Draining;
            }
            batch.context += u64::from(known);
            batch.clipped += u64::from(known.min(window));
            pass.step.entries.push(SequenceStepOutput {
                slot,
                emit: 1,
                last,
                drafts: StepDraftCounts::default(),
            });
            pass.at += 1;
        }
        let count = (pass.at - from) as u32;
        batch.decodes += count;
        batch.decode_tokens += count;
        pass.budget -= count;
    }

    /// Allocates KV blocks for a running sequence, preempting other sequences as needed. Returns
    /// false if the sequence itself was preempted.
    fn allocate_or_preempt(
        &mut self,
        slot: SequenceSlot,
        new: u32,
        pass: &mut SchedulingPass,
    ) -> bool {
        loop {
            let seq = &self.seqs[slot];
            let tokens = seq.computed + seq.step.ahead + new;
            let cache = tokens.min(self.cacheable_tokens(slot, seq.known));
            let slots = self.tokens_with_lookahead_slots(tokens);
            let need = BlockAllocationRequest {
                tokens: slots,
                lookahead: slots - tokens,
                cache,
                processed: self.processed_tokens(slot, seq.computed),
                ..BlockAllocationRequest::default()
            };
            if self.allocate_sequence_blocks(slot, &need, pass.step) {
                return true;
            }
            let Some(victim_at) = self.preemption_victim() else {
                return false;
            };
            let victim = self.running[victim_at];
            if victim == slot && self.reclaim_fetched_blocks() {
                continue;
            }
            if self.config.defers_block_frees() && self.is_in_earlier_step(victim, pass.step) {
                return false;
            }
            pass.preempted = true;
            self.running.remove(victim_at);
            if victim_at < pass.at {
                match R::PREEMPTION_SKIPS_A_TURN {
                    false => pass.at -= 1,
                    true => pass.step.short = true,
                }
            }
            self.remove_from_step(victim, pass);
            self.delay_step_for_host_copies(victim, pass.step);
            R::on_preempt(self, victim);
            self.preempt_sequence(victim, pass.now, pass.out);
            if victim == slot {
                return false;
            }
        }
    }

    /// Returns whether a sequence is computed by a step that is older than `step` and has not
    /// ended.
    fn is_in_earlier_step(&self, slot: SequenceSlot, step: &ScheduledStep) -> bool {
        let is_in = step.entries.iter().any(|entry| entry.slot == slot);
        self.seqs[slot].in_flight > u8::from(is_in)
    }

    /// Removes a preempted sequence from the step that is being scheduled.
    fn remove_from_step(&mut self, slot: SequenceSlot, pass: &mut SchedulingPass) {
        if self.seqs[slot].media.is_some() {
            self.remove_media_encoding(slot, pass.step);
        }
        let seq = &mut self.seqs[slot];
        let (prompt, known) = (seq.prompt, seq.known.saturating_sub(1));
        let past = known.saturating_sub(1);
        let plain =
            SequenceStepWork { slot, past, new: 1, prompt, known, later: false, fetched: false };
        if let Some((emit, work)) = pass.step.remove_sequence(slot, plain) {
            pass.step.batch -= self.rules.step_cost(&work, self.window);
            pass.step.prompt_tokens -= self.rules.prompt_tokens_of(&work);
            let new = work.new;
            pass.restore_tokens(new);
            seq.in_flight -= 1;
            seq.known -= emit;
            if emit > 0 {
                seq.restore_recent_preemptions();
            }
        }
    }

    /// Takes the KV blocks from a waiting sequence whose prompt was fetched, before the last
    /// running sequence preempts itself. Without this, the two sequences could block each other
    /// forever.
    pub(in crate::sched) fn reclaim_fetched_blocks(&mut self) -> bool {
        if !self.rules.takes_fetched_blocks(self.running.len()) {
            return false;
        }
        let holds = |&slot: &SequenceSlot| !self.seqs[slot].table.is_empty();
        let Some(holder) = self.waiting.iter_from_back().find(holds) else {
            return false;
        };
        self.free_sequence_blocks(holder);
        let seq = &mut self.seqs[holder];
        (seq.computed, seq.load.tokens) = (0, 0);
        true
    }

    /// Returns the batch indices of sequences that hold KV blocks. A sequence that only waits for
    /// the delay after its last token has none.
    pub(in crate::sched) fn preemption_candidates(
        &self,
    ) -> impl DoubleEndedIterator<Item = usize> + Clone {
        (0..self.running.len()).filter(|&at| self.seqs[self.running[at]].is_preemptible())
    }

    /// Returns the batch index of the sequence to preempt.
    pub(in crate::sched) fn preemption_victim(&self) -> Option<usize> {
        let mut victims = self.preemption_candidates();
        match (self.config.policy, self.config.victim) {
            (SchedulingPolicy::Priority, _) => victims.max_by_key(|&at| {
                let seq = &self.seqs[self.running[at]];
                (seq.rank.1, seq.arrival)
            }),
            (SchedulingPolicy::Fcfs, PreemptionVictim::Last) => victims.next_back(),
            (SchedulingPolicy::Fcfs, PreemptionVictim::First) => {
                let most = R::MAX_RECENT_PREEMPTIONS;
                let may = |&at: &usize| self.seqs[self.running[at]].final_preemption_count() < most;
                let last = victims.clone().next_back();
                victims.find(may).or(last)
            }
        }
    }

    /// Preempts every running sequence, keeping the order of the sequences.
    pub(in crate::sched) fn preempt_all_running(&mut self, now: SimTime, out: &mut Outbox) {
        for at in 0..self.running.len() {
            let slot = self.running[at];
            self.flush_bulk_decode(slot, now, out);
            self.bulk.remove_sequence(slot);
            let seq = &mut self.seqs[slot];
            seq.step.stale = StaleSteps::new(seq.in_flight, StepOutputUse::Dropped);
        }
        let seqs = &self.seqs;
        let gives = |&slot: &SequenceSlot| seqs[slot].is_preemptible();
        let (victims, rest) = self.running.drain(..).partition::<Vec<SequenceSlot>, _>(gives);
        self.running = rest;
        for slot in victims.into_iter().rev() {
            self.preempt_sequence(slot, now, out);
        }
    }

    pub(in crate::sched) fn preempt_sequence(
        &mut self,
        slot: SequenceSlot,
        now: SimTime,
        out: &mut Outbox,
    ) {
        let rank = match self.config.policy {
            SchedulingPolicy::Fcfs => Some(self.waiting.front_sort_key()),
            SchedulingPolicy::Priority => None,
        };
        self.free_sequence_blocks(slot);
        self.bulk.remove_sequence(slot);
        let seq = &mut self.seqs[slot];
        (seq.computed, seq.load.tokens, seq.load.is_lost) = (0, 0, false);
        let before = seq.final_preemption_count();
        seq.preemptions.recent = seq.preemptions.recent.saturating_add(1);
        seq.state = SequenceRunState::Waiting;
        // The fetched prompt is lost and is recomputed locally.
        seq.load.is_here = true;
        seq.rank = rank.unwrap_or(seq.rank);
        seq.rank.0 = WaitingClass::Plain;
        let output = match self.config.transfer.is_producer || seq.step.stale.drops_step_output() {
            true => StepOutputUse::Dropped,
            false => StepOutputUse::Stale,
        };
        seq.step = SequenceStepState {
            stale: StaleSteps::new(seq.in_flight, output),
            ..SequenceStepState::default()
        };
        if seq.step.stale.drops_step_output() {
            // These tokens are computed again.
            seq.known = seq.released;
            seq.preemptions.recent = before.saturating_add(1);
        }
        let id = seq.id;
        self.waiting.insert_sequence(&self.seqs, slot);
        self.stats.preemptions += 1;
        out.push_back((now, SchedulerEvent::Preempted { id }));
    }
}
