//! The loop around a reader: how many inputs, and what is said of one that breaks it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::mutate::Corpus;

/// Inputs of a target where `FUZZ_CASES` is not set: about a second of a debug build.
const CASES: u64 = 400;
/// Longest wait for one input. Only a hang takes that long.
const PATIENCE: Duration = Duration::from_secs(60);
/// The stack of a server's threads, in bytes.
const STACK: usize = 2 << 20;

/// Reads `FUZZ_CASES` inputs made of `corpus`, from number `FUZZ_FROM` on, `dear` times fewer where
/// one takes long.
///
/// # Panics
/// When the reader does, or takes for ever; with the number and the text of the input.
#[expect(clippy::disallowed_methods, reason = "the slowest input is worth a look")]
pub(crate) fn fuzz(
    name: &str,
    dear: u64,
    corpus: Corpus,
    mut read: impl FnMut(&[u8]) + Send + 'static,
) {
    let set = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let from = set("FUZZ_FROM").unwrap_or(0);
    let cases = (set("FUZZ_CASES").unwrap_or(CASES) / dear).max(1);
    if cases == 1 {
        println!("{name}: {}", corpus.input(from).escape_ascii());
    }
    let at = Arc::new(AtomicU64::new(from));
    let inputs = corpus.clone();
    let (sender, done) = channel();
    let reader = Builder::new().name(name.to_owned()).stack_size(STACK);
    let reader = reader.spawn({
        let at = Arc::clone(&at);
        move || {
            let mut slowest = (Duration::ZERO, from);
            for number in from..from + cases {
                at.store(number, Ordering::Relaxed);
                let input = inputs.input(number);
                let started = Instant::now();
                read(&input);
                slowest = slowest.max((started.elapsed(), number));
                // Nobody listens once a hang was found.
                let _ = sender.send(());
            }
            slowest
        }
    });
    let reader = reader.expect("a thread");
    let hangs = loop {
        match done.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => break true,
            Err(RecvTimeoutError::Disconnected) => break false,
        }
    };
    let number = at.load(Ordering::Relaxed);
    let shown = corpus.input(number);
    let shown = shown[..shown.len().min(4000)].escape_ascii();
    assert!(!hangs, "{name}: input {number} takes for ever: {shown}");
    match reader.join() {
        Ok((time, slow)) => println!("{name}: {cases} inputs, the slowest is {slow}: {time:?}"),
        Err(_) => panic!("{name}: input {number} breaks it: {shown}"),
    }
}
