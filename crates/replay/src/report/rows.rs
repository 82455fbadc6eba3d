//! Writes one CSV or JSONL row per request as requests end.

use std::io::{self, Write};
use std::path::Path;

use crate::outcome::{ReplaySink, RequestOutcome};

use super::record::{RequestOutcomeRecord, RequestRecord};

/// File format for one row per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFileFormat {
    /// CSV with a header line, a format that the workload loader reads.
    Csv,
    /// JSON lines: the request records of the report, one per line.
    Jsonl,
}

impl RowFileFormat {
    /// Selects the row format by the extension of a file name, `.csv` or `.jsonl`.
    ///
    /// # Errors
    /// Returns a message for an unknown extension.
    pub fn from_file_extension(path: &Path) -> Result<Self, String> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("csv") => Ok(Self::Csv),
            Some("jsonl" | "ndjson") => Ok(Self::Jsonl),
            _ => Err(format!("{}: must end in .csv or .jsonl", path.display())),
        }
    }
}

const CSV_HEADER: &str = "request_id,session_id,turn,arrival_time_ms,dispatched_at_ms,first_admit_ms,\
first_token_ms,last_token_ms,status,input_length,output_length,reused_input_tokens,admissions,\
worker,prefill_worker,ttft_ms,ttst_ms,itl_ms,e2e_latency_ms,error\n";

/// Writes one row per request; [`RequestRowWriter::finish_row_file`] returns the first error.
pub struct RequestRowWriter {
    out: Box<dyn Write + Send>,
    form: RowFileFormat,
    failed: Option<io::Error>,
}

impl RequestRowWriter {
    /// Creates a writer of request rows and writes the CSV header.
    ///
    /// # Errors
    /// Returns the error of `out` if the header cannot be written.
    pub fn new(mut out: Box<dyn Write + Send>, file_format: RowFileFormat) -> io::Result<Self> {
        if file_format == RowFileFormat::Csv {
            out.write_all(CSV_HEADER.as_bytes())?;
        }
        Ok(Self { out, form: file_format, failed: None })
    }

    /// Writes the buffered request rows to the file.
    ///
    /// # Errors
    /// Returns the first error of this call or of an earlier row.
    pub fn finish_row_file(mut self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn write(&mut self, record: &RequestRecord) -> io::Result<()> {
        if self.form == RowFileFormat::Jsonl {
            serde_json::to_writer(&mut self.out, record)?;
            return self.out.write_all(b"\n");
        }
        fn optional_to_text<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(String::new, |value| value.to_string())
        }
        let cells = [
            quote_csv(&record.uuid),
            quote_csv(record.session_id.as_deref().unwrap_or_default()),
            optional_to_text(record.turn_index),
            record.arrival_time_ms.to_string(),
            optional_to_text(record.dispatched_at_ms),
            optional_to_text(record.first_admit_ms),
            optional_to_text(record.first_token_ms),
            optional_to_text(record.last_token_ms),
            record.terminal_status.to_owned(),
            record.input_length.to_string(),
            record.output_length.to_string(),
            record.reused_input_tokens.to_string(),
            record.admission_count.to_string(),
            optional_to_text(record.decode_worker_idx),
            optional_to_text(record.prefill_worker_idx),
            optional_to_text(record.ttft_ms),
            optional_to_text(record.ttst_ms),
            optional_to_text(record.itl_ms),
            optional_to_text(record.e2e_latency_ms),
            quote_csv(record.error.as_deref().unwrap_or_default()),
        ];
        writeln!(self.out, "{}", cells.join(","))
    }
}

fn quote_csv(text: &str) -> String {
    if !text.contains([',', '"', '\n', '\r']) {
        return text.to_owned();
    }
    let text = text.replace('"', "\"\"").replace(['\n', '\r'], " ");
    format!("\"{text}\"")
}

impl ReplaySink for RequestRowWriter {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        if self.failed.is_none() {
            self.failed =
                self.write(&RequestOutcomeRecord::from(outcome).to_request_record()).err();
        }
    }
}
