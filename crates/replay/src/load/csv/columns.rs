//! Checks the columns of CSV files with one measured request per row, and records those that the
//! workload does not use.

use std::collections::HashSet;

use super::super::bench::MeasuredRequest;
use super::super::lines::WorkloadLines;
use super::{CsvHeader, split_csv_line};
use crate::workload::{UnusedTraceColumns, WorkloadError};

const SESSION_COLUMN: &str = "session_id";
/// Columns with the index of a request in its session.
const TURN_COLUMNS: [&str; 2] = ["turn", "turn_index"];
const PRIORITY_COLUMNS: [&str; 2] = ["priority", "strict_priority"];
const CACHED_TOKENS_COLUMN: &str = "cached_tokens";
/// Name of the cached tokens in the rows that `replay --per-request` writes.
const REUSED_TOKENS_COLUMN: &str = "reused_input_tokens";

/// Columns of a CSV file of requests, with what its rows so far have in them.
pub(super) struct RequestColumns {
    session: Option<usize>,
    turns: Vec<&'static str>,
    priorities: Vec<(usize, &'static str)>,
    cached: Option<&'static str>,
    sessions: HashSet<String>,
    pub(super) unused: UnusedTraceColumns,
}

impl RequestColumns {
    /// Finds the columns in the header of a CSV file.
    ///
    /// # Errors
    /// Returns [`WorkloadError::Bad`] if the file has several of `arrivals`, of which one would win.
    pub(super) fn find_in_header(
        header: &CsvHeader,
        lines: &WorkloadLines,
        arrivals: impl Iterator<Item = &'static str>,
    ) -> Result<Self, WorkloadError> {
        let is_there = |name: &&str| header.find_column(&[*name]).is_some();
        let arrivals: Vec<&str> =
            arrivals.filter(|name| name.starts_with("arrival")).filter(is_there).collect();
        if arrivals.len() > 1 {
            let names = arrivals.join(" and ");
            return Err(lines.error_at_line(format!("has the columns {names}, must have one")));
        }
        let priorities = PRIORITY_COLUMNS.into_iter();
        let priorities = priorities.filter_map(|name| Some((header.find_column(&[name])?, name)));
        let cached = [CACHED_TOKENS_COLUMN, REUSED_TOKENS_COLUMN];
        Ok(Self {
            session: header.find_column(&[SESSION_COLUMN]),
            turns: TURN_COLUMNS.into_iter().filter(is_there).collect(),
            priorities: priorities.collect(),
            cached: cached.into_iter().find(|name| is_there(name)),
            sessions: HashSet::new(),
            unused: UnusedTraceColumns::default(),
        })
    }

    /// Records what the current line of the file has in columns that the workload does not use.
    ///
    /// # Errors
    /// Returns [`WorkloadError::Bad`] if more tokens are cached than the prompt has.
    pub(super) fn record_row(
        &mut self,
        lines: &WorkloadLines,
        request: &MeasuredRequest,
    ) -> Result<(), WorkloadError> {
        let cached = request.cached.unwrap_or(0);
        // A preempted request of a replay also reuses tokens of its output.
        if self.cached == Some(CACHED_TOKENS_COLUMN) && cached > request.input {
            let most = request.input;
            return Err(lines.error_at_line(format!(
                "{CACHED_TOKENS_COLUMN} is {cached}, must be at most the {most} tokens of the prompt"
            )));
        }
        if let Some(name) = self.cached.filter(|_| cached > 0 && request.prefix.is_none()) {
            self.unused.add_column(name);
        }
        if self.session.is_none() && self.priorities.is_empty() {
            return Ok(());
        }
        let cells = split_csv_line(lines.current_line());
        let session = self.session.and_then(|at| cells.get(at)).filter(|name| !name.is_empty());
        // A session of one request loses nothing.
        if session.is_some_and(|name| !self.sessions.insert(name.clone())) {
            self.unused.add_column(SESSION_COLUMN);
            self.turns.iter().for_each(|name| self.unused.add_column(name));
        }
        for (at, name) in &self.priorities {
            if cells.get(*at).is_some_and(|cell| !["", "0"].contains(&cell.as_str())) {
                self.unused.add_column(name);
            }
        }
        Ok(())
    }
}
