//! Renders a conversation to the model's prompt text with a chat template.

mod args;
mod bounds;
mod content_format;
mod error;
mod filters;
mod jinja2;
mod json;
mod lexer;
mod message;
mod methods;
mod part;
mod python;
mod strftime;
mod templates;
mod work_filters;

#[cfg(test)]
pub(crate) mod golden;

pub use content_format::ChatTemplateContentFormat;
pub use error::ChatTemplateError;
pub use message::{ChatMessage, TemplateMessage, message_plain_text};
pub use part::MessageContentPart;
pub use templates::{ChatTemplateInput, ChatTemplates};
