//! The formats that a structural tag is made of.

use crate::grammar::Grammar;
use crate::regex::WholeRegex;
use crate::schema::Schema;

/// A format of a structural tag.
#[derive(Debug)]
pub(crate) enum Tag {
    Text(String),
    Json(Box<Schema>, Style),
    Free {
        excludes: Vec<String>,
        max_chars: Option<u64>,
    },
    Regex(Box<WholeRegex>),
    Grammar(Box<Grammar>),
    Sequence(Vec<Tag>),
    Or(Vec<Tag>),
    Repeat(Box<Tag>, u32, Option<u32>),
    Tagged {
        begin: String,
        content: Box<Tag>,
        ends: Vec<String>,
    },
    /// Free text with tags in it.
    Triggered {
        triggers: Vec<String>,
        tags: Vec<Tag>,
        at_least_one: bool,
        stop_after_first: bool,
    },
    Separated {
        tags: Vec<Tag>,
        separator: String,
        at_least_one: bool,
        stop_after_first: bool,
    },
}

/// How a `json_schema` format is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Style {
    Json,
    Qwen,
    Minimax,
    Glm,
}
