use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use vllm_sim_command_line::progress;

/// Receives SIGINT, SIGTERM and SIGHUP; signals before the first call of `next` are kept.
pub(super) struct TerminationSignals {
    both: Option<(Signal, Signal)>,
    /// Receiver of SIGHUP; `None` if the process was started with `nohup`.
    hangup: Option<Signal>,
    /// Receiver of the end of standard input; `None` if standard input is not watched or has ended.
    input: Option<oneshot::Receiver<()>>,
}

impl TerminationSignals {
    pub(super) fn listen_for_termination_signals() -> Self {
        let terminate = signal(SignalKind::terminate());
        let interrupt = signal(SignalKind::interrupt());
        Self {
            // Without handlers, a signal ends the process by default.
            both: terminate.ok().zip(interrupt.ok()),
            hangup: match hangup_is_ignored() {
                true => None,
                false => signal(SignalKind::hangup()).ok(),
            },
            input: None,
        }
    }

    /// Treats the end of standard input, for example when the parent process exits, as a signal.
    pub(super) fn with_end_of_stdin(mut self) -> Self {
        let (ended, input) = oneshot::channel();
        let read = move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            let _ = ended.send(());
        };
        // Without this thread, the end of input is not noticed.
        let thread = std::thread::Builder::new().name("stdin".to_owned());
        self.input = thread.spawn(read).ok().map(|_| input);
        self
    }

    pub(super) async fn wait_for_next_signal(&mut self) {
        let Self { both, hangup, input } = self;
        let signalled = async {
            match both {
                Some((terminate, interrupt)) => tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                },
                None => std::future::pending().await,
            }
        };
        let hung_up = async {
            match hangup {
                Some(hangup) => {
                    hangup.recv().await;
                }
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
            () = hung_up => false,
            () = ended => true,
        };
        if ended {
            self.input = None;
        }
    }
}

/// Returns whether SIGHUP was ignored when the process started, as with `nohup`.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

/// Waits for a signal that ends a server: SIGINT, SIGTERM or SIGHUP.
#[cfg(feature = "sqlite")]
pub(super) async fn wait_for_termination_signal() {
    TerminationSignals::listen_for_termination_signals().wait_for_next_signal().await;
}

/// Exit code of vllm-sim after SIGINT, as in shells.
pub(super) const INTERRUPTED_EXIT_CODE: u8 = 130;

/// Makes SIGINT stop a long-running tool early with its partial result; a second SIGINT ends the
/// process.
pub(super) fn finish_tool_early_on_interrupt() {
    let listen = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else {
            return;
        };
        runtime.block_on(async {
            let Ok(mut interrupt) = signal(SignalKind::interrupt()) else {
                return;
            };
            interrupt.recv().await;
            progress::request_stop_of_all_jobs();
            interrupt.recv().await;
            std::process::exit(INTERRUPTED_EXIT_CODE.into());
        });
    };
    // Without this thread, SIGINT ends the process by default.
    let _ = std::thread::Builder::new().name("interrupt".to_owned()).spawn(listen);
}
