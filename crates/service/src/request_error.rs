use super::{ReplyFacts, ServeError};
use vllm_sim_wire::Fault;

/// Reports why a request gets no reply; each front end renders it in its protocol.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No model or adapter has this name.
    #[error("The model `{0}` does not exist.")]
    UnknownModel(String),
    /// A value is invalid; the message is vLLM's.
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// The service rejected the job.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// A rejection, with the moment at which vLLM would report it.
#[derive(Debug)]
pub enum RejectedRequest {
    /// Reported before the headers of a stream are sent.
    Early(RequestError),
    /// Reported after the headers: a stream carries the error in its body.
    Late(RequestError, Box<ReplyFacts>),
}

impl RejectedRequest {
    /// Returns the error without its moment.
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
