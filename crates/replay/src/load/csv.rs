//! Reads CSV traces of BurstGPT and Azure, and CSV files with one measured request per row.

mod columns;

use std::path::PathBuf;
use std::sync::Arc;

use super::bench::{BenchRun, MeasuredRequest, OfferedLoad};
use super::lines::WorkloadLines;
use super::loaded::{
    LoadedSessions, SessionOrder, TIME_OUT_OF_RANGE_TEXT, is_time_in_range, sim_time_from_ms,
};
use crate::workload::{
    ClientSession, MAX_PROMPT_OR_OUTPUT_TOKENS, PromptTokenRun, SessionTurn, TurnPrompt,
    WorkloadError, WorkloadFacts, WorkloadSource,
};
use columns::RequestColumns;
use vllm_sim_random::mix_u64_pair;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CsvTraceKind {
    BurstGpt,
    Azure,
}

pub(super) fn split_csv_line(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                push_char(&mut cells, '"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => push_char(&mut cells, c),
        }
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

fn push_char(cells: &mut [String], c: char) {
    if let Some(cell) = cells.last_mut() {
        cell.push(c);
    }
}

pub(super) fn normalize_column_name(name: &str) -> String {
    let kept = name.chars().filter(|c| c.is_alphanumeric());
    kept.flat_map(char::to_lowercase).collect()
}

struct CsvHeader {
    names: Vec<String>,
}

impl CsvHeader {
    fn read(lines: &mut WorkloadLines) -> Result<Self, WorkloadError> {
        if !lines.read_next_line()? {
            return Err(lines.error_at_line("has no header line"));
        }
        Ok(Self {
            names: split_csv_line(lines.current_line())
                .iter()
                .map(|name| normalize_column_name(name))
                .collect(),
        })
    }

    fn find_column(&self, names: &[&str]) -> Option<usize> {
        let mut found = names.iter().filter_map(|name| {
            let name = normalize_column_name(name);
            self.names.iter().position(|known| *known == name)
        });
        found.next()
    }

    /// Splits the current line of a CSV file into cells.
    ///
    /// # Errors
    /// Returns [`WorkloadError::Bad`] if it has more cells than the header.
    fn row<'l>(&self, lines: &'l WorkloadLines) -> Result<CsvRow<'l>, WorkloadError> {
        let (cells, most) = (split_csv_line(lines.current_line()), self.names.len());
        match cells.len() <= most {
            true => Ok(CsvRow { lines, cells }),
            false => {
                let problem = format!("has {} fields, must have at most {most}", cells.len());
                Err(lines.error_at_line(format!("{problem} as the header has")))
            }
        }
    }

    fn require_column(
        &self,
        lines: &WorkloadLines,
        names: &[&str],
    ) -> Result<usize, WorkloadError> {
        self.find_column(names)
            .ok_or_else(|| lines.error_at_line(format!("has no column {:?}", names[0])))
    }
}

/// Cells of one line of a CSV file.
struct CsvRow<'l> {
    lines: &'l WorkloadLines,
    cells: Vec<String>,
}

impl CsvRow<'_> {
    /// Returns the text of the cell at column `at`; an empty text if the row ends before it.
    fn cell(&self, at: usize) -> &str {
        self.cells.get(at).map_or("", String::as_str)
    }

    fn wrong_cell_error(&self, at: usize, name: &str, allowed: &str) -> WorkloadError {
        self.lines.error_at_line(format!("{name} is {:?}, must be {allowed}", self.cell(at)))
    }

    fn token_count(&self, at: usize, name: &str) -> Result<u32, WorkloadError> {
        let n: Option<f64> = self.cell(at).parse().ok();
        n.filter(|n| (0.0..=MAX_PROMPT_OR_OUTPUT_TOKENS as f64).contains(n) && n.fract() == 0.0)
            .map(|n| n as u32)
            .ok_or_else(|| {
                let allowed = format!("a whole number from 0 to {MAX_PROMPT_OR_OUTPUT_TOKENS}");
                self.wrong_cell_error(at, name, &allowed)
            })
    }

    /// Parses a time in units of `scale` milliseconds.
    fn time_ms(&self, (at, scale): (usize, f64), name: &str) -> Result<f64, WorkloadError> {
        let n: Option<f64> = self.cell(at).parse().ok();
        let ms = n
            .filter(|n| n.is_finite())
            .ok_or_else(|| self.wrong_cell_error(at, name, "a number"))?
            * scale;
        if is_time_in_range(ms) {
            return Ok(ms);
        }
        let allowed = match scale == 1.0 {
            true => TIME_OUT_OF_RANGE_TEXT,
            false => "seconds, from 0 to 9200000000 of them (292 years)",
        };
        Err(self.wrong_cell_error(at, name, allowed))
    }
}

/// Opens a public CSV trace as a workload.
///
/// Reads it once to check every line. Rows sorted by time are then streamed, others are loaded into
/// memory.
pub(super) fn open_csv_trace(
    paths: &[PathBuf],
    table: CsvTraceKind,
    order: SessionOrder,
) -> Result<Box<dyn WorkloadSource>, WorkloadError> {
    let mut rows = TraceRows::new(paths, table);
    let (mut count, mut sorted) = (0, true);
    let (mut first_ms, mut last_ms) = (f64::INFINITY, f64::NEG_INFINITY);
    while let Some((at_ms, _)) = rows.next()? {
        count += 1;
        sorted &= at_ms >= last_ms;
        (first_ms, last_ms) = (first_ms.min(at_ms), at_ms);
    }
    let left_out_rows = rows.left_out;
    let mut rows = TraceRows::new(paths, table);
    if sorted || order == SessionOrder::AsListed {
        let facts = WorkloadFacts {
            is_single_turn: sorted,
            max_requests: Some(count),
            left_out_rows,
            ..WorkloadFacts::default()
        };
        return Ok(Box::new(CsvStream { rows, first_ms, facts }));
    }
    let mut sessions = Vec::new();
    while let Some(row) = rows.next()? {
        sessions.push(row);
    }
    let mut sessions = LoadedSessions::new(sessions, order);
    sessions.facts.left_out_rows = left_out_rows;
    Ok(Box::new(sessions))
}

/// Iterates over the rows of a public CSV trace as sessions, with their start times in ms.
///
/// Skips rows without output, which are failed requests.
struct TraceRows {
    table: CsvTraceKind,
    paths: std::vec::IntoIter<PathBuf>,
    /// Current CSV file, with its header and the indices of the columns for time, prompt length and
    /// output length.
    open: Option<(WorkloadLines, CsvHeader, [usize; 3])>,
    given: u64,
    left_out: u64,
}

impl TraceRows {
    fn new(paths: &[PathBuf], table: CsvTraceKind) -> Self {
        Self { table, paths: Vec::from(paths).into_iter(), open: None, given: 0, left_out: 0 }
    }

    fn column_names(&self) -> [&'static str; 3] {
        match self.table {
            CsvTraceKind::BurstGpt => ["Timestamp", "Request tokens", "Response tokens"],
            CsvTraceKind::Azure => ["Timestamp", "ContextTokens", "GeneratedTokens"],
        }
    }

    fn next(&mut self) -> Result<Option<(f64, ClientSession)>, WorkloadError> {
        let [time_name, input_name, output_name] = self.column_names();
        loop {
            let (lines, header, [time, input, output]) = match &mut self.open {
                Some(open) => open,
                None => {
                    let Some(path) = self.paths.next() else {
                        return Ok(None);
                    };
                    let mut lines = WorkloadLines::open_workload_file(&path)?;
                    let header = CsvHeader::read(&mut lines)?;
                    let need = |name| header.require_column(&lines, &[name]);
                    let columns = [need(time_name)?, need(input_name)?, need(output_name)?];
                    self.open.insert((lines, header, columns))
                }
            };
            if !lines.read_next_line()? {
                self.open = None;
                continue;
            }
            let row = header.row(lines)?;
            let at_ms = match self.table {
                CsvTraceKind::BurstGpt => row.time_ms((*time, 1e3), time_name)?,
                CsvTraceKind::Azure => parse_date_ms(row.cell(*time)).ok_or_else(|| {
                    let form = "a time such as 2023-11-16 18:15:46.6805900";
                    row.wrong_cell_error(*time, "TIMESTAMP", form)
                })?,
            };
            let input = row.token_count(*input, input_name)?;
            let output = row.token_count(*output, output_name)?;
            if input > 0 && output > 0 {
                self.given += 1;
                return Ok(Some((at_ms, single_request_session(self.given - 1, input, output))));
            }
            self.left_out += 1;
        }
    }
}

struct CsvStream {
    rows: TraceRows,
    first_ms: f64,
    facts: WorkloadFacts,
}

impl WorkloadSource for CsvStream {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        let Some((at_ms, mut session)) = self.rows.next()? else {
            return Ok(None);
        };
        session.start = sim_time_from_ms(at_ms - self.first_ms);
        Ok(Some(session))
    }

    fn facts(&self) -> WorkloadFacts {
        self.facts
    }
}

/// Creates a session of one request whose prompt shares no tokens with others.
pub(super) fn single_request_session(number: u64, input: u32, output: u32) -> ClientSession {
    let run = PromptTokenRun { id: mix_u64_pair(7, number), len: input, same: false };
    ClientSession::new(None, vec![SessionTurn::new(TurnPrompt::Whole(vec![run]), output)])
}

/// Parses a date `YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]` to milliseconds since 1970.
pub(super) fn parse_date_ms(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(1..=9999).contains(&year) {
        return None;
    }
    let time = time.trim_end_matches('Z');
    let (clock, offset) = match time.rfind(['+', '-']) {
        Some(at) => {
            let (hours, minutes) = time[at + 1..].split_once(':').unwrap_or((&time[at + 1..], "0"));
            let minutes = hours.parse::<f64>().ok()? * 60.0 + minutes.parse::<f64>().ok()?;
            let sign = if time[at..].starts_with('-') { -1.0 } else { 1.0 };
            (&time[..at], sign * minutes)
        }
        None => (time, 0.0),
    };
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    if !(0.0..24.0).contains(&hours)
        || !(0.0..60.0).contains(&minutes)
        || !(0.0..61.0).contains(&seconds)
    {
        return None;
    }
    // Days since 1970; years start in March, so that leap days come last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let minutes = days as f64 * 1440.0 + hours * 60.0 + minutes - offset;
    Some(minutes * 60e3 + seconds * 1e3)
}

/// Reads a CSV file with one measured request per row, such as those of `replay --per-request`.
pub(super) fn read_measured_requests(path: &std::path::Path) -> Result<BenchRun, WorkloadError> {
    let mut lines = WorkloadLines::open_workload_file(path)?;
    let header = CsvHeader::read(&mut lines)?;
    let input = header.require_column(&lines, &INPUT_TOKENS_COLUMNS)?;
    let output = header.require_column(&lines, &OUTPUT_TOKENS_COLUMNS)?;
    let ms = |names: &[&str], seconds: &[&str]| {
        let in_ms = header.find_column(names).map(|at| (at, 1.0));
        in_ms.or_else(|| header.find_column(seconds).map(|at| (at, 1e3)))
    };
    let arrival = ms(&ARRIVAL_MS_COLUMNS, &ARRIVAL_SECONDS_COLUMNS);
    let arrivals = ARRIVAL_MS_COLUMNS.into_iter().chain(ARRIVAL_SECONDS_COLUMNS);
    let mut columns = RequestColumns::find_in_header(&header, &lines, arrivals)?;
    let ttft = ms(&["ttft_ms"], &["ttft_s", "ttft"]);
    let e2e = ms(&["e2e_ms", "e2e_latency_ms"], &["e2e_s", "e2e", "latency_s"]);
    let cached = header.find_column(&["cached_tokens", "reused_input_tokens"]);
    let prefix = header.find_column(&["prefix_id", "prefix"]);
    let status = header.find_column(&["status", "terminal_status"]);
    let mut run = BenchRun::new(path.display().to_string());
    while lines.read_next_line()? {
        let row = header.row(&lines)?;
        if status.is_some_and(|at| !["", "completed", "ok", "200"].contains(&row.cell(at))) {
            continue;
        }
        let time = |column: Option<(usize, f64)>, name: &str| {
            let column = column.filter(|(at, _)| !row.cell(*at).is_empty());
            column.map(|column| row.time_ms(column, name)).transpose()
        };
        let cached = cached.filter(|at| !row.cell(*at).is_empty());
        let request = MeasuredRequest {
            at_ms: time(arrival, "arrival")?,
            input: row.token_count(input, "input tokens")?.max(1),
            output: row.token_count(output, "output tokens")?,
            cached: cached.map(|at| row.token_count(at, "cached tokens")).transpose()?,
            prefix: prefix.map(|at| Arc::from(row.cell(at))),
            ttft_ms: time(ttft, "ttft")?,
            e2e_ms: time(e2e, "e2e")?,
        };
        columns.record_row(&lines, &request)?;
        run.requests.push(request);
    }
    run.unused_columns = columns.unused;
    run.load = match arrival {
        Some(_) => OfferedLoad::Times,
        None => OfferedLoad::AtOnce,
    };
    run.compute_latency_stats();
    Ok(run)
}

const INPUT_TOKENS_COLUMNS: [&str; 5] =
    ["input_length", "input_tokens", "prompt_tokens", "prompt_len", "input_len"];
const OUTPUT_TOKENS_COLUMNS: [&str; 5] =
    ["output_length", "output_tokens", "completion_tokens", "output_len", "generated_tokens"];
const ARRIVAL_MS_COLUMNS: [&str; 5] =
    ["arrival_time_ms", "arrival_ms", "sent_ms", "send_ms", "timestamp_ms"];
const ARRIVAL_SECONDS_COLUMNS: [&str; 7] =
    ["arrival_s", "arrival", "arrival_time", "sent_s", "send_time", "start_time", "timestamp"];

/// Detects the kind of a CSV table by its header: the format of a public trace, `Some(None)` for a
/// table of measured requests, or `None` for any other table.
pub(super) fn detect_csv_table_kind(header: &str) -> Option<Option<CsvTraceKind>> {
    let names: Vec<String> =
        split_csv_line(header).iter().map(|name| normalize_column_name(name)).collect();
    let has = |name: &str| names.contains(&normalize_column_name(name));
    if has("ContextTokens") && has("GeneratedTokens") {
        return Some(Some(CsvTraceKind::Azure));
    }
    if has("Request tokens") && has("Response tokens") {
        return Some(Some(CsvTraceKind::BurstGpt));
    }
    let any = |of: &[&str]| of.iter().any(|name| has(name));
    (any(&INPUT_TOKENS_COLUMNS) && any(&OUTPUT_TOKENS_COLUMNS)).then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_become_milliseconds() {
        assert_eq!(parse_date_ms("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(parse_date_ms("2000-03-01T00:00:00Z"), Some(951_868_800_000.0));
        let azure = parse_date_ms("2023-11-16 18:15:46.6805900").expect("is a time");
        assert!((azure - 1_700_158_546_680.59).abs() < 1e-3);
        let zone = parse_date_ms("2024-05-10 02:00:00.009930+02:00").expect("is a time");
        assert!((zone - 1_715_299_200_009.93).abs() < 1e-3);
        for bad in ["", "2023-11-16", "2023-13-16 00:00:00", "x-y-z 1:2:3", "2023-01-01 25:00:00"] {
            assert_eq!(parse_date_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn quoted_cell_may_contain_comma() {
        assert_eq!(split_csv_line(r#"a, "b,""c""" ,"#), ["a", "b,\"c\"", ""]);
    }
}
