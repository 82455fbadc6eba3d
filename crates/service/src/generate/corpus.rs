use std::sync::{Arc, OnceLock};

use vllm_sim_python::json;
use vllm_sim_tokenizer::{TokenFragments, Tokenizer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CorpusSentenceIndex {
    pub(super) index: u16,
    pub(super) first: bool,
}

#[derive(Debug)]
pub(super) struct TokenizedSentence {
    pub(super) fragments: TokenFragments,
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
        Self { first: empty(), further: empty(), tokenizer, sentences }
    }

    /// Returns the number of sentences in the corpus.
    #[expect(clippy::len_without_is_empty, reason = "the built-in corpus is never empty")]
    pub fn len(&self) -> usize {
        self.sentences.len()
    }

    pub(super) fn sentence_fragments(&self, at: CorpusSentenceIndex) -> &TokenFragments {
        &self.tokenized_sentence(at).fragments
    }

    pub(super) fn tokenized_sentence(&self, at: CorpusSentenceIndex) -> &TokenizedSentence {
        let index = usize::from(at.index);
        let sentence = self.sentences[index];
        if at.first {
            self.first[index].get_or_init(|| self.tokenize_sentence(sentence))
        } else {
            self.further[index].get_or_init(|| self.tokenize_sentence(&format!(" {sentence}")))
        }
    }

    fn tokenize_sentence(&self, sentence: &str) -> TokenizedSentence {
        let fragments = self.tokenizer.tokenize_with_text(sentence);
        TokenizedSentence { has_escapes: json::needs_json_escape(&fragments.text), fragments }
    }
}
