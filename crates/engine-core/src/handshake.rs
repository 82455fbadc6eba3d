//! The startup handshake of an engine core with the front end: HELLO, the addresses, the ready
//! response, READY.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/core.py`, `EngineCoreProc._perform_handshake`;
//! `vllm/v1/engine/utils.py`, `wait_for_engine_startup`.

use std::time::Duration;

use rmpv::Value;

use super::decode::{self, msgpack_map_member};
use super::parts::EngineCoreDependencies;
use super::ready;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit for a closing ZMQ socket to send its messages, in milliseconds.
pub(crate) const SOCKET_LINGER_MS: i32 = 4_000;

/// Content of a message on the engine core's in-process stop socket that simulates a crash of the
/// engine core.
pub(crate) const SIMULATED_CRASH_MESSAGE: &str = "kill";

/// High-water mark of the engine core's input sockets: maximum number of received messages in the
/// queue of a ZMQ socket.
const INPUT_HIGH_WATER_MARK: i32 = 1_000;
/// High-water mark of the engine core's output sockets: maximum number of outgoing messages in the
/// queue of a ZMQ socket.
///
/// The mark is low because libzmq does not limit bytes; further messages wait in the
/// [`FrontEndOutputQueue`](super::output_queue::FrontEndOutputQueue).
pub(crate) const OUTPUT_SOCKET_HIGH_WATER_MARK: i32 = 4;
/// High-water mark of the handshake and coordinator sockets, in messages, which are small.
const CONTROL_HIGH_WATER_MARK: i32 = 100_000;

/// Error of an engine core: the reason why it cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum EngineCoreError {
    /// A call of libzmq failed.
    #[error("ZeroMQ: {0}")]
    Socket(#[from] zmq::Error),
    /// The address of the front end cannot be used.
    #[error(
        "cannot connect to the front end at {address:?} (--data-parallel-address, --data-parallel-rpc-port): {why}"
    )]
    Address {
        /// ZMQ address of the front end.
        address: String,
        /// Error of libzmq.
        why: zmq::Error,
    },
    /// No front end answered within the time limit of the handshake.
    #[error(
        "no front end responded at {address} within {} seconds (--data-parallel-address, \
         --data-parallel-rpc-port)",
        HANDSHAKE_TIMEOUT.as_secs()
    )]
    Silent {
        /// ZMQ address of the front end.
        address: String,
    },
    /// The front end sent a malformed reply in the handshake.
    #[error("the front end at {address} sent an invalid handshake reply: {why}")]
    Answer {
        /// ZMQ address of the front end.
        address: String,
        /// Description of the defect in the front end's handshake reply.
        why: String,
    },
    /// The engine core was stopped by [`EngineCore::kill`](crate::EngineCore::kill).
    #[error("the engine core was stopped by EngineCore::kill")]
    Killed,
    /// A thread of the engine core panicked, which is a bug of vllm-sim; the panic message is on
    /// standard error.
    #[error("a thread of the engine core panicked, which is a bug of vllm-sim")]
    Panicked,
    /// The operating system cannot start a thread of the engine core.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

pub(crate) struct HandshakeSockets {
    /// Input sockets of the engine core, one per front end.
    pub(crate) inputs: Vec<zmq::Socket>,
    pub(crate) outputs: Vec<zmq::Socket>,
    pub(crate) coordinator: Option<CoordinatorSockets>,
}

/// Sockets to the coordinator, the process that balances load over the data-parallel ranks.
pub(crate) struct CoordinatorSockets {
    pub(crate) input: zmq::Socket,
    pub(crate) output: zmq::Socket,
}

#[derive(Debug, PartialEq, Eq)]
struct SocketAddresses {
    inputs: Vec<String>,
    outputs: Vec<String>,
    coordinator: Option<(String, String)>,
    stats: Option<String>,
}

/// Connects to the front end through the handshake; returns `None` if the engine core is stopped
/// first.
///
/// # Errors
/// [`EngineCoreError`] if the front end does not answer or its answer is malformed.
pub(crate) fn connect_to_front_end(
    context: &zmq::Context,
    parts: &EngineCoreDependencies,
    stopped: &zmq::Socket,
) -> Result<Option<HandshakeSockets>, EngineCoreError> {
    let parallel = &parts.config.engine.parallel;
    let address = tcp_endpoint(&parallel.address, parallel.rpc_port);
    let identity = (parts.rank as u16).to_le_bytes();
    let open_with = |kind, most, at: &str| {
        connect_socket(context, kind, identity, most, at)
            .map_err(|why| EngineCoreError::Address { address: at.to_owned(), why })
    };
    let open = |kind, at: &str| open_with(kind, CONTROL_HIGH_WATER_MARK, at);
    let handshake = open(zmq::DEALER, &address)?;
    tracing::info!(rank = parts.rank, address, "joining the front end");
    handshake.send(encode_status("HELLO", None), 0)?;
    let answer = match receive_or_stop(&handshake, stopped, &address) {
        Ok(Some(answer)) => answer,
        ended => {
            // Discards unsent messages, because the peer is not reading.
            handshake.set_linger(0)?;
            return ended.map(|_| None);
        }
    };
    let addresses = SocketAddresses::read(&answer)
        .map_err(|why| EngineCoreError::Answer { address: address.clone(), why })?;
    let open_all = |kind, most, at: &[String]| -> Result<Vec<_>, EngineCoreError> {
        at.iter().map(|at| open_with(kind, most, at)).collect()
    };
    let inputs = open_all(zmq::DEALER, INPUT_HIGH_WATER_MARK, &addresses.inputs)?;
    let outputs = open_all(zmq::PUSH, OUTPUT_SOCKET_HIGH_WATER_MARK, &addresses.outputs)?;
    let ready = ready::encode_ready_response(parts, &addresses.stats, &addresses.coordinator);
    for input in &inputs {
        input.send(ready.as_slice(), 0)?;
    }
    let coordinator = match &addresses.coordinator {
        None => None,
        Some((input, output)) => {
            let input = open(zmq::XSUB, input)?;
            let output = open(zmq::PUSH, output)?;
            // Subscribe to all messages. The coordinator sends READY when all ranks have
            // subscribed.
            input.send([1].as_slice(), 0)?;
            if receive_or_stop(&input, stopped, &address)?.is_none() {
                return Ok(None);
            }
            Some(CoordinatorSockets { input, output })
        }
    };
    let hash = (parallel.data > 1).then_some("");
    handshake.send(encode_status("READY", hash), 0)?;
    tracing::info!(
        rank = parts.rank,
        front_ends = inputs.len(),
        coordinator = coordinator.is_some(),
        "joined the front end"
    );
    Ok(Some(HandshakeSockets { inputs, outputs, coordinator }))
}

fn connect_socket(
    context: &zmq::Context,
    kind: zmq::SocketType,
    identity: [u8; 2],
    most: i32,
    at: &str,
) -> zmq::Result<zmq::Socket> {
    let socket = context.socket(kind)?;
    socket.set_identity(&identity)?;
    socket.set_sndhwm(most)?;
    socket.set_rcvhwm(most)?;
    socket.set_linger(SOCKET_LINGER_MS)?;
    socket.set_ipv6(at.contains('['))?;
    socket.connect(at)?;
    Ok(socket)
}

/// Reads the message on the engine core's stop socket; returns an error if the message simulates a
/// crash.
pub(crate) fn read_shutdown_signal(stopped: &zmq::Socket) -> Result<(), EngineCoreError> {
    match stopped.recv_bytes(zmq::DONTWAIT)? {
        word if word == SIMULATED_CRASH_MESSAGE.as_bytes() => Err(EngineCoreError::Killed),
        _ => Ok(()),
    }
}

/// Receives the next message on `socket`; returns `None` if the engine core is stopped first.
fn receive_or_stop(
    socket: &zmq::Socket,
    stopped: &zmq::Socket,
    address: &str,
) -> Result<Option<Vec<u8>>, EngineCoreError> {
    let mut items = [socket.as_poll_item(zmq::POLLIN), stopped.as_poll_item(zmq::POLLIN)];
    if zmq::poll(&mut items, HANDSHAKE_TIMEOUT.as_millis() as i64)? == 0 {
        return Err(EngineCoreError::Silent { address: address.to_owned() });
    }
    if items[1].is_readable() {
        return read_shutdown_signal(stopped).map(|()| None);
    }
    let frames = socket.recv_multipart(0)?;
    Ok(Some(frames.into_iter().next().unwrap_or_default()))
}

/// Encodes a HELLO or READY message of an engine that the front end did not start.
fn encode_status(word: &str, hash: Option<&str>) -> Vec<u8> {
    let mut entries =
        vec![("status", Value::from(word)), ("local", false.into()), ("headless", true.into())];
    entries.extend(hash.map(|hash| ("parallel_config_hash", hash.into())));
    ready::encode_msgpack_map(entries)
}

/// Returns `tcp://host:port`, with brackets around an IPv6 address.
fn tcp_endpoint(host: &str, port: u16) -> String {
    match host {
        host if host.contains(':') && !host.starts_with('[') => format!("tcp://[{host}]:{port}"),
        host => format!("tcp://{host}:{port}"),
    }
}

impl SocketAddresses {
    fn read(message: &[u8]) -> Result<Self, String> {
        let message = decode::decode_msgpack_value(message).map_err(|error| error.to_string())?;
        let addresses = msgpack_map_member(&message, "addresses");
        let list = |key: &str| -> Result<Vec<String>, String> {
            let items = msgpack_map_member(addresses, key).as_array();
            let texts = items.map(|items| items.iter().filter_map(Value::as_str));
            let texts: Vec<_> = texts.into_iter().flatten().map(str::to_owned).collect();
            match texts.is_empty() {
                true => Err(format!("no {key} in {message}")),
                false => Ok(texts),
            }
        };
        let text = |key: &str| msgpack_map_member(addresses, key).as_str().map(str::to_owned);
        let found = Self {
            inputs: list("inputs")?,
            outputs: list("outputs")?,
            coordinator: text("coordinator_input").zip(text("coordinator_output")),
            stats: text("frontend_stats_publish_address"),
        };
        if found.inputs.len() != found.outputs.len() {
            return Err(format!("the numbers of input and output addresses differ: {message}"));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_gets_brackets() {
        assert_eq!(tcp_endpoint("::1", 5), "tcp://[::1]:5");
        assert_eq!(tcp_endpoint("head", 29_550), "tcp://head:29550");
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        assert!(SocketAddresses::read(b"\xc0").unwrap_err().contains("no inputs"));
        assert!(SocketAddresses::read(b"").is_err());
    }
}
