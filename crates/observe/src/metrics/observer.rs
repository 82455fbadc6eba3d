//! Updates metrics from engine events, at the times at which vLLM does.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, LazyLock};

use super::engine::{EngineMetrics, FinishReason, FinishedRequest};
use super::lora::LoraLoad;
use super::nixl::NixlTransfer;
use super::resident_adapters::{AdapterCache, AdapterSlots};
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{EngineObserver, PlannedFinish, SequenceRecord};
use vllm_sim_engine::{EngineStats, LoadFailurePolicy, SchedulerEvent, SequenceEndReason};

/// Updates the metrics of one engine from its events, at the times at which vLLM does.
pub struct MetricsObserver {
    metrics: Arc<EngineMetrics>,
    /// Adapters with requests, ordered by their first request.
    loras: Vec<AdapterUse>,
    /// Whether a sequence of an adapter is in the queue and the adapter lists do not show it yet.
    queued: bool,
    /// LoRA adapters in memory, if they are exposed.
    resident: Option<AdapterCache>,
    features: EngineFeatures,
}

/// Features of the engine whose events update the metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineFeatures {
    /// Whether LoRA adapters are enabled in the engine.
    pub loras: bool,
    /// Whether the engine has a prefix cache.
    pub cache: bool,
    /// Whether the engine emits step events.
    pub steps: bool,
    /// Whether a KV connector is queried for tokens that are not cached.
    pub connector: bool,
    /// Shape of NIXL transfers; `None` unless prompts come from other engines.
    pub transfer: Option<NixlTransfer>,
    /// Number of LoRA adapters in memory; `None` unless the adapters in memory are exposed.
    pub adapter_slots: Option<AdapterSlots>,
    /// Number of tokens per KV block; `None` unless the usage of token slots is exposed.
    pub tokens_per_block: Option<u32>,
}

#[derive(Debug)]
struct AdapterUse {
    name: Arc<str>,
    waiting: u32,
    running: u32,
}

impl AdapterUse {
    fn starts(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        self.running += 1;
    }

    fn stops(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.waiting += 1;
    }
}

impl MetricsObserver {
    /// Creates an observer that updates the metrics of one engine.
    pub fn new(metrics: Arc<EngineMetrics>, features: EngineFeatures) -> Self {
        let resident = features.adapter_slots.map(AdapterCache::new);
        if let Some(resident) = &resident {
            metrics.show_loaded_adapters(resident);
        }
        Self { metrics, loras: Vec::new(), queued: false, resident, features }
    }

    /// Records that an adapter was loaded, starts or ends to run.
    fn use_adapter(&mut self, name: Option<&Arc<str>>) {
        let Some((resident, name)) = self.resident.as_mut().zip(name) else {
            return;
        };
        let running = |name: &str| self.loras.iter().any(|a| *a.name == *name && a.running > 0);
        resident.use_adapter(name, running);
        self.metrics.show_loaded_adapters(resident);
    }

    fn lora(&mut self, name: Option<&Arc<str>>, change: impl FnOnce(&mut AdapterUse)) {
        if self.count_lora(name, change) {
            self.show_loras();
        }
    }

    /// Changes the sequence counts of an adapter, and removes the adapter when it has no sequences;
    /// returns false without adapter.
    fn count_lora(
        &mut self,
        name: Option<&Arc<str>>,
        change: impl FnOnce(&mut AdapterUse),
    ) -> bool {
        let Some(name) = name.filter(|_| self.features.loras) else {
            return false;
        };
        let known = self.loras.iter().position(|used| used.name == *name);
        let index = known.unwrap_or_else(|| {
            self.loras.push(AdapterUse { name: name.clone(), waiting: 0, running: 0 });
            self.loras.len() - 1
        });
        let used = &mut self.loras[index];
        change(used);
        if used.waiting + used.running == 0 {
            self.loras.remove(index);
        }
        true
    }

    fn show_loras(&mut self) {
        self.queued = false;
        let loads = self.loras.iter().map(|used| LoraLoad {
            name: &used.name,
            running: used.running,
            waiting: used.waiting,
        });
        self.metrics.set_lora(&loads.collect::<Vec<_>>());
    }

    fn finish(&self, record: &SequenceRecord, reason: FinishReason) {
        let seconds = |d: std::time::Duration| d.as_secs_f64();
        let has_token = record.output > 0;
        let last = if has_token { record.last } else { record.scheduled };
        let first = if has_token { record.first } else { record.scheduled };
        self.metrics.on_finished(&FinishedRequest {
            reason,
            prompt_tokens: record.prompt,
            output_tokens: record.output,
            max_tokens: record.request.max_tokens,
            limited: record.request.limited,
            e2e_s: seconds(last - record.arrived),
            queue_s: seconds(record.scheduled - record.queued),
            inference_s: seconds(last - record.scheduled),
            prefill_s: seconds(first - record.scheduled),
            decode_s: seconds(last - first),
            cached: record.cached + record.external,
            preemptions: record.preemptions,
        });
    }

    /// Counts `n` output tokens of a sequence whose previous output was at `since`.
    fn count_tokens(&self, at: SimTime, n: u32, record: &SequenceRecord, since: SimTime) {
        self.metrics.on_tokens(n);
        let first = record.output == n;
        if first {
            let ttft = (at - record.arrived).as_secs_f64();
            self.metrics.on_first_token(ttft, record.prompt, record.cached, record.external);
        } else {
            // Tokens due at the same instant are separate events with a gap of zero.
            self.metrics.on_gap((at - since).as_secs_f64());
        }
        // Several tokens of one step are one output in vLLM.
        if !self.features.steps {
            if n > 1 {
                self.metrics.on_gaps(0.0, n - 1);
            }
            let computed = if first { record.prompt - record.cached } else { 0 };
            self.metrics.on_step(computed, n);
        }
    }

    fn close_parent(&self, record: &SequenceRecord) {
        let Some(parent) = &record.request.parent else {
            return;
        };
        parent.longest.fetch_max(record.output, Ordering::Relaxed);
        if parent.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.metrics.on_request_done(parent.n, parent.longest.load(Ordering::Relaxed));
        }
    }
}

/// Returns the finish reason to count; `None` for an aborted sequence, which is not counted.
fn finish_reason(end: SequenceEndReason, planned: PlannedFinish) -> Option<FinishReason> {
    Some(match (end, planned) {
        (SequenceEndReason::Aborted, _) => return None,
        (SequenceEndReason::Cancelled, _) => FinishReason::Abort,
        (SequenceEndReason::Threshold, _) => FinishReason::CacheThreshold,
        (SequenceEndReason::Failed, _) => FinishReason::Error,
        (SequenceEndReason::Finished, PlannedFinish::Stop) => FinishReason::Stop,
        (SequenceEndReason::Finished, PlannedFinish::Length) => FinishReason::Length,
        (SequenceEndReason::Finished, PlannedFinish::ToolCalls) => FinishReason::ToolCalls,
        (SequenceEndReason::Finished, PlannedFinish::RemoteDecode) => FinishReason::RemoteDecode,
    })
}

impl EngineObserver for MetricsObserver {
    fn on_sequence_queued(&mut self, record: &SequenceRecord) {
        // Not exposed yet: a sequence that starts immediately never waits, and readers of equal
        // times take the first series.
        self.queued |= self.count_lora(record.request.lora.as_ref(), |u| u.waiting += 1);
    }

    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        since: SimTime,
    ) {
        match event {
            SchedulerEvent::Scheduled { cached, external, .. } => {
                // A connector is queried for tokens that are not in this engine's cache.
                let asked = match self.features.connector || *external > 0 {
                    true => record.prompt - cached,
                    false => 0,
                };
                let remote = record.request.kv_source.is_some();
                if record.looked_up && self.features.cache {
                    self.metrics.on_scheduled((record.prompt, *cached), (asked, *external), remote);
                }
                self.lora(record.request.lora.as_ref(), AdapterUse::starts);
                self.use_adapter(record.request.lora.as_ref());
            }
            SchedulerEvent::Tokens { n, .. } => self.count_tokens(at, *n, record, since),
            SchedulerEvent::Fetched { tokens, took, .. } => {
                if let Some(transfer) = &self.features.transfer {
                    self.metrics.on_transfer(transfer, *tokens, *took);
                }
            }
            SchedulerEvent::LoadFailed { tokens, policy, remote, .. } => {
                if let Some(transfer) = self.features.transfer.as_ref().filter(|_| *remote) {
                    self.metrics.on_transfer_failed(transfer);
                }
                log_load_failure(&record.request.id, *tokens, *policy);
            }
            SchedulerEvent::Drafts { proposed, accepted, .. } => {
                self.metrics.on_drafts(*proposed, *accepted)
            }
            SchedulerEvent::Preempted { .. } => {
                self.metrics.on_preempted();
                self.use_adapter(record.request.lora.as_ref());
                self.lora(record.request.lora.as_ref(), AdapterUse::stops);
            }
            SchedulerEvent::Resumed { .. } => {
                self.lora(record.request.lora.as_ref(), AdapterUse::starts);
                self.use_adapter(record.request.lora.as_ref());
            }
            SchedulerEvent::Ended { end, .. } => {
                if record.running {
                    self.use_adapter(record.request.lora.as_ref());
                }
                self.lora(record.request.lora.as_ref(), |used| match record.running {
                    true => used.running = used.running.saturating_sub(1),
                    false => used.waiting = used.waiting.saturating_sub(1),
                });
                if let Some(reason) = finish_reason(*end, record.request.finish) {
                    self.finish(record, reason);
                    self.close_parent(record);
                }
            }
            _ => {}
        }
    }

    /// Lists the adapter of a rejected request briefly as running: llm-d's simulator checks the
    /// context length only when a request runs.
    fn on_lora_refused(&mut self, lora: &Arc<str>) {
        self.lora(Some(lora), |used| used.running += 1);
        self.lora(Some(lora), |used| used.running -= 1);
    }

    fn on_lora_loaded(&mut self, lora: &Arc<str>) {
        self.use_adapter(Some(lora));
    }

    fn on_loras_cleared(&mut self) {
        if let Some(resident) = &mut self.resident {
            resident.clear();
            self.metrics.show_loaded_adapters(resident);
        }
    }

    fn needs_empty_token_slots(&self) -> bool {
        self.features.tokens_per_block.is_some()
    }

    fn on_engine_event(&mut self, _: SimTime, event: &SchedulerEvent) {
        if let SchedulerEvent::Step { prompt_tokens, output_tokens, .. } = event {
            self.metrics.on_step(*prompt_tokens, *output_tokens);
        }
        if matches!(event, SchedulerEvent::Cleared) {
            self.metrics.on_cleared();
        }
        if let SchedulerEvent::Host(event) = event {
            self.metrics.on_host(event);
        }
    }

    fn on_engine_stats(&mut self, stats: &EngineStats) {
        if self.queued {
            self.show_loras();
        }
        let usage = if stats.total_blocks == 0 {
            0.0
        } else {
            f64::from(stats.used_blocks) / f64::from(stats.total_blocks)
        };
        self.metrics.set_gauges(stats.running, stats.waiting, stats.deferred, usage);
        if let Some(tokens) = self.features.tokens_per_block {
            let slots = |blocks: u32| f64::from(blocks) * f64::from(tokens);
            let filled = slots(stats.used_blocks) - stats.empty_token_slots as f64;
            self.metrics.set_token_usage(filled.max(0.0) / slots(stats.total_blocks).max(1.0));
        }
        self.metrics.set_fetches(stats.fetches);
        self.metrics.set_host(&stats.host);
    }
}

const LOAD_FAILURE_LINES: usize = 1024;

/// Logs a failed load of a request's KV cache as vLLM's scheduler does.
///
/// A separate thread writes the line, because the calling thread holds the engine's lock.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/sched/scheduler.py`, `_handle_invalid_blocks`.
fn log_load_failure(id: &str, tokens: u32, policy: LoadFailurePolicy) {
    static LOG: LazyLock<SyncSender<(LoadFailurePolicy, String)>> = LazyLock::new(|| {
        let (send, lines) = sync_channel::<(LoadFailurePolicy, String)>(LOAD_FAILURE_LINES);
        std::thread::spawn(move || {
            for (policy, line) in lines {
                match policy {
                    LoadFailurePolicy::Fail => tracing::error!("{line}"),
                    LoadFailurePolicy::Recompute => tracing::warn!("{line}"),
                }
            }
        });
        send
    });
    let line = match policy {
        LoadFailurePolicy::Fail => format!(
            "Failing 1 request(s) due to KV load failure (failure_policy=fail, {tokens} tokens \
             affected). Request IDs: {{'{id}'}}"
        ),
        LoadFailurePolicy::Recompute => format!(
            "Recovered from KV load failure: 1 request(s) rescheduled ({tokens} tokens affected)."
        ),
    };
    // If the queue is full, the line is dropped.
    let _ = LOG.try_send((policy, line));
}
