/// How to fit.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Names of the numbers to fit; empty: those that the runs can tell.
    pub fit: Vec<String>,
    /// Most requests of a stage that are played; the measured means are taken to hold for them.
    pub max_requests: Option<usize>,
    /// Names (or beginnings of names) of runs that are judged and not fitted.
    pub hold_out: Vec<String>,
    /// What a request spends in the front end while no other is in progress, us, where that was
    /// measured: it is then not fitted.
    pub front_end_us: Option<f64>,
    /// Of runs of several deployments: the run whose deployment the profile is for.
    pub profile_of: Option<String>,
    /// Threads; 0: as many as there are cores. Results do not depend on it.
    pub threads: usize,
}
