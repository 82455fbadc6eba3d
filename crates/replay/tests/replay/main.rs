//! Replays from outside: what is read, what is played, what is reported.
//!
//! - `load`: traces and result files
//! - `runs`: workloads against pools of workers behind routers
//! - `report`: numbers and rows
//! - `page`: the page

mod load;
mod page;
mod report;
mod runs;
