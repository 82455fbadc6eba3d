//! Validates JSON values against a schema node within a work budget.
//!
//! The validator checks parts of a value during generation. The crate `jsonschema` decides about
//! the whole value.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::document::Schema;
use super::node::{
    ApplicatorKeywords, ArrayRules, NumberRules, ObjectRules, SchemaNode, SchemaNodeId, StringRules,
};
use super::number::{ExactDecimal, JsonNumber};
use super::types::{json_equal, json_type_of};

/// Maximum combined nesting of schemas and values in a validation.
const MAX_VALIDATION_DEPTH: u32 = 400;

/// Error of a validation whose work budget is spent, or whose schema applies itself infinitely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValidationFuelExhausted;

type ValidationResult = Result<bool, ValidationFuelExhausted>;

/// Flags for the members or items of a JSON value, by position; true means that a schema keyword
/// has evaluated this member or item.
type EvaluatedParts = Vec<bool>;

pub(crate) struct BoundedValidator<'a> {
    schema: &'a Schema,
    fuel: Cell<u32>,
    depth: Cell<u32>,
    /// Cached validation results by `$ref` target and address of the value, for one top-level call.
    ///
    /// Without these results, shared parts make some documents exponential.
    known: Option<RefCell<HashMap<(SchemaNodeId, usize), bool>>>,
}

impl<'a> BoundedValidator<'a> {
    pub(crate) fn new(schema: &'a Schema, fuel: u32) -> Self {
        Self {
            schema,
            fuel: Cell::new(fuel),
            depth: Cell::new(0),
            known: (!schema.tracks).then(RefCell::default),
        }
    }

    /// Creates a validator that caches no results. The work that it spends is therefore that of any
    /// validator without a cache, such as the crate `jsonschema`.
    pub(crate) fn new_uncached(schema: &'a Schema, fuel: u32) -> Self {
        Self { known: None, ..Self::new(schema, fuel) }
    }

    pub(crate) fn remaining_validation_fuel(&self) -> u32 {
        self.fuel.get()
    }

    /// Spends `amount` steps of the validator's work budget.
    ///
    /// # Errors
    /// [`ValidationFuelExhausted`] if fewer steps are left.
    pub(crate) fn spend_validation_fuel(&self, amount: u32) -> Result<(), ValidationFuelExhausted> {
        let left = self.fuel.get().checked_sub(amount);
        self.fuel.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(ValidationFuelExhausted)
    }

    pub(crate) fn is_valid(&self, id: SchemaNodeId, value: &Value) -> ValidationResult {
        if let (0, Some(known)) = (self.depth.get(), &self.known) {
            // The addresses may belong to values of an earlier call.
            known.borrow_mut().clear();
        }
        if !self.schema.tracks {
            return self.evaluate(id, value, None);
        }
        let size = match value {
            Value::Array(items) => items.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        };
        self.evaluate(id, value, Some(&mut vec![false; size]))
    }

    pub(crate) fn is_valid_for_all(&self, ids: &[SchemaNodeId], value: &Value) -> ValidationResult {
        for &id in ids {
            if !self.is_valid(id, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn evaluate(
        &self,
        id: SchemaNodeId,
        value: &Value,
        evaluated: Option<&mut EvaluatedParts>,
    ) -> ValidationResult {
        self.spend_validation_fuel(1)?;
        let depth = self.depth.get();
        if depth >= MAX_VALIDATION_DEPTH {
            return Err(ValidationFuelExhausted);
        }
        self.depth.set(depth + 1);
        let node = self.schema.schema_node(id);
        let valid = match evaluated {
            Some(evaluated) if node.has_unevaluated_keyword() => {
                // `unevaluated…` considers only the parts that this node evaluates.
                let mut own = vec![false; evaluated.len()];
                let valid = self.evaluate_node(node, value, Some(&mut own));
                for (seen, own) in evaluated.iter_mut().zip(own) {
                    *seen |= own;
                }
                valid
            }
            evaluated => self.evaluate_node(node, value, evaluated),
        };
        self.depth.set(depth);
        valid
    }

    fn evaluate_node(
        &self,
        node: &SchemaNode,
        value: &Value,
        mut evaluated: Option<&mut EvaluatedParts>,
    ) -> ValidationResult {
        if node.never || !node.types.intersects(json_type_of(value)) {
            return Ok(false);
        }
        if let Some(values) = &node.allowed {
            self.spend_validation_fuel(values.len() as u32 / 8)?;
            if !values.iter().any(|allowed| json_equal(allowed, value)) {
                return Ok(false);
            }
        }
        let own = match value {
            Value::Number(n) => node
                .number
                .as_ref()
                .is_none_or(|rules| is_number_valid(rules, JsonNumber::from_json_number(n))),
            Value::String(text) => match &node.string {
                Some(rules) => self.check_string(rules, text)?,
                None => true,
            },
            Value::Array(items) => match &node.array {
                Some(rules) => self.check_array(rules, items, evaluated.as_deref_mut())?,
                None => true,
            },
            Value::Object(map) => match &node.object {
                Some(rules) => self.check_object(rules, value, map, evaluated.as_deref_mut())?,
                None => true,
            },
            _ => true,
        };
        if !own {
            return Ok(false);
        }
        if let Some(applicators) = &node.applicators
            && !self.check_applicators(applicators, value, evaluated.as_deref_mut())?
        {
            return Ok(false);
        }
        match (value, evaluated) {
            (Value::Array(items), Some(evaluated)) => {
                let rest = node.array.as_ref().and_then(|rules| rules.unevaluated);
                self.check_unevaluated(rest, items.iter(), evaluated)
            }
            (Value::Object(map), Some(evaluated)) => {
                let rest = node.object.as_ref().and_then(|rules| rules.unevaluated);
                self.check_unevaluated(rest, map.values(), evaluated)
            }
            _ => Ok(true),
        }
    }

    fn check_unevaluated<'v>(
        &self,
        rest: Option<SchemaNodeId>,
        values: impl Iterator<Item = &'v Value>,
        evaluated: &mut EvaluatedParts,
    ) -> ValidationResult {
        let Some(rest) = rest else {
            return Ok(true);
        };
        for (value, seen) in values.zip(evaluated) {
            if !*seen && !self.is_valid(rest, value)? {
                return Ok(false);
            }
            *seen = true;
        }
        Ok(true)
    }

    fn check_string(&self, rules: &StringRules, text: &str) -> ValidationResult {
        if rules.min > 0 || rules.max.is_some() {
            let length = text.chars().count() as u64;
            if length < rules.min || rules.max.is_some_and(|max| length > max) {
                return Ok(false);
            }
        }
        if let Some(pattern) = &rules.pattern {
            self.spend_validation_fuel(pattern.match_cost_steps(text).saturating_add(4))?;
            if !pattern.is_match(text) {
                return Ok(false);
            }
        }
        if let Some(format) = &rules.format {
            self.spend_validation_fuel(4)?;
            return Ok(format.is_match(text));
        }
        Ok(true)
    }

    fn check_array(
        &self,
        rules: &ArrayRules,
        items: &[Value],
        evaluated: Option<&mut EvaluatedParts>,
    ) -> ValidationResult {
        let count = items.len() as u64;
        if count < rules.min || rules.max.is_some_and(|max| count > max) {
            return Ok(false);
        }
        for (i, item) in items.iter().enumerate() {
            let schema = rules.prefix.get(i).or(rules.rest.as_ref());
            if let Some(&id) = schema
                && !self.is_valid(id, item)?
            {
                return Ok(false);
            }
        }
        if rules.unique {
            self.spend_validation_fuel((items.len() * items.len() / 16) as u32)?;
            let twice = |(i, a): (usize, &Value)| items[..i].iter().any(|b| json_equal(a, b));
            if items.iter().enumerate().any(twice) {
                return Ok(false);
            }
        }
        let mut held = Vec::new();
        if let Some(contains) = rules.contains {
            for (i, item) in items.iter().enumerate() {
                if self.is_valid(contains.node, item)? {
                    held.push(i);
                }
            }
            let held = held.len() as u64;
            if held < contains.min || contains.max.is_some_and(|max| held > max) {
                return Ok(false);
            }
        }
        if let Some(evaluated) = evaluated {
            let known = if rules.rest.is_some() { items.len() } else { rules.prefix.len() };
            evaluated.iter_mut().take(known).for_each(|seen| *seen = true);
            for i in held {
                evaluated[i] = true;
            }
        }
        Ok(true)
    }

    fn check_object(
        &self,
        rules: &ObjectRules,
        whole: &Value,
        map: &Map<String, Value>,
        mut evaluated: Option<&mut EvaluatedParts>,
    ) -> ValidationResult {
        let count = map.len() as u64;
        if count < rules.min || rules.max.is_some_and(|max| count > max) {
            return Ok(false);
        }
        let has = |name: &String| map.contains_key(name);
        if !rules.required.iter().all(has) {
            return Ok(false);
        }
        for (name, needed) in &rules.needs {
            if has(name) && !needed.iter().all(has) {
                return Ok(false);
            }
        }
        for (i, (name, value)) in map.iter().enumerate() {
            self.spend_validation_fuel(1)?;
            let mut known = false;
            if let Some(property) = rules.properties.get(name) {
                known = true;
                if !self.is_valid(property.node, value)? {
                    return Ok(false);
                }
            }
            for (pattern, id) in &rules.patterns {
                self.spend_validation_fuel(pattern.match_cost_steps(name).saturating_add(1))?;
                if pattern.is_match(name) {
                    known = true;
                    if !self.is_valid(*id, value)? {
                        return Ok(false);
                    }
                }
            }
            if let (false, Some(id)) = (known, rules.additional) {
                known = true;
                if !self.is_valid(id, value)? {
                    return Ok(false);
                }
            }
            if let Some(evaluated) = evaluated.as_deref_mut() {
                evaluated[i] |= known;
            }
            if let Some(id) = rules.names
                && !self.check_property_name(id, name)?
            {
                return Ok(false);
            }
        }
        for (name, id) in &rules.dependent {
            if has(name) && !self.evaluate(*id, whole, evaluated.as_deref_mut())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Validates a property name without caching the result, because the name's text is temporary.
    fn check_property_name(&self, id: SchemaNodeId, name: &str) -> ValidationResult {
        let fresh = BoundedValidator {
            schema: self.schema,
            fuel: Cell::new(self.fuel.get()),
            depth: Cell::new(self.depth.get()),
            known: None,
        };
        let valid = fresh.is_valid(id, &Value::String(name.to_owned()));
        self.fuel.set(fresh.fuel.get());
        valid
    }

    fn check_applicators(
        &self,
        applicators: &ApplicatorKeywords,
        value: &Value,
        mut evaluated: Option<&mut EvaluatedParts>,
    ) -> ValidationResult {
        for &id in &applicators.refs {
            if !self.check_reference(id, value, evaluated.as_deref_mut())? {
                return Ok(false);
            }
        }
        for &id in &applicators.all {
            if !self.evaluate(id, value, evaluated.as_deref_mut())? {
                return Ok(false);
            }
        }
        if !applicators.any.is_empty()
            && self.count_matching_branches(&applicators.any, value, &mut evaluated, usize::MAX)?
                == 0
        {
            return Ok(false);
        }
        if !applicators.one.is_empty()
            && self.count_matching_branches(&applicators.one, value, &mut evaluated, 2)? != 1
        {
            return Ok(false);
        }
        if let Some(not) = applicators.not
            && self.is_valid(not, value)?
        {
            return Ok(false);
        }
        let Some(when) = applicators.when else {
            return Ok(true);
        };
        let holds = self.count_matching_branches(&[when.test], value, &mut evaluated, 1)? == 1;
        match if holds { when.then } else { when.otherwise } {
            Some(id) => self.evaluate(id, value, evaluated),
            None => Ok(true),
        }
    }

    /// Validates a JSON value against the target of a `$ref`, once per value.
    fn check_reference(
        &self,
        id: SchemaNodeId,
        value: &Value,
        evaluated: Option<&mut EvaluatedParts>,
    ) -> ValidationResult {
        let Some(known) = &self.known else {
            return self.evaluate(id, value, evaluated);
        };
        let key = (id, std::ptr::from_ref(value).addr());
        if let Some(&valid) = known.borrow().get(&key) {
            return Ok(valid);
        }
        let valid = self.evaluate(id, value, evaluated)?;
        known.borrow_mut().insert(key, valid);
        Ok(valid)
    }

    /// Counts the schemas in `branches` that a JSON value satisfies, at most `enough`. Marks the
    /// members or items of the value that these schemas evaluate.
    fn count_matching_branches(
        &self,
        branches: &[SchemaNodeId],
        value: &Value,
        evaluated: &mut Option<&mut EvaluatedParts>,
        enough: usize,
    ) -> Result<usize, ValidationFuelExhausted> {
        let mut count = 0;
        for &id in branches {
            let held = match evaluated.as_deref_mut() {
                Some(evaluated) => {
                    let mut own = vec![false; evaluated.len()];
                    let held = self.evaluate(id, value, Some(&mut own))?;
                    if held {
                        for (seen, own) in evaluated.iter_mut().zip(own) {
                            *seen |= own;
                        }
                    }
                    held
                }
                None => self.evaluate(id, value, None)?,
            };
            count += usize::from(held);
            // Without evaluated parts, the first match decides an `anyOf`.
            if count >= enough || (evaluated.is_none() && enough == usize::MAX && count > 0) {
                break;
            }
        }
        Ok(count)
    }
}

fn is_number_valid(rules: &NumberRules, n: JsonNumber) -> bool {
    let low = rules.low.iter().all(|bound| bound.allows_as_minimum(n));
    let high = rules.high.iter().all(|bound| bound.allows_as_maximum(n));
    let step = rules.step.is_none_or(|step| {
        ExactDecimal::from_json_number(n).is_some_and(|n| n.is_multiple_of(step))
    });
    low && high && step
}
