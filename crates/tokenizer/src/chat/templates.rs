//! Selects, compiles and renders the chat templates of a model.

use std::borrow::Cow;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, escape_formatter};
use parking_lot::RwLock;
use serde_json::{Map, Value as Json};

use super::content_format::ChatTemplateContentFormat;
use super::error::ChatTemplateError;
use super::filters::{self, LocalTimeFn, TemplateException, local_time};
use super::message::{self, ChatMessage, TemplateMessage};
use super::python::{
    self, PythonDictFields, python_dict, python_list, value_from_json, write_python_str,
};
use super::{bounds, jinja2};
use vllm_sim_python::is_python_whitespace;

/// Conversation to render with a chat template, and options of the rendering.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatTemplateInput<'a> {
    /// Messages of the conversation.
    pub messages: &'a [ChatMessage],
    /// Tool definitions for the template; `None` and an empty list render differently.
    pub tools: Option<&'a [Json]>,
    /// Documents of a retrieval-augmented request, for templates that render documents.
    pub documents: Option<&'a Json>,
    /// Whether the prompt ends with the start of the assistant's message.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends right after the last message, for the model to continue it.
    pub continue_final_message: bool,
    /// Chat template instead of the model's default: its source, or the name of one of the model's
    /// templates.
    pub chat_template: Option<&'a str>,
    /// Further variables for the template (`chat_template_kwargs`).
    pub kwargs: Option<&'a Map<String, Json>>,
    /// Format of message content; `None` detects it from the template.
    pub content_format: Option<ChatTemplateContentFormat>,
}

/// Chat templates of a model, with its special tokens.
#[derive(Debug, Default)]
pub struct ChatTemplates {
    /// Templates by name; a model with one template has only the name `default`.
    named: Vec<(String, LazyTemplate)>,
    special_tokens: PythonDictFields,
    others: CompiledTemplateCache,
}

const DEFAULT_TEMPLATE_NAME: &str = "default";

impl ChatTemplates {
    /// Creates the chat templates of a model from their names and sources, with its special tokens.
    pub fn new(named_templates: Vec<(String, String)>, special_tokens: &Map<String, Json>) -> Self {
        Self {
            named: named_templates
                .into_iter()
                .map(|(name, source)| (name, LazyTemplate::new(source)))
                .collect(),
            special_tokens: python::python_dict_fields(special_tokens),
            others: CompiledTemplateCache::default(),
        }
    }

    /// Checks that the source of a chat template compiles.
    ///
    /// # Errors
    /// [`ChatTemplateError`] with the position of the error in the template.
    pub fn check_template_syntax(template_source: &str) -> Result<(), ChatTemplateError> {
        CompiledTemplate::new(template_source, local_time).map(|_| ())
    }

    fn template_named(&self, name: &str) -> Option<&LazyTemplate> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, lazy)| lazy)
    }

    pub(crate) fn default_template_source(&self) -> Option<&str> {
        self.template_named(DEFAULT_TEMPLATE_NAME).map(LazyTemplate::template_source)
    }

    /// Returns the chat template for a request; `None` if the model has none.
    ///
    /// **Source:** `transformers`, `PreTrainedTokenizerBase.get_chat_template`.
    fn choose_template(
        &self,
        given: Option<&str>,
        tools: bool,
    ) -> Result<Option<Arc<CompiledTemplate>>, ChatTemplateError> {
        let lazy = match given {
            Some(name) if self.named.len() > 1 && self.template_named(name).is_some() => {
                self.template_named(name)
            }
            Some(source) => return self.others.get_or_compile_template(source).map(Some),
            None => tools
                .then(|| self.template_named("tool_use"))
                .flatten()
                .or_else(|| self.template_named(DEFAULT_TEMPLATE_NAME)),
        };
        lazy.map(LazyTemplate::compiled_template).transpose()
    }

    /// Renders a conversation to prompt text; without a template, in the format of
    /// llm-d-inference-sim.
    ///
    /// # Errors
    /// [`ChatTemplateError`] if vLLM rejects a message, or the chat template fails.
    pub fn render_chat(&self, chat: &ChatTemplateInput<'_>) -> Result<String, ChatTemplateError> {
        let Some(template) = self.choose_template(chat.chat_template, chat.tools.is_some())? else {
            let format = chat.content_format.unwrap_or_default();
            let mut text = message::messages_to_plain_text(chat.messages, format);
            if chat.continue_final_message {
                // The message to be continued has no end marker.
                text.pop();
            }
            return Ok(text);
        };
        self.render_chat_with_template(&template, chat)
    }

    pub(super) fn render_chat_with_template(
        &self,
        template: &CompiledTemplate,
        chat: &ChatTemplateInput<'_>,
    ) -> Result<String, ChatTemplateError> {
        let format = chat.content_format.unwrap_or(template.format);
        let mut messages = chat
            .messages
            .iter()
            .map(ChatMessage::to_template_message)
            .collect::<Result<Vec<_>, _>>()?;
        let quoted = |role| {
            template.template_source_contains(&format!("\"{role}\""))
                || template.template_source_contains(&format!("'{role}'"))
        };
        if chat.continue_final_message && chat.add_generation_prompt {
            return Err(ChatTemplateError::Rejected(CONTINUE_AND_PROMPT_TEXT.to_owned()));
        }
        if messages.iter().any(|message| message.role == "developer") && !quoted("developer") {
            messages = message::developer_messages_to_system(messages, format);
        }
        let continued = match chat.continue_final_message {
            true => Some(append_continue_tag(&mut messages, template, format)?),
            false => None,
        };
        let messages = messages.iter().map(|message| message.to_template_value(format));
        let variables = self.template_variables(python_list(messages.collect()), chat)?;
        let text = template.render_template(variables)?;
        match continued {
            Some(last) => cut_at_continue_tag(text, &last),
            None => Ok(text),
        }
    }

    fn template_variables(
        &self,
        messages: Value,
        chat: &ChatTemplateInput<'_>,
    ) -> Result<PythonDictFields, ChatTemplateError> {
        let mut variables = self.special_tokens.clone();
        // Arguments of vLLM's `safe_apply_chat_template`; the template does not see them.
        let own = |name: &str| matches!(name, "chat_template" | "tokenize");
        for (name, value) in chat.kwargs.into_iter().flatten().filter(|(name, _)| !own(name)) {
            variables.insert(Cow::Owned(name.clone()), value_from_json(value));
        }
        let mut set =
            |name: &'static str, value: Value| variables.insert(Cow::Borrowed(name), value);
        set("messages", messages);
        let tools =
            chat.tools.map(|tools| python_list(tools.iter().map(value_from_json).collect()));
        set("tools", tools.unwrap_or(Value::from(())));
        set("add_generation_prompt", Value::from(chat.add_generation_prompt));
        match chat.documents.filter(|documents| !documents.is_null()) {
            Some(documents) => {
                set("documents", value_from_json(documents));
            }
            None => {
                variables.entry(Cow::Borrowed("documents")).or_insert(Value::from(()));
            }
        }
        Ok(variables)
    }
}

/// Error text of transformers for a request that both continues the last message and starts a new
/// one.
///
/// **Source:** `transformers/tokenization_utils_base.py`, `apply_chat_template`.
const CONTINUE_AND_PROMPT_TEXT: &str = "continue_final_message and add_generation_prompt are not \
    compatible. Use continue_final_message when you want the model to continue the final message, \
    and add_generation_prompt when you want to add a header that will prompt it to start a new \
    assistant message instead.";

/// Marker appended to the last message, as in transformers, to find its end in the rendered text.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends [`CONTINUE_TAG`] to the last message and returns the message's text.
///
/// **Source:** `transformers/utils/chat_template_utils.py`, `render_jinja_template`.
fn append_continue_tag(
    messages: &mut [Cow<'_, TemplateMessage>],
    template: &CompiledTemplate,
    format: ChatTemplateContentFormat,
) -> Result<String, ChatTemplateError> {
    let refuse = |message: &str| Err(ChatTemplateError::Rejected(message.to_owned()));
    let Some(last) = messages.last_mut() else {
        return refuse("continue_final_message is set but the conversation is empty!");
    };
    if !template.template_source_contains("content") {
        return refuse(
            "continue_final_message is set to \"content\" but this is not an accepted field in the chat_template",
        );
    }
    match last.to_mut().append_to_last_text_part(CONTINUE_TAG, format) {
        Some(text) => Ok(text),
        None => refuse(
            "continue_final_message is set but we could not find any text to continue in the final message!",
        ),
    }
}

/// Returns the rendered prompt text up to [`CONTINUE_TAG`].
///
/// A template that trims messages removes the trailing space of the tag; then the text before the
/// tag is trimmed, too.
fn cut_at_continue_tag(mut text: String, last: &str) -> Result<String, ChatTemplateError> {
    let (last, tag) = (last.trim_matches(is_python_whitespace), CONTINUE_TAG.trim_end());
    let Some(at) = text.rfind(tag).filter(|_| text.contains(last)) else {
        return Err(ChatTemplateError::Rejected(format!(
            "continue_final_message is set but the final message does not appear in the chat \
             after applying the chat template! This can happen if the chat template deletes \
             portions of the final message. Please verify the chat template and final message in \
             your chat to ensure they are compatible.Final message to continue: {last}\n\
             Rendered chat:\n{text}"
        )));
    };
    let spaced = text[at..].starts_with(CONTINUE_TAG);
    text.truncate(at);
    if !spaced {
        text.truncate(text.trim_end_matches(is_python_whitespace).len());
    }
    Ok(text)
}

/// Maximum number of minijinja instructions per rendering of a chat template.
///
/// Far more than ten thousand messages need; a hostile template ends within seconds.
const TEMPLATE_FUEL: u64 = 20_000_000;

/// Maximum number of cached chat templates from requests, as in vLLM.
const MAX_CACHED_TEMPLATES: usize = 32;

const TEMPLATE_NAME: &str = "chat_template";

#[derive(Debug)]
pub(super) struct CompiledTemplate {
    env: Environment<'static>,
    source: String,
    pub(super) format: ChatTemplateContentFormat,
}

impl CompiledTemplate {
    /// Compiles the chat template `template_source`; its function `strftime_now` uses `clock`.
    pub(super) fn new(
        template_source: &str,
        clock: LocalTimeFn,
    ) -> Result<Self, ChatTemplateError> {
        bounds::check_template_limits(template_source)?;
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(TEMPLATE_FUEL));
        env.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Invalid => escape_formatter(out, state, value),
            _ => {
                bounds::charge_nested_value_work(value)?;
                Ok(write_python_str(out, value)?)
            }
        });
        filters::add_python_filters(&mut env, clock);
        env.add_template_owned(TEMPLATE_NAME, jinja2::rewrite_for_minijinja(template_source))
            .map_err(|error| render_error(&error))?;
        Ok(Self {
            env,
            source: template_source.to_owned(),
            format: ChatTemplateContentFormat::detect_content_format(template_source),
        })
    }

    pub(super) fn template_source_contains(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    pub(super) fn render_template(
        &self,
        variables: PythonDictFields,
    ) -> Result<String, ChatTemplateError> {
        let template =
            self.env.get_template(TEMPLATE_NAME).map_err(|error| render_error(&error))?;
        bounds::reset_render_work_count();
        // minijinja panics on a few absurd expressions, such as a list repeated 2^63 times. No
        // state outlives the rendering, so unwinding is safe.
        catch_unwind(AssertUnwindSafe(|| template.render(python_dict(variables))))
            .map_err(|_| ChatTemplateError::Rejected("the chat template failed".to_owned()))?
            .map_err(|error| render_error(&error))
    }
}

/// Returns the error of a failed rendering for the client: the argument of `raise_exception` if
/// there is one.
fn render_error(error: &minijinja::Error) -> ChatTemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(next) = source {
        if let Some(TemplateException(message)) = next.downcast_ref() {
            return ChatTemplateError::Rejected(message.clone());
        }
        source = next.source();
    }
    ChatTemplateError::Rejected(error.to_string())
}

#[derive(Debug)]
pub(super) struct LazyTemplate {
    source: String,
    compiled: OnceLock<Result<Arc<CompiledTemplate>, ChatTemplateError>>,
}

impl LazyTemplate {
    pub(super) fn new(template_source: String) -> Self {
        Self { source: template_source, compiled: OnceLock::new() }
    }

    pub(super) fn template_source(&self) -> &str {
        &self.source
    }

    pub(super) fn compiled_template(&self) -> Result<Arc<CompiledTemplate>, ChatTemplateError> {
        self.compiled
            .get_or_init(|| CompiledTemplate::new(&self.source, local_time).map(Arc::new))
            .clone()
    }
}

/// Cache of compiled chat templates from requests and flags, by source text.
#[derive(Debug, Default)]
pub(super) struct CompiledTemplateCache(RwLock<HashMap<String, Arc<CompiledTemplate>>>);

impl CompiledTemplateCache {
    pub(super) fn get_or_compile_template(
        &self,
        source: &str,
    ) -> Result<Arc<CompiledTemplate>, ChatTemplateError> {
        if let Some(compiled) = self.0.read().get(source) {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(CompiledTemplate::new(source, local_time)?);
        let mut kept = self.0.write();
        if kept.len() >= MAX_CACHED_TEMPLATES {
            kept.clear();
        }
        kept.insert(source.to_owned(), compiled.clone());
        Ok(compiled)
    }
}
