//! The making of one step.

use crate::engine::kv::Need;
use crate::engine::{End, Event, LoraId, Outbox, Transfer};
use crate::sim::{Draw, SimTime};

use super::Vllm;
use super::config::{Admission, Policy, Speculation, Victim};
use super::seqs::{Seq, Slot, State};
use super::step::{Entry, Step};
use crate::engine::sched::Admitted;

/// After so many preemptions without a token, a sequence is no first victim any more.
const MOST_ROBBED: u8 = 3;

/// What became of a running sequence that needed blocks.
enum Blocks {
    Given,
    /// It was preempted itself.
    Lost,
}

/// What became of a waiting sequence.
enum Head {
    /// It runs, or is gone: try the next.
    Next,
    /// It stays where it is; those behind it may be tried.
    Skip,
    /// Nobody else is tried.
    Stop,
}

/// The head of the waiting queue, looked up.
#[derive(Clone, Copy)]
struct Candidate {
    slot: Slot,
    /// Tokens that need no computation.
    past: u32,
    /// Of these, found in this engine's cache.
    cached: u32,
    /// Tokens to compute in this step.
    new: u32,
}

impl Vllm {
    /// Fills `step`: running sequences first, then waiting ones. True: somebody was preempted.
    pub(super) fn schedule(&mut self, now: SimTime, step: &mut Step, out: &mut Outbox) -> bool {
        let mut budget = self.config.max_num_batched_tokens;
        self.loras.clear();
        let preempted = self.schedule_running(&mut budget, now, step, out);
        if !preempted {
            self.schedule_waiting(&mut budget, now, step, out);
        }
        preempted
    }

    /// True: somebody was preempted.
    fn schedule_running(
        &mut self,
        budget: &mut u32,
        now: SimTime,
        step: &mut Step,
        out: &mut Outbox,
    ) -> bool {
        let drafts = self.config.drafts();
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let slot = self.running[at];
            let seq = &mut self.seqs[slot];
            let past = seq.computed;
            if seq.state == State::Draining {
                at += 1;
                continue;
            }
            let plain = drafts == 0 && self.config.max_loras == 0;
            if plain && past + 1 == seq.known && past < seq.table.settled() {
                self.emit(slot, past, 1, step);
                *budget -= 1;
                at += 1;
                continue;
            }
            let new = self.wanted(slot, past, *budget);
            match self.blocks_for_running(
                slot,
                new,
                budget,
                &mut at,
                &mut preempted,
                now,
                step,
                out,
            ) {
                Blocks::Given => {}
                Blocks::Lost if self.config.admission == Admission::Mocker => continue,
                Blocks::Lost => break,
            }
            self.note_lora(slot);
            self.emit(slot, past, new, step);
            *budget -= new;
            at += 1;
        }
        preempted
    }

    /// Tokens that a sequence computes in this step.
    fn wanted(&self, slot: Slot, past: u32, budget: u32) -> u32 {
        let seq = &self.seqs[slot];
        let mut new = seq.known - past;
        if past >= seq.prompt && new == 1 {
            new += self.config.fed_drafts();
        }
        let threshold = self.config.long_prefill_token_threshold;
        if threshold > 0 && new > threshold {
            new = threshold;
        }
        // Drafts do not go beyond the last planned token.
        new.min(budget).min((seq.total - past).max(1))
    }

    /// Finds blocks for a running sequence, preempting others until there are enough.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of one pass over the running batch"
    )]
    fn blocks_for_running(
        &mut self,
        slot: Slot,
        new: u32,
        budget: &mut u32,
        at: &mut usize,
        preempted: &mut bool,
        now: SimTime,
        step: &mut Step,
        out: &mut Outbox,
    ) -> Blocks {
        loop {
            let seq = &mut self.seqs[slot];
            let tokens = seq.computed + new;
            let tokens = tokens
                + self
                    .config
                    .free_drafts()
                    .min(seq.total - tokens.min(seq.total));
            let cache = (seq.computed + new).min(seq.known);
            let need = Need {
                tokens,
                cache,
                ..Need::default()
            };
            let events = &mut step.events;
            let plan = seq.plan.as_ref();
            if self
                .pool
                .allocate(&mut seq.table, plan, &need, &mut |event| events.push(event))
            {
                return Blocks::Given;
            }
            let Some(victim_at) = self.victim() else {
                return Blocks::Lost;
            };
            if self.running[victim_at] == slot && self.take_fetched_blocks() {
                continue;
            }
            *preempted = true;
            let victim = self.running.remove(victim_at);
            if let Some(entry) = step.remove(victim, self.config.recompute, self.window) {
                *budget += entry.new;
                let seq = &mut self.seqs[victim];
                seq.in_flight -= 1;
                seq.known -= entry.emit;
            }
            if victim_at < *at {
                *at -= 1;
            }
            self.preempt(victim, now, out);
            if victim == slot {
                return Blocks::Lost;
            }
        }
    }

    /// Before a sequence gives up itself, one that waits with a fetched prompt gives its blocks:
    /// else the two could stand in each other's way for ever.
    fn take_fetched_blocks(&mut self) -> bool {
        let holds = |&slot: &Slot| !self.seqs[slot].table.is_empty();
        let Some(holder) = self.waiting.backwards().find(holds) else {
            return false;
        };
        let seq = &mut self.seqs[holder];
        self.pool.release(&mut seq.table);
        seq.computed = 0;
        true
    }

    /// Who loses its blocks: an index into the running batch.
    fn victim(&self) -> Option<usize> {
        // One that only waits for its tail has nothing to give.
        let gives = |&at: &usize| {
            let seq = &self.seqs[self.running[at]];
            seq.state == State::Running || seq.in_flight > 0
        };
        let mut victims = (0..self.running.len()).filter(gives);
        match (self.config.policy, self.config.victim) {
            (Policy::Priority, _) => victims.max_by_key(|&at| {
                let seq = &self.seqs[self.running[at]];
                (seq.rank.0, seq.arrival)
            }),
            (Policy::Fcfs, Victim::Last) => victims.next_back(),
            (Policy::Fcfs, Victim::First) => {
                let may = |&at: &usize| self.seqs[self.running[at]].robbed < MOST_ROBBED;
                let last = victims.clone().next_back();
                victims.find(may).or(last)
            }
        }
    }

    fn preempt(&mut self, slot: Slot, now: SimTime, out: &mut Outbox) {
        let rank = match self.config.policy {
            Policy::Fcfs => Some(self.waiting.front_rank()),
            Policy::Priority => None,
        };
        let seq = &mut self.seqs[slot];
        self.pool.release(&mut seq.table);
        seq.computed = 0;
        seq.robbed = seq.robbed.saturating_add(1);
        seq.state = State::Waiting;
        // What was fetched is lost; it is computed again here.
        seq.fetched = true;
        seq.rank = rank.unwrap_or(seq.rank);
        let id = seq.id;
        self.waiting.insert(&self.seqs, slot);
        self.stats.preemptions += 1;
        out.push_back((now, Event::Preempted { id }));
    }

    /// Enters a sequence that has its blocks into the step.
    #[inline]
    fn emit(&mut self, slot: Slot, past: u32, new: u32, step: &mut Step) {
        let seq = &mut self.seqs[slot];
        let known = seq.known;
        let complete = past + new >= known;
        let accepted = match &self.config.speculation {
            Some(speculation) if complete => accepted(seq, speculation, past + new),
            _ => 0,
        };
        let emit = if complete {
            (1 + accepted).min(seq.total - known)
        } else {
            0
        };
        let drafted = self.config.speculation.is_some();
        // Rejected drafts leave nothing behind.
        seq.computed = match complete {
            true => known + emit.saturating_sub(1),
            false => past + new,
        };
        seq.known = known + emit;
        seq.in_flight += 1;
        if emit > 0 {
            seq.robbed = 0;
        }
        let last = complete && seq.known == seq.total;
        if last {
            seq.state = State::Draining;
        }
        let prompt = seq.prompt;
        let entry = Entry {
            slot,
            past,
            new,
            emit,
            prompt,
            known,
            drafted,
            last,
        };
        step.push(entry, self.config.recompute, self.window);
    }

    fn schedule_waiting(
        &mut self,
        budget: &mut u32,
        now: SimTime,
        step: &mut Step,
        out: &mut Outbox,
    ) {
        let mocker = self.config.admission == Admission::Mocker;
        let mut last = None;
        while (*budget > 0 || mocker) && self.running.len() < self.config.max_num_seqs as usize {
            let Some(head) = self.waiting.after(last) else {
                break;
            };
            match self.try_head(head.1, budget, now, step, out) {
                Head::Next => {}
                Head::Skip => last = Some(head),
                // When nothing runs, only those whose fetched prompts hold the blocks can go on.
                Head::Stop if self.running.is_empty() => last = Some(head),
                Head::Stop => break,
            }
        }
    }

    fn try_head(
        &mut self,
        slot: Slot,
        budget: &mut u32,
        now: SimTime,
        step: &mut Step,
        out: &mut Outbox,
    ) -> Head {
        if self.must_cancel(slot) {
            self.reject(slot, step);
            return Head::Next;
        }
        if self.lora_is_over(slot) {
            return Head::Skip;
        }
        let cached = self.look_up(slot);
        if self.misses_threshold(slot, cached) {
            self.stop(slot, End::Threshold, now, out);
            return Head::Next;
        }
        let seq = &self.seqs[slot];
        if seq.transfer == Transfer::RemotePrefill && !seq.fetched {
            return self.fetch(slot, cached, now, step);
        }
        let past = if seq.table.is_empty() {
            cached
        } else {
            seq.computed
        };
        let Some(new) = self.first_chunk(slot, past, *budget, step.entries.is_empty()) else {
            return Head::Stop;
        };
        let candidate = Candidate {
            slot,
            past,
            cached,
            new,
        };
        if !self.allocate_whole(candidate, step) {
            return Head::Stop;
        }
        self.admit(candidate, now, out);
        self.emit(slot, past, new, step);
        *budget = budget.saturating_sub(new);
        Head::Next
    }

    /// Cached tokens at the front of a sequence that holds no blocks.
    fn look_up(&self, slot: Slot) -> u32 {
        let seq = &self.seqs[slot];
        let Some(plan) = seq.plan.as_ref().filter(|_| !seq.skip_cache_read) else {
            return 0;
        };
        if !seq.table.is_empty() {
            return seq.cached;
        }
        // With draft heads the last cached block is computed again, for their input.
        let drop = if self.config.drafts() > 0 {
            self.config.block_size
        } else {
            0
        };
        self.pool
            .cached_prefix(plan, seq.known)
            .saturating_sub(drop)
    }

    fn misses_threshold(&self, slot: Slot, cached: u32) -> bool {
        let seq = &self.seqs[slot];
        let misses = |share| f64::from(cached) < share * f64::from(seq.prompt);
        !seq.admitted && seq.hit_threshold.is_some_and(misses)
    }

    /// Tokens of the first chunk; `None`: the sequence waits for a larger budget.
    fn first_chunk(&self, slot: Slot, past: u32, budget: u32, alone: bool) -> Option<u32> {
        let seq = &self.seqs[slot];
        let new = self.wanted(slot, past, u32::MAX);
        let mocker = self.config.admission == Admission::Mocker;
        let whole = if mocker {
            seq.prompt.saturating_sub(past)
        } else {
            new
        };
        if !self.config.enable_chunked_prefill && whole > budget {
            // Real servers refuse such settings; here it runs when it can run alone.
            return (alone && !mocker).then_some(new);
        }
        (budget > 0).then(|| new.min(budget))
    }

    /// Blocks for a sequence that joins: all of its prompt must fit, its first chunk is taken.
    fn allocate_whole(&mut self, candidate: Candidate, step: &mut Step) -> bool {
        let Candidate {
            slot,
            past,
            cached,
            new,
        } = candidate;
        let spare = if self.running.is_empty() {
            0
        } else {
            self.watermark_blocks
        };
        // Blocks that a fetch holds cannot be had by preemption, so that a sequence without room
        // for its next token could start in vain again and again.
        let fetching = u32::from(self.fetching > 0);
        let reserve = self.config.reserve_full_prompt
            || self.config.victim == Victim::First
            || self.fetching > 0;
        let seq = &mut self.seqs[slot];
        let tokens = past + new;
        let need = Need {
            prefix: cached,
            tokens,
            cache: tokens.min(seq.known),
            whole: if reserve {
                (seq.known + fetching).min(seq.total)
            } else {
                0
            },
            spare,
        };
        let events = &mut step.events;
        let plan = seq.plan.as_ref();
        self.pool
            .allocate(&mut seq.table, plan, &need, &mut |event| events.push(event))
    }

    /// Moves a sequence from waiting to running.
    fn admit(&mut self, candidate: Candidate, now: SimTime, out: &mut Outbox) {
        let Candidate { slot, cached, .. } = candidate;
        self.waiting.remove(&self.seqs, slot);
        self.running.push(slot);
        self.note_lora(slot);
        let reads = self.config.enable_prefix_caching && !self.seqs[slot].skip_cache_read;
        let seq = &mut self.seqs[slot];
        seq.state = State::Running;
        let again = std::mem::replace(&mut seq.admitted, true);
        let id = seq.id;
        if !again {
            if reads {
                self.stats.cache_queries += u64::from(seq.prompt);
                self.stats.cache_hits += u64::from(cached);
            }
            seq.cached = cached;
            let fetched = seq.transfer == Transfer::RemotePrefill;
            let external = if fetched { seq.prompt - cached } else { 0 };
            out.push_back((
                now,
                Event::Scheduled {
                    id,
                    cached,
                    external,
                },
            ));
        }
        if self.config.log_admissions {
            self.admissions.push(Admitted {
                id,
                at: now,
                cached,
                again,
            });
        }
    }

    /// Starts fetching a remote prompt into blocks of its own; the queue goes on without it.
    fn fetch(&mut self, slot: Slot, cached: u32, now: SimTime, step: &mut Step) -> Head {
        let prompt = self.seqs[slot].prompt;
        let candidate = Candidate {
            slot,
            past: cached,
            cached,
            new: prompt - cached,
        };
        if !self.allocate_whole(candidate, step) {
            return Head::Stop;
        }
        self.waiting.remove(&self.seqs, slot);
        let (fixed, per_token) = self.config.fetch;
        let delay = fixed.saturating_add(per_token.saturating_mul(prompt - cached));
        let seq = &mut self.seqs[slot];
        seq.state = State::Fetching;
        seq.cached = cached;
        self.fetching += 1;
        self.timers.set(now + delay, (slot, seq.generation));
        Head::Next
    }

    /// Drops a waiting sequence; the world learns of it when the step ends.
    fn reject(&mut self, slot: Slot, step: &mut Step) {
        self.waiting.remove(&self.seqs, slot);
        let seq = &mut self.seqs[slot];
        self.pool.release(&mut seq.table);
        step.rejected.push(seq.id);
        self.seqs.end(slot);
    }

    /// The mocker drops what can never run when it comes to the head; so does everybody a
    /// sequence that outgrew all blocks.
    fn must_cancel(&self, slot: Slot) -> bool {
        let seq = &self.seqs[slot];
        // Once it ran, the blocks of its next step count.
        let next = if seq.admitted {
            self.config.free_drafts()
        } else {
            0
        };
        let tokens = (seq.known + next).min(seq.total.max(seq.known));
        let never_fits = self.pool.blocks_for(tokens) > self.pool.usable();
        let mocker = self.config.admission == Admission::Mocker;
        let too_long = mocker && !seq.admitted && seq.prompt >= self.config.max_model_len;
        let unchunked = mocker
            && !self.config.enable_chunked_prefill
            && self.running.is_empty()
            && seq.prompt - self.look_up(slot).min(seq.prompt) > self.config.max_num_batched_tokens;
        never_fits || too_long || unchunked
    }

    fn note_lora(&mut self, slot: Slot) {
        if self.config.max_loras > 0
            && let Some(lora) = self.seqs[slot].lora
            && !self.loras.contains(&lora)
        {
            self.loras.push(lora);
        }
    }

    /// Whether a sequence's adapter would be one too many in this step.
    fn lora_is_over(&self, slot: Slot) -> bool {
        let full = self.config.max_loras > 0 && self.loras.len() >= self.config.max_loras as usize;
        let one_more = |lora: LoraId| !self.loras.contains(&lora);
        full && self.seqs[slot].lora.is_some_and(one_more)
    }
}

/// How many drafts of this step are right; `fed` counts the tokens computed up to here, drafts
/// that the budget left out not among them.
fn accepted(seq: &mut Seq, speculation: &Speculation, fed: u32) -> u32 {
    let Some(draws) = &mut seq.draws else {
        return 0;
    };
    let drafts = match speculation.free {
        true => speculation.accept.len(),
        false => fed.saturating_sub(seq.known) as usize,
    };
    let right = speculation.accept.iter().take(drafts);
    right.take_while(|&&rate| draws.unit() < rate).count() as u32
}
