//! The input thread of an engine core: receives requests, aborts and utility calls from the front
//! ends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use rmpv::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::adapters::Adapters;
use super::catch_panic;
use super::control::UtilityCalls;
use super::decode::{self, Fields};
use super::encode;
use super::handshake::{self, CoreError};
use super::output::{self, Item};
use super::parts::EngineCoreParts;
use super::request::CoreRequest;
use super::serve::Requests;

/// Number of messages read from one socket before the next socket gets its turn.
const MAX_CONSECUTIVE_READS: usize = 64;

/// Pause between reads of the sockets while too many prompt tokens are in submission, in
/// milliseconds.
const WHILE_BUSY_MS: i64 = 2;

const ADD: &[u8] = &[0];
const ABORT: &[u8] = &[1];
const START_DP_WAVE: &[u8] = &[2];
const UTILITY: &[u8] = &[3];

/// In-process socket on which the output thread reports a panic.
const BROKEN: &str = "inproc://broken";

pub(crate) struct Input {
    parts: EngineCoreParts,
    runtime: Handle,
    queue: Sender<Item>,
    stopped: zmq::Socket,
    requests: Arc<Requests>,
    control: Arc<UtilityCalls>,
}

impl Input {
    pub(crate) fn new(
        parts: EngineCoreParts,
        runtime: Handle,
        queue: Sender<Item>,
        stopped: zmq::Socket,
    ) -> Self {
        let adapters = Arc::new(Adapters::new(parts.clone()));
        Self {
            requests: Arc::new(Requests::new(
                parts.clone(),
                queue.clone(),
                adapters.clone(),
            )),
            control: Arc::new(UtilityCalls::new(parts.clone(), adapters)),
            parts,
            runtime,
            queue,
            stopped,
        }
    }

    /// Joins the front end and reads the input sockets until stopped.
    ///
    /// # Errors
    /// [`CoreError`] if the handshake or a socket fails.
    pub(crate) fn run(
        self,
        context: &zmq::Context,
        steps: Receiver<Item>,
        join: oneshot::Sender<()>,
    ) -> Result<(), CoreError> {
        let Some(joined) = handshake::join(context, &self.parts, &self.stopped)? else {
            return Ok(());
        };
        let (wave_input, wave_output) = match joined.coordinator {
            Some(coordinator) => (Some(coordinator.input), Some(coordinator.output)),
            None => (None, None),
        };
        let sender = output::Sender::new(&self.parts, joined.outputs, wave_output);
        let broken = context.socket(zmq::PAIR)?;
        broken.bind(BROKEN)?;
        let breaks = context.socket(zmq::PAIR)?;
        breaks.connect(BROKEN)?;
        let name = format!("core-out-{}", self.parts.rank);
        let writing = std::thread::Builder::new().name(name).spawn(move || {
            if !sender.run(&steps) {
                let _ = breaks.send("", zmq::DONTWAIT);
            }
        })?;
        // The receiver may be dropped.
        let _ = join.send(());
        let _runtime = self.runtime.enter();
        let read = catch_panic(|| self.read(&joined.inputs, wave_input.as_ref(), &broken));
        let dead = read.is_err();
        // The output thread may have ended already.
        let _ = self.queue.send(Item::Stop { dead });
        // The output thread reports its own panic.
        let _ = writing.join();
        read
    }

    fn read(
        &self,
        inputs: &[zmq::Socket],
        waves: Option<&zmq::Socket>,
        broken: &zmq::Socket,
    ) -> Result<(), CoreError> {
        let sockets: Vec<_> = inputs.iter().chain(waves).collect();
        loop {
            let mut items: Vec<_> = sockets
                .iter()
                .map(|socket| socket.as_poll_item(zmq::POLLIN))
                .collect();
            items.push(broken.as_poll_item(zmq::POLLIN));
            items.push(self.stopped.as_poll_item(zmq::POLLIN));
            let busy = self.requests.is_busy();
            match busy {
                true => zmq::poll(&mut items[sockets.len()..], WHILE_BUSY_MS)?,
                false => zmq::poll(&mut items, -1)?,
            };
            if items[sockets.len()].is_readable() {
                return Err(CoreError::Panicked);
            }
            if items.last().is_some_and(zmq::PollItem::is_readable) {
                return handshake::read_shutdown_signal(&self.stopped);
            }
            for (socket, item) in sockets.iter().zip(&items) {
                if busy || !item.is_readable() {
                    continue;
                }
                for _ in 0..MAX_CONSECUTIVE_READS {
                    match socket.recv_multipart(zmq::DONTWAIT) {
                        Ok(frames) => self.receive(&frames),
                        Err(zmq::Error::EAGAIN) => break,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    fn receive(&self, frames: &[Vec<u8>]) {
        let (Some(kind), Some(payload)) = (frames.first(), frames.get(1)) else {
            tracing::warn!(
                frames = frames.len(),
                "message of the front end is too short"
            );
            return;
        };
        let handled = match kind.as_slice() {
            ADD => self.add(payload, &frames[2..]),
            ABORT => self.abort(payload),
            UTILITY => self.call(payload),
            START_DP_WAVE => self.start_wave(payload),
            other => {
                tracing::warn!(kind = ?other, "the front end sent a message of an unknown type");
                Ok(())
            }
        };
        if let Err(error) = handled {
            tracing::warn!(kind = ?kind, %error, "a message of the front end cannot be read");
        }
    }

    /// Handles the coordinator's notification that another data-parallel rank has requests.
    fn start_wave(&self, payload: &[u8]) -> Result<(), decode::DecodeError> {
        let fields = decode::value(payload)?;
        let wave = fields
            .as_array()
            .and_then(|fields| fields.first()?.as_u64());
        let wave = wave.ok_or_else(|| decode::wrong("wave", &fields, "an array of numbers"))?;
        if let Some(waves) = &self.parts.waves {
            waves.raise(wave);
        }
        Ok(())
    }

    fn add(&self, payload: &[u8], aux: &[Vec<u8>]) -> Result<(), decode::DecodeError> {
        let request = CoreRequest::read(payload, aux)?;
        if let Some(waves) = &self.parts.waves {
            waves.raise(request.wave);
        }
        self.requests.add(&self.runtime, request);
        Ok(())
    }

    fn abort(&self, payload: &[u8]) -> Result<(), decode::DecodeError> {
        let ids = decode::value(payload)?;
        let ids = ids
            .as_array()
            .ok_or_else(|| decode::wrong("request_ids", &ids, "an array of strings"))?;
        let ids = ids.iter().filter_map(Value::as_str).map(Into::into);
        let _ = self.queue.send(Item::Abort(ids.collect()));
        Ok(())
    }

    fn call(&self, payload: &[u8]) -> Result<(), decode::DecodeError> {
        let mut fields = Fields::of(decode::value(payload)?, "utility call")?;
        let client = fields.int(0).and_then(|n| usize::try_from(n).ok());
        let call = fields.take(1);
        let method = fields.text(2).unwrap_or_default();
        let args = Fields::of(fields.take(3), "args");
        let (control, queue) = (self.control.clone(), self.queue.clone());
        let rank = self.parts.rank;
        let wanted = (!self.parts.service.is_draining()).then(|| method.clone());
        let calling = wanted.map(|method| {
            self.runtime.spawn(async move {
                match args {
                    Ok(args) => control.call(&method, args).await,
                    Err(error) => Err(error.to_string()),
                }
            })
        });
        self.runtime.spawn(async move {
            let named = |why| format!("Call to {method} method failed: {why}");
            let result = match calling {
                None => Err("Server shutting down".to_owned()),
                // A panic in the call is reported to the caller too.
                Some(calling) => {
                    let called = calling.await.unwrap_or_else(|error| Err(error.to_string()));
                    called.map_err(named)
                }
            };
            let message = encode::answer(rank, &call, &result);
            let client = client.unwrap_or(0);
            let _ = queue.send(Item::Answer { client, message });
        });
        Ok(())
    }
}
