//! Opens workload files: traces in many formats, and results of load generators.
//!
//! Errors name the file, line, field and value. Any file may be compressed with gzip.

mod agentic;
mod agents;
mod bench;
mod csv;
mod dynamo;
mod lifecycle;
mod lines;
mod loaded;
mod mooncake;
mod options;
mod otel;
mod otel_prompt;
mod otel_span;
mod published;
#[cfg(feature = "sqlite")]
mod recording;
mod results;
mod row;
mod sharegpt;
mod weka;
mod weka_chains;

use std::fmt::Display;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::workload::{ClientSession, WorkloadError, WorkloadFacts, WorkloadSource};
use agentic::SharedPrefixOptions;
use csv::CsvTraceKind;
use mooncake::MooncakeRowContent;
use vllm_sim_dataset::SQLITE_MAGIC;

pub use bench::{BenchRun, LatencyStats, MeasuredRequest, OfferedLoad};
pub use loaded::SessionOrder;
pub use options::{AgentRunOrder, WorkloadFormat, WorkloadReadOptions};

#[cfg(not(feature = "sqlite"))]
const NO_SQLITE: &str = "is a recording, which this build cannot read (feature `sqlite`)";

/// Opens workload files of one format as one workload.
///
/// # Errors
/// Returns [`WorkloadError`] with the file, line and field. Most formats are checked completely
/// before the first session.
pub fn open_workload_files(
    paths: &[PathBuf],
    options: &WorkloadReadOptions,
) -> Result<Box<dyn WorkloadSource>, WorkloadError> {
    let Some(first) = paths.first() else {
        return Err(file_error("trace files", "none is given"));
    };
    if options.trace_block_size == 0 {
        return Err(file_error("trace block size", "0, must be at least 1"));
    }
    let format = match options.format {
        WorkloadFormat::Auto => detect_workload_format(first)?,
        format => format,
    };
    let order = options.session_order;
    let open_mooncake = |content| {
        let block = match content {
            MooncakeRowContent::Bailian => mooncake::BAILIAN_BLOCK_TOKENS,
            _ => options.trace_block_size,
        };
        let name_rows = options.name_rows;
        let rules = mooncake::MooncakeParseRules { block, content, order, name_rows };
        mooncake::open_mooncake_traces(paths, rules)
    };
    let source: Box<dyn WorkloadSource> = match format {
        WorkloadFormat::Auto | WorkloadFormat::Mooncake => {
            open_mooncake(MooncakeRowContent::Whole)?
        }
        WorkloadFormat::MooncakeDelta => open_mooncake(MooncakeRowContent::Added)?,
        WorkloadFormat::Bailian => open_mooncake(MooncakeRowContent::Bailian)?,
        WorkloadFormat::AgenticMooncake => {
            Box::new(agentic::open_agentic_mooncake_traces(paths, options)?)
        }
        WorkloadFormat::AppliedComputeAgentic => {
            let sharing = SharedPrefixOptions {
                block: options.trace_block_size,
                ratio: options.shared_prefix_ratio.clamp(0.0, 1.0),
                groups: options.prefix_groups,
            };
            Box::new(agentic::open_applied_compute_traces(paths, sharing)?)
        }
        WorkloadFormat::Weka | WorkloadFormat::WekaSplit => {
            Box::new(weka::open_weka_traces(paths, options)?)
        }
        WorkloadFormat::Otel => Box::new(otel::open_otel_traces(paths, options)?),
        WorkloadFormat::Dynamo => Box::new(dynamo::open_dynamo_traces(paths)?),
        #[cfg(feature = "sqlite")]
        WorkloadFormat::Recording => Box::new(recording::open_recorded_datasets(paths, options)?),
        #[cfg(not(feature = "sqlite"))]
        WorkloadFormat::Recording => {
            return Err(file_error(first.display(), NO_SQLITE));
        }
        WorkloadFormat::ShareGpt => {
            Box::new(sharegpt::open_sharegpt_conversations(paths, options.limit)?)
        }
        WorkloadFormat::BurstGpt => csv::open_csv_trace(paths, CsvTraceKind::BurstGpt, order)?,
        WorkloadFormat::Azure => csv::open_csv_trace(paths, CsvTraceKind::Azure, order)?,
        WorkloadFormat::VllmBench
        | WorkloadFormat::Guidellm
        | WorkloadFormat::InferencePerf
        | WorkloadFormat::Aiperf
        | WorkloadFormat::InferenceX
        | WorkloadFormat::Csv
        | WorkloadFormat::Report => {
            let mut runs = Vec::new();
            for path in paths {
                runs.extend(read_bench_runs(path, format)?);
            }
            Box::new(bench::benchmark_workload(&runs, options.seed, order))
        }
    };
    Ok(match options.limit {
        Some(left) if !source.facts().has_agent_runs => {
            Box::new(RequestLimitedSource { source, left })
        }
        _ => source,
    })
}

/// Reads the benchmark runs in a result file of a load generator.
///
/// # Errors
/// Returns [`WorkloadError`] if the file is not a valid result of a load generator.
pub fn read_bench_runs(
    path: &Path,
    format: WorkloadFormat,
) -> Result<Vec<BenchRun>, WorkloadError> {
    let format = match format {
        WorkloadFormat::Auto => detect_workload_format(path)?,
        format => format,
    };
    match format {
        WorkloadFormat::VllmBench => Ok(vec![results::read_vllm_bench_result(path)?]),
        WorkloadFormat::Guidellm => results::read_guidellm_report(path),
        WorkloadFormat::InferencePerf => Ok(vec![lifecycle::read_inference_perf_report(path)?]),
        WorkloadFormat::Aiperf => Ok(vec![published::read_aiperf_records(path)?]),
        WorkloadFormat::InferenceX => published::read_inferencex_points(path),
        WorkloadFormat::Csv => Ok(vec![csv::read_measured_requests(path)?]),
        WorkloadFormat::Report => Ok(vec![results::read_replay_report(path)?]),
        _ => Err(file_error(
            path.display(),
            "has no measurements of vllm bench serve, guidellm, inference-perf, aiperf, \
             InferenceX or a CSV",
        )),
    }
}

fn file_error(place: impl Display, problem: &str) -> WorkloadError {
    WorkloadError::Bad { place: place.to_string(), problem: problem.to_owned() }
}

/// Refusal of the rows of `replay --per-request FILE.jsonl`.
const REQUEST_RECORDS_ERROR: &str = "has results of `replay --per-request`, which are not a workload \
    in JSON; write them with --per-request FILE.csv, or write a report with --report-json";

/// Detects the format of a workload file from its first bytes.
///
/// # Errors
/// Returns [`WorkloadError`] if the file is unreadable or has no known format.
pub fn detect_workload_format(path: &Path) -> Result<WorkloadFormat, WorkloadError> {
    const DETECTION_BYTES: u64 = 1 << 20;
    let mut head = Vec::new();
    let mut reader = lines::open_maybe_gzip(path)?.take(DETECTION_BYTES);
    if reader.fill_buf().map_err(lines::io_error_of_file(path))?.starts_with(SQLITE_MAGIC) {
        return Ok(WorkloadFormat::Recording);
    }
    // Reads one line, or the part of it that fits in the limit.
    while head.iter().all(u8::is_ascii_whitespace) {
        head.clear();
        if reader.read_until(b'\n', &mut head).map_err(lines::io_error_of_file(path))? == 0 {
            return Err(file_error(path.display(), "is empty"));
        }
    }
    let line = String::from_utf8_lossy(&head).trim().to_owned();
    if let Ok(Value::Object(row)) = serde_json::from_str::<Value>(&line) {
        if weka::is_weka_request_without_run(&row) {
            return Err(file_error(path.display(), weka::WEKA_REQUEST_WITHOUT_RUN_ERROR));
        }
        // Keys that only a record of a replay's request has.
        if row.contains_key("terminal_status") && row.contains_key("admission_history") {
            return Err(file_error(path.display(), REQUEST_RECORDS_ERROR));
        }
        if let Some(format) = format_of_json_row(&row) {
            return Ok(format);
        }
    }
    if line.starts_with(['{', '[']) {
        reader.read_to_end(&mut head).map_err(lines::io_error_of_file(path))?;
        let text = String::from_utf8_lossy(&head);
        let has = |key| text.contains(&format!("\"{key}\""));
        if !has("requests") && ["t", "in", "out", "hash_ids"].map(has) == [true; 4] {
            return Err(file_error(path.display(), weka::WEKA_REQUEST_WITHOUT_RUN_ERROR));
        }
        let spans = has("spans") || has("span_id");
        let found = if has("resourceSpans") || (spans && text.contains("\"gen_ai.")) {
            Some(WorkloadFormat::Otel)
        } else if has("hash_ids") && has("requests") && has("block_size") {
            Some(WorkloadFormat::Weka)
        } else if has("benchmarks") {
            Some(WorkloadFormat::Guidellm)
        } else if has("conversations") || has("conversation") || has("messages") {
            Some(WorkloadFormat::ShareGpt)
        } else if has("summary") && has("per_request") {
            Some(WorkloadFormat::Report)
        } else if ["request_throughput", "input_lens", "mean_ttft_ms"].map(has).contains(&true) {
            Some(WorkloadFormat::VllmBench)
        } else if has("successes") || has("start_time") {
            Some(WorkloadFormat::InferencePerf)
        } else {
            None
        };
        return found.ok_or_else(|| unknown_format_error(path));
    }
    match csv::detect_csv_table_kind(&line) {
        Some(Some(CsvTraceKind::Azure)) => Ok(WorkloadFormat::Azure),
        Some(Some(CsvTraceKind::BurstGpt)) => Ok(WorkloadFormat::BurstGpt),
        Some(None) => Ok(WorkloadFormat::Csv),
        None => Err(unknown_format_error(path)),
    }
}

fn format_of_json_row(row: &Map<String, Value>) -> Option<WorkloadFormat> {
    let has = |key: &str| row.contains_key(key);
    let has_all = |keys: &[&str]| keys.iter().all(|key| row.contains_key(*key));
    Some(if agentic::is_agentic_mooncake_row(row) {
        WorkloadFormat::AgenticMooncake
    } else if weka::is_weka_trace(row) {
        WorkloadFormat::Weka
    } else if otel::is_otel_document(row) {
        WorkloadFormat::Otel
    } else if dynamo::is_dynamo_request_trace(row) {
        WorkloadFormat::Dynamo
    } else if has("assistant_response_length") {
        WorkloadFormat::AppliedComputeAgentic
    } else if has("metadata") && row.get("metrics").is_some_and(Value::is_object) {
        WorkloadFormat::Aiperf
    } else if has_all(&["isl", "osl", "concurrency", "tpot_ms"]) {
        WorkloadFormat::InferenceX
    } else if has_all(&["chat_id", "parent_chat_id", "hash_ids"]) {
        WorkloadFormat::Bailian
    } else if has("hash_ids") {
        WorkloadFormat::Mooncake
    } else if has("conversations") || has("conversation") || has("messages") {
        WorkloadFormat::ShareGpt
    } else if has("benchmarks") {
        WorkloadFormat::Guidellm
    } else if has("per_request") {
        WorkloadFormat::Report
    } else if has("request_throughput") || has("total_input_tokens") {
        WorkloadFormat::VllmBench
    } else if has("successes") {
        WorkloadFormat::InferencePerf
    } else if has("output_length") || has("input_length") {
        // An invalid Mooncake row, which its reader reports.
        WorkloadFormat::Mooncake
    } else {
        return None;
    })
}

fn unknown_format_error(path: &Path) -> WorkloadError {
    let names: Vec<&str> =
        WorkloadFormat::NAMED_WORKLOAD_FORMATS.iter().skip(1).map(|(name, _)| *name).collect();
    let names = names.join(", ");
    file_error(path.display(), &format!("has none of the formats {names}; set the format"))
}

struct RequestLimitedSource {
    source: Box<dyn WorkloadSource>,
    left: u64,
}

impl WorkloadSource for RequestLimitedSource {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.source.next_session()
    }

    fn facts(&self) -> WorkloadFacts {
        let mut facts = self.source.facts();
        // `left` counts sessions, each of which may have many requests.
        if facts.is_single_turn {
            facts.max_requests = facts.max_requests.map(|all| all.min(self.left));
        }
        facts
    }
}
