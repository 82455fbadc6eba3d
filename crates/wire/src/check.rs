//! Schema validation of request bodies with pydantic's rules.
//!
//! Validation is in lax mode (numbers from strings, `"yes"` for true). All errors of a body are
//! collected in declaration order, a failed union lists each branch, and vLLM's error message is
//! made from the list.
//!
//! Source: pydantic-core `src/validators/*.rs`, `src/input/{input_python,shared}.rs`;
//! `vllm/entrypoints/serve/exception_handling/handlers/validation.py` for the text.

use std::borrow::Cow;

use serde_json::Value;

use super::bounds::RequestBounds;
use super::checker::{CheckError, SchemaChecker};
use super::fault::Fault;
use super::lax::PydanticError;
use super::report::{
    ErrorStyle, LocationItem, SchemaError, pydantic_error_text, schema_errors_fault,
};
use super::schema::{Model, RequestField, Schema};

/// Validates a request body against its class and reads its fields.
///
/// # Errors
/// vLLM's 400: the error of a validator function, else all schema errors in one text.
pub fn read_body<T: RequestField>(value: &Value) -> Result<T, Fault> {
    read_body_within(value, &RequestBounds::default())
}

/// Validates and reads a request body like [`read_body`], with configured limits.
///
/// # Errors
/// The errors of [`read_body`].
pub(crate) fn read_body_within<T: RequestField>(
    value: &Value,
    bounds: &RequestBounds,
) -> Result<T, Fault> {
    let checked = checked_body_within(&T::SCHEMA, value, bounds)?;
    T::read(&checked).ok_or_else(unreadable_value_fault)
}

/// Returns the error for a value that passed validation but that its Rust type cannot read, a bug
/// of ours that must fail only one request.
fn unreadable_value_fault() -> Fault {
    Fault::bad_request("The request could not be read.")
}

/// Validates a request body and returns it with its values coerced to the schema's types.
///
/// # Errors
/// The errors of [`read_body`].
pub(crate) fn validate_body<'a>(
    schema: &Schema,
    value: &'a Value,
) -> Result<Cow<'a, Value>, Fault> {
    checked_body_within(schema, value, &RequestBounds::default())
}

fn checked_body_within<'a>(
    schema: &Schema,
    value: &'a Value,
    bounds: &RequestBounds,
) -> Result<Cow<'a, Value>, Fault> {
    const BODY_LOCATION: LocationItem<'_> = LocationItem::Key("body");
    if value.is_null() {
        let missing = PydanticError::new("missing", "Field required");
        return Err(schema_errors_fault(
            &SchemaError::new(missing, &[BODY_LOCATION], value).into(),
        ));
    }
    let mut checker = SchemaChecker::at_location(BODY_LOCATION).with_bounds(*bounds);
    let changed = checker.check_value(schema, value).map_err(check_error_fault)?;
    Ok(changed.map_or(Cow::Borrowed(value), Cow::Owned))
}

/// Validates and reads the query parameters of a request, all of which are strings.
///
/// # Errors
/// The errors of [`read_body`], whose locations start with `query`.
pub fn read_query<T: RequestField>(value: &Value) -> Result<T, Fault> {
    let changed = SchemaChecker::at_location(LocationItem::Key("query"))
        .check_value(&T::SCHEMA, value)
        .map_err(check_error_fault)?;
    T::read(changed.as_ref().unwrap_or(value)).ok_or_else(unreadable_value_fault)
}

/// Returns the index of the best-matching branch of a union type, and the coerced value.
///
/// In the coerced value, a `TypedDict` gets its own keys first, in declaration order.
pub(crate) fn best_union_branch(branches: &[Schema], value: &Value) -> Option<(usize, Value)> {
    let mut checker = SchemaChecker::default().ordering_typed_dicts();
    let (index, changed) = checker.check_union_branch(branches, value).ok()?;
    Some((index, changed.unwrap_or_else(|| value.clone())))
}

/// Returns whether a value satisfies a schema.
pub(crate) fn fits_schema(schema: &Schema, value: &Value) -> bool {
    SchemaChecker::default().check_value(schema, value).is_ok()
}

/// Validates one item of a list whose items the schema has not validated (`Iterable`).
///
/// # Errors
/// A 400 with the text of the pydantic `ValidationError` that Python's `for` raises.
pub(crate) fn validate_iterable_item(
    schema: &Schema,
    index: usize,
    value: &Value,
) -> Result<Value, Fault> {
    let changed = SchemaChecker::at_location(LocationItem::Index(index))
        .ordering_typed_dicts()
        .with_errors(ErrorStyle::Verbose)
        .check_value(schema, value)
        .map_err(|error| uncaught_error_fault("ValidatorIterator", error))?;
    Ok(changed.unwrap_or_else(|| value.clone()))
}

/// Validates a JSON value that is not a request body against a class.
///
/// # Errors
/// A 400 with the text of the pydantic `ValidationError`.
pub(crate) fn validate_json_value(model: &'static Model, value: &Value) -> Result<(), Fault> {
    let mut checker = SchemaChecker::default().with_errors(ErrorStyle::Verbose);
    match checker.check_value(&Schema::Model(model), value) {
        Ok(_) => Ok(()),
        Err(error) => Err(uncaught_error_fault(model.name, error)),
    }
}

/// Validates and reads a JSON value that is not a request body.
///
/// # Errors
/// The errors of [`validate_json_value`].
pub fn read_json_value<T: RequestField>(name: &str, value: &Value) -> Result<T, Fault> {
    let changed = SchemaChecker::default()
        .with_errors(ErrorStyle::Verbose)
        .check_value(&T::SCHEMA, value)
        .map_err(|error| uncaught_error_fault(name, error))?;
    T::read(changed.as_ref().unwrap_or(value)).ok_or_else(unreadable_value_fault)
}

fn check_error_fault(error: CheckError) -> Fault {
    match error {
        CheckError::Schema(errors) => schema_errors_fault(&errors),
        CheckError::Raised(fault) => fault,
    }
}

/// Returns the error response of a route that does not catch pydantic's `ValidationError`.
fn uncaught_error_fault(title: &str, error: CheckError) -> Fault {
    match error {
        CheckError::Schema(errors) => Fault::bad_request(pydantic_error_text(title, &errors)),
        CheckError::Raised(fault) => fault,
    }
}
