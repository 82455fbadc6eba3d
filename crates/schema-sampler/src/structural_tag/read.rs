//! Parses xgrammar structural tags from JSON.

use serde_json::{Map, Value};

use super::format::{JsonStyle, StructuralTag};
use crate::constraint::ConstraintError;
use crate::grammar::Grammar;
use crate::regex::WholeRegex;
use crate::schema::Schema;

const MAX_NESTING: u32 = 100;

type ReadResult<T> = Result<T, ConstraintError>;

fn bad<T>(words: impl Into<String>) -> ReadResult<T> {
    Err(ConstraintError::BadTag(words.into()))
}

impl StructuralTag {
    /// Parses a structural tag: the form with `format`, or the older one with `structures` and
    /// `triggers`.
    ///
    /// # Errors
    /// [`ConstraintError`] of the first invalid part.
    pub(crate) fn read(value: &Value) -> ReadResult<Self> {
        let parsed;
        let value = match value {
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                Ok(value) => {
                    parsed = value;
                    &parsed
                }
                Err(error) => return bad(format!("the structural tag is no JSON: {error}")),
            },
            value => value,
        };
        let Some(map) = value.as_object() else {
            return bad("a structural tag must be an object");
        };
        if map.contains_key("structures") {
            return older(map);
        }
        match map.get("format") {
            Some(format) => read(format, 0),
            None => bad("a structural tag needs 'format', or 'structures' and 'triggers'"),
        }
    }
}

fn older(map: &Map<String, Value>) -> ReadResult<StructuralTag> {
    let triggers = strings(map, "triggers")?;
    let Some(structures) = map.get("structures").and_then(Value::as_array) else {
        return bad("'structures' must be an array");
    };
    let mut tags = Vec::new();
    for structure in structures {
        let Some(structure) = structure.as_object() else {
            return bad("a structure must be an object");
        };
        let begin = text(structure, "begin")?;
        if !triggers.iter().any(|trigger| begin.starts_with(trigger)) {
            return bad(format!(
                "Trigger {begin} not found in triggers {triggers:?}"
            ));
        }
        let Some(schema) = structure.get("schema") else {
            return bad("'schema'");
        };
        tags.push(StructuralTag::Tag {
            begin,
            content: Box::new(StructuralTag::JsonSchema(
                Box::new(schema_of(schema)?),
                JsonStyle::Json,
            )),
            ends: vec![text(structure, "end")?],
        });
    }
    if tags.is_empty() {
        return bad("No structural tags found in the grammar spec.");
    }
    Ok(StructuralTag::TriggeredTags {
        triggers,
        tags,
        at_least_one: false,
        stop_after_first: false,
    })
}

fn read(format: &Value, nesting: u32) -> ReadResult<StructuralTag> {
    let Some(map) = format.as_object() else {
        return bad("a format must be an object");
    };
    if nesting > MAX_NESTING {
        return bad("the structural tag nests too deep");
    }
    let inner = |key: &str| match map.get(key) {
        Some(value) => read(value, nesting + 1).map(Box::new),
        None => bad(format!("'{key}' is missing")),
    };
    let kind = text(map, "type")?;
    Ok(match kind.as_str() {
        "const_string" => StructuralTag::ConstString(text(map, "value")?),
        "json_schema" => json_schema(map)?,
        "qwen_xml_parameter" => {
            let schema = map.get("json_schema").unwrap_or(&Value::Bool(true));
            StructuralTag::JsonSchema(Box::new(schema_of(schema)?), JsonStyle::Qwen)
        }
        "grammar" => StructuralTag::Grammar(Box::new(Grammar::read(&text(map, "grammar")?)?)),
        "regex" => StructuralTag::Regex(Box::new(WholeRegex::new(&text(map, "pattern")?)?)),
        "any_text" | "any_tokens" | "exclude_token" => StructuralTag::AnyText {
            excludes: strings(map, "excludes").unwrap_or_default(),
            max_chars: map.get("max_chars").and_then(Value::as_u64),
        },
        "sequence" => StructuralTag::Sequence(list(map, "elements", nesting)?),
        "or" => StructuralTag::Or(list(map, "elements", nesting)?),
        "optional" => StructuralTag::Repeat(inner("content")?, 0, Some(1)),
        "plus" => StructuralTag::Repeat(inner("content")?, 1, None),
        "star" => StructuralTag::Repeat(inner("content")?, 0, None),
        "repeat" => {
            let bound = |key| map.get(key).and_then(Value::as_i64);
            let min = u32::try_from(bound("min").unwrap_or(0)).unwrap_or(0);
            let max = bound("max").and_then(|max| u32::try_from(max).ok());
            if max.is_some_and(|max| max < min) {
                return bad(format!("repeat: 'max' is less than 'min' ({min})"));
            }
            StructuralTag::Repeat(inner("content")?, min, max)
        }
        "tag" => tagged(map, nesting)?,
        "triggered_tags" | "token_triggered_tags" => triggered(map, nesting)?,
        "tags_with_separator" => StructuralTag::TagsWithSeparator {
            tags: list(map, "tags", nesting)?,
            separator: text(map, "separator")?,
            at_least_one: flag(map, "at_least_one"),
            stop_after_first: flag(map, "stop_after_first"),
        },
        "dispatch" | "token_dispatch" => dispatch(map, nesting)?,
        "token" => StructuralTag::ConstString(mark(Some(format))?),
        _ => return bad(format!("unknown format type '{kind}'")),
    })
}

fn json_schema(map: &Map<String, Value>) -> ReadResult<StructuralTag> {
    let Some(schema) = map.get("json_schema") else {
        return bad("'json_schema' is missing");
    };
    let style = match map.get("style").and_then(Value::as_str).unwrap_or("json") {
        "json" => JsonStyle::Json,
        "qwen_xml" => JsonStyle::Qwen,
        "minimax_xml" => JsonStyle::Minimax,
        "glm_xml" => JsonStyle::Glm,
        other => return bad(format!("style '{other}' is not supported")),
    };
    Ok(StructuralTag::JsonSchema(
        Box::new(schema_of(schema)?),
        style,
    ))
}

fn schema_of(value: &Value) -> ReadResult<Schema> {
    match value {
        Value::String(text) => {
            let value = serde_json::from_str(text).map_err(|_| ConstraintError::InvalidJson)?;
            Ok(Schema::read(&value)?)
        }
        value => Ok(Schema::read(value)?),
    }
}

fn tagged(map: &Map<String, Value>, nesting: u32) -> ReadResult<StructuralTag> {
    let ends = match map.get("end") {
        Some(Value::Array(ends)) => ends
            .iter()
            .map(|end| mark(Some(end)))
            .collect::<ReadResult<_>>()?,
        end => vec![mark(end)?],
    };
    let Some(content) = map.get("content") else {
        return bad("'content' is missing");
    };
    if ends.is_empty() {
        return bad("'end' must not be empty");
    }
    Ok(StructuralTag::Tag {
        begin: mark(map.get("begin"))?,
        content: Box::new(read(content, nesting + 1)?),
        ends,
    })
}

fn triggered(map: &Map<String, Value>, nesting: u32) -> ReadResult<StructuralTag> {
    let triggers = match map.get("triggers").or_else(|| map.get("trigger_tokens")) {
        Some(Value::Array(triggers)) => triggers
            .iter()
            .map(|trigger| mark(Some(trigger)))
            .collect::<ReadResult<Vec<String>>>()?,
        _ => return bad("'triggers' must be an array"),
    };
    let tags = list(map, "tags", nesting)?;
    for tag in &tags {
        let StructuralTag::Tag { begin, .. } = tag else {
            return bad("every one of the tags must be of type 'tag'");
        };
        if !triggers.iter().any(|trigger| begin.starts_with(trigger)) {
            return bad(format!(
                "Trigger {begin} not found in triggers {triggers:?}"
            ));
        }
    }
    Ok(StructuralTag::TriggeredTags {
        triggers,
        tags,
        at_least_one: flag(map, "at_least_one"),
        stop_after_first: flag(map, "stop_after_first"),
    })
}

fn dispatch(map: &Map<String, Value>, nesting: u32) -> ReadResult<StructuralTag> {
    let Some(rules) = map.get("rules").and_then(Value::as_array) else {
        return bad("'rules' must be an array");
    };
    let mut tags = Vec::new();
    let mut triggers = Vec::new();
    for rule in rules {
        let Some([pattern, format]) = rule.as_array().map(Vec::as_slice) else {
            return bad("a rule must be a pair of a pattern and a format");
        };
        let begin = mark(Some(pattern))?;
        triggers.push(begin.clone());
        tags.push(StructuralTag::Tag {
            begin,
            content: Box::new(read(format, nesting + 1)?),
            ends: vec![String::new()],
        });
    }
    Ok(StructuralTag::TriggeredTags {
        triggers,
        tags,
        at_least_one: false,
        stop_after_first: map.get("loop") == Some(&Value::Bool(false)),
    })
}

/// Reads the begin, end or trigger of a structural tag: a string, or an object `{"token": TEXT}`.
fn mark(value: Option<&Value>) -> ReadResult<String> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Object(map)) => match map.get("token") {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => bad("a token must be named by its text: ids need a tokenizer"),
        },
        Some(Value::Number(_)) => bad("a token must be named by its text: ids need a tokenizer"),
        _ => bad("'begin' and 'end' must be strings or tokens"),
    }
}

fn text(map: &Map<String, Value>, key: &str) -> ReadResult<String> {
    match map.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => bad(format!("'{key}' must be a string")),
        None => bad(format!("'{key}' is missing")),
    }
}

fn strings(map: &Map<String, Value>, key: &str) -> ReadResult<Vec<String>> {
    let Some(items) = map.get(key).and_then(Value::as_array) else {
        return bad(format!("'{key}' must be an array of strings"));
    };
    items
        .iter()
        .map(|item| match item.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => bad(format!("'{key}' must be an array of strings")),
        })
        .collect()
}

fn list(map: &Map<String, Value>, key: &str, nesting: u32) -> ReadResult<Vec<StructuralTag>> {
    match map.get(key).and_then(Value::as_array) {
        Some(items) if !items.is_empty() => {
            items.iter().map(|item| read(item, nesting + 1)).collect()
        }
        _ => bad(format!("'{key}' must be an array with at least one format")),
    }
}

fn flag(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key) == Some(&Value::Bool(true))
}
