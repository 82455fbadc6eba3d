//! How it looks to an API server of vLLM: the engine core, over ZeroMQ and MessagePack.
//!
//! vLLM's API server and its engines are processes of their own. The API server has HTTP, templates,
//! tokenizer, parsers and stop strings; an engine gets token ids and answers token ids. This is the
//! engine. It connects to the sockets that the API server bound, one engine for each data-parallel
//! rank.
//!
//! Two threads serve a rank. One reads the input sockets and submits; the other one has the output
//! sockets and everything that is being answered. The engine's observer hands it one batch for each
//! step, as vLLM's engine sends one message for each step and client.
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
mod outlet;
mod output;
mod parts;
mod pooling;
mod prompt_text;
mod ready;
mod request;
mod serve;
mod stats;
mod step;
mod thoughts;
mod waves;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use vllm_sim_config::Config;

pub use handshake::CoreError;
use input::Input;
pub use observer::OutputObserver;
use output::Item;
pub use parts::Parts;
pub use thoughts::Thoughts;
pub use waves::Waves;

/// What the observer of an engine hands to its core.
pub struct Steps {
    queue: Sender<Item>,
    steps: Receiver<Item>,
}

/// An observer for an engine, and what its core has to be started with.
pub fn observe(config: &Config) -> (OutputObserver, Steps) {
    let (queue, steps) = channel();
    let observer = OutputObserver::new(queue.clone(), config);
    (observer, Steps { queue, steps })
}

/// What `run` says; a panic in it is an error as any other.
fn unpanicked<T>(run: impl FnOnce() -> Result<T, CoreError>) -> Result<T, CoreError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(CoreError::Panicked))
}

/// A running engine core.
pub struct EngineCore {
    stop: zmq::Socket,
    thread: JoinHandle<()>,
    joined: Option<oneshot::Receiver<()>>,
    failed: oneshot::Receiver<CoreError>,
}

impl EngineCore {
    /// Starts it: it joins the API server at `--data-parallel-address` as soon as that is there.
    ///
    /// # Errors
    /// When a thread or a socket cannot be made.
    pub fn start(parts: Parts, steps: Steps) -> Result<Self, CoreError> {
        const STOP: &str = "inproc://stop";

        let context = zmq::Context::new();
        let stopped = context.socket(zmq::PAIR)?;
        stopped.bind(STOP)?;
        let stop = context.socket(zmq::PAIR)?;
        stop.connect(STOP)?;
        let (failure, failed) = oneshot::channel();
        let (join, joined) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let name = format!("core-{}", parts.rank);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let run = || {
                let input = Input::new(parts, runtime, steps.queue, stopped);
                input.run(&context, steps.steps, join)
            };
            if let Err(error) = unpanicked(run) {
                // Nobody waits for it at the end.
                let _ = failure.send(error);
            }
        })?;
        Ok(Self {
            stop,
            thread,
            joined: Some(joined),
            failed,
        })
    }

    /// Waits until it has joined the front end; to be asked for once.
    pub fn joined(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let joined = self.joined.take();
        async move {
            if let Some(joined) = joined
                && joined.await.is_err()
            {
                // It ended before; whoever waits for its failure is told why.
                std::future::pending().await
            }
        }
    }

    /// Waits until it cannot go on.
    pub async fn failed(&mut self) -> CoreError {
        match (&mut self.failed).await {
            Ok(error) => error,
            Err(_) => std::future::pending().await,
        }
    }

    /// Has it die as one that broke: front ends are told, and [`failed`](Self::failed) says so.
    pub fn kill(&self) {
        // A thread that has ended needs no word.
        let _ = self.stop.send(handshake::KILL, zmq::DONTWAIT);
    }

    /// Sends what is left and leaves the sockets. The engine has ended what it had.
    pub async fn stop(self) {
        // Its thread may have ended before.
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
        let run = || -> Result<(), CoreError> { panic!("on purpose") };
        assert!(matches!(unpanicked(run), Err(CoreError::Panicked)));
    }
}
