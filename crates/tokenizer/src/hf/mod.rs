//! Hugging Face tokenizers, run in this process.

mod fast;
mod files;
mod info;
mod model;
mod stream;
mod vocabulary;
mod words;

pub use model::Hf;
pub(crate) use stream::DecodeStream;
