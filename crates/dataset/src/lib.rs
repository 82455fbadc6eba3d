#![doc = include_str!("../README.md")]
//!
//! A dataset is a SQLite file of llm-d-inference-sim: one table of prompt hashes and replies. Two
//! versions of the format exist, with different prompt hashes and reply contents.
//!
//! Source: llm-d-inference-sim, `pkg/dataset/custom_dataset.go`, `sqlite_helper.go`.

mod conversations;
#[cfg(feature = "download")]
mod download;
mod error;
mod hash;
#[cfg(feature = "sqlite")]
mod index;
#[cfg(feature = "sqlite")]
mod open;
mod reply;
mod row;
pub mod schema;
#[cfg(feature = "sqlite")]
mod store;
#[cfg(not(feature = "sqlite"))]
mod unavailable;

pub use conversations::{Conversation, ConversationMessage, for_each_conversation};
#[cfg(feature = "download")]
pub use download::download_dataset_if_missing;
pub use error::DatasetError;
pub use hash::{PromptHash, hash_completion_prompt, hash_conversation, hash_prompt_tokens};
pub use reply::{DatasetRowStorage, RecordedReply, ReplyStats, RequestedReplyLength};
pub use row::{DatasetFormat, token_ids_and_texts};
#[cfg(feature = "sqlite")]
pub use store::Dataset;
#[cfg(not(feature = "sqlite"))]
pub use unavailable::Dataset;

/// Default name of a dataset's table, as in llm-d-inference-sim.
pub const DEFAULT_TABLE_NAME: &str = "llmd";

/// First bytes of every SQLite file.
pub const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
