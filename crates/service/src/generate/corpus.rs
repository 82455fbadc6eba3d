use std::sync::{Arc, OnceLock};

use vllm_sim_python::json;
use vllm_sim_tokenizer::{Fragments, Tokenizer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CorpusSentence {
    pub(super) index: u16,
    pub(super) first: bool,
}

#[derive(Debug)]
pub(super) struct TokenizedSentence {
    pub(super) fragments: Fragments,
    pub(super) has_escapes: bool,
}

/// The built-in sentences of random replies, tokenized on first use.
#[derive(Debug)]
pub struct Corpus {
    tokenizer: Arc<Tokenizer>,
    sentences: Vec<&'static str>,
    first: Vec<OnceLock<TokenizedSentence>>,
    further: Vec<OnceLock<TokenizedSentence>>,
}

impl Corpus {
    /// Creates the corpus of sentences for a tokenizer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let sentences: Vec<_> = include_str!("sentences.txt").lines().collect();
        let empty = || sentences.iter().map(|_| OnceLock::new()).collect();
        Self {
            first: empty(),
            further: empty(),
            tokenizer,
            sentences,
        }
    }

    /// Returns the number of sentences in the corpus.
    #[expect(
        clippy::len_without_is_empty,
        reason = "the built-in corpus is never empty"
    )]
    pub fn len(&self) -> usize {
        self.sentences.len()
    }

    pub(super) fn fragments(&self, at: CorpusSentence) -> &Fragments {
        &self.tokenized(at).fragments
    }

    pub(super) fn tokenized(&self, at: CorpusSentence) -> &TokenizedSentence {
        let index = usize::from(at.index);
        let sentence = self.sentences[index];
        if at.first {
            self.first[index].get_or_init(|| self.tokenize(sentence))
        } else {
            self.further[index].get_or_init(|| self.tokenize(&format!(" {sentence}")))
        }
    }

    fn tokenize(&self, sentence: &str) -> TokenizedSentence {
        let fragments = self.tokenizer.fragments(sentence);
        TokenizedSentence {
            has_escapes: json::has_escapes(&fragments.text),
            fragments,
        }
    }
}
