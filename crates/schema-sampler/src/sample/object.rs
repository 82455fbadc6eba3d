//! Generates JSON objects that satisfy a schema.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::plan::ValuePlan;
use super::sampler::{SampleFailure, ValueContext, ValueSampler};
use crate::schema::{JsonTypes, ObjectRules, SchemaNodeId};
use crate::semantic_type::SemanticType;
use crate::words;
use vllm_sim_random::DrawRandom;

const MAX_OBJECT_MEMBERS: u64 = 1_000;

const MAX_NAME_TRIES: u32 = 24;

const DEFAULT_PROPERTY_NAMES: &[&str] = &["name", "value", "status", "note", "category", "source"];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MemberNeed {
    Optional,
    Required,
}

#[derive(Default)]
struct MemberNames {
    list: IndexMap<String, MemberNeed>,
}

impl MemberNames {
    fn has_name(&self, name: &str) -> bool {
        self.list.contains_key(name)
    }

    fn add_name(&mut self, name: &str, need: MemberNeed) -> bool {
        match self.list.get_mut(name) {
            Some(known) => {
                let changed = need > *known;
                *known = need.max(*known);
                changed
            }
            None => {
                self.list.insert(name.to_owned(), need);
                true
            }
        }
    }

    fn required_count(&self) -> usize {
        let required = |need: &&MemberNeed| **need == MemberNeed::Required;
        self.list.values().filter(required).count()
    }
}

impl<'a> ValueSampler<'a> {
    pub(super) fn sample_object(
        &mut self,
        plan: &ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> Result<Value, SampleFailure> {
        let context = ValueContext { parts: plan.parts, ..context };
        // Choosing names may add dependent schemas.
        let mut facets = ValuePlan {
            facets: plan.facets.clone(),
            types: JsonTypes::OBJECT,
            bounds: plan.bounds,
            ..ValuePlan::default()
        };
        let mut names = self.choose_member_names(&mut facets, plan, context, attempt)?;
        let rules = self.object_rules(&facets);
        let at_fault = self.first_object_node(plan);
        let (min, _) = member_count_bounds(&rules, plan);
        let mut map = Map::new();
        for (name, need) in &names.list {
            if let Some(value) = self.sample_member(&rules, name, *need, context, at_fault)? {
                map.insert(name.clone(), value);
            }
        }
        for _ in 0..MAX_NAME_TRIES {
            if map.len() as u64 >= min {
                break;
            }
            // Replaces optional members that turned out to be impossible.
            let Some(name) = self.new_property_name(&rules, &names, context)? else {
                break;
            };
            if let Some(value) =
                self.sample_member(&rules, &name, MemberNeed::Optional, context, at_fault)?
            {
                map.insert(name.clone(), value);
            }
            names.add_name(&name, MemberNeed::Optional);
        }
        if (map.len() as u64) < min {
            return self
                .record_sample_failure(at_fault, format!("no {min} properties are possible"));
        }
        // Members follow the order in the schema; others come last.
        let mut sorted = Map::new();
        for rules in &rules {
            for name in rules.properties.keys() {
                if let Some(value) = map.get_mut(name)
                    && !sorted.contains_key(name)
                {
                    sorted.insert(name.clone(), value.take());
                }
            }
        }
        for (name, value) in map {
            if !sorted.contains_key(&name) {
                sorted.insert(name, value);
            }
        }
        Ok(Value::Object(sorted))
    }

    fn sample_member(
        &mut self,
        rules: &[&'a ObjectRules],
        name: &str,
        need: MemberNeed,
        context: ValueContext,
        at_fault: Option<SchemaNodeId>,
    ) -> Result<Option<Value>, SampleFailure> {
        let (goal, semantic_type) = self.member_schemas(rules, name);
        let never = goal.iter().any(|&id| self.schema.schema_node(id).never);
        if never || !self.is_allowed_name(rules, name)? {
            if need == MemberNeed::Required {
                return self.record_sample_failure(
                    at_fault,
                    format!("required property '{name}' is unsatisfiable"),
                );
            }
            return Ok(None);
        }
        let earlier = self.failure.clone();
        match self.sample_value(&goal, context.nested_context(semantic_type)) {
            Ok(value) => Ok(Some(value)),
            Err(SampleFailure::NoValue) if need == MemberNeed::Optional => {
                self.failure = earlier;
                Ok(None)
            }
            Err(fail) => Err(fail),
        }
    }

    /// Returns whether `propertyNames` accepts the name of an object member.
    fn is_allowed_name(
        &mut self,
        rules: &[&'a ObjectRules],
        name: &str,
    ) -> Result<bool, SampleFailure> {
        if rules.iter().all(|r| r.names.is_none()) {
            return Ok(true);
        }
        let text = Value::String(name.to_owned());
        for id in rules.iter().filter_map(|r| r.names) {
            if !self.validator.is_valid(id, &text)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn object_rules(&self, plan: &ValuePlan) -> Vec<&'a ObjectRules> {
        let schema = self.schema;
        plan.facets.iter().filter_map(|&id| schema.schema_node(id).object.as_deref()).collect()
    }

    fn first_object_node(&self, plan: &ValuePlan) -> Option<SchemaNodeId> {
        let has_rules = |id: &SchemaNodeId| self.schema.schema_node(*id).object.is_some();
        plan.facets.iter().copied().find(has_rules)
    }

    fn choose_member_names(
        &mut self,
        facets: &mut ValuePlan,
        plan: &ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> Result<MemberNames, SampleFailure> {
        let at_fault = self.first_object_node(plan);
        let mut names = MemberNames::default();
        for name in &plan.with {
            names.add_name(name, MemberNeed::Required);
        }
        self.add_dependent_names(&mut names, facets, context, attempt)?;
        let rules = self.object_rules(facets);
        let (_, max) = member_count_bounds(&rules, plan);
        let percent = match attempt {
            _ if self.requires_minimal_value(context) => 0,
            // Later attempts alternate between none and all optional members.
            1 | 4 => 0,
            2 | 5 => 100,
            _ if context.depth == 0 => self.limits.optional_percent,
            _ => self.limits.nested_optional_percent,
        };
        for r in &rules {
            self.validator.spend_validation_fuel(r.properties.len() as u32 / 8)?;
            for name in r.properties.keys() {
                if (names.list.len() as u64) < max
                    && !names.has_name(name)
                    && !plan.without.contains(name)
                    && self.is_member_allowed(&rules, name)
                    && self.random_chance(percent)
                {
                    names.add_name(name, MemberNeed::Optional);
                }
            }
        }
        self.add_dependent_names(&mut names, facets, context, attempt)?;
        self.add_optional_names(&mut names, facets, plan, context)?;
        self.add_dependent_names(&mut names, facets, context, attempt)?;
        let rules = self.object_rules(facets);
        let (_, max) = member_count_bounds(&rules, plan);
        if names.required_count() as u64 > max {
            let required = names.required_count();
            return self.record_sample_failure(
                at_fault,
                format!("{required} properties are required but maxProperties is {max}"),
            );
        }
        while names.list.len() as u64 > max {
            let last_optional = names.list.values().rposition(|need| *need == MemberNeed::Optional);
            match last_optional {
                Some(i) => names.list.shift_remove_index(i),
                None => break,
            };
        }
        Ok(names)
    }

    /// Adds to `names` all required properties, and the properties that a name in `names` requires.
    fn add_dependent_names(
        &mut self,
        names: &mut MemberNames,
        facets: &mut ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> Result<(), SampleFailure> {
        loop {
            let mut changed = false;
            let mut join = Vec::new();
            for rules in self.object_rules(facets) {
                self.validator.spend_validation_fuel(1)?;
                for name in &rules.required {
                    changed |= names.add_name(name, MemberNeed::Required);
                }
                for (name, needed) in &rules.needs {
                    if names.has_name(name) {
                        for other in needed {
                            changed |= names.add_name(other, MemberNeed::Required);
                        }
                    }
                }
                for (name, id) in &rules.dependent {
                    if names.has_name(name) && !facets.facets.contains(id) {
                        join.push(*id);
                    }
                }
            }
            if !join.is_empty() {
                changed = true;
                self.extend_value_plan(facets, &join, context, attempt)?;
                if let Some((node, reason)) = facets.impossible {
                    return self.record_sample_failure(Some(node), reason);
                }
            }
            if !changed {
                return Ok(());
            }
        }
    }

    /// Adds members to an object up to `minProperties`; an object without listed properties may
    /// get a few members more.
    fn add_optional_names(
        &mut self,
        names: &mut MemberNames,
        facets: &ValuePlan,
        plan: &ValuePlan,
        context: ValueContext,
    ) -> Result<(), SampleFailure> {
        let rules = self.object_rules(facets);
        let (min, max) = member_count_bounds(&rules, plan);
        if min > max {
            let at_fault = self.first_object_node(plan);
            return self.record_sample_failure(
                at_fault,
                format!("minProperties ({min}) is greater than maxProperties ({max})"),
            );
        }
        if min > MAX_OBJECT_MEMBERS {
            let at_fault = self.first_object_node(plan);
            return self.record_sample_failure(
                at_fault,
                format!("minProperties ({min}) is more than a reply can hold"),
            );
        }
        let is_bare = rules.iter().all(|r| r.properties.is_empty());
        let is_mapping = rules.iter().any(|r| {
            !r.patterns.is_empty() || r.additional.is_some_and(|id| !self.is_unconstrained(id))
        });
        let mut wanted = min;
        if is_bare && !self.requires_minimal_value(context) {
            let natural = match (is_mapping, context.depth) {
                (true, _) => self.rng.draw_u64_between(1, 3),
                (false, 0) => 0,
                (false, _) => self.rng.draw_u64_between(0, 2),
            };
            wanted = wanted.max(natural.min(max));
        }
        // Listed properties come first, because their values are meaningful.
        let mut listed: Vec<&String> = rules.iter().flat_map(|r| r.properties.keys()).collect();
        while (names.list.len() as u64) < wanted && !listed.is_empty() {
            let index = self.random_below(listed.len());
            let name = listed.swap_remove(index);
            let (goal, _) = self.member_schemas(&rules, name);
            let allowed = !goal.iter().any(|&id| self.schema.schema_node(id).never);
            if allowed && !plan.without.contains(name) && self.is_member_allowed(&rules, name) {
                names.add_name(name, MemberNeed::Optional);
            }
        }
        while (names.list.len() as u64) < wanted {
            let Some(name) = self.new_property_name(&rules, names, context)? else {
                break;
            };
            names.add_name(&name, MemberNeed::Optional);
        }
        Ok(())
    }

    /// Returns whether an object may have the member `name`: all schemas that its presence
    /// activates must allow objects.
    fn is_member_allowed(&self, rules: &[&'a ObjectRules], name: &str) -> bool {
        rules.iter().flat_map(|r| &r.dependent).all(|(key, id)| {
            key != name || self.schema.schema_node(*id).possible.contains_all(JsonTypes::OBJECT)
        })
    }

    /// Returns whether a schema node has no constraints.
    fn is_unconstrained(&self, id: SchemaNodeId) -> bool {
        let node = self.schema.schema_node(id);
        node.never
            || (!node.typed
                && node.allowed.is_none()
                && node.applicators.is_none()
                && node.string.is_none()
                && node.number.is_none()
                && node.array.is_none()
                && node.object.is_none())
    }

    /// Returns an allowed property name that the object does not have yet.
    fn new_property_name(
        &mut self,
        rules: &[&'a ObjectRules],
        names: &MemberNames,
        context: ValueContext,
    ) -> Result<Option<String>, SampleFailure> {
        let checks: Vec<SchemaNodeId> = rules.iter().filter_map(|r| r.names).collect();
        let patterns: Vec<_> = rules.iter().flat_map(|r| &r.patterns).collect();
        for attempt in 0..MAX_NAME_TRIES {
            self.validator.spend_validation_fuel(2)?;
            let name = if !patterns.is_empty() && (attempt % 3 != 2 || checks.is_empty()) {
                let index = self.random_below(patterns.len());
                let (pattern, _) = patterns[index];
                match pattern.sample_string(0, 64, self.rng) {
                    Some(name) => name,
                    None => continue,
                }
            } else if checks.is_empty() {
                match attempt {
                    0..6 => DEFAULT_PROPERTY_NAMES[self.random_below(DEFAULT_PROPERTY_NAMES.len())]
                        .to_owned(),
                    6..12 => words::random_word(self.rng).to_owned(),
                    _ => format!(
                        "{}_{}",
                        words::random_word(self.rng),
                        self.rng.draw_u64_between(1, 999)
                    ),
                }
            } else {
                let inner =
                    ValueContext { want: JsonTypes::STRING, ..context.nested_context(None) };
                let earlier = self.failure.clone();
                let name = self.sample_value(&checks, inner);
                self.failure = earlier;
                match name {
                    Ok(Value::String(name)) => name,
                    Ok(_) | Err(SampleFailure::NoValue) => continue,
                    Err(fail) => return Err(fail),
                }
            };
            if names.has_name(&name) {
                continue;
            }
            let (goal, _) = self.member_schemas(rules, &name);
            let forbidden = goal.iter().any(|&id| self.schema.schema_node(id).never);
            let forbidden = forbidden || !self.is_member_allowed(rules, &name);
            if !forbidden && self.is_allowed_name(rules, &name)? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Returns the schemas of an object member, and the member's meaning recognised by its name or
    /// description.
    fn member_schemas(
        &self,
        rules: &[&'a ObjectRules],
        name: &str,
    ) -> (Vec<SchemaNodeId>, Option<&'static SemanticType>) {
        let mut goal = Vec::new();
        let mut semantic_type = None;
        let mut known_at_all = false;
        for r in rules {
            let mut known = false;
            if let Some(property) = r.properties.get(name) {
                goal.push(property.node);
                semantic_type = semantic_type.or(property.semantic_type);
                known = true;
            }
            for (pattern, id) in &r.patterns {
                if pattern.is_match(name) {
                    goal.push(*id);
                    known = true;
                }
            }
            if let (false, Some(id)) = (known, r.additional) {
                goal.push(id);
                known = true;
            }
            known_at_all |= known;
        }
        if !known_at_all {
            goal.extend(rules.iter().filter_map(|r| r.unevaluated));
        }
        (goal, semantic_type.or_else(|| SemanticType::from_field_name(name)))
    }
}

fn member_count_bounds(rules: &[&ObjectRules], plan: &ValuePlan) -> (u64, u64) {
    let (least, most) = plan.bounds.members;
    let min = rules.iter().map(|r| r.min).max().unwrap_or(0);
    let max = rules.iter().filter_map(|r| r.max).min();
    (min.max(least), max.unwrap_or(u64::MAX).min(most))
}
