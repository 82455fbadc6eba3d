use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, listened to from the start: one that comes early is not lost.
pub(super) struct Signals(Option<(Signal, Signal)>);

impl Signals {
    pub(super) fn new() -> Self {
        let terminate = signal(SignalKind::terminate());
        let interrupt = signal(SignalKind::interrupt());
        // Without handlers a signal ends the process anyway.
        Self(terminate.ok().zip(interrupt.ok()))
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        let Some((terminate, interrupt)) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Waits for SIGINT or SIGTERM.
#[cfg(feature = "sqlite")]
pub(super) async fn signalled() {
    Signals::new().next().await;
}
