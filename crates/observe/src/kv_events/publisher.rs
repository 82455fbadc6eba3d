//! The PUB socket and the thread behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::encode::{Encoding, encode_batch, is_kv};
use super::endpoint;
use super::loss::EventLoss;
use super::queue::{BatchQueue, QueuedBatch};
use super::replay::{ReplayBuffer, ReplaySocket};
use vllm_sim_engine::Event;

/// How long closing waits for a slow subscriber to take the last batches.
const LINGER: Duration = Duration::from_secs(1);

/// When a message goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Batching {
    /// One for each call of [`Publisher::publish`] (vLLM: one per scheduler step).
    #[default]
    PerCall,
    /// When this many events have come together, or some have waited this long (llm-d:
    /// `event-batch-size`, one second).
    Sized {
        /// Events in a message, at least one.
        events: usize,
        /// Longest wait.
        every: Duration,
    },
}

/// What a [`Publisher`] needs to know; endpoints are those of its rank.
#[derive(Debug, Clone)]
pub struct PublisherConfig {
    /// Of the PUB socket, which binds or connects as [`binds`](super::binds) says.
    pub endpoint: String,
    /// Of the replay socket, which always binds.
    pub replay_endpoint: Option<String>,
    /// Batches kept for replay.
    pub buffer_steps: usize,
    /// Messages that libzmq keeps for a slow subscriber.
    pub hwm: i32,
    /// Batches that may wait for the publishing thread.
    pub max_queue_size: usize,
    /// First frame of each message.
    pub topic: String,
    /// Sequence number of the first message (vLLM 0, llm-d 1).
    pub first_sequence: u64,
    /// Data-parallel rank, as shown in each message.
    pub rank: u32,
    /// How events are written.
    pub encoding: Encoding,
    /// When a message goes out.
    pub batching: Batching,
    /// Whether messages are lost on purpose.
    pub loss: EventLoss,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
            first_sequence: 0,
            rank: 0,
            encoding: Encoding::default(),
            batching: Batching::default(),
            loss: EventLoss::default(),
        }
    }
}

/// Why a publisher did not start.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    /// libzmq refused an endpoint.
    #[error("KV events, {field} {endpoint:?}: cannot {action}: {source}")]
    Endpoint {
        /// `endpoint` or `replay_endpoint`.
        field: &'static str,
        /// Its value.
        endpoint: String,
        /// `bind` or `connect`.
        action: &'static str,
        /// libzmq's reason.
        source: zmq::Error,
    },
    /// The system gave no thread.
    #[error("KV events: cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Sends batches of KV events to whoever listens; one per data-parallel rank. Dropping it sends
/// what waits and closes the sockets, which takes at most a little over a second.
#[derive(Debug)]
pub struct Publisher {
    queue: Arc<BatchQueue>,
    loss: EventLoss,
    dropped: AtomicU64,
    thread: Option<JoinHandle<()>>,
    replay: Option<ReplaySocket>,
    endpoint: String,
}

impl Publisher {
    /// Opens the sockets and starts the threads.
    ///
    /// # Errors
    /// [`PublisherError`] when an endpoint cannot be used or a thread not started.
    pub fn start(config: PublisherConfig) -> Result<Self, PublisherError> {
        let context = zmq::Context::new();
        let (socket, endpoint) = open_pub(&context, &config)?;
        let buffer = Arc::new(ReplayBuffer::new(config.buffer_steps));
        let replay = match &config.replay_endpoint {
            Some(at) => Some(ReplaySocket::start(
                &context,
                at,
                &config.topic,
                Arc::clone(&buffer),
            )?),
            None => None,
        };
        let queue = Arc::new(BatchQueue::new(config.max_queue_size));
        let loss = config.loss.clone();
        let sender = Sender {
            socket,
            sequence: config.first_sequence,
            buffer: replay.is_some().then_some(buffer),
            pending: Vec::new(),
            pending_ts: 0.0,
            withheld: false,
            failed: false,
            config,
        };
        let thread = thread::Builder::new().name("kv-events".to_owned());
        let thread = thread.spawn({
            let queue = Arc::clone(&queue);
            move || sender.run(&queue)
        })?;
        Ok(Self {
            queue,
            loss,
            dropped: AtomicU64::new(0),
            thread: Some(thread),
            replay,
            endpoint,
        })
    }

    /// Hands a batch over, never waiting; other events than those of the KV cache are ignored.
    ///
    /// `ts` is in Unix seconds. A batch that finds the queue full is dropped and counted; it
    /// leaves a hole in the sequence numbers. One that is handed over while
    /// [`loss`](PublisherConfig::loss) is set is lost, whenever its turn comes.
    pub fn publish(&self, mut batch: Vec<Event>, ts: f64) {
        batch.retain(is_kv);
        if batch.is_empty() || self.queue.push(batch, ts, self.loss.is_on()) {
            return;
        }
        if self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                endpoint = self.endpoint,
                "KV events are dropped: the queue is full"
            );
        }
    }

    /// Batches dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Where the PUB socket is bound, with the port that was chosen, or connects to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where the replay socket is bound, with the port that was chosen.
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.replay.as_ref().map(ReplaySocket::endpoint)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the KV event publisher panicked");
        }
    }
}

fn open_pub(
    context: &zmq::Context,
    config: &PublisherConfig,
) -> Result<(zmq::Socket, String), PublisherError> {
    let endpoint = &config.endpoint;
    let binds = endpoint::binds(endpoint);
    let open = || -> zmq::Result<(zmq::Socket, String)> {
        let socket = context.socket(zmq::PUB)?;
        socket.set_sndhwm(config.hwm.max(0))?;
        socket.set_linger(LINGER.as_millis() as i32)?;
        socket.set_ipv6(endpoint.contains('['))?;
        if binds {
            socket.bind(endpoint)?;
        } else {
            socket.connect(endpoint)?;
        }
        let at = resolved(&socket, endpoint);
        Ok((socket, at))
    };
    open().map_err(|source| PublisherError::Endpoint {
        field: "endpoint",
        endpoint: endpoint.clone(),
        action: if binds { "bind" } else { "connect" },
        source,
    })
}

/// The endpoint with the port that the system chose.
pub(super) fn resolved(socket: &zmq::Socket, given: &str) -> String {
    let last = socket.get_last_endpoint().ok().and_then(Result::ok);
    last.unwrap_or_else(|| given.to_owned())
}

/// The publishing thread.
struct Sender {
    config: PublisherConfig,
    socket: zmq::Socket,
    sequence: u64,
    buffer: Option<Arc<ReplayBuffer>>,
    /// Events that wait for their number to be complete ([`Batching::Sized`]).
    pending: Vec<Event>,
    pending_ts: f64,
    /// Whether the newest batch is not to be sent: nor are the events that wait.
    withheld: bool,
    /// Whether a failure to send was logged.
    failed: bool,
}

impl Sender {
    fn run(mut self, queue: &BatchQueue) {
        let mut deadline = None;
        loop {
            let taken = queue.take(deadline);
            for batch in taken.batches {
                self.accept(batch);
            }
            deadline = self.flush_due(deadline, taken.closed);
            if taken.closed {
                return;
            }
        }
    }

    fn accept(&mut self, batch: QueuedBatch) {
        self.sequence = self.sequence.wrapping_add(batch.lost);
        self.withheld = batch.withheld;
        let Batching::Sized { events, .. } = self.config.batching else {
            self.send(&batch.events, batch.ts);
            return;
        };
        self.pending_ts = batch.ts;
        for event in batch.events {
            match event {
                // A message is counted in events as they are written: one for each block.
                Event::Removed { keys } => {
                    for key in keys {
                        self.collect(Event::Removed { keys: vec![key] }, events);
                    }
                }
                event => self.collect(event, events),
            }
        }
    }

    fn collect(&mut self, event: Event, most: usize) {
        self.pending.push(event);
        if self.pending.len() >= most {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let events = std::mem::take(&mut self.pending);
        if !events.is_empty() {
            self.send(&events, self.pending_ts);
        }
    }

    /// Flushes when it is time; the next time to come back.
    #[expect(
        clippy::disallowed_methods,
        reason = "an edge: real time bounds how long events wait"
    )]
    fn flush_due(&mut self, deadline: Option<Instant>, closed: bool) -> Option<Instant> {
        let Batching::Sized { every, .. } = self.config.batching else {
            return None;
        };
        let now = Instant::now();
        if closed || deadline.is_some_and(|at| at <= now) {
            self.flush();
        }
        match deadline {
            _ if self.pending.is_empty() => None,
            Some(at) if at > now => Some(at),
            _ => now.checked_add(every),
        }
    }

    fn send(&mut self, events: &[Event], ts: f64) {
        let payload = encode_batch(events, ts, self.config.rank, self.config.encoding);
        let payload: Arc<[u8]> = payload.into();
        // Kept before it is sent: who has heard of a batch can have it replayed.
        if let Some(buffer) = &self.buffer {
            buffer.push(self.sequence, payload.clone());
        }
        let sequence = self.sequence.to_be_bytes();
        let frames = [self.config.topic.as_bytes(), &sequence, &payload];
        // A PUB socket never waits: it drops for each subscriber that is full.
        if !self.withheld
            && let Err(error) = self.socket.send_multipart(frames, zmq::DONTWAIT)
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::error!(%error, endpoint = self.config.endpoint, "cannot send KV events");
        }
        self.sequence = self.sequence.wrapping_add(1);
    }
}
