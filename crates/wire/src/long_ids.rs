//! Parses a request body with a long list of token ids separately from its other members.
//!
//! Separate parsing saves memory: as JSON values, the ids would take many times the size of their
//! text.

use serde_json::{Value, json};
use vllm_sim_python as python;

use crate::body;

/// Size of a request body, in bytes, from which its token ids are parsed separately.
pub(crate) const MIN_LONG_BODY_BYTES: usize = 64 * 1024;
/// Maximum number of digits of a token id in a long list.
const MAX_DIGITS: usize = 9;

/// Returns the request body with `[0]` in place of `member`, and the token ids of `member`.
///
/// `None` if the body is short or invalid, or `member` holds something else.
pub(crate) fn extract_long_token_ids(body_json: &[u8], member: &str) -> Option<(Value, Vec<i64>)> {
    if body_json.len() < MIN_LONG_BODY_BYTES {
        return None;
    }
    body::check_json_value_count(body_json).ok()?;
    let key = format!("\"{member}\"");
    let behind = |text| Some(find_bytes(text, key.as_bytes())? + key.len());
    let list = skip_whitespace(&body_json[behind(body_json)?..]).strip_prefix(b":")?;
    let list = skip_whitespace(list).strip_prefix(b"[")?;
    let (ids, rest) = parse_id_list(list)?;
    if behind(rest).is_some() {
        return None;
    }
    let before = &body_json[..body_json.len() - list.len()];
    let value = python::loads(&[before, b"0]", rest].concat()).ok()?;
    // The list that was found may belong to a nested object.
    (value.get(member) == Some(&json!([0]))).then_some((value, ids))
}

fn find_bytes(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}

fn skip_whitespace(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// Parses the token ids up to the end of a JSON list; returns them and the rest of the text.
fn parse_id_list(text: &[u8]) -> Option<(Vec<i64>, &[u8])> {
    let end = text.iter().position(|byte| *byte == b']')?;
    let (mut list, rest) = (&text[..end], &text[end + 1..]);
    let commas = list.iter().filter(|byte| **byte == b',').count();
    let mut ids = Vec::with_capacity(commas + 1);
    loop {
        list = skip_whitespace(list);
        let digits = list.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, behind) = list.split_at(digits);
        let whole = digits == 1 || number.first() != Some(&b'0');
        if !whole || !(1..=MAX_DIGITS).contains(&digits) {
            return None;
        }
        let more = |id: i64, digit: &u8| 10 * id + i64::from(digit - b'0');
        ids.push(number.iter().fold(0, more));
        match skip_whitespace(behind) {
            [] => return Some((ids, rest)),
            [b',', behind @ ..] => list = behind,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a body that whitespace makes long.
    fn long(head: &str, list: &str, tail: &str) -> Vec<u8> {
        let blanks = " ".repeat(MIN_LONG_BODY_BYTES);
        format!("{{{head}\"ids\" : [{list}]{blanks}{tail}}}").into_bytes()
    }

    #[test]
    fn a_long_id_list_is_parsed_separately() {
        let text = long("\"model\":\"m\",", "1, 0 ,\n999999999", ",\"n\":2");
        let (value, ids) = extract_long_token_ids(&text, "ids").unwrap();
        assert_eq!(ids, [1, 0, 999_999_999]);
        assert_eq!(value, json!({"model": "m", "ids": [0], "n": 2}));
    }

    #[test]
    fn other_bodies_are_left_to_the_schema() {
        let refused = [
            long("", "", ""),
            long("", "1,", ""),
            long("", "01", ""),
            long("", "-1", ""),
            long("", "1.0", ""),
            long("", "\"]\"", ""),
            long("", "1234567890", ""),
            long("", "[1]", ""),
            long("", "1", ",\"ids\":[0]"),
            long("\"in\":{", "1", "}"),
            long("", "1", "}"),
            b"{\"ids\":[1]}".to_vec(),
        ];
        for text in refused {
            let begin = String::from_utf8_lossy(&text[..40.min(text.len())]).into_owned();
            assert_eq!(extract_long_token_ids(&text, "ids"), None, "{begin}");
        }
    }
}
