//! Generates the content of replies: turns a request into a finished [`ReplyScript`] of tokens and
//! texts.

pub mod hermes;
mod length;
mod recorded;
pub mod request;
mod script;
mod script_builder;
mod scripted;
mod stop;
pub mod tools;

use std::sync::Arc;

pub use script::{
    EMPTY_CONTEXT_HASH, OutputChannel, OutputEndReason, OutputToken, PlannedOutputEnd, ReplyScript,
    ReplyScriptCursor, SentenceCorpus, StopReason, TokenTexts, extend_context_hash,
};
pub use script_builder::ScriptBuilder;

use vllm_sim_dataset::Dataset;
use vllm_sim_tokenizer::Tokenizer;

/// The source of a reply's free text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplyTextMode {
    /// Free text consists of random sentences of the built-in corpus.
    #[default]
    Random,
    /// Free text is the client's last message, repeated.
    Echo,
    /// Free text is exclamation marks, as of a server that only encodes media (llm-d's
    /// `--mm-encoder-only`).
    Encoder,
}

/// Generates the content of replies: a script of tokens and texts per request.
#[derive(Debug)]
pub struct ReplyGenerator {
    mode: ReplyTextMode,
    seed: u64,
    tokenizer: Arc<Tokenizer>,
    corpus: Arc<SentenceCorpus>,
    reasoning_end: Vec<u32>,
    /// Whether replies may have reasoning, which a parser of the server separates.
    has_reasoning: bool,
    /// Whether the reasoning of recorded replies gets the end marker too, because the client parses
    /// tokens itself.
    marks_recorded: bool,
    whole_echo: bool,
    mute: bool,
    recordings: Option<RecordedReplies>,
}

/// Recorded replies in a dataset, and the options for their use.
#[derive(Debug, Clone)]
pub struct RecordedReplies {
    /// Dataset of recorded prompts and replies.
    pub dataset: Arc<Dataset>,
    /// Whether the tokens of a recorded reply are output at their recorded times.
    pub timing: bool,
}

impl ReplyGenerator {
    /// Creates a generator of replies for a tokenizer; `mode` selects the source of free text.
    pub fn new(mode: ReplyTextMode, seed: u64, tokenizer: Arc<Tokenizer>) -> Self {
        let corpus = Arc::new(SentenceCorpus::new(tokenizer.clone()));
        let reasoning_end = vec![tokenizer.token_id_of_entry("</think>").unwrap_or_default()];
        Self {
            mode,
            seed,
            tokenizer,
            corpus,
            reasoning_end,
            has_reasoning: false,
            marks_recorded: false,
            recordings: None,
            whole_echo: false,
            mute: false,
        }
    }

    /// Sets whether tokens get no text, as on a server without a tokenizer.
    #[must_use]
    pub fn with_empty_token_texts(mut self, empty_texts: bool) -> Self {
        self.mute = empty_texts;
        self
    }

    /// Sets whether a reply in echo mode ignores its token limit, as in llm-d-inference-sim.
    ///
    /// The echoed reply still ends with the finish reason `length`.
    #[must_use]
    pub fn with_unlimited_echo(mut self, unlimited: bool) -> Self {
        self.whole_echo = unlimited;
        self
    }

    /// Enables reasoning in generated replies.
    #[must_use]
    pub fn with_reasoning_in_replies(mut self) -> Self {
        self.has_reasoning = true;
        self
    }

    /// Sets the token ids that end reasoning, also in recorded replies; for clients that parse
    /// tokens themselves.
    #[must_use]
    pub fn with_reasoning_end_ids(mut self, ids: Vec<u32>) -> Self {
        self.reasoning_end = ids;
        self.marks_recorded = true;
        self
    }

    /// Returns the tokenizer of the model.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}
