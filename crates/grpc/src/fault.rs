//! Injected faults of gRPC calls, requested by metadata or drawn at random.

use tonic::{Request, Status};

use super::parts::GrpcState;
use super::status;
use vllm_sim_service::fault::StreamFault;
use vllm_sim_service::{RequestContext, RequestFaults};

/// Selects the injected faults of a gRPC call, by the call's metadata or at random.
///
/// # Errors
/// `INVALID_ARGUMENT` if the metadata `x-sim-fault` is not a valid fault spec.
pub(super) fn decide_call_faults<T>(
    parts: &GrpcState,
    request: &Request<T>,
) -> Result<RequestFaults, Status> {
    let text = |name| {
        let value = request.metadata().get(name);
        value.and_then(|value| value.to_str().ok())
    };
    let context = request.extensions().get::<RequestContext>();
    let conn = context.and_then(|context| context.connection.clone());
    let (id, asked) = (text("x-request-id"), text("x-sim-fault"));
    RequestFaults::decide_request_faults(&parts.service, id, asked, conn)
        .map_err(|error| Status::invalid_argument(format!("Invalid x-sim-fault metadata: {error}")))
}

/// Returns the injected error as `Err` if the faults of a gRPC call include an error response.
///
/// # Errors
/// The gRPC status of the injected failure.
pub(super) fn fail_if_error_injected(
    parts: &GrpcState,
    faults: &RequestFaults,
) -> Result<(), Status> {
    let Some(failure) = faults.failure else {
        return Ok(());
    };
    let service = &parts.service;
    faults.report_fault(service, failure.injected_failure_name());
    let fault = failure.to_fault(service.models.displayed_model_name());
    Err(status::fault_status(&fault))
}

/// Removes the injected stream faults that gRPC cannot express: malformed server-sent events, and a
/// missing or repeated `[DONE]`.
pub(super) fn remove_http_only_faults(faults: &mut RequestFaults) {
    faults.stream_faults.retain(|stream_fault| {
        matches!(
            stream_fault,
            StreamFault::Stall { .. }
                | StreamFault::CutAfter(_)
                | StreamFault::ResetAfter(_)
                | StreamFault::KvLoadFailure(_)
        )
    });
}
