//! Handshake of a decode server with a prefill server, before the first read of its KV blocks.
//!
//! The decode server sends vLLM's query to the address of the notifications. The answer has the form
//! of vLLM's, with the engine id and the block size only. The hash of model and versions is not
//! compared. With MoRI-IO any answer is a success, and there is no time limit.
//!
//! Source: vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py`,
//! `_nixl_handshake`, and `metadata.py`; `moriio/moriio_connector.py`, `_moriio_handshake`.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use rmpv::Value;
use vllm_sim_engine::driver::KvSourceServer;

/// First field of a ZMQ message that queries the metadata of an engine.
const META_QUERY: &[u8] = b"get_meta_msg";
/// Interval between two checks whether a request still waits for the prefill server's answer, in
/// milliseconds.
const POLL_MS: i32 = 200;
/// Maximum number of waits of [`POLL_MS`] for a prefill server's answer with NIXL; in total, these
/// waits take 5 s.
const MAX_NIXL_POLLS: u32 = 25;
/// Maximum number of requests that wait for a handshake; for further ones, the handshake fails.
const MAX_WAITING_REQUESTS: usize = 10_000;
/// Maximum number of prefill engines that a decode server remembers after a handshake; beyond it,
/// all are forgotten.
const MAX_MET_ENGINES: usize = 65_536;

/// Engine id and block size of a prefill server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvTransferEngineMetadata {
    /// Id of the prefill server's engine, which changes at each start of the server.
    pub engine_id: String,
    /// Number of tokens per KV block.
    pub block_size: u32,
}

impl KvTransferEngineMetadata {
    /// Returns a prefill server's answer to a metadata query: two frames of a ZMQ message.
    pub(super) fn to_handshake_answer(&self) -> [Vec<u8>; 2] {
        let map = |entries: Vec<(&str, Value)>| {
            let entries = entries.into_iter().map(|(key, value)| (Value::from(key), value));
            encode(&Value::Map(entries.collect()))
        };
        let agent = map(vec![
            ("engine_id", self.engine_id.as_str().into()),
            ("block_size", self.block_size.into()),
        ]);
        let payload = map(vec![
            ("compatibility_hash", "vllm-sim".into()),
            ("agent_metadata_bytes", Value::Binary(agent)),
        ]);
        // The second part is the clock of the prefill server.
        [payload, encode(&Value::F64(0.0))]
    }

    fn from_answer(answer: &[u8]) -> Option<Self> {
        let payload = rmpv::decode::read_value(&mut &*answer).ok()?;
        let mut agent = member(&payload, "agent_metadata_bytes")?.as_slice()?;
        let agent = rmpv::decode::read_value(&mut agent).ok()?;
        Some(Self {
            engine_id: member(&agent, "engine_id")?.as_str()?.to_owned(),
            block_size: u32::try_from(member(&agent, "block_size")?.as_u64()?).ok()?,
        })
    }
}

fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let mut entries = value.as_map()?.iter();
    entries.find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}

fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to a vector never fails.
    let _ = rmpv::encode::write_value(&mut bytes, value);
    bytes
}

/// Returns whether a message queries the metadata of an engine.
pub(super) fn is_metadata_query(message: &[u8]) -> bool {
    let query = rmpv::decode::read_value(&mut &*message).ok();
    let word = query.as_ref().and_then(|query| query.as_array()?.first()?.as_slice());
    word == Some(META_QUERY)
}

/// Rules for the handshake with a prefill server, which depend on the KV connector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvHandshakeRules {
    /// Rules of NIXL: a handshake succeeds if the engine id equals the one in the request, and this
    /// server's block size is a multiple of the prefill server's.
    Nixl(u32),
    /// Rules of MoRI-IO: a handshake succeeds with any answer from the prefill server's address,
    /// without a time limit.
    MoriIo,
}

impl KvHandshakeRules {
    /// Returns the key under which a prefill server is remembered after its handshake.
    fn key(self, source: &KvSourceServer) -> &str {
        match self {
            Self::Nixl(_) => &source.engine_id,
            Self::MoriIo => &source.endpoint,
        }
    }

    const fn may_wait(self, polls: u32) -> bool {
        match self {
            Self::Nixl(_) => polls < MAX_NIXL_POLLS,
            Self::MoriIo => true,
        }
    }
}

/// Performs the handshakes of a decode server, one after the other, as vLLM's connector does.
#[derive(Debug, Clone)]
pub struct PrefillHandshakes {
    rules: KvHandshakeRules,
    /// Keys of the prefill servers that have answered a handshake.
    met: Arc<Mutex<HashSet<String>>>,
    queue: SyncSender<WaitingRequest>,
}

struct WaitingRequest {
    source: KvSourceServer,
    done: Box<dyn FnOnce(bool) + Send>,
}

impl PrefillHandshakes {
    /// Starts the handshake thread of a server; the thread stops when the last clone of the
    /// returned value is dropped.
    ///
    /// # Errors
    /// An I/O error if the thread cannot be started.
    pub fn start_handshake_thread(rules: KvHandshakeRules) -> std::io::Result<Self> {
        let (queue, waiting) = sync_channel(MAX_WAITING_REQUESTS);
        let met = Arc::default();
        let thread = thread::Builder::new().name("kv-handshake".to_owned());
        thread.spawn({
            let met = Arc::downgrade(&met);
            move || run_handshakes(&waiting, &met, rules)
        })?;
        Ok(Self { rules, met, queue })
    }

    /// Returns whether a prefill server's engine has already answered a handshake of this decode
    /// server.
    pub fn has_completed_handshake(&self, source: &KvSourceServer) -> bool {
        self.met.lock().contains(self.rules.key(source))
    }

    /// Queues a handshake with a prefill server, and calls `done` with whether it was successful;
    /// never blocks.
    pub fn begin_handshake(
        &self,
        source: &KvSourceServer,
        done: impl FnOnce(bool) + Send + 'static,
    ) {
        let request = WaitingRequest { source: source.clone(), done: Box::new(done) };
        if let Err(TrySendError::Full(request) | TrySendError::Disconnected(request)) =
            self.queue.try_send(request)
        {
            (request.done)(false);
        }
    }
}

fn run_handshakes(
    queue: &Receiver<WaitingRequest>,
    met: &Weak<Mutex<HashSet<String>>>,
    rules: KvHandshakeRules,
) {
    let context = zmq::Context::new();
    let mut waiting = VecDeque::new();
    loop {
        let Some(next) = waiting.pop_front().or_else(|| queue.recv().ok()) else {
            return;
        };
        let WaitingRequest { source, done } = next;
        let key = rules.key(&source);
        let is_known = met.upgrade().is_some_and(|met| met.lock().contains(key));
        let result = match is_known {
            true => Ok(()),
            false => {
                let is_wanted = || met.strong_count() > 0;
                let answer = query_prefill_server(&context, &source, rules, is_wanted);
                answer.and_then(|answer| check_answer(&answer, &source, rules))
            }
        };
        match (&result, met.upgrade()) {
            (Ok(()), Some(met)) => {
                let mut met = met.lock();
                if met.len() >= MAX_MET_ENGINES {
                    met.clear();
                }
                met.insert(key.to_owned());
            }
            (Ok(()), None) => {}
            (Err(error), _) => tracing::error!(
                error,
                remote_engine_id = source.engine_id,
                endpoint = source.endpoint,
                "handshake with a prefill server failed"
            ),
        }
        done(result.is_ok());
        waiting.extend(queue.try_iter());
        // Requests that came meanwhile for the same engine share the result.
        let (same, others): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|other: &WaitingRequest| rules.key(&other.source) == key);
        waiting.extend(others);
        same.into_iter().for_each(|other| (other.done)(result.is_ok()));
    }
}

/// Queries the metadata of a prefill server while `is_wanted` returns true; returns its answer.
fn query_prefill_server(
    context: &zmq::Context,
    source: &KvSourceServer,
    rules: KvHandshakeRules,
    is_wanted: impl Fn() -> bool,
) -> Result<Vec<Vec<u8>>, String> {
    let ask = || {
        let socket = context.socket(zmq::REQ)?;
        socket.set_linger(0)?;
        socket.set_rcvtimeo(POLL_MS)?;
        socket.set_sndtimeo(POLL_MS)?;
        socket.set_ipv6(source.endpoint.contains('['))?;
        socket.connect(&source.endpoint)?;
        let query = [Value::Binary(META_QUERY.to_vec()), 0.into(), 0.into()];
        socket.send(encode(&Value::Array(query.to_vec())), 0)?;
        for polls in 1.. {
            match socket.recv_multipart(0) {
                Err(zmq::Error::EAGAIN) if is_wanted() && rules.may_wait(polls) => {}
                answer => return answer,
            }
        }
        Err(zmq::Error::EAGAIN)
    };
    ask().map_err(|error: zmq::Error| error.to_string())
}

/// Compares the metadata of a prefill server with what the request expects.
fn check_answer(
    answer: &[Vec<u8>],
    source: &KvSourceServer,
    rules: KvHandshakeRules,
) -> Result<(), String> {
    let KvHandshakeRules::Nixl(block_size) = rules else {
        return Ok(());
    };
    let metadata = answer.first().and_then(|answer| KvTransferEngineMetadata::from_answer(answer));
    let Some(KvTransferEngineMetadata { engine_id, block_size: remote }) = metadata else {
        return Err("Failed to decode NixlHandshakePayload.".to_owned());
    };
    let expected = &source.engine_id;
    if engine_id != *expected {
        return Err(format!(
            "Remote NIXL agent engine ID mismatch. Expected {expected},received {engine_id}."
        ));
    }
    if remote == 0 || !block_size.is_multiple_of(remote) {
        return Err(format!(
            "Local block size {block_size} is not divisible by remote block size {remote} or vice \
             versa."
        ));
    }
    Ok(())
}
