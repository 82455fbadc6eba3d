//! Limits prompt chunks to media items that the encoder can process.

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
        let seq = &self.seqs[slot];
        match (&mut self.encoder, &seq.media) {
            (Some(encoder), Some(media)) if past < media.end_token() => {
                // Items longer than any chunk are split, or the sequence would wait forever.
                let most = match alone {
                    true => new,
                    false => self.config.max_num_batched_tokens,
                };
                encoder.encodable_chunk_tokens(media, (past, new), most)
            }
            _ => new,
        }
    }

    /// Schedules the encoding of those media items of a prompt chunk that are not cached.
    pub(super) fn schedule_media_encoding(
        &mut self,
        slot: SequenceSlot,
        past: u32,
        new: u32,
        step: &mut ScheduledStep,
    ) {
        let media = self.seqs[slot].media.as_mut();
        if let (Some(encoder), Some(media)) = (&mut self.encoder, media) {
            let encoded = &mut step.encoded;
            encoder.reference_items(media, past, new, |input| encoded.push((slot, input)));
        }
    }

    /// Releases the encoder embeddings of prompt tokens that a step has computed.
    pub(in crate::sched::vllm) fn release_computed_media(&mut self, step: &ScheduledStep) {
        for work in &step.work {
            let seq = &mut self.seqs[work.slot];
            if let (Some(encoder), Some(media)) = (&mut self.encoder, &mut seq.media) {
                encoder.release_computed_items(media, seq.computed);
            }
        }
    }

    pub(super) fn release_all_media(&mut self, slot: SequenceSlot) {
        if let (Some(encoder), Some(media)) = (&mut self.encoder, &mut self.seqs[slot].media) {
            encoder.release_all_items(media);
        }
    }

    /// Reverts the scheduled encodings of a sequence that is removed from the current step.
    pub(super) fn undo_media_encoding(&mut self, slot: SequenceSlot, step: &mut ScheduledStep) {
        self.release_all_media(slot);
        if let Some(encoder) = &mut self.encoder {
            step.encoded.retain(|(whose, input)| *whose != slot || !encoder.undo_encoding(input));
        }
    }

    /// Empties the encoder cache; returns false if no encoder is simulated.
    pub(in crate::sched::vllm) fn reset_encoder_cache(&mut self) -> bool {
        let Some(encoder) = &mut self.encoder else {
            return false;
        };
        encoder.clear();
        for slot in self.seqs.live_slots() {
            if let Some(media) = &mut self.seqs[slot].media {
                media.reset_references();
            }
        }
        true
    }

    /// Returns the number of embeddings in the encoder cache and of those referenced by sequences;
    /// `None` if no encoder is simulated.
    pub fn encoder_cache_counts(&self) -> Option<(u32, u32)> {
        Some(self.encoder.as_ref()?.embedding_counts())
    }
}
