//! Limits the estimated size of a response before its job is submitted.
//!
//! The limit is needed because a small request body can ask for many choices with many tokens and
//! log probabilities.

use crate::job::{GenerationJob, ResponseSizeOptions};

pub(super) const MAX_REPLY_BYTES: u64 = 256 << 20;
/// Estimated size of a token's text and id in a response, in bytes.
const RESPONSE_BYTES_PER_TOKEN: u64 = 8;
/// Estimated size of a log probability in a JSON response, in bytes.
const RESPONSE_BYTES_PER_LOGPROB: u64 = 96;

pub(super) struct ReplySize {
    bytes: u64,
    per_token: u64,
}

impl ReplySize {
    /// Returns the response size that the echoed prompts and their log probabilities need, in
    /// bytes.
    ///
    /// `None` if it exceeds [`MAX_REPLY_BYTES`]. A count of -1 log probabilities means the whole
    /// vocabulary.
    pub(super) fn of_job(job: &GenerationJob, vocabulary: impl Fn() -> u32) -> Option<Self> {
        let prompts = job.facts.prompts.iter();
        let tokens = prompts.map(|prompt| prompt.tokens.len() as u64).sum();
        Self::of_options(job.shown, job.n, tokens, vocabulary)
    }

    fn of_options(
        shown: ResponseSizeOptions,
        choices: u32,
        prompt_tokens: u64,
        vocabulary: impl Fn() -> u32,
    ) -> Option<Self> {
        let logprobs = |top: Option<i64>| match top.map(u64::try_from) {
            None => 0,
            // A row has the chosen token and, at most once, each token of the vocabulary.
            Some(Ok(top)) => {
                let top = top.min(vocabulary().into());
                top.saturating_add(1).saturating_mul(RESPONSE_BYTES_PER_LOGPROB)
            }
            Some(Err(_)) => u64::from(vocabulary()).saturating_mul(RESPONSE_BYTES_PER_LOGPROB),
        };
        let per_token = RESPONSE_BYTES_PER_TOKEN.saturating_add(logprobs(shown.logprobs));
        let echoes = match shown.prompt {
            true => u64::from(choices),
            false => 0,
        };
        let per_prompt_token =
            per_token.saturating_mul(echoes).saturating_add(logprobs(shown.prompt_logprobs));
        let size = Self { bytes: prompt_tokens.saturating_mul(per_prompt_token), per_token };
        size.within_limit()
    }

    /// Adds the size of a choice of `tokens` output tokens; `None` if the size then exceeds
    /// [`MAX_REPLY_BYTES`].
    pub(super) fn add_choice(mut self, tokens: u32) -> Option<Self> {
        let bytes = u64::from(tokens).saturating_mul(self.per_token);
        self.bytes = self.bytes.saturating_add(bytes);
        self.within_limit()
    }

    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    fn within_limit(self) -> Option<Self> {
        (self.bytes <= MAX_REPLY_BYTES).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logprobs::LogprobPosition;
    use proptest::prelude::*;

    fn edges() -> impl Strategy<Value = i64> {
        let near = |edge: i64| (-2..=2_i64).prop_map(move |by| edge.saturating_add(by));
        prop_oneof![
            any::<i64>(),
            near(i64::MIN),
            near(i64::MAX),
            near(1 << 32),
            near(0),
            -1..100_000_i64,
        ]
    }

    proptest! {
        #[test]
        fn an_answer_is_refused_or_below_the_bound(
            logprobs in proptest::option::of(edges()),
            prompt_logprobs in proptest::option::of(edges()),
            prompt in any::<bool>(),
            choices in 1..=16_384_u32,
            tokens in any::<u32>(),
            prompt_tokens in 0..2_000_000_u64,
            vocabulary in prop_oneof![Just(u32::MAX), Just(4096), any::<u32>()],
        ) {
            let shown = ResponseSizeOptions { prompt, logprobs, prompt_logprobs };
            let size = ReplySize::of_options(shown, choices, prompt_tokens, || vocabulary);
            let size = size.and_then(|size| size.add_choice(tokens));
            let row = |top: Option<i64>| match top {
                None => 0,
                Some(top) if top < 0 => u128::from(vocabulary),
                Some(top) => (top as u128).min(vocabulary.into()) + 1,
            };
            let rows = u128::from(tokens) + u128::from(prompt_tokens) * u128::from(choices) * u128::from(prompt);
            let entries = rows * row(logprobs) + u128::from(prompt_tokens) * row(prompt_logprobs);
            if size.is_some() {
                prop_assert!(entries * u128::from(RESPONSE_BYTES_PER_LOGPROB) <= u128::from(MAX_REPLY_BYTES));
            }
            if rows * 8 + entries * u128::from(RESPONSE_BYTES_PER_LOGPROB) <= u128::from(MAX_REPLY_BYTES) {
                prop_assert!(size.is_some(), "refused without need");
            }
        }
    }

    #[test]
    fn a_row_has_no_more_entries_than_the_vocabulary() {
        let position = LogprobPosition { vocabulary: 50, context: 3, temperature: 1.0 };
        assert_eq!(position.row_of_likeliest(7, usize::MAX).len(), 51);
        assert_eq!(position.row_without_duplicates(7, usize::MAX).len(), 50);
    }
}
