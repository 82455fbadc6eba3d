use vllm_sim_wire::Fault;

/// The result of a request check that is computed early and reported later.
///
/// Reporting later keeps vLLM's order of errors for checks that depend on the request alone.
#[derive(Debug, Clone)]
pub struct DeferredCheck<T>(Result<T, Fault>);

impl<T> DeferredCheck<T> {
    /// Returns the value, or reports the error of the check.
    ///
    /// # Errors
    /// The fault found when the check was computed.
    pub fn into_result(self) -> Result<T, Fault> {
        self.0
    }
}

impl<T: Default> Default for DeferredCheck<T> {
    fn default() -> Self {
        Self(Ok(T::default()))
    }
}

impl<T> From<Result<T, Fault>> for DeferredCheck<T> {
    fn from(result: Result<T, Fault>) -> Self {
        Self(result)
    }
}
