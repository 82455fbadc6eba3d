//! vLLM's engine core protocol: ZeroMQ sockets and MessagePack messages.
//!
//! A vLLM API server handles HTTP, templates, tokenization, parsers and stop strings. It exchanges
//! token ids with engine processes. This crate is such an engine: one per data-parallel rank,
//! connected to the sockets of the API server.
//!
//! Two threads serve a rank. The input thread reads requests and submits them. The output thread
//! owns the output sockets and the running requests. The engine's observer sends the output thread
//! one batch of events per step. The output thread sends one message per step and client.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/__init__.py`, `vllm/v1/engine/core.py`,
//! `vllm/v1/serial_utils.py`, `rust/src/engine-core-client`.

mod adapters;
mod control;
mod decode;
mod encode;
#[cfg(test)]
mod golden;
mod handshake;
mod input;
mod logprobs;
mod observer;
mod output;
mod output_queue;
mod parts;
mod pooling;
mod prompt_text;
mod ready;
mod reasoning;
mod request;
mod request_ids;
mod serve;
mod stats;
mod step;
mod waves;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use vllm_sim_config::Config;

pub use handshake::EngineCoreError;
use input::InputSocketThread;
pub use observer::EngineOutputObserver;
use output::OutputThreadMessage;
pub use parts::EngineCoreDependencies;
pub use reasoning::ReasoningMarkers;
pub use waves::DataParallelWaves;

/// The channel on which the observer of a simulated engine sends the engine's events to the engine
/// core that serves vLLM front ends.
pub struct EngineEventChannel {
    queue: Sender<OutputThreadMessage>,
    steps: Receiver<OutputThreadMessage>,
}

/// Creates the observer of a simulated engine, and the channel on which it sends the engine's
/// events to the engine core.
pub fn create_output_observer(config: &Config) -> (EngineOutputObserver, EngineEventChannel) {
    let (queue, steps) = channel();
    let observer = EngineOutputObserver::new(queue.clone(), config);
    (observer, EngineEventChannel { queue, steps })
}

/// Runs `run`, and converts its panic to [`EngineCoreError::Panicked`].
fn catch_panic<T>(run: impl FnOnce() -> Result<T, EngineCoreError>) -> Result<T, EngineCoreError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(EngineCoreError::Panicked))
}

/// A running engine core: the threads that serve vLLM front ends for one engine.
pub struct EngineCore {
    stop: zmq::Socket,
    thread: JoinHandle<()>,
    joined: Option<oneshot::Receiver<()>>,
    failed: oneshot::Receiver<EngineCoreError>,
}

impl EngineCore {
    /// Starts the threads of an engine core, which connect to the API server at
    /// `--data-parallel-address`.
    ///
    /// # Errors
    /// [`EngineCoreError`] if a thread or socket cannot be created.
    pub fn start(
        parts: EngineCoreDependencies,
        steps: EngineEventChannel,
    ) -> Result<Self, EngineCoreError> {
        const STOP_ENDPOINT: &str = "inproc://stop";

        let context = zmq::Context::new();
        let stopped = context.socket(zmq::PAIR)?;
        stopped.bind(STOP_ENDPOINT)?;
        let stop = context.socket(zmq::PAIR)?;
        stop.connect(STOP_ENDPOINT)?;
        let (failure, failed) = oneshot::channel();
        let (join, joined) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let name = format!("core-{}", parts.rank);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let run = || {
                let input = InputSocketThread::new(parts, runtime, steps.queue, stopped);
                input.run_until_stopped(&context, steps.steps, join)
            };
            if let Err(error) = catch_panic(run) {
                // The receiver is dropped at shutdown.
                let _ = failure.send(error);
            }
        })?;
        Ok(Self { stop, thread, joined: Some(joined), failed })
    }

    /// Resolves when the engine has joined the front end; at most one call may await it.
    pub fn wait_until_front_end_connected(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let joined = self.joined.take();
        async move {
            if let Some(joined) = joined
                && joined.await.is_err()
            {
                // The core ended before it joined; [`Self::wait_until_failed`] reports why.
                std::future::pending().await
            }
        }
    }

    /// Resolves with the error when the engine core fails.
    pub async fn wait_until_failed(&mut self) -> EngineCoreError {
        match (&mut self.failed).await {
            Ok(error) => error,
            Err(_) => std::future::pending().await,
        }
    }

    /// Simulates a crash of the engine core: notifies the front ends and makes
    /// [`wait_until_failed`](Self::failed) resolve.
    pub fn kill(&self) {
        // The thread may have ended already.
        let _ = self.stop.send(handshake::SIMULATED_CRASH_MESSAGE, zmq::DONTWAIT);
    }

    /// Sends the remaining messages of the engine core and closes its sockets; the engine must have
    /// stopped.
    pub async fn stop(self) {
        // The thread may have ended already.
        let _ = self.stop.send("", zmq::DONTWAIT);
        let thread = self.thread;
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let run = || -> Result<(), EngineCoreError> { panic!("on purpose") };
        assert!(matches!(catch_panic(run), Err(EngineCoreError::Panicked)));
    }
}
