/// Options for fitting roofline parameters to measured runs.
#[derive(Debug, Clone, Default)]
pub struct CalibrateOptions {
    /// Names of the parameters to fit; empty selects those that the runs can determine.
    pub fit: Vec<String>,
    /// Maximum number of requests per stage that the fit simulates; the measured means are compared
    /// with the simulated means over these requests.
    pub max_requests: Option<usize>,
    /// Names or file names of measured runs that are used for validation only.
    pub hold_out: Vec<String>,
    /// Measured API server time of a request while no other request runs, in µs; if given, this
    /// time is not fitted.
    pub front_end_us: Option<f64>,
    /// Name of the run for whose deployment the profile is written, if the runs cover several
    /// deployments.
    pub profile_of: Option<String>,
    /// Number of simulation threads; 0 uses all cores. The number does not affect the results.
    pub threads: usize,
}
