//! Hugging Face tokenizers, run in this process.
//!
//! Their regular expressions run on Oniguruma, as in the Python package that vLLM uses. The engine
//! in Rust that `tokenizers` has for browsers (`fancy-regex`) builds in a third of the time and
//! cuts texts alike by the patterns of current models, for every character there is; but it differs
//! in `\w`, `[[:alpha:]]`, `^` and `$`, and in a run of more than a million blanks it stops cutting
//! without a word.

mod byte_level;
mod files;
mod growth;
mod info;
mod model;
mod split_pattern;
mod stream;
mod vocabulary;

pub use model::Hf;
pub(crate) use stream::DecodeStream;
