//! Tests replays through the public API: workloads, runs and reports.
//!
//! - `load`: traces and result files
//! - `runs`: workloads against pools of workers behind routers
//! - `report`: summaries and rows
//! - `page`: the HTML page

mod load;
mod page;
mod report;
mod runs;
