//! The line that uvicorn prints of each request behind `serve`, which scripts look for.
//!
//! Whoever answers a request leaves a few facts and goes on: a thread makes lines of them, many in one
//! write. A reader that does not read loses lines, and is told how many.
//!
//! Source: uvicorn 0.54 `logging.py`, `AccessFormatter`; `protocols/http/httptools_impl.py`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Body;
use axum::http::uri::PathAndQuery;
use axum::http::{Method, Request, StatusCode, Version};
use parking_lot::{Condvar, Mutex};

use vllm_sim_config::{Log, LogFormat, LogLevel};

/// Lines that wait to be written, at most.
const MAX_LINES: usize = 65_536;
/// How long lines are gathered for one write.
const GATHERED: Duration = Duration::from_millis(5);

/// Prints a line for each request.
#[derive(Debug)]
pub(super) struct AccessLog {
    /// Paths that have none.
    excluded: Vec<String>,
    lines: Arc<Lines>,
    writer: Option<JoinHandle<()>>,
}

/// What is known of a request before its answer.
#[derive(Debug)]
pub(super) struct AccessLine {
    method: Method,
    target: Option<PathAndQuery>,
    version: Version,
}

/// A request, who sent it, and how it was answered.
type Answered = (AccessLine, Option<SocketAddr>, StatusCode);

#[derive(Debug, Default)]
struct Lines {
    waiting: Mutex<Waiting>,
    some: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<Answered>,
    lost: u64,
    closed: bool,
}

impl AccessLog {
    /// The log of a server; `None`: it has none.
    pub(super) fn new(log: &Log) -> Option<Self> {
        if !log.access || matches!(log.level, LogLevel::Error | LogLevel::Warn) {
            return None;
        }
        let lines = Arc::new(Lines::default());
        let (written, format) = (lines.clone(), log.format);
        let writer = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || written.write_all(format));
        Some(Self {
            excluded: log.access_excluded.clone(),
            lines,
            writer: Some(writer.ok()?),
        })
    }

    /// What the line of a request will need.
    pub(super) fn line(&self, request: &Request<Body>) -> Option<AccessLine> {
        let path = request.uri().path();
        if self.excluded.iter().any(|excluded| excluded == path) {
            return None;
        }
        Some(AccessLine {
            method: request.method().clone(),
            target: request.uri().path_and_query().cloned(),
            version: request.version(),
        })
    }

    /// A request from `client` (`None`: over a Unix socket) has been answered.
    pub(super) fn answered(
        &self,
        line: AccessLine,
        client: Option<SocketAddr>,
        status: StatusCode,
    ) {
        let mut waiting = self.lines.waiting.lock();
        if waiting.lines.len() >= MAX_LINES {
            waiting.lost += 1;
            return;
        }
        waiting.lines.push((line, client, status));
        // The writer sleeps only when there is nothing.
        if waiting.lines.len() == 1 {
            self.lines.some.notify_one();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.lines.waiting.lock().closed = true;
        self.lines.some.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Lines {
    fn write_all(&self, format: LogFormat) {
        loop {
            let mut waiting = self.waiting.lock();
            if waiting.lines.is_empty() && !waiting.closed {
                self.some.wait(&mut waiting);
                // More come meanwhile; the end does not wait.
                if !waiting.closed {
                    self.some.wait_for(&mut waiting, GATHERED);
                }
            }
            let lines = std::mem::take(&mut waiting.lines);
            let lost = std::mem::take(&mut waiting.lost);
            let closed = waiting.closed;
            drop(waiting);
            write(&lines, format);
            if lost > 0 {
                tracing::warn!("{lost} lines of requests were lost: nobody reads the log");
            }
            if closed && lines.is_empty() {
                return;
            }
        }
    }
}

fn write(lines: &[Answered], format: LogFormat) {
    let mut text = String::new();
    match format {
        LogFormat::Json => {
            for line in lines {
                text.clear();
                push(&mut text, line);
                tracing::info!("{text}");
            }
        }
        LogFormat::Text => {
            for line in lines {
                text.push_str("INFO:     ");
                push(&mut text, line);
                text.push('\n');
            }
            // A log that cannot be written changes nothing.
            let _ = std::io::stderr().lock().write_all(text.as_bytes());
        }
    }
}

/// Appends what is said of a request.
fn push(text: &mut String, (line, client, status): &Answered) {
    if let Some(client) = client {
        // Writing to a string cannot fail.
        let _ = write!(text, "{client}");
    }
    let version = match line.version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    };
    let words = [
        " - \"",
        line.method.as_str(),
        " ",
        line.target.as_ref().map_or("/", PathAndQuery::as_str),
        " ",
        version,
        "\" ",
        status.as_str(),
        " ",
        status.canonical_reason().unwrap_or_default(),
    ];
    text.extend(words);
}
