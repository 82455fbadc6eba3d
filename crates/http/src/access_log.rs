//! The access log: the line that uvicorn prints for each request, which scripts look for.
//!
//! Lines go to a buffer, which a thread writes in batches. If the reader of the log is too slow,
//! lines are dropped and counted.
//!
//! Source: uvicorn 0.54 `logging.py`, `AccessFormatter`; `protocols/http/httptools_impl.py`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{StatusCode, Version};
use axum::response::Response;
use parking_lot::{Condvar, Mutex};

use super::middleware::{Middleware, ResponseHook};
use vllm_sim_config::{LogConfig, LogFormat, LogLevel};
use vllm_sim_service::RequestContext;

/// Approximate maximum size of the buffer of log lines, in bytes.
const MAX_BUFFERED_BYTES: usize = 8 << 20;
/// Capacity kept for the buffer of log lines after a write, in bytes.
const KEPT_BUFFER_BYTES: usize = 64 << 10;
/// Waiting time of the log thread for further lines before each write.
const LINE_GATHER_TIME: Duration = Duration::from_millis(5);

/// Prints a line to the access log for each request.
#[derive(Clone, Debug)]
pub(super) struct AccessLog(Arc<AccessLogThread>);

/// Thread of the access log; it ends when this struct is dropped.
#[derive(Debug)]
struct AccessLogThread {
    /// Request paths for which no line is logged.
    excluded: Vec<String>,
    format: LogFormat,
    lines: Arc<LineQueue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct LineQueue {
    waiting: Mutex<QueuedLines>,
    some: Condvar,
}

#[derive(Debug, Default)]
struct QueuedLines {
    lines: String,
    lost: u64,
    closed: bool,
}

impl AccessLog {
    /// Creates the access log of a server; `None` if it is disabled.
    pub(super) fn start_access_log_if_enabled(config: &LogConfig) -> Option<Self> {
        if !config.access || matches!(config.level, LogLevel::Error | LogLevel::Warn) {
            return None;
        }
        let lines = Arc::new(LineQueue::default());
        let (written, format) = (lines.clone(), config.format);
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || written.write_until_closed(format));
        Some(Self(Arc::new(AccessLogThread {
            excluded: config.access_excluded.clone(),
            format,
            lines,
            thread: Some(thread.ok()?),
        })))
    }

    /// Appends the line of one request to the buffer of the access log; `start` is the part before
    /// the status.
    fn append_line(&self, start: &str, status: StatusCode) {
        let mut waiting = self.0.lines.waiting.lock();
        if waiting.lines.len() >= MAX_BUFFERED_BYTES {
            waiting.lost += 1;
            return;
        }
        // The writer only sleeps while the buffer is empty.
        if waiting.lines.is_empty() {
            self.0.lines.some.notify_one();
        }
        let reason = status.canonical_reason().unwrap_or_default();
        for part in [start, status.as_str(), " ", reason, "\n"] {
            waiting.lines.push_str(part);
        }
    }
}

/// Returns a request target with its bytes beyond ASCII percent-encoded, as uvicorn logs paths.
///
/// Some of these bytes are control characters of terminals.
fn percent_encode_non_ascii(target: &str) -> Cow<'_, str> {
    if target.is_ascii() {
        return target.into();
    }
    let mut text = String::with_capacity(target.len() * 3);
    for byte in target.bytes() {
        match byte {
            0x21..=0x7e => text.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
    text.into()
}

impl Middleware for AccessLog {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        if self.0.excluded.iter().any(|path| path == request.uri().path()) {
            return Ok(None);
        }
        let context = request.extensions().get::<RequestContext>();
        let client = context.and_then(|context| context.client.as_deref()).unwrap_or_default();
        let target = request.uri().path_and_query();
        let version = match request.version() {
            Version::HTTP_10 => "HTTP/1.0",
            Version::HTTP_2 => "HTTP/2.0",
            _ => "HTTP/1.1",
        };
        let target = target.map_or("/", PathAndQuery::as_str);
        let target = percent_encode_non_ascii(target);
        let method = request.method().as_str();
        let level = if self.0.format == LogFormat::Text { "INFO:     " } else { "" };
        // Copied, because keeping the request's URI would keep the read buffer of its connection.
        let start = [level, client, " - \"", method, " ", &target, " ", version, "\" "].concat();
        let log = self.clone();
        Ok(Some(Box::new(move |response| {
            log.append_line(&start, response.status());
            response
        })))
    }
}

impl Drop for AccessLogThread {
    fn drop(&mut self) {
        self.lines.waiting.lock().closed = true;
        self.lines.some.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl LineQueue {
    fn write_until_closed(&self, format: LogFormat) {
        let mut lines = String::new();
        loop {
            let mut waiting = self.waiting.lock();
            if waiting.lines.is_empty() && !waiting.closed {
                self.some.wait(&mut waiting);
                // Collects further lines, except when closing.
                if !waiting.closed {
                    self.some.wait_for(&mut waiting, LINE_GATHER_TIME);
                }
            }
            std::mem::swap(&mut lines, &mut waiting.lines);
            let lost = std::mem::take(&mut waiting.lost);
            let closed = waiting.closed;
            drop(waiting);
            print_lines(&lines, format);
            if lost > 0 {
                tracing::warn!(
                    "{lost} lines of requests were dropped: the reader of the log is too slow"
                );
            }
            if closed && lines.is_empty() {
                return;
            }
            lines.clear();
            lines.shrink_to(KEPT_BUFFER_BYTES);
        }
    }
}

fn print_lines(lines: &str, format: LogFormat) {
    match format {
        LogFormat::Json => {
            for line in lines.lines() {
                tracing::info!("{line}");
            }
        }
        // A failed write of the log is ignored.
        LogFormat::Text => drop(std::io::stderr().lock().write_all(lines.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_terminals_are_percent_encoded() {
        assert_eq!(percent_encode_non_ascii("/v1/models?a=b%20c"), "/v1/models?a=b%20c");
        assert_eq!(percent_encode_non_ascii("/\u{9b}31m\u{e4}"), "/%C2%9B31m%C3%A4");
    }
}
