use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use vllm_sim_command_line::progress;

/// SIGINT and SIGTERM, listened to from the start: one that comes early is not lost.
pub(super) struct Signals {
    both: Option<(Signal, Signal)>,
    /// Ends with standard input; `None`: that means nothing, or has ended.
    input: Option<oneshot::Receiver<()>>,
}

impl Signals {
    pub(super) fn new() -> Self {
        let terminate = signal(SignalKind::terminate());
        let interrupt = signal(SignalKind::interrupt());
        Self {
            // Without handlers a signal ends the process anyway.
            both: terminate.ok().zip(interrupt.ok()),
            input: None,
        }
    }

    /// The end of standard input, which comes with that of the program at its other end, counts as one.
    pub(super) fn with_end_of_input(mut self) -> Self {
        let (ended, input) = oneshot::channel();
        let read = move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            let _ = ended.send(());
        };
        // Without a thread nobody notices.
        let thread = std::thread::Builder::new().name("stdin".to_owned());
        self.input = thread.spawn(read).ok().map(|_| input);
        self
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        let Self { both, input } = self;
        let signalled = async {
            match both {
                Some((terminate, interrupt)) => tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                },
                None => std::future::pending().await,
            }
        };
        let ended = async {
            match input {
                Some(input) => {
                    let _ = input.await;
                }
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            () = signalled => false,
            () = ended => true,
        };
        if ended {
            self.input = None;
        }
    }
}

/// Waits for SIGINT or SIGTERM.
#[cfg(feature = "sqlite")]
pub(super) async fn signalled() {
    Signals::new().next().await;
}

/// The exit code of who is interrupted.
pub(super) const INTERRUPTED: u8 = 130;

/// SIGINT lets a job end with what it has; a second one ends the process.
pub(super) fn stop_jobs_on_interrupt() {
    let listen = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        let Ok(runtime) = runtime else {
            return;
        };
        runtime.block_on(async {
            let Ok(mut interrupt) = signal(SignalKind::interrupt()) else {
                return;
            };
            interrupt.recv().await;
            progress::stop();
            interrupt.recv().await;
            std::process::exit(INTERRUPTED.into());
        });
    };
    // Without a thread the signal ends the process, as it does anyway.
    let _ = std::thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(listen);
}
