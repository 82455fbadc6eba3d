use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use serde_json::Value;

use super::row::JsonRow;
use crate::workload::WorkloadError;

/// Maximum length of a line of a workload file, in bytes, which bounds the memory for binary files.
const MAX_LINE: u64 = 256 << 20;

/// Opens a workload file, decompresses it if it starts with the gzip magic bytes, and skips a UTF-8
/// byte-order mark.
///
/// # Errors
/// Returns [`WorkloadError::Io`] if the file cannot be read.
pub(super) fn open_maybe_gzip(path: &Path) -> Result<Box<dyn BufRead + Send>, WorkloadError> {
    let mut file =
        BufReader::with_capacity(1 << 16, File::open(path).map_err(io_error_of_file(path))?);
    let packed = file.fill_buf().map_err(io_error_of_file(path))?.starts_with(&[0x1f, 0x8b]);
    let mut reader: Box<dyn BufRead + Send> = if packed {
        Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    };
    if reader.fill_buf().map_err(io_error_of_file(path))?.starts_with("\u{feff}".as_bytes()) {
        reader.consume("\u{feff}".len());
    }
    Ok(reader)
}

/// Reads a workload file of at most `max_bytes` bytes as UTF-8 text.
///
/// # Errors
/// Returns [`WorkloadError`] if the file is unreadable, too long or not UTF-8.
pub(super) fn read_text_up_to(path: &Path, max_bytes: u64) -> Result<String, WorkloadError> {
    let mut text = String::new();
    let mut reader = open_maybe_gzip(path)?.take(max_bytes + 1);
    reader.read_to_string(&mut text).map_err(io_error_of_file(path))?;
    if text.len() as u64 > max_bytes {
        return Err(WorkloadError::Bad {
            place: path.display().to_string(),
            problem: format!("is longer than {max_bytes} bytes"),
        });
    }
    Ok(text)
}

pub(super) fn io_error_of_file(path: &Path) -> impl FnOnce(std::io::Error) -> WorkloadError {
    let path = path.to_owned();
    move |error| WorkloadError::Io { path, error }
}

pub(super) struct WorkloadLines {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    number: u64,
    line: String,
}

impl WorkloadLines {
    pub(super) fn open_workload_file(path: &Path) -> Result<Self, WorkloadError> {
        Ok(Self {
            path: path.to_owned(),
            reader: open_maybe_gzip(path)?,
            number: 0,
            line: String::new(),
        })
    }

    pub(super) fn read_next_line(&mut self) -> Result<bool, WorkloadError> {
        loop {
            self.line.clear();
            self.number += 1;
            let read =
                (&mut self.reader).take(MAX_LINE).read_line(&mut self.line).map_err(|error| {
                    match error.kind() {
                        std::io::ErrorKind::InvalidData => self.error_at_line("is not UTF-8 text"),
                        _ => io_error_of_file(&self.path)(error),
                    }
                })?;
            if read == 0 {
                return Ok(false);
            }
            if read as u64 == MAX_LINE && !self.line.ends_with('\n') {
                return Err(self.error_at_line(format!("is longer than {MAX_LINE} bytes")));
            }
            if !self.line.trim().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Reads the next JSON document: one line, or the rest of the file if the document continues
    /// after its first line.
    pub(super) fn read_next_json_document(&mut self) -> Result<Option<Value>, WorkloadError> {
        if !self.read_next_line()? {
            return Ok(None);
        }
        let parsed = match serde_json::from_str(&self.line) {
            Err(error) if error.is_eof() => {
                let read = (&mut self.reader).take(MAX_LINE).read_to_string(&mut self.line);
                let read = read.map_err(io_error_of_file(&self.path))?;
                if read as u64 == MAX_LINE {
                    return Err(self.error_at_line(format!("is longer than {MAX_LINE} bytes")));
                }
                serde_json::from_str(&self.line)
            }
            parsed => parsed,
        };
        parsed.map(Some).map_err(|error| {
            let line = self.number + error.line().saturating_sub(1) as u64;
            let place = format!("{}:{line}", self.path.display());
            WorkloadError::Bad { place, problem: format!("is not JSON: {error}") }
        })
    }

    /// Parses the current line as JSON.
    pub(super) fn parse_json_line(&self) -> Result<Value, WorkloadError> {
        serde_json::from_str(self.current_line())
            .map_err(|error| self.error_at_line(format!("is not JSON: {error}")))
    }

    pub(super) fn current_line(&self) -> &str {
        self.line.trim()
    }

    pub(super) fn line_number(&self) -> u64 {
        self.number
    }

    pub(super) fn file_and_line(&self) -> String {
        format!("{}:{}", self.path.display(), self.number)
    }

    pub(super) fn error_at_line(&self, problem: impl Into<String>) -> WorkloadError {
        WorkloadError::Bad { place: self.file_and_line(), problem: problem.into() }
    }
}

/// Calls `each` for every line of the workload files, which must be a JSON object.
pub(super) fn for_each_json_row(
    paths: &[PathBuf],
    mut each: impl FnMut(&JsonRow<'_>, &WorkloadLines) -> Result<(), WorkloadError>,
) -> Result<(), WorkloadError> {
    for path in paths {
        let mut lines = WorkloadLines::open_workload_file(path)?;
        while lines.read_next_line()? {
            let value = lines.parse_json_line()?;
            let place = || lines.file_and_line();
            each(&JsonRow::json_row_from_value(&value, &place)?, &lines)?;
        }
    }
    Ok(())
}
