//! Replies recorded in a dataset.
//!
//! Source: llm-d-inference-sim `pkg/dataset/custom_dataset.go`. The generator uses a recorded reply
//! to the same prompt, else (in files after v0.6) any recorded reply. The limit cuts it. If the
//! reply must not end there, random sentences fill it up.

use std::borrow::Cow;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;

use super::script::{OutputChannel, OutputEndReason, ReplyTokenSource};
use super::{ReplyGenerator, ReplyTextMode, ScriptBuilder, push_marker_tokens};
use crate::generate::request::{ReplyGeneratorInput, TokenizedPrompt};
use vllm_sim_dataset::{
    Dataset, DatasetFormat, RecordedReply, RequestedReplyLength, hash_completion_prompt,
    hash_conversation, hash_prompt_tokens,
};
use vllm_sim_tokenizer::{SpecialTokenHandling, TokenFragments, Tokenizer};

/// Recorded replies in a dataset, and the options for their use.
#[derive(Debug, Clone)]
pub struct RecordedReplies {
    /// Dataset of recorded prompts and replies.
    pub dataset: Arc<Dataset>,
    /// Whether the tokens of a recorded reply are output at their recorded times.
    pub timing: bool,
}

impl ReplyGenerator {
    /// Makes the generator take free text in random mode from recorded replies.
    #[must_use]
    pub fn with_recordings(mut self, recordings: RecordedReplies) -> Self {
        self.recordings = Some(recordings);
        self
    }

    /// Returns whether free text consists of random sentences, neither echoed nor recorded.
    pub fn generates_random_text(&self) -> bool {
        self.mode == ReplyTextMode::Random && self.recordings.is_none()
    }

    /// Returns the hash of a conversation of (role, text) pairs; `None` if the dataset does not
    /// identify prompts by their text.
    pub fn conversation_hash<'m>(
        &self,
        messages: impl IntoIterator<Item = (&'m str, Cow<'m, str>)>,
    ) -> Option<[u8; 32]> {
        let recordings = self.recordings.as_ref()?;
        if recordings.dataset.format_version() != DatasetFormat::Texts {
            return None;
        }
        let messages: Vec<_> = messages.into_iter().collect();
        let messages = messages.iter().map(|(role, text)| (*role, text.as_ref()));
        Some(hash_conversation(messages))
    }

    /// Returns the hashes under which the dataset may store a prompt.
    fn prompt_hashes(&self, dataset: &Dataset, prompt: &TokenizedPrompt) -> Vec<[u8; 32]> {
        let tokens = hash_prompt_tokens(&prompt.tokens);
        match dataset.format_version() {
            DatasetFormat::Tokens if dataset.has_reply_to(&tokens) => vec![tokens],
            DatasetFormat::Tokens => {
                std::iter::once(tokens).chain(self.llmd_prompt_hash(&prompt.tokens)).collect()
            }
            DatasetFormat::Texts => {
                let text = prompt.text_hash.unwrap_or_else(|| hash_completion_prompt(&prompt.echo));
                vec![tokens, text]
            }
        }
    }

    /// Returns the hash of a prompt without the tokens that llm-d's tokenizer drops; `None` if the
    /// prompt has no such tokens.
    ///
    /// That tokenizer drops non-ASCII characters, backticks and separate spaces.
    fn llmd_prompt_hash(&self, tokens: &[u32]) -> Option<[u8; 32]> {
        let Tokenizer::Simulated(_) = &*self.tokenizer else {
            return None;
        };
        let dropped = |id: u32| {
            let piece = self.tokenizer.vocabulary_entry(id).unwrap_or_default();
            !piece.is_ascii() || piece.trim_matches('`').trim().is_empty()
        };
        let kept: Vec<u32> = tokens.iter().copied().filter(|id| !dropped(*id)).collect();
        (kept.len() < tokens.len()).then(|| hash_prompt_tokens(&kept))
    }

    /// Adds a reply from the dataset to the script; `None` if there is none for the prompt.
    pub(super) fn add_recorded_reply(
        &self,
        recordings: &RecordedReplies,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
        rng: &mut ChaCha8Rng,
    ) -> Option<OutputEndReason> {
        let limit = request.limit;
        let length = match request.stops.ignore_eos {
            true => RequestedReplyLength::Exactly(limit),
            false => RequestedReplyLength::AtMost(limit),
        };
        let hashes = self.prompt_hashes(&recordings.dataset, request.prompt);
        let reply = recordings.dataset.find_reply(&hashes, length, rng);
        let mut found = reply?;
        if recordings.timing && found.matched && !found.times.is_empty() {
            draft.times = Some(std::mem::take(&mut found.times).into());
        }
        if request.reasoning.is_some() && found.reasoning == 0 && draft.times.is_none() {
            self.add_leading_reasoning(request, draft, rng);
        }
        let cut = found.cut || found.texts.len() as u32 > limit - draft.len.min(limit);
        let ends = self.push_recorded_reply(found, request, draft);
        let least =
            if request.stops.ignore_eos { limit } else { request.stops.min_tokens.min(limit) };
        if draft.len < least {
            self.add_sentences(least, draft, rng, OutputChannel::Content, request);
        }
        if draft.len == 0 {
            draft.push_run(ReplyTokenSource::Silent(0), 0, 1, OutputChannel::Marker);
        }
        // A reply as long as the limit counts as ended only if its end was recorded.
        if !cut && (draft.len < limit || (ends && least < limit)) {
            Some(OutputEndReason::Stop)
        } else {
            Some(OutputEndReason::Length)
        }
    }

    /// Adds a recorded reply up to the output limit; returns whether it ends with the
    /// end-of-sequence token.
    fn push_recorded_reply(
        &self,
        found: RecordedReply,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
    ) -> bool {
        let RecordedReply { mut tokens, mut texts, reasoning, cut, .. } = found;
        if tokens.is_empty() {
            tokens = texts.iter().map(|text| self.first_token_id(text)).collect();
        }
        let eos = self.tokenizer.eos_token_id();
        let silent = texts.last().is_some_and(String::is_empty);
        let ends = !cut && silent && eos.is_some() && tokens.last().copied() == eos;
        if ends {
            tokens.pop();
            texts.pop();
            if request.stops.ignore_eos || (tokens.len() as u32) < request.stops.min_tokens {
                self.push_recorded_texts(&tokens, &texts, reasoning, request, draft);
                return false;
            }
        }
        self.push_recorded_texts(&tokens, &texts, reasoning, request, draft);
        if let Some(eos) = eos.filter(|_| ends && draft.len < request.limit) {
            draft.push_run(ReplyTokenSource::Silent(eos), 0, 1, OutputChannel::Marker);
        }
        ends
    }

    fn push_recorded_texts(
        &self,
        tokens: &[u32],
        texts: &[String],
        reasoning: u32,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
    ) {
        // Without a reasoning parser, reasoning is part of the text.
        let thought = match request.reasoning {
            Some(_) => (reasoning as usize).min(tokens.len()),
            None => 0,
        };
        // The end marker of reasoning has no text.
        let silent = texts.get(thought).is_some_and(String::is_empty);
        let content = thought + usize::from(thought > 0 && silent);
        let parts = [
            (0..thought, OutputChannel::Reasoning),
            (thought..content, OutputChannel::Marker),
            (content..tokens.len(), OutputChannel::Content),
        ];
        if thought > 0 {
            push_marker_tokens(request.prompt.reasoning_start_ids(), request, draft);
        }
        for (part, channel) in parts {
            // The recording has no end marker.
            if channel == OutputChannel::Content
                && thought > 0
                && content == thought
                && self.marks_recorded
            {
                push_marker_tokens(&self.reasoning_end, request, draft);
            }
            let room = request.limit.saturating_sub(draft.len);
            let fragments = text_fragments(&tokens[part.clone()], &texts[part]);
            draft.push_own_text(fragments, room, channel);
        }
    }

    /// Returns the id of the first token of `text`, for recorded replies without token ids.
    fn first_token_id(&self, text: &str) -> u32 {
        let ids = self.tokenizer.encode(text, SpecialTokenHandling::Without);
        ids.first().copied().unwrap_or_default()
    }
}

fn text_fragments(ids: &[u32], texts: &[String]) -> TokenFragments {
    let mut text = String::new();
    let ends = texts.iter().map(|piece| {
        text.push_str(piece);
        u32::try_from(text.len()).unwrap_or(u32::MAX)
    });
    TokenFragments { ids: ids.to_vec(), ends: ends.collect(), text }
}
