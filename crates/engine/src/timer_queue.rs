use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::SimTime;

/// Queues timers by due time, then in the order they were set.
///
/// A timer cannot be cancelled: its owner must recognize a stale one.
#[derive(Debug, Clone)]
pub struct TimerQueue<T> {
    heap: BinaryHeap<Reverse<TimerEntry<T>>>,
    set: u64,
}

#[derive(Debug, Clone)]
struct TimerEntry<T> {
    due: SimTime,
    order: u64,
    item: T,
}

impl<T> PartialEq for TimerEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.order) == (other.due, other.order)
    }
}
impl<T> Eq for TimerEntry<T> {}
impl<T> PartialOrd for TimerEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for TimerEntry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), set: 0 }
    }
}

impl<T> TimerQueue<T> {
    /// Sets a timer for the time `due`; `item` is returned when the timer expires.
    pub fn schedule_item(&mut self, due: SimTime, item: T) {
        let order = self.set;
        self.set += 1;
        self.heap.push(Reverse(TimerEntry { due, order, item }));
    }

    /// Returns the time at which the next timer expires.
    pub fn next_due_time(&self) -> Option<SimTime> {
        self.heap.peek().map(|Reverse(e)| e.due)
    }

    /// Returns the next timer to expire: its time and its item.
    pub fn next_item(&self) -> Option<(SimTime, &T)> {
        self.heap.peek().map(|Reverse(e)| (e.due, &e.item))
    }

    /// Removes and returns the next timer that expires at or before `now`.
    pub fn pop_due_item(&mut self, now: SimTime) -> Option<(SimTime, T)> {
        if self.next_due_time()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(e)| (e.due, e.item))
    }

    /// Removes and returns the first found timer whose item `matches`; looks at all timers.
    pub fn take_matching_item(&mut self, matches: impl Fn(&T) -> bool) -> Option<T> {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        let at = entries.iter().position(|Reverse(entry)| matches(&entry.item));
        let taken = at.map(|at| entries.swap_remove(at).0.item);
        self.heap = entries.into();
        taken
    }

    /// Postpones all timers by `by` and keeps their order.
    pub fn postpone_all_items(&mut self, by: std::time::Duration) {
        let entries = std::mem::take(&mut self.heap).into_vec();
        self.heap = entries
            .into_iter()
            .map(|Reverse(e)| Reverse(TimerEntry { due: e.due + by, ..e }))
            .collect();
    }

    /// Returns the number of timers in the queue.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns whether the queue has no timers.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_due_together_expire_in_insertion_order() {
        let mut timers = TimerQueue::default();
        let at = SimTime::from_millis;
        timers.schedule_item(at(2), 'c');
        timers.schedule_item(at(1), 'a');
        timers.schedule_item(at(1), 'b');
        assert_eq!(timers.pop_due_item(at(0)), None);
        let fired: Vec<_> = std::iter::from_fn(|| timers.pop_due_item(at(2))).collect();
        assert_eq!(fired, [(at(1), 'a'), (at(1), 'b'), (at(2), 'c')]);
    }
}
