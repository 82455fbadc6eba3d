//! The input thread of an engine core: receives requests, aborts and utility calls from the front
//! ends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use rmpv::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::adapters::LoadedLoraAdapters;
use super::catch_panic;
use super::control::UtilityCallExecutor;
use super::decode::{self, MsgpackArrayFields};
use super::encode;
use super::handshake::{self, EngineCoreError};
use super::output::{self, OutputThreadMessage};
use super::parts::EngineCoreDependencies;
use super::request::EngineCoreRequest;
use super::serve::RequestSubmitter;

/// Maximum number of messages that an engine core reads from one input socket before it reads the
/// next one.
const MAX_CONSECUTIVE_READS: usize = 64;

/// Pause between reads of the input sockets, in milliseconds, while the requests being submitted
/// have too many prompt tokens in total.
const BUSY_PAUSE_MS: i64 = 2;

const ADD_REQUEST: &[u8] = &[0];
const ABORT_REQUESTS: &[u8] = &[1];
const START_DP_WAVE: &[u8] = &[2];
const UTILITY_CALL: &[u8] = &[3];

/// Address of the in-process socket on which the output thread of an engine core reports a panic.
const OUTPUT_PANIC_ENDPOINT: &str = "inproc://broken";

pub(crate) struct InputSocketThread {
    parts: EngineCoreDependencies,
    runtime: Handle,
    queue: Sender<OutputThreadMessage>,
    stopped: zmq::Socket,
    requests: Arc<RequestSubmitter>,
    control: Arc<UtilityCallExecutor>,
}

impl InputSocketThread {
    pub(crate) fn new(
        parts: EngineCoreDependencies,
        runtime: Handle,
        queue: Sender<OutputThreadMessage>,
        stopped: zmq::Socket,
    ) -> Self {
        let adapters = Arc::new(LoadedLoraAdapters::with_no_adapters_loaded(parts.clone()));
        Self {
            requests: Arc::new(RequestSubmitter::new(
                parts.clone(),
                queue.clone(),
                adapters.clone(),
            )),
            control: Arc::new(UtilityCallExecutor::new(parts.clone(), adapters)),
            parts,
            runtime,
            queue,
            stopped,
        }
    }

    /// Connects the engine core to the front end and reads the input sockets until stopped.
    ///
    /// # Errors
    /// [`EngineCoreError`] if the handshake or a socket fails.
    pub(crate) fn run_until_stopped(
        self,
        context: &zmq::Context,
        steps: Receiver<OutputThreadMessage>,
        join: oneshot::Sender<()>,
    ) -> Result<(), EngineCoreError> {
        let Some(joined) = handshake::connect_to_front_end(context, &self.parts, &self.stopped)?
        else {
            return Ok(());
        };
        let (wave_input, wave_output) = match joined.coordinator {
            Some(coordinator) => (Some(coordinator.input), Some(coordinator.output)),
            None => (None, None),
        };
        let sender = output::OutputSocketThread::new(&self.parts, joined.outputs, wave_output);
        let broken = context.socket(zmq::PAIR)?;
        broken.bind(OUTPUT_PANIC_ENDPOINT)?;
        let breaks = context.socket(zmq::PAIR)?;
        breaks.connect(OUTPUT_PANIC_ENDPOINT)?;
        let name = format!("core-out-{}", self.parts.rank);
        let writing = std::thread::Builder::new().name(name).spawn(move || {
            if !sender.run_until_stopped(&steps) {
                let _ = breaks.send("", zmq::DONTWAIT);
            }
        })?;
        // The receiver may be dropped.
        let _ = join.send(());
        let _runtime = self.runtime.enter();
        let read = catch_panic(|| self.read_sockets(&joined.inputs, wave_input.as_ref(), &broken));
        let dead = read.is_err();
        // The output thread may have ended already.
        let _ = self.queue.send(OutputThreadMessage::Stop { dead });
        // The output thread reports its own panic.
        let _ = writing.join();
        read
    }

    fn read_sockets(
        &self,
        inputs: &[zmq::Socket],
        waves: Option<&zmq::Socket>,
        broken: &zmq::Socket,
    ) -> Result<(), EngineCoreError> {
        let sockets: Vec<_> = inputs.iter().chain(waves).collect();
        loop {
            let mut items: Vec<_> =
                sockets.iter().map(|socket| socket.as_poll_item(zmq::POLLIN)).collect();
            items.push(broken.as_poll_item(zmq::POLLIN));
            items.push(self.stopped.as_poll_item(zmq::POLLIN));
            let busy = self.requests.exceeds_submitted_prompt_token_limit();
            match busy {
                true => zmq::poll(&mut items[sockets.len()..], BUSY_PAUSE_MS)?,
                false => zmq::poll(&mut items, -1)?,
            };
            if items[sockets.len()].is_readable() {
                return Err(EngineCoreError::Panicked);
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
                        Ok(frames) => self.handle_message(&frames),
                        Err(zmq::Error::EAGAIN) => break,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    fn handle_message(&self, frames: &[Vec<u8>]) {
        let (Some(kind), Some(payload)) = (frames.first(), frames.get(1)) else {
            tracing::warn!(frames = frames.len(), "message of the front end is too short");
            return;
        };
        let handled = match kind.as_slice() {
            ADD_REQUEST => self.add_request(payload, &frames[2..]),
            ABORT_REQUESTS => self.abort_requests(payload),
            UTILITY_CALL => self.call_utility(payload),
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
    fn start_wave(&self, payload: &[u8]) -> Result<(), decode::MsgpackDecodeError> {
        let fields = decode::decode_msgpack_value(payload)?;
        let wave = fields.as_array().and_then(|fields| fields.first()?.as_u64());
        let wave =
            wave.ok_or_else(|| decode::field_type_error("wave", &fields, "an array of numbers"))?;
        if let Some(waves) = &self.parts.waves {
            waves.raise_wave_number(wave);
        }
        Ok(())
    }

    fn add_request(
        &self,
        payload: &[u8],
        aux: &[Vec<u8>],
    ) -> Result<(), decode::MsgpackDecodeError> {
        let request = EngineCoreRequest::decode_request(payload, aux)?;
        if let Some(waves) = &self.parts.waves {
            waves.raise_wave_number(request.wave);
        }
        self.requests.submit_request_in_order(&self.runtime, request);
        Ok(())
    }

    fn abort_requests(&self, payload: &[u8]) -> Result<(), decode::MsgpackDecodeError> {
        let ids = decode::decode_msgpack_value(payload)?;
        let ids = ids
            .as_array()
            .ok_or_else(|| decode::field_type_error("request_ids", &ids, "an array of strings"))?;
        let ids = ids.iter().filter_map(Value::as_str).map(Into::into);
        let _ = self.queue.send(OutputThreadMessage::Abort(ids.collect()));
        Ok(())
    }

    fn call_utility(&self, payload: &[u8]) -> Result<(), decode::MsgpackDecodeError> {
        let mut fields = MsgpackArrayFields::from_msgpack_array(
            decode::decode_msgpack_value(payload)?,
            "utility call",
        )?;
        let client = fields.take_int_field(0).and_then(|n| usize::try_from(n).ok());
        let call = fields.take_field(1);
        let method = fields.take_text_field(2).unwrap_or_default();
        let args = MsgpackArrayFields::from_msgpack_array(fields.take_field(3), "args");
        let (control, queue) = (self.control.clone(), self.queue.clone());
        let rank = self.parts.rank;
        let wanted = (!self.parts.service.is_draining()).then(|| method.clone());
        let calling = wanted.map(|method| {
            self.runtime.spawn(async move {
                match args {
                    Ok(args) => control.execute_utility_call(&method, args).await,
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
            let message = encode::encode_utility_response(rank, &call, &result);
            let client = client.unwrap_or(0);
            let _ = queue.send(OutputThreadMessage::Answer { client, message });
        });
        Ok(())
    }
}
