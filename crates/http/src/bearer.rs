//! Checks API keys in `Authorization: Bearer` headers.

use axum::http::{HeaderMap, header};

/// Returns whether the `Authorization` header of a request carries one of the API keys.
pub(crate) fn has_valid_bearer_token(headers: &HeaderMap, keys: &[String]) -> bool {
    let Some((scheme, key)) = headers.get(header::AUTHORIZATION).and_then(|given| {
        let given = given.as_bytes();
        let blank = given.iter().position(|b| *b == b' ')?;
        Some((&given[..blank], &given[blank + 1..]))
    }) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"bearer")
        && keys.iter().fold(false, |found, k| found | equal_in_constant_time(k.as_bytes(), key))
}

/// Compares two byte strings in time that depends only on their lengths.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}
