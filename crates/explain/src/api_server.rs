//! Describes the time that a request spends in vLLM's API server.

use std::fmt::{self, Write as _};

use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;

/// Writes how long a request takes in the API server before the engine, by prompt and load.
pub(super) fn write_api_server_time(
    text: &mut String,
    engine: &VllmSchedulerConfig,
) -> fmt::Result {
    let front_end = |tokens: u32, running: u32| {
        engine.latency.front_end_delay(tokens, running, engine.speed).as_secs_f64() * 1e3
    };
    let (idle, busy, longer) = (front_end(0, 0), front_end(0, 100), front_end(1000, 0));
    // Milliseconds of 1000 tokens are microseconds of one.
    let token = longer - idle;
    writeln!(
        text,
        "\nA request spends {idle:.1} ms in the API server before its prompt starts, or {busy:.1} \
         ms while 100 others are in flight, and {token:.1} us more per prompt token.\nTTFT and E2E \
         latencies of predictions and of `serve` include this time; the times above do not."
    )
}
