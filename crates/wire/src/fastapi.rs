//! Errors of request bodies as FastAPI lists them.
//!
//! Source: FastAPI `exceptions.py` (`RequestValidationError.__str__`), `routing.py`
//! (`json_invalid`).

use std::fmt::Write as _;

use serde_json::Value;
use vllm_sim_python as python;

use super::body::unreadable_value_fault;
use super::bounds::RequestBounds;
use super::checker::{CheckError, SchemaChecker};
use super::fault::Fault;
use super::lax::PydanticError;
use super::report::{ErrorLocationItem, SchemaError, SchemaErrorStyle, SchemaErrors};
use super::schema::{Model, RequestField, Schema};

/// Maximum length of a request value that a FastAPI error repeats, in bytes; FastAPI itself has no
/// limit.
pub(crate) const MAX_INPUT_BYTES: usize = 4096;

/// The Python function of a route; FastAPI names it in errors about the request body.
#[derive(Debug, Clone, Copy)]
pub struct RouteFunction {
    /// Path of the Python file with the route's function.
    pub file: &'static str,
    /// Line of the route's function in its Python file.
    pub line: u32,
    /// Name of the route's Python function.
    pub function: &'static str,
    /// HTTP method of the request.
    pub method: &'static str,
    /// Path of the route.
    pub path: &'static str,
}

/// Errors of a request body that does not match its schema.
#[derive(Debug)]
pub struct BodySchemaErrors(pub(super) SchemaErrors);

impl BodySchemaErrors {
    /// Returns the single error of a request body that is not JSON.
    pub fn errors_of_invalid_json(message: &str, position: usize) -> Self {
        let location = [ErrorLocationItem::Key("body"), ErrorLocationItem::Index(position)];
        let error = PydanticError::new("json_invalid", "JSON decode error")
            .with_error_context(format!("'error': {}", python::python_repr_of_str(message)));
        Self(
            SchemaError::new_fastapi_error(error, &location, &Value::Object(Default::default()))
                .into(),
        )
    }

    /// Returns the error message for the client: the text of FastAPI's exception, with the list of
    /// errors.
    pub fn error_message(&self, endpoint: &RouteFunction) -> String {
        let Self(errors) = self;
        let count = errors.further_errors_text(0);
        let s = if count == "1" { "" } else { "s" };
        let listed: Vec<&str> = errors.kept.iter().map(|error| error.input.as_str()).collect();
        let mut text = format!("{count} validation error{s}:\n");
        for error in &listed {
            let _ = writeln!(text, "  {error}");
        }
        let RouteFunction { file, line, function, method, path } = endpoint;
        let _ = write!(
            text,
            "\n  File \"{file}\", line {line}, in {function}\n    {method} {path} [{}]",
            listed.join(", ")
        );
        text
    }
}

/// Error of a request body that cannot be read.
#[derive(Debug)]
pub enum BodyReadError {
    /// The request body does not match its schema.
    Errors(BodySchemaErrors),
    /// A validator function ended the validation of the request body.
    Fault(Fault),
}

/// Validates a request body against its request class and reads the class's fields; `None` is a
/// request without body.
///
/// # Errors
/// The schema errors of the body, or the error of a validator function.
pub fn read_body<T: RequestField>(
    value: Option<&Value>,
    bounds: &RequestBounds,
) -> Result<T, BodyReadError> {
    const BODY: ErrorLocationItem<'_> = ErrorLocationItem::Key("body");
    let Some(value) = value else {
        let missing = PydanticError::new("missing", "Field required");
        let error = SchemaError::new_fastapi_error(missing, &[BODY], &Value::Null);
        return Err(BodyReadError::Errors(BodySchemaErrors(error.into())));
    };
    read_at(BODY, value, bounds)
}

/// Validates the query parameters of a request, given as an object of texts, and reads them.
///
/// # Errors
/// The schema errors of the query.
pub fn read_query<T: RequestField>(value: &Value) -> Result<T, BodyReadError> {
    read_at(ErrorLocationItem::Key("query"), value, &RequestBounds::default())
}

fn read_at<T: RequestField>(
    place: ErrorLocationItem<'_>,
    value: &Value,
    bounds: &RequestBounds,
) -> Result<T, BodyReadError> {
    let mut checker = SchemaChecker::at_location(place)
        .with_bounds(*bounds)
        .with_error_style(SchemaErrorStyle::Listed);
    let changed = checker.check_value(&T::SCHEMA, value).map_err(|error| match error {
        CheckError::Schema(errors) => BodyReadError::Errors(BodySchemaErrors(errors)),
        CheckError::Raised(fault) => BodyReadError::Fault(fault),
    })?;
    let read = T::read(changed.as_ref().unwrap_or(value));
    // A value that its own schema accepts is always read.
    read.ok_or_else(|| BodyReadError::Fault(unreadable_value_fault()))
}

impl SchemaError {
    /// Creates a schema error as FastAPI formats it. The location omits `body`, and `input` holds
    /// the text of pydantic's error dict.
    pub(super) fn new_fastapi_error(
        error: PydanticError,
        path: &[ErrorLocationItem<'_>],
        input: &Value,
    ) -> Self {
        let items = path.iter().map(|item| match item {
            ErrorLocationItem::Index(index) => index.to_string(),
            ErrorLocationItem::Key(name) => python::python_repr_of_str(name),
            ErrorLocationItem::Branch(label) => python::python_repr_of_str(label),
        });
        let items: Vec<String> = items.collect();
        let comma = if items.len() == 1 { "," } else { "" };
        let mut text = format!(
            "{{'type': '{}', 'loc': ({}{comma}), 'msg': {}, 'input': {}",
            error.kind,
            items.join(", "),
            python::python_repr_of_str(&error.message),
            python::bounded_python_repr(input, MAX_INPUT_BYTES),
        );
        if !error.context.is_empty() {
            let _ = write!(text, ", 'ctx': {{{}}}", error.context);
        }
        text.push('}');
        let loc =
            path.iter().map(ErrorLocationItem::location_item_text).filter(|item| item != "body");
        let loc = loc.collect::<Vec<_>>().join(".");
        Self { error, loc, input: text }
    }
}

/// Returns pydantic's name of a schema, which the location of an error in a union contains.
///
/// Source: pydantic-core `src/validators`, `get_name`.
pub(super) fn pydantic_schema_name(schema: &Schema) -> String {
    let joined = |branches: &[Schema]| {
        branches.iter().map(pydantic_schema_name).collect::<Vec<_>>().join(",")
    };
    match schema {
        Schema::Any => "any".to_owned(),
        Schema::Bool => "bool".to_owned(),
        Schema::Int(_) | Schema::IntEnum(_) => "int".to_owned(),
        Schema::Float(bounds) if bounds.ge.is_some() || bounds.le.is_some() => {
            "constrained-float".to_owned()
        }
        Schema::Float(_) => "float".to_owned(),
        Schema::Str(_) => "str".to_owned(),
        Schema::Bytes => "bytes".to_owned(),
        Schema::Literal(choices) | Schema::Enum(choices) => {
            let choices: Vec<String> =
                choices.iter().map(|c| python::python_repr_of_str(c)).collect();
            format!("literal[{}]", choices.join(","))
        }
        Schema::List(item, _) | Schema::Iterable(item) | Schema::Sequence(item) => {
            format!("list[{}]", pydantic_schema_name(item))
        }
        Schema::Dict(key, item) => {
            format!("dict[{},{}]", pydantic_schema_name(key), pydantic_schema_name(item))
        }
        Schema::Nullable(inner) => format!("nullable[{}]", pydantic_schema_name(inner)),
        Schema::Union(branches) => format!("union[{}]", joined(branches)),
        Schema::Tagged { choices, .. } => {
            let labels: Vec<String> =
                choices.iter().map(|(_, of)| pydantic_schema_name(of)).collect();
            format!("tagged-union[{}]", labels.join(","))
        }
        Schema::Selected(_) => "tagged-union".to_owned(),
        Schema::Model(Model { name, .. }) => (*name).to_owned(),
        Schema::Before(_, inner) | Schema::After(_, inner) => pydantic_schema_name(inner),
        Schema::Instance(class) => format!("is-instance[{class}]"),
        Schema::Tuple(items) => format!("tuple[{}]", joined(items)),
        Schema::Late(inner) => pydantic_schema_name(&inner()),
        Schema::Named(name, _) => (*name).to_owned(),
    }
}
