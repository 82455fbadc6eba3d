//! Fake metrics put on the numbers that a page shows.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::cell::{Counter, Histogram};
use super::super::cells::{Cells, REASONS};
use super::super::lora::LoraInfo;
use super::super::{Buckets, Clock};
use super::{FAKE_REASONS, Fake, FakeError, Signal};

/// Fake metrics as they are shown now.
pub(in super::super) struct FakeState {
    /// Those that the page shows, one per engine; nobody else writes them.
    engines: Vec<Cells>,
    lora: Arc<LoraInfo>,
    buckets: Buckets,
    refresh: Duration,
    clock: Clock,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    config: Fake,
    /// Running, waiting, cache usage; each with the time it was set.
    signals: [Option<(Signal, f64)>; 3],
}

impl FakeState {
    pub(in super::super) fn new(
        fake: &Fake,
        refresh: Duration,
        engines: Vec<Cells>,
        lora: Arc<LoraInfo>,
        buckets: Buckets,
        clock: Clock,
    ) -> Result<Self, FakeError> {
        if refresh.is_zero() {
            return Err(FakeError::Refresh);
        }
        let state = Self {
            engines,
            lora,
            buckets,
            refresh,
            clock,
            now: Mutex::default(),
        };
        let mut initial = fake.clone();
        initial.loras.get_or_insert_default();
        state.update(&initial)?;
        Ok(state)
    }

    /// What is shown, all updates included.
    pub(in super::super) fn config(&self) -> Fake {
        self.now.lock().config.clone()
    }

    /// Lays an update over what is shown, if the whole is sound.
    pub(in super::super) fn update(&self, update: &Fake) -> Result<(), FakeError> {
        let mut now = self.now.lock();
        let config = now.config.clone().updated(update);
        config.check(&self.buckets)?;
        now.config = config;
        let at = (self.clock)();
        let signals = [
            &update.running_requests,
            &update.waiting_requests,
            &update.kv_cache_usage,
        ];
        for (kept, new) in now.signals.iter_mut().zip(signals) {
            if let Some(signal) = new {
                *kept = Some((signal.clone(), at));
            }
        }
        for cells in &self.engines {
            cells.stepped.show(1.0);
            apply(update, cells, at);
        }
        self.move_signals(&now, at);
        if let Some(loras) = &update.loras {
            let mut series: Vec<_> = loras
                .iter()
                .map(|l| (l.running.clone(), l.waiting.clone(), l.timestamp))
                .collect();
            if series.is_empty() {
                series.push((String::new(), String::new(), at.trunc()));
            }
            self.lora.replace(&series);
        }
        Ok(())
    }

    /// Moves the gauges to where they are at this time.
    pub(in super::super) fn tick(&self, now_unix: f64) {
        self.move_signals(&self.now.lock(), now_unix);
    }

    fn move_signals(&self, now: &Now, now_unix: f64) {
        let value = |i: usize, whole| {
            let (signal, since) = now.signals[i].as_ref()?;
            let t = Duration::try_from_secs_f64(now_unix - since).unwrap_or_default();
            Some(signal.shown(t, self.refresh, whole))
        };
        let (running, waiting, usage) = (value(0, true), value(1, true), value(2, false));
        for cells in &self.engines {
            if let Some(v) = running {
                cells.running.set(v);
            }
            if let Some(v) = waiting {
                cells.waiting.set(v);
                cells.waiting_by_reason[0].set(v);
            }
            if let Some(v) = usage {
                cells.kv_usage.set(v);
            }
        }
    }
}

/// Sets what an update names, but for the gauges.
fn apply(u: &Fake, cells: &Cells, at: f64) {
    for (counts, cell) in [
        (&u.ttft_buckets_values, &cells.ttft),
        (&u.tpot_buckets_values, &cells.itl),
        (&u.request_params_max_tokens, &cells.params_max_tokens),
        (
            &u.request_max_generation_tokens,
            &cells.max_generation_tokens,
        ),
        (&u.e2erl_buckets_values, &cells.e2e),
        (&u.queue_time_buckets_values, &cells.queue_time),
        (&u.inf_time_buckets_values, &cells.inference_time),
        (&u.prefill_time_buckets_values, &cells.prefill_time),
        (&u.decode_time_buckets_values, &cells.decode_time),
        (&u.request_tpot_buckets_values, &cells.request_tpot),
    ] {
        replace(cell, counts.as_deref());
    }
    apply_tokens(
        (
            &cells.request_prompt_tokens,
            u.request_prompt_tokens.as_deref(),
        ),
        (&cells.prompt_tokens, u.total_prompt_tokens),
    );
    apply_tokens(
        (
            &cells.request_generation_tokens,
            u.request_generation_tokens.as_deref(),
        ),
        (&cells.generation_tokens, u.total_generation_tokens),
    );
    if let Some(n) = u.prefix_cache_queries {
        cells.prefix_queries.set(n.unsigned_abs());
    }
    if let Some(n) = u.prefix_cache_hits {
        cells.prefix_hits.set(n.unsigned_abs());
    }
    if let Some(success) = &u.request_success_total {
        for (i, reason) in REASONS.into_iter().enumerate() {
            let n = success.get(reason).map_or(0, |n| n.unsigned_abs());
            cells.success[i].set(n);
            if FAKE_REASONS.contains(&reason) {
                cells.success_shown[i].show(at);
            }
        }
    }
}

/// The total of a pair is the one that is given, or what the given histogram comes to.
fn apply_tokens(
    (histogram, counts): (&Histogram, Option<&[i64]>),
    (total, given): (&Counter, Option<i64>),
) {
    let derived = replace(histogram, counts);
    if let Some(n) = given.map(i64::unsigned_abs).or(derived) {
        total.set(n);
    }
}

fn replace(cell: &Histogram, counts: Option<&[i64]>) -> Option<u64> {
    let counts: Vec<u64> = counts?.iter().map(|n| n.unsigned_abs()).collect();
    Some(cell.replace(&counts))
}
