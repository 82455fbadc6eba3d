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
mod parts;
mod pooling;
mod ready;
mod request;
mod serve;
mod stats;
mod step;
mod waves;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use vllm_sim_config::Config;

pub use handshake::CoreError;
use input::Input;
pub use observer::OutputObserver;
use output::Item;
pub use parts::Parts;
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

/// A running engine core.
pub struct EngineCore {
    stop: zmq::Socket,
    thread: JoinHandle<()>,
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
        let runtime = tokio::runtime::Handle::current();
        let name = format!("core-{}", parts.rank);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let input = Input::new(parts, runtime, steps.queue, stopped);
            if let Err(error) = input.run(&context, steps.steps) {
                // Nobody waits for it at the end.
                let _ = failure.send(error);
            }
        })?;
        Ok(Self {
            stop,
            thread,
            failed,
        })
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
        let _ = self.stop.send(input::KILL, zmq::DONTWAIT);
    }

    /// Sends what is left and leaves the sockets. The engine has ended what it had.
    pub async fn stop(self) {
        // Its thread may have ended before.
        let _ = self.stop.send("", zmq::DONTWAIT);
        let thread = self.thread;
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}
