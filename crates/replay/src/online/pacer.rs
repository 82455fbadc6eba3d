//! Wakes tasks at exact times from one thread, because tokio's timer has millisecond resolution.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::drive::real_time_now;
use vllm_sim_engine::driver::minimize_timer_slack;

pub(super) struct RequestSendTimer(Arc<SendTimerShared>);

#[derive(Default)]
struct SendTimerShared {
    waiting: Mutex<TimerQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerQueue {
    /// Wakers of the waiting tasks, by time and number.
    due: BTreeMap<(Instant, u64), oneshot::Sender<()>>,
    /// Number of wakers so far, which orders wakers of equal times.
    count: u64,
    is_over: bool,
}

impl RequestSendTimer {
    /// Starts the thread that wakes tasks at exact times; it ends when the [`RequestSendTimer`] is
    /// dropped.
    ///
    /// # Errors
    /// Returns the error of the operating system if no thread can be started.
    pub(super) fn start_timer_thread() -> std::io::Result<Self> {
        let queue = Arc::new(SendTimerShared::default());
        let of_thread = queue.clone();
        let thread = std::thread::Builder::new().name("pacer".to_owned());
        thread.spawn(move || of_thread.run_timer_thread())?;
        Ok(Self(queue))
    }

    /// Returns a receiver that resolves at `instant`, or `None` if that time has passed.
    pub(super) fn timer_receiver_at_instant(
        &self,
        instant: Instant,
    ) -> Option<oneshot::Receiver<()>> {
        if instant <= real_time_now() {
            return None;
        }
        let (waker, ticket) = oneshot::channel();
        let mut waiting = self.0.waiting.lock();
        let is_first = waiting.due.keys().next().is_none_or(|(next, _)| instant < *next);
        waiting.count += 1;
        let number = waiting.count;
        waiting.due.insert((instant, number), waker);
        drop(waiting);
        if is_first {
            self.0.changed.notify_one();
        }
        Some(ticket)
    }

    pub(super) async fn sleep_until(&self, instant: Instant) {
        if let Some(ticket) = self.timer_receiver_at_instant(instant) {
            // Fails only after the end of the run.
            let _ = ticket.await;
        }
    }
}

impl Drop for RequestSendTimer {
    fn drop(&mut self) {
        self.0.waiting.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

impl SendTimerShared {
    fn run_timer_thread(&self) {
        minimize_timer_slack();
        let mut waiting = self.waiting.lock();
        while !waiting.is_over {
            let Some(&(instant, _)) = waiting.due.keys().next() else {
                self.changed.wait(&mut waiting);
                continue;
            };
            if instant > real_time_now() {
                self.changed.wait_until(&mut waiting, instant);
                continue;
            }
            if let Some((_, waker)) = waiting.due.pop_first() {
                // The waiting task may be gone.
                let _ = waker.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn waiters_wake_in_order_of_time() {
        let pacer = RequestSendTimer::start_timer_thread().expect("there are threads");
        let start = real_time_now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (late, early) =
            (pacer.timer_receiver_at_instant(at(12)), pacer.timer_receiver_at_instant(at(4)));
        early.expect("is to come").await.expect("is woken");
        assert!((4..12).contains(&start.elapsed().as_millis()) || late.is_some());
        late.expect("is to come").await.expect("is woken");
        assert!(real_time_now() >= at(12));
        assert!(pacer.timer_receiver_at_instant(start).is_none());
    }
}
