//! Validates a JSON value along its schema and collects errors and coercions.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vllm_sim_python::PythonValue;

use super::bounds::{self, RequestBounds};
use super::fastapi::pydantic_schema_name;
use super::fault::Fault;
use super::lax::{self, PydanticError};
use super::report::{ErrorLocationItem, SchemaError, SchemaErrorStyle, SchemaErrors};
use super::schema::{
    ANY_LENGTH, ClassKind, JsonMemberIndex, LengthLimits, Model, NumberBounds, Schema,
    ValidatorError, find_member,
};

/// Exactness of a value's match with a schema, as in pydantic; a union takes the branch with the
/// most exact match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum MatchExactness {
    /// The value matches only after coercion to the schema's type.
    Lax,
    /// The value matches the schema in pydantic's strict mode.
    Strict,
    /// The value has exactly the schema's type.
    #[default]
    Exact,
}

pub(super) enum CheckError {
    Schema(SchemaErrors),
    /// The error response of a validator function; ends the validation of the request.
    Raised(Fault),
}

/// Typical maximum length of an error location: JSON path of a value and names of union branches.
const TYPICAL_DEPTH: usize = 8;

/// Index of the matching union branch, and the coerced value if it changed.
pub(super) type UnionBranchMatch = (usize, Option<Value>);

/// Result of validating a JSON value: the coerced value, or `None` to leave the value unchanged.
pub(super) type CheckResult = Result<Option<Value>, CheckError>;

/// Validator of one JSON value, with the value's path, the request limits and the match's
/// exactness.
#[derive(Default)]
pub(super) struct SchemaChecker<'a> {
    path: Vec<ErrorLocationItem<'a>>,
    bounds: RequestBounds,
    exactness: MatchExactness,
    fields_set: Option<usize>,
    orders_typed_dicts: bool,
    style: SchemaErrorStyle,
    /// Whether only the result of the validation matters, so that error texts are not built.
    quiet: bool,
}

impl<'a> SchemaChecker<'a> {
    pub(super) fn at_location(item: ErrorLocationItem<'a>) -> Self {
        let mut path = Vec::with_capacity(TYPICAL_DEPTH);
        path.push(item);
        Self { path, ..Self::default() }
    }

    pub(super) fn with_bounds(self, bounds: RequestBounds) -> Self {
        Self { bounds, ..self }
    }

    /// Makes the validator order the keys of a `TypedDict` as declared, unknown keys last.
    pub(super) fn with_ordered_typed_dicts(self) -> Self {
        Self { orders_typed_dicts: true, ..self }
    }

    /// Sets the style of the error texts that the schema validator builds.
    pub(super) fn with_error_style(self, style: SchemaErrorStyle) -> Self {
        Self { style, ..self }
    }

    pub(super) fn check_value(&mut self, schema: &Schema, value: &'a Value) -> CheckResult {
        match schema {
            Schema::Any => {
                self.lower_exactness(MatchExactness::Lax);
                Ok(None)
            }
            Schema::Bool => self.check_scalar(lax::coerce_bool(value), value),
            Schema::Int(bounds) => self.check_int(*bounds, value),
            Schema::Float(bounds) => self.check_float(*bounds, value),
            Schema::Str(length) => self.check_scalar(lax::coerce_str(value, *length), value),
            Schema::Bytes => self.check_scalar(lax::coerce_bytes(value), value),
            Schema::Literal(choices) if self.quiet && value.is_string() => {
                if value.as_str().is_some_and(|text| choices.contains(&text)) {
                    Ok(None)
                } else {
                    Err(CheckError::Schema(SchemaErrors::one_error_without_details()))
                }
            }
            Schema::Literal(choices) => {
                self.check_scalar(lax::check_choice("literal_error", value, choices), value)
            }
            Schema::Enum(choices) => {
                self.check_scalar(lax::check_choice("enum", value, choices), value)
            }
            Schema::List(item, length) => self.check_list(item, *length, value),
            Schema::Iterable(_) => self.check_scalar(lax::coerce_iterable(value), value),
            Schema::Sequence(item) => match lax::check_python_sequence(value) {
                Ok(()) => self.check_list(item, ANY_LENGTH, value),
                Err(error) => self.fail_with(error, value),
            },
            Schema::Dict(key, item) => self.check_dict(key, item, value),
            Schema::Nullable(_) if value.is_null() => Ok(None),
            Schema::Nullable(inner) => self.check_value(inner, value),
            Schema::Union(branches) => {
                self.check_union_branch(branches, value).map(|(_, changed)| changed)
            }
            Schema::Tagged { by, choices } => self.check_tagged_union(by, choices, value),
            Schema::Selected(select) => {
                let (name, schema) = select(value);
                self.check_at(ErrorLocationItem::Key(name), schema, value)
            }
            Schema::Model(model) => self.check_model(model, value),
            Schema::Before(function, inner) => match function(value).map_err(CheckError::Raised)? {
                None => self.check_value(inner, value),
                Some(new) => Ok(Some(self.check_new_value(inner, &new)?.unwrap_or(new))),
            },
            Schema::After(function, inner) => {
                let changed = self.check_value(inner, value)?;
                let checked = changed.as_ref().unwrap_or(value);
                match function(checked) {
                    Ok(None) => Ok(changed),
                    Ok(new) => Ok(new),
                    Err(refusal) => self.validator_refusal(refusal, value),
                }
            }
            Schema::IntEnum(choices) => {
                self.check_scalar(lax::coerce_int_member(value, choices), value)
            }
            Schema::Instance(class) => self.fail_with(lax::not_an_instance_error(class), value),
            Schema::Tuple(items) => self.check_tuple(items, value),
            Schema::Late(inner) => self.check_value(&inner(), value),
            Schema::Named(_, inner) => self.check_value(inner, value),
        }
    }

    fn fail_with(&self, error: PydanticError, value: &Value) -> CheckResult {
        Err(CheckError::Schema(self.schema_error(error, value)))
    }

    fn schema_error(&self, error: PydanticError, value: &Value) -> SchemaErrors {
        if self.quiet {
            return SchemaErrors::one_error_without_details();
        }
        SchemaError::new_in_style(self.style, error, &self.path, value).into()
    }

    fn lower_exactness(&mut self, exactness: MatchExactness) {
        self.exactness = self.exactness.min(exactness);
    }

    /// Converts the outcome of coercing a scalar JSON value; a changed value counts as coerced.
    fn check_scalar(
        &mut self,
        outcome: Result<Option<Value>, PydanticError>,
        value: &Value,
    ) -> CheckResult {
        match outcome {
            Ok(None) => Ok(None),
            Ok(changed) => {
                self.lower_exactness(MatchExactness::Lax);
                Ok(changed)
            }
            Err(error) => self.fail_with(error, value),
        }
    }

    fn check_int(&mut self, bounds: NumberBounds<i128>, value: &Value) -> CheckResult {
        let outcome = lax::coerce_int(value).and_then(|changed| {
            lax::check_int_bounds(changed.as_ref().unwrap_or(value), bounds)?;
            Ok(changed)
        });
        self.check_scalar(outcome, value)
    }

    fn check_float(&mut self, bounds: NumberBounds<f64>, value: &Value) -> CheckResult {
        let number = PythonValue::from_json_value(value);
        if matches!(number, PythonValue::Int(_) | PythonValue::BigInt(_)) {
            self.lower_exactness(MatchExactness::Strict);
        }
        let outcome = lax::coerce_float(value).and_then(|changed| {
            lax::check_float_bounds(changed.as_ref().unwrap_or(value), bounds)?;
            Ok(changed)
        });
        match outcome {
            Ok(changed) if value.is_number() => Ok(changed),
            outcome => self.check_scalar(outcome, value),
        }
    }

    fn check_list(&mut self, item: &Schema, length: LengthLimits, value: &'a Value) -> CheckResult {
        let PythonValue::List(items) = PythonValue::from_json_value(value) else {
            return self
                .fail_with(PydanticError::new("list_type", "Input should be a valid list"), value);
        };
        let mut errors = SchemaErrors::default();
        let mut changes = Vec::new();
        for (i, element) in items.iter().enumerate() {
            if errors.is_error_list_full() {
                break;
            }
            let outcome = self.check_at(ErrorLocationItem::Index(i), item, element);
            if let Some(Some(new)) = collect_errors(outcome, &mut errors)? {
                changes.push((i, new));
            }
        }
        let length = match length.max {
            bounds::MAX_STOP_STRINGS_PLACEHOLDER => {
                LengthLimits { max: self.bounds.stop_strings, ..length }
            }
            _ => length,
        };
        if let Some(error) = lax::list_length_error(items.len(), length, errors.is_empty()) {
            return self.fail_with(error, value);
        }
        if !errors.is_empty() {
            return Err(CheckError::Schema(errors));
        }
        if changes.is_empty() {
            return Ok(None);
        }
        let mut new = items.to_vec();
        for (i, change) in changes {
            new[i] = change;
        }
        Ok(Some(Value::Array(new)))
    }

    fn check_tuple(&mut self, schemas: &[Schema], value: &'a Value) -> CheckResult {
        let PythonValue::List(items) = PythonValue::from_json_value(value) else {
            let error = PydanticError::new("tuple_type", "Input should be a valid tuple");
            return self.fail_with(error, value);
        };
        let mut errors = SchemaErrors::default();
        for (i, schema) in schemas.iter().enumerate() {
            self.path.push(ErrorLocationItem::Index(i));
            let outcome = match items.get(i) {
                Some(item) => self.check_value(schema, item),
                None => self.fail_with(PydanticError::new("missing", "Field required"), value),
            };
            self.path.pop();
            collect_errors(outcome, &mut errors)?;
        }
        if items.len() > schemas.len() {
            return self.fail_with(lax::tuple_too_long_error(schemas.len(), items.len()), value);
        }
        if errors.is_empty() { Ok(None) } else { Err(CheckError::Schema(errors)) }
    }

    fn check_dict(&mut self, key: &Schema, item: &Schema, value: &'a Value) -> CheckResult {
        let PythonValue::Dict(map) = PythonValue::from_json_value(value) else {
            let error = PydanticError::new("dict_type", "Input should be a valid dictionary");
            return self.fail_with(error, value);
        };
        let mut errors = SchemaErrors::default();
        let mut changes = Vec::new();
        for (name, element) in map {
            if errors.is_error_list_full() {
                break;
            }
            if !matches!(key, Schema::Str(_)) {
                let text = Value::from(name.as_str());
                self.path.extend([ErrorLocationItem::Key(name), ErrorLocationItem::Key("[key]")]);
                let outcome = self.check_new_value(key, &text);
                self.path.truncate(self.path.len() - 2);
                collect_errors(outcome, &mut errors)?;
            }
            let outcome = self.check_at(ErrorLocationItem::Key(name), item, element);
            if let Some(Some(new)) = collect_errors(outcome, &mut errors)? {
                changes.push((name, new));
            }
        }
        if errors.is_empty() {
            Ok(apply_changes(map, changes))
        } else {
            Err(CheckError::Schema(errors))
        }
    }

    /// Returns the index of the best-matching branch of a schema's union, and the coerced value.
    pub(super) fn check_union_branch(
        &mut self,
        branches: &[Schema],
        value: &'a Value,
    ) -> Result<UnionBranchMatch, CheckError> {
        if self.quiet {
            return self.best_branch(branches, value);
        }
        // Most values match a branch, so the first pass builds no error texts for the others.
        self.quiet = true;
        let outcome = self.best_branch(branches, value);
        self.quiet = false;
        match outcome {
            Err(CheckError::Schema(_)) => self.best_branch(branches, value),
            outcome => outcome,
        }
    }

    fn best_branch(
        &mut self,
        branches: &[Schema],
        value: &'a Value,
    ) -> Result<UnionBranchMatch, CheckError> {
        let (outer, outer_set) = (self.exactness, self.fields_set);
        let mut best: Option<(UnionBranchMatch, MatchExactness, Option<usize>)> = None;
        let mut errors = SchemaErrors::default();
        for (index, branch) in branches.iter().enumerate() {
            self.exactness = MatchExactness::Exact;
            self.fields_set = None;
            let label = match self.style {
                _ if self.quiet => None,
                SchemaErrorStyle::Listed
                | SchemaErrorStyle::Detailed
                | SchemaErrorStyle::Labelled => {
                    Some(ErrorLocationItem::Branch(pydantic_schema_name(branch)))
                }
                _ => branch_label(branch).map(ErrorLocationItem::Key),
            };
            let depth = self.path.len();
            self.path.extend(label);
            let outcome = self.check_value(branch, value);
            self.path.truncate(depth);
            let (exactness, set) = (self.exactness, self.fields_set);
            match outcome {
                Ok(new) => {
                    let better =
                        best.as_ref().is_none_or(|(_, old, old_set)| match (old_set, set) {
                            (Some(old_set), Some(set)) if *old_set != set => *old_set < set,
                            _ => *old < exactness,
                        });
                    if better {
                        best = Some(((index, new), exactness, set));
                    }
                    if exactness == MatchExactness::Exact && set.is_none() {
                        break;
                    }
                }
                Err(CheckError::Schema(more)) => errors.append_errors(more),
                Err(raised) => return Err(raised),
            }
        }
        (self.exactness, self.fields_set) = (outer, outer_set);
        let Some((new, exactness, set)) = best else {
            return Err(CheckError::Schema(errors));
        };
        self.lower_exactness(exactness);
        if let Some(set) = set {
            *self.fields_set.get_or_insert(0) += set;
        }
        Ok(new)
    }

    fn check_tagged_union(
        &mut self,
        by: &'static str,
        choices: &[(&'static str, &'static Schema)],
        value: &'a Value,
    ) -> CheckResult {
        let PythonValue::Dict(map) = PythonValue::from_json_value(value) else {
            return self.fail_with(lax::model_attributes_type_error(), value);
        };
        let Some(tag) = map.get(by) else {
            return self.fail_with(lax::tag_missing_error(by), value);
        };
        let found = tag.as_str().and_then(|tag| choices.iter().find(|(name, _)| *name == tag));
        let Some((name, schema)) = found else {
            let names = choices.iter().map(|(name, _)| *name);
            return self.fail_with(lax::tag_unknown_error(by, tag, names), value);
        };
        self.check_at(ErrorLocationItem::Key(name), schema, value)
    }

    /// Validates a nested JSON value, with `item` appended to the path of its errors.
    fn check_at(
        &mut self,
        item: ErrorLocationItem<'a>,
        schema: &Schema,
        value: &'a Value,
    ) -> CheckResult {
        self.path.push(item);
        let outcome = self.check_value(schema, value);
        self.path.pop();
        outcome
    }

    fn check_model(&mut self, model: &Model, value: &'a Value) -> CheckResult {
        let PythonValue::Dict(map) = PythonValue::from_json_value(value) else {
            return self.fail_with(lax::model_type_error(model), value);
        };
        if self.quiet && model.is_excluded_by_literal_field(map) {
            return Err(CheckError::Schema(SchemaErrors::one_error_without_details()));
        }
        if model.before.is_empty() {
            return self.check_fields(model, map, value);
        }
        let mut new = Cow::Borrowed(map);
        for before in model.before {
            if let Err(refusal) = before(&mut new) {
                return self.validator_refusal(refusal, value);
            }
        }
        let Cow::Owned(new) = new else {
            return self.check_fields(model, map, value);
        };
        let new = Value::Object(new);
        let mut inner = self.with_lifetime();
        let outcome = match &new {
            Value::Object(map) => inner.check_fields(model, map, &new),
            _ => Ok(None),
        };
        (self.exactness, self.fields_set) = (inner.exactness, inner.fields_set);
        Ok(Some(outcome?.unwrap_or(new)))
    }

    /// Validates a JSON value that does not live as long as the request body.
    fn check_new_value(&mut self, schema: &Schema, value: &Value) -> CheckResult {
        let mut inner = self.with_lifetime();
        let outcome = inner.check_value(schema, value);
        (self.exactness, self.fields_set) = (inner.exactness, inner.fields_set);
        outcome
    }

    /// Creates a schema validator with the same path and settings, for values of another lifetime.
    fn with_lifetime<'b>(&self) -> SchemaChecker<'b>
    where
        'a: 'b,
    {
        SchemaChecker {
            path: self.path.clone(),
            bounds: self.bounds,
            exactness: self.exactness,
            fields_set: self.fields_set,
            orders_typed_dicts: self.orders_typed_dicts,
            style: self.style,
            quiet: self.quiet,
        }
    }

    fn validator_refusal(&self, refusal: ValidatorError, value: &Value) -> CheckResult {
        match refusal {
            ValidatorError::Fault(fault) => Err(CheckError::Raised(fault)),
            ValidatorError::ValueError(text) => self.fail_with(lax::value_error(&text), value),
            ValidatorError::TooShort => self.fail_with(lax::value_too_short_error(), value),
            ValidatorError::Item { index, schema, value } => {
                let mut inner = SchemaChecker {
                    bounds: self.bounds,
                    quiet: self.quiet,
                    ..SchemaChecker::default()
                };
                inner.path.clone_from(&self.path);
                inner.path.push(ErrorLocationItem::Index(index));
                inner.check_value(schema, &value)
            }
        }
    }

    fn check_fields(
        &mut self,
        model: &Model,
        map: &'a Map<String, Value>,
        value: &'a Value,
    ) -> CheckResult {
        let mut errors = SchemaErrors::default();
        let mut changes = Vec::new();
        let mut set = 0;
        let members = JsonMemberIndex::from_map(map);
        for field in model.fields {
            let Some((name, element)) = members.find_member(field.name) else {
                if field.required {
                    self.path.push(ErrorLocationItem::Key(field.name));
                    errors.append_errors(
                        self.schema_error(PydanticError::new("missing", "Field required"), value),
                    );
                    self.path.pop();
                }
                continue;
            };
            let outcome = self.check_at(ErrorLocationItem::Key(name), &field.schema, element);
            if let Some(new) = collect_errors(outcome, &mut errors)? {
                set += 1;
                changes.extend(new.map(|new| (name, new)));
            }
        }
        if model.kind == ClassKind::Strict {
            for (name, element) in map {
                if errors.is_error_list_full() {
                    break;
                }
                if !model.fields.iter().any(|field| field.name == name) {
                    self.path.push(ErrorLocationItem::Key(name));
                    errors.append_errors(self.schema_error(lax::extra_forbidden_error(), element));
                    self.path.pop();
                }
            }
        }
        if !errors.is_empty() {
            return Err(CheckError::Schema(errors));
        }
        *self.fields_set.get_or_insert(0) += set;
        let new = if self.orders_typed_dicts && model.kind == ClassKind::TypedDict {
            Some(ordered_typed_dict(model, map, changes))
        } else {
            apply_changes(map, changes)
        };
        if let Some(after) = model.after {
            let map = new.as_ref().and_then(Value::as_object).unwrap_or(map);
            if let Err(refusal) = after.run_validator(map, &self.bounds) {
                return self.validator_refusal(refusal, value);
            }
        }
        Ok(new)
    }
}

/// Returns the outcome of a check, or adds its schema errors to `errors`.
fn collect_errors(
    outcome: CheckResult,
    errors: &mut SchemaErrors,
) -> Result<Option<Option<Value>>, CheckError> {
    match outcome {
        Ok(changed) => Ok(Some(changed)),
        Err(CheckError::Schema(more)) => {
            errors.append_errors(more);
            Ok(None)
        }
        Err(raised) => Err(raised),
    }
}

/// Returns the name that a union branch adds to the path of its errors, if vLLM shows it.
fn branch_label(branch: &Schema) -> Option<&'static str> {
    match branch {
        Schema::Model(model) if model.kind != ClassKind::Wrapped && model.after.is_none() => {
            Some(model.name)
        }
        _ => None,
    }
}

/// Builds the coerced JSON object of a `TypedDict`: declared keys in their order, then all others,
/// which vLLM's request classes allow.
fn ordered_typed_dict(
    model: &Model,
    map: &Map<String, Value>,
    changes: Vec<(&String, Value)>,
) -> Value {
    let mut changes = changes.into_iter().peekable();
    let mut new = Map::new();
    for field in model.fields {
        let Some((name, value)) = find_member(map, field.name) else {
            continue;
        };
        let value = match changes.next_if(|(changed, _)| *changed == name) {
            Some((_, change)) => change,
            None => value.clone(),
        };
        new.insert(name.clone(), value);
    }
    for (name, value) in map {
        if !model.fields.iter().any(|field| field.name == name) {
            new.insert(name.clone(), value.clone());
        }
    }
    Value::Object(new)
}

fn apply_changes(map: &Map<String, Value>, changes: Vec<(&String, Value)>) -> Option<Value> {
    if changes.is_empty() {
        return None;
    }
    let mut new = map.clone();
    for (name, value) in changes {
        new.insert(name.clone(), value);
    }
    Some(Value::Object(new))
}
