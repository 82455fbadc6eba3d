//! Commands to all engines: pause, sleep, abort, and resets of caches.
//!
//! While paused by `abort` or `wait`, new requests are rejected. While paused by `keep` or asleep,
//! they queue. Source: vLLM `v1/engine/async_llm.py`, `v1/engine/core.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{EngineCommand, InferenceService, PrefixCacheResetScope};
use vllm_sim_engine::driver::{EngineLockGuards, LiveEngine};

const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Treatment of running requests during a pause of generation (vLLM's pause mode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseMode {
    /// Pause mode: running requests end immediately, with the output generated so far.
    Abort,
    /// Pause mode: running requests complete before the pause begins, and queued ones continue
    /// after it.
    Wait,
    /// Pause mode: running requests freeze and continue after the pause.
    Keep,
}

/// A resource of the engine that sleep releases and wake-up restores (a vLLM `tag`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SleepTag {
    /// Memory of the model weights, as a resource that sleep releases.
    Weights,
    /// Memory of the KV cache, as a resource that sleep releases.
    KvCache,
    /// Scheduling of requests, as a resource that sleep pauses and wake-up resumes.
    Scheduling,
}

/// The pause and sleep state of all engines.
#[derive(Debug, Default)]
pub struct PauseControl {
    state: Mutex<PauseState>,
    /// Copy of [`PauseState::rejects_requests`] that every request reads without the lock.
    refuses: AtomicBool,
}

#[derive(Debug, Default)]
struct PauseState {
    paused: Option<PauseMode>,
    /// Pause mode of a pause or sleep that has begun and still waits for running requests to end.
    stopping: Option<PauseMode>,
    /// Number of times that generation was resumed; a pause or sleep in progress is outdated once
    /// this number changes.
    resumed: u64,
    /// Resources released by sleep; empty when awake.
    missing: BTreeSet<SleepTag>,
    /// Whether sleep stops the engines; llm-d's sleep does not.
    deep: bool,
    /// Whether the engines hang, as an injected fault; no route reports this as a pause.
    hung: bool,
}

impl PauseState {
    fn is_deep_sleeping(&self) -> bool {
        self.deep && !self.missing.is_empty()
    }

    /// Returns whether scheduling is halted; a pause halts scheduling only after the requests that
    /// must end have ended.
    fn halts_scheduling(&self) -> bool {
        self.is_deep_sleeping() || self.paused.is_some() && self.stopping.is_none()
    }

    /// Returns whether new requests are rejected by a pause; during sleep they queue instead.
    fn rejects_requests(&self) -> bool {
        let paused = matches!(self.paused, Some(PauseMode::Abort | PauseMode::Wait));
        self.stopping.is_some() || paused && !self.is_deep_sleeping()
    }
}

impl PauseControl {
    /// Returns whether new requests are rejected by a pause.
    pub fn rejects_new_requests(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// Returns whether sleep has released any resource.
    pub fn is_asleep(&self) -> bool {
        !self.state.lock().missing.is_empty()
    }

    /// Returns whether scheduling is halted, or will be once running requests have ended.
    pub fn is_paused(&self) -> bool {
        let state = self.state.lock();
        state.halts_scheduling() || state.stopping.is_some()
    }

    /// Returns whether the engines run no steps: a pause, sleep or an injected hang.
    pub fn runs_no_steps(&self) -> bool {
        let state = self.state.lock();
        state.halts_scheduling() || state.hung
    }

    /// Clears pause and sleep of the engines, and invalidates every pause or sleep in progress.
    pub(super) fn clear_for_restart(&self, service: &InferenceService) {
        self.update_state(service, |state| {
            let resumed = state.resumed + 1;
            *state = PauseState { resumed, hung: state.hung, ..PauseState::default() };
        });
    }

    fn update_state(&self, service: &InferenceService, change: impl FnOnce(&mut PauseState)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.refuses.store(state.rejects_requests(), Ordering::Relaxed);
        if state.halts_scheduling() || state.hung {
            service.command_all_engines(&EngineCommand::Pause);
            return;
        }
        service.command_all_engines(&EngineCommand::Resume);
        if state.stopping == Some(PauseMode::Wait) {
            // Queued requests stay in the queue. Schedulers that cannot keep them there run them.
            service.command_all_engines(&EngineCommand::PauseAdmission);
        }
    }
}

impl InferenceService {
    /// Sends a command to every engine and returns whether all engines carried it out.
    pub fn command_all_engines(&self, command: &EngineCommand) -> bool {
        let mut all = true;
        for rank in self.rank_engines() {
            all &= rank.apply_command(command.clone());
        }
        all
    }

    /// Locks every engine until the returned guard is dropped.
    pub fn lock_engines(&self) -> EngineLockGuards<'_> {
        LiveEngine::lock_engines(self.rank_engines())
    }

    /// Pauses generation in all engines.
    ///
    /// Returns when running requests have ended, or when a later command resumes generation; false
    /// in the second case.
    pub async fn pause_generation(&self, mode: PauseMode) -> bool {
        let paused = |state: &mut PauseState| state.paused = Some(mode);
        self.stop_running_requests(mode, paused).await
    }

    /// Pauses generation, then clears the caches unless a later command resumed generation.
    pub async fn pause_and_clear_caches(&self, mode: PauseMode) {
        if self.pause_generation(mode).await {
            self.reset_prefix_cache(PrefixCacheResetScope::Preempt);
            self.reset_encoder_cache();
        }
    }

    /// Resumes generation in all engines after [`Self::pause_generation`].
    pub fn resume_generation(&self) {
        self.control.update_state(self, |state| {
            state.paused = None;
            state.stopping = None;
            state.resumed += 1;
        });
    }

    /// Starts or ends a hang of all engines, in which no step runs and requests wait.
    pub fn set_engine_hang(&self, hung: bool) {
        if self.control.state.lock().hung != hung {
            self.control.update_state(self, |state| state.hung = hung);
        }
    }

    /// Puts all engines to sleep.
    ///
    /// Level 0 stops scheduling; levels 1 and 2 also release the weights and the KV cache.
    pub async fn sleep(&self, level: u8, mode: PauseMode) {
        let asleep = |state: &mut PauseState| {
            state.deep = true;
            state.missing.insert(SleepTag::Scheduling);
            if level > 0 {
                state.missing.extend([SleepTag::Weights, SleepTag::KvCache]);
            }
        };
        if self.stop_running_requests(mode, asleep).await && level > 0 {
            self.reset_prefix_cache(PrefixCacheResetScope::Preempt);
        }
    }

    /// Starts llm-d's sleep: empties and disables the prefix cache, while requests are still
    /// served.
    pub fn start_llmd_sleep(&self) {
        self.control.update_state(self, |state| {
            state.missing.insert(SleepTag::KvCache);
        });
        self.command_all_engines(&EngineCommand::Caching(false));
        self.reset_prefix_cache(PrefixCacheResetScope::Forget);
    }

    /// Ends llm-d's sleep; enables the prefix cache again if `enable_prefix_cache` is set.
    pub fn end_llmd_sleep(&self, enable_prefix_cache: bool) {
        self.control.update_state(self, |state| state.missing.clear());
        if enable_prefix_cache {
            self.command_all_engines(&EngineCommand::Caching(true));
        }
    }

    /// Restores the resources `tags` after sleep, or all if the list is empty; returns whether
    /// the engines are awake.
    pub fn wake_up(&self, tags: &[SleepTag]) -> bool {
        self.control.update_state(self, |state| {
            state.stopping = None;
            state.resumed += 1;
            state.missing.retain(|m| !tags.is_empty() && !tags.contains(m));
            // Scheduling resumes with the last of the memory.
            if !state.missing.iter().any(|m| *m != SleepTag::Scheduling) {
                state.missing.clear();
            }
        });
        !self.control.is_asleep()
    }

    /// Aborts the requests with the given ids, or all requests for `None`, and returns the number
    /// of aborted requests that vLLM reports.
    ///
    /// The count is the number of ids. For `None` it is the number of sequences, plus one per
    /// prompt of requests with several choices.
    ///
    /// Source: vLLM `entrypoints/rl/online/api_router.py`, `abort_requests`.
    pub fn abort_requests(&self, ids: Option<&[String]>) -> usize {
        let named: Option<BTreeSet<&str>> = ids.map(|ids| ids.iter().map(String::as_str).collect());
        // Per request with several choices: its aborted sequences, and its number of choices.
        let parents = Mutex::new(BTreeMap::new());
        let mut sequences = 0;
        for rank in self.rank_engines() {
            sequences += rank.cancel_matching_sequences(|record| {
                if named.as_ref().is_some_and(|ids| !ids.contains(&*record.request_id)) {
                    return false;
                }
                if let Some(parent) = record.parent.as_ref().filter(|parent| parent.n > 1) {
                    let key = Arc::as_ptr(parent) as usize;
                    parents.lock().entry(key).or_insert((0_usize, parent.n)).0 += 1;
                }
                true
            });
        }
        let prompts = |(sequences, n): &(usize, u32)| sequences.div_ceil(*n as usize);
        let parents: usize = parents.into_inner().values().map(prompts).sum();
        ids.map_or(sequences + parents, <[String]>::len)
    }

    /// Returns whether a request with this id waits or runs.
    pub fn has_request(&self, id: &str) -> bool {
        let has_id =
            |rank: &LiveEngine| rank.has_matching_sequence(|record| *record.request_id == *id);
        self.rank_engines().iter().any(has_id)
    }

    /// Aborts all requests whose id begins with `prefix`.
    pub fn abort_requests_with_prefix(&self, prefix: &str) {
        for rank in self.rank_engines() {
            rank.cancel_matching_sequences(|record| record.request_id.starts_with(prefix));
        }
    }

    /// Clears the prefix cache of every rank; returns `false` if a rank could not because its
    /// blocks are in use.
    ///
    /// As in vLLM, idle ranks clear their cache even if another rank fails.
    pub fn reset_prefix_cache(&self, reset: PrefixCacheResetScope) -> bool {
        self.command_all_engines(&EngineCommand::ResetPrefixCache(reset))
    }

    /// Clears the prefix cache in host memory.
    pub fn reset_host_cache(&self) {
        self.command_all_engines(&EngineCommand::ResetHostTier);
    }

    /// Clears the encoder cache of images and audio, in engines that simulate it.
    pub fn reset_encoder_cache(&self) {
        self.command_all_engines(&EngineCommand::ResetEncoderCache);
    }

    /// Ends or freezes running requests, then applies `change` to the pause state; returns `false`
    /// if generation was resumed in between.
    ///
    /// New requests are rejected from the start, so the wait ends under any load.
    async fn stop_running_requests(
        &self,
        halt: PauseMode,
        change: impl FnOnce(&mut PauseState),
    ) -> bool {
        let mut resumed = 0;
        self.control.update_state(self, |state| {
            state.stopping = Some(halt).filter(|halt| *halt != PauseMode::Keep);
            resumed = state.resumed;
        });
        match halt {
            PauseMode::Keep => {}
            PauseMode::Abort => {
                self.command_all_engines(&EngineCommand::CancelAll);
            }
            PauseMode::Wait => {
                while !self.is_idle() {
                    if self.control.state.lock().resumed != resumed {
                        return false;
                    }
                    tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
                }
            }
        }
        let mut stopped = false;
        self.control.update_state(self, |state| {
            stopped = state.resumed == resumed;
            if stopped {
                state.stopping = None;
                change(state);
            }
        });
        stopped
    }

    fn is_idle(&self) -> bool {
        self.rank_engines().iter().all(|rank| {
            let stats = rank.stats();
            stats.running + stats.waiting + stats.deferred == stats.held
        })
    }
}
