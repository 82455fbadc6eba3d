//! Common interface of both kinds of tokenizer.

use std::sync::OnceLock;

use crate::SpecialTokens;
use crate::chat::{ChatInput, ChatTemplates, TemplateError};
use crate::detokenizer::{Detokenizer, Fragments};
use crate::error::TokenizerError;
use crate::hf::Hf;
use crate::simulated::{self, Simulated};
use crate::source::{self, TokenizerLocation};

/// Tokenizer of a model.
#[derive(Debug)]
pub enum Tokenizer {
    /// Hugging Face tokenizer, loaded from files.
    Hf(Box<Hf>),
    /// Simulated tokenizer, which needs no files.
    Simulated(Simulated),
}

impl Tokenizer {
    /// Opens a tokenizer and returns a description for the log.
    ///
    /// Blocks, also on the network if the location allows downloads.
    ///
    /// # Errors
    /// [`TokenizerError`] if files are missing, broken, or cannot be downloaded.
    pub fn open(source: &TokenizerLocation) -> Result<(Self, String), TokenizerError> {
        let model = match source {
            TokenizerLocation::Simulated => {
                return Ok((Self::simulated(), "simulated: words and signs".to_owned()));
            }
            TokenizerLocation::Folder(path) => source::in_folder(path)?,
            TokenizerLocation::Hub {
                repo,
                revision,
                download,
                hub,
            } => source::on_hub(repo, revision.as_deref(), *download, hub)?,
        };
        let hf = Hf::open(&model)?;
        let template = if hf.templates().default_source().is_some() {
            "a"
        } else {
            "no"
        };
        let found = format!("{}, with {template} chat template", model.found);
        Ok((Self::Hf(Box::new(hf)), found))
    }

    /// Returns a simulated tokenizer.
    pub fn simulated() -> Self {
        Self::Simulated(Simulated::default())
    }

    /// Encodes text; `special` selects tokens around it, such as BOS.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Vec<u32> {
        match self {
            Self::Hf(hf) => hf.encode(text, special),
            Self::Simulated(simulated) => simulated.encode(text),
        }
    }

    /// Decodes ids; unknown ids add nothing.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> String {
        match self {
            Self::Hf(hf) => hf.decode(ids, special),
            Self::Simulated(simulated) => {
                let mut out = String::new();
                for id in ids {
                    simulated.append(*id, &mut out);
                }
                out
            }
        }
    }

    /// Returns the raw piece of an id, such as `Ġthere`.
    pub fn piece(&self, id: u32) -> Option<String> {
        match self {
            Self::Hf(hf) => hf.piece(id),
            Self::Simulated(simulated) => {
                let mut out = String::new();
                simulated.append(id, &mut out).then_some(out)
            }
        }
    }

    /// Returns the text of a single id; empty if it is unknown.
    pub fn token_text(&self, id: u32) -> String {
        match self {
            Self::Hf(hf) => hf.token_text(id),
            Self::Simulated(_) => self.piece(id).unwrap_or_default(),
        }
    }

    /// Returns the id of a raw piece.
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        match self {
            Self::Hf(hf) => hf.id_of(piece),
            Self::Simulated(simulated) => simulated.id_of(piece),
        }
    }

    /// Whether an id is a special token, which decoding may omit.
    pub fn is_special(&self, id: u32) -> bool {
        match self {
            Self::Hf(hf) => hf.is_special(id),
            Self::Simulated(_) => false,
        }
    }

    /// Returns the size of the vocabulary: the largest id plus one, or the size in `config.json` if
    /// larger.
    ///
    /// For the simulated tokenizer, `u32::MAX`.
    pub fn vocab_size(&self) -> u32 {
        match self {
            Self::Hf(hf) => hf.vocab_size(),
            Self::Simulated(_) => u32::MAX,
        }
    }

    /// Returns the length of the longest piece, in characters; for the simulated tokenizer, more
    /// than any text.
    pub fn max_token_chars(&self) -> usize {
        match self {
            Self::Hf(hf) => hf.max_token_chars(),
            Self::Simulated(_) => u32::MAX as usize,
        }
    }

    /// Returns the end-of-sequence token; the simulated tokenizer has none.
    pub fn eos(&self) -> Option<u32> {
        match self {
            Self::Hf(hf) => hf.eos(),
            Self::Simulated(_) => None,
        }
    }

    /// Returns further ids that end a text, in addition to [`Self::eos`].
    pub fn stop_ids(&self) -> &[u32] {
        match self {
            Self::Hf(hf) => hf.stop_ids(),
            Self::Simulated(_) => &[],
        }
    }

    /// Returns the model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates().default_source()
    }

    /// Renders a conversation to the model's prompt text; without a template, as
    /// llm-d-inference-sim does.
    ///
    /// # Errors
    /// [`TemplateError`] if vLLM rejects a message, or the template fails.
    pub fn render_chat(&self, chat: &ChatInput<'_>) -> Result<String, TemplateError> {
        self.templates().render(chat)
    }

    fn templates(&self) -> &ChatTemplates {
        static NONE: OnceLock<ChatTemplates> = OnceLock::new();
        match self {
            Self::Hf(hf) => hf.templates(),
            Self::Simulated(_) => NONE.get_or_init(ChatTemplates::default),
        }
    }

    /// Returns the response of `GET /tokenizer_info`.
    pub fn tokenizer_info(&self) -> serde_json::Value {
        match self {
            Self::Hf(hf) => hf.info(),
            Self::Simulated(_) => simulated::info(),
        }
    }

    /// Splits a text into its tokens; their texts add up to the whole text, as far as the tokenizer
    /// can represent it.
    pub fn fragments(&self, text: &str) -> Fragments {
        match self {
            Self::Simulated(simulated) => {
                let (ids, ends) = simulated.split(text);
                Fragments {
                    ids,
                    text: text.to_owned(),
                    ends,
                }
            }
            Self::Hf(hf) => {
                let mut fragments = self.show(hf.encode(text, SpecialTokens::Without));
                // A text may end in bytes that only look like an incomplete character.
                if let Some(last) = fragments.ends.last_mut() {
                    *last = u32::try_from(fragments.text.len()).unwrap_or(u32::MAX);
                }
                fragments
            }
        }
    }

    /// Returns the text that each token adds; the last one adds all that is left.
    fn show(&self, ids: Vec<u32>) -> Fragments {
        let mut text = String::new();
        let mut ends = Vec::with_capacity(ids.len());
        let mut detokenizer = self.detokenizer(SpecialTokens::With);
        for id in &ids {
            detokenizer.push_to(*id, &mut text);
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        detokenizer.finish(&mut text);
        Fragments { ids, text, ends }
    }

    /// Returns an incremental decoder.
    pub fn detokenizer(&self, special: SpecialTokens) -> Detokenizer<'_> {
        self.detokenizer_after(&[], special)
    }

    /// Returns an incremental decoder for tokens after a prompt.
    ///
    /// In some vocabularies the prompt determines whether the first word starts with a space.
    pub fn detokenizer_after(&self, prompt: &[u32], special: SpecialTokens) -> Detokenizer<'_> {
        match self {
            Self::Hf(hf) => Detokenizer::hf(hf, prompt, special),
            Self::Simulated(simulated) => Detokenizer::simulated(simulated),
        }
    }
}
