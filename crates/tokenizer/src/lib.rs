#![doc = include_str!("../README.md")]

mod chat;
mod detokenizer;
#[cfg(feature = "download")]
mod download;
mod error;
#[cfg(feature = "hf")]
mod hf;
#[cfg(not(feature = "hf"))]
#[path = "without_hf.rs"]
mod hf;
mod interner;
mod media;
mod simulated;
mod source;
mod tokenizer;

#[cfg(all(test, feature = "hf"))]
mod tests;

pub use chat::{ChatInput, ContentFormat, TemplateError, Templates};
pub use detokenizer::{Detokenizer, Fragments};
pub use error::TokenizerError;
pub use hf::Hf;
pub use media::{Item, Media, MediaRules, Modality, Rule, data_url, mark};
pub use simulated::{Simulated, fnv1a};
pub use source::{Hub, Source};
pub use tokenizer::Tokenizer;
