/// Why there is no roofline.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RooflineError {
    /// A number must be at least 1.
    #[error("{what} is 0, must be at least 1")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// A coefficient must be finite and not negative (scales: more than 0).
    #[error("coefficient {what} is {value}, must be a finite number, {bound}")]
    Coefficient {
        /// Which.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The bound.
        bound: &'static str,
    },
}
