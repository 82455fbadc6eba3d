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
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
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
