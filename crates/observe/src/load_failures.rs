//! Logs failed loads of KV caches from a thread of its own.

use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};

use vllm_sim_engine::KvLoadFailurePolicy;

const LOAD_FAILURE_LINES: usize = 1024;

/// Logs a failed load of a request's KV cache as vLLM's scheduler does.
///
/// A separate thread writes the line, because the calling thread holds the engine's lock.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/sched/scheduler.py`, `_handle_invalid_blocks`.
pub(crate) fn log_kv_load_failure(id: &str, tokens: u32, policy: KvLoadFailurePolicy) {
    static LOG: LazyLock<SyncSender<(KvLoadFailurePolicy, String)>> = LazyLock::new(|| {
        let (send, lines) = sync_channel::<(KvLoadFailurePolicy, String)>(LOAD_FAILURE_LINES);
        std::thread::spawn(move || {
            for (policy, line) in lines {
                match policy {
                    KvLoadFailurePolicy::Fail => tracing::error!("{line}"),
                    KvLoadFailurePolicy::Recompute => tracing::warn!("{line}"),
                }
            }
        });
        send
    });
    let line = match policy {
        KvLoadFailurePolicy::Fail => format!(
            "Failing 1 request(s) due to KV load failure (failure_policy=fail, {tokens} tokens \
             affected). Request IDs: {{'{id}'}}"
        ),
        KvLoadFailurePolicy::Recompute => format!(
            "Recovered from KV load failure: 1 request(s) rescheduled ({tokens} tokens affected)."
        ),
    };
    // If the queue is full, the line is dropped.
    let _ = LOG.try_send((policy, line));
}
