//! Futures that are polled beside others which are polled often.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// A future waits.
const WAITS: u8 = 0;
/// It is polled just now.
const POLLED: u8 = 1;
/// It was woken: a bit beside [`POLLED`].
const WOKEN: u8 = 2;

thread_local! {
    static DEFERRED_WAKE: Cell<DeferredWake> = const { Cell::new(DeferredWake::Off) };
}

/// Whether this thread defers the next wake.
enum DeferredWake {
    /// It wakes at once.
    Off,
    /// It defers one.
    On,
    /// It has.
    Pending(Arc<Woken>),
}

/// What became of a future, and the task that polls it.
struct Woken {
    state: AtomicU8,
    task: Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        match DEFERRED_WAKE.replace(DeferredWake::Off) {
            DeferredWake::Off => self.wake_by_ref(),
            DeferredWake::On => DEFERRED_WAKE.set(DeferredWake::Pending(self)),
            pending => {
                DEFERRED_WAKE.set(pending);
                self.wake_by_ref();
            }
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Who polls it looks again.
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) & POLLED == 0 {
            self.task.wake_by_ref();
        }
    }
}

/// Tells whether a future was woken, or its task for something else.
pub(super) struct Wakeup {
    woken: Arc<Woken>,
    /// Wakes the future.
    own: Waker,
}

impl Wakeup {
    /// Of a future that was not polled yet.
    pub(super) fn new() -> Self {
        Self::of(Waker::noop())
    }

    fn of(task: &Waker) -> Self {
        let woken = Arc::new(Woken {
            state: AtomicU8::new(WOKEN),
            task: task.clone(),
        });
        let own = Waker::from(woken.clone());
        Self { woken, own }
    }

    /// Whether the future is to be polled; `task` polls it from now on.
    pub(super) fn is_due(&mut self, task: &Waker) -> bool {
        // A task has one waker as long as it lives: this is its first look.
        if !self.woken.task.will_wake(task) {
            *self = Self::of(task);
        }
        self.woken.state.load(Ordering::Acquire) == WOKEN
    }

    /// Polls the future; and whether it was woken meanwhile, which its task does not hear of.
    pub(super) fn poll<F: Future + ?Sized>(&self, future: Pin<&mut F>) -> (Poll<F::Output>, bool) {
        let state = &self.woken.state;
        // What woke it is seen by it.
        state.swap(POLLED, Ordering::AcqRel);
        let polled = future.poll(&mut self.context());
        let woken = state.swap(WAITS, Ordering::AcqRel) & WOKEN != 0;
        (polled, woken)
    }

    /// Wakes the future, and its task.
    pub(super) fn wake(&self) {
        self.own.wake_by_ref();
    }

    /// What the future is to be polled with.
    pub(super) fn context(&self) -> Context<'_> {
        Context::from_waker(&self.own)
    }
}

/// The body of a request, as it is read.
///
/// hyper hears of each piece that is taken, so that it gives the next one, and is polled once more for nothing
/// with most requests, whose bodies are one piece: of the last one it does not hear.
pub(super) struct RequestBody(pub(super) Incoming);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        DEFERRED_WAKE.set(DeferredWake::On);
        let polled = Pin::new(&mut self.0).poll_frame(cx);
        if let DeferredWake::Pending(woken) = DEFERRED_WAKE.replace(DeferredWake::Off)
            && !self.0.is_end_stream()
        {
            woken.wake();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// `future`, which is polled only when it was woken itself.
///
/// A connection is polled for each of its requests, and what may end it takes a lock with each poll that
/// all connections share.
pub(super) async fn when_woken<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut wakeup = Wakeup::new();
    poll_fn(|cx| {
        if !wakeup.is_due(cx.waker()) {
            return Poll::Pending;
        }
        let (polled, woken) = wakeup.poll(future.as_mut());
        if woken {
            wakeup.wake();
        }
        polled
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
    async fn one_that_wakes_itself_is_polled_again() {
        let mut left = 3;
        let yields = poll_fn(|cx| {
            left -= 1;
            cx.waker().wake_by_ref();
            match left {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        });
        when_woken(yields).await;
        assert_eq!(left, 0);
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
