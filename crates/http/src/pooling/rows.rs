//! Streams the response of a pooling route row by row, one row per input.
//!
//! Only the current frame is in memory, not a tree of JSON values.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::{StreamExt, stream};
use vllm_sim_service::run_blocking;
use vllm_sim_wire::fault::Fault;

/// Maximum number of floats in one pooling response: 2,048 inputs of 8,192 dimensions.
const MAX_RESPONSE_FLOATS: usize = 16 << 20;

/// Size of a body frame of a pooling response, in bytes.
///
/// A response of at most one frame gets a `Content-Length`. Later frames are written on the
/// blocking pool.
const FRAME_BYTES: usize = 64 * 1024;

/// Rejects a pooling request whose response would have more than 16,777,216 floats.
///
/// # Errors
/// 400 that names both counts.
pub(crate) fn check_response_float_count(
    inputs: usize,
    floats_per_input: usize,
) -> Result<(), Fault> {
    if inputs.saturating_mul(floats_per_input) <= MAX_RESPONSE_FLOATS {
        return Ok(());
    }
    Err(Fault::bad_request(format!(
        "The response would have {inputs} vectors of {floats_per_input} numbers; at most {MAX_RESPONSE_FLOATS} \
         numbers are allowed. Send fewer inputs or request fewer dimensions."
    )))
}

/// Returns a streamed JSON response: `head`, then the result of `row` for each row number, then
/// `tail`.
pub(crate) fn stream_json_rows(
    head: String,
    rows: usize,
    row: impl FnMut(&mut String, usize) + Send + 'static,
    tail: String,
) -> Response<Body> {
    let mut response =
        Response::new(rows_body(JsonRowWriter { head, row, at: 0, rows, tail: Some(tail) }));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

struct JsonRowWriter<W> {
    head: String,
    row: W,
    at: usize,
    rows: usize,
    /// End of the JSON of a pooling response, after the last row; `None` once it has been written.
    tail: Option<String>,
}

impl<W: FnMut(&mut String, usize)> JsonRowWriter<W> {
    fn next_frame(&mut self) -> Option<String> {
        self.tail.as_ref()?;
        let mut out = std::mem::take(&mut self.head);
        while self.at < self.rows {
            if out.len() >= FRAME_BYTES {
                return Some(out);
            }
            (self.row)(&mut out, self.at);
            self.at += 1;
        }
        out.push_str(&self.tail.take()?);
        Some(out)
    }
}

fn rows_body<W: FnMut(&mut String, usize) + Send + 'static>(mut rows: JsonRowWriter<W>) -> Body {
    let first = rows.next_frame().unwrap_or_default();
    if rows.tail.is_none() {
        return Body::from(first);
    }
    let further = stream::unfold(rows, |mut rows| {
        run_blocking(async move {
            let frame = rows.next_frame()?;
            Some((frame, rows))
        })
    });
    let frames = stream::iter([first]).chain(further);
    Body::from_stream(frames.map(|frame| Ok::<_, Infallible>(Bytes::from(frame))))
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn large_responses_are_chunked_and_small_ones_have_a_length() {
        let of = |rows| {
            let row = |out: &mut String, _| out.push_str(&"x".repeat(1000));
            stream_json_rows("[".to_owned(), rows, row, "]".to_owned()).into_body()
        };
        assert_eq!(of(3).size_hint().exact(), Some(3002));
        let large = of(1000);
        assert_eq!(large.size_hint().exact(), None);
        assert_eq!(large.collect().await.unwrap().to_bytes().len(), 1_000_002);
    }

    #[test]
    fn the_floats_of_a_response_are_limited() {
        assert_eq!(check_response_float_count(2048, 8192), Ok(()));
        let text = "The response would have 2049 vectors of 8192 numbers; at most 16777216 \
             numbers are allowed. Send fewer inputs or request fewer dimensions.";
        assert_eq!(
            check_response_float_count(2049, 8192).map_err(|f| f.message),
            Err(text.to_owned())
        );
        assert!(check_response_float_count(usize::MAX, 2).is_err());
    }
}
