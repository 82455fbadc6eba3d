use super::ServeError;
use vllm_sim_wire::Fault;

/// Why a request is not answered; an edge says it in its protocol's words.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nobody answers to this name.
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
pub enum Refused<V> {
    /// Found before.
    Early(Refusal),
    /// Found after: a stream says it in its body. With what was ready to be shown.
    Late(Refusal, V),
}

impl<V> Refused<V> {
    /// The refusal, whenever it is found.
    pub fn into_refusal(self) -> Refusal {
        match self {
            Self::Early(refusal) | Self::Late(refusal, _) => refusal,
        }
    }
}

impl<V> From<Refusal> for Refused<V> {
    fn from(refusal: Refusal) -> Self {
        Self::Early(refusal)
    }
}
