//! Parses a request body with a long list of texts into one string, to save memory: as JSON values,
//! short texts take many times their size.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use vllm_sim_python as python;

use crate::body;
use crate::long_ids::MIN_LONG_BODY_BYTES;

/// A list of texts (such as prompts), stored as one string.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConcatenatedTexts {
    joined: String,
    ends: Vec<usize>,
}

impl ConcatenatedTexts {
    fn push(&mut self, text: &str) {
        self.joined.push_str(text);
        self.ends.push(self.joined.len());
    }

    /// Returns the number of texts in the list.
    pub fn text_count(&self) -> usize {
        self.ends.len()
    }

    /// Iterates over the texts of the list.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.joined[*start..*end])
    }
}

/// Returns the request body with one text in place of `member`, and the texts of `member`.
///
/// `None` if the body is short or not understood, or `member` holds something else.
pub(crate) fn extract_long_texts(
    body_json: &[u8],
    member: &str,
) -> Option<(Value, ConcatenatedTexts)> {
    if body_json.len() < MIN_LONG_BODY_BYTES || !python::parses_numbers_like_serde_json(body_json) {
        return None;
    }
    body::check_json_value_count(body_json).ok()?;
    let (mut members, texts) =
        body::parse_body_extracting_member::<ConcatenatedTexts>(body_json, member)?;
    *members.get_mut(member)? = json!(["x"]);
    Some((members.into(), texts?))
}

impl<'de> Deserialize<'de> for ConcatenatedTexts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = ConcatenatedTexts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ConcatenatedTexts, A::Error> {
        #[derive(Deserialize)]
        struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

        let mut texts = ConcatenatedTexts::default();
        while let Some(Text(text)) = items.next_element()? {
            texts.push(&text);
        }
        if texts.ends.is_empty() {
            return Err(A::Error::custom("no text"));
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a body with this list that whitespace makes long.
    fn long(list: &str, tail: &str) -> Vec<u8> {
        format!("{{\"n\":1,\"input\":{list}{}{tail}}}", " ".repeat(MIN_LONG_BODY_BYTES))
            .into_bytes()
    }

    #[test]
    fn a_long_text_list_is_parsed_separately() {
        let text = long(r#"["a", "", "\u00e9\n"]"#, r#","m":"x""#);
        let (value, texts) = extract_long_texts(&text, "input").unwrap();
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "\u{e9}\n"]);
        assert_eq!(value, json!({"n": 1, "input": ["x"], "m": "x"}));
    }

    #[test]
    fn other_bodies_are_left_to_the_schema() {
        let refused = [
            long("[]", ""),
            long(r#""a""#, ""),
            long(r#"["a",1]"#, ""),
            long(r#"["a",null]"#, ""),
            long(r#"["\ud800"]"#, ""),
            long(r#"["a"]"#, r#","input":["b"]"#),
            long(r#"["a"]"#, r#","n":NaN"#),
            long(r#"["a"]"#, "}"),
            br#"{"input":["a"]}"#.to_vec(),
        ];
        for text in refused {
            let begin = String::from_utf8_lossy(&text[..30.min(text.len())]).into_owned();
            assert_eq!(extract_long_texts(&text, "input"), None, "{begin}");
        }
    }
}
