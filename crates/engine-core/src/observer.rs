//! Sends the events of an engine to the output thread of its core, one batch per step.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::encode::PrefillStats;
use super::output::OutputThreadMessage;
use super::stats::{DraftTokenCounts, LoraSequenceCounts, SchedulerStats};
use super::step::{EngineStepEvent, EngineStepEvents};
use vllm_sim_config::{Config, SchedulerKind};
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};
use vllm_sim_engine::{EngineStats, SchedulerEvent, SimTime};

/// Forwards the events of a simulated engine (admissions, output tokens, ends of sequences) to the
/// engine core that serves it, one batch per step.
///
/// A batching engine marks the end of each step. The pool scheduler has no steps, so all events at
/// one instant form a batch.
pub struct EngineOutputObserver {
    queue: Sender<OutputThreadMessage>,
    steps: bool,
    cache: bool,
    connector: bool,
    /// Scheduler statistics gathered since the last message to the output thread. The data-parallel
    /// coordinator needs them even with `--disable-log-stats`.
    stats: SchedulerStats,
    /// Numbers of running, waiting and deferred sequences in the scheduler statistics sent last.
    last_sent: (usize, usize, usize),
    open: Vec<(Arc<str>, EngineStepEvent)>,
    at: SimTime,
    done: Vec<EngineStepEvents>,
}

impl EngineOutputObserver {
    pub(crate) fn new(queue: Sender<OutputThreadMessage>, config: &Config) -> Self {
        let engine = &config.engine;
        let drafts = engine.speculative.as_ref();
        Self {
            queue,
            steps: engine.scheduler != SchedulerKind::Pool,
            cache: engine.prefix_cache.enable_prefix_caching || engine.prefix_cache.enable_kvcache,
            connector: config
                .kv_transfer
                .as_ref()
                .is_some_and(|transfer| transfer.connector.is_some()),
            stats: SchedulerStats {
                drafts: drafts
                    .map(|drafts| DraftTokenCounts::zero_draft_counts(drafts.num_tokens as usize)),
                ..SchedulerStats::default()
            },
            last_sent: (0, 0, 0),
            open: Vec::new(),
            at: SimTime::ZERO,
            done: Vec::new(),
        }
    }

    fn close_step(&mut self, at: SimTime) {
        self.done.push(EngineStepEvents {
            at,
            events: std::mem::take(&mut self.open),
            stats: None,
        });
    }

    fn push_event(&mut self, at: SimTime, record: &SequenceRecord, event: EngineStepEvent) {
        if !self.steps && !self.open.is_empty() && at != self.at {
            self.close_step(self.at);
        }
        self.at = at;
        self.open.push((record.request_id.clone(), event));
    }

    fn count_lora(
        &mut self,
        record: &SequenceRecord,
        change: impl FnOnce(&mut LoraSequenceCounts),
    ) {
        if let Some(name) = &record.lora {
            let loras = &mut self.stats.loras;
            let used = loras.entry(name.clone()).or_default();
            change(used);
            if used.waiting + used.running == 0 {
                loras.remove(name);
            }
        }
    }
}

impl EngineObserver for EngineOutputObserver {
    fn on_sequence_queued(&mut self, record: &SequenceRecord) {
        self.count_lora(record, |used| used.waiting += 1);
    }

    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _: SimTime,
    ) {
        let starts = |used: &mut LoraSequenceCounts| {
            used.waiting = used.waiting.saturating_sub(1);
            used.running += 1;
        };
        let said = match event {
            SchedulerEvent::Scheduled { cached, external, .. } => {
                self.count_lora(record, starts);
                if record.looked_up && self.cache {
                    self.stats.count_prefix_cache_lookup(record);
                    if self.connector || record.external > 0 {
                        self.stats.count_external_cache_lookup(record);
                    }
                }
                EngineStepEvent::Scheduled {
                    queued: record.queued,
                    scheduled: at,
                    prefill: PrefillStats {
                        prompt: record.prompt,
                        cached: *cached,
                        external: *external,
                    },
                }
            }
            SchedulerEvent::Drafts { proposed, accepted, .. } => {
                self.stats.count_draft_tokens(*proposed, *accepted);
                return;
            }
            SchedulerEvent::Tokens { n, .. } => EngineStepEvent::Tokens(*n),
            SchedulerEvent::Decoded { .. } => EngineStepEvent::Tokens(1),
            SchedulerEvent::Preempted { .. } => {
                self.count_lora(record, |used| {
                    used.running = used.running.saturating_sub(1);
                    used.waiting += 1;
                });
                EngineStepEvent::Preempted(at)
            }
            SchedulerEvent::Resumed { .. } => {
                self.count_lora(record, starts);
                EngineStepEvent::Resumed(at)
            }
            SchedulerEvent::Ended { end, .. } => {
                let running = record.running;
                self.count_lora(record, |used| {
                    let count = match running {
                        true => &mut used.running,
                        false => &mut used.waiting,
                    };
                    *count = count.saturating_sub(1);
                });
                EngineStepEvent::Ended(*end)
            }
            _ => return,
        };
        self.push_event(at, record, said);
    }

    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        let SchedulerEvent::Step { count, .. } = event else { return };
        if self.steps {
            let tokens =
                |(_, event): &&(_, EngineStepEvent)| matches!(event, EngineStepEvent::Tokens(_));
            for _ in 1..*count {
                let events = self.open.iter().filter(tokens).cloned().collect();
                self.done.push(EngineStepEvents { at, events, stats: None });
            }
            self.close_step(at);
        }
    }

    fn on_engine_stats(&mut self, stats: &EngineStats) {
        self.stats.gauges = *stats;
    }

    fn on_events_delivered(&mut self) {
        let visible = |(_, event): &(_, EngineStepEvent)| {
            matches!(event, EngineStepEvent::Tokens(_) | EngineStepEvent::Ended(_))
        };
        // Events before the end of a step stay queued, unless tokens or an end must be sent.
        if !self.open.is_empty() && (!self.steps || self.open.iter().any(visible)) {
            self.close_step(self.at);
        }
        let gauges = &self.stats.gauges;
        let counts = (gauges.running, gauges.waiting, gauges.deferred);
        // The pool has no steps that would report a change of its queue.
        let news = match self.steps {
            true => counts.0 != self.last_sent.0,
            false => counts != self.last_sent,
        };
        if self.done.is_empty() && news {
            self.done.push(EngineStepEvents { at: self.at, events: Vec::new(), stats: None });
        }
        if let Some(last) = self.done.last_mut() {
            last.stats = Some(Box::new(self.stats.take_scheduler_stats()));
            self.last_sent = counts;
        }
        for step in self.done.drain(..) {
            // The receiver is dropped at shutdown.
            let _ = self.queue.send(OutputThreadMessage::Step(step));
        }
    }
}
