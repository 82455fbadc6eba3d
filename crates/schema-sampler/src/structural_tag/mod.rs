//! Structural tags: free text, with parts that must keep a format.
//!
//! Source: `python/xgrammar/structural_tag.py` and the structural tag documentation of
//! xgrammar 0.2; the older form (`structures`, `triggers`) is vLLM's
//! `backend_guidance.py`. Token ids need a tokenizer and are refused.

mod format;
mod read;
mod write;

pub(crate) use format::StructuralTag;
