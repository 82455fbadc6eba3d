/// Reports a deployment size or coefficient that the roofline model cannot use.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RooflineError {
    /// A size or number of the deployment is zero.
    #[error("{what} is 0, must be at least 1")]
    Zero {
        /// Name of the deployment's size or number that is zero.
        what: &'static str,
    },
    /// A coefficient is not finite or is negative, or a factor is not above 0.
    #[error("coefficient {what} is {value}, must be a finite number, {bound}")]
    Coefficient {
        /// Name of the rejected roofline coefficient.
        what: &'static str,
        /// Rejected value of the roofline coefficient.
        value: f64,
        /// Allowed range of the roofline coefficient.
        bound: &'static str,
    },
}
