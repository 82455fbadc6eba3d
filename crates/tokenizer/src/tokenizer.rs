//! One type for both kinds of tokenizer.

use std::sync::OnceLock;

use crate::SpecialTokens;
use crate::chat::{ChatInput, ChatTemplates, TemplateError};
use crate::detokenizer::{Detokenizer, Fragments};
use crate::error::TokenizerError;
use crate::hf::Hf;
use crate::simulated::{self, Simulated};
use crate::source::{self, TokenizerLocation};

/// A model's tokenizer.
#[derive(Debug)]
pub enum Tokenizer {
    /// From files.
    Hf(Box<Hf>),
    /// Without files.
    Simulated(Simulated),
}

impl Tokenizer {
    /// Opens a tokenizer and says for the log what was found. Blocks, also on the network if the
    /// source allows it.
    ///
    /// # Errors
    /// When the files are missing, broken, or cannot be downloaded.
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

    /// The tokenizer that needs no files.
    pub fn simulated() -> Self {
        Self::Simulated(Simulated::default())
    }

    /// Text to ids. Special tokens are those that the tokenizer puts around a text, such as BOS.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Vec<u32> {
        match self {
            Self::Hf(hf) => hf.encode(text, special),
            Self::Simulated(simulated) => simulated.encode(text),
        }
    }

    /// Ids to text; unknown ids add nothing.
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

    /// The raw piece of the vocabulary, like `Ġthere`.
    pub fn piece(&self, id: u32) -> Option<String> {
        match self {
            Self::Hf(hf) => hf.piece(id),
            Self::Simulated(simulated) => {
                let mut out = String::new();
                simulated.append(id, &mut out).then_some(out)
            }
        }
    }

    /// The text of this id alone; empty when it is unknown.
    pub fn token_text(&self, id: u32) -> String {
        match self {
            Self::Hf(hf) => hf.token_text(id),
            Self::Simulated(_) => self.piece(id).unwrap_or_default(),
        }
    }

    /// The id of a raw piece.
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        match self {
            Self::Hf(hf) => hf.id_of(piece),
            Self::Simulated(simulated) => simulated.id_of(piece),
        }
    }

    /// Whether an id is a special token, which decoding can skip.
    pub fn is_special(&self, id: u32) -> bool {
        match self {
            Self::Hf(hf) => hf.is_special(id),
            Self::Simulated(_) => false,
        }
    }

    /// How many ids there are: the largest token's and one, or more if the model's `config.json`
    /// says so. Every number is an id of the simulated tokenizer (the last one not quite).
    pub fn vocab_size(&self) -> u32 {
        match self {
            Self::Hf(hf) => hf.vocab_size(),
            Self::Simulated(_) => u32::MAX,
        }
    }

    /// Characters of the longest piece. The simulated tokenizer has no bound; the number it gives
    /// is larger than any text.
    pub fn max_token_chars(&self) -> usize {
        match self {
            Self::Hf(hf) => hf.max_token_chars(),
            Self::Simulated(_) => u32::MAX as usize,
        }
    }

    /// The token that ends a text. The simulated tokenizer has none: its texts just end.
    pub fn eos(&self) -> Option<u32> {
        match self {
            Self::Hf(hf) => hf.eos(),
            Self::Simulated(_) => None,
        }
    }

    /// Further ids that end a text, besides [`Self::eos`].
    pub fn stop_ids(&self) -> &[u32] {
        match self {
            Self::Hf(hf) => hf.stop_ids(),
            Self::Simulated(_) => &[],
        }
    }

    /// The model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates().default_source()
    }

    /// A conversation as the text that the model reads; without a template as llm-d flattens it.
    ///
    /// # Errors
    /// When a message is not what vLLM takes, or the template refuses or fails.
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

    /// What `GET /tokenizer_info` answers.
    pub fn tokenizer_info(&self) -> serde_json::Value {
        match self {
            Self::Hf(hf) => hf.info(),
            Self::Simulated(_) => simulated::info(),
        }
    }

    /// Cuts a text into its tokens. Together they show the whole text again, as far as the
    /// tokenizer can spell it.
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
                // A text may end in what looks like half a character and is not.
                if let Some(last) = fragments.ends.last_mut() {
                    *last = u32::try_from(fragments.text.len()).unwrap_or(u32::MAX);
                }
                fragments
            }
        }
    }

    /// The text that each of these tokens adds, the last of them all that is left.
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

    /// Decodes tokens as they come.
    pub fn detokenizer(&self, special: SpecialTokens) -> Detokenizer<'_> {
        self.detokenizer_after(&[], special)
    }

    /// Decodes the tokens that follow a prompt. What came before decides in some vocabularies
    /// whether the first word keeps its blank.
    pub fn detokenizer_after(&self, prompt: &[u32], special: SpecialTokens) -> Detokenizer<'_> {
        match self {
            Self::Hf(hf) => Detokenizer::hf(hf, prompt, special),
            Self::Simulated(simulated) => Detokenizer::simulated(simulated),
        }
    }
}
