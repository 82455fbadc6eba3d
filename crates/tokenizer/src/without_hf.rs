//! Replaces the Hugging Face tokenizers in a build without the feature `hf`: these types have no
//! values.

use std::marker::PhantomData;

use serde_json::{Map, Value as Json};

use crate::chat::ChatTemplates;
use crate::error::TokenizerError;
use crate::source::{ModelFolder, TOKENIZER_JSON};
use crate::special_tokens::SpecialTokenHandling;

/// Tokenizer of a `tokenizer.json`, which this build cannot open.
#[derive(Debug)]
pub enum HfTokenizer {}

impl HfTokenizer {
    pub(crate) fn open(model: &ModelFolder) -> Result<Self, TokenizerError> {
        Err(TokenizerError::Broken {
            file: model.folder.join(TOKENIZER_JSON),
            reason: "this build cannot read it: it lacks the feature `hf`".to_owned(),
        })
    }

    pub(crate) fn chat_templates(&self) -> &ChatTemplates {
        match *self {}
    }

    pub(crate) fn encode(&self, _text: &str, _special: SpecialTokenHandling) -> Vec<u32> {
        match *self {}
    }

    pub(crate) fn decode(&self, _ids: &[u32], _special: SpecialTokenHandling) -> String {
        match *self {}
    }

    pub(crate) fn vocabulary_entry(&self, _id: u32) -> Option<String> {
        match *self {}
    }

    pub(crate) fn token_id_of_entry(&self, _piece: &str) -> Option<u32> {
        match *self {}
    }

    pub(crate) fn token_text(&self, _id: u32) -> String {
        match *self {}
    }

    pub(crate) fn is_special_token(&self, _id: u32) -> bool {
        match *self {}
    }

    pub(crate) fn vocab_size(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn base_vocab_size(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn max_token_chars(&self) -> usize {
        match *self {}
    }

    pub(crate) fn eos_token_id(&self) -> Option<u32> {
        match *self {}
    }

    pub(crate) fn pad_token_id(&self) -> Option<u32> {
        match *self {}
    }

    pub(crate) fn truncate_text<'t>(&self, _text: &'t str, _max_tokens: usize) -> &'t str {
        match *self {}
    }

    pub(crate) fn stop_token_ids(&self) -> &[u32] {
        match *self {}
    }

    pub(crate) fn tokenizer_info(&self) -> Json {
        match *self {}
    }

    /// Returns the JSON object in `config.json`; empty without the file.
    pub fn model_config(&self) -> &Map<String, Json> {
        match *self {}
    }

    /// Returns the JSON object in `generation_config.json`; empty without the file.
    pub fn generation_config(&self) -> &Map<String, Json> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) struct DecodeStream<'t> {
    never: std::convert::Infallible,
    hf: PhantomData<&'t HfTokenizer>,
}

impl<'t> DecodeStream<'t> {
    pub(crate) fn new(
        hf: &'t HfTokenizer,
        _prompt: &[u32],
        _special: SpecialTokenHandling,
    ) -> Self {
        match *hf {}
    }

    pub(crate) fn push_token_id(&mut self, _id: u32, _out: &mut String) {
        match self.never {}
    }

    pub(crate) fn flush_text_into(self, _out: &mut String) {
        match self.never {}
    }
}
