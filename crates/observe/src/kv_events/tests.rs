//! Tests the publisher with real subscribers; every wait has a limit.

use std::sync::Arc;
use std::time::Duration;

use super::encode::encode_kv_event_batch;
use super::encoding::KvEventEncoding;
use super::loss::{KvEventLoss, KvEventLossSwitch};
use super::message::{KvEventFormat, KvEventPreviewFeatures};
use super::publisher::{KvEventBatching, KvEventPublisher, KvEventPublisherConfig};
use vllm_sim_engine::{BlockKey, PlannedKvBlocks, SchedulerEvent};
use vllm_sim_wire::VllmVersion;

const PATIENCE_MS: i32 = 20_000;
/// Interval at which messages are published until a subscription is active.
const OFFER_MS: i32 = 50;
const ANY_PORT: &str = "tcp://127.0.0.1:*";

fn stored(key: u64) -> SchedulerEvent {
    SchedulerEvent::Stored {
        plan: Arc::new(PlannedKvBlocks {
            keys: vec![BlockKey(key)],
            tokens: vec![1, 2],
            block_size: 2,
            ..PlannedKvBlocks::default()
        }),
        from: 0,
        to: 1,
    }
}

fn config(endpoint: &str) -> KvEventPublisherConfig {
    KvEventPublisherConfig {
        endpoint: endpoint.to_owned(),
        replay_endpoint: None,
        buffer_steps: 10_000,
        hwm: 100_000,
        max_queue_size: 100_000,
        topic: "kv@pod@model".to_owned(),
        first_sequence: 0,
        rank: 0,
        encoding: KvEventEncoding::default(),
        batching: KvEventBatching::default(),
        loss: KvEventLossSwitch::default(),
    }
}

fn with_replay(buffer_steps: usize) -> KvEventPublisherConfig {
    KvEventPublisherConfig {
        replay_endpoint: Some(ANY_PORT.to_owned()),
        buffer_steps,
        ..config(ANY_PORT)
    }
}

type Message = (Vec<u8>, u64, Vec<u8>);

fn message(frames: Vec<Vec<u8>>) -> Message {
    let [topic, sequence, payload] = <[Vec<u8>; 3]>::try_from(frames).expect("three frames");
    (topic, u64::from_be_bytes(sequence.try_into().expect("eight bytes")), payload)
}

struct Subscriber(zmq::Socket);

impl Subscriber {
    fn new() -> Self {
        let socket = zmq::Context::new().socket(zmq::SUB).unwrap();
        socket.set_subscribe(b"").unwrap();
        Self(socket)
    }

    /// Publishes messages until one is received, so that later ones are not lost.
    ///
    /// Returns their number; the first has the sequence number `first`.
    fn attach(&self, publisher: &KvEventPublisher, first: u64) -> u64 {
        self.attach_sized(publisher, first, 1)
    }

    fn attach_sized(&self, publisher: &KvEventPublisher, first: u64, n: usize) -> u64 {
        self.0.set_rcvtimeo(OFFER_MS).unwrap();
        for offered in 1..=(PATIENCE_MS / OFFER_MS) as u64 {
            publisher.publish(vec![SchedulerEvent::Cleared; n], 0.0);
            if let Ok(frames) = self.0.recv_multipart(0) {
                let (_, mut last, _) = message(frames);
                // Receive the messages that are still in transit.
                while last + 1 < first + offered {
                    last = self.next().1;
                }
                return offered;
            }
        }
        panic!("the subscription never arrived");
    }

    fn next(&self) -> Message {
        self.0.set_rcvtimeo(PATIENCE_MS).unwrap();
        message(self.0.recv_multipart(0).expect("a message in time"))
    }
}

struct Dealer(zmq::Socket);

impl Dealer {
    fn new(publisher: &KvEventPublisher) -> Self {
        let socket = zmq::Context::new().socket(zmq::DEALER).unwrap();
        socket.set_rcvtimeo(PATIENCE_MS).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvhwm(1).unwrap();
        socket.set_rcvbuf(4096).unwrap();
        socket.connect(publisher.replay_endpoint().unwrap()).unwrap();
        Self(socket)
    }

    fn ask(&self, start: &[u8]) {
        self.0.send_multipart([&[], start], 0).unwrap();
    }

    fn answer(&self) -> Vec<Message> {
        let mut answer = vec![];
        loop {
            let mut frames = self.0.recv_multipart(0).expect("an answer in time");
            assert_eq!(frames.remove(0), b"");
            let message = message(frames);
            if message.1 == u64::MAX {
                assert_eq!((message.0, message.2), (vec![], vec![]));
                return answer;
            }
            answer.push(message);
        }
    }

    fn replay(&self, start: u64) -> Vec<Message> {
        self.ask(&start.to_be_bytes());
        self.answer()
    }
}

fn wait_for(dealer: &Dealer, n: u64) {
    // Each response is awaited, so a slow machine only takes longer.
    for _ in 0..1_000_000 {
        if !dealer.replay(n - 1).is_empty() {
            return;
        }
    }
    panic!("{n} batches never reached the buffer");
}

#[test]
fn a_bound_publisher_sends_topic_sequence_and_payload() {
    let publisher = KvEventPublisher::start(config(ANY_PORT)).unwrap();
    let subscriber = Subscriber::new();
    subscriber.0.connect(publisher.publish_endpoint()).unwrap();
    let first = subscriber.attach(&publisher, 0);
    let batches: Vec<Vec<SchedulerEvent>> = (0..5).map(|key| vec![stored(key)]).collect();
    // Events that do not concern the cache are ignored, and an empty batch sends nothing.
    publisher.publish(vec![], 1.0);
    let step = SchedulerEvent::Step {
        begun: vllm_sim_engine::SimTime::ZERO,
        prompt_tokens: 1,
        output_tokens: 0,
        count: 1,
    };
    publisher.publish(vec![step], 1.0);
    for batch in &batches {
        publisher.publish(batch.clone(), 1.5);
    }
    for (i, batch) in (first..).zip(&batches) {
        let payload = encode_kv_event_batch(batch, 1.5, 0, KvEventEncoding::default());
        assert_eq!(subscriber.next(), (b"kv@pod@model".to_vec(), i, payload));
    }
    assert_eq!(publisher.dropped_batches(), 0);
}

#[test]
fn a_publisher_connects_to_a_bound_subscriber() {
    let subscriber = Subscriber::new();
    subscriber.0.bind(ANY_PORT).unwrap();
    let at = subscriber.0.get_last_endpoint().unwrap().unwrap();
    let publisher = KvEventPublisher::start(config(&at)).unwrap();
    let next = subscriber.attach(&publisher, 0);
    publisher.publish(vec![stored(1)], 0.0);
    assert_eq!(subscriber.next().1, next);
}

#[test]
fn publisher_binds_unix_domain_socket() {
    let folder = tempfile::tempdir().unwrap();
    let at = format!("ipc://{}/kv", folder.path().display());
    let publisher = KvEventPublisher::start(config(&at)).unwrap();
    let subscriber = Subscriber::new();
    subscriber.0.connect(&at).unwrap();
    let next = subscriber.attach(&publisher, 0);
    publisher.publish(vec![stored(1)], 0.0);
    assert_eq!(subscriber.next().1, next);
}

#[test]
fn dropping_the_publisher_sends_waiting_events() {
    let publisher = KvEventPublisher::start(config(ANY_PORT)).unwrap();
    let subscriber = Subscriber::new();
    subscriber.0.connect(publisher.publish_endpoint()).unwrap();
    let first = subscriber.attach(&publisher, 0);
    for key in 0..500 {
        publisher.publish(vec![stored(key)], 0.0);
    }
    drop(publisher);
    let sequences: Vec<u64> = (0..500).map(|_| subscriber.next().1).collect();
    assert_eq!(sequences, (first..first + 500).collect::<Vec<u64>>());
}

#[test]
fn sized_batches_are_sent_when_full_or_old() {
    let sized = |events, every| KvEventPublisherConfig {
        first_sequence: 1,
        rank: 2,
        encoding: KvEventEncoding {
            format: KvEventFormat::LlmdArray,
            ..KvEventEncoding::default()
        },
        batching: KvEventBatching::Sized { events, every },
        ..config(ANY_PORT)
    };
    let encoded = |events: &[SchedulerEvent]| {
        encode_kv_event_batch(
            events,
            3.0,
            2,
            KvEventEncoding { format: KvEventFormat::LlmdArray, ..KvEventEncoding::default() },
        )
    };
    let removed = |key| SchedulerEvent::Removed { keys: vec![(BlockKey(key), None)] };
    let start = |events, every| {
        let publisher = KvEventPublisher::start(sized(events, every)).unwrap();
        let subscriber = Subscriber::new();
        subscriber.0.connect(publisher.publish_endpoint()).unwrap();
        (publisher, subscriber)
    };

    // Full, counted in blocks: three of four events are sent, the fourth after its maximum wait.
    let (publisher, subscriber) = start(3, Duration::from_millis(50));
    subscriber.attach_sized(&publisher, 1, 3);
    let pair = SchedulerEvent::Removed { keys: vec![(BlockKey(2), None), (BlockKey(3), None)] };
    publisher.publish(vec![stored(1), pair, stored(4)], 3.0);
    let (full, old) = (subscriber.next(), subscriber.next());
    assert_eq!(full.2, encoded(&[stored(1), removed(2), removed(3)]));
    assert_eq!(old.2, encoded(&[stored(4)]));
    assert_eq!(old.1, full.1 + 1);

    // At the end, pending events are sent immediately.
    let (publisher, subscriber) = start(2, Duration::from_secs(3600));
    subscriber.attach_sized(&publisher, 1, 2);
    publisher.publish(vec![stored(5)], 3.0);
    drop(publisher);
    assert_eq!(subscriber.next().2, encoded(&[stored(5)]));
}

#[test]
fn replay_sends_the_batches_that_are_still_kept() {
    let publisher = KvEventPublisher::start(with_replay(4)).unwrap();
    for key in 0..10 {
        publisher.publish(vec![stored(key)], 1.0);
    }
    let dealer = Dealer::new(&publisher);
    wait_for(&dealer, 10);
    let payload = |key| encode_kv_event_batch(&[stored(key)], 1.0, 0, KvEventEncoding::default());
    let expected: Vec<Message> =
        (6..10).map(|key| (b"kv@pod@model".to_vec(), key, payload(key))).collect();
    assert_eq!(dealer.replay(0), expected);
    assert_eq!(dealer.replay(8), expected[2..]);
    assert_eq!(dealer.replay(10), []);
    // A number of any length is accepted; a message without three frames is ignored.
    for (start, answers) in [(&[][..], 4), (&[0, 0, 0, 7], 3), (&[9; 12], 0)] {
        dealer.0.send("no delimiter", 0).unwrap();
        dealer.ask(start);
        assert_eq!(dealer.answer().len(), answers, "{start:?}");
    }
}

#[test]
fn requests_of_one_client_are_answered_in_order() {
    let publisher = KvEventPublisher::start(with_replay(1000)).unwrap();
    let dealer = Dealer::new(&publisher);
    for key in 0..600 {
        publisher.publish(vec![stored(key)], 1.0);
    }
    wait_for(&dealer, 600);
    dealer.ask(&0u64.to_be_bytes());
    dealer.ask(&599u64.to_be_bytes());
    let sequences = |answer: Vec<Message>| -> Vec<u64> { answer.iter().map(|m| m.1).collect() };
    assert_eq!(sequences(dealer.answer()), (0..600).collect::<Vec<u64>>());
    assert_eq!(sequences(dealer.answer()), [599]);
}

#[test]
fn slow_replay_client_delays_no_other() {
    // More than the socket buffers can hold.
    const BATCHES: u64 = 3000;
    let publisher = KvEventPublisher::start(with_replay(BATCHES as usize)).unwrap();
    let big =
        || SchedulerEvent::Removed { keys: (0..250).map(|key| (BlockKey(key), None)).collect() };
    for _ in 0..BATCHES {
        publisher.publish(vec![big()], 1.0);
    }
    let (stalled, well) = (Dealer::new(&publisher), Dealer::new(&publisher));
    wait_for(&well, BATCHES);
    stalled.ask(&0u64.to_be_bytes());
    for _ in 0..3 {
        assert_eq!(well.replay(0).len(), BATCHES as usize);
    }
    // When the client reads again, it receives the whole response.
    let sequences: Vec<u64> = stalled.answer().iter().map(|m| m.1).collect();
    assert_eq!(sequences, (0..BATCHES).collect::<Vec<u64>>());
    // The live stream does not wait for the client either.
    stalled.ask(&0u64.to_be_bytes());
    assert_eq!(well.replay(0).len(), BATCHES as usize);
    let subscriber = Subscriber::new();
    subscriber.0.connect(publisher.publish_endpoint()).unwrap();
    let made = BATCHES + subscriber.attach(&publisher, BATCHES);
    publisher.publish(vec![stored(1)], 0.0);
    assert_eq!(subscriber.next().1, made);
    // A client that disconnects during its response is removed.
    drop(stalled);
    assert_eq!(well.replay(made).len(), 1);
}

#[test]
fn absent_subscriber_does_not_block_publisher() {
    // A port that was free a moment ago has no listener.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let publisher = KvEventPublisher::start(config(&format!("tcp://{free}"))).unwrap();
    for key in 0..20_000 {
        publisher.publish(vec![stored(key)], 0.0);
    }
    assert_eq!(publisher.dropped_batches(), 0);
    drop(publisher);
}

#[test]
fn slow_subscriber_does_not_block_publisher() {
    let publisher =
        KvEventPublisher::start(KvEventPublisherConfig { hwm: 10, ..with_replay(10) }).unwrap();
    let subscriber = Subscriber::new();
    subscriber.0.set_rcvhwm(1).unwrap();
    subscriber.0.connect(publisher.publish_endpoint()).unwrap();
    // The buffer may get its last batches after the subscriber.
    let made = subscriber.attach(&publisher, 0);
    let big =
        || SchedulerEvent::Removed { keys: (0..250).map(|key| (BlockKey(key), None)).collect() };
    let dealer = Dealer::new(&publisher);
    for _ in 0..2500 {
        publisher.publish(vec![big()], 0.0);
    }
    wait_for(&dealer, made + 2500);
    assert_eq!(publisher.dropped_batches(), 0);
}

/// libzmq never resumes a connection whose mark is lowered below the messages that it has not yet
/// acknowledged, so the mark must not depend on the sizes of messages.
#[test]
fn large_messages_after_small_ones_reach_a_subscriber_that_reads() {
    let publisher = KvEventPublisher::start(with_replay(10)).unwrap();
    let subscriber = Subscriber::new();
    subscriber.0.connect(publisher.publish_endpoint()).unwrap();
    let large = || SchedulerEvent::Removed {
        keys: (0..16_384).map(|key| (BlockKey(key << 40 | key), None)).collect(),
    };
    let first = subscriber.attach(&publisher, 0);
    for sequence in first..first + 1_000 {
        publisher.publish(vec![SchedulerEvent::Cleared], 0.0);
        assert_eq!(subscriber.next().1, sequence);
    }
    for sequence in first + 1_000..first + 1_003 {
        publisher.publish((0..8).map(|_| large()).collect(), 0.0);
        assert_eq!(subscriber.next().1, sequence);
    }
}

#[test]
fn endpoint_in_use_error_names_endpoint() {
    let taken = KvEventPublisher::start(with_replay(1)).unwrap();
    let at = taken.replay_endpoint().unwrap().to_owned();
    let error = KvEventPublisher::start(KvEventPublisherConfig {
        replay_endpoint: Some(at.clone()),
        ..config(ANY_PORT)
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("KV events, replay_endpoint {at:?}: cannot bind: Address already in use")
    );
    let error = KvEventPublisher::start(config("tcp://*:nothing")).unwrap_err().to_string();
    assert!(error.starts_with("KV events, endpoint \"tcp://*:nothing\": cannot bind: "), "{error}");
}

#[test]
fn events_dropped_by_a_fault_leave_a_gap_and_can_be_replayed() {
    let config = with_replay(100);
    let loss = config.loss.clone();
    let publisher = KvEventPublisher::start(config).unwrap();
    let heard = Subscriber::new();
    heard.0.connect(publisher.publish_endpoint()).unwrap();
    let lost = heard.attach(&publisher, 0);
    loss.set_kv_event_loss(KvEventLoss::All);
    publisher.publish(vec![stored(7)], 0.0);
    // Batches queued while messages are lost are lost, too.
    loss.set_kv_event_loss(KvEventLoss::None);
    publisher.publish(vec![stored(8)], 0.0);
    assert_eq!(heard.next().1, lost + 1);
    let replayed = Dealer::new(&publisher).replay(lost);
    assert_eq!(replayed.first().map(|message| message.1), Some(lost));
}

/// `session_id` came with a release after 0.26.
#[test]
fn older_releases_send_no_session() {
    let plan = PlannedKvBlocks {
        keys: vec![BlockKey(1)],
        tokens: vec![1],
        block_size: 1,
        session: Some("s-1".into()),
        ..PlannedKvBlocks::default()
    };
    let event = SchedulerEvent::Stored { plan: Arc::new(plan), from: 0, to: 1 };
    for (version, sent) in [(VllmVersion::V026, false), (VllmVersion::V031, true)] {
        let encoding = KvEventEncoding { version, ..KvEventEncoding::default() };
        let bytes = encode_kv_event_batch(std::slice::from_ref(&event), 1.0, 0, encoding);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.contains("session_id"), sent, "{version:?}");
    }
}

#[test]
fn removals_name_the_remaining_copies() {
    let preview =
        KvEventPreviewFeatures { remaining_copy_counts: true, ..KvEventPreviewFeatures::default() };
    let encoding = KvEventEncoding { preview, ..KvEventEncoding::default() };
    let publisher =
        KvEventPublisher::start(KvEventPublisherConfig { encoding, ..config(ANY_PORT) }).unwrap();
    let subscriber = Subscriber::new();
    subscriber.0.connect(publisher.publish_endpoint()).unwrap();
    subscriber.attach(&publisher, 0);
    let removed = || SchedulerEvent::Removed { keys: vec![(BlockKey(77), None)] };
    publisher.publish(vec![stored(77), stored(77), removed(), removed()], 3.0);
    let payload = subscriber.next().2;
    let name = b"remaining_copy_counts";
    let counts: Vec<u8> = payload
        .windows(name.len() + 2)
        .filter(|window| window.starts_with(name))
        .map(|window| window[name.len() + 1])
        .collect();
    assert_eq!(counts, [1, 0]);
}
