//! Injected loss of KV event messages.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Schedule for the injected loss of KV event messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvEventLossSchedule {
    /// Number of KV event messages lost at the start of each interval.
    pub messages: u32,
    /// Length of an interval of the loss schedule; the first interval starts with the first
    /// message.
    pub every: Duration,
}

/// Injected loss of KV event messages: none, all, or those that a schedule selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvEventLoss {
    /// Injected loss: no KV event message is lost.
    #[default]
    None,
    /// Injected loss: every KV event message is lost.
    All,
    /// Injected loss: KV event messages are lost on a schedule.
    Gaps(KvEventLossSchedule),
}

/// Switch for the loss of KV event messages, shared by the publishers of a server.
///
/// A lost message uses its sequence number, and the replay endpoint still returns it.
#[derive(Debug, Clone, Default)]
pub struct KvEventLossSwitch(Arc<Mutex<KvEventLoss>>);

impl KvEventLossSwitch {
    /// Replaces the injected loss of KV event messages from now on.
    pub fn set_kv_event_loss(&self, loss: KvEventLoss) {
        *self.0.lock() = loss;
    }

    #[cfg(feature = "zmq")]
    pub(super) fn drops_all_kv_events(&self) -> bool {
        *self.0.lock() == KvEventLoss::All
    }
}

/// Position of one publisher in its schedule of lost messages.
#[cfg(feature = "zmq")]
#[derive(Debug, Default)]
pub(super) struct KvEventLossScheduleState {
    gaps: Option<KvEventLossSchedule>,
    /// Start of the current interval of the loss schedule, in Unix seconds.
    start: f64,
    lost: u32,
}

#[cfg(feature = "zmq")]
impl KvEventLossScheduleState {
    /// Returns whether the schedule drops the next KV event message, whose Unix time is `ts`.
    pub(super) fn drops_kv_event_message(&mut self, switch: &KvEventLossSwitch, ts: f64) -> bool {
        let KvEventLoss::Gaps(gaps) = *switch.0.lock() else {
            self.gaps = None;
            return false;
        };
        let every = gaps.every.as_secs_f64();
        if self.gaps != Some(gaps) {
            *self = Self { gaps: Some(gaps), start: ts, lost: 0 };
        } else if ts - self.start >= every {
            self.start += ((ts - self.start) / every).floor() * every;
            self.lost = 0;
        }
        let loses = self.lost < gaps.messages;
        self.lost = self.lost.saturating_add(u32::from(loses));
        loses
    }
}

#[cfg(all(test, feature = "zmq"))]
mod tests {
    use super::*;

    #[test]
    fn the_first_messages_of_each_interval_are_lost() {
        let switch = KvEventLossSwitch::default();
        let mut schedule = KvEventLossScheduleState::default();
        let mut lost = |from: f64, to: f64| {
            let times = (0..40).map(|half| f64::from(half) / 2.0);
            let times = times.filter(|ts| (from..to).contains(ts));
            let lost = times.filter(|ts| schedule.drops_kv_event_message(&switch, *ts));
            lost.collect::<Vec<_>>()
        };
        assert_eq!(lost(0.0, 3.0), [0.0; 0]);
        switch.set_kv_event_loss(KvEventLoss::Gaps(KvEventLossSchedule {
            messages: 2,
            every: Duration::from_secs(4),
        }));
        assert_eq!(lost(3.0, 12.0), [3.0, 3.5, 7.0, 7.5, 11.0, 11.5]);
        // Silence for longer than an interval does not move the schedule.
        assert_eq!(lost(18.0, 20.0), [18.0, 18.5, 19.0, 19.5]);
    }
}
