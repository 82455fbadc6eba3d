//! Runs long CPU-bound work on separate threads, so that it does not block the async runtime.

use std::future::{Future, pending};
use std::num::NonZero;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinError, JoinHandle};

/// Minimum size of a text for work on the blocking pool, in bytes.
const LARGE_TEXT_BYTES: usize = 16 * 1024;

#[cfg(target_os = "linux")]
const BLOCKING_POOL_NICENESS: i32 = 5;

/// Thread pool for long CPU-bound work, shared by all servers of the process.
///
/// The pool has one thread per core, except for one core that stays free for short work. `None` if
/// the system cannot start threads.
static BLOCKING_POOL: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let cores = available_parallelism().map_or(1, NonZero::get);
    Builder::new_multi_thread()
        .worker_threads(cores.saturating_sub(1).max(1))
        .thread_name("long-work")
        .on_thread_start(|| {
            // Linux applies `nice` per thread. An error leaves the default priority.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::nice(BLOCKING_POOL_NICENESS);
        })
        .enable_all()
        .build()
        .ok()
});

/// Returns whether work on a text of `size` bytes runs on the blocking pool.
pub fn is_large_text(size: usize) -> bool {
    size >= LARGE_TEXT_BYTES
}

/// Runs `work` on the blocking pool if its text has at least 16 KiB, else on the calling thread.
///
/// Dropping the returned future cancels work that has not started.
pub async fn run_blocking_if_large<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if !is_large_text(size) {
        return work();
    }
    // Boxed to keep the future of the caller small.
    Box::pin(run_blocking(async move { work() })).await
}

/// Runs a future with long CPU-bound work on the blocking pool.
///
/// Dropping the returned future aborts it at its next await. A panic resumes in the caller.
pub async fn run_blocking<F>(future: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let Some(runtime) = &*BLOCKING_POOL else {
        return future.await;
    };
    match AbortOnDrop(runtime.spawn(future)).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only dropping this future cancels the task.
            Err(_) => pending().await,
        },
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let done = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(done)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::thread::current;

    use tokio::sync::oneshot;

    use super::*;

    fn thread() -> Option<String> {
        current().name().map(str::to_owned)
    }

    #[tokio::test]
    async fn only_long_work_moves_to_another_thread() {
        let here = thread();
        assert_eq!(run_blocking_if_large(LARGE_TEXT_BYTES - 1, thread).await, here);
        assert_eq!(
            run_blocking_if_large(LARGE_TEXT_BYTES, thread).await.as_deref(),
            Some("long-work")
        );
    }

    #[tokio::test]
    async fn work_without_a_waiter_is_dropped() {
        let (held, dropped) = oneshot::channel::<()>();
        let mut waiting = Box::pin(run_blocking(async move {
            let _held = held;
            pending::<()>().await;
        }));
        let polled = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        drop(waiting);
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "as the caller's")]
    async fn a_panic_reaches_the_caller() {
        run_blocking_if_large(LARGE_TEXT_BYTES, || panic!("as the caller's")).await
    }
}
