use crate::kv::BlockAllocationRequest;
use crate::{PromptKvTransfer, Scheduler, SchedulerEvent, SequenceEndReason};

use super::prefill::is_prefill;
use crate::sched::AdmittedSequence;
use crate::sched::vllm::config::PreemptionVictim;
use crate::sched::vllm::pass::{AdmissionOutcome, SchedulingPass};
use crate::sched::vllm::seqs::{
    FetchStage, GrammarState, ScheduledSequence, SequenceRunState, SequenceSlot,
};
use crate::sched::vllm::step::ScheduledStep;
use crate::sched::vllm::tokens_with_block_keys;
use crate::sched::vllm::waiting::PauseState;
use crate::sched::vllm::{BatchScheduler, SchedulingRules};

#[derive(Clone, Copy)]
struct AdmissionCandidate {
    slot: SequenceSlot,
    /// Number of the sequence's tokens that need no computation: cached, loaded or computed before.
    past: u32,
    /// Number of the sequence's tokens found in the GPU prefix cache.
    cached: u32,
    /// Number of the sequence's tokens that this step computes, or that are loaded.
    new: u32,
    /// Whether the sequence's tokens are loaded from another engine or from host memory instead of
    /// computed.
    loads: bool,
}

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Admits waiting sequences while tokens, room in the running batch and KV blocks are left.
    pub(super) fn schedule_waiting_sequences(&mut self, pass: &mut SchedulingPass) {
        let looks = self.rules.admits_without_token_budget();
        let places = self.config.max_num_seqs as usize;
        let (mut last, mut looked) = (None, false);
        if self.config.loras.max_loras > 0 {
            let seqs = &self.seqs;
            let running = self.running.iter().filter_map(|&slot| seqs[slot].request.lora);
            self.loras.begin_lora_admissions(running);
        }
        while (pass.max_next_sequence_tokens() > 0 || looks) && self.running.len() < places {
            let head = self.waiting.first_sequence_after(last);
            let Some(head) = head.filter(|(rank, _)| self.admits_waiting_class(rank.0)) else {
                break;
            };
            if last.is_none() && !std::mem::replace(&mut looked, true) {
                self.loras.deferred = 0;
                if let Some(encoder) = &mut self.encoder {
                    encoder.deferred = 0;
                }
            }
            match self.try_admit(head.1, pass) {
                AdmissionOutcome::Next => {}
                AdmissionOutcome::Skip => {
                    self.seqs[head.1].step.is_deferred = true;
                    last = Some(head);
                }
                // If nothing runs, only sequences that hold blocks can go on.
                AdmissionOutcome::Stop
                    if self.running.is_empty() && !self.rules.admission_stops_when_idle() =>
                {
                    last = Some(head);
                }
                AdmissionOutcome::Stop => break,
            }
        }
    }

    fn try_admit(&mut self, slot: SequenceSlot, pass: &mut SchedulingPass) -> AdmissionOutcome {
        if R::can_never_run(self, slot) {
            self.reject_sequence(slot, pass);
            return AdmissionOutcome::Next;
        }
        if self.would_restart_sequence_without_progress(slot, pass.now) {
            return AdmissionOutcome::Stop;
        }
        // Announced prompts come before prompts that are computed locally.
        if self.rules.yields_to_announced_prompts(&self.seqs[slot]) {
            return AdmissionOutcome::Skip;
        }
        if self.seqs[slot].request.grammar != GrammarState::Ready {
            self.report_invalid_grammar(slot);
            return AdmissionOutcome::Skip;
        }
        if self.seqs[slot].load.is_uncached {
            self.cache_fetched(slot, pass.step);
        }
        if self.lacks_adapter(slot) {
            self.loras.deferred += 1;
            return AdmissionOutcome::Skip;
        }
        let cached = self.look_up_cached_prefix(slot);
        if self.aligns_chunks && self.is_waiting_for_state(slot, cached) {
            return AdmissionOutcome::Stop;
        }
        if self.is_below_hit_threshold(slot, cached) {
            self.stop_sequence(slot, SequenceEndReason::Threshold, pass.now, pass.out);
            return AdmissionOutcome::Next;
        }
        let seq = &self.seqs[slot];
        if seq.request.transfer == PromptKvTransfer::RemotePrefill && !seq.load.is_here {
            return self.start_remote_fetch(slot, cached, pass);
        }
        if self.host.is_some()
            && let Some(turn) = self.start_load_from_host(slot, cached, pass)
        {
            return turn;
        }
        if let Some(turn) = R::load_from_other_host_cache(self, slot, pass) {
            return turn;
        }
        let seq = &self.seqs[slot];
        let past = match seq.table.is_empty() {
            true => cached,
            false => seq.computed,
        };
        if pass.holds_prefill && is_prefill(seq, past) {
            return AdmissionOutcome::Stop;
        }
        let Some((new, padded)) = self.first_tokens(slot, past, pass) else {
            return AdmissionOutcome::Stop;
        };
        let whole = new;
        let new = self.tokens_before_unencodable_media(slot, past, new, pass.step.is_empty());
        if new < whole && new == 0 {
            if let Some(encoder) = &mut self.encoder {
                encoder.deferred += 1;
            }
            return AdmissionOutcome::Skip;
        }
        let candidate = AdmissionCandidate { slot, past, cached, new, loads: false };
        if !self.allocate_first_chunk(candidate, pass) {
            return self.handle_block_shortage(slot, pass);
        }
        self.admit_candidate(candidate, pass);
        pass.admits_prefill |= is_prefill(&self.seqs[slot], past);
        let seq = &mut self.seqs[slot];
        (seq.step.is_padded, seq.step.is_deferred) = (padded, false);
        self.add_sequence_to_step(slot, past, new, pass.step);
        pass.spend_tokens(new);
        if new == 0 && pass.budget == 0 {
            return AdmissionOutcome::Stop;
        }
        AdmissionOutcome::Next
    }

    /// Returns how many leading tokens of a sequence are in the prefix cache, looked up if the
    /// sequence has no KV blocks yet.
    pub(in crate::sched) fn look_up_cached_prefix(&mut self, slot: SequenceSlot) -> u32 {
        if self.pool.has_layer_groups() {
            return self.look_up_prefix_in_groups(slot);
        }
        let seq = &self.seqs[slot];
        match seq.plan.as_ref().filter(|_| !seq.request.skip_cache_read) {
            None => 0,
            Some(plan) if seq.table.is_empty() => R::cached_prefix_tokens(self, plan, seq.known),
            Some(_) => seq.cached,
        }
    }

    fn look_up_prefix_in_groups(&mut self, slot: SequenceSlot) -> u32 {
        let seq = &mut self.seqs[slot];
        let plan = seq.plan.as_ref().filter(|_| !seq.request.skip_cache_read);
        if !seq.table.is_empty() {
            return plan.map_or(0, |_| seq.cached);
        }
        let found = plan.map_or((0, 0), |plan| {
            self.pool.cached_prefix_tokens_in_groups(plan, tokens_with_block_keys(plan, seq.known))
        });
        let prompt = seq.prompt;
        self.pool.record_prompt_divergence_points(&mut seq.table, prompt, found);
        found.0
    }

    /// Records that the grammar of a waiting sequence does not compile.
    fn report_invalid_grammar(&mut self, slot: SequenceSlot) {
        let seq = &mut self.seqs[slot];
        if seq.request.grammar == GrammarState::Failed {
            seq.request.grammar = GrammarState::Reported;
            self.reports.invalid_grammars.push((slot, seq.generation));
        }
    }

    /// Adds the loaded KV blocks of a prompt to the prefix cache. If no block was loaded, frees the
    /// sequence's blocks, since other sequences may have cached its first blocks in the meantime.
    ///
    /// **Source:** `_update_waiting_for_remote_kv`, `vllm/v1/core/sched/scheduler.py`.
    fn cache_fetched(&mut self, slot: SequenceSlot, step: &mut ScheduledStep) {
        let seq = &self.seqs[slot];
        let upto = match seq.load.is_lost {
            true if seq.computed == 0 => {
                self.seqs[slot].load.is_uncached = false;
                return self.free_sequence_blocks(slot);
            }
            true => seq.computed,
            false => self.cacheable_tokens(slot, seq.prompt),
        };
        let seq = &mut self.seqs[slot];
        seq.load.is_uncached = false;
        let (plan, events) = (seq.plan.as_ref(), &mut step.events);
        self.pool.cache_full_blocks(&mut seq.table, plan, upto, &mut |event| events.push(event));
        seq.settled = seq.table.tokens_until_block_table_change();
    }

    /// Returns whether the prefix-cache hit ends at a Mamba state that another sequence computes in
    /// this pass.
    fn is_waiting_for_state(&self, slot: SequenceSlot, cached: u32) -> bool {
        let seq = &self.seqs[slot];
        let plan = seq.plan.as_ref().filter(|_| seq.table.is_empty());
        plan.is_some_and(|plan| self.pool.is_recurrent_state_still_computing(plan, cached))
    }

    fn is_below_hit_threshold(&self, slot: SequenceSlot, cached: u32) -> bool {
        let seq = &self.seqs[slot];
        let misses = |share| f64::from(cached) < share * f64::from(seq.prompt);
        !seq.admitted && seq.request.hit_threshold.is_some_and(misses)
    }

    /// Returns whether a sequence needs a LoRA adapter for which the batch has no adapter slot
    /// left.
    fn lacks_adapter(&self, slot: SequenceSlot) -> bool {
        let limit = self.config.loras.max_loras as usize;
        let lora = self.seqs[slot].request.lora.filter(|_| limit > 0);
        lora.is_some_and(|lora| !self.loras.admits_lora(lora, limit))
    }

    /// Returns the number of tokens with which a waiting sequence joins the batch, and whether they
    /// are padded with draft tokens; `None` if the sequence must wait.
    fn first_tokens(
        &self,
        slot: SequenceSlot,
        past: u32,
        pass: &SchedulingPass,
    ) -> Option<(u32, bool)> {
        match self.padded(slot, past, pass)? {
            0 => Some((self.first_chunk_tokens(slot, past, pass)?, false)),
            padded => Some((padded, true)),
        }
    }

    /// Returns the number of tokens with which a sequence that has one uncomputed token joins the
    /// batch, if draft tokens pad it so that all sequences compute equally many tokens. 0: the
    /// sequence is not padded; `None`: the sequence must wait.
    ///
    /// **Source:** `pad_spec_decode`, `vllm/v1/core/sched/scheduler.py`.
    fn padded(&self, slot: SequenceSlot, past: u32, pass: &SchedulingPass) -> Option<u32> {
        let drafts = self.config.drafts_per_step();
        let is_alone = !pass.has_running && past == 0;
        if drafts == 0 || past + 1 != self.seqs[slot].known || pass.has_prefill || is_alone {
            return Some(0);
        }
        if past + drafts + 2 > self.config.max_model_len {
            return Some(0);
        }
        Some(1 + drafts).filter(|&padded| padded <= pass.max_next_sequence_tokens())
    }

    /// Returns the number of tokens in the first prompt chunk of a sequence; `None` if the chunk
    /// needs a larger token budget.
    fn first_chunk_tokens(
        &self,
        slot: SequenceSlot,
        past: u32,
        pass: &SchedulingPass,
    ) -> Option<u32> {
        let seq = &self.seqs[slot];
        let new = self.tokens_to_schedule(slot, past, u32::MAX);
        if new == 0 && self.aligns_chunks {
            return None;
        }
        if !self.config.prefill.enable_chunked_prefill
            && self.rules.min_first_chunk(seq, past, new) > pass.max_next_sequence_tokens()
        {
            // vLLM rejects such settings; here the sequence runs if it is alone in the step.
            let alone = pass.step.is_empty();
            return (alone && R::OVERSIZED_RUN_ALONE).then_some(new);
        }
        let room = pass.max_next_sequence_tokens();
        if room > 0 && self.aligns_chunks {
            return Some(self.align_prefill_chunk_to_blocks(seq, past, new.min(room)))
                .filter(|&new| new > 0);
        }
        (room > 0 || new == 0).then(|| new.min(room))
    }

    /// Handles a lack of KV blocks for a waiting sequence: the sequence waits until others free
    /// some, or is rejected if no blocks are in use.
    fn handle_block_shortage(
        &mut self,
        slot: SequenceSlot,
        pass: &mut SchedulingPass,
    ) -> AdmissionOutcome {
        if self.seqs[slot].media.is_some() {
            self.release_all_media(slot);
        }
        if self.pool.used_block_count() > 0 {
            return AdmissionOutcome::Stop;
        }
        self.reject_sequence(slot, pass);
        AdmissionOutcome::Next
    }

    /// Allocates the KV blocks for the first chunk of a sequence. If full prompts are reserved
    /// (`scheduler_reserve_full_isl`), there must be room for the whole prompt.
    fn allocate_first_chunk(
        &mut self,
        candidate: AdmissionCandidate,
        pass: &mut SchedulingPass,
    ) -> bool {
        let AdmissionCandidate { slot, past, cached, new, loads } = candidate;
        let spare = match self.running.is_empty() {
            true => 0,
            false => self.watermark_blocks,
        };
        let reserve = self.config.prefill.reserve_full_prompt
            || self.config.victim == PreemptionVictim::First;
        let seq = &self.seqs[slot];
        if !R::may_join_batch(self, slot, cached) {
            return false;
        }
        let tokens = past + new;
        let slots = match loads {
            true => tokens,
            false => self.tokens_with_lookahead_slots(tokens),
        };
        let need = BlockAllocationRequest {
            prefix: cached,
            tokens: slots,
            lookahead: slots - tokens,
            cache: match loads {
                // Other sequences must not find blocks that have not arrived.
                true => cached,
                false => tokens.min(self.cacheable_tokens(slot, seq.known)),
            },
            whole: match reserve {
                true => seq.known,
                false => 0,
            },
            spare,
            reserved: match loads {
                true => self.owed_to_loads_and_prompts(),
                false => 0,
            },
            processed: match loads {
                // Fetched tokens are present when the step begins.
                true => tokens.saturating_sub(1),
                false => past,
            },
            is_capped: false,
        };
        self.allocate_sequence_blocks(slot, &need, pass.step)
    }

    /// Allocates the KV blocks for `new` prompt tokens that are loaded after the first `cached`
    /// tokens.
    pub(in crate::sched::vllm) fn allocate_blocks_for_load(
        &mut self,
        slot: SequenceSlot,
        cached: u32,
        new: u32,
        pass: &mut SchedulingPass,
    ) -> bool {
        let candidate = AdmissionCandidate { slot, past: cached, cached, new, loads: true };
        self.allocate_first_chunk(candidate, pass)
    }

    /// Returns the number of KV blocks that must stay free when a KV load begins, for prompts that
    /// still need blocks and for the first step after the load.
    ///
    /// **Source:** `_inflight_prefill_reserved_blocks`, `vllm/v1/core/sched/scheduler.py`.
    fn owed_to_loads_and_prompts(&self) -> u32 {
        let drafts = self.config.drafts_per_step();
        let step = match drafts {
            0 => 0,
            drafts => self.tokens_with_lookahead_slots(1 + drafts),
        };
        let is_prefilling = |seq: &ScheduledSequence| match seq.state {
            SequenceRunState::Running => seq.step.is_prefill_chunk,
            SequenceRunState::Fetching => true,
            SequenceRunState::Waiting => !seq.table.is_empty() || seq.load.is_lost,
            _ => false,
        };
        let owed = self.seqs.iter_all_slots().filter(|seq| is_prefilling(seq));
        let owed = owed.map(|seq| self.pool.blocks_still_needed(&seq.table, seq.known + step));
        owed.fold(self.pool.blocks_for_tokens(step), u32::saturating_add)
    }

    fn admit_candidate(&mut self, candidate: AdmissionCandidate, pass: &mut SchedulingPass) {
        let AdmissionCandidate { slot, cached, .. } = candidate;
        self.loras.record_lora_admission(self.seqs[slot].request.lora);
        self.waiting.remove_sequence(&self.seqs, slot);
        self.seqs.set_fetch_stage(slot, None);
        self.running.push(slot);
        self.bulk.add_admitted_sequence(slot);
        self.counts.admissions += 1;
        self.seqs[slot].place = self.counts.admissions;
        self.record_lora_use(slot, pass.step);
        self.record_restart_after_preemption(slot, pass.now);
        let host = R::on_sequence_admitted(self, slot);
        let reads = self.config.enable_prefix_caching && !self.seqs[slot].request.skip_cache_read;
        let seq = &mut self.seqs[slot];
        let loaded = seq.load.tokens.min(seq.prompt.saturating_sub(cached));
        seq.state = SequenceRunState::Running;
        let again = std::mem::replace(&mut seq.admitted, true);
        let id = seq.id;
        if again {
            pass.out.push_back((pass.now, SchedulerEvent::Resumed { id }));
        } else {
            if reads {
                self.stats.cache_queries += u64::from(seq.prompt);
                self.stats.cache_hits += u64::from(cached);
            }
            seq.cached = cached;
            let external = match seq.request.transfer {
                PromptKvTransfer::RemotePrefill if !seq.load.is_lost => seq.prompt - cached,
                PromptKvTransfer::RemotePrefill => 0,
                PromptKvTransfer::Local | PromptKvTransfer::RemoteDecode => loaded,
            };
            let event = SchedulerEvent::Scheduled { id, cached, external };
            pass.out.push_back((pass.now, event));
        }
        if self.config.reporting.log_admissions {
            self.reports.admissions.push(AdmittedSequence {
                id,
                at: pass.now,
                cached: cached + loaded,
                host,
                again,
            });
        }
    }

    fn start_remote_fetch(
        &mut self,
        slot: SequenceSlot,
        cached: u32,
        pass: &mut SchedulingPass,
    ) -> AdmissionOutcome {
        let new = self.seqs[slot].prompt - cached;
        if !self.allocate_blocks_for_load(slot, cached, new, pass) {
            return self.handle_block_shortage(slot, pass);
        }
        self.waiting.remove_sequence(&self.seqs, slot);
        let (fixed, per_token) = self.config.transfer.fetch;
        let tokens = match self.config.transfer.fetch_whole_prompt {
            true => self.seqs[slot].prompt,
            false => new,
        };
        let delay = fixed.saturating_add(per_token.saturating_mul(tokens));
        self.seqs.set_fetch_stage(slot, Some(FetchStage::Begun));
        let seq = &mut self.seqs[slot];
        (seq.state, seq.step.is_deferred) = (SequenceRunState::Fetching, true);
        seq.load.ends = pass.now + delay;
        seq.cached = cached;
        self.fetching += 1;
        seq.rank = self.waiting.block_holder_sort_key(self.config.policy, seq.rank);
        if seq.load.failure.is_none() {
            let fetched = SchedulerEvent::Fetched { id: seq.id, tokens, took: delay };
            pass.out.push_back((pass.now, fetched));
        }
        self.timers.schedule_item(pass.now + delay, (slot, seq.generation));
        AdmissionOutcome::Next
    }

    /// Removes a waiting sequence that can never run; its end is reported at the end of the step.
    fn reject_sequence(&mut self, slot: SequenceSlot, pass: &mut SchedulingPass) {
        self.drop_waiting_sequence(slot, pass.step);
    }

    /// Rejects the first waiting sequence if no event can ever let it run.
    pub(in crate::sched) fn reject_unschedulable_sequence(&mut self, step: &mut ScheduledStep) {
        let waits = self.rules.awaits_remote_prompts() || self.next_wakeup().is_some();
        let is_held =
            self.pause != PauseState::Running || self.reports.has_pending_failures_or_loads();
        if waits || is_held || !self.running.is_empty() || !self.flight.is_empty() {
            return;
        }
        if let Some((_, slot)) = self.waiting.first_sequence_after(None) {
            self.drop_waiting_sequence(slot, step);
        }
    }

    fn drop_waiting_sequence(&mut self, slot: SequenceSlot, step: &mut ScheduledStep) {
        self.waiting.remove_sequence(&self.seqs, slot);
        self.remove_sequence_from_host_cache(slot);
        self.free_sequence_blocks(slot);
        R::on_sequence_left(self, slot);
        step.rejected.push(self.seqs[slot].id);
        self.seqs.end_sequence(slot);
    }
}
