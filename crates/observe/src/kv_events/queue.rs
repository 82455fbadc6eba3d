//! Bounded queue of KV event batches between an engine and the publisher thread.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use vllm_sim_engine::SchedulerEvent;

#[derive(Debug)]
pub(super) struct QueuedBatch {
    pub(super) events: Vec<SchedulerEvent>,
    /// Time of the batch of KV events, in Unix seconds.
    pub(super) ts: f64,
    /// Number of batches dropped since the previous batch in the queue.
    pub(super) lost: u64,
    /// Whether the batch of KV events is only kept for replay, by injected loss.
    pub(super) withheld: bool,
}

#[derive(Debug)]
pub(super) struct BatchQueue {
    state: Mutex<QueueState>,
    filled: Condvar,
    bound: usize,
}

#[derive(Debug, Default)]
struct QueueState {
    batches: VecDeque<QueuedBatch>,
    lost: u64,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct TakenBatches {
    pub(super) batches: VecDeque<QueuedBatch>,
    pub(super) closed: bool,
}

impl BatchQueue {
    pub(super) fn new(bound: usize) -> Self {
        Self { state: Mutex::default(), filled: Condvar::new(), bound: bound.max(1) }
    }

    /// Adds a batch to the queue; returns false and drops the batch if the queue is full or closed.
    pub(super) fn push(&self, events: Vec<SchedulerEvent>, ts: f64, withheld: bool) -> bool {
        let mut state = self.state.lock();
        if state.closed || state.batches.len() >= self.bound {
            state.lost += 1;
            return false;
        }
        let lost = std::mem::take(&mut state.lost);
        state.batches.push_back(QueuedBatch { events, ts, lost, withheld });
        drop(state);
        self.filled.notify_one();
        true
    }

    /// Waits for batches and returns all queued ones; returns none after closing or at the
    /// deadline.
    pub(super) fn wait_for_batches(&self, deadline: Option<Instant>) -> TakenBatches {
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
        TakenBatches { batches: std::mem::take(&mut state.batches), closed: state.closed }
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_the_next_batch_counts_the_drops() {
        let queue = BatchQueue::new(2);
        let pushed: Vec<bool> = (0..5).map(|i| queue.push(vec![], f64::from(i), false)).collect();
        assert_eq!(pushed, [true, true, false, false, false]);
        let first = queue.wait_for_batches(None);
        queue.push(vec![], 5.0, false);
        queue.close();
        let last = queue.wait_for_batches(None);
        let seen = |taken: &TakenBatches| -> Vec<(f64, u64)> {
            taken.batches.iter().map(|e| (e.ts, e.lost)).collect()
        };
        assert_eq!(seen(&first), [(0.0, 0), (1.0, 0)]);
        assert_eq!(seen(&last), [(5.0, 3)]);
        assert!(last.closed && !queue.push(vec![], 6.0, false));
    }
}
