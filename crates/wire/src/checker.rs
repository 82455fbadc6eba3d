//! Validates a JSON value along its schema and collects errors and coercions.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vllm_sim_python::Py;

use super::bounds::{self, RequestBounds};
use super::fault::Fault;
use super::lax::{self, KnownError};
use super::report::{LocItem, SchemaError, SchemaErrors};
use super::schema::{
    ANY_LENGTH, ClassKind, Length, Members, Model, NumberBounds, Schema, ValidatorError, find,
};

/// Exactness of a value's match with a schema, as in pydantic; a union takes the branch with the
/// most exact match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Exactness {
    /// The value must be coerced to the type.
    Lax,
    /// The value is accepted in pydantic's strict mode.
    Strict,
    /// The value has exactly the type.
    #[default]
    Exact,
}

pub(super) enum CheckError {
    Schema(SchemaErrors),
    /// The error response of a validator function, which ends the validation.
    Raised(Fault),
}

/// Index of the matching union branch, and the coerced value if it changed.
pub(super) type UnionBranch = (usize, Option<Value>);

/// Result of a check: the coerced value; `None` leaves the value unchanged.
pub(super) type CheckResult = Result<Option<Value>, CheckError>;

/// Validator of one JSON value, with its path, limits and exactness.
#[derive(Default)]
pub(super) struct Checker<'a> {
    path: Vec<LocItem<'a>>,
    bounds: RequestBounds,
    exactness: Exactness,
    fields_set: Option<usize>,
    orders_typed_dicts: bool,
    verbose: bool,
    /// Whether only the outcome matters, so that error texts are not built.
    quiet: bool,
}

impl<'a> Checker<'a> {
    pub(super) fn at(item: LocItem<'a>) -> Self {
        Self {
            path: vec![item],
            ..Self::default()
        }
    }

    pub(super) fn within(self, bounds: RequestBounds) -> Self {
        Self { bounds, ..self }
    }

    /// Makes the checker order the keys of a `TypedDict` as declared, unknown keys last.
    pub(super) fn orders_typed_dicts(self) -> Self {
        Self {
            orders_typed_dicts: true,
            ..self
        }
    }

    /// Makes the checker build errors in the form that `printed` writes.
    pub(super) fn verbose(self) -> Self {
        Self {
            verbose: true,
            ..self
        }
    }

    pub(super) fn check(&mut self, schema: &Schema, value: &'a Value) -> CheckResult {
        match schema {
            Schema::Any => {
                self.floor(Exactness::Lax);
                Ok(None)
            }
            Schema::Bool => self.scalar(lax::bool(value), value),
            Schema::Int(bounds) => self.int(*bounds, value),
            Schema::Float(bounds) => self.float(*bounds, value),
            Schema::Str(length) => self.scalar(lax::str(value, *length), value),
            Schema::Bytes => self.scalar(lax::bytes(value), value),
            Schema::Literal(choices) if self.quiet && value.is_string() => {
                if value.as_str().is_some_and(|text| choices.contains(&text)) {
                    Ok(None)
                } else {
                    Err(CheckError::Schema(SchemaErrors::unread()))
                }
            }
            Schema::Literal(choices) => self.scalar(lax::literal(value, choices), value),
            Schema::Enum(choices) => self.scalar(lax::member(value, choices), value),
            Schema::List(item, length) => self.list(item, *length, value),
            Schema::Iterable(_) => self.scalar(lax::iterable(value), value),
            Schema::Sequence(item) => match lax::sequence(value) {
                Ok(()) => self.list(item, ANY_LENGTH, value),
                Err(error) => self.fail(error, value),
            },
            Schema::Dict(key, item) => self.dict(key, item, value),
            Schema::Nullable(inner) => {
                if value.is_null() {
                    Ok(None)
                } else {
                    self.check(inner, value)
                }
            }
            Schema::Union(branches) => self.union(branches, value),
            Schema::Tagged { by, choices } => self.tagged(by, choices, value),
            Schema::Model(model) => self.model(model, value),
            Schema::Before(function, inner) => match function(value).map_err(CheckError::Raised)? {
                None => self.check(inner, value),
                Some(new) => Ok(Some(self.check_new_value(inner, &new)?.unwrap_or(new))),
            },
            Schema::After(function, inner) => {
                let changed = self.check(inner, value)?;
                let checked = changed.as_ref().unwrap_or(value);
                match function(checked) {
                    Ok(None) => Ok(changed),
                    Ok(new) => Ok(new),
                    Err(refusal) => self.refused(refusal, value),
                }
            }
            Schema::IntEnum(choices) => self.scalar(lax::int_member(value, choices), value),
            Schema::Instance(class) => self.fail(lax::not_an_instance(class), value),
            Schema::Tuple(items) => self.tuple(items, value),
            Schema::Late(inner) => self.check(&inner(), value),
        }
    }

    fn fail(&self, error: KnownError, value: &Value) -> CheckResult {
        Err(CheckError::Schema(self.error(error, value)))
    }

    fn error(&self, error: KnownError, value: &Value) -> SchemaErrors {
        if self.quiet {
            SchemaErrors::unread()
        } else if self.verbose {
            SchemaError::verbose(error, &self.path, value).into()
        } else {
            SchemaError::new(error, &self.path, value).into()
        }
    }

    fn floor(&mut self, exactness: Exactness) {
        self.exactness = self.exactness.min(exactness);
    }

    /// Converts the outcome of a scalar coercion; a changed value counts as coerced.
    fn scalar(&mut self, outcome: Result<Option<Value>, KnownError>, value: &Value) -> CheckResult {
        match outcome {
            Ok(None) => Ok(None),
            Ok(changed) => {
                self.floor(Exactness::Lax);
                Ok(changed)
            }
            Err(error) => self.fail(error, value),
        }
    }

    fn int(&mut self, bounds: NumberBounds<i128>, value: &Value) -> CheckResult {
        let outcome = lax::int(value).and_then(|changed| {
            lax::int_bounds(changed.as_ref().unwrap_or(value), bounds)?;
            Ok(changed)
        });
        self.scalar(outcome, value)
    }

    fn float(&mut self, bounds: NumberBounds<f64>, value: &Value) -> CheckResult {
        if matches!(Py::of(value), Py::Int(_) | Py::BigInt(_)) {
            self.floor(Exactness::Strict);
        }
        let outcome = lax::float(value).and_then(|changed| {
            lax::float_bounds(changed.as_ref().unwrap_or(value), bounds)?;
            Ok(changed)
        });
        match outcome {
            Ok(changed) if value.is_number() => Ok(changed),
            outcome => self.scalar(outcome, value),
        }
    }

    fn list(&mut self, item: &Schema, length: Length, value: &'a Value) -> CheckResult {
        let Py::List(items) = Py::of(value) else {
            return self.fail(
                KnownError::new("list_type", "Input should be a valid list"),
                value,
            );
        };
        let mut errors = SchemaErrors::default();
        let mut changes = Vec::new();
        for (i, element) in items.iter().enumerate() {
            if errors.is_full() {
                break;
            }
            self.path.push(LocItem::Index(i));
            let outcome = self.check(item, element);
            self.path.pop();
            match outcome {
                Ok(None) => {}
                Ok(Some(new)) => changes.push((i, new)),
                Err(CheckError::Schema(more)) => errors.append(more),
                Err(raised) => return Err(raised),
            }
        }
        let length = match length.max {
            bounds::STOP_STRINGS => Length {
                max: self.bounds.stop_strings,
                ..length
            },
            _ => length,
        };
        if let Some(error) = lax::list_length(items.len(), length, errors.is_empty()) {
            return self.fail(error, value);
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

    fn tuple(&mut self, schemas: &[Schema], value: &'a Value) -> CheckResult {
        let Py::List(items) = Py::of(value) else {
            return self.fail(
                KnownError::new("tuple_type", "Input should be a valid tuple"),
                value,
            );
        };
        let mut errors = SchemaErrors::default();
        for (i, schema) in schemas.iter().enumerate() {
            self.path.push(LocItem::Index(i));
            let outcome = match items.get(i) {
                Some(item) => self.check(schema, item),
                None => self.fail(KnownError::new("missing", "Field required"), value),
            };
            self.path.pop();
            match outcome {
                Ok(_) => {}
                Err(CheckError::Schema(more)) => errors.append(more),
                Err(raised) => return Err(raised),
            }
        }
        if items.len() > schemas.len() {
            return self.fail(lax::tuple_too_long(schemas.len(), items.len()), value);
        }
        if errors.is_empty() {
            Ok(None)
        } else {
            Err(CheckError::Schema(errors))
        }
    }

    fn dict(&mut self, key: &Schema, item: &Schema, value: &'a Value) -> CheckResult {
        let Py::Dict(map) = Py::of(value) else {
            return self.fail(
                KnownError::new("dict_type", "Input should be a valid dictionary"),
                value,
            );
        };
        let mut errors = SchemaErrors::default();
        let mut changes = Vec::new();
        for (name, element) in map {
            if errors.is_full() {
                break;
            }
            if !matches!(key, Schema::Str(_)) {
                let text = Value::from(name.as_str());
                self.path
                    .extend([LocItem::Key(name), LocItem::Key("[key]")]);
                let outcome = self.check_new_value(key, &text);
                self.path.truncate(self.path.len() - 2);
                match outcome {
                    Ok(_) => {}
                    Err(CheckError::Schema(more)) => errors.append(more),
                    Err(raised) => return Err(raised),
                }
            }
            self.path.push(LocItem::Key(name));
            let outcome = self.check(item, element);
            self.path.pop();
            match outcome {
                Ok(None) => {}
                Ok(Some(new)) => changes.push((name, new)),
                Err(CheckError::Schema(more)) => errors.append(more),
                Err(raised) => return Err(raised),
            }
        }
        if errors.is_empty() {
            Ok(patched(map, changes))
        } else {
            Err(CheckError::Schema(errors))
        }
    }

    fn union(&mut self, branches: &[Schema], value: &'a Value) -> CheckResult {
        self.branch(branches, value).map(|(_, new)| new)
    }

    /// Returns the index of the best-matching branch of a union and the coerced value.
    pub(super) fn branch(
        &mut self,
        branches: &[Schema],
        value: &'a Value,
    ) -> Result<UnionBranch, CheckError> {
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
    ) -> Result<UnionBranch, CheckError> {
        let (outer, outer_set) = (self.exactness, self.fields_set);
        let mut best: Option<(UnionBranch, Exactness, Option<usize>)> = None;
        let mut errors = SchemaErrors::default();
        for (index, branch) in branches.iter().enumerate() {
            self.exactness = Exactness::Exact;
            self.fields_set = None;
            let label = label(branch);
            self.path.extend(label.map(LocItem::Key));
            let outcome = self.check(branch, value);
            self.path
                .truncate(self.path.len() - usize::from(label.is_some()));
            let (exactness, set) = (self.exactness, self.fields_set);
            match outcome {
                Ok(new) => {
                    let better =
                        best.as_ref()
                            .is_none_or(|(_, old, old_set)| match (old_set, set) {
                                (Some(old_set), Some(set)) if *old_set != set => *old_set < set,
                                _ => *old < exactness,
                            });
                    if better {
                        best = Some(((index, new), exactness, set));
                    }
                    if exactness == Exactness::Exact && set.is_none() {
                        break;
                    }
                }
                Err(CheckError::Schema(more)) => errors.append(more),
                Err(raised) => return Err(raised),
            }
        }
        (self.exactness, self.fields_set) = (outer, outer_set);
        let Some((new, exactness, set)) = best else {
            return Err(CheckError::Schema(errors));
        };
        self.floor(exactness);
        if let Some(set) = set {
            *self.fields_set.get_or_insert(0) += set;
        }
        Ok(new)
    }

    fn tagged(
        &mut self,
        by: &'static str,
        choices: &[(&'static str, &'static Schema)],
        value: &'a Value,
    ) -> CheckResult {
        let Py::Dict(map) = Py::of(value) else {
            return self.fail(lax::not_attributes(), value);
        };
        let Some(tag) = map.get(by) else {
            return self.fail(lax::tag_missing(by), value);
        };
        let found = tag
            .as_str()
            .and_then(|tag| choices.iter().find(|(name, _)| *name == tag));
        let Some((name, schema)) = found else {
            let names = choices.iter().map(|(name, _)| *name);
            return self.fail(lax::tag_unknown(by, tag, names), value);
        };
        self.path.push(LocItem::Key(name));
        let outcome = self.check(schema, value);
        self.path.pop();
        outcome
    }

    fn model(&mut self, model: &Model, value: &'a Value) -> CheckResult {
        let Py::Dict(map) = Py::of(value) else {
            return self.fail(lax::not_a_model(model), value);
        };
        if self.quiet && model.is_ruled_out(map) {
            return Err(CheckError::Schema(SchemaErrors::unread()));
        }
        if model.before.is_empty() {
            return self.fields(model, map, value);
        }
        let mut new = Cow::Borrowed(map);
        for before in model.before {
            if let Err(refusal) = before(&mut new) {
                return self.refused(refusal, value);
            }
        }
        let Cow::Owned(new) = new else {
            return self.fields(model, map, value);
        };
        let new = Value::Object(new);
        let mut inner = self.with_lifetime();
        let outcome = match &new {
            Value::Object(map) => inner.fields(model, map, &new),
            _ => Ok(None),
        };
        (self.exactness, self.fields_set) = (inner.exactness, inner.fields_set);
        Ok(Some(outcome?.unwrap_or(new)))
    }

    /// Validates a value that does not live as long as the request body.
    fn check_new_value(&mut self, schema: &Schema, value: &Value) -> CheckResult {
        let mut inner = self.with_lifetime();
        let outcome = inner.check(schema, value);
        (self.exactness, self.fields_set) = (inner.exactness, inner.fields_set);
        outcome
    }

    /// Creates a checker with the same path and settings for a value with another lifetime.
    fn with_lifetime<'b>(&self) -> Checker<'b>
    where
        'a: 'b,
    {
        Checker {
            path: self.path.clone(),
            bounds: self.bounds,
            exactness: self.exactness,
            fields_set: self.fields_set,
            orders_typed_dicts: self.orders_typed_dicts,
            verbose: self.verbose,
            quiet: self.quiet,
        }
    }

    fn refused(&self, refusal: ValidatorError, value: &Value) -> CheckResult {
        match refusal {
            ValidatorError::Fault(fault) => Err(CheckError::Raised(fault)),
            ValidatorError::ValueError(text) => self.fail(lax::value_error(&text), value),
            ValidatorError::TooShort => self.fail(lax::value_too_short(), value),
            ValidatorError::Item {
                index,
                schema,
                value,
            } => {
                let mut inner = Checker {
                    bounds: self.bounds,
                    quiet: self.quiet,
                    ..Checker::default()
                };
                inner.path.clone_from(&self.path);
                inner.path.push(LocItem::Index(index));
                inner.check(schema, &value)
            }
        }
    }

    fn fields(
        &mut self,
        model: &Model,
        map: &'a Map<String, Value>,
        value: &'a Value,
    ) -> CheckResult {
        let mut errors = SchemaErrors::default();
        let mut changes = Vec::new();
        let mut set = 0;
        let members = Members::of(map);
        for field in model.fields {
            let Some((name, element)) = members.find(field.name) else {
                if field.required {
                    self.path.push(LocItem::Key(field.name));
                    errors.append(self.error(KnownError::new("missing", "Field required"), value));
                    self.path.pop();
                }
                continue;
            };
            self.path.push(LocItem::Key(name));
            let outcome = self.check(&field.schema, element);
            self.path.pop();
            match outcome {
                Ok(new) => {
                    set += 1;
                    changes.extend(new.map(|new| (name, new)));
                }
                Err(CheckError::Schema(more)) => errors.append(more),
                Err(raised) => return Err(raised),
            }
        }
        if model.kind == ClassKind::Strict {
            for (name, element) in map {
                if errors.is_full() {
                    break;
                }
                if !model.fields.iter().any(|field| field.name == name) {
                    self.path.push(LocItem::Key(name));
                    errors.append(self.error(lax::extra_forbidden(), element));
                    self.path.pop();
                }
            }
        }
        if !errors.is_empty() {
            return Err(CheckError::Schema(errors));
        }
        *self.fields_set.get_or_insert(0) += set;
        let new = if self.orders_typed_dicts && model.kind == ClassKind::TypedDict {
            Some(shaped(model, map, changes))
        } else {
            patched(map, changes)
        };
        if let Some(after) = model.after {
            let map = new.as_ref().and_then(Value::as_object).unwrap_or(map);
            if let Err(refusal) = after.check(map, &self.bounds) {
                return self.refused(refusal, value);
            }
        }
        Ok(new)
    }
}

/// Returns the name that a union branch adds to the path of its errors, if vLLM shows it.
fn label(branch: &Schema) -> Option<&'static str> {
    match branch {
        Schema::Model(model) if model.kind != ClassKind::Wrapped && model.after.is_none() => {
            Some(model.name)
        }
        _ => None,
    }
}

/// Builds the coerced value of a `TypedDict`: declared keys in their order, then all others, which
/// vLLM's request classes allow.
fn shaped(model: &Model, map: &Map<String, Value>, changes: Vec<(&String, Value)>) -> Value {
    let mut changes = changes.into_iter().peekable();
    let mut new = Map::new();
    for field in model.fields {
        let Some((name, value)) = find(map, field.name) else {
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

fn patched(map: &Map<String, Value>, changes: Vec<(&String, Value)>) -> Option<Value> {
    if changes.is_empty() {
        return None;
    }
    let mut new = map.clone();
    for (name, value) in changes {
        new.insert(name.clone(), value);
    }
    Some(Value::Object(new))
}
