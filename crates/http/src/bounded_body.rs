//! Reads request bodies, limited in size and time.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use futures_util::FutureExt as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use vllm_sim_wire::fault::{ErrorType, Fault};

/// Minimum time limit for the transfer of a request body, however slow.
const BODY_READ_GRACE: Duration = Duration::from_secs(60);

/// Minimum average transfer rate of a request body after the grace period, in bytes per second.
const MIN_BYTES_PER_SECOND: u32 = 512;

/// Reads a request body of at most `limit` bytes.
///
/// # Errors
/// 413 above the limit; 408 below the minimum rate; 400 if the client disconnects.
pub(super) async fn read_limited_body(body: Body, limit: usize) -> Result<Bytes, Fault> {
    let mut started = None;
    let mut body = Limited::new(body, limit);
    let mut whole = Vec::new();
    loop {
        // Starts no timer for a body that arrived with the headers.
        let frame = match body.frame().now_or_never() {
            Some(frame) => Ok(frame),
            None => {
                let started = *started.get_or_insert_with(Instant::now);
                let time = Duration::from_secs(whole.len() as u64) / MIN_BYTES_PER_SECOND;
                timeout_at(started + BODY_READ_GRACE + time, body.frame()).await
            }
        };
        let frame = match frame {
            Err(_) => return Err(body_too_slow(whole.len())),
            Ok(None) => return Ok(whole.into()),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => {
                let message = format!(
                    "request body is larger than {limit} bytes; raise --max-request-body-size-mb to allow it"
                );
                return Err(Fault::new(413, ErrorType::TooLarge, message));
            }
            Ok(Some(Err(error))) => {
                let message = format!("cannot read the request body: {error}");
                return Err(Fault::bad_request(message));
            }
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // Returns a body of a single frame without copying it.
        if whole.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        whole.extend_from_slice(&data);
    }
}

/// Returns the error for a request body that arrives too slowly; `bytes` is the size received so
/// far.
fn body_too_slow(bytes: usize) -> Fault {
    let grace = BODY_READ_GRACE.as_secs();
    let message = format!(
        "the request body arrives too slowly: {bytes} bytes so far; after {grace} seconds the \
         average must be at least {MIN_BYTES_PER_SECOND} bytes per second"
    );
    Fault::new(408, ErrorType::RequestTimeoutPhrase, message)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    /// Builds a body of chunks with a delay between them.
    fn slow(pieces: usize, bytes: usize, apart: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |piece| async move {
            if piece == pieces {
                return None;
            }
            let sent = tokio::time::timeout(apart, std::future::pending::<()>()).await;
            let piece_bytes = Bytes::from(vec![b'x'; bytes]);
            sent.err().map(|_| (Ok::<_, Infallible>(piece_bytes), piece + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickled_body_meets_a_limit_and_a_slow_one_does_not() {
        let started = Instant::now();
        let answer = read_limited_body(slow(1_000, 1, Duration::from_secs(10)), 4096).await;
        let words = "the request body arrives too slowly: 6 bytes so far; after 60 seconds the \
             average must be at least 512 bytes per second";
        let fault = answer.map(|body| body.len()).unwrap_err();
        assert_eq!((fault.status, fault.message.as_str()), (408, words));
        assert_eq!(started.elapsed().as_secs(), 60);
        // Ten minutes at 2 KiB/s.
        let honest = read_limited_body(slow(60, 20_480, Duration::from_secs(10)), 4 << 20).await;
        assert_eq!(honest.map(|body| body.len()), Ok(1_228_800));
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_is_refused_by_its_size() {
        let answer = read_limited_body(Body::from(vec![0; 11]), 10).await;
        assert_eq!(answer.map_err(|fault| fault.status), Err(413));
        let answer = read_limited_body(slow(3, 5, Duration::ZERO), 10).await;
        assert_eq!(answer.map_err(|fault| fault.status), Err(413));
    }
}
