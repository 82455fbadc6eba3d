//! Replies recorded in a dataset.
//!
//! Source: llm-d-inference-sim `pkg/dataset/custom_dataset.go`. The generator uses a recorded reply
//! to the same prompt, else (in files after v0.6) any recorded reply. The limit cuts it. If the
//! reply must not end there, random sentences fill it up.

use std::borrow::Cow;

use super::request::TokenizedPrompt;
use super::script::{OutputChannel, OutputEndReason};
use super::script_builder::ScriptBuilder;
use super::{RecordedReplies, ReplyGenerator, ReplyTextMode};
use vllm_sim_dataset::{
    Dataset, DatasetFormat, RecordedReply, RequestedReplyLength, hash_completion_prompt,
    hash_conversation, hash_prompt_tokens,
};
use vllm_sim_tokenizer::{SpecialTokenHandling, TokenFragments, Tokenizer};

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

    /// Returns the id of the first token of `text`, for recorded replies without token ids.
    fn first_token_id(&self, text: &str) -> u32 {
        let ids = self.tokenizer.encode(text, SpecialTokenHandling::Without);
        ids.first().copied().unwrap_or_default()
    }
}

impl ScriptBuilder<'_> {
    /// Adds a reply from the dataset to the script; `None` if there is none for the prompt.
    pub(super) fn add_recorded_reply(
        &mut self,
        recordings: &RecordedReplies,
    ) -> Option<OutputEndReason> {
        let limit = self.limit;
        let length = match self.job.stops.ignore_eos {
            true => RequestedReplyLength::Exactly(limit),
            false => RequestedReplyLength::AtMost(limit),
        };
        let hashes = self.generator.prompt_hashes(&recordings.dataset, self.prompt);
        let reply = recordings.dataset.find_reply(&hashes, length, &mut self.rng);
        let mut found = reply?;
        if recordings.timing && found.matched && !found.times.is_empty() {
            self.times = Some(std::mem::take(&mut found.times).into());
        }
        if self.job.request.reasoning.is_some() && found.reasoning == 0 && self.times.is_none() {
            self.add_leading_reasoning();
        }
        let cut = found.cut || found.texts.len() as u32 > limit - self.len.min(limit);
        let ends = self.push_recorded_reply(found);
        let least =
            if self.job.stops.ignore_eos { limit } else { self.job.stops.min_tokens.min(limit) };
        if self.len < least {
            self.add_sentences(least, OutputChannel::Content);
        }
        if self.len == 0 {
            self.push_silent_token(0);
        }
        // A reply as long as the limit counts as ended only if its end was recorded.
        if !cut && (self.len < limit || (ends && least < limit)) {
            Some(OutputEndReason::Stop)
        } else {
            Some(OutputEndReason::Length)
        }
    }

    /// Adds a recorded reply up to the output limit; returns whether it ends with the
    /// end-of-sequence token.
    fn push_recorded_reply(&mut self, found: RecordedReply) -> bool {
        let RecordedReply { mut tokens, mut texts, reasoning, cut, .. } = found;
        if tokens.is_empty() {
            tokens = texts.iter().map(|text| self.generator.first_token_id(text)).collect();
        }
        let eos = self.generator.tokenizer.eos_token_id();
        let silent = texts.last().is_some_and(String::is_empty);
        let ends = !cut && silent && eos.is_some() && tokens.last().copied() == eos;
        if ends {
            tokens.pop();
            texts.pop();
            if self.job.stops.ignore_eos || (tokens.len() as u32) < self.job.stops.min_tokens {
                self.push_recorded_texts(&tokens, &texts, reasoning);
                return false;
            }
        }
        self.push_recorded_texts(&tokens, &texts, reasoning);
        if let Some(eos) = eos.filter(|_| ends && self.len < self.limit) {
            self.push_silent_token(eos);
        }
        ends
    }

    fn push_recorded_texts(&mut self, tokens: &[u32], texts: &[String], reasoning: u32) {
        // Without a reasoning parser, reasoning is part of the text.
        let thought = match self.job.request.reasoning {
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
            self.push_marker_tokens(self.prompt.reasoning_start_ids());
        }
        for (part, channel) in parts {
            // The recording has no end marker.
            if channel == OutputChannel::Content
                && thought > 0
                && content == thought
                && self.generator.marks_recorded
            {
                self.push_marker_tokens(&self.generator.reasoning_end);
            }
            let room = self.limit.saturating_sub(self.len);
            let fragments = text_fragments(&tokens[part.clone()], &texts[part]);
            self.push_own_text(fragments, room, channel);
        }
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
