use super::{ReplyFacts, ServeError};
use vllm_sim_wire::Fault;

/// Error of a request that gets no reply; each front end renders it in its protocol.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No served model or LoRA adapter has this name.
    #[error("The model `{0}` does not exist.")]
    UnknownModel(String),
    /// A value of the request is invalid; the message is vLLM's.
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// The service rejected the request, for example at an admission limit.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// The rejection of a request, with the moment at which vLLM would report it.
#[derive(Debug)]
pub enum RejectedRequest {
    /// A rejection before the headers of a stream are sent.
    Early(RequestError),
    /// A rejection after the headers of a stream are sent: the error is in the body.
    Late(RequestError, Box<ReplyFacts>),
}

impl RejectedRequest {
    /// Returns the error without the moment of its report.
    pub fn into_error(self) -> RequestError {
        match self {
            Self::Early(refusal) | Self::Late(refusal, _) => refusal,
        }
    }
}

impl From<RequestError> for RejectedRequest {
    fn from(refusal: RequestError) -> Self {
        Self::Early(refusal)
    }
}

impl From<Fault> for RejectedRequest {
    fn from(fault: Fault) -> Self {
        Self::Early(fault.into())
    }
}

impl From<ServeError> for RejectedRequest {
    fn from(error: ServeError) -> Self {
        Self::Early(error.into())
    }
}
