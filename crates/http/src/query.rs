//! Decodes and validates the query strings of URLs.

use axum::http::Uri;
use serde_json::{Map, Value};

use vllm_sim_wire::body;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::schema::RequestField;

/// Returns the decoded names and values of a query string, in order.
pub(super) fn query_pairs(uri: &Uri) -> Vec<(String, String)> {
    decode_form_pairs(uri.query().unwrap_or_default())
}

/// Decodes URL-encoded names and values: a query string or a form.
pub(super) fn decode_form_pairs(text: &str) -> Vec<(String, String)> {
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (percent_decoded(name), percent_decoded(value))
        })
        .collect()
}

pub(super) fn query_values(uri: &Uri, name: &str) -> Vec<String> {
    let pairs = query_pairs(uri).into_iter().filter(|(n, _)| n == name);
    pairs.map(|(_, value)| value).collect()
}

/// Parses and validates the query parameters of a URL; the last of several parameters with one name
/// wins.
///
/// # Errors
/// vLLM's 400 for invalid parameters.
pub(super) fn read_query<T: RequestField>(uri: &Uri) -> Result<T, Fault> {
    let pairs = query_pairs(uri).into_iter();
    let map: Map<String, Value> = pairs.map(|(n, v)| (n, Value::String(v))).collect();
    body::read_query(&Value::Object(map))
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
        match (bytes[at], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_percent_decoded_and_may_repeat() {
        let uri: Uri = "/x?tags=a%20b&tags=c+d&e&f=%zz%".parse().unwrap();
        assert_eq!(query_values(&uri, "tags"), ["a b", "c d"]);
        assert_eq!(query_values(&uri, "e"), [""]);
        assert_eq!(query_values(&uri, "f"), ["%zz%"]);
    }
}
