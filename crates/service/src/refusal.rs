use super::{ReplyFacts, ServeError};
use vllm_sim_wire::Fault;

/// The reason why a request is not answered; an edge says it in its protocol's words.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No model or adapter has this name.
    #[error("The model `{0}` does not exist.")]
    UnknownModel(String),
    /// A value that is not taken, in vLLM's words.
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// The job was not taken.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// A refusal, and whether the headers of a stream would be out when vLLM finds it.
#[derive(Debug)]
pub enum Refused {
    /// Found before.
    Early(Refusal),
    /// Found after: a stream says it in its body, with the facts known by then.
    Late(Refusal, Box<ReplyFacts>),
}

impl Refused {
    /// Returns the refusal, whenever it is found.
    pub fn into_refusal(self) -> Refusal {
        match self {
            Self::Early(refusal) | Self::Late(refusal, _) => refusal,
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Early(refusal)
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::Early(fault.into())
    }
}

impl From<ServeError> for Refused {
    fn from(error: ServeError) -> Self {
        Self::Early(error.into())
    }
}
