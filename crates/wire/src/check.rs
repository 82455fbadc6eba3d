//! Schema validation with pydantic's manners.
//!
//! Lax mode (numbers from strings, `"yes"` for true), every error of a body collected in
//! declaration order, a union's failure listing each of its branches, and the text vLLM makes
//! of the list.
//!
//! Source: pydantic-core `src/validators/*.rs`, `src/input/{input_python,shared}.rs`;
//! `vllm/entrypoints/serve/exception_handling/handlers/validation.py` for the text.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vllm_sim_python::Py;

use super::bounds::{self, RequestBounds};
use super::fault::Fault;
use super::lax::{self, ErrorText};
use super::report::{Line, Lines, Step, fault, printed};
use super::schema::{ANY_LENGTH, Bounds, Length, Model, Refusal, Schema, Shape, Wire};

/// Checks a request body against its class and reads it.
///
/// # Errors
/// The 400 that vLLM answers: a validator's own refusal, else all schema errors in one text.
pub fn body<T: Wire>(value: &Value) -> Result<T, Fault> {
    body_within(value, &RequestBounds::default())
}

/// As [`body`], within the bounds of a server.
///
/// # Errors
/// As [`body`].
pub fn body_within<T: Wire>(value: &Value, bounds: &RequestBounds) -> Result<T, Fault> {
    let checked = checked_within(&T::SCHEMA, value, bounds)?;
    T::read(&checked).ok_or_else(unread)
}

/// A checked value that its type cannot read would be a fault of ours, but one request's only.
fn unread() -> Fault {
    Fault::bad_request("The request could not be read.")
}

/// Checks a request body and returns it with its values coerced.
///
/// # Errors
/// As [`body`].
pub fn checked<'a>(schema: &Schema, value: &'a Value) -> Result<Cow<'a, Value>, Fault> {
    checked_within(schema, value, &RequestBounds::default())
}

fn checked_within<'a>(
    schema: &Schema,
    value: &'a Value,
    bounds: &RequestBounds,
) -> Result<Cow<'a, Value>, Fault> {
    const BODY: Step<'_> = Step::Key("body");
    if value.is_null() {
        let line = Line::new(ErrorText::new("missing", "Field required"), &[BODY], value);
        return Err(fault(&line.into()));
    }
    let mut checker = Checker {
        path: vec![BODY],
        bounds: *bounds,
        ..Checker::default()
    };
    match checker.check(schema, value) {
        Ok(Some(changed)) => Ok(Cow::Owned(changed)),
        Ok(None) => Ok(Cow::Borrowed(value)),
        Err(Failed::Lines(lines)) => Err(fault(&lines)),
        Err(Failed::Raised(fault)) => Err(fault),
    }
}

/// Finds the branch of a union that a value meets best, and the value as that branch makes it:
/// a `TypedDict` with its own keys first, in its own order.
pub fn winner(branches: &[Schema], value: &Value) -> Option<(usize, Value)> {
    let mut checker = Checker {
        shaping: true,
        ..Checker::default()
    };
    let (index, changed) = checker.branch(branches, value).ok()?;
    Some((index, changed.unwrap_or_else(|| value.clone())))
}

/// Checks the parameters of a query, all of them strings, and reads them.
///
/// # Errors
/// As [`body`], with places below `query`.
pub fn query<T: Wire>(value: &Value) -> Result<T, Fault> {
    let mut checker = Checker {
        path: vec![Step::Key("query")],
        ..Checker::default()
    };
    let changed = match checker.check(&T::SCHEMA, value) {
        Ok(changed) => changed,
        Err(Failed::Lines(lines)) => return Err(fault(&lines)),
        Err(Failed::Raised(fault)) => return Err(fault),
    };
    T::read(changed.as_ref().unwrap_or(value)).ok_or_else(unread)
}

/// Whether a value satisfies a schema.
pub fn fits(schema: &Schema, value: &Value) -> bool {
    Checker::default().check(schema, value).is_ok()
}

/// Checks one item of a list that the schema only checked to be iterable, at its place.
///
/// # Errors
/// The text of the pydantic `ValidationError` that Python's `for` raises, as a 400.
pub fn item(schema: &Schema, index: usize, value: &Value) -> Result<Value, Fault> {
    let mut checker = Checker {
        path: vec![Step::Index(index)],
        shaping: true,
        verbose: true,
        ..Checker::default()
    };
    match checker.check(schema, value) {
        Ok(changed) => Ok(changed.unwrap_or_else(|| value.clone())),
        Err(Failed::Raised(fault)) => Err(fault),
        Err(Failed::Lines(lines)) => Err(Fault::bad_request(printed("ValidatorIterator", &lines))),
    }
}

/// Checks a value apart from the body it came in.
///
/// # Errors
/// The text of the pydantic `ValidationError`, as a 400.
pub fn apart(model: &'static Model, value: &Value) -> Result<(), Fault> {
    let mut checker = Checker {
        verbose: true,
        ..Checker::default()
    };
    match checker.check(&Schema::Model(model), value) {
        Ok(_) => Ok(()),
        Err(Failed::Raised(fault)) => Err(fault),
        Err(Failed::Lines(lines)) => Err(Fault::bad_request(printed(model.name, &lines))),
    }
}

/// Checks and reads a value apart from any body.
///
/// # Errors
/// As [`apart`].
pub fn read_apart<T: Wire>(name: &str, value: &Value) -> Result<T, Fault> {
    let mut checker = Checker {
        verbose: true,
        ..Checker::default()
    };
    match checker.check(&T::SCHEMA, value) {
        Ok(changed) => T::read(changed.as_ref().unwrap_or(value)).ok_or_else(unread),
        Err(Failed::Raised(fault)) => Err(fault),
        Err(Failed::Lines(lines)) => Err(Fault::bad_request(printed(name, &lines))),
    }
}

/// A member by name. Requests have few members and classes many fields: comparing names is quicker
/// than hashing each field's.
pub(crate) fn find<'m>(map: &'m Map<String, Value>, name: &str) -> Option<(&'m String, &'m Value)> {
    const FEW: usize = 12;

    if map.len() <= FEW {
        map.iter().find(|(key, _)| *key == name)
    } else {
        map.get_key_value(name)
    }
}

/// How closely a value met a schema; a union takes the branch it meets best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Exactness {
    /// Only by coercion.
    Lax,
    /// As strict mode would take it.
    Strict,
    /// The type itself.
    #[default]
    Exact,
}

/// Why a check did not succeed.
enum Failed {
    /// Schema errors.
    Lines(Lines),
    /// A validator's own exception, which ends everything.
    Raised(Fault),
}

/// A branch of a union and what it makes of the value.
type Branch = (usize, Option<Value>);

/// `None` when the value may stay as it is.
type Outcome = Result<Option<Value>, Failed>;

#[derive(Default)]
struct Checker<'a> {
    path: Vec<Step<'a>>,
    /// What the server allows one request.
    bounds: RequestBounds,
    exactness: Exactness,
    fields_set: Option<usize>,
    /// Whether a `TypedDict` comes out with its own keys first.
    shaping: bool,
    /// Whether errors are for [`printed`].
    verbose: bool,
    /// Whether only the outcome counts and nobody reads the errors.
    quiet: bool,
}

impl<'a> Checker<'a> {
    fn check(&mut self, schema: &Schema, value: &'a Value) -> Outcome {
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
                    Err(Failed::Lines(Line::unread().into()))
                }
            }
            Schema::Literal(choices) => self.scalar(lax::literal(value, choices), value),
            Schema::Enum(choices) => self.scalar(lax::member(value, choices), value),
            Schema::List(item, length) => self.list(item, *length, value),
            Schema::Iterable(_) => self.scalar(lax::iterable(value), value),
            Schema::Sequence(item) => match lax::sequence(value) {
                Ok(()) => self.list(item, ANY_LENGTH, value),
                Err(words) => self.fail(words, value),
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
            Schema::Before(function, inner) => match function(value).map_err(Failed::Raised)? {
                None => self.check(inner, value),
                Some(new) => Ok(Some(self.detached(inner, &new)?.unwrap_or(new))),
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

    fn fail(&self, words: ErrorText, value: &Value) -> Outcome {
        Err(Failed::Lines(self.line(words, value).into()))
    }

    fn line(&self, words: ErrorText, value: &Value) -> Line {
        if self.quiet {
            Line::unread()
        } else if self.verbose {
            Line::verbose(words, &self.path, value)
        } else {
            Line::new(words, &self.path, value)
        }
    }

    fn floor(&mut self, exactness: Exactness) {
        self.exactness = self.exactness.min(exactness);
    }

    /// Takes over a scalar's outcome; a changed value was a coercion.
    fn scalar(&mut self, outcome: Result<Option<Value>, ErrorText>, value: &Value) -> Outcome {
        match outcome {
            Ok(None) => Ok(None),
            Ok(changed) => {
                self.floor(Exactness::Lax);
                Ok(changed)
            }
            Err(words) => self.fail(words, value),
        }
    }

    fn int(&mut self, bounds: Bounds<i128>, value: &Value) -> Outcome {
        let outcome = lax::int(value).and_then(|changed| {
            lax::int_bounds(changed.as_ref().unwrap_or(value), bounds)?;
            Ok(changed)
        });
        self.scalar(outcome, value)
    }

    fn float(&mut self, bounds: Bounds<f64>, value: &Value) -> Outcome {
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

    fn list(&mut self, item: &Schema, length: Length, value: &'a Value) -> Outcome {
        let Py::List(items) = Py::of(value) else {
            return self.fail(
                ErrorText::new("list_type", "Input should be a valid list"),
                value,
            );
        };
        let mut lines = Lines::default();
        let mut changes = Vec::new();
        for (i, element) in items.iter().enumerate() {
            self.path.push(Step::Index(i));
            let outcome = self.check(item, element);
            self.path.pop();
            match outcome {
                Ok(None) => {}
                Ok(Some(new)) => changes.push((i, new)),
                Err(Failed::Lines(more)) => lines.append(more),
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
        if let Some(words) = lax::list_length(items.len(), length, lines.is_empty()) {
            return self.fail(words, value);
        }
        if !lines.is_empty() {
            return Err(Failed::Lines(lines));
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

    fn tuple(&mut self, schemas: &[Schema], value: &'a Value) -> Outcome {
        let Py::List(items) = Py::of(value) else {
            return self.fail(
                ErrorText::new("tuple_type", "Input should be a valid tuple"),
                value,
            );
        };
        let mut lines = Lines::default();
        for (i, schema) in schemas.iter().enumerate() {
            self.path.push(Step::Index(i));
            let outcome = match items.get(i) {
                Some(item) => self.check(schema, item),
                None => self.fail(ErrorText::new("missing", "Field required"), value),
            };
            self.path.pop();
            match outcome {
                Ok(_) => {}
                Err(Failed::Lines(more)) => lines.append(more),
                Err(raised) => return Err(raised),
            }
        }
        if items.len() > schemas.len() {
            return self.fail(lax::tuple_too_long(schemas.len(), items.len()), value);
        }
        if lines.is_empty() {
            Ok(None)
        } else {
            Err(Failed::Lines(lines))
        }
    }

    fn dict(&mut self, key: &Schema, item: &Schema, value: &'a Value) -> Outcome {
        let Py::Dict(map) = Py::of(value) else {
            return self.fail(
                ErrorText::new("dict_type", "Input should be a valid dictionary"),
                value,
            );
        };
        let mut lines = Lines::default();
        let mut changes = Vec::new();
        for (name, element) in map {
            if !matches!(key, Schema::Str(_)) {
                let text = Value::from(name.as_str());
                self.path.extend([Step::Key(name), Step::Key("[key]")]);
                let outcome = self.detached(key, &text);
                self.path.truncate(self.path.len() - 2);
                match outcome {
                    Ok(_) => {}
                    Err(Failed::Lines(more)) => lines.append(more),
                    Err(raised) => return Err(raised),
                }
            }
            self.path.push(Step::Key(name));
            let outcome = self.check(item, element);
            self.path.pop();
            match outcome {
                Ok(None) => {}
                Ok(Some(new)) => changes.push((name, new)),
                Err(Failed::Lines(more)) => lines.append(more),
                Err(raised) => return Err(raised),
            }
        }
        if lines.is_empty() {
            Ok(patched(map, changes))
        } else {
            Err(Failed::Lines(lines))
        }
    }

    fn union(&mut self, branches: &[Schema], value: &'a Value) -> Outcome {
        self.branch(branches, value).map(|(_, new)| new)
    }

    /// The best branch of a union and what it makes of the value.
    fn branch(&mut self, branches: &[Schema], value: &'a Value) -> Result<Branch, Failed> {
        if self.quiet {
            return self.best_branch(branches, value);
        }
        // Most values meet a branch, and then nobody reads why they did not meet the others.
        self.quiet = true;
        let outcome = self.best_branch(branches, value);
        self.quiet = false;
        match outcome {
            Err(Failed::Lines(_)) => self.best_branch(branches, value),
            outcome => outcome,
        }
    }

    fn best_branch(&mut self, branches: &[Schema], value: &'a Value) -> Result<Branch, Failed> {
        let (outer, outer_set) = (self.exactness, self.fields_set);
        let mut best: Option<(Branch, Exactness, Option<usize>)> = None;
        let mut lines = Lines::default();
        for (index, branch) in branches.iter().enumerate() {
            self.exactness = Exactness::Exact;
            self.fields_set = None;
            let label = label(branch);
            self.path.extend(label.map(Step::Key));
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
                Err(Failed::Lines(more)) => lines.append(more),
                Err(raised) => return Err(raised),
            }
        }
        (self.exactness, self.fields_set) = (outer, outer_set);
        let Some((new, exactness, set)) = best else {
            return Err(Failed::Lines(lines));
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
    ) -> Outcome {
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
        self.path.push(Step::Key(name));
        let outcome = self.check(schema, value);
        self.path.pop();
        outcome
    }

    fn model(&mut self, model: &Model, value: &'a Value) -> Outcome {
        let Py::Dict(map) = Py::of(value) else {
            return self.fail(lax::not_a_model(model), value);
        };
        if model.before.is_empty() {
            return self.fields(model, map, value);
        }
        let mut new = map.clone();
        for before in model.before {
            if let Err(refusal) = before(&mut new) {
                return self.refused(refusal, value);
            }
        }
        let new = Value::Object(new);
        let mut inner = self.fork();
        let outcome = match &new {
            Value::Object(map) => inner.fields(model, map, &new),
            _ => Ok(None),
        };
        (self.exactness, self.fields_set) = (inner.exactness, inner.fields_set);
        Ok(Some(outcome?.unwrap_or(new)))
    }

    /// Checks a value that lives shorter than the body.
    fn detached(&mut self, schema: &Schema, value: &Value) -> Outcome {
        let mut inner = self.fork();
        let outcome = inner.check(schema, value);
        (self.exactness, self.fields_set) = (inner.exactness, inner.fields_set);
        outcome
    }

    /// A checker at the same place for a value of another lifetime.
    fn fork<'b>(&self) -> Checker<'b>
    where
        'a: 'b,
    {
        Checker {
            path: self.path.clone(),
            bounds: self.bounds,
            exactness: self.exactness,
            fields_set: self.fields_set,
            shaping: self.shaping,
            verbose: self.verbose,
            quiet: self.quiet,
        }
    }

    fn refused(&self, refusal: Refusal, value: &Value) -> Outcome {
        match refusal {
            Refusal::Fault(fault) => Err(Failed::Raised(fault)),
            Refusal::ValueError(text) => self.fail(lax::value_error(&text), value),
            Refusal::TooShort => self.fail(lax::value_too_short(), value),
            Refusal::Item {
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
                inner.path.push(Step::Index(index));
                inner.check(schema, &value)
            }
        }
    }

    fn fields(&mut self, model: &Model, map: &'a Map<String, Value>, value: &'a Value) -> Outcome {
        let mut lines = Lines::default();
        let mut changes = Vec::new();
        let mut set = 0;
        for field in model.fields {
            let Some((name, element)) = find(map, field.name) else {
                if field.required {
                    self.path.push(Step::Key(field.name));
                    lines.push(self.line(ErrorText::new("missing", "Field required"), value));
                    self.path.pop();
                }
                continue;
            };
            self.path.push(Step::Key(name));
            let outcome = self.check(&field.schema, element);
            self.path.pop();
            match outcome {
                Ok(new) => {
                    set += 1;
                    changes.extend(new.map(|new| (name, new)));
                }
                Err(Failed::Lines(more)) => lines.append(more),
                Err(raised) => return Err(raised),
            }
        }
        if model.shape == Shape::Strict {
            for (name, element) in map {
                if !model.fields.iter().any(|field| field.name == name) {
                    self.path.push(Step::Key(name));
                    lines.push(self.line(lax::extra_forbidden(), element));
                    self.path.pop();
                }
            }
        }
        if !lines.is_empty() {
            return Err(Failed::Lines(lines));
        }
        *self.fields_set.get_or_insert(0) += set;
        let new = if self.shaping && model.shape == Shape::TypedDict {
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

/// The name a union's branch adds to the path of its errors, where vLLM lets it show.
fn label(branch: &Schema) -> Option<&'static str> {
    match branch {
        Schema::Model(model) if model.shape != Shape::Wrapped && model.after.is_none() => {
            Some(model.name)
        }
        _ => None,
    }
}

/// What a `TypedDict` makes of an object: its own keys in its own order, then all others, as the
/// request classes around it allow.
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
