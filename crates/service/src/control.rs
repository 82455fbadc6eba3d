//! What an operator does to all engines at once: pausing, sleeping, aborting, forgetting.
//!
//! Paused by `abort` or `wait`, new work is refused; paused by `keep`, or asleep, it queues.
//! Source: vLLM `v1/engine/async_llm.py`, `v1/engine/core.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Command, Reset, Service};
use vllm_sim_engine::driver::{EngineLocks, LiveEngine};

/// How often a drain looks whether it is over.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// What becomes of running work when it is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// It ends at once, with what it has.
    Abort,
    /// It may end by itself.
    Wait,
    /// It freezes and goes on later.
    Keep,
}

/// What sleep takes away and waking gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asset {
    /// The weights.
    Weights,
    /// The KV cache.
    KvCache,
    /// Scheduling.
    Scheduling,
}

/// Whether the engines work.
#[derive(Debug, Default)]
pub struct Control {
    state: Mutex<ControlState>,
    /// Whether new work is refused; read by every request.
    refuses: AtomicBool,
}

#[derive(Debug, Default)]
struct ControlState {
    paused: Option<Halt>,
    /// Records whether running work is being ended for a pause or sleep that has begun.
    stopping: bool,
    /// The number of resumes, so that an operation that began before one is recognised as outdated.
    resumed: u64,
    /// What is missing while asleep; empty when awake.
    missing: BTreeSet<Asset>,
    /// Whether sleep stops the engines (llm-d's does not).
    deep: bool,
}

impl ControlState {
    fn sleeps(&self) -> bool {
        self.deep && !self.missing.is_empty()
    }

    /// Returns whether running work stands still; what is being stopped may come to its end.
    fn halts(&self) -> bool {
        self.sleeps() || self.paused.is_some() && !self.stopping
    }

    /// Returns whether requests are refused; those that arrive during sleep queue.
    fn refuses(&self) -> bool {
        let paused = matches!(self.paused, Some(Halt::Abort | Halt::Wait));
        self.stopping || paused && !self.sleeps()
    }
}

impl Control {
    /// Whether new work is refused.
    pub fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// Whether the engines are asleep, whatever is missing.
    pub fn is_asleep(&self) -> bool {
        !self.state.lock().missing.is_empty()
    }

    /// Returns whether scheduling stands still, or will once running work has ended.
    pub fn is_paused(&self) -> bool {
        let state = self.state.lock();
        state.halts() || state.stopping
    }

    /// Nothing is paused or asleep, and what waits for that is out of date.
    pub(super) fn restart(&self, service: &Service) {
        self.settle(service, |state| {
            let resumed = state.resumed + 1;
            *state = ControlState {
                resumed,
                ..ControlState::default()
            };
        });
    }

    fn settle(&self, service: &Service, change: impl FnOnce(&mut ControlState)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.refuses.store(state.refuses(), Ordering::Relaxed);
        let command = if state.halts() {
            Command::Pause
        } else {
            Command::Resume
        };
        service.command(&command);
    }
}

impl Service {
    /// Tells every engine; whether all of them did it.
    pub fn command(&self, command: &Command) -> bool {
        let mut all = true;
        for rank in self.ranks() {
            all &= rank.command(command.clone());
        }
        all
    }

    /// Keeps every engine from doing anything as long as it lives.
    pub fn lock_engines(&self) -> EngineLocks<'_> {
        LiveEngine::lock_all(self.ranks())
    }

    /// Stops generation; returns once nothing runs any more, or generation goes on by a later command.
    pub async fn pause(&self, halt: Halt, clear_cache: bool) {
        let paused = |state: &mut ControlState| state.paused = Some(halt);
        if self.stop_work(halt, paused).await && clear_cache {
            self.command(&Command::ResetPrefixCache(Reset::Preempt));
            self.reset_encoder_cache();
        }
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&self) {
        self.control.settle(self, |state| {
            state.paused = None;
            state.stopping = false;
            state.resumed += 1;
        });
    }

    /// Puts the engines to sleep: level 0 stops scheduling, 1 and 2 also take weights and cache.
    pub async fn sleep(&self, level: u8, halt: Halt) {
        let asleep = |state: &mut ControlState| {
            state.deep = true;
            state.missing.insert(Asset::Scheduling);
            if level > 0 {
                state.missing.extend([Asset::Weights, Asset::KvCache]);
            }
        };
        if self.stop_work(halt, asleep).await && level > 0 {
            self.command(&Command::ResetPrefixCache(Reset::Preempt));
        }
    }

    /// llm-d's sleep: the cache is emptied, requests are served all the same.
    pub fn doze(&self) {
        self.control.settle(self, |state| {
            state.missing.insert(Asset::KvCache);
        });
        self.command(&Command::Caching(false));
        self.command(&Command::ResetPrefixCache(Reset::Forget));
    }

    /// Ends llm-d's sleep, whatever comes back; the cache stores again when it is among that.
    pub fn rise(&self, cache: bool) {
        self.control.settle(self, |state| state.missing.clear());
        if cache {
            self.command(&Command::Caching(true));
        }
    }

    /// Gives back `assets`, all of them when there are none; whether the engines are awake now.
    pub fn wake(&self, assets: &[Asset]) -> bool {
        self.control.settle(self, |state| {
            state.stopping = false;
            state.resumed += 1;
            state
                .missing
                .retain(|m| !assets.is_empty() && !assets.contains(m));
            // Scheduling comes back with the last of the memory.
            if !state.missing.iter().any(|m| *m != Asset::Scheduling) {
                state.missing.clear();
            }
        });
        !self.control.is_asleep()
    }

    /// Ends the requests of these ids, all of them for `None`; how many vLLM says there were: the
    /// ids named, or all sequences and, of requests for several choices, one more for each prompt.
    ///
    /// Source: vLLM `entrypoints/rl/online/api_router.py`, `abort_requests`.
    pub fn abort(&self, ids: Option<&[String]>) -> usize {
        let named: Option<BTreeSet<&str>> = ids.map(|ids| ids.iter().map(String::as_str).collect());
        // Sequences per request for several choices, and how many choices those are.
        let parents = Mutex::new(BTreeMap::new());
        let mut sequences = 0;
        for rank in self.ranks() {
            sequences += rank.cancel_where(|request| {
                if named
                    .as_ref()
                    .is_some_and(|ids| !ids.contains(&*request.id))
                {
                    return false;
                }
                if let Some(parent) = request.parent.as_ref().filter(|parent| parent.n > 1) {
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

    /// Forgets the prefix cache; `false` when blocks are in use that `running` does not make
    /// sequences give up. Ranks that have none in use forget theirs all the same, as in vLLM. With
    /// `external` what lies in the memory of the host is forgotten too.
    pub fn reset_prefix_cache(&self, running: bool, external: bool) -> bool {
        if external {
            self.command(&Command::ResetHostTier);
        }
        let reset = if running {
            Reset::Preempt
        } else {
            Reset::WhenIdle
        };
        self.command(&Command::ResetPrefixCache(reset))
    }

    /// Forgets what encoders made of images and audio, in engines that model them.
    pub fn reset_encoder_cache(&self) {
        self.command(&Command::ResetEncoderCache);
    }

    /// Ends running work, then changes the state; `false` when it was told to go on meanwhile, so
    /// that the state stays. New work is refused from the start: the wait ends however many clients
    /// there are.
    async fn stop_work(&self, halt: Halt, change: impl FnOnce(&mut ControlState)) -> bool {
        let mut resumed = 0;
        self.control.settle(self, |state| {
            state.stopping = halt != Halt::Keep;
            resumed = state.resumed;
        });
        match halt {
            Halt::Keep => {}
            Halt::Abort => {
                self.command(&Command::CancelAll);
            }
            Halt::Wait => {
                while !self.is_idle() {
                    if self.control.state.lock().resumed != resumed {
                        return false;
                    }
                    tokio::time::sleep(DRAIN_LOOK).await;
                }
            }
        }
        let mut stopped = false;
        self.control.settle(self, |state| {
            stopped = state.resumed == resumed;
            if stopped {
                state.stopping = false;
                change(state);
            }
        });
        stopped
    }

    fn is_idle(&self) -> bool {
        self.ranks().iter().all(|rank| {
            let stats = rank.stats();
            stats.running + stats.waiting + stats.deferred == 0
        })
    }
}
