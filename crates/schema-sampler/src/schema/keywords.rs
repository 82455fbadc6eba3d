//! Reads the keywords of a schema object that constrain the value itself, such as `type` and
//! `minimum`.

use serde_json::Value;

use super::format::StringFormat;
use super::node::{
    ArrayRules, ContainsRule, NumberRules, ObjectRules, PropertyRule, SchemaNode, StringRules,
    ValueHints,
};
use super::number::{ExactDecimal, JsonNumber, NumberBound};
use super::read::{DraftKeywordSet, JsonObject, SchemaParser, shortened_json_text};
use super::types::{JsonTypes, json_equal};
use crate::constraint::InvalidSchema;
use crate::regex::{MAX_REGEX_TRANSLATION_COST, SchemaPattern, regex_translation_cost};
use crate::semantic_type::{SemanticType, example_in_description};

impl SchemaParser<'_> {
    pub(super) fn read_type_keyword(
        &self,
        node: &mut SchemaNode,
        map: &JsonObject,
    ) -> Result<(), InvalidSchema> {
        let Some(value) = map.get("type") else {
            return Ok(());
        };
        let names: Vec<&Value> = match value {
            Value::String(_) => vec![value],
            Value::Array(names) => names.iter().collect(),
            _ => {
                return self
                    .invalid_schema_error(&node.path, "type must be a string or array of strings");
            }
        };
        let mut types = JsonTypes::NO_TYPES;
        for name in names {
            let Some(name) = name.as_str() else {
                return self
                    .invalid_schema_error(&node.path, "type must be a string or array of strings");
            };
            let Some(one) = JsonTypes::from_type_name(name) else {
                return self.invalid_schema_error(&node.path, format!("Invalid type: {name}"));
            };
            types = types.union(one);
        }
        node.types = types;
        node.typed = true;
        Ok(())
    }

    pub(super) fn read_enum_and_const(
        &self,
        node: &mut SchemaNode,
        map: &JsonObject,
    ) -> Result<(), InvalidSchema> {
        if let Some(value) = map.get("enum") {
            let Some(values) = value.as_array() else {
                return self.invalid_schema_error(&node.path, "enum must be an array");
            };
            node.allowed = Some(values.clone());
        }
        if let Some(value) = map.get("const").filter(|_| self.keywords != DraftKeywordSet::Draft4) {
            let both = match node.allowed.take() {
                Some(values) if !values.iter().any(|v| json_equal(v, value)) => Vec::new(),
                _ => vec![value.clone()],
            };
            node.allowed = Some(both);
        }
        Ok(())
    }

    pub(super) fn read_number_keywords(
        &self,
        node: &mut SchemaNode,
        map: &JsonObject,
    ) -> Result<(), InvalidSchema> {
        let mut rules = NumberRules::default();
        for (key, exclusive, low) in
            [("minimum", "exclusiveMinimum", true), ("maximum", "exclusiveMaximum", false)]
        {
            let excluded = map.get(exclusive);
            for (name, value, open) in [
                (key, map.get(key), excluded == Some(&Value::Bool(true))),
                (exclusive, excluded.filter(|v| !v.is_boolean()), true),
            ] {
                let Some(value) = value else { continue };
                let Some(number) = value.as_number() else {
                    return self.invalid_schema_error(
                        &node.path,
                        format!("Expected f64 for '{name}', got {}", shortened_json_text(value)),
                    );
                };
                let number = JsonNumber::from_json_number(number);
                let bound = NumberBound { number, open };
                if low {
                    rules.low.push(bound);
                } else {
                    rules.high.push(bound);
                }
            }
        }
        if let Some(value) = map.get("multipleOf") {
            let step =
                value.as_number().map(JsonNumber::from_json_number).filter(|n| n.as_f64() > 0.0);
            let Some(step) = step else {
                return self.invalid_schema_error(&node.path, "invalid multiple of");
            };
            rules.step = ExactDecimal::from_json_number(step);
        }
        if !rules.low.is_empty() || !rules.high.is_empty() || rules.step.is_some() {
            node.number = Some(Box::new(rules));
        }
        Ok(())
    }

    fn read_count_keyword(
        &self,
        node: &SchemaNode,
        map: &JsonObject,
        key: &str,
    ) -> Result<Option<u64>, InvalidSchema> {
        let Some(value) = map.get(key) else {
            return Ok(None);
        };
        let whole = value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0);
        match value.as_u64().or_else(|| whole.map(|f| f as u64)) {
            Some(count) => Ok(Some(count)),
            None => self.invalid_schema_error(
                &node.path,
                format!(
                    "Expected positive integer for '{key}', got {}",
                    shortened_json_text(value)
                ),
            ),
        }
    }

    fn read_text_keyword<'m>(
        &self,
        node: &SchemaNode,
        map: &'m JsonObject,
        key: &str,
    ) -> Result<Option<&'m str>, InvalidSchema> {
        match map.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.invalid_schema_error(
                &node.path,
                format!("Expected string for '{key}', got {}", shortened_json_text(other)),
            ),
        }
    }

    fn compile_pattern(&self, path: &str, source: &str) -> Result<SchemaPattern, InvalidSchema> {
        let cost = self.translation.get() + regex_translation_cost(source);
        self.translation.set(cost);
        if cost > MAX_REGEX_TRANSLATION_COST {
            return self
                .invalid_schema_error(path, "the patterns of the schema are too large".to_owned());
        }
        SchemaPattern::new(source).or_else(|reason| self.invalid_schema_error(path, reason))
    }

    pub(super) fn read_string_keywords(
        &self,
        node: &mut SchemaNode,
        map: &JsonObject,
    ) -> Result<(), InvalidSchema> {
        let encoding = map.get("contentEncoding").and_then(Value::as_str);
        let media = map.get("contentMediaType").and_then(Value::as_str);
        let pattern = self.read_text_keyword(node, map, "pattern")?;
        let format = self.read_text_keyword(node, map, "format")?;
        let rules = StringRules {
            min: self.read_count_keyword(node, map, "minLength")?.unwrap_or(0),
            max: self.read_count_keyword(node, map, "maxLength")?,
            pattern: pattern.map(|p| self.compile_pattern(&node.path, p)).transpose()?,
            format: format.map(|name| StringFormat::new(name, self.draft)),
            base64: encoding == Some("base64"),
            json: media == Some("application/json"),
        };
        if rules.min > 0
            || rules.max.is_some()
            || rules.pattern.is_some()
            || rules.format.is_some()
            || rules.base64
            || rules.json
        {
            node.string = Some(Box::new(rules));
        }
        Ok(())
    }

    pub(super) fn read_array_keywords(
        &mut self,
        node: &mut SchemaNode,
        map: &JsonObject,
        depth: u32,
    ) -> Result<(), InvalidSchema> {
        let mut rules = ArrayRules {
            prefix: self.parse_subschemas(node, map, "prefixItems", depth)?,
            min: self.read_count_keyword(node, map, "minItems")?.unwrap_or(0),
            max: self.read_count_keyword(node, map, "maxItems")?,
            unique: map.get("uniqueItems") == Some(&Value::Bool(true)),
            ..ArrayRules::default()
        };
        if map.get("items").is_some_and(Value::is_array) {
            rules.prefix = self.parse_subschemas(node, map, "items", depth)?;
            rules.rest = self.parse_subschema(node, map, "additionalItems", depth)?;
        } else {
            rules.rest = self.parse_subschema(node, map, "items", depth)?;
        }
        let contains = self.parse_subschema(node, map, "contains", depth)?;
        if let Some(inner) = contains.filter(|_| self.keywords != DraftKeywordSet::Draft4) {
            rules.contains = Some(ContainsRule {
                node: inner,
                min: self.read_count_keyword(node, map, "minContains")?.unwrap_or(1),
                max: self.read_count_keyword(node, map, "maxContains")?,
            });
        }
        rules.unevaluated = self.parse_subschema(node, map, "unevaluatedItems", depth)?;
        self.tracks |= rules.unevaluated.is_some();
        if rules != ArrayRules::default() {
            node.array = Some(Box::new(rules));
        }
        Ok(())
    }

    pub(super) fn read_object_keywords(
        &mut self,
        node: &mut SchemaNode,
        map: &JsonObject,
        depth: u32,
    ) -> Result<(), InvalidSchema> {
        let mut rules = ObjectRules {
            additional: self.parse_subschema(node, map, "additionalProperties", depth)?,
            names: self
                .parse_subschema(node, map, "propertyNames", depth)?
                .filter(|_| self.keywords != DraftKeywordSet::Draft4),
            required: self.read_property_names(node, map.get("required"))?,
            min: self.read_count_keyword(node, map, "minProperties")?.unwrap_or(0),
            max: self.read_count_keyword(node, map, "maxProperties")?,
            unevaluated: self.parse_subschema(node, map, "unevaluatedProperties", depth)?,
            ..ObjectRules::default()
        };
        self.tracks |= rules.unevaluated.is_some();
        for (name, value, path) in self.read_member_schemas(node, map, "properties")? {
            let inner = self.parse_schema_node(value, path, depth + 1)?;
            let semantic_type = SemanticType::from_field_name(name);
            let property = PropertyRule { node: inner, semantic_type };
            rules.properties.insert(name.clone(), property);
        }
        for (name, value, path) in self.read_member_schemas(node, map, "patternProperties")? {
            let pattern = self.compile_pattern(&path, name)?;
            let inner = self.parse_schema_node(value, path, depth + 1)?;
            rules.patterns.push((pattern, inner));
        }
        for (name, value, _) in self.read_member_schemas(node, map, "dependentRequired")? {
            rules.needs.push((name.clone(), self.read_property_names(node, Some(value))?));
        }
        for key in ["dependentSchemas", "dependencies"] {
            for (name, value, path) in self.read_member_schemas(node, map, key)? {
                if value.is_array() || value.is_string() {
                    rules.needs.push((name.clone(), self.read_property_names(node, Some(value))?));
                } else {
                    let inner = self.parse_schema_node(value, path, depth + 1)?;
                    rules.dependent.push((name.clone(), inner));
                }
            }
        }
        if !rules.properties.is_empty()
            || !rules.patterns.is_empty()
            || rules.additional.is_some()
            || rules.names.is_some()
            || !rules.required.is_empty()
            || rules.min > 0
            || rules.max.is_some()
            || !rules.needs.is_empty()
            || !rules.dependent.is_empty()
            || rules.unevaluated.is_some()
        {
            node.object = Some(Box::new(rules));
        }
        Ok(())
    }

    /// Returns the entries of an object-valued keyword such as `properties`, with their paths.
    fn read_member_schemas<'m>(
        &self,
        node: &SchemaNode,
        map: &'m JsonObject,
        key: &str,
    ) -> Result<Vec<(&'m String, &'m Value, String)>, InvalidSchema> {
        match map.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Object(members)) => Ok(members
                .iter()
                .map(|(name, value)| {
                    let escaped = name.replace('~', "~0").replace('/', "~1");
                    (name, value, format!("{}/{key}/{escaped}", node.path))
                })
                .collect()),
            Some(_) => self.invalid_schema_error(&node.path, format!("{key} must be an object")),
        }
    }

    /// Reads a keyword with a list of property names; a boolean `required` (draft 3) is ignored.
    fn read_property_names(
        &self,
        node: &SchemaNode,
        value: Option<&Value>,
    ) -> Result<Vec<String>, InvalidSchema> {
        match value {
            None | Some(Value::Bool(_)) => Ok(Vec::new()),
            Some(Value::String(name)) => Ok(vec![name.clone()]),
            Some(Value::Array(names)) => names
                .iter()
                .map(|name| match name.as_str() {
                    Some(name) => Ok(name.to_owned()),
                    None => self.invalid_schema_error(
                        &node.path,
                        format!("'required' must hold strings, got {}", shortened_json_text(name)),
                    ),
                })
                .collect(),
            Some(other) => self.invalid_schema_error(
                &node.path,
                format!("Expected array for 'required', got {}", shortened_json_text(other)),
            ),
        }
    }
}

impl ValueHints {
    pub(super) fn value_hints_from_keywords(schema_object: &JsonObject) -> Option<Box<Self>> {
        let text = |key| schema_object.get(key).and_then(Value::as_str);
        let mut hints = Self {
            semantic_type: text("title").and_then(SemanticType::from_field_name),
            ..Self::default()
        };
        if let Some(description) = text("description") {
            hints.example = example_in_description(description).map(str::to_owned);
            hints.semantic_type =
                hints.semantic_type.or_else(|| SemanticType::from_description(description));
        }
        for key in ["default", "example"] {
            hints.examples.extend(schema_object.get(key).cloned());
        }
        if let Some(examples) = schema_object.get("examples").and_then(Value::as_array) {
            hints.examples.extend(examples.iter().cloned());
        }
        let any =
            hints.semantic_type.is_some() || hints.example.is_some() || !hints.examples.is_empty();
        any.then(|| Box::new(hints))
    }
}
