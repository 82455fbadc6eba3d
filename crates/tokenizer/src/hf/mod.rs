//! Hugging Face tokenizers, run in this process.

mod byte_level;
mod files;
mod info;
mod model;
mod split_pattern;
mod stream;
mod vocabulary;

pub use model::Hf;
pub(crate) use stream::DecodeStream;
