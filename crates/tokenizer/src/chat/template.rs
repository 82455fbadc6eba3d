//! Compiles and caches chat templates.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, escape_formatter};
use parking_lot::RwLock;

use super::bounds;
use super::content_format::ContentFormat;
use super::error::TemplateError;
use super::filters::{self, LocalClock, RaisedException, local_time};
use super::jinja2;
use super::python::{PythonFields, python_dict, write_python_str};

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
    pub(super) format: ContentFormat,
}

impl CompiledTemplate {
    /// Compiles the chat template `source`; its function `strftime_now` uses `clock`.
    pub(super) fn new(source: &str, clock: LocalClock) -> Result<Self, TemplateError> {
        bounds::check_template_limits(source)?;
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(TEMPLATE_FUEL));
        env.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Invalid => escape_formatter(out, state, value),
            _ => {
                bounds::spend_on_nested(value)?;
                Ok(write_python_str(out, value)?)
            }
        });
        filters::add_python_filters(&mut env, clock);
        env.add_template_owned(TEMPLATE_NAME, jinja2::rewrite_for_minijinja(source))
            .map_err(|error| render_error(&error))?;
        Ok(Self { env, source: source.to_owned(), format: ContentFormat::detect(source) })
    }

    pub(super) fn source_contains(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    pub(super) fn render_template(&self, variables: PythonFields) -> Result<String, TemplateError> {
        let template =
            self.env.get_template(TEMPLATE_NAME).map_err(|error| render_error(&error))?;
        bounds::reset_render_work();
        // minijinja panics on a few absurd expressions, such as a list repeated 2^63 times. No
        // state outlives the rendering, so unwinding is safe.
        catch_unwind(AssertUnwindSafe(|| template.render(python_dict(variables))))
            .map_err(|_| TemplateError::Rejected("the chat template failed".to_owned()))?
            .map_err(|error| render_error(&error))
    }
}

/// Returns the error of a failed rendering for the client: the argument of `raise_exception` if
/// there is one.
fn render_error(error: &minijinja::Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(next) = source {
        if let Some(RaisedException(message)) = next.downcast_ref() {
            return TemplateError::Rejected(message.clone());
        }
        source = next.source();
    }
    TemplateError::Rejected(error.to_string())
}

#[derive(Debug)]
pub(super) struct LazyTemplate {
    source: String,
    compiled: OnceLock<Result<Arc<CompiledTemplate>, TemplateError>>,
}

impl LazyTemplate {
    pub(super) fn new(source: String) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn compiled(&self) -> Result<Arc<CompiledTemplate>, TemplateError> {
        self.compiled
            .get_or_init(|| CompiledTemplate::new(&self.source, local_time).map(Arc::new))
            .clone()
    }
}

/// Cache of compiled chat templates from requests and flags, by source text.
#[derive(Debug, Default)]
pub(super) struct TemplateCache(RwLock<HashMap<String, Arc<CompiledTemplate>>>);

impl TemplateCache {
    pub(super) fn get_or_compile(
        &self,
        source: &str,
    ) -> Result<Arc<CompiledTemplate>, TemplateError> {
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
