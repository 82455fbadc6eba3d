use std::cmp::Reverse;
use std::collections::BTreeMap;

use vllm_sim_engine::SimTime;

use super::request::RouteRequest;

/// Order of requests with equal strict priority in the router's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RouterQueuePolicy {
    /// First come, first served; one unit of priority equals one second of waiting.
    #[default]
    Fcfs,
    /// Last come, first served: the newest request leaves the queue first.
    Lcfs,
    /// Weighted shortest processing time: the request with the highest ratio of priority to
    /// uncached tokens leaves the queue first.
    Wspt,
}

#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub ask: RouteRequest,
    pub overlaps: Vec<u32>,
    pub since: SimTime,
}

/// Router's queue of requests for which no worker has capacity.
///
/// Order: strict priority, then score, then arrival. Source: dynamo-kv-router
/// `src/scheduling/policy.rs`, 1.6.1.
#[derive(Debug, Default)]
pub(super) struct RouterQueue {
    policy: RouterQueuePolicy,
    waiting: BTreeMap<(Reverse<u32>, Reverse<i64>, u64), QueuedRequest>,
    count: u64,
}

/// Returns an integer with the order of [`f64::total_cmp`].
fn total_order_key(score: f64) -> i64 {
    let bits = score.to_bits().cast_signed();
    // All bits but the sign of a negative number count downwards.
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

impl RouterQueue {
    pub(super) fn new(policy: RouterQueuePolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push_request(
        &mut self,
        request: RouteRequest,
        worker_overlap_blocks: Vec<u32>,
        now: SimTime,
    ) {
        let priority = f64::from(request.priority.max(0));
        let arrival = now.as_secs_f64();
        let score = match self.policy {
            RouterQueuePolicy::Fcfs => priority - arrival,
            RouterQueuePolicy::Lcfs => priority + arrival,
            RouterQueuePolicy::Wspt => {
                let best = worker_overlap_blocks.iter().copied().max().unwrap_or(0);
                let cached = u64::from(best) * u64::from(request.prompt_block_size_tokens());
                let fresh = u64::from(request.prompt).saturating_sub(cached).max(1);
                (1.0 + priority) / fresh as f64
            }
        };
        self.count += 1;
        let rank = (Reverse(request.strict_priority), Reverse(total_order_key(score)), self.count);
        let waiting = QueuedRequest { ask: request, overlaps: worker_overlap_blocks, since: now };
        self.waiting.insert(rank, waiting);
    }

    pub(super) fn pop_next_request(&mut self) -> Option<QueuedRequest> {
        self.waiting.pop_first().map(|(_, waiting)| waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(policy: RouterQueuePolicy) -> Vec<u32> {
        let mut queue = RouterQueue::new(policy);
        // Prompt tokens, priority and strict priority; one request per second.
        let asks = [(900, 0, 0), (100, 0, 0), (500, 0, 1), (900, 5, 0), (90, 0, 0)];
        for (slot, (prompt, priority, strict_priority)) in (0..).zip(asks) {
            let ask = RouteRequest {
                slot,
                number: 0,
                session: 0,
                adapter: None,
                plan: Default::default(),
                prompt,
                priority,
                strict_priority,
            };
            let now = SimTime::from_millis(u64::from(slot) * 1000);
            queue.push_request(ask, Vec::new(), now);
        }
        std::iter::from_fn(|| queue.pop_next_request()).map(|w| w.ask.slot).collect()
    }

    #[test]
    fn queue_policies_order_requests() {
        assert_eq!(order(RouterQueuePolicy::Fcfs), [2, 3, 0, 1, 4]);
        assert_eq!(order(RouterQueuePolicy::Lcfs), [2, 3, 4, 1, 0]);
        assert_eq!(order(RouterQueuePolicy::Wspt), [2, 4, 1, 3, 0]);
    }
}
