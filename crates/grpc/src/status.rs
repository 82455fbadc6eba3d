//! Maps errors to gRPC statuses.

use tonic::{Code, Status};

use vllm_sim_service::{JobSubmissionError, RequestError};
use vllm_sim_wire::fault::Fault;

const RETRY_AFTER_KEY: &str = "retry-after";

/// Converts an error of a request to the gRPC status that llm-d-inference-sim uses for the error's
/// HTTP status.
pub(super) fn fault_status(fault: &Fault) -> Status {
    let status = Status::new(grpc_code(fault.status), fault.message.clone());
    match fault.retry_after_seconds {
        Some(seconds) => add_retry_after(status, seconds),
        None => status,
    }
}

/// Adds the metadata `retry-after` to a gRPC status, unless the status already has it.
pub(super) fn add_retry_after(mut status: Status, seconds: u32) -> Status {
    let metadata = status.metadata_mut();
    if !metadata.contains_key(RETRY_AFTER_KEY) {
        metadata.insert(RETRY_AFTER_KEY, seconds.into());
    }
    status
}

/// Converts the rejection of a request to a gRPC status.
pub(super) fn rejection_status(refusal: RequestError) -> Status {
    let status = match &refusal {
        RequestError::Invalid(refused) => return fault_status(refused),
        RequestError::UnknownModel(_) => 404,
        RequestError::Serve(error) => serve_error_status(error),
    };
    Status::new(grpc_code(status), refusal.to_string())
}

fn serve_error_status(error: &JobSubmissionError) -> u16 {
    match error {
        JobSubmissionError::QueueFull => 429,
        JobSubmissionError::TooManyRequests
        | JobSubmissionError::TooManyTokens
        | JobSubmissionError::MessageMemoryFull(_)
        | JobSubmissionError::Draining
        | JobSubmissionError::Abandoned
        | JobSubmissionError::Paused => 503,
        JobSubmissionError::Rank { .. }
        | JobSubmissionError::TooManySequences { .. }
        | JobSubmissionError::PromptsTooLarge { .. }
        | JobSubmissionError::ReplyTooLarge { .. }
        | JobSubmissionError::TooLarge { .. }
        | JobSubmissionError::Constraint(_)
        | JobSubmissionError::Tools(_) => 400,
    }
}

/// Returns the gRPC code of an HTTP status. Source: llm-d-inference-sim, `pkg/communication/grpc`.
fn grpc_code(status: u16) -> Code {
    match status {
        200..=299 => Code::Ok,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 => Code::Aborted,
        413 | 429 => Code::ResourceExhausted,
        499 => Code::Cancelled,
        400..=499 => Code::InvalidArgument,
        501 => Code::Unimplemented,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_llm_d_http_status_has_its_grpc_code() {
        let listed = [400, 401, 403, 404, 409, 429, 500, 501, 503, 504].map(grpc_code);
        assert_eq!(
            listed,
            [
                Code::InvalidArgument,
                Code::Unauthenticated,
                Code::PermissionDenied,
                Code::NotFound,
                Code::Aborted,
                Code::ResourceExhausted,
                Code::Internal,
                Code::Unimplemented,
                Code::Unavailable,
                Code::DeadlineExceeded,
            ]
        );
    }
}
