/// Text above which work on it leaves the async threads, in bytes.
const LONG: usize = 16 * 1024;

/// Runs `work` on `size` bytes of text, away from the async threads when it takes long.
pub async fn off_thread<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if size < LONG {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
