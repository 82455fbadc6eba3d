//! Schedules a prefill or decode pass and handles its end.

use std::collections::HashSet;

use crate::SimTime;
use crate::sched::AdmittedSequence;
use crate::{Outbox, SchedulerEvent};
use vllm_sim_random::std_rng::StdRng;

use super::config::SglangSchedulePolicy;
use super::seqs::SequenceSlot;
use super::{
    ForwardPass, INIT_NEW_TOKEN_RATIO, MIN_NEW_TOKEN_RATIO, NEW_TOKEN_RATIO_DECAY_STEPS,
    SglangScheduler,
};

/// Maximum number of waiting sequences that are sorted by cached prefix.
const MAX_WAITING_FOR_LPM: usize = 128;
/// Maximum number of cached tokens up to which a sequence waits while another sequence computes the
/// same uncached beginning.
const SHARED_PREFIX_CHECK_TOKENS: u32 = 32;
/// Number of decode passes for which the retraction of sequences makes room: each remaining
/// sequence gets one output token per pass.
const RETRACT_DECODE_STEPS: u64 = 20;

struct PrefillRoom {
    total: f64,
    input: u32,
    chunk: u32,
}

impl SglangScheduler {
    /// Fills the forward pass `pass` with prompts if any can be admitted, and otherwise with the
    /// running sequences.
    pub(super) fn plan_forward_pass(
        &mut self,
        now: SimTime,
        pass: &mut ForwardPass,
        out: &mut Outbox,
    ) {
        self.reject_overlong_prompts(pass);
        self.admit_transferred_sequences(now, out);
        if self.config.schedule_policy == SglangSchedulePolicy::Lpm {
            self.sort_waiting_by_cached_prefix();
        }
        let may_prefill = self.rounds_without_prefill == 0 || self.running.is_empty();
        if may_prefill && !self.destinations.has_waiting_remote_prompts() {
            self.form_prefill_pass(now, pass, out);
            let is_stuck =
                pass.slots.is_empty() && self.running.is_empty() && !self.waiting.is_empty();
            if is_stuck && !self.are_pages_lent() {
                // Chunks of several prompts hold all pages, and none can go on.
                self.restart_partial_prompts();
                self.form_prefill_pass(now, pass, out);
            }
        }
        if pass.prefill {
            self.rounds_without_prefill = self.config.prefill_decode_interval;
            return;
        }
        self.rounds_without_prefill = self.rounds_without_prefill.saturating_sub(1);
        self.form_decode_pass(now, pass, out);
        let is_stuck = pass.slots.is_empty() && self.running.is_empty();
        if is_stuck && self.destinations.has_pending_sequences() && !self.are_pages_lent() {
            // Partly computed prompts hold the pages for which a prompt of another engine waits.
            self.restart_partial_prompts();
            self.reserve_next_prompt_pages(now, out);
        }
    }

    /// Returns whether sequences outside the waiting queue and the running batch hold KV cache
    /// pages for another engine. While they hold pages, restarted prompts would compute the same
    /// chunks without end.
    fn are_pages_lent(&self) -> bool {
        let holds =
            |slot: &SequenceSlot| self.seqs[*slot].pages > 0 && !self.waiting.contains(slot);
        self.seqs.live_slots().iter().any(holds)
    }

    /// Frees the KV cache pages of partly computed prompts, which are then computed from the start.
    fn restart_partial_prompts(&mut self) {
        for i in 0..self.waiting.len() {
            self.release_pages(self.waiting[i]);
        }
    }

    fn reject_overlong_prompts(&mut self, pass: &mut ForwardPass) {
        let limit = self.config.max_model_len;
        if limit == u32::MAX {
            return;
        }
        let (seqs, rejected) = (&mut self.seqs, &mut pass.rejected);
        self.waiting.retain(|&slot| {
            let fits = seqs[slot].prompt < limit;
            if !fits {
                rejected.push(seqs[slot].id);
                seqs.end_sequence(slot);
            }
            fits
        });
    }

    /// Sorts the waiting queue by cached prefix, longest first. Of several sequences with the same
    /// uncached beginning, all but the first move to the end, because they find that beginning
    /// cached later.
    fn sort_waiting_by_cached_prefix(&mut self) {
        if !self.config.enable_prefix_caching || self.waiting.len() > MAX_WAITING_FOR_LPM {
            return;
        }
        let beginning = self.config.pages_for_tokens(SHARED_PREFIX_CHECK_TOKENS);
        let mut seen = HashSet::new();
        let scored = self.waiting.iter().map(|&slot| {
            let seq = &self.seqs[slot];
            let matched =
                self.radix.cached_prefix_pages(seq.page_keys(seq.len() / self.config.page_size));
            let uncached = matched * self.config.page_size <= SHARED_PREFIX_CHECK_TOKENS;
            let first = seq.page_keys(beginning);
            let begun = first.last().filter(|_| uncached && first.len() as u32 == beginning);
            let late = begun.is_some_and(|key| !seen.insert(*key));
            (late, u32::MAX - matched, slot)
        });
        let mut scored: Vec<(bool, u32, SequenceSlot)> = scored.collect();
        scored.sort_by_key(|&(late, order, _)| (late, order));
        self.waiting.clear();
        self.waiting.extend(scored.into_iter().map(|(_, _, slot)| slot));
    }

    fn form_prefill_pass(&mut self, now: SimTime, pass: &mut ForwardPass, out: &mut Outbox) {
        let clip = self.config.clip_max_new_tokens;
        let reserved: f64 = self
            .running
            .iter()
            .map(|&slot| {
                f64::from(self.seqs[slot].remaining_output_tokens().min(clip)) * self.ratio
            })
            .sum();
        let page = self.config.page_size;
        let mut room = PrefillRoom {
            total: f64::from(self.radix.available_pages()) * f64::from(page) - reserved,
            input: self.config.max_prefill_tokens,
            chunk: self.config.chunked_prefill_size,
        };
        let slots = (self.config.max_num_seqs as usize).saturating_sub(self.running.len());
        while pass.slots.len() < slots && room.chunk > 0 {
            let Some(&slot) = self.waiting.front() else {
                break;
            };
            if !self.admit_sequence(slot, &mut room, now, pass, out) {
                break;
            }
            self.waiting.pop_front();
        }
        pass.prefill = !pass.slots.is_empty();
    }

    fn admit_sequence(
        &mut self,
        slot: SequenceSlot,
        room: &mut PrefillRoom,
        now: SimTime,
        pass: &mut ForwardPass,
        out: &mut Outbox,
    ) -> bool {
        let page = self.config.page_size;
        let seq = &self.seqs[slot];
        let len = seq.len();
        let first = !seq.holds;
        // The last token is always computed if output follows.
        let most = (len - u32::from(seq.output > 0)) / page;
        let start = match first {
            true if self.config.enable_prefix_caching => {
                self.radix.cached_prefix_pages(seq.page_keys(most)) * page
            }
            true => 0,
            false => seq.stored,
        };
        let extend = len - start;
        let chunk = if self.config.round_up_to_page(extend) <= room.chunk {
            extend
        } else {
            (room.chunk / page * page).min(extend)
        };
        // A chunk larger than any pass would wait forever.
        let chunk = match self.config.round_up_to_page(chunk) > self.config.max_prefill_tokens {
            true => (room.input.min(room.chunk) / page * page).min(chunk),
            false => chunk,
        };
        if chunk == 0 && extend > 0 {
            return false;
        }
        let charge = self.config.round_up_to_page(chunk);
        let reserve = match chunk < extend {
            true => 0,
            false => seq.remaining_output_tokens().min(self.config.clip_max_new_tokens),
        };
        let wanted = f64::from(charge) + f64::from(reserve);
        if wanted >= room.total || charge > room.input || charge > room.chunk {
            return false;
        }
        let fresh = self.config.pages_for_tokens(start + chunk)
            - if first { start / page } else { seq.pages };
        if first {
            let seq = &mut self.seqs[slot];
            let keys = seq.plan.as_ref().map_or(&[][..], |plan| &plan.keys);
            let (pages, node) = self.radix.lock_longest_prefix(&keys[..(start / page) as usize]);
            (seq.node, seq.pages, seq.shared, seq.epoch) = (node, pages, pages, self.epoch);
        }
        if !self.take_pages(fresh, &mut pass.events) {
            if first {
                self.release_pages(slot);
            }
            return false;
        }
        let seq = &mut self.seqs[slot];
        seq.pages += fresh;
        seq.stored = start + chunk;
        seq.holds = true;
        seq.in_flight = true;
        room.total -= wanted;
        room.input -= charge;
        room.chunk -= charge;
        if !self.config.free_prompts {
            pass.batch.add_prompt_chunk(chunk, start, self.config.latency.sliding_window());
        }
        pass.prompt_tokens += chunk;
        pass.slots.push(slot);
        if first {
            self.record_sequence_admission(slot, start, now, out);
        }
        true
    }

    pub(super) fn record_sequence_admission(
        &mut self,
        slot: SequenceSlot,
        cached: u32,
        now: SimTime,
        out: &mut Outbox,
    ) {
        let seq = &mut self.seqs[slot];
        let again = std::mem::replace(&mut seq.admitted, true);
        let id = seq.id;
        if std::mem::take(&mut seq.preempted) {
            out.push_back((now, SchedulerEvent::Resumed { id }));
        }
        if !again {
            self.stats.cache_queries += u64::from(seq.prompt);
            self.stats.cache_hits += u64::from(cached);
            out.push_back((now, SchedulerEvent::Scheduled { id, cached, external: 0 }));
        }
        if self.config.log_admissions {
            self.admissions.push(AdmittedSequence { id, at: now, cached, host: None, again });
        }
    }

    fn pages_for_growth(&self, slots: &[SequenceSlot], most: u32) -> u32 {
        let grows = |&slot: &SequenceSlot| {
            let seq = &self.seqs[slot];
            let tokens = seq.len() + most.min(seq.remaining_output_tokens());
            self.config.pages_for_tokens(tokens).saturating_sub(seq.pages)
        };
        slots.iter().map(grows).sum()
    }

    fn max_tokens_per_step(&self) -> u32 {
        1 + self.config.accept.len() as u32
    }

    fn draw_token_count(&mut self) -> u32 {
        if self.config.accept.is_empty() {
            return 1;
        }
        let seed = self.config.seed;
        let draws = self.draws.get_or_insert_with(|| StdRng::new(seed));
        let rates = self.config.accept.iter();
        1 + rates.take_while(|&&rate| draws.draw_bool(rate)).count() as u32
    }

    fn form_decode_pass(&mut self, now: SimTime, pass: &mut ForwardPass, out: &mut Outbox) {
        let retracted = self.retract_sequences(now, out);
        let growth = self.pages_for_growth(&self.running, self.max_tokens_per_step());
        if growth > self.radix.available_pages() {
            // Only partly computed prompts block the last sequence.
            self.restart_partial_prompts();
        }
        if self.running.is_empty() || !self.take_pages(growth, &mut pass.events) {
            return;
        }
        let init = INIT_NEW_TOKEN_RATIO * self.config.schedule_conservativeness;
        if retracted {
            let made: u64 = self.running.iter().map(|&s| u64::from(self.seqs[s].made)).sum();
            let most: u64 = self.running.iter().map(|&s| u64::from(self.seqs[s].output)).sum();
            let kept = made + RETRACT_DECODE_STEPS * self.running.len() as u64;
            self.ratio = (kept as f64 / (most as f64 + 1.0)).min(1.0);
        } else {
            let least = init * MIN_NEW_TOKEN_RATIO;
            self.ratio = (self.ratio - (init - least) / NEW_TOKEN_RATIO_DECAY_STEPS).max(least);
        }
        let mut used = 0;
        for i in 0..self.running.len() {
            let slot = self.running[i];
            let seq = &mut self.seqs[slot];
            if seq.drained {
                continue;
            }
            seq.in_flight = true;
            pass.batch.add_decoding_sequence(seq.len(), 1, self.config.latency.sliding_window());
            pass.slots.push(slot);
            let drawn = self.draw_token_count();
            let seq = &mut self.seqs[slot];
            seq.burst = drawn.min(seq.remaining_output_tokens());
            let pages = self.config.pages_for_tokens(seq.len() + seq.burst).max(seq.pages);
            used += pages - seq.pages;
            seq.pages = pages;
        }
        self.radix.release_pages(growth.saturating_sub(used));
    }

    /// Retracts the sequences with the least output until the others have room for their next
    /// tokens. Retracted sequences wait at the end of the queue. Returns whether any sequence was
    /// retracted.
    fn retract_sequences(&mut self, now: SimTime, out: &mut Outbox) -> bool {
        let mut retracted = false;
        while self.pages_for_growth(&self.running, self.max_tokens_per_step())
            > self.radix.available_pages()
        {
            let made = |&i: &usize| self.seqs[self.running[i]].made;
            let decodes = |&i: &usize| !self.seqs[self.running[i]].drained;
            let victims: Vec<usize> = (0..self.running.len()).filter(decodes).collect();
            let Some(victim) = victims.iter().copied().min_by_key(made) else {
                break;
            };
            let is_last = victims.len() == 1;
            if is_last && !self.destinations.has_transferred_sequences() {
                break;
            }
            self.retract_sequence(victim, now, out);
            retracted = true;
            if is_last {
                // Transferred prompts hold the pages that the last sequence lacks: they go on
                // instead.
                self.admit_transferred_sequences(now, out);
            }
        }
        retracted
    }

    /// Moves the running sequence with this index to the end of the waiting queue and frees its
    /// KV cache pages.
    fn retract_sequence(&mut self, index: usize, now: SimTime, out: &mut Outbox) {
        let slot = self.running.remove(index);
        self.release_pages(slot);
        self.waiting.push_back(slot);
        self.seqs[slot].preempted = true;
        self.stats.preemptions += 1;
        out.push_back((now, SchedulerEvent::Preempted { id: self.seqs[slot].id }));
    }

    /// Retracts all running sequences and restarts partly computed prompts.
    ///
    /// **Source:** sglang 0.5.23 `srt/managers/scheduler.py`, `pause_generation` with `retract`.
    pub(super) fn retract_all_sequences(&mut self, now: SimTime, out: &mut Outbox) {
        self.restart_partial_prompts();
        let mut index = 0;
        while let Some(&slot) = self.running.get(index) {
            match self.seqs[slot].drained {
                true => index += 1,
                false => self.retract_sequence(index, now, out),
            }
        }
    }

    /// Releases the first output tokens of prompts that a prefill pass has completed, if there are
    /// KV cache pages for all these tokens.
    pub(super) fn finish_prefill_pass(
        &mut self,
        pass: &mut ForwardPass,
        now: SimTime,
        out: &mut Outbox,
    ) -> u32 {
        let slots = std::mem::take(&mut pass.slots);
        let (mut ready, mut unfinished) = (Vec::new(), Vec::new());
        for &slot in &slots {
            self.seqs.release_sequence_after_pass(slot);
            if self.seqs[slot].dead {
                continue;
            }
            let whole = self.seqs[slot].stored == self.seqs[slot].len();
            if !(whole && self.seqs[slot].lends) {
                self.share_full_pages(slot, &mut pass.events);
            }
            if !whole {
                unfinished.push(slot);
            } else {
                ready.push(slot);
            }
        }
        for slot in unfinished.into_iter().rev() {
            self.waiting.push_front(slot);
        }
        let ends = |seq: &super::seqs::ScheduledSequence| seq.remaining_output_tokens() <= 1;
        let going: Vec<SequenceSlot> =
            ready.iter().copied().filter(|&s| !ends(&self.seqs[s])).collect();
        let growth = self.pages_for_growth(&going, 1);
        let room = self.take_pages(growth, &mut pass.events);
        out.extend(pass.events.drain(..).map(|event| (now, event)));
        let mut made = 0;
        for &slot in &ready {
            let seq = &mut self.seqs[slot];
            if ends(seq) {
                made += self.release_last_token(slot, now, out);
                continue;
            }
            if room {
                if self.config.pages_for_tokens(seq.len() + 1) > seq.pages {
                    seq.pages += 1;
                }
                made += self.release_token(slot, pass, now, out);
            }
            self.running.push(slot);
        }
        pass.slots = slots;
        made
    }

    /// Emits the remaining output of a sequence that ends with its prefill: one token or none. The
    /// token needs no KV cache page.
    fn release_last_token(&mut self, slot: SequenceSlot, now: SimTime, out: &mut Outbox) -> u32 {
        let seq = &mut self.seqs[slot];
        let n = seq.remaining_output_tokens();
        seq.made += n;
        let id = seq.id;
        if n > 0 {
            out.push_back((now, SchedulerEvent::Tokens { id, n }));
        }
        // A sequence kept for another engine does not run again on this engine.
        let seq = &self.seqs[slot];
        if !seq.tail.is_zero() && !seq.lends {
            self.running.push(slot);
        }
        self.complete_sequence(slot, now, out);
        n
    }

    /// Emits one output token of a sequence, stored in an allocated KV cache page, and moves full
    /// pages into the radix tree.
    fn release_token(
        &mut self,
        slot: SequenceSlot,
        pass: &mut ForwardPass,
        now: SimTime,
        out: &mut Outbox,
    ) -> u32 {
        let seq = &mut self.seqs[slot];
        seq.made += 1;
        seq.stored += 1;
        let id = seq.id;
        if seq.stored.is_multiple_of(self.config.page_size) {
            self.share_full_pages(slot, &mut pass.events);
        }
        out.extend(pass.events.drain(..).map(|event| (now, event)));
        out.push_back((now, SchedulerEvent::Tokens { id, n: 1 }));
        1
    }

    pub(super) fn finish_decode_pass(
        &mut self,
        pass: &mut ForwardPass,
        now: SimTime,
        out: &mut Outbox,
    ) -> u32 {
        out.extend(pass.events.drain(..).map(|event| (now, event)));
        let slots = std::mem::take(&mut pass.slots);
        let (mut made, mut ended) = (0, false);
        for &slot in &slots {
            self.seqs.release_sequence_after_pass(slot);
            if self.seqs[slot].dead {
                continue;
            }
            for _ in 0..self.seqs[slot].burst {
                made += self.release_token(slot, pass, now, out);
            }
            if self.seqs[slot].remaining_output_tokens() == 0 {
                ended = true;
                self.complete_sequence(slot, now, out);
            }
        }
        if ended {
            let seqs = &self.seqs;
            self.running.retain(|&slot| !seqs[slot].dead && !seqs[slot].held);
        }
        pass.slots = slots;
        made
    }
}
