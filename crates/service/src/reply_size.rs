//! How large an answer may become: a few bytes of JSON ask for many choices of many tokens with
//! many log probabilities each, and an answer that is no stream is written whole.

use crate::job::Job;

/// Most bytes of one answer, about.
pub(super) const MAX_BYTES: u64 = 256 << 20;
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
    /// `None` where that is more than [`MAX_BYTES`].
    pub(super) fn of(job: &Job, vocabulary: impl Fn() -> u32) -> Option<Self> {
        let logprobs = |top: Option<i64>| match top.map(u64::try_from) {
            None => 0,
            Some(Ok(top)) => (top + 1).saturating_mul(LOGPROB_BYTES),
            Some(Err(_)) => u64::from(vocabulary()) * LOGPROB_BYTES,
        };
        let per_token = TOKEN_BYTES + logprobs(job.shown.logprobs);
        let echoes = if job.shown.prompt {
            u64::from(job.n)
        } else {
            0
        };
        let per_prompt_token =
            (per_token * echoes).saturating_add(logprobs(job.shown.prompt_logprobs));
        let prompts = job.facts.prompts.iter();
        let tokens: u64 = prompts.map(|prompt| prompt.tokens.len() as u64).sum();
        let size = Self {
            bytes: tokens.saturating_mul(per_prompt_token),
            per_token,
        };
        size.checked()
    }

    /// Adds a choice of so many tokens.
    /// `None` where that is more than [`MAX_BYTES`].
    pub(super) fn with(mut self, tokens: u32) -> Option<Self> {
        let bytes = u64::from(tokens).saturating_mul(self.per_token);
        self.bytes = self.bytes.saturating_add(bytes);
        self.checked()
    }

    /// How large it is by now, in bytes.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    fn checked(self) -> Option<Self> {
        (self.bytes <= MAX_BYTES).then_some(self)
    }
}
