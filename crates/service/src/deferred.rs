use vllm_sim_wire::Fault;

/// The result of a computation on the request alone: made early, raised when its turn comes.
#[derive(Debug, Clone)]
pub struct Deferred<T>(Result<T, Fault>);

impl<T> Deferred<T> {
    /// Returns the value.
    ///
    /// # Errors
    /// The fault that was found when the value was computed.
    pub fn raise(self) -> Result<T, Fault> {
        self.0
    }
}

impl<T: Default> Default for Deferred<T> {
    fn default() -> Self {
        Self(Ok(T::default()))
    }
}

impl<T> From<Result<T, Fault>> for Deferred<T> {
    fn from(result: Result<T, Fault>) -> Self {
        Self(result)
    }
}
