//! Formats of which an xgrammar structural tag consists.

use crate::grammar::Grammar;
use crate::regex::WholeTextRegex;
use crate::schema::Schema;

#[derive(Debug)]
pub(crate) enum StructuralTag {
    ConstString(String),
    JsonSchema(Box<Schema>, TaggedJsonStyle),
    AnyText {
        excludes: Vec<String>,
        max_chars: Option<u64>,
    },
    Regex(Box<WholeTextRegex>),
    Grammar(Box<Grammar>),
    Sequence(Vec<StructuralTag>),
    Or(Vec<StructuralTag>),
    Repeat(Box<StructuralTag>, u32, Option<u32>),
    Tag {
        begin: String,
        content: Box<StructuralTag>,
        ends: Vec<String>,
    },
    TriggeredTags {
        triggers: Vec<String>,
        tags: Vec<StructuralTag>,
        at_least_one: bool,
        stop_after_first: bool,
    },
    TagsWithSeparator {
        tags: Vec<StructuralTag>,
        separator: String,
        at_least_one: bool,
        stop_after_first: bool,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum TaggedJsonStyle {
    Json,
    Qwen,
    Minimax,
    Glm,
}
