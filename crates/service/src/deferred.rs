use vllm_sim_wire::Fault;

/// The result of a request check that is computed early and reported later.
///
/// Reporting later keeps vLLM's order of errors for checks that depend on the request alone.
#[derive(Debug, Clone)]
pub struct Deferred<T>(Result<T, Fault>);

impl<T> Deferred<T> {
    /// Returns the value, or reports the error of the check.
    ///
    /// # Errors
    /// The fault found when the check was computed.
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
