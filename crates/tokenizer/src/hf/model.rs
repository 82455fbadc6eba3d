//! Loads the Hugging Face tokenizer of a model from its files.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value as Json};
use tokenizers::{AddedToken, Encoding, ModelWrapper, PreTokenizerWrapper, Tokenizer};

use super::byte_level::ByteLevelEncoder;
use super::files::{HfModelFiles, special_token_content};
use super::growth;
use super::info;
use super::vocabulary::TokenVocabulary;
use crate::SpecialTokenHandling;
use crate::chat::ChatTemplates;
use crate::error::{TextEncodingTooExpensive, TokenizerError};
use crate::source::{ModelFolder, TOKENIZER_JSON};

/// Hugging Face tokenizer of a `tokenizer.json` and the configuration files next to it.
#[derive(Debug)]
pub struct HfTokenizer {
    tokenizer: Tokenizer,
    files: HfModelFiles,
    templates: ChatTemplates,
    special: HashSet<u32>,
    eos: Option<u32>,
    stop_ids: Vec<u32>,
    /// Character in place of a space before a word, in SentencePiece vocabularies.
    blank: Option<char>,
    /// Whether decoding token ids to text removes spaces before punctuation.
    clean_up: bool,
    vocabulary: OnceLock<TokenVocabulary>,
    fast: Option<ByteLevelEncoder>,
    around: OnceLock<(Vec<u32>, Vec<u32>)>,
    name: String,
    local: bool,
}

impl HfTokenizer {
    pub(crate) fn open(model: &ModelFolder) -> Result<Self, TokenizerError> {
        let files = HfModelFiles::read_model_folder(&model.folder)?;
        let tokenizer = load_tokenizer_json(&model.folder.join(TOKENIZER_JSON), &files)?;
        let special = special_ids(&tokenizer);
        let configured =
            files.special_token_text("eos_token").and_then(|t| tokenizer.token_to_id(t));
        let eos_ids = files.eos_token_ids();
        let eos = configured.or_else(|| eos_ids.first().copied());
        let templates =
            ChatTemplates::new(files.templates.clone(), &files.template_special_tokens());
        let clean_up = files.tokenizer_config.get("clean_up_tokenization_spaces")
            == Some(&Json::Bool(true))
            && !matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
        Ok(Self {
            stop_ids: eos_ids.into_iter().filter(|id| Some(*id) != eos).collect(),
            blank: tokenizer.get_pre_tokenizer().and_then(metaspace_char),
            vocabulary: OnceLock::new(),
            fast: ByteLevelEncoder::byte_level_encoder_for(&tokenizer),
            around: OnceLock::new(),
            name: model.name.clone(),
            local: model.local,
            tokenizer,
            files,
            templates,
            special,
            eos,
            clean_up,
        })
    }

    pub(crate) fn vocabulary_entry(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    pub(crate) fn token_id_of_entry(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub(crate) fn max_token_chars(&self) -> usize {
        self.vocabulary().longest
    }

    pub(super) fn tokenizers_crate_tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(crate) fn chat_templates(&self) -> &ChatTemplates {
        &self.templates
    }

    pub(super) fn vocabulary(&self) -> &TokenVocabulary {
        self.vocabulary.get_or_init(|| TokenVocabulary::vocabulary_of_tokenizer(&self.tokenizer))
    }

    pub(crate) fn encode(&self, text: &str, special: SpecialTokenHandling) -> Vec<u32> {
        if text.len() <= MAX_ENCODED_PART_BYTES {
            return self.encode_text_part(text, special);
        }
        let mut ids = Vec::with_capacity(text.len() / 4);
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(first_part_end(rest));
            ids.extend(self.encode_text_part(part, SpecialTokenHandling::Without));
            rest = after;
        }
        if special == SpecialTokenHandling::With {
            self.add_special_tokens_around(ids)
        } else {
            ids
        }
    }

    fn encode_text_part(&self, text: &str, special: SpecialTokenHandling) -> Vec<u32> {
        if let Some(fast) = &self.fast
            && let Some(ids) = fast.encode(&self.tokenizer, text)
        {
            return if special == SpecialTokenHandling::With {
                self.add_special_tokens_around(ids)
            } else {
                ids
            };
        }
        self.encode_with_tokenizers_crate(text, special)
    }

    fn add_special_tokens_around(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let (before, after) = self.around.get_or_init(|| {
            let plain = self.encode_with_tokenizers_crate("a", SpecialTokenHandling::Without);
            let around = self.encode_with_tokenizers_crate("a", SpecialTokenHandling::With);
            let at = around.windows(plain.len().max(1)).position(|ids| *ids == plain);
            let before = at.unwrap_or(around.len());
            let after = around.iter().skip(before + plain.len()).copied().collect();
            (around[..before].to_vec(), after)
        });
        ids.splice(..0, before.iter().copied());
        ids.extend(after);
        ids
    }

    /// Encodes text to token ids with the general encoder of the tokenizers crate.
    pub(crate) fn encode_with_tokenizers_crate(
        &self,
        text: &str,
        special: SpecialTokenHandling,
    ) -> Vec<u32> {
        let encode = || self.tokenizer.encode_fast(text, special == SpecialTokenHandling::With);
        library_encoding(encode).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default()
    }

    /// Returns the beginning of a text, cut to at most `max_tokens` tokens; `max_tokens` is at
    /// least 1.
    pub(crate) fn truncate_text<'t>(&self, text: &'t str, max_tokens: usize) -> &'t str {
        let mut kept = text;
        // A text that was cut can have more tokens than before, if its last word splits otherwise.
        while let Some(end) = self.end_of_tokens(kept, max_tokens) {
            kept = &kept[..end];
        }
        kept
    }

    /// Returns the byte offset at which the first `most` tokens of a text end; `None` if the text
    /// has at most `most` tokens.
    ///
    /// Encodes the same parts as [`Self::encode`], and none after the end.
    fn end_of_tokens(&self, text: &str, most: usize) -> Option<usize> {
        let (mut rest, mut left) = (text, most);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(first_part_end(rest));
            let add_special_tokens = false;
            let encoding =
                library_encoding(|| self.tokenizer.encode_char_offsets(part, add_special_tokens));
            let offsets = encoding.as_ref().map_or(&[][..], |encoding| encoding.get_offsets());
            if let Some((next_start, _)) = offsets.get(left) {
                let last_end = left.checked_sub(1).map_or(0, |last| offsets[last].1);
                let chars = last_end.min(*next_start).min(part.chars().count() - 1);
                let bytes = part.char_indices().nth(chars).map_or(part.len(), |(at, _)| at);
                return Some(text.len() - rest.len() + bytes);
            }
            left -= offsets.len();
            rest = after;
        }
        None
    }

    pub(crate) fn decode(&self, ids: &[u32], special: SpecialTokenHandling) -> String {
        let text = match self.decode_bytes(ids, special) {
            Some(text) => text,
            None => self
                .tokenizer
                .decode(ids, special == SpecialTokenHandling::Without)
                .unwrap_or_default(),
        };
        if self.clean_up { clean_up_tokenization_spaces(&text) } else { text }
    }

    fn decode_bytes(&self, ids: &[u32], special: SpecialTokenHandling) -> Option<String> {
        let vocabulary = self.vocabulary();
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for id in ids {
            if !(special == SpecialTokenHandling::Without && self.special.contains(id)) {
                bytes.extend_from_slice(vocabulary.token_bytes(*id)?);
            }
        }
        Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Returns the text of one token id, with the leading spaces that decoding it alone would drop.
    ///
    /// **Source:** `vllm/tokenizers/detokenizer_utils.py`, `convert_ids_list_to_tokens`.
    pub(crate) fn token_text(&self, id: u32) -> String {
        let text = self.decode(&[id], SpecialTokenHandling::With);
        let Some(blank) = self.blank else { return text };
        let piece = self.tokenizer.id_to_token(id).unwrap_or_default();
        let wanted = piece.chars().take_while(|c| *c == blank).count();
        let there = text.chars().take_while(|c| *c == ' ').count();
        " ".repeat(wanted.saturating_sub(there)) + &text
    }

    pub(crate) fn is_special_token(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    pub(crate) fn vocab_size(&self) -> u32 {
        self.vocabulary().size.max(self.files.vocab_size().unwrap_or(0))
    }

    pub(crate) fn base_vocab_size(&self) -> u32 {
        u32::try_from(self.tokenizer.get_vocab_size(false)).unwrap_or(u32::MAX)
    }

    pub(crate) fn eos_token_id(&self) -> Option<u32> {
        self.eos
    }

    pub(crate) fn pad_token_id(&self) -> Option<u32> {
        self.tokenizer.token_to_id(self.files.special_token_text("pad_token")?)
    }

    pub(crate) fn stop_token_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Returns the JSON object in `generation_config.json`; empty without the file.
    pub fn generation_config(&self) -> &Map<String, Json> {
        &self.files.generation_config
    }

    /// Returns the JSON object in `config.json`; empty without the file.
    pub fn model_config(&self) -> &Map<String, Json> {
        &self.files.config
    }

    pub(crate) fn tokenizer_info(&self) -> Json {
        info::tokenizer_info_json(
            &self.files,
            &self.tokenizer,
            self.templates.default_template_source(),
            &self.name,
            self.local,
        )
    }
}

/// Encodes a text with the tokenizers crate; `None` on an error, such as an unknown word for which
/// the vocabulary has no token.
fn library_encoding(
    encode: impl FnOnce() -> Result<Encoding, tokenizers::Error>,
) -> Option<Encoding> {
    match catch_unwind(AssertUnwindSafe(encode)) {
        Ok(Ok(encoding)) => Some(encoding),
        // The split pattern backtracks beyond the limit of the regex library.
        Err(_) => resume_unwind(Box::new(TextEncodingTooExpensive)),
        Ok(Err(error)) => {
            tracing::warn!(%error, "text cannot be encoded");
            None
        }
    }
}

/// Maximum length of text encoded in one part, in bytes: the regular expressions of tokenizers
/// panic on runs of some ten million spaces.
const MAX_ENCODED_PART_BYTES: usize = 1 << 20;

/// Returns the end of the first part of a text that is encoded in parts. The part ends before the
/// space after a word if one is near, because no token spans this boundary.
fn first_part_end(text: &str) -> usize {
    const NEAR: usize = 1 << 16;
    if text.len() <= MAX_ENCODED_PART_BYTES {
        return text.len();
    }
    let bytes = text.as_bytes();
    let word_end = |at: &usize| bytes[*at] == b' ' && bytes[*at - 1].is_ascii_alphanumeric();
    if let Some(end) = (MAX_ENCODED_PART_BYTES - NEAR..MAX_ENCODED_PART_BYTES).rev().find(word_end)
    {
        return end;
    }
    (0..=MAX_ENCODED_PART_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// Parses `tokenizer.json` and adds the special tokens that transformers adds.
fn load_tokenizer_json(path: &Path, files: &HfModelFiles) -> Result<Tokenizer, TokenizerError> {
    let broken = |reason: String| TokenizerError::Broken { file: path.to_owned(), reason };
    let mut tokenizer = Tokenizer::from_file(path).map_err(|error| broken(error.to_string()))?;
    let normalizer = serde_json::to_value(tokenizer.get_normalizer()).unwrap_or_default();
    growth::check_text_growth_limit("normalizer", &normalizer).map_err(broken)?;
    let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or_default();
    growth::check_text_growth_limit("decoder", &decoder).map_err(broken)?;
    // Prompts are never truncated or padded, whatever the file says.
    tokenizer.with_truncation(None).map_err(|error| broken(error.to_string()))?;
    tokenizer.with_padding(None);
    let decoder = files.tokenizer_config.get("added_tokens_decoder").and_then(Json::as_object);
    let mut added: Vec<(u32, AddedToken)> = decoder
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, parse_added_token(token)?)))
        .filter(|(_, token)| tokenizer.token_to_id(&token.content).is_none())
        .collect();
    added.sort_by_key(|(id, _)| *id);
    let failed = |error: tokenizers::Error| broken(error.to_string());
    tokenizer.add_tokens(added.into_iter().map(|(_, token)| token)).map_err(failed)?;
    let special = files.all_special_token_texts();
    let known = special_contents(&tokenizer);
    let missing = special.into_iter().filter(|token| !token.is_empty() && !known.contains(token));
    let missing: Vec<AddedToken> = missing.map(|token| AddedToken::from(token, true)).collect();
    tokenizer.add_special_tokens(missing).map_err(failed)?;
    Ok(tokenizer)
}

fn parse_added_token(token: &Json) -> Option<AddedToken> {
    let flag = |name: &str| token.get(name).and_then(Json::as_bool);
    let mut added =
        AddedToken::from(special_token_content(token)?, flag("special").unwrap_or(false));
    added.single_word = flag("single_word").unwrap_or(false);
    added.lstrip = flag("lstrip").unwrap_or(false);
    added.rstrip = flag("rstrip").unwrap_or(false);
    added.normalized = flag("normalized").unwrap_or(!added.special);
    Some(added)
}

fn special_contents(tokenizer: &Tokenizer) -> HashSet<String> {
    let tokens = tokenizer.get_added_tokens_decoder().into_values();
    tokens.filter(|token| token.special).map(|token| token.content).collect()
}

fn special_ids(tokenizer: &Tokenizer) -> HashSet<u32> {
    let tokens = tokenizer.get_added_tokens_decoder();
    tokens.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect()
}

/// Returns the space character of a Metaspace pre-tokenizer, alone or within a sequence.
fn metaspace_char(pre_tokenizer: &PreTokenizerWrapper) -> Option<char> {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) => Some(metaspace.get_replacement()),
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().find_map(metaspace_char)
        }
        _ => None,
    }
}

/// Removes the spaces before punctuation and English contractions, as transformers does.
///
/// **Source:** `transformers/tokenization_utils_base.py`, `clean_up_tokenization`.
fn clean_up_tokenization_spaces(text: &str) -> String {
    const PAIRS: [(&str, &str); 10] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    PAIRS.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}
