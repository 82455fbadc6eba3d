//! When a connection that waits for a request ends.
//!
//! hyper starts a timer before each request and drops it with the request. One of tokio's each time is an
//! entry in a wheel that all threads share; here a connection has one for all its requests, and looks at
//! what hyper asked for when that is due. One that answers then has none until it waits again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use tokio::sync::Notify;
use tokio::time::Instant;

/// No request is waited for.
const NO_DEADLINE: u64 = u64::MAX;

/// hyper's timer for the head of the next request of one connection.
#[derive(Debug, Clone)]
pub(super) struct IdleTimer(Arc<IdleDeadline>);

#[derive(Debug)]
struct IdleDeadline {
    opened: Instant,
    /// Nanoseconds from then to when the connection ends if no request comes, or [`NO_DEADLINE`].
    deadline: AtomicU64,
    /// Whether [`IdleTimer::elapsed`] waits for the end of the answer.
    awaits_answered: AtomicBool,
    answered: Notify,
}

impl IdleTimer {
    /// Of a connection that was opened just now, and waits so long for its first request.
    pub(super) fn new(keep_alive: Duration) -> Self {
        Self(Arc::new(IdleDeadline {
            opened: Instant::now(),
            deadline: AtomicU64::new(nanos(keep_alive)),
            awaits_answered: AtomicBool::new(false),
            answered: Notify::new(),
        }))
    }

    /// A request has come.
    pub(super) fn stop(&self) {
        self.0.deadline.store(NO_DEADLINE, Ordering::Relaxed);
    }

    /// Ends when the connection has waited for a request as long as hyper said.
    pub(super) async fn elapsed(&self) {
        let Self(until) = self;
        loop {
            let deadline = until.deadline.load(Ordering::Relaxed);
            if deadline == NO_DEADLINE {
                until.awaits_answered.store(true, Ordering::Relaxed);
                until.answered.notified().await;
                continue;
            }
            let left = Duration::from_nanos(deadline).saturating_sub(until.opened.elapsed());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NO_DEADLINE - 1)
}

impl Timer for IdleTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        let deadline = nanos(deadline - self.0.opened.into_std());
        self.0.deadline.store(deadline, Ordering::Relaxed);
        // The task of the connection does all of this, one after the other.
        if self.0.awaits_answered.load(Ordering::Relaxed) {
            self.0.awaits_answered.store(false, Ordering::Relaxed);
            self.0.answered.notify_one();
        }
        Box::pin(PendingSleep)
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

/// What hyper waits with: the connection is ended by who waits for [`IdleTimer::elapsed`].
#[derive(Debug)]
struct PendingSleep;

impl Sleep for PendingSleep {}

impl Future for PendingSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_it_waited_so_long_since_its_last_answer() {
        let idle = IdleTimer::new(5 * SECOND);
        let waits = idle.clone();
        let opened = Instant::now();
        let mut ended = tokio::spawn(async move {
            waits.elapsed().await;
            opened.elapsed()
        });
        // It waits, is asked after three seconds, answers for eight, is asked again, answers at once.
        let _sleep = idle.sleep(5 * SECOND);
        assert!(timeout(3 * SECOND, &mut ended).await.is_err());
        idle.stop();
        assert!(timeout(8 * SECOND, &mut ended).await.is_err());
        let _sleep = idle.sleep(5 * SECOND);
        assert!(timeout(SECOND, &mut ended).await.is_err());
        idle.stop();
        let _sleep = idle.sleep(5 * SECOND);
        let took = ended.await.unwrap();
        assert_eq!(took.as_secs(), 17);
    }
}
