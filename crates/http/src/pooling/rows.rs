//! An answer that is one row per input: written row by row, without a tree of values, so that its
//! size costs nothing but the frame that is being sent.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::{StreamExt, stream};
use vllm_sim_service::long_work;
use vllm_sim_wire::fault::Fault;

/// Most numbers in one answer: what 2,048 inputs of 8,192 dimensions have.
const MAX_NUMBERS: usize = 16 << 20;

/// Rows up to this many bytes are one body with a length; more are sent in frames of this size, which
/// are written away from the async threads.
const FRAME_BYTES: usize = 64 * 1024;

/// Refuses an answer of more numbers than one request gets.
///
/// # Errors
/// 400 that names both counts.
pub(super) fn check(inputs: usize, length: usize) -> Result<(), Fault> {
    if inputs.saturating_mul(length) <= MAX_NUMBERS {
        return Ok(());
    }
    Err(Fault::bad_request(format!(
        "The answer would hold {inputs} vectors of {length} numbers, the most is {MAX_NUMBERS} \
         numbers. Send fewer inputs or ask for fewer dimensions."
    )))
}

/// A 200 of JSON: `head`, then what `row` writes for each number below `rows`, then `tail`.
pub(super) fn json(
    head: String,
    rows: usize,
    row: impl FnMut(&mut String, usize) + Send + 'static,
    tail: String,
) -> Response<Body> {
    let mut response = Response::new(body(Rows {
        head,
        row,
        at: 0,
        rows,
        tail: Some(tail),
    }));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// What is left to write.
struct Rows<W> {
    head: String,
    row: W,
    at: usize,
    rows: usize,
    /// Gone once it is written.
    tail: Option<String>,
}

impl<W: FnMut(&mut String, usize)> Rows<W> {
    /// The next frame; `None` after the last.
    fn frame(&mut self) -> Option<String> {
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

fn body<W: FnMut(&mut String, usize) + Send + 'static>(mut rows: Rows<W>) -> Body {
    let first = rows.frame().unwrap_or_default();
    if rows.tail.is_none() {
        return Body::from(first);
    }
    let further = stream::unfold(rows, |mut rows| {
        long_work(async move {
            let frame = rows.frame()?;
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
    async fn large_answers_leave_in_frames_and_small_ones_have_a_length() {
        let of = |rows| {
            let row = |out: &mut String, _| out.push_str(&"x".repeat(1000));
            json("[".to_owned(), rows, row, "]".to_owned()).into_body()
        };
        assert_eq!(of(3).size_hint().exact(), Some(3002));
        let large = of(1000);
        assert_eq!(large.size_hint().exact(), None);
        assert_eq!(large.collect().await.unwrap().to_bytes().len(), 1_000_002);
    }

    #[test]
    fn the_numbers_of_an_answer_are_bounded() {
        assert_eq!(check(2048, 8192), Ok(()));
        let text = "The answer would hold 2049 vectors of 8192 numbers, the most is 16777216 \
                    numbers. Send fewer inputs or ask for fewer dimensions.";
        assert_eq!(
            check(2049, 8192).map_err(|f| f.message),
            Err(text.to_owned())
        );
        assert!(check(usize::MAX, 2).is_err());
    }
}
