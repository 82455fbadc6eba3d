//! Common interface of Hugging Face tokenizers and the simulated tokenizer: text with media to
//! token ids, and incremental detokenization.

use std::sync::{Arc, OnceLock};

use crate::SpecialTokenHandling;
use crate::chat::{ChatTemplateError, ChatTemplateInput, ChatTemplates};
use crate::error::TokenizerError;
use crate::hf::{DecodeStream, HfTokenizer};
use crate::media::{MediaModality, config_accepts_media};
use crate::simulated::{self, SimulatedTokenizer};
use crate::source::{self, TokenizerLocation};

/// Delimiter of the marker that represents a media item in text before tokenization. A private-use
/// character is not part of a user's words.
const MARKER_DELIMITER: char = '\u{10FFF0}';

/// Media item of a request before its position in the prompt is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaItem {
    /// Type of the media item.
    pub modality: MediaModality,
    /// Content hash of the media item, or the identifier set by the client.
    pub identifier: Arc<str>,
    /// Number of the item's placeholder tokens in the prompt.
    pub tokens: u32,
}

/// Media item at its position in a tokenized prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedMediaItem {
    /// Type of the media item.
    pub modality: MediaModality,
    /// Content hash of the media item, or the identifier set by the client.
    pub identifier: Arc<str>,
    /// Index of the item's first placeholder token in the prompt.
    pub start: u32,
    /// Number of the item's placeholder tokens.
    pub len: u32,
}

/// Tokenizer of a model, loaded from files or simulated.
#[derive(Debug)]
pub enum Tokenizer {
    /// Hugging Face tokenizer, loaded from files.
    Hf(Box<HfTokenizer>),
    /// Simulated tokenizer, which needs no files.
    Simulated(SimulatedTokenizer),
}

impl Tokenizer {
    /// Opens a tokenizer and returns it with a description for the log.
    ///
    /// Blocks the thread, also on the network if the location allows downloads.
    ///
    /// # Errors
    /// [`TokenizerError`] if tokenizer files are missing, broken, or cannot be downloaded.
    pub fn open(source: &TokenizerLocation) -> Result<(Self, String), TokenizerError> {
        let model = match source {
            TokenizerLocation::Simulated => {
                return Ok((Self::new_simulated(), "simulated: words and punctuation".to_owned()));
            }
            TokenizerLocation::Folder(path) => source::locate_model_in_folder(path)?,
            TokenizerLocation::Hub { repo, revision, download, hub } => {
                source::locate_model_on_hub(repo, revision.as_deref(), *download, hub)?
            }
        };
        let hf = HfTokenizer::open(&model)?;
        let template =
            if hf.chat_templates().default_template_source().is_some() { "a" } else { "no" };
        let found = format!("{}, with {template} chat template", model.found);
        Ok((Self::Hf(Box::new(hf)), found))
    }

    /// Creates a simulated tokenizer, which needs no files.
    pub fn new_simulated() -> Self {
        Self::Simulated(SimulatedTokenizer::default())
    }

    /// Encodes text to token ids; `special` selects whether to add tokens such as BOS around it.
    pub fn encode(&self, text: &str, special: SpecialTokenHandling) -> Vec<u32> {
        match self {
            Self::Hf(hf) => hf.encode(text, special),
            Self::Simulated(simulated) => simulated.encode(text),
        }
    }

    /// Returns the beginning of a text, cut to at most `max_tokens` tokens, without special tokens.
    ///
    /// Source: vLLM's `truncate_text_to_tokens`, which cuts before the first token too many.
    pub fn truncate_text<'t>(&self, text: &'t str, max_tokens: usize) -> &'t str {
        match self {
            _ if max_tokens == 0 => "",
            Self::Hf(hf) => hf.truncate_text(text, max_tokens),
            Self::Simulated(_) => simulated::truncate_text(text, max_tokens),
        }
    }

    /// Decodes token ids to text; unknown ids add nothing.
    pub fn decode(&self, ids: &[u32], special: SpecialTokenHandling) -> String {
        match self {
            Self::Hf(hf) => hf.decode(ids, special),
            Self::Simulated(simulated) => {
                let mut out = String::new();
                for id in ids {
                    simulated.append_token_text(*id, &mut out);
                }
                out
            }
        }
    }

    /// Returns the raw vocabulary entry of a token id, such as `Ġthere`.
    pub fn vocabulary_entry(&self, id: u32) -> Option<String> {
        match self {
            Self::Hf(hf) => hf.vocabulary_entry(id),
            Self::Simulated(simulated) => {
                let mut out = String::new();
                simulated.append_token_text(id, &mut out).then_some(out)
            }
        }
    }

    /// Returns the text of a single token id; empty if the id is unknown.
    pub fn token_text(&self, id: u32) -> String {
        match self {
            Self::Hf(hf) => hf.token_text(id),
            Self::Simulated(_) => self.vocabulary_entry(id).unwrap_or_default(),
        }
    }

    /// Returns the token id of a raw vocabulary entry, such as `Ġthere`.
    pub fn token_id_of_entry(&self, token: &str) -> Option<u32> {
        match self {
            Self::Hf(hf) => hf.token_id_of_entry(token),
            Self::Simulated(simulated) => simulated.token_id_of_text(token),
        }
    }

    /// Returns whether a token id is a special token, which decoding may omit.
    pub fn is_special_token(&self, id: u32) -> bool {
        match self {
            Self::Hf(hf) => hf.is_special_token(id),
            Self::Simulated(_) => false,
        }
    }

    /// Returns the size of the vocabulary: the largest token id plus one, or the size in
    /// `config.json` if larger.
    ///
    /// For the simulated tokenizer, `u32::MAX`.
    pub fn vocab_size(&self) -> u32 {
        match self {
            Self::Hf(hf) => hf.vocab_size(),
            Self::Simulated(_) => u32::MAX,
        }
    }

    /// Returns the size of the vocabulary without added tokens.
    ///
    /// For the simulated tokenizer, `u32::MAX`.
    pub fn base_vocab_size(&self) -> u32 {
        match self {
            Self::Hf(hf) => hf.base_vocab_size(),
            Self::Simulated(_) => u32::MAX,
        }
    }

    /// Returns the length of the longest token, in characters; for the simulated tokenizer, more
    /// than any text.
    pub fn max_token_chars(&self) -> usize {
        match self {
            Self::Hf(hf) => hf.max_token_chars(),
            Self::Simulated(_) => u32::MAX as usize,
        }
    }

    /// Returns the end-of-sequence token id; the simulated tokenizer has none.
    pub fn eos_token_id(&self) -> Option<u32> {
        match self {
            Self::Hf(hf) => hf.eos_token_id(),
            Self::Simulated(_) => None,
        }
    }

    /// Returns the token id for padding; the simulated tokenizer pads with token 0.
    pub fn pad_token_id(&self) -> Option<u32> {
        match self {
            Self::Hf(hf) => hf.pad_token_id(),
            Self::Simulated(_) => Some(0),
        }
    }

    /// Returns further token ids that end a generated text, in addition to [`Self::eos_token_id`].
    pub fn stop_token_ids(&self) -> &[u32] {
        match self {
            Self::Hf(hf) => hf.stop_token_ids(),
            Self::Simulated(_) => &[],
        }
    }

    /// Returns the source of the model's default chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates().default_template_source()
    }

    /// Renders a conversation to the model's prompt text; without a chat template, in the format of
    /// llm-d-inference-sim.
    ///
    /// # Errors
    /// [`ChatTemplateError`] if vLLM rejects a message, or the chat template fails.
    pub fn render_chat(&self, chat: &ChatTemplateInput<'_>) -> Result<String, ChatTemplateError> {
        self.templates().render_chat(chat)
    }

    fn templates(&self) -> &ChatTemplates {
        static NONE: OnceLock<ChatTemplates> = OnceLock::new();
        match self {
            Self::Hf(hf) => hf.chat_templates(),
            Self::Simulated(_) => NONE.get_or_init(ChatTemplates::default),
        }
    }

    /// Returns the response of `GET /tokenizer_info`.
    pub fn tokenizer_info(&self) -> serde_json::Value {
        match self {
            Self::Hf(hf) => hf.tokenizer_info(),
            Self::Simulated(_) => simulated::simulated_tokenizer_info(),
        }
    }

    /// Splits a text into its tokens; the texts of the tokens add up to the whole text, as far as
    /// the tokenizer can represent it.
    pub fn tokenize_with_text(&self, text: &str) -> TokenFragments {
        match self {
            Self::Simulated(simulated) => {
                let (ids, ends) = simulated.token_ids_and_end_offsets(text);
                TokenFragments { ids, text: text.to_owned(), ends }
            }
            Self::Hf(hf) => {
                let mut fragments =
                    self.fragments_of_ids(hf.encode(text, SpecialTokenHandling::Without));
                // A text may end in bytes that only look like an incomplete character.
                if let Some(last) = fragments.ends.last_mut() {
                    *last = u32::try_from(fragments.text.len()).unwrap_or(u32::MAX);
                }
                fragments
            }
        }
    }

    /// Returns the text that each token id adds; the last one adds all text that is left.
    fn fragments_of_ids(&self, ids: Vec<u32>) -> TokenFragments {
        let mut text = String::new();
        let mut ends = Vec::with_capacity(ids.len());
        let mut detokenizer = self.detokenizer(SpecialTokenHandling::With);
        for id in &ids {
            detokenizer.decode_token_into(*id, &mut text);
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        detokenizer.flush_text_into(&mut text);
        TokenFragments { ids, text, ends }
    }

    /// Returns an incremental decoder of token ids to text.
    pub fn detokenizer(&self, special: SpecialTokenHandling) -> Detokenizer<'_> {
        self.detokenizer_after(&[], special)
    }

    /// Returns an incremental decoder for the token ids generated after a prompt.
    ///
    /// In some vocabularies the prompt determines whether the first word starts with a space.
    pub fn detokenizer_after(
        &self,
        prompt: &[u32],
        special: SpecialTokenHandling,
    ) -> Detokenizer<'_> {
        match self {
            Self::Hf(hf) => {
                Detokenizer(DetokenizerKind::Hf(DecodeStream::new(hf, prompt, special)))
            }
            Self::Simulated(simulated) => Detokenizer(DetokenizerKind::Simulated(simulated)),
        }
    }
}

/// Tokens of a text, with the text that each token adds in incremental decoding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenFragments {
    /// Ids of the text's tokens, in order.
    pub ids: Vec<u32>,
    /// Decoded text of all tokens.
    pub text: String,
    /// End of each token's text, in bytes of `text`. Token *i* adds `text[ends[i - 1]..ends[i]]`,
    /// which is empty while a character is incomplete.
    pub ends: Vec<u32>,
}

impl TokenFragments {
    /// Returns the text that the token at `index` adds.
    #[inline]
    pub fn fragment_text(&self, index: usize) -> &str {
        let (start, end) = self.fragment_bounds(index);
        &self.text[start..end]
    }

    #[inline]
    fn fragment_bounds(&self, index: usize) -> (usize, usize) {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        (start as usize, self.ends[index] as usize)
    }

    /// Appends to `out` the text that the token at `index` adds.
    #[inline]
    pub fn append_fragment_text(&self, index: usize, out: &mut String) {
        /// Maximum length of a token's text that is copied with a fixed size and then truncated, in
        /// bytes. The fixed size avoids a call of memcpy.
        const SHORT_FRAGMENT_BYTES: usize = 16;
        let (start, end) = self.fragment_bounds(index);
        if end - start <= SHORT_FRAGMENT_BYTES
            && let Some(longer) = self.text.get(start..start + SHORT_FRAGMENT_BYTES)
        {
            let end = out.len() + (end - start);
            out.push_str(longer);
            out.truncate(end);
        } else {
            out.push_str(&self.text[start..end]);
        }
    }

    /// Returns the text that the tokens `from..to` add; `to` must not be below `from`.
    #[inline]
    pub fn text_of_tokens(&self, from: usize, to: usize) -> &str {
        let end = |tokens: usize| tokens.checked_sub(1).map_or(0, |last| self.ends[last]) as usize;
        &self.text[end(from)..end(to)]
    }
}

/// Incremental decoder of token ids to text.
///
/// Text that ends in U+FFFD is held back, because the next token may complete the character. As in
/// vLLM, such text is never emitted if no token follows.
///
/// **Source:** `vllm/v1/engine/detokenizer.py`.
#[derive(Debug)]
pub struct Detokenizer<'t>(DetokenizerKind<'t>);

#[derive(Debug)]
enum DetokenizerKind<'t> {
    Hf(DecodeStream<'t>),
    Simulated(&'t SimulatedTokenizer),
}

impl Detokenizer<'_> {
    /// Decodes one more token id and returns the text that is complete.
    pub fn decode_token(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.decode_token_into(id, &mut out);
        out
    }

    /// Decodes one more token id and appends the text that is complete to `out`.
    pub fn decode_token_into(&mut self, id: u32, out: &mut String) {
        match &mut self.0 {
            DetokenizerKind::Hf(stream) => stream.push_token_id(id, out),
            DetokenizerKind::Simulated(simulated) => {
                simulated.append_token_text(id, out);
            }
        }
    }

    /// Appends the text still held back for incomplete characters, including replacement
    /// characters.
    pub(crate) fn flush_text_into(self, out: &mut String) {
        match self.0 {
            DetokenizerKind::Hf(stream) => stream.flush_text_into(out),
            DetokenizerKind::Simulated(_) => {}
        }
    }
}

/// Returns the text marker that represents media item `item_index` before tokenization.
pub fn media_text_marker(item_index: usize) -> String {
    format!("{MARKER_DELIMITER}{item_index}{MARKER_DELIMITER}")
}

impl Tokenizer {
    /// Encodes text with media markers, which are replaced by the placeholder tokens of their
    /// items.
    pub fn encode_text_with_media(
        &self,
        text: &str,
        mut special: SpecialTokenHandling,
        items: &[MediaItem],
    ) -> (Vec<u32>, Vec<PlacedMediaItem>) {
        let mut tokens = Vec::new();
        let mut media = Vec::with_capacity(items.len());
        for (i, piece) in text.split(MARKER_DELIMITER).enumerate() {
            // Every second piece is the number of an item, between two delimiters.
            let item = (i % 2 == 1).then(|| items.get(piece.parse::<usize>().ok()?)).flatten();
            match item {
                Some(item) => {
                    media.push(PlacedMediaItem {
                        modality: item.modality,
                        identifier: item.identifier.clone(),
                        start: tokens.len() as u32,
                        len: item.tokens,
                    });
                    let id = self.placeholder_id(item.modality);
                    tokens.extend(std::iter::repeat_n(id, item.tokens as usize));
                }
                None if piece.is_empty() && special == SpecialTokenHandling::Without => {}
                None => {
                    tokens.extend(self.encode(piece, special));
                    special = SpecialTokenHandling::Without;
                }
            }
        }
        (tokens, media)
    }

    /// Returns the placeholder token id of a modality: from `config.json`, else by a usual token
    /// name.
    fn placeholder_id(&self, modality: MediaModality) -> u32 {
        let name = modality.as_str();
        let configured = match self {
            Self::Hf(hf) => ["token_id", "token_index"].iter().find_map(|key| {
                let id = hf.model_config().get(&format!("{name}_{key}"))?.as_u64()?;
                u32::try_from(id).ok()
            }),
            Self::Simulated(_) => None,
        };
        configured
            .or_else(|| self.token_id_of_entry(&format!("<|{name}_pad|>")))
            .or_else(|| self.token_id_of_entry(&format!("<{name}>")))
            .unwrap_or(0)
    }

    /// Returns whether the model's configuration describes images, audio or video.
    pub fn is_multimodal(&self) -> bool {
        match self {
            Self::Hf(hf) => config_accepts_media(hf.model_config()),
            Self::Simulated(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_items_replace_their_markers() {
        let tokenizer = Tokenizer::new_simulated();
        let item =
            |tokens| MediaItem { modality: MediaModality::Image, identifier: "x".into(), tokens };
        let text = format!("look {}and {}", media_text_marker(0), media_text_marker(1));
        let (tokens, media) = tokenizer.encode_text_with_media(
            &text,
            SpecialTokenHandling::With,
            &[item(3), item(2)],
        );
        let places: Vec<_> = media.iter().map(|m| (m.start, m.len)).collect();
        assert_eq!(places, [(1, 3), (5, 2)]);
        assert_eq!(tokens.len(), 7);
        assert_eq!(tokens[1..4], [tokens[1]; 3]);
    }
}
