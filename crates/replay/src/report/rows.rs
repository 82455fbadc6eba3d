//! Writes one CSV or JSONL row per request as requests end.

use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use crate::outcome::{Outcome, Sink};

use super::record::{OutcomeRecord, RequestRecord};

/// File format for one row per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowForm {
    /// CSV with a header line, a format that the workload loader reads.
    Csv,
    /// JSON lines: the request records of the report, one per line.
    Jsonl,
}

impl RowForm {
    /// Selects the row format by the extension of a file name, `.csv` or `.jsonl`.
    ///
    /// # Errors
    /// Returns a message for an unknown extension.
    pub fn of(path: &Path) -> Result<Self, String> {
        let end = path.extension().and_then(|end| end.to_str());
        end.unwrap_or_default()
            .parse()
            .map_err(|()| format!("{}: must end in .csv or .jsonl", path.display()))
    }
}

impl FromStr for RowForm {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "csv" => Ok(Self::Csv),
            "jsonl" | "ndjson" => Ok(Self::Jsonl),
            _ => Err(()),
        }
    }
}

const HEADER: &str = "request_id,session_id,turn,arrival_time_ms,dispatched_at_ms,first_admit_ms,\
first_token_ms,last_token_ms,status,input_length,output_length,reused_input_tokens,admissions,\
worker,prefill_worker,ttft_ms,ttst_ms,itl_ms,e2e_latency_ms,error\n";

/// Writes one row per request; [`Rows::finish`] returns the first error.
pub struct Rows {
    out: Box<dyn Write + Send>,
    form: RowForm,
    failed: Option<io::Error>,
}

impl Rows {
    /// Creates a writer of request rows and writes the CSV header.
    ///
    /// # Errors
    /// Returns the error of `out` if the header cannot be written.
    pub fn new(mut out: Box<dyn Write + Send>, form: RowForm) -> io::Result<Self> {
        if form == RowForm::Csv {
            out.write_all(HEADER.as_bytes())?;
        }
        Ok(Self {
            out,
            form,
            failed: None,
        })
    }

    /// Writes the buffered request rows.
    ///
    /// # Errors
    /// Returns the first error of this call or of an earlier row.
    pub fn finish(mut self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn write(&mut self, record: &RequestRecord) -> io::Result<()> {
        if self.form == RowForm::Jsonl {
            serde_json::to_writer(&mut self.out, record)?;
            return self.out.write_all(b"\n");
        }
        fn shown<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(String::new, |value| value.to_string())
        }
        let cells = [
            quoted(&record.uuid),
            quoted(record.session_id.as_deref().unwrap_or_default()),
            shown(record.turn_index),
            record.arrival_time_ms.to_string(),
            shown(record.dispatched_at_ms),
            shown(record.first_admit_ms),
            shown(record.first_token_ms),
            shown(record.last_token_ms),
            record.terminal_status.to_owned(),
            record.input_length.to_string(),
            record.output_length.to_string(),
            record.reused_input_tokens.to_string(),
            record.admission_count.to_string(),
            shown(record.decode_worker_idx),
            shown(record.prefill_worker_idx),
            shown(record.ttft_ms),
            shown(record.ttst_ms),
            shown(record.itl_ms),
            shown(record.e2e_latency_ms),
            quoted(record.error.as_deref().unwrap_or_default()),
        ];
        writeln!(self.out, "{}", cells.join(","))
    }
}

fn quoted(text: &str) -> String {
    if !text.contains([',', '"', '\n', '\r']) {
        return text.to_owned();
    }
    let text = text.replace('"', "\"\"").replace(['\n', '\r'], " ");
    format!("\"{text}\"")
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Rows")
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

impl Sink for Rows {
    fn request(&mut self, outcome: &Outcome<'_>) {
        if self.failed.is_none() {
            self.failed = self.write(&OutcomeRecord::from(outcome).record()).err();
        }
    }

    fn gaps(&mut self, _: u64, _: u64) {}
}
