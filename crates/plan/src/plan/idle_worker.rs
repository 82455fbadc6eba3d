//! Bounds request latencies on any number of workers from below, by that of a request alone on an
//! idle worker.

use std::collections::HashMap;

use anyhow::Result;

use vllm_sim_engine::latency::{BatchWork, LatencyModel, RooflineModel};
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_replay::report::LatencySlo;
use vllm_sim_replay::workload::{PromptTokenRun, SessionTurn, TurnPrompt, WorkloadSource};

use vllm_sim_replay_cli::WorkerPools;

/// Returns the reason why no number of workers can keep the latency bounds, if the step times alone
/// are enough to know that.
///
/// Returns `None` if a simulation is required. `open` returns the workload from its start at every
/// call.
///
/// # Errors
/// Returns the errors of `open` and of the workload.
pub(super) fn infeasible_latency_bounds_reason(
    pools: &WorkerPools,
    (slo, attainment): (LatencySlo, f64),
    open: &dyn Fn() -> Result<Box<dyn WorkloadSource>>,
) -> Result<Option<String>> {
    let (SchedulerSpec::Vllm(engine), None) = (&pools.serving.engines[0], &pools.prefill) else {
        return Ok(None);
    };
    let LatencyModel::Roofline(roofline) = &engine.latency else {
        return Ok(None);
    };
    if !slo.has_any_latency_bound()
        || !roofline.step_time_grows_with_batch()
        || engine.speculation.is_some()
    {
        return Ok(None);
    }
    let mut shared = SharedPrefixes::default();
    for_each_turn(open()?.as_mut(), |turn, prefix| shared.count_prefixes(turn, prefix))?;
    let bounds = [("TTFT", slo.ttft_ms), ("ITL", slo.itl_ms), ("E2E", slo.e2e_ms)];
    let (mut all, mut bad, mut missed) = (0u64, 0u64, [0u64; 3]);
    for_each_turn(open()?.as_mut(), |turn, prefix| {
        let times = min_latencies_ms(
            engine,
            roofline,
            turn,
            shared.uncached_and_cached_tokens(turn, prefix),
        );
        let misses = [0, 1, 2].map(|at| bounds[at].1.is_some_and(|most| times[at] > most));
        all += 1;
        bad += u64::from(misses.contains(&true));
        for (count, miss) in missed.iter_mut().zip(misses) {
            *count += u64::from(miss);
        }
    })?;
    let share = |part: u64| part as f64 / all.max(1) as f64;
    if all == 0 || share(all - bad) >= attainment {
        return Ok(None);
    }
    let parts = bounds.iter().zip(missed).filter(|(_, count)| *count > 0);
    let parts = parts.filter_map(|((name, bound), count)| {
        let percent = 100.0 * share(count);
        Some(format!("{name} above {} ms for {percent:.1} %", (*bound)?))
    });
    let parts: Vec<String> = parts.collect();
    Ok(Some(format!(
        "not simulated: with any number of workers at most {:.1} % of the requests are good \
         (alone on an idle worker: {})",
        100.0 * share(all - bad),
        parts.join(", ")
    )))
}

#[derive(Debug, Clone, Copy, Default)]
struct PromptPrefix {
    tokens: u64,
    /// Hash of the prompt prefix; equal prefixes have equal hashes.
    chain: u64,
    /// Id of the token run at the end of the prompt prefix, if that run consists of one repeated
    /// token.
    repeated: Option<u64>,
}

impl PromptPrefix {
    fn extended_by(self, run: &PromptTokenRun) -> Self {
        let repeated = run.same.then_some(run.id);
        // The boundaries of runs do not change the content.
        let goes_on = repeated.is_some() && repeated == self.repeated;
        Self {
            tokens: self.tokens + u64::from(run.len),
            chain: match goes_on {
                true => self.chain,
                false => mix_u64_pair(self.chain, mix_u64_pair(run.id, u64::from(run.same))),
            },
            repeated,
        }
    }
}

/// Calls `then` for every turn of the workload, with the prompt prefix from its session's earlier
/// turns.
fn for_each_turn(
    source: &mut dyn WorkloadSource,
    mut then: impl FnMut(&SessionTurn, PromptPrefix),
) -> Result<()> {
    let mut number = 0;
    while let Some(session) = source.next_session()? {
        number += 1;
        let mut before = PromptPrefix::default();
        for (turn, at) in session.turns.iter().zip(0u64..) {
            if matches!(turn.prompt, TurnPrompt::Whole(_)) {
                before = PromptPrefix::default();
            }
            then(turn, before);
            before = prompt_runs(turn).iter().fold(before, PromptPrefix::extended_by);
            before.tokens += u64::from(turn.output);
            if turn.output > 0 {
                // The output of a turn is unique.
                before.chain = mix_u64_pair(before.chain, mix_u64_pair(number, at));
                before.repeated = None;
            }
        }
    }
    Ok(())
}

/// Calls `then` with the prompt length of every request of the workload, in tokens.
///
/// # Errors
/// Returns the errors of the workload.
pub(super) fn for_each_prompt_length(
    source: &mut dyn WorkloadSource,
    mut then: impl FnMut(u64),
) -> Result<()> {
    for_each_turn(source, |turn, before| {
        then(prompt_runs(turn).iter().fold(before, PromptPrefix::extended_by).tokens);
    })
}

fn prompt_runs(turn: &SessionTurn) -> &[PromptTokenRun] {
    match &turn.prompt {
        TurnPrompt::Whole(runs) | TurnPrompt::Grown(runs) => runs,
    }
}

/// Number of prompts in the workload that start with a prefix, by the prefix's hash.
#[derive(Debug, Default)]
struct SharedPrefixes(HashMap<u64, u32>);

impl SharedPrefixes {
    fn count_prefixes(&mut self, turn: &SessionTurn, before: PromptPrefix) {
        prompt_runs(turn).iter().fold(before, |before, run| {
            let with = before.extended_by(run);
            *self.0.entry(with.chain).or_insert(0) += 1;
            with
        });
    }

    /// Returns how many of a turn's prompt tokens cannot be cached, and how many may be cached.
    fn uncached_and_cached_tokens(&self, turn: &SessionTurn, before: PromptPrefix) -> (u32, u32) {
        let (mut known, mut all) = (before.tokens, before);
        for run in prompt_runs(turn) {
            let shared = known == all.tokens;
            all = all.extended_by(run);
            if shared && self.0.get(&all.chain).is_some_and(|seen| *seen > 1) {
                known = all.tokens;
            }
        }
        let tokens = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        // The last token is always computed.
        let known = known.min(all.tokens.saturating_sub(1));
        (tokens(all.tokens - known), tokens(known))
    }
}

/// Returns lower bounds of TTFT, mean inter-token latency and E2E latency of a request, in
/// milliseconds.
fn min_latencies_ms(
    engine: &VllmSchedulerConfig,
    roofline: &RooflineModel,
    turn: &SessionTurn,
    (fresh, cached): (u32, u32),
) -> [f64; 3] {
    let window = roofline.sliding_window();
    let ms = |batch: &BatchWork| engine.step_time(batch).as_secs_f64() * 1e3;
    // Excludes all-reduce and MoE time: it can be shorter in small chunks than in large ones.
    let chunk_ms = |batch: &BatchWork| {
        let parts = roofline.step_time_breakdown(batch);
        ms(batch) * (1.0 - (parts.all_reduce + parts.moe) / parts.total_us())
    };
    let prompt = fresh.saturating_add(cached);
    let front_end = engine.latency.front_end_delay(prompt, 0, engine.speed);
    let (mut first, mut past) = (front_end.as_secs_f64() * 1e3, cached);
    while past < prompt {
        let new = (prompt - past).min(engine.max_num_batched_tokens.max(1));
        let mut batch = BatchWork::default();
        batch.add_prompt_chunk(new, past, window);
        let own = chunk_ms(&batch);
        // Next to a decode, the kernels of a prompt start faster.
        batch.add_decoding_sequence(1, 1, window);
        first += own.min(chunk_ms(&batch));
        past += new;
    }
    let mut batch = BatchWork::default();
    batch.add_decoding_sequence(prompt.saturating_add(1), 1, window);
    let room = engine.max_model_len.saturating_sub(prompt);
    let gaps = turn.output.min(room).saturating_sub(1);
    let gap = if gaps > 0 { ms(&batch) } else { 0.0 };
    [first, gap, first + f64::from(gaps) * gap]
}
