//! Futures that are polled beside others which are polled often.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Whether a future was woken, and the task that polls it.
struct Woken {
    is: AtomicBool,
    task: Mutex<Waker>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is.store(true, Ordering::Release);
        self.task.lock().wake_by_ref();
    }
}

/// Tells whether a future was woken, or its task for something else.
pub(super) struct Wakeup {
    woken: Arc<Woken>,
    /// Wakes the future.
    own: Waker,
    /// The task, as it is known.
    task: Waker,
}

impl Wakeup {
    /// Of a future that was not polled yet.
    pub(super) fn new() -> Self {
        let task = Waker::noop().clone();
        let woken = Arc::new(Woken {
            is: AtomicBool::new(true),
            task: Mutex::new(task.clone()),
        });
        let own = Waker::from(woken.clone());
        Self { woken, own, task }
    }

    /// Whether the future is to be polled, and is not any more then; `task` polls it from now on.
    pub(super) fn take(&mut self, task: &Waker) -> bool {
        // A task has one waker as long as it lives: it is told once, before the first look.
        if !self.task.will_wake(task) {
            self.task.clone_from(task);
            self.woken.task.lock().clone_from(task);
        }
        // Most polls are for something else, and a look is cheaper than a swap.
        let is = &self.woken.is;
        is.load(Ordering::Acquire) && is.swap(false, Ordering::AcqRel)
    }

    /// What the future is to be polled with.
    pub(super) fn context(&self) -> Context<'_> {
        Context::from_waker(&self.own)
    }
}

/// `future`, which is polled only when it was woken itself.
///
/// A connection is polled for each of its requests, and what may end it takes a lock with each poll that
/// all connections share.
pub(super) async fn when_woken<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut wakeup = Wakeup::new();
    poll_fn(|cx| match wakeup.take(cx.waker()) {
        true => future.as_mut().poll(&mut wakeup.context()),
        false => Poll::Pending,
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_future_is_polled_when_it_was_woken() {
        let (polls, notify) = (Cell::new(0), Notify::new());
        let counted = async {
            let mut notified = pin!(notify.notified());
            poll_fn(|cx| {
                polls.set(polls.get() + 1);
                notified.as_mut().poll(cx)
            })
            .await;
        };
        let mut waits = pin!(when_woken(counted));
        for _ in 0..3 {
            // Something else wakes the task.
            let pending = poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending())).await;
            assert!(pending);
        }
        assert_eq!(polls.get(), 1);
        notify.notify_one();
        waits.await;
        assert_eq!(polls.get(), 2);
    }

    #[tokio::test]
    async fn a_task_that_sleeps_is_woken() {
        let notify = Arc::new(Notify::new());
        let waits = notify.clone();
        let task = tokio::spawn(async move { when_woken(waits.notified()).await });
        tokio::task::yield_now().await;
        notify.notify_one();
        assert!(task.await.is_ok());
    }
}
