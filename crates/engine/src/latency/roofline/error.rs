/// Reports a number that the roofline cannot use.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RooflineError {
    /// A number is zero.
    #[error("{what} is 0, must be at least 1")]
    Zero {
        /// Name of the number.
        what: &'static str,
    },
    /// A coefficient is not finite or is negative (scales: not above 0).
    #[error("coefficient {what} is {value}, must be a finite number, {bound}")]
    Coefficient {
        /// Name of the coefficient.
        what: &'static str,
        /// Rejected value.
        value: f64,
        /// Allowed range.
        bound: &'static str,
    },
}
