//! Loads and runs the Hugging Face tokenizers of models.
//!
//! The regular expressions of Hugging Face tokenizers run on Oniguruma, as in the Python package
//! that vLLM uses. The Rust engine `fancy-regex` builds three times as fast and splits text equally
//! for the patterns of current models. But it differs in `\w`, `[[:alpha:]]`, `^` and `$`, and
//! silently stops splitting in a run of more than a million spaces.

mod byte_level;
mod files;
mod growth;
mod info;
mod model;
mod split_pattern;
mod stream;
mod vocabulary;

pub use model::HfTokenizer;
pub(crate) use stream::DecodeStream;
