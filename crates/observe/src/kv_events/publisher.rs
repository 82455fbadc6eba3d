//! Publishes KV events from a thread with a ZMQ PUB socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::copies::KvBlockCopyCounts;
use super::encode::{encode_with_remaining_block_copies, is_kv_event};
use super::encoding::KvEventEncoding;
use super::endpoint;
use super::loss::{KvEventLossScheduleState, KvEventLossSwitch};
use super::message::KvEventPreviewFeatures;
use super::queue::{EventBatchQueue, QueuedEventBatch};
use super::replay::{EventReplayBuffer, EventReplaySocket};
use vllm_sim_engine::SchedulerEvent;

const ZMQ_LINGER: Duration = Duration::from_secs(1);

/// Batching of KV events into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvEventBatching {
    /// Batching by call: all KV events of one call of [`KvEventPublisher::publish`] form one
    /// message, as vLLM sends one message per scheduler step.
    #[default]
    PerCall,
    /// Batching by size: a message is sent after a number of KV events, or earlier if the oldest
    /// event has waited too long (llm-d: `event-batch-size`, one second).
    Sized {
        /// Number of KV events per message, at least one.
        events: usize,
        /// Maximum time for which a KV event waits until its message is full.
        every: Duration,
    },
}

/// Configuration of a [`KvEventPublisher`]; its endpoints are those of the publisher's data-parallel rank.
#[derive(Debug, Clone)]
pub struct KvEventPublisherConfig {
    /// ZMQ endpoint of the PUB socket; [`is_bind_endpoint`](super::is_bind_endpoint) decides whether
    /// it binds or connects.
    pub endpoint: String,
    /// ZMQ endpoint of the replay socket, which always binds; `None` disables replay.
    pub replay_endpoint: Option<String>,
    /// Number of newest KV event messages that are kept for the replay socket.
    pub buffer_steps: usize,
    /// High-water mark of the PUB socket: number of messages that libzmq queues per subscriber.
    pub hwm: i32,
    /// Maximum number of batches of KV events queued for the publisher thread.
    pub max_queue_size: usize,
    /// ZMQ topic, the first frame of each message.
    pub topic: String,
    /// Sequence number of the first KV event message (vLLM 0, llm-d 1).
    pub first_sequence: u64,
    /// Data-parallel rank of the engine, part of each KV event message.
    pub rank: u32,
    /// Encoding of the KV events in a message.
    pub encoding: KvEventEncoding,
    /// Batching of KV events into messages.
    pub batching: KvEventBatching,
    /// Switch for the injected loss of KV event messages.
    pub loss: KvEventLossSwitch,
}

/// Error of starting a KV event publisher.
#[derive(Debug, thiserror::Error)]
pub enum KvEventPublisherError {
    /// Error of a ZMQ endpoint at which libzmq cannot open a socket.
    #[error("KV events, {field} {endpoint:?}: cannot {action}: {source}")]
    Endpoint {
        /// Name of the setting with the endpoint: `endpoint` or `replay_endpoint`.
        field: &'static str,
        /// Configured ZMQ endpoint of the failed libzmq call.
        endpoint: String,
        /// Name of the libzmq call that failed: `bind` or `connect`.
        action: &'static str,
        /// Error of the failed libzmq call.
        source: zmq::Error,
    },
    /// Error of the operating system on starting the publisher's thread.
    #[error("KV events: cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Publishes batches of KV events; one publisher per data-parallel rank.
///
/// Dropping a publisher sends its queued batches and closes the sockets, which takes little more
/// than a second at most.
#[derive(Debug)]
pub struct KvEventPublisher {
    queue: Arc<EventBatchQueue>,
    loss: KvEventLossSwitch,
    copies: Mutex<KvBlockCopyCounts>,
    encoding: KvEventEncoding,
    dropped: AtomicU64,
    thread: Option<JoinHandle<()>>,
    replay: Option<EventReplaySocket>,
    endpoint: String,
}

impl KvEventPublisher {
    /// Opens the ZMQ sockets of a publisher and starts its threads.
    ///
    /// # Errors
    /// [`KvEventPublisherError`] if an endpoint cannot be used or a thread cannot be started.
    pub fn start(config: KvEventPublisherConfig) -> Result<Self, KvEventPublisherError> {
        let context = zmq::Context::new();
        let (socket, endpoint) = open_pub(&context, &config)?;
        let buffer = Arc::new(EventReplayBuffer::new(config.buffer_steps));
        let replay = match &config.replay_endpoint {
            Some(at) => Some(EventReplaySocket::start_replay_thread(
                &context,
                at,
                &config.topic,
                Arc::clone(&buffer),
            )?),
            None => None,
        };
        let queue = Arc::new(EventBatchQueue::new(config.max_queue_size));
        let (loss, encoding) = (config.loss.clone(), config.encoding);
        let sender = PublisherThread {
            socket,
            sequence: config.first_sequence,
            buffer: replay.is_some().then_some(buffer),
            pending: Vec::new(),
            pending_ts: 0.0,
            withheld: false,
            gaps: KvEventLossScheduleState::default(),
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
            copies: Mutex::default(),
            encoding,
            dropped: AtomicU64::new(0),
            thread: Some(thread),
            replay,
            endpoint,
        })
    }

    /// Queues a batch of KV events without waiting; events that do not concern the KV cache are
    /// ignored.
    ///
    /// `ts` is in Unix seconds. If the queue is full, the batch is dropped and counted, and leaves
    /// a gap in the sequence numbers. A batch queued while [`loss`](KvEventPublisherConfig::loss) is set
    /// is lost, even if it is sent later.
    pub fn publish(&self, mut batch: Vec<SchedulerEvent>, ts: f64) {
        batch.retain(is_kv_event);
        let KvEventEncoding { groups, preview, .. } = self.encoding;
        let mut remaining = Vec::new();
        if preview != KvEventPreviewFeatures::default() {
            remaining =
                self.copies.lock().count_and_filter_kv_events(&mut batch, groups.main, preview);
        }
        if !preview.remaining_copy_counts {
            remaining.clear();
        }
        if batch.is_empty()
            || self.queue.push_event_batch(batch, remaining, ts, self.loss.drops_all_kv_events())
        {
            return;
        }
        if self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(endpoint = self.endpoint, "KV events are dropped: the queue is full");
        }
    }

    /// Returns the number of KV event batches that were dropped because the queue was full.
    pub fn dropped_batches(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the ZMQ endpoint of the PUB socket, with the port that was chosen for `*` or 0.
    pub fn publish_endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the ZMQ endpoint of the replay socket, with the port that was chosen for `*` or 0;
    /// `None` without replay.
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.replay.as_ref().map(EventReplaySocket::bound_replay_endpoint)
    }
}

impl Drop for KvEventPublisher {
    fn drop(&mut self) {
        self.queue.close_event_batch_queue();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the KV event publisher panicked");
        }
    }
}

fn open_pub(
    context: &zmq::Context,
    config: &KvEventPublisherConfig,
) -> Result<(zmq::Socket, String), KvEventPublisherError> {
    let endpoint = &config.endpoint;
    let binds = endpoint::is_bind_endpoint(endpoint);
    let open = || -> zmq::Result<(zmq::Socket, String)> {
        let socket = context.socket(zmq::PUB)?;
        socket.set_sndhwm(config.hwm.max(0))?;
        socket.set_linger(ZMQ_LINGER.as_millis() as i32)?;
        socket.set_ipv6(endpoint.contains('['))?;
        if binds {
            socket.bind(endpoint)?;
        } else {
            socket.connect(endpoint)?;
        }
        let at = bound_endpoint(&socket, endpoint);
        Ok((socket, at))
    };
    open().map_err(|source| KvEventPublisherError::Endpoint {
        field: "endpoint",
        endpoint: endpoint.clone(),
        action: if binds { "bind" } else { "connect" },
        source,
    })
}

pub(super) fn bound_endpoint(socket: &zmq::Socket, given: &str) -> String {
    let last = socket.get_last_endpoint().ok().and_then(Result::ok);
    last.unwrap_or_else(|| given.to_owned())
}

struct PublisherThread {
    config: KvEventPublisherConfig,
    socket: zmq::Socket,
    sequence: u64,
    buffer: Option<Arc<EventReplayBuffer>>,
    /// Pending KV events, waiting for a full message ([`KvEventBatching::Sized`]).
    pending: Vec<SchedulerEvent>,
    pending_ts: f64,
    /// Whether injected loss withholds the newest batch of KV events; pending events are then
    /// withheld too.
    withheld: bool,
    gaps: KvEventLossScheduleState,
    failed: bool,
}

impl PublisherThread {
    fn run(mut self, queue: &EventBatchQueue) {
        let mut deadline = None;
        loop {
            let taken = queue.wait_for_batches(deadline);
            for batch in taken.batches {
                self.send_or_collect_batch(batch);
            }
            deadline = self.send_collected_if_due(deadline, taken.closed);
            if taken.closed {
                return;
            }
        }
    }

    fn send_or_collect_batch(&mut self, batch: QueuedEventBatch) {
        self.sequence = self.sequence.wrapping_add(batch.lost);
        self.withheld = batch.withheld;
        let KvEventBatching::Sized { events, .. } = self.config.batching else {
            self.send_message(&batch.events, batch.ts, &batch.remaining_copies);
            return;
        };
        self.pending_ts = batch.ts;
        for event in batch.events {
            match event {
                // The message size counts events as encoded: one per removed block.
                SchedulerEvent::Removed { keys } => {
                    for key in keys {
                        self.collect_event(SchedulerEvent::Removed { keys: vec![key] }, events);
                    }
                }
                event => self.collect_event(event, events),
            }
        }
    }

    fn collect_event(&mut self, event: SchedulerEvent, most: usize) {
        self.pending.push(event);
        if self.pending.len() >= most {
            self.send_collected();
        }
    }

    fn send_collected(&mut self) {
        let events = std::mem::take(&mut self.pending);
        if !events.is_empty() {
            self.send_message(&events, self.pending_ts, &[]);
        }
    }

    /// Sends pending KV events when `deadline` has passed or the queue is closed; returns the next
    /// deadline.
    #[expect(clippy::disallowed_methods, reason = "an edge: real time bounds how long events wait")]
    fn send_collected_if_due(
        &mut self,
        deadline: Option<Instant>,
        closed: bool,
    ) -> Option<Instant> {
        let KvEventBatching::Sized { every, .. } = self.config.batching else {
            return None;
        };
        let now = Instant::now();
        if closed || deadline.is_some_and(|at| at <= now) {
            self.send_collected();
        }
        match deadline {
            _ if self.pending.is_empty() => None,
            Some(at) if at > now => Some(at),
            _ => now.checked_add(every),
        }
    }

    fn send_message(&mut self, events: &[SchedulerEvent], ts: f64, remaining_copies: &[u32]) {
        let (rank, encoding) = (self.config.rank, self.config.encoding);
        let payload =
            encode_with_remaining_block_copies(events, ts, rank, encoding, remaining_copies);
        let payload: Arc<[u8]> = payload.into();
        // Stored before it is sent: a subscriber that knows a sequence number can replay it.
        if let Some(buffer) = &self.buffer {
            buffer.store_published_message(self.sequence, payload.clone());
        }
        let sequence = self.sequence.to_be_bytes();
        let frames = [self.config.topic.as_bytes(), &sequence, &payload];
        // A PUB socket never blocks: it drops messages per slow subscriber.
        let is_lost = self.gaps.drops_kv_event_message(&self.config.loss, ts) || self.withheld;
        if !is_lost
            && let Err(error) = self.socket.send_multipart(frames, zmq::DONTWAIT)
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::error!(%error, endpoint = self.config.endpoint, "cannot send KV events");
        }
        self.sequence = self.sequence.wrapping_add(1);
    }
}
