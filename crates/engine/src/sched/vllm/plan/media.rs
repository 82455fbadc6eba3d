//! Limits prompt chunks to media items that the encoder can process.

use crate::sched::vllm::encoder_cache::PromptChunkWithMedia;
use crate::sched::vllm::seqs::SequenceSlot;
use crate::sched::vllm::step::ScheduledStep;
use crate::sched::vllm::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Returns how many of `new` tokens precede the first media item that cannot be encoded in this
    /// pass. `alone`: the step has no other sequence.
    #[inline]
    pub(super) fn tokens_before_unencodable_media(
        &mut self,
        slot: SequenceSlot,
        past: u32,
        new: u32,
        alone: bool,
    ) -> u32 {
        let media = self.seqs[slot].media.as_mut().filter(|media| past < media.end_token_index());
        let Some((encoder, media)) = self.encoder.as_mut().zip(media) else {
            return new;
        };
        // Items longer than any chunk are split, or the sequence would wait forever.
        let most = match alone {
            true => new,
            false => self.config.max_num_batched_tokens,
        };
        let lookahead = self.config.prompt_tokens_read_by_drafter();
        match new {
            0 => 0,
            _ => encoder.plan_chunk_encoding(
                media,
                PromptChunkWithMedia { slot, past, new, most, lookahead },
            ),
        }
    }

    /// Schedules the encoding of the media items of a prompt chunk that are not in the encoder
    /// cache.
    pub(super) fn schedule_media_encoding(&mut self, slot: SequenceSlot, step: &mut ScheduledStep) {
        let media = self.seqs[slot].media.as_mut();
        if let (Some(encoder), Some(media)) = (&mut self.encoder, media) {
            let encoded = &mut step.encoded;
            encoder.schedule_planned_encoding(slot, media, |at, input| {
                encoded.push((slot, at, input))
            });
        }
    }

    /// Releases the encoder embeddings of prompt tokens that a step has computed. Must be called
    /// before the output of the step is reported.
    ///
    /// **Source:** `_free_encoder_inputs`, `vllm/v1/core/sched/scheduler.py`.
    pub(in crate::sched::vllm) fn release_computed_media(&mut self, slot: SequenceSlot) {
        let seq = &mut self.seqs[slot];
        if seq.step.stale.drops_step_output() {
            return;
        }
        if let (Some(encoder), Some(media)) = (&mut self.encoder, &mut seq.media) {
            // With asynchronous scheduling, the newest sampled token may still be rejected.
            let upto = match self.config.async_scheduling && !seq.step.is_prefill_chunk {
                true => seq.computed.min(seq.released - 1),
                false => seq.computed,
            };
            encoder.release_computed_media_items(media, upto);
        }
    }

    pub(super) fn release_all_media(&mut self, slot: SequenceSlot) {
        if let (Some(encoder), Some(media)) = (&mut self.encoder, &mut self.seqs[slot].media) {
            encoder.release_all_media_items(media);
        }
    }

    /// Removes the encodings of a sequence that leaves the step.
    pub(super) fn remove_media_encoding(&mut self, slot: SequenceSlot, step: &mut ScheduledStep) {
        if let Some(encoder) = &mut self.encoder {
            let removed = step.encoded.extract_if(.., |(whose, ..)| *whose == slot);
            removed.for_each(|(.., input)| encoder.restore_encoder_budget(&input));
        }
    }

    /// Empties the encoder cache; returns false if no encoder is simulated.
    pub(in crate::sched::vllm) fn reset_encoder_cache(&mut self) -> bool {
        let Some(encoder) = &mut self.encoder else {
            return false;
        };
        encoder.clear_encoder_cache();
        for slot in self.seqs.live_slots() {
            if let Some(media) = &mut self.seqs[slot].media {
                media.reset_media_references();
            }
        }
        true
    }

    /// Returns the number of embeddings in the encoder cache, and the number of embeddings that
    /// sequences reference; `None` if no encoder is simulated.
    pub fn encoder_cached_and_referenced_embeddings(&self) -> Option<(u32, u32)> {
        Some(self.encoder.as_ref()?.cached_and_referenced_embeddings())
    }
}
