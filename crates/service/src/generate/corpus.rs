use std::sync::{Arc, OnceLock};

use vllm_sim_python::json;
use vllm_sim_tokenizer::{Fragments, Tokenizer};

/// A sentence of the corpus, as the start of a text or as its continuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CorpusSentence {
    pub(super) index: u16,
    pub(super) first: bool,
}

/// A sentence in tokens.
#[derive(Debug)]
pub(super) struct TokenizedSentence {
    pub(super) fragments: Fragments,
    /// Whether JSON escapes any of its characters.
    pub(super) has_escapes: bool,
}

/// What random replies are made of: sentences, tokenised when first used.
#[derive(Debug)]
pub struct Corpus {
    tokenizer: Arc<Tokenizer>,
    sentences: Vec<&'static str>,
    first: Vec<OnceLock<TokenizedSentence>>,
    further: Vec<OnceLock<TokenizedSentence>>,
}

impl Corpus {
    /// The built-in sentences in this tokenizer's tokens.
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

    /// How many sentences there are.
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
