//! The log of a server that runs on the thread of its test.

use std::io::Write;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Receives the log lines of this thread until dropped.
pub(crate) struct Log {
    lines: UnboundedReceiver<String>,
    _guard: tracing::subscriber::DefaultGuard,
}

/// Gives each line to whoever reads it.
struct Lines(UnboundedSender<String>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        // Nobody reads once the test has what it wants.
        let _ = self.0.send(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn new() -> Self {
        let (sender, lines) = unbounded_channel();
        let writer = move || Lines(sender.clone());
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        let _guard = tracing::subscriber::set_default(log);
        Self { lines, _guard }
    }

    pub(crate) async fn wait_for(&mut self, words: &str) {
        while let Some(line) = self.lines.recv().await {
            if line.contains(words) {
                return;
            }
        }
    }

    /// Returns the lines so far that contain `words`.
    pub(crate) fn lines_with(&mut self, words: &str) -> Vec<String> {
        let lines = std::iter::from_fn(|| self.lines.try_recv().ok());
        lines.filter(|line| line.contains(words)).collect()
    }
}
