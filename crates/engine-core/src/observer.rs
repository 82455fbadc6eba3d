//! Sends the events of an engine to the output thread of its core, one batch per step.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::encode::PrefillStats;
use super::output::Item;
use super::stats::{AdapterUse, DraftCounts, SchedulerStats};
use super::step::{Step, StepEvent};
use vllm_sim_config::{Config, SchedulerKind};
use vllm_sim_engine::driver::{Observer, SequenceRecord};
use vllm_sim_engine::{Event, SimTime, Stats};

/// Sends the events of an engine to its engine core, one batch per step.
///
/// A batching engine marks the end of each step. The pool scheduler has no steps, so all events at
/// one instant form a batch.
pub struct OutputObserver {
    queue: Sender<Item>,
    steps: bool,
    cache: bool,
    connector: bool,
    /// Scheduler statistics since the last message; the coordinator needs them even with
    /// `--disable-log-stats`.
    stats: SchedulerStats,
    /// Number of running, waiting and deferred sequences in the last message.
    last_sent: (usize, usize, usize),
    open: Vec<(Arc<str>, StepEvent)>,
    at: SimTime,
    done: Vec<Step>,
}

impl OutputObserver {
    pub(crate) fn new(queue: Sender<Item>, config: &Config) -> Self {
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
                drafts: drafts.map(|drafts| DraftCounts::new(drafts.num_tokens as usize)),
                ..SchedulerStats::default()
            },
            last_sent: (0, 0, 0),
            open: Vec::new(),
            at: SimTime::ZERO,
            done: Vec::new(),
        }
    }

    fn close(&mut self, at: SimTime) {
        self.done.push(Step {
            at,
            events: std::mem::take(&mut self.open),
            stats: None,
        });
    }

    fn push(&mut self, at: SimTime, record: &SequenceRecord, event: StepEvent) {
        if !self.steps && !self.open.is_empty() && at != self.at {
            self.close(self.at);
        }
        self.at = at;
        self.open.push((record.request.id.clone(), event));
    }

    fn count_lora(&mut self, record: &SequenceRecord, change: impl FnOnce(&mut AdapterUse)) {
        if let Some(name) = &record.request.lora {
            let loras = &mut self.stats.loras;
            let used = loras.entry(name.clone()).or_default();
            change(used);
            if used.waiting + used.running == 0 {
                loras.remove(name);
            }
        }
    }
}

impl Observer for OutputObserver {
    fn on_queued(&mut self, record: &SequenceRecord) {
        self.count_lora(record, |used| used.waiting += 1);
    }

    fn on_event(&mut self, at: SimTime, event: &Event, record: &SequenceRecord, _: SimTime) {
        let starts = |used: &mut AdapterUse| {
            used.waiting = used.waiting.saturating_sub(1);
            used.running += 1;
        };
        let said = match event {
            Event::Scheduled {
                cached, external, ..
            } => {
                self.count_lora(record, starts);
                if record.looked_up && self.cache {
                    self.stats.look_up(record);
                    if self.connector || record.external > 0 {
                        self.stats.look_up_external(record);
                    }
                }
                StepEvent::Scheduled {
                    queued: record.queued,
                    scheduled: at,
                    prefill: PrefillStats {
                        prompt: record.prompt,
                        cached: *cached,
                        external: *external,
                    },
                }
            }
            Event::Drafts {
                proposed, accepted, ..
            } => {
                self.stats.verify(*proposed, *accepted);
                return;
            }
            Event::Tokens { n, .. } => StepEvent::Tokens(*n),
            Event::Preempted { .. } => {
                self.count_lora(record, |used| {
                    used.running = used.running.saturating_sub(1);
                    used.waiting += 1;
                });
                StepEvent::Preempted(at)
            }
            Event::Resumed { .. } => {
                self.count_lora(record, starts);
                StepEvent::Resumed(at)
            }
            Event::Ended { end, .. } => {
                let running = record.running;
                self.count_lora(record, |used| {
                    let count = match running {
                        true => &mut used.running,
                        false => &mut used.waiting,
                    };
                    *count = count.saturating_sub(1);
                });
                StepEvent::Ended(*end)
            }
            _ => return,
        };
        self.push(at, record, said);
    }

    fn on_engine(&mut self, at: SimTime, event: &Event) {
        if self.steps && matches!(event, Event::Step { .. }) {
            self.close(at);
        }
    }

    fn on_stats(&mut self, stats: &Stats) {
        self.stats.gauges = *stats;
    }

    fn on_events_delivered(&mut self) {
        let visible = |(_, event): &(_, StepEvent)| {
            matches!(event, StepEvent::Tokens(_) | StepEvent::Ended(_))
        };
        // Events before the end of a step stay queued, unless tokens or an end must be sent.
        if !self.open.is_empty() && (!self.steps || self.open.iter().any(visible)) {
            self.close(self.at);
        }
        let gauges = &self.stats.gauges;
        let counts = (gauges.running, gauges.waiting, gauges.deferred);
        // The pool has no steps that would report a change of its queue.
        let news = match self.steps {
            true => counts.0 != self.last_sent.0,
            false => counts != self.last_sent,
        };
        if self.done.is_empty() && news {
            self.done.push(Step {
                at: self.at,
                events: Vec::new(),
                stats: None,
            });
        }
        if let Some(last) = self.done.last_mut() {
            last.stats = Some(Box::new(self.stats.take()));
            self.last_sent = counts;
        }
        for step in self.done.drain(..) {
            // The receiver is dropped at shutdown.
            let _ = self.queue.send(Item::Step(step));
        }
    }
}
