//! The chat templates of a model.

use std::sync::Arc;

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::content_format::ContentFormat;
use super::conversation::{self, Content, Turn};
use super::error::TemplateError;
use super::flatten;
use super::python::{self, Fields, from_json, list};
use super::template::{Cache, Compiled, Slot};

/// What is rendered.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatInput<'a> {
    /// The messages, as the OpenAI API has them.
    pub messages: &'a [Json],
    /// The tools; absent is not the same as an empty list.
    pub tools: Option<&'a [Json]>,
    /// Documents for retrieval templates.
    pub documents: Option<&'a Json>,
    /// Ends the text where the assistant's answer starts.
    pub add_generation_prompt: bool,
    /// Ends the text right after the last message, for the model to go on with it.
    pub continue_final_message: bool,
    /// Another template than the model's: its source, or the name of one of the model's.
    pub chat_template: Option<&'a str>,
    /// Variables for the template.
    pub kwargs: Option<&'a Map<String, Json>>,
    /// The form of message content; `None` leaves it to the template.
    pub content_format: Option<ContentFormat>,
}

/// The templates of a model, and what they may name besides the conversation.
#[derive(Debug, Default)]
pub struct Templates {
    /// By name; a model with one template has only `default`.
    named: Vec<(String, Slot)>,
    /// `bos_token` and its kin.
    special_tokens: Fields,
    others: Cache,
}

/// The name of the template that is used when nothing else is asked for.
const DEFAULT: &str = "default";

impl Templates {
    /// The templates of a model by name, and its special tokens.
    pub fn new(named: Vec<(String, String)>, special_tokens: &Map<String, Json>) -> Self {
        Self {
            named: named
                .into_iter()
                .map(|(name, source)| (name, Slot::new(source)))
                .collect(),
            special_tokens: python::fields(special_tokens),
            others: Cache::default(),
        }
    }

    fn slot(&self, name: &str) -> Option<&Slot> {
        self.named
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, slot)| slot)
    }

    /// The source of the default template.
    pub fn default_source(&self) -> Option<&str> {
        self.slot(DEFAULT).map(Slot::source)
    }

    /// The template that a request gets; `None` when the model has none for it.
    ///
    /// Source: `transformers`, `PreTrainedTokenizerBase.get_chat_template`.
    fn pick(
        &self,
        given: Option<&str>,
        tools: bool,
    ) -> Result<Option<Arc<Compiled>>, TemplateError> {
        let slot = match given {
            Some(name) if self.named.len() > 1 && self.slot(name).is_some() => self.slot(name),
            Some(source) => return self.others.get(source).map(Some),
            None => tools
                .then(|| self.slot("tool_use"))
                .flatten()
                .or_else(|| self.slot(DEFAULT)),
        };
        slot.map(Slot::get).transpose()
    }

    /// The form of content that the template in question wants.
    pub fn content_format(&self, given: Option<&str>, tools: bool) -> ContentFormat {
        match self.pick(given, tools) {
            Ok(Some(compiled)) => compiled.format,
            _ => ContentFormat::default(),
        }
    }

    /// Renders a conversation; without any template as llm-d does.
    ///
    /// # Errors
    /// When a message is not what vLLM takes, or the template refuses or fails.
    pub fn render(&self, chat: &ChatInput<'_>) -> Result<String, TemplateError> {
        let Some(template) = self.pick(chat.chat_template, chat.tools.is_some())? else {
            return Ok(flatten::flatten(chat.messages, chat.continue_final_message));
        };
        self.render_with(&template, chat)
    }

    pub(super) fn render_with(
        &self,
        template: &Compiled,
        chat: &ChatInput<'_>,
    ) -> Result<String, TemplateError> {
        let format = chat.content_format.unwrap_or(template.format);
        let mut turns = conversation::turns(chat.messages, format)?;
        let quoted = |role| {
            template.mentions(&format!("\"{role}\"")) || template.mentions(&format!("'{role}'"))
        };
        if turns.iter().any(|turn| turn.role == "developer") && !quoted("developer") {
            turns = conversation::developers_to_system(turns);
        }
        let continued = match chat.continue_final_message {
            true => Some(mark_end(&mut turns, template)?),
            false => None,
        };
        let variables = self.variables(turns, chat)?;
        let text = template.render(variables)?;
        match continued {
            Some(last) => cut_at_mark(text, &last),
            None => Ok(text),
        }
    }

    fn variables(&self, turns: Vec<Turn>, chat: &ChatInput<'_>) -> Result<Fields, TemplateError> {
        let mut variables = self.special_tokens.clone();
        let own = |name: &str| matches!(name, "chat_template" | "tokenize");
        let kwargs = || chat.kwargs.into_iter().flatten();
        let unexpected: Vec<String> = kwargs()
            .filter(|(name, _)| own(name))
            .map(|(name, _)| python::repr(name))
            .collect();
        if !unexpected.is_empty() {
            return Err(TemplateError::Rejected(format!(
                "Found unexpected chat template kwargs from request: {{{}}}",
                unexpected.join(", ")
            )));
        }
        for (name, value) in kwargs() {
            variables.insert(Arc::from(name.as_str()), from_json(value));
        }
        let mut set = |name: &str, value: Value| variables.insert(Arc::from(name), value);
        set(
            "messages",
            list(turns.into_iter().map(Turn::into_value).collect()),
        );
        let tools = chat
            .tools
            .map(|tools| list(tools.iter().map(from_json).collect()));
        set("tools", tools.unwrap_or(Value::from(())));
        set(
            "add_generation_prompt",
            Value::from(chat.add_generation_prompt),
        );
        match chat.documents.filter(|documents| !documents.is_null()) {
            Some(documents) => {
                set("documents", from_json(documents));
            }
            None => {
                variables
                    .entry(Arc::from("documents"))
                    .or_insert(Value::from(()));
            }
        }
        Ok(variables)
    }
}

/// What transformers writes behind the last message, to find its end in the rendered text.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Marks the end of the last message and gives its text.
///
/// Source: `transformers/utils/chat_template_utils.py`, `render_jinja_template`.
fn mark_end(turns: &mut [Turn], template: &Compiled) -> Result<String, TemplateError> {
    let refuse = |message: &str| Err(TemplateError::Rejected(message.to_owned()));
    let Some(last) = turns.last_mut() else {
        return refuse("continue_final_message is set but the conversation is empty!");
    };
    if !template.mentions("content") {
        return refuse(
            "continue_final_message is set to \"content\" but this is not an accepted field in the chat_template",
        );
    }
    match &mut last.content {
        Content::Text(text) => {
            let said = text.clone();
            text.push_str(MARK);
            Ok(said)
        }
        Content::Parts(parts) => {
            let Some(text) = parts.iter_mut().rev().find_map(|part| part.get_mut("text")) else {
                return refuse(
                    "continue_final_message is set but we could not find any text to continue in the final message!",
                );
            };
            let said = text.as_str().unwrap_or_default().to_owned();
            *text = Value::from(format!("{said}{MARK}"));
            Ok(said)
        }
    }
}

/// Cuts the text at the mark. A template that trims its messages has eaten the mark's blank; then
/// what stands before it is trimmed too.
fn cut_at_mark(mut text: String, last: &str) -> Result<String, TemplateError> {
    let (last, mark) = (last.trim_matches(python::is_blank), MARK.trim_end());
    let Some(at) = text.rfind(mark).filter(|_| text.contains(last)) else {
        return Err(TemplateError::Rejected(format!(
            "continue_final_message is set but the final message does not appear in the chat \
             after applying the chat template! This can happen if the chat template deletes \
             portions of the final message. Please verify the chat template and final message in \
             your chat to ensure they are compatible.Final message to continue: {last}\n\
             Rendered chat:\n{text}"
        )));
    };
    let spaced = text[at..].starts_with(MARK);
    text.truncate(at);
    if !spaced {
        text.truncate(text.trim_end_matches(python::is_blank).len());
    }
    Ok(text)
}
