//! Parses xgrammar structural tags from JSON.

use serde_json::{Map, Value};

use super::format::{StructuralTag, TaggedJsonStyle};
use crate::constraint::ConstraintError;
use crate::grammar::Grammar;
use crate::regex::WholeTextRegex;
use crate::schema::Schema;

const MAX_TAG_NESTING: u32 = 100;

type TagResult<T> = Result<T, ConstraintError>;

fn bad_tag<T>(words: impl Into<String>) -> TagResult<T> {
    Err(ConstraintError::BadTag(words.into()))
}

impl StructuralTag {
    /// Parses a structural tag: an object with `format`, or an older one with `structures` and
    /// `triggers`.
    ///
    /// # Errors
    /// [`ConstraintError`] of the first invalid part.
    pub(crate) fn parse_structural_tag(value: &Value) -> TagResult<Self> {
        let parsed;
        let value = match value {
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                Ok(value) => {
                    parsed = value;
                    &parsed
                }
                Err(error) => return bad_tag(format!("the structural tag is no JSON: {error}")),
            },
            value => value,
        };
        let Some(map) = value.as_object() else {
            return bad_tag("a structural tag must be an object");
        };
        if map.contains_key("structures") {
            return parse_triggers_form(map);
        }
        match map.get("format") {
            Some(format) => parse_format(format, 0),
            None => bad_tag("a structural tag needs 'format', or 'structures' and 'triggers'"),
        }
    }
}

fn parse_triggers_form(map: &Map<String, Value>) -> TagResult<StructuralTag> {
    let triggers = string_list_field(map, "triggers")?;
    let Some(structures) = map.get("structures").and_then(Value::as_array) else {
        return bad_tag("'structures' must be an array");
    };
    let mut tags = Vec::new();
    for structure in structures {
        let Some(structure) = structure.as_object() else {
            return bad_tag("a structure must be an object");
        };
        let begin = text_field(structure, "begin")?;
        if !triggers.iter().any(|trigger| begin.starts_with(trigger)) {
            return bad_tag(format!("Trigger {begin} not found in triggers {triggers:?}"));
        }
        let Some(schema) = structure.get("schema") else {
            return bad_tag("'schema'");
        };
        tags.push(StructuralTag::Tag {
            begin,
            content: Box::new(StructuralTag::JsonSchema(
                Box::new(Schema::parse_value_or_text(schema)?),
                TaggedJsonStyle::Json,
            )),
            ends: vec![text_field(structure, "end")?],
        });
    }
    if tags.is_empty() {
        return bad_tag("No structural tags found in the grammar spec.");
    }
    Ok(StructuralTag::TriggeredTags {
        triggers,
        tags,
        at_least_one: false,
        stop_after_first: false,
    })
}

fn parse_format(format: &Value, nesting: u32) -> TagResult<StructuralTag> {
    let Some(map) = format.as_object() else {
        return bad_tag("a format must be an object");
    };
    if nesting > MAX_TAG_NESTING {
        return bad_tag("the structural tag nests too deep");
    }
    let inner = |key: &str| match map.get(key) {
        Some(value) => parse_format(value, nesting + 1).map(Box::new),
        None => bad_tag(format!("'{key}' is missing")),
    };
    let kind = text_field(map, "type")?;
    Ok(match kind.as_str() {
        "const_string" => StructuralTag::ConstString(text_field(map, "value")?),
        "json_schema" => parse_json_schema(map)?,
        "qwen_xml_parameter" => {
            let schema = map.get("json_schema").unwrap_or(&Value::Bool(true));
            StructuralTag::JsonSchema(
                Box::new(Schema::parse_value_or_text(schema)?),
                TaggedJsonStyle::Qwen,
            )
        }
        "grammar" => {
            StructuralTag::Grammar(Box::new(Grammar::parse_grammar(&text_field(map, "grammar")?)?))
        }
        "regex" => {
            StructuralTag::Regex(Box::new(WholeTextRegex::new(&text_field(map, "pattern")?)?))
        }
        "any_text" | "any_tokens" | "exclude_token" => StructuralTag::AnyText {
            excludes: string_list_field(map, "excludes").unwrap_or_default(),
            max_chars: map.get("max_chars").and_then(Value::as_u64),
        },
        "sequence" => StructuralTag::Sequence(format_list_field(map, "elements", nesting)?),
        "or" => StructuralTag::Or(format_list_field(map, "elements", nesting)?),
        "optional" => StructuralTag::Repeat(inner("content")?, 0, Some(1)),
        "plus" => StructuralTag::Repeat(inner("content")?, 1, None),
        "star" => StructuralTag::Repeat(inner("content")?, 0, None),
        "repeat" => {
            let bound = |key| map.get(key).and_then(Value::as_i64);
            let min = u32::try_from(bound("min").unwrap_or(0)).unwrap_or(0);
            let max = bound("max").and_then(|max| u32::try_from(max).ok());
            if max.is_some_and(|max| max < min) {
                return bad_tag(format!("repeat: 'max' is less than 'min' ({min})"));
            }
            StructuralTag::Repeat(inner("content")?, min, max)
        }
        "tag" => parse_tag(map, nesting)?,
        "triggered_tags" | "token_triggered_tags" => parse_triggered_tags(map, nesting)?,
        "tags_with_separator" => StructuralTag::TagsWithSeparator {
            tags: format_list_field(map, "tags", nesting)?,
            separator: text_field(map, "separator")?,
            at_least_one: flag_field(map, "at_least_one"),
            stop_after_first: flag_field(map, "stop_after_first"),
        },
        "dispatch" | "token_dispatch" => parse_dispatch(map, nesting)?,
        "token" => StructuralTag::ConstString(parse_marker(Some(format))?),
        _ => return bad_tag(format!("unknown format type '{kind}'")),
    })
}

fn parse_json_schema(map: &Map<String, Value>) -> TagResult<StructuralTag> {
    let Some(schema) = map.get("json_schema") else {
        return bad_tag("'json_schema' is missing");
    };
    let style = match map.get("style").and_then(Value::as_str).unwrap_or("json") {
        "json" => TaggedJsonStyle::Json,
        "qwen_xml" => TaggedJsonStyle::Qwen,
        "minimax_xml" => TaggedJsonStyle::Minimax,
        "glm_xml" => TaggedJsonStyle::Glm,
        other => return bad_tag(format!("style '{other}' is not supported")),
    };
    Ok(StructuralTag::JsonSchema(Box::new(Schema::parse_value_or_text(schema)?), style))
}

fn parse_tag(map: &Map<String, Value>, nesting: u32) -> TagResult<StructuralTag> {
    let ends = match map.get("end") {
        Some(Value::Array(ends)) => {
            ends.iter().map(|end| parse_marker(Some(end))).collect::<TagResult<_>>()?
        }
        end => vec![parse_marker(end)?],
    };
    let Some(content) = map.get("content") else {
        return bad_tag("'content' is missing");
    };
    if ends.is_empty() {
        return bad_tag("'end' must not be empty");
    }
    Ok(StructuralTag::Tag {
        begin: parse_marker(map.get("begin"))?,
        content: Box::new(parse_format(content, nesting + 1)?),
        ends,
    })
}

fn parse_triggered_tags(map: &Map<String, Value>, nesting: u32) -> TagResult<StructuralTag> {
    let triggers = match map.get("triggers").or_else(|| map.get("trigger_tokens")) {
        Some(Value::Array(triggers)) => triggers
            .iter()
            .map(|trigger| parse_marker(Some(trigger)))
            .collect::<TagResult<Vec<String>>>()?,
        _ => return bad_tag("'triggers' must be an array"),
    };
    let tags = format_list_field(map, "tags", nesting)?;
    for tag in &tags {
        let StructuralTag::Tag { begin, .. } = tag else {
            return bad_tag("every one of the tags must be of type 'tag'");
        };
        if !triggers.iter().any(|trigger| begin.starts_with(trigger)) {
            return bad_tag(format!("Trigger {begin} not found in triggers {triggers:?}"));
        }
    }
    Ok(StructuralTag::TriggeredTags {
        triggers,
        tags,
        at_least_one: flag_field(map, "at_least_one"),
        stop_after_first: flag_field(map, "stop_after_first"),
    })
}

fn parse_dispatch(map: &Map<String, Value>, nesting: u32) -> TagResult<StructuralTag> {
    let Some(rules) = map.get("rules").and_then(Value::as_array) else {
        return bad_tag("'rules' must be an array");
    };
    let mut tags = Vec::new();
    let mut triggers = Vec::new();
    for rule in rules {
        let Some([pattern, format]) = rule.as_array().map(Vec::as_slice) else {
            return bad_tag("a rule must be a pair of a pattern and a format");
        };
        let begin = parse_marker(Some(pattern))?;
        triggers.push(begin.clone());
        tags.push(StructuralTag::Tag {
            begin,
            content: Box::new(parse_format(format, nesting + 1)?),
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
fn parse_marker(value: Option<&Value>) -> TagResult<String> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Object(map)) => match map.get("token") {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => bad_tag("a token must be named by its text: ids need a tokenizer"),
        },
        Some(Value::Number(_)) => {
            bad_tag("a token must be named by its text: ids need a tokenizer")
        }
        _ => bad_tag("'begin' and 'end' must be strings or tokens"),
    }
}

fn text_field(map: &Map<String, Value>, key: &str) -> TagResult<String> {
    match map.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => bad_tag(format!("'{key}' must be a string")),
        None => bad_tag(format!("'{key}' is missing")),
    }
}

fn string_list_field(map: &Map<String, Value>, key: &str) -> TagResult<Vec<String>> {
    let Some(items) = map.get(key).and_then(Value::as_array) else {
        return bad_tag(format!("'{key}' must be an array of strings"));
    };
    items
        .iter()
        .map(|item| match item.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => bad_tag(format!("'{key}' must be an array of strings")),
        })
        .collect()
}

fn format_list_field(
    map: &Map<String, Value>,
    key: &str,
    nesting: u32,
) -> TagResult<Vec<StructuralTag>> {
    match map.get(key).and_then(Value::as_array) {
        Some(items) if !items.is_empty() => {
            items.iter().map(|item| parse_format(item, nesting + 1)).collect()
        }
        _ => bad_tag(format!("'{key}' must be an array with at least one format")),
    }
}

fn flag_field(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key) == Some(&Value::Bool(true))
}
