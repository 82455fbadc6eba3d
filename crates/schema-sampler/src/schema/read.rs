//! From a JSON document to the table of nodes.

use std::collections::HashMap;

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::refs::Index;
use super::{
    ArrayRules, BadSchema, Conditional, Contains, Decimal, Format, Hints, Logic, Node, NodeId, Num,
    NumberRules, ObjectRules, Property, Schema, StringRules, Types,
};
use crate::regex::Pattern;
use crate::words;

/// How deep a document may nest.
const MAX_NESTING: u32 = 200;

/// How many schema objects a document may have.
const MAX_NODES: usize = 20_000;

type Object = Map<String, Value>;

pub(super) fn read(source: &Value) -> Result<Schema, BadSchema> {
    if too_deep(source, MAX_NESTING) {
        return Err(BadSchema {
            path: "#".to_owned(),
            reason: format!("the schema nests deeper than {MAX_NESTING} levels"),
        });
    }
    let draft = draft_of(source);
    let named = source.get("$schema").and_then(Value::as_str).unwrap_or("");
    let mut reader = Reader {
        root: source,
        draft,
        known: match () {
            () if named.contains("draft-04") => Keywords::Draft4,
            () if named.contains("draft-06") => Keywords::Draft6,
            () => Keywords::All,
        },
        index: Index::new(
            source,
            if draft == Draft::Draft4 { "id" } else { "$id" },
            is_old(draft),
        ),
        nodes: Vec::new(),
        by_path: HashMap::new(),
        pending: Vec::new(),
        tracks: false,
    };
    let root = reader.node(source, String::new(), 0)?;
    reader.link()?;
    let mut own = source.clone();
    if let Value::Object(map) = &mut own {
        // The draft is settled; an unknown dialect would be refused, not ignored.
        map.shift_remove("$schema");
    }
    Ok(Schema {
        nodes: reader.nodes,
        root,
        source: source.clone(),
        checked: own,
        draft,
        tracks: reader.tracks,
        validator: std::sync::OnceLock::new(),
    })
}

/// Before 2019-09 the other keywords beside `$ref` are ignored.
fn is_old(draft: Draft) -> bool {
    matches!(draft, Draft::Draft4 | Draft::Draft6 | Draft::Draft7)
}

/// Whether `value` nests deeper than `limit`, without recursion.
fn too_deep(value: &Value, limit: u32) -> bool {
    let mut stack = vec![(value, 0)];
    while let Some((value, depth)) = stack.pop() {
        if depth > limit {
            return true;
        }
        match value {
            Value::Array(items) => stack.extend(items.iter().map(|v| (v, depth + 1))),
            Value::Object(map) => stack.extend(map.values().map(|v| (v, depth + 1))),
            _ => {}
        }
    }
    false
}

/// The draft that `$schema` names, else the latest under which the document can be valid.
fn draft_of(source: &Value) -> Draft {
    let named = source.get("$schema").and_then(Value::as_str).unwrap_or("");
    let mut draft = [
        ("draft-04", Draft::Draft4),
        ("draft-06", Draft::Draft6),
        ("draft-07", Draft::Draft7),
        ("2019-09", Draft::Draft201909),
    ]
    .into_iter()
    .find_map(|(key, draft)| named.contains(key).then_some(draft))
    .unwrap_or(Draft::Draft202012);
    // Agents mix drafts: a list as `items` ended with 2019-09, a boolean bound with draft 4.
    let mut stack = vec![source];
    while let Some(value) = stack.pop() {
        match value {
            Value::Object(map) => {
                if map.get("items").is_some_and(Value::is_array) && draft == Draft::Draft202012 {
                    draft = Draft::Draft201909;
                }
                let boolean = |key| map.get(key).is_some_and(Value::is_boolean);
                if boolean("exclusiveMinimum") || boolean("exclusiveMaximum") {
                    return Draft::Draft4;
                }
                stack.extend(map.values());
            }
            Value::Array(items) => stack.extend(items),
            _ => {}
        }
    }
    draft
}

/// Which keywords mean anything; a document that names no old draft may use them all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keywords {
    /// Without `const`, `contains`, `propertyNames` and `if`.
    Draft4,
    /// Without `if`.
    Draft6,
    All,
}

struct Reader<'v> {
    root: &'v Value,
    draft: Draft,
    known: Keywords,
    index: Index,
    nodes: Vec<Node>,
    by_path: HashMap<String, NodeId>,
    /// References to resolve once all named places are known.
    pending: Vec<(NodeId, String)>,
    tracks: bool,
}

impl Reader<'_> {
    fn bad<T>(&self, path: &str, reason: impl Into<String>) -> Result<T, BadSchema> {
        Err(BadSchema {
            path: format!("#{path}"),
            reason: reason.into(),
        })
    }

    /// Resolves references; a target outside the known keywords is read now.
    fn link(&mut self) -> Result<(), BadSchema> {
        while let Some((from, reference)) = self.pending.pop() {
            let path = self.nodes[from as usize].path.clone();
            let target = match self.index.resolve(&reference, &path) {
                Some(pointer) => match self.by_path.get(&pointer) {
                    Some(&id) => id,
                    None => match self.root.pointer(&pointer) {
                        Some(value) => self.node(value, pointer, 0)?,
                        None => {
                            return self.bad(&path, format!("Pointer '{pointer}' does not exist"));
                        }
                    },
                },
                None if reference.contains("json-schema.org/draft") => self.any_object(),
                None => {
                    return self.bad(&path, format!("cannot resolve reference '{reference}'"));
                }
            };
            let logic = &mut self.nodes[from as usize].logic;
            logic.get_or_insert_default().refs.push(target);
        }
        Ok(())
    }

    /// Stands for a meta-schema: an empty object is a schema in every draft.
    fn any_object(&mut self) -> NodeId {
        let mut node = Node::new("/$ref".to_owned());
        node.types = Types::OBJECT;
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeId
    }

    fn node(&mut self, value: &Value, path: String, depth: u32) -> Result<NodeId, BadSchema> {
        if let Some(&id) = self.by_path.get(&path) {
            return Ok(id);
        }
        if self.nodes.len() >= MAX_NODES {
            return self.bad(&path, "schema too large");
        }
        if depth > MAX_NESTING {
            return self.bad(&path, "schema nested too deeply");
        }
        let id = self.nodes.len() as NodeId;
        self.by_path.insert(path.clone(), id);
        self.nodes.push(Node::new(path));
        match value {
            Value::Bool(yes) => self.nodes[id as usize].never = !yes,
            Value::Object(map) => {
                let mut node = Node::new(self.nodes[id as usize].path.clone());
                self.fill(&mut node, map, id, depth)?;
                // References found meanwhile were only queued, so nothing is lost here.
                self.nodes[id as usize] = node;
            }
            _ => {
                let path = self.nodes[id as usize].path.clone();
                return self.bad(&path, "schema must be an object or boolean");
            }
        }
        Ok(id)
    }

    fn fill(
        &mut self,
        node: &mut Node,
        map: &Object,
        id: NodeId,
        depth: u32,
    ) -> Result<(), BadSchema> {
        let path = node.path.clone();
        if let Some(reference) = map.get("$ref") {
            let Some(reference) = reference.as_str() else {
                return self.bad(
                    &path,
                    format!("$ref must be a string, got {}", brief(reference)),
                );
            };
            self.pending.push((id, reference.to_owned()));
            if is_old(self.draft) {
                // A reference may still lead into the neighbours.
                node.hints = hints(map);
                return Ok(());
            }
        }
        for key in ["$dynamicRef", "$recursiveRef"] {
            if let Some(reference) = map.get(key).and_then(Value::as_str) {
                self.pending.push((id, reference.to_owned()));
            }
        }
        self.types(node, map)?;
        self.allowed(node, map)?;
        self.number(node, map)?;
        self.string(node, map)?;
        self.array(node, map, depth)?;
        self.object(node, map, depth)?;
        self.logic(node, map, depth)?;
        node.hints = hints(map);
        Ok(())
    }

    fn types(&self, node: &mut Node, map: &Object) -> Result<(), BadSchema> {
        let Some(value) = map.get("type") else {
            return Ok(());
        };
        let names: Vec<&Value> = match value {
            Value::String(_) => vec![value],
            Value::Array(names) => names.iter().collect(),
            _ => return self.bad(&node.path, "type must be a string or array of strings"),
        };
        let mut types = Types::NONE;
        for name in names {
            let Some(name) = name.as_str() else {
                return self.bad(&node.path, "type must be a string or array of strings");
            };
            let Some(one) = Types::named(name) else {
                return self.bad(&node.path, format!("Invalid type: {name}"));
            };
            types = types.or(one);
        }
        node.types = types;
        node.typed = true;
        Ok(())
    }

    fn allowed(&self, node: &mut Node, map: &Object) -> Result<(), BadSchema> {
        if let Some(value) = map.get("enum") {
            let Some(values) = value.as_array() else {
                return self.bad(&node.path, "enum must be an array");
            };
            node.allowed = Some(values.clone());
        }
        if let Some(value) = map.get("const").filter(|_| self.known != Keywords::Draft4) {
            let both = match node.allowed.take() {
                Some(values) if !values.iter().any(|v| super::same(v, value)) => Vec::new(),
                _ => vec![value.clone()],
            };
            node.allowed = Some(both);
        }
        Ok(())
    }

    fn number(&self, node: &mut Node, map: &Object) -> Result<(), BadSchema> {
        let mut rules = NumberRules::default();
        for (key, exclusive, low) in [
            ("minimum", "exclusiveMinimum", true),
            ("maximum", "exclusiveMaximum", false),
        ] {
            let excluded = map.get(exclusive);
            for (name, value, open) in [
                (key, map.get(key), excluded == Some(&Value::Bool(true))),
                (exclusive, excluded.filter(|v| !v.is_boolean()), true),
            ] {
                let Some(value) = value else { continue };
                let Some(number) = value.as_number() else {
                    return self.bad(
                        &node.path,
                        format!("Expected f64 for '{name}', got {}", brief(value)),
                    );
                };
                let bound = (Num::of(number), open);
                if low {
                    rules.low.push(bound);
                } else {
                    rules.high.push(bound);
                }
            }
        }
        if let Some(value) = map.get("multipleOf") {
            let step = value.as_number().map(Num::of).filter(|n| n.as_f64() > 0.0);
            let Some(step) = step else {
                return self.bad(&node.path, "invalid multiple of");
            };
            rules.step = Decimal::of(step);
        }
        if !rules.low.is_empty() || !rules.high.is_empty() || rules.step.is_some() {
            node.number = Some(Box::new(rules));
        }
        Ok(())
    }

    fn count(&self, node: &Node, map: &Object, key: &str) -> Result<Option<u64>, BadSchema> {
        let Some(value) = map.get(key) else {
            return Ok(None);
        };
        let whole = value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0);
        match value.as_u64().or_else(|| whole.map(|f| f as u64)) {
            Some(count) => Ok(Some(count)),
            None => self.bad(
                &node.path,
                format!(
                    "Expected positive integer for '{key}', got {}",
                    brief(value)
                ),
            ),
        }
    }

    fn text<'m>(
        &self,
        node: &Node,
        map: &'m Object,
        key: &str,
    ) -> Result<Option<&'m str>, BadSchema> {
        match map.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.bad(
                &node.path,
                format!("Expected string for '{key}', got {}", brief(other)),
            ),
        }
    }

    fn pattern(&self, path: &str, source: &str) -> Result<Pattern, BadSchema> {
        Pattern::new(source).or_else(|reason| self.bad(path, reason))
    }

    fn string(&self, node: &mut Node, map: &Object) -> Result<(), BadSchema> {
        let encoding = map.get("contentEncoding").and_then(Value::as_str);
        let media = map.get("contentMediaType").and_then(Value::as_str);
        let pattern = self.text(node, map, "pattern")?;
        let format = self.text(node, map, "format")?;
        let rules = StringRules {
            min: self.count(node, map, "minLength")?.unwrap_or(0),
            max: self.count(node, map, "maxLength")?,
            pattern: pattern.map(|p| self.pattern(&node.path, p)).transpose()?,
            format: format.map(|name| Format::new(name, self.draft)),
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

    fn sub(
        &mut self,
        node: &Node,
        map: &Object,
        key: &str,
        depth: u32,
    ) -> Result<Option<NodeId>, BadSchema> {
        match map.get(key) {
            Some(value) => self
                .node(value, format!("{}/{key}", node.path), depth + 1)
                .map(Some),
            None => Ok(None),
        }
    }

    fn subs(
        &mut self,
        node: &Node,
        map: &Object,
        key: &str,
        depth: u32,
    ) -> Result<Vec<NodeId>, BadSchema> {
        let Some(value) = map.get(key) else {
            return Ok(Vec::new());
        };
        let Some(items) = value.as_array() else {
            return self.bad(&node.path, format!("{key} must be an array"));
        };
        items
            .iter()
            .enumerate()
            .map(|(i, item)| self.node(item, format!("{}/{key}/{i}", node.path), depth + 1))
            .collect()
    }

    fn array(&mut self, node: &mut Node, map: &Object, depth: u32) -> Result<(), BadSchema> {
        let mut rules = ArrayRules {
            prefix: self.subs(node, map, "prefixItems", depth)?,
            min: self.count(node, map, "minItems")?.unwrap_or(0),
            max: self.count(node, map, "maxItems")?,
            unique: map.get("uniqueItems") == Some(&Value::Bool(true)),
            ..ArrayRules::default()
        };
        if map.get("items").is_some_and(Value::is_array) {
            rules.prefix = self.subs(node, map, "items", depth)?;
            rules.rest = self.sub(node, map, "additionalItems", depth)?;
        } else {
            rules.rest = self.sub(node, map, "items", depth)?;
        }
        let contains = self.sub(node, map, "contains", depth)?;
        if let Some(inner) = contains.filter(|_| self.known != Keywords::Draft4) {
            rules.contains = Some(Contains {
                node: inner,
                min: self.count(node, map, "minContains")?.unwrap_or(1),
                max: self.count(node, map, "maxContains")?,
            });
        }
        rules.unevaluated = self.sub(node, map, "unevaluatedItems", depth)?;
        self.tracks |= rules.unevaluated.is_some();
        if !rules.prefix.is_empty()
            || rules.rest.is_some()
            || rules.min > 0
            || rules.max.is_some()
            || rules.unique
            || rules.contains.is_some()
            || rules.unevaluated.is_some()
        {
            node.array = Some(Box::new(rules));
        }
        Ok(())
    }

    fn object(&mut self, node: &mut Node, map: &Object, depth: u32) -> Result<(), BadSchema> {
        let mut rules = ObjectRules {
            additional: self.sub(node, map, "additionalProperties", depth)?,
            names: self
                .sub(node, map, "propertyNames", depth)?
                .filter(|_| self.known != Keywords::Draft4),
            required: self.names(node, map.get("required"))?,
            min: self.count(node, map, "minProperties")?.unwrap_or(0),
            max: self.count(node, map, "maxProperties")?,
            unevaluated: self.sub(node, map, "unevaluatedProperties", depth)?,
            ..ObjectRules::default()
        };
        self.tracks |= rules.unevaluated.is_some();
        for (name, value, path) in self.members(node, map, "properties")? {
            let inner = self.node(value, path, depth + 1)?;
            let concept = words::concept(name);
            let property = Property {
                node: inner,
                concept,
            };
            rules.properties.insert(name.clone(), property);
        }
        for (name, value, path) in self.members(node, map, "patternProperties")? {
            let pattern = self.pattern(&path, name)?;
            let inner = self.node(value, path, depth + 1)?;
            rules.patterns.push((pattern, inner));
        }
        for (name, value, _) in self.members(node, map, "dependentRequired")? {
            rules
                .needs
                .push((name.clone(), self.names(node, Some(value))?));
        }
        for key in ["dependentSchemas", "dependencies"] {
            for (name, value, path) in self.members(node, map, key)? {
                if value.is_array() || value.is_string() {
                    rules
                        .needs
                        .push((name.clone(), self.names(node, Some(value))?));
                } else {
                    let inner = self.node(value, path, depth + 1)?;
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

    /// The entries of an object-valued keyword, with their paths.
    fn members<'m>(
        &self,
        node: &Node,
        map: &'m Object,
        key: &str,
    ) -> Result<Vec<(&'m String, &'m Value, String)>, BadSchema> {
        match map.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Object(members)) => Ok(members
                .iter()
                .map(|(name, value)| {
                    let escaped = name.replace('~', "~0").replace('/', "~1");
                    (name, value, format!("{}/{key}/{escaped}", node.path))
                })
                .collect()),
            Some(_) => self.bad(&node.path, format!("{key} must be an object")),
        }
    }

    /// A list of property names; draft 3's boolean `required` asks for nothing here.
    fn names(&self, node: &Node, value: Option<&Value>) -> Result<Vec<String>, BadSchema> {
        match value {
            None | Some(Value::Bool(_)) => Ok(Vec::new()),
            Some(Value::String(name)) => Ok(vec![name.clone()]),
            Some(Value::Array(names)) => names
                .iter()
                .map(|name| match name.as_str() {
                    Some(name) => Ok(name.to_owned()),
                    None => self.bad(
                        &node.path,
                        format!("'required' must hold strings, got {}", brief(name)),
                    ),
                })
                .collect(),
            Some(other) => self.bad(
                &node.path,
                format!("Expected array for 'required', got {}", brief(other)),
            ),
        }
    }

    fn logic(&mut self, node: &mut Node, map: &Object, depth: u32) -> Result<(), BadSchema> {
        let mut logic = Logic {
            all: self.subs(node, map, "allOf", depth)?,
            any: self.subs(node, map, "anyOf", depth)?,
            one: self.subs(node, map, "oneOf", depth)?,
            not: self.sub(node, map, "not", depth)?,
            ..Logic::default()
        };
        let test = self.sub(node, map, "if", depth)?;
        if let Some(test) = test.filter(|_| self.known == Keywords::All) {
            logic.when = Some(Conditional {
                test,
                then: self.sub(node, map, "then", depth)?,
                otherwise: self.sub(node, map, "else", depth)?,
            });
        }
        if !logic.all.is_empty()
            || !logic.any.is_empty()
            || !logic.one.is_empty()
            || logic.not.is_some()
            || logic.when.is_some()
        {
            node.logic = Some(Box::new(logic));
        }
        Ok(())
    }
}

fn hints(map: &Object) -> Option<Box<Hints>> {
    let text = |key| map.get(key).and_then(Value::as_str);
    let mut hints = Hints {
        concept: text("title").and_then(words::concept),
        ..Hints::default()
    };
    if let Some(description) = text("description") {
        hints.said = words::example_in(description).map(str::to_owned);
        hints.concept = hints
            .concept
            .or_else(|| words::concept_of_description(description));
    }
    for key in ["default", "example"] {
        hints.values.extend(map.get(key).cloned());
    }
    if let Some(examples) = map.get("examples").and_then(Value::as_array) {
        hints.values.extend(examples.iter().cloned());
    }
    let any = hints.concept.is_some() || hints.said.is_some() || !hints.values.is_empty();
    any.then(|| Box::new(hints))
}

/// A value as an error message shows it.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return text;
    }
    text.chars().take(60).chain("...".chars()).collect()
}
