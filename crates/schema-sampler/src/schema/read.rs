//! Parses a JSON schema document into a table of nodes.

use std::cell::Cell;
use std::collections::HashMap;

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::node::{ApplicatorKeywords, ConditionalSchemas, SchemaNode, SchemaNodeId, ValueHints};
use super::references::{ReferenceIndex, ignores_ref_siblings};
use super::types::JsonTypes;
use crate::constraint::InvalidSchema;

const MAX_SCHEMA_NESTING: u32 = 200;

const MAX_SCHEMA_NODES: usize = 20_000;

pub(super) type JsonObject = Map<String, Value>;

pub(super) struct ParsedSchema {
    pub(super) nodes: Vec<SchemaNode>,
    pub(super) root: SchemaNodeId,
    pub(super) draft: Draft,
    /// Whether the JSON schema contains `unevaluatedItems` or `unevaluatedProperties`.
    pub(super) tracks: bool,
}

pub(super) fn parse_schema(source: &Value) -> Result<ParsedSchema, InvalidSchema> {
    if is_nested_deeper(source, MAX_SCHEMA_NESTING) {
        return Err(InvalidSchema {
            path: "#".to_owned(),
            reason: format!("the schema nests deeper than {MAX_SCHEMA_NESTING} levels"),
        });
    }
    let draft = detect_draft(source);
    let named = source.get("$schema").and_then(Value::as_str).unwrap_or("");
    let mut reader = SchemaParser {
        root: source,
        draft,
        keywords: match () {
            () if named.contains("draft-04") => DraftKeywordSet::Draft4,
            () if named.contains("draft-06") => DraftKeywordSet::Draft6,
            () => DraftKeywordSet::All,
        },
        index: ReferenceIndex::new(source, draft),
        nodes: Vec::new(),
        by_path: HashMap::new(),
        pending: Vec::new(),
        tracks: false,
        translation: Cell::new(0),
    };
    let root = reader.parse_schema_node(source, String::new(), 0)?;
    reader.resolve_references()?;
    Ok(ParsedSchema { nodes: reader.nodes, root, draft, tracks: reader.tracks })
}

/// Returns whether a JSON value is nested deeper than `limit`, without recursion.
fn is_nested_deeper(value: &Value, limit: u32) -> bool {
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

/// Returns the JSON Schema draft named by `$schema`, else the latest draft under which the document
/// is valid.
fn detect_draft(source: &Value) -> Draft {
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
    // Agents mix drafts: lists as `items` end with 2019-09, boolean bounds with draft 4.
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

/// Set of JSON Schema keywords that a document may use; a document that names no old draft may use
/// all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DraftKeywordSet {
    /// The JSON Schema keywords of draft 4, without `const`, `contains`, `propertyNames` and `if`.
    Draft4,
    /// The JSON Schema keywords of draft 6, without `if`.
    Draft6,
    All,
}

pub(super) struct SchemaParser<'v> {
    root: &'v Value,
    pub(super) draft: Draft,
    pub(super) keywords: DraftKeywordSet,
    index: ReferenceIndex,
    nodes: Vec<SchemaNode>,
    by_path: HashMap<String, SchemaNodeId>,
    /// `$ref` references of the schema document that are resolved after all nodes are known.
    pending: Vec<(SchemaNodeId, String)>,
    pub(super) tracks: bool,
    /// Total cost of translating the schema's regular expressions, in bytes times classes.
    pub(super) translation: Cell<usize>,
}

impl SchemaParser<'_> {
    pub(super) fn invalid_schema_error<T>(
        &self,
        path: &str,
        reason: impl Into<String>,
    ) -> Result<T, InvalidSchema> {
        Err(InvalidSchema { path: format!("#{path}"), reason: reason.into() })
    }

    /// Resolves all `$ref` references of the schema document; also parses targets that are not
    /// under a known keyword.
    fn resolve_references(&mut self) -> Result<(), InvalidSchema> {
        while let Some((from, reference)) = self.pending.pop() {
            let path = self.nodes[from as usize].path.clone();
            let target = match self.index.resolve_reference(&reference, &path) {
                Some(pointer) => match self.by_path.get(&pointer) {
                    Some(&id) => id,
                    None => match self.root.pointer(&pointer) {
                        Some(value) => self.parse_schema_node(value, pointer, 0)?,
                        None => {
                            return self.invalid_schema_error(
                                &path,
                                format!("Pointer '{pointer}' does not exist"),
                            );
                        }
                    },
                },
                None if reference.contains("json-schema.org/draft") => self.add_any_object_node(),
                None => {
                    return self.invalid_schema_error(
                        &path,
                        format!("cannot resolve reference '{reference}'"),
                    );
                }
            };
            let applicators = &mut self.nodes[from as usize].applicators;
            applicators.get_or_insert_default().refs.push(target);
        }
        Ok(())
    }

    /// Returns the index of a new node for a reference to a meta-schema; the node accepts any
    /// object.
    fn add_any_object_node(&mut self) -> SchemaNodeId {
        let mut node = SchemaNode::new("/$ref".to_owned());
        node.types = JsonTypes::OBJECT;
        self.nodes.push(node);
        (self.nodes.len() - 1) as SchemaNodeId
    }

    pub(super) fn parse_schema_node(
        &mut self,
        value: &Value,
        path: String,
        depth: u32,
    ) -> Result<SchemaNodeId, InvalidSchema> {
        if let Some(&id) = self.by_path.get(&path) {
            return Ok(id);
        }
        if self.nodes.len() >= MAX_SCHEMA_NODES {
            return self.invalid_schema_error(&path, "schema too large");
        }
        if depth > MAX_SCHEMA_NESTING {
            return self.invalid_schema_error(&path, "schema nested too deeply");
        }
        let id = self.nodes.len() as SchemaNodeId;
        self.by_path.insert(path.clone(), id);
        self.nodes.push(SchemaNode::new(path));
        match value {
            Value::Bool(yes) => self.nodes[id as usize].never = !yes,
            Value::Object(map) => {
                let mut node = SchemaNode::new(self.nodes[id as usize].path.clone());
                self.parse_keywords(&mut node, map, id, depth)?;
                // References found in between were only queued, so no change is lost.
                self.nodes[id as usize] = node;
            }
            _ => {
                let path = self.nodes[id as usize].path.clone();
                return self.invalid_schema_error(&path, "schema must be an object or boolean");
            }
        }
        Ok(id)
    }

    fn parse_keywords(
        &mut self,
        node: &mut SchemaNode,
        map: &JsonObject,
        id: SchemaNodeId,
        depth: u32,
    ) -> Result<(), InvalidSchema> {
        let path = node.path.clone();
        if let Some(reference) = map.get("$ref") {
            let Some(reference) = reference.as_str() else {
                return self.invalid_schema_error(
                    &path,
                    format!("$ref must be a string, got {}", shortened_json_text(reference)),
                );
            };
            self.pending.push((id, reference.to_owned()));
            if ignores_ref_siblings(self.draft) {
                // The reference may still point to a sibling keyword.
                node.hints = ValueHints::value_hints_from_keywords(map);
                return Ok(());
            }
        }
        for key in ["$dynamicRef", "$recursiveRef"] {
            if let Some(reference) = map.get(key).and_then(Value::as_str) {
                self.pending.push((id, reference.to_owned()));
            }
        }
        self.read_type_keyword(node, map)?;
        self.read_enum_and_const(node, map)?;
        self.read_number_keywords(node, map)?;
        self.read_string_keywords(node, map)?;
        self.read_array_keywords(node, map, depth)?;
        self.read_object_keywords(node, map, depth)?;
        self.parse_applicators(node, map, depth)?;
        node.hints = ValueHints::value_hints_from_keywords(map);
        Ok(())
    }

    pub(super) fn parse_subschema(
        &mut self,
        node: &SchemaNode,
        map: &JsonObject,
        key: &str,
        depth: u32,
    ) -> Result<Option<SchemaNodeId>, InvalidSchema> {
        match map.get(key) {
            Some(value) => {
                self.parse_schema_node(value, format!("{}/{key}", node.path), depth + 1).map(Some)
            }
            None => Ok(None),
        }
    }

    pub(super) fn parse_subschemas(
        &mut self,
        node: &SchemaNode,
        map: &JsonObject,
        key: &str,
        depth: u32,
    ) -> Result<Vec<SchemaNodeId>, InvalidSchema> {
        let Some(value) = map.get(key) else {
            return Ok(Vec::new());
        };
        let Some(items) = value.as_array() else {
            return self.invalid_schema_error(&node.path, format!("{key} must be an array"));
        };
        items
            .iter()
            .enumerate()
            .map(|(i, item)| {
                self.parse_schema_node(item, format!("{}/{key}/{i}", node.path), depth + 1)
            })
            .collect()
    }

    fn parse_applicators(
        &mut self,
        node: &mut SchemaNode,
        map: &JsonObject,
        depth: u32,
    ) -> Result<(), InvalidSchema> {
        let mut applicators = ApplicatorKeywords {
            all: self.parse_subschemas(node, map, "allOf", depth)?,
            any: self.parse_subschemas(node, map, "anyOf", depth)?,
            one: self.parse_subschemas(node, map, "oneOf", depth)?,
            not: self.parse_subschema(node, map, "not", depth)?,
            ..ApplicatorKeywords::default()
        };
        let test = self.parse_subschema(node, map, "if", depth)?;
        if let Some(test) = test.filter(|_| self.keywords == DraftKeywordSet::All) {
            applicators.when = Some(ConditionalSchemas {
                test,
                then: self.parse_subschema(node, map, "then", depth)?,
                otherwise: self.parse_subschema(node, map, "else", depth)?,
            });
        }
        if applicators != ApplicatorKeywords::default() {
            node.applicators = Some(Box::new(applicators));
        }
        Ok(())
    }
}

/// Formats a JSON value for an error message, truncated to 60 characters.
pub(super) fn shortened_json_text(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return text;
    }
    text.chars().take(60).chain("...".chars()).collect()
}
