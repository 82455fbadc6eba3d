//! Images, audio clips and videos of prompts: what of a chunk waits for an encoder.

use crate::sched::vllm::seqs::Slot;
use crate::sched::vllm::step::Step;
use crate::sched::vllm::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Of a chunk of `new` tokens, those before the first item that cannot be encoded in this pass;
    /// `alone`: nobody else is in the step yet.
    #[inline]
    pub(super) fn before_media(&mut self, slot: Slot, past: u32, new: u32, alone: bool) -> u32 {
        let seq = &self.seqs[slot];
        match (&mut self.encoder, &seq.media) {
            (Some(encoder), Some(media)) if past < media.end() => {
                // What no chunk can hold is split all the same: it would wait for ever.
                let most = match alone {
                    true => new,
                    false => self.config.max_num_batched_tokens,
                };
                encoder.chunk(media, (past, new), most)
            }
            _ => new,
        }
    }

    /// The items of a chunk that is computed are encoded in this step, unless they are there.
    pub(super) fn take_media(&mut self, slot: Slot, past: u32, new: u32, step: &mut Step) {
        let media = self.seqs[slot].media.as_mut();
        if let (Some(encoder), Some(media)) = (&mut self.encoder, media) {
            let encoded = &mut step.encoded;
            encoder.take(media, past, new, |input| encoded.push((slot, input)));
        }
    }

    /// A step is over: of what is computed, nobody needs the embeddings any more.
    pub(in crate::sched::vllm) fn release_computed_media(&mut self, step: &Step) {
        for work in &step.work {
            let seq = &mut self.seqs[work.slot];
            if let (Some(encoder), Some(media)) = (&mut self.encoder, &mut seq.media) {
                encoder.release(media, seq.computed);
            }
        }
    }

    /// A sequence loses its blocks, and what it refers to in the encoder cache.
    pub(super) fn release_media(&mut self, slot: Slot) {
        if let (Some(encoder), Some(media)) = (&mut self.encoder, &mut self.seqs[slot].media) {
            encoder.release_all(media);
        }
    }

    /// A sequence is taken out of the step that is being made: what was to be encoded for it alone
    /// is not.
    pub(super) fn undo_media(&mut self, slot: Slot, step: &mut Step) {
        self.release_media(slot);
        if let Some(encoder) = &mut self.encoder {
            step.encoded
                .retain(|(whose, input)| *whose != slot || !encoder.undo(input));
        }
    }

    /// Forgets what encoders made; who needs it again has it made again.
    pub(in crate::sched::vllm) fn reset_encoder_cache(&mut self) -> bool {
        let Some(encoder) = &mut self.encoder else {
            return false;
        };
        encoder.clear();
        for slot in self.seqs.living() {
            if let Some(media) = &mut self.seqs[slot].media {
                media.reset();
            }
        }
        true
    }

    /// Embeddings in the encoder cache, and of those the ones that a sequence refers to; `None`: no
    /// encoder is modelled.
    pub fn encoder_cache(&self) -> Option<(u32, u32)> {
        Some(self.encoder.as_ref()?.counts())
    }
}
