//! Bounded queue of KV event batches between an engine and the publisher thread.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use vllm_sim_engine::{HostCacheEvent, LayerGroupCacheEvent, PlannedKvBlocks, SchedulerEvent};

/// Maximum size of the batches in a queue, in bytes; a single batch may exceed it.
const MAX_BYTES: usize = 64 << 20;
/// Estimated size of a KV block's key and hash in a queued event, in bytes.
const BLOCK_BYTES: usize = 64;

/// Returns the estimated size of an event in bytes, with the hashes and tokens of the KV blocks
/// that it refers to.
fn estimated_bytes(event: &SchedulerEvent) -> usize {
    let blocks = |from: u32, to: u32, block_size: u32| {
        let block = BLOCK_BYTES + block_size as usize * size_of::<u32>();
        (to.saturating_sub(from) as usize).saturating_mul(block)
    };
    // Clients choose the length of the name, which each event repeats.
    let session = |plan: &PlannedKvBlocks| plan.session.as_deref().map_or(0, str::len);
    let own = match event {
        SchedulerEvent::Stored { plan, from, to } => {
            blocks(*from, *to, plan.block_size).saturating_add(session(plan))
        }
        SchedulerEvent::Reused { plan, blocks: found, groups } => {
            let event = blocks(0, *found, plan.block_size).saturating_add(session(plan));
            event.saturating_mul(*groups as usize)
        }
        SchedulerEvent::Removed { keys } => keys.len() * BLOCK_BYTES,
        SchedulerEvent::Group(group) => match &**group {
            LayerGroupCacheEvent::Stored { plan, from, to, .. } => {
                blocks(*from, *to, plan.block_size).saturating_add(session(plan))
            }
            LayerGroupCacheEvent::Removed { keys, .. } => keys.len() * BLOCK_BYTES,
        },
        SchedulerEvent::Host(host) => match &**host {
            HostCacheEvent::Stored { plan, chunks, blocks_per_chunk } => {
                blocks(0, *blocks_per_chunk, plan.block_size).saturating_mul(chunks.len())
            }
            HostCacheEvent::Removed { keys } => keys.len() * BLOCK_BYTES,
            _ => 0,
        },
        _ => 0,
    };
    own.saturating_add(size_of::<SchedulerEvent>())
}

#[derive(Debug)]
pub(super) struct QueuedEventBatch {
    pub(super) events: Vec<SchedulerEvent>,
    /// Number of remaining copies for each removed GPU block; empty if KV events do not report it.
    pub(super) remaining_copies: Vec<u32>,
    /// Time of the batch of KV events, in Unix seconds.
    pub(super) ts: f64,
    /// Number of KV event batches dropped since the previous batch in the queue.
    pub(super) lost: u64,
    /// Whether injected loss withholds the batch of KV events from subscribers; it is then only
    /// kept for replay.
    pub(super) withheld: bool,
}

#[derive(Debug)]
pub(super) struct EventBatchQueue {
    state: Mutex<QueueState>,
    filled: Condvar,
    bound: usize,
    /// Maximum size of the queued batches of KV events, in bytes.
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct QueueState {
    batches: VecDeque<QueuedEventBatch>,
    /// Estimated size of the queued batches of KV events, in bytes.
    bytes: usize,
    lost: u64,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct DequeuedEventBatches {
    pub(super) batches: VecDeque<QueuedEventBatch>,
    pub(super) closed: bool,
}

impl EventBatchQueue {
    pub(super) fn new(max_batches: usize) -> Self {
        Self {
            state: Mutex::default(),
            filled: Condvar::new(),
            bound: max_batches.max(1),
            max_bytes: MAX_BYTES,
        }
    }

    /// Adds a batch of KV events to the queue; returns false and drops the batch if the queue is
    /// full or closed.
    pub(super) fn push_event_batch(
        &self,
        events: Vec<SchedulerEvent>,
        remaining_copies: Vec<u32>,
        ts: f64,
        withheld: bool,
    ) -> bool {
        let bytes = events.iter().map(estimated_bytes).fold(0, usize::saturating_add);
        let mut state = self.state.lock();
        let is_large =
            !state.batches.is_empty() && state.bytes.saturating_add(bytes) > self.max_bytes;
        if state.closed || is_large || state.batches.len() >= self.bound {
            state.lost += 1;
            return false;
        }
        let lost = std::mem::take(&mut state.lost);
        state.bytes = state.bytes.saturating_add(bytes);
        state.batches.push_back(QueuedEventBatch { events, remaining_copies, ts, lost, withheld });
        drop(state);
        self.filled.notify_one();
        true
    }

    /// Waits for batches of KV events and returns all queued ones; returns none after closing or at
    /// the deadline.
    pub(super) fn wait_for_batches(&self, deadline: Option<Instant>) -> DequeuedEventBatches {
        let mut state = self.state.lock();
        while state.batches.is_empty() && !state.closed {
            match deadline {
                None => self.filled.wait(&mut state),
                Some(at) => {
                    if self.filled.wait_until(&mut state, at).timed_out() {
                        break;
                    }
                }
            }
        }
        state.bytes = 0;
        DequeuedEventBatches { batches: std::mem::take(&mut state.batches), closed: state.closed }
    }

    pub(super) fn close_event_batch_queue(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_engine::BlockKey;

    #[test]
    fn a_full_queue_drops_and_the_next_batch_counts_the_drops() {
        let queue = EventBatchQueue::new(2);
        let pushed: Vec<bool> =
            (0..5).map(|i| queue.push_event_batch(vec![], vec![], f64::from(i), false)).collect();
        assert_eq!(pushed, [true, true, false, false, false]);
        let first = queue.wait_for_batches(None);
        queue.push_event_batch(vec![], vec![], 5.0, false);
        queue.close_event_batch_queue();
        let last = queue.wait_for_batches(None);
        let seen = |taken: &DequeuedEventBatches| -> Vec<(f64, u64)> {
            taken.batches.iter().map(|e| (e.ts, e.lost)).collect()
        };
        assert_eq!(seen(&first), [(0.0, 0), (1.0, 0)]);
        assert_eq!(seen(&last), [(5.0, 3)]);
        assert!(last.closed && !queue.push_event_batch(vec![], vec![], 6.0, false));
    }

    #[test]
    fn large_batches_fill_the_queue_by_their_bytes() {
        let large = || {
            let keys = (0..4096).map(|key| (BlockKey(key), None));
            vec![SchedulerEvent::Removed { keys: keys.collect() }]
        };
        let queue = EventBatchQueue { max_bytes: 1 << 20, ..EventBatchQueue::new(100_000) };
        let pushed =
            (0..10).filter(|_| queue.push_event_batch(large(), vec![], 0.0, false)).count();
        assert_eq!(pushed, 3);
        assert_eq!(queue.wait_for_batches(None).batches.len(), 3);
        assert!(queue.push_event_batch(large(), vec![], 0.0, false));
    }

    #[test]
    fn long_names_of_sessions_count_towards_the_bytes() {
        let session = "s".repeat(1 << 19);
        let plan = PlannedKvBlocks { session: Some(session.into()), ..PlannedKvBlocks::default() };
        let plan = std::sync::Arc::new(plan);
        let stored = || SchedulerEvent::Stored { plan: plan.clone(), from: 0, to: 1 };
        let queue = EventBatchQueue { max_bytes: 1 << 20, ..EventBatchQueue::new(100_000) };
        let pushed =
            (0..10).filter(|_| queue.push_event_batch(vec![stored()], vec![], 0.0, false)).count();
        assert_eq!(pushed, 1);
    }
}
