//! How large an answer may become: a few bytes of JSON ask for many choices of many tokens with
//! many log probabilities each, and an answer that is no stream is written whole.

use super::{Job, ServeError};

/// Most bytes of one answer, about.
const MAX_BYTES: u64 = 256 << 20;
/// What a token takes, about: its text and its id.
const TOKEN_BYTES: u64 = 8;
/// What a log probability takes in JSON, about.
const LOGPROB_BYTES: u64 = 96;

/// The size of an answer while its scripts are written.
pub(super) struct ReplySize {
    bytes: u64,
    per_token: u64,
}

impl ReplySize {
    /// The size of what an answer shows of its prompts. All log probabilities are as many as the
    /// model knows tokens.
    ///
    /// # Errors
    /// [`ServeError::AnswerTooLarge`] where that is too much.
    pub(super) fn of(job: &Job, vocabulary: u32) -> Result<Self, ServeError> {
        let logprobs = |top: Option<i64>| match top.map(u64::try_from) {
            None => 0,
            Some(Ok(top)) => (top + 1).saturating_mul(LOGPROB_BYTES),
            Some(Err(_)) => u64::from(vocabulary) * LOGPROB_BYTES,
        };
        let per_token = TOKEN_BYTES + logprobs(job.shown.logprobs);
        let echoes = if job.shown.prompt {
            u64::from(job.n)
        } else {
            0
        };
        let per_prompt_token =
            (per_token * echoes).saturating_add(logprobs(job.shown.prompt_logprobs));
        let prompts = job.prompts.iter();
        let tokens: u64 = prompts.map(|prompt| prompt.tokens.len() as u64).sum();
        let size = Self {
            bytes: tokens.saturating_mul(per_prompt_token),
            per_token,
        };
        size.checked()
    }

    /// Adds a choice of so many tokens.
    ///
    /// # Errors
    /// [`ServeError::AnswerTooLarge`] where that is too much.
    pub(super) fn with(mut self, tokens: u32) -> Result<Self, ServeError> {
        let bytes = u64::from(tokens).saturating_mul(self.per_token);
        self.bytes = self.bytes.saturating_add(bytes);
        self.checked()
    }

    fn checked(self) -> Result<Self, ServeError> {
        if self.bytes > MAX_BYTES {
            return Err(ServeError::AnswerTooLarge {
                most: MAX_BYTES >> 20,
            });
        }
        Ok(self)
    }
}
