//! A conversation → the text that a model reads.

mod args;
mod bounds;
mod content_format;
mod conversation;
mod counting;
mod dialect;
mod error;
mod filters;
mod flatten;
mod json;
mod lexer;
mod methods;
mod python;
mod strftime;
mod template;
mod templates;

#[cfg(test)]
pub(crate) mod golden;

pub use content_format::ContentFormat;
pub use conversation::{ChatMessage, ChatMessages};
pub use error::TemplateError;
pub use flatten::plain_text;
pub use templates::{ChatInput, ChatTemplates};
