//! Structural tags of xgrammar: free text with parts in a fixed format.
//!
//! Source: `python/xgrammar/structural_tag.py` and the structural tag documentation of xgrammar
//! 0.2. The older form (`structures`, `triggers`) follows vLLM's `backend_guidance.py`. Token ids
//! are rejected because they need a tokenizer.

mod format;
mod read;
mod write;

pub(crate) use format::StructuralTag;
