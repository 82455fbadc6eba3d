use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::replay::workload::{Prompt, Run, Session, Turn};
use crate::sim::{SimTime, mix};

use super::DynamoError;
use super::args::{Args, wrong};
use crate::replay::synth::std_rng::StdRng;

/// What every kind of workload needs to know.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Tokens per block of the engine.
    pub block: u32,
    /// Divides times between requests.
    pub speedup: f64,
    /// Times of first turns mean nothing.
    pub closed: bool,
}

/// Most tokens of one request, so that a slip of the pen cannot fill the memory.
const MAX_TOKENS: u64 = 1 << 26;
/// Most requests of a synthetic run, for the same reason.
const MAX_REQUESTS: u64 = 10_000_000;
/// First part of the ids of shared blocks.
const SHARED: u64 = 0xD00D << 48;

fn turn(prompt: Prompt, output: u32, delay_ms: f64) -> Turn {
    Turn {
        delay_ns: nanos(delay_ms),
        ..Turn::new(prompt, output)
    }
}

/// Milliseconds in nanoseconds, to the nearest.
fn nanos(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

/// Requests of equal length, as `run_synthetic_trace_replay` makes them.
pub(super) fn synthetic(
    positional: &[Value],
    kwargs: &mut Args,
    shape: Shape,
) -> Result<Vec<Session>, DynamoError> {
    let mut length = |i: usize, key: &str, least: u64, most: u64| -> Result<u32, DynamoError> {
        let value = positional.get(i).cloned().or_else(|| kwargs.take(key));
        let n = value.as_ref().and_then(Value::as_u64);
        let n = n.filter(|n| (least..=most).contains(n));
        n.map(|n| n as u32)
            .ok_or_else(|| wrong(key, format!("must be between {least} and {most}")))
    };
    let input = length(0, "input_tokens", 1, MAX_TOKENS)?;
    let output = length(1, "output_tokens", 0, MAX_TOKENS)?;
    let count = length(2, "request_count", 0, MAX_REQUESTS)?;
    let turns = kwargs.count("turns_per_session")?.unwrap_or(1).max(1);
    if u64::from(turns) * u64::from(count) > MAX_REQUESTS {
        let problem = format!("makes more than {MAX_REQUESTS} requests");
        return Err(wrong("kwargs.turns_per_session", problem));
    }
    let ratio = kwargs.number("shared_prefix_ratio")?.unwrap_or(0.0);
    let groups = kwargs.count("num_prefix_groups")?.unwrap_or(0);
    let delay_ms = kwargs.number("inter_turn_delay_ms")?.unwrap_or(0.0) / shape.speedup;
    let starts = starts(kwargs, count, shape)?;
    let plain = turns == 1 && ratio == 0.0 && groups == 0 && delay_ms == 0.0;
    let blocks = input.div_ceil(shape.block);
    let shared = (f64::from(blocks) * ratio).round() as u32;
    let (mut rng, mut next_block) = (StdRng::new(42), 0u64);
    let sessions = starts.into_iter().enumerate().map(|(i, start_ms)| {
        let group = match groups {
            n if n > 0 && ratio > 0.0 => rng.below(n),
            _ => 0,
        };
        let turns = (0..turns).map(|nth| {
            let runs: Vec<Run> = if plain {
                vec![Run {
                    id: mix(1, i as u64),
                    len: input,
                    same: false,
                }]
            } else {
                (0..blocks)
                    .map(|b| {
                        let id = if b < shared {
                            SHARED | u64::from(group) << 32 | u64::from(b)
                        } else {
                            next_block += 1;
                            next_block
                        };
                        let len = shape.block.min(input - b * shape.block);
                        Run {
                            id,
                            len,
                            same: true,
                        }
                    })
                    .collect()
            };
            let delay = if nth == 0 { 0.0 } else { delay_ms };
            turn(Prompt::Whole(runs), output, delay)
        });
        let turns = turns.collect();
        let id = (!plain).then(|| format!("session-{i}").into());
        Session {
            id,
            start: SimTime::from_nanos(nanos(start_ms)),
            turns,
            after: Vec::new(),
        }
    });
    Ok(sessions.collect())
}

/// When the sessions of a synthetic workload start.
fn starts(kwargs: &mut Args, count: u32, shape: Shape) -> Result<Vec<f64>, DynamoError> {
    let rate = kwargs.number("request_rate")?;
    let interval = kwargs.number("arrival_interval_ms")?;
    let mut rng = StdRng::new(kwargs.count("arrival_seed")?.unwrap_or(42).into());
    let mut gap: Box<dyn FnMut() -> f64> = match (rate, interval, shape.closed) {
        (None, None, true) => Box::new(|| 0.0),
        (Some(rate), None, false) if rate > 0.0 => Box::new(move || rng.exponential(1000.0 / rate)),
        (None, Some(interval), false) => Box::new(move || interval),
        _ => {
            let problem = "give one of replay_concurrency, request_rate (more than 0), \
                           arrival_interval_ms";
            return Err(wrong("kwargs", problem));
        }
    };
    let mut at = 0.0;
    let starts = (0..count).map(|_| {
        let start = at / shape.speedup;
        at += gap();
        start
    });
    Ok(starts.collect())
}

/// Requests of Mooncake JSONL files.
pub(super) fn trace(
    positional: &[Value],
    kwargs: &mut Args,
    shape: Shape,
    dir: &Path,
) -> Result<Vec<Session>, DynamoError> {
    let files = positional
        .first()
        .cloned()
        .or_else(|| kwargs.take("trace_files"));
    let files: Vec<String> = match files {
        Some(Value::String(file)) => vec![file],
        Some(Value::Array(files)) => files
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        _ => {
            return Err(wrong(
                "trace_files",
                "must be a file name or a list of them",
            ));
        }
    };
    let format = kwargs.take("trace_format");
    let delta = match format.as_ref().and_then(Value::as_str) {
        None | Some("mooncake") => false,
        Some("mooncake-delta" | "mooncake_delta") => true,
        Some(other) => return Err(wrong("trace_format", format!("{other:?} is not modelled"))),
    };
    let trace_block = u64::from(kwargs.count("trace_block_size")?.unwrap_or(512).max(1));
    let mut reader = Reader {
        shape,
        trace_block,
        delta,
        ..Reader::default()
    };
    for file in files {
        let path = dir.join(file);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => return Err(DynamoError::Io { path, error }),
        };
        for (i, line) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
        {
            let place = format!("{}:{}", path.display(), i + 1);
            let row = serde_json::from_str(line).map_err(|error| DynamoError::Json {
                place: place.clone(),
                error,
            })?;
            reader.row(&row, &place)?;
        }
    }
    Ok(reader.finish())
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            block: 1,
            speedup: 1.0,
            closed: false,
        }
    }
}

/// Puts rows of one session behind one another.
#[derive(Default)]
struct Reader {
    shape: Shape,
    trace_block: u64,
    /// Rows hold only what is new in their turn.
    delta: bool,
    sessions: Vec<(f64, Session)>,
    by_id: HashMap<String, usize>,
    /// Time stamp of the last row, per session.
    last: Vec<f64>,
}

impl Reader {
    fn row(&mut self, row: &Value, place: &str) -> Result<(), DynamoError> {
        let number = |keys: &[&str]| keys.iter().find_map(|key| row[*key].as_f64());
        let ids = row["hash_ids"].as_array();
        let ids = ids.ok_or_else(|| wrong(place, "hash_ids must be a list"))?;
        let most = ids.len() as u64 * self.trace_block;
        let input = number(&["input_length", "input_tokens"]).map_or(most, |n| n as u64);
        if input == 0 || input > most.min(MAX_TOKENS) {
            let problem = format!("input_length is {input}, must be between 1 and {most}");
            return Err(wrong(place, problem));
        }
        let output = number(&["output_length", "output_tokens"]);
        let output = output.filter(|n| (0.0..=MAX_TOKENS as f64).contains(n));
        let output = output.ok_or_else(|| wrong(place, "output_length must be a number"))? as u32;
        let mut fresh = Vec::with_capacity(ids.len());
        let mut left = input;
        for id in ids {
            let id = id
                .as_u64()
                .ok_or_else(|| wrong(place, "a hash id is not a number"))?;
            let len = left.min(self.trace_block);
            left -= len;
            fresh.push(Run {
                id: mix(2, id),
                len: len as u32,
                same: true,
            });
        }
        let stamp = number(&["timestamp", "created_time"]);
        let delay = number(&["delay", "delay_ms"]);
        self.turn(row["session_id"].as_str(), stamp, delay, fresh, output);
        Ok(())
    }

    fn turn(
        &mut self,
        session: Option<&str>,
        stamp: Option<f64>,
        delay: Option<f64>,
        fresh: Vec<Run>,
        output: u32,
    ) {
        let known = session.and_then(|id| self.by_id.get(id).copied());
        let at = known.unwrap_or_else(|| {
            let at = self.sessions.len();
            if let Some(id) = session {
                self.by_id.insert(id.to_owned(), at);
            }
            let start_ms = stamp.unwrap_or(0.0);
            let session = Session {
                id: session.map(Arc::from),
                start: SimTime::ZERO,
                turns: Vec::new(),
                after: Vec::new(),
            };
            self.sessions.push((start_ms, session));
            self.last.push(start_ms);
            at
        });
        let last = &mut self.last[at];
        let between = stamp.map_or(0.0, |stamp| (stamp - *last).max(0.0));
        *last = stamp.unwrap_or(*last);
        let delay_ms = match known {
            Some(_) => delay.unwrap_or(between) / self.shape.speedup,
            None => 0.0,
        };
        let prompt = match self.delta && known.is_some() {
            true => Prompt::Grown(fresh),
            false => Prompt::Whole(fresh),
        };
        self.sessions[at]
            .1
            .turns
            .push(turn(prompt, output, delay_ms));
    }

    /// The earliest start is time 0.
    fn finish(self) -> Vec<Session> {
        let starts = self.sessions.iter().map(|(start, _)| *start);
        let first = starts.fold(f64::INFINITY, f64::min);
        let speedup = self.shape.speedup;
        let sessions = self.sessions.into_iter().map(|(start, session)| Session {
            start: SimTime::from_nanos(nanos((start - first) / speedup)),
            ..session
        });
        sessions.collect()
    }
}
