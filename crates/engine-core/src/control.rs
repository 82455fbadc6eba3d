//! Utility calls of vLLM's engine core protocol: methods of the engine that front ends call by
//! name.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/core.py`, the methods of `EngineCore`.

use std::sync::{Arc, Mutex, PoisonError};

use rmpv::Value;

use super::adapters::LoadedLoraAdapters;
use super::decode::MsgpackArrayFields;
use super::parts::EngineCoreDependencies;
use super::request::LoraRequest;
use vllm_sim_config::ModelTask;
use vllm_sim_engine::kv::SparseLayerKind;
use vllm_sim_service::{PauseMode, PrefixCacheResetScope, SleepTag};

pub(crate) struct UtilityCallExecutor {
    parts: EngineCoreDependencies,
    adapters: Arc<LoadedLoraAdapters>,
}

/// Locks a mutex, also after a panic of a thread that held it. Each change of a locked value is a
/// single operation, so the value stays valid.
pub(crate) fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UtilityCallExecutor {
    pub(crate) fn new(
        dependencies: EngineCoreDependencies,
        loaded_adapters: Arc<LoadedLoraAdapters>,
    ) -> Self {
        Self { parts: dependencies, adapters: loaded_adapters }
    }

    /// Executes a utility call of a front end and returns its result.
    ///
    /// # Errors
    /// A message for the front end.
    pub(crate) async fn execute_utility_call(
        &self,
        method: &str,
        mut args: MsgpackArrayFields,
    ) -> Result<Value, String> {
        let service = &self.parts.service;
        match method {
            "get_supported_tasks" => Ok(self.supported_tasks()),
            "sleep" => {
                let level = args.take_int_field(0).unwrap_or(1);
                let level = u8::try_from(level).ok().filter(|level| *level <= 2);
                let level = level.ok_or("sleep level must be 0, 1 or 2")?;
                service.sleep(level, parse_pause_mode(args.take_text_field(1))?).await;
                Ok(Value::Nil)
            }
            "wake_up" => Ok(service.wake_up(&parse_sleep_tags(&args.take_field(0))?).into()),
            "is_sleeping" => {
                let halts = service.control.is_asleep() || service.control.is_paused();
                Ok(halts.into())
            }
            "pause_generation" | "pause_scheduler" => {
                self.pause_generation(&mut args).await?;
                if method == "pause_scheduler" {
                    // New requests queue, whatever the mode did to running ones.
                    service.pause_generation(PauseMode::Keep).await;
                }
                Ok(Value::Nil)
            }
            "resume_generation" | "resume_scheduler" => {
                service.resume_generation();
                Ok(Value::Nil)
            }
            "is_scheduler_paused" => Ok(service.control.is_paused().into()),
            "reset_prefix_cache" => {
                if args.take_bool_field(1) {
                    service.reset_host_cache();
                }
                let reset = match args.take_bool_field(0) {
                    true => PrefixCacheResetScope::Preempt,
                    false => PrefixCacheResetScope::WhenIdle,
                };
                Ok(service.reset_prefix_cache(reset).into())
            }
            "reset_encoder_cache" => {
                service.reset_encoder_cache();
                Ok(Value::Nil)
            }
            "release_kv_cache_memory" => self.release_kv_cache_memory(),
            // The simulator has no memory or profiler for these calls.
            "reset_mm_cache" | "execute_dummy_batch" | "profile" => Ok(Value::Nil),
            "add_lora" => self.add_lora(args.take_field(0)),
            "remove_lora" => {
                let id = args.take_int_field(0);
                Ok(id.is_some_and(|id| self.adapters.remove_lora_adapter(id)).into())
            }
            "pin_lora" => {
                let id = args.take_int_field(0);
                Ok(id.is_some_and(|id| self.adapters.is_lora_adapter_loaded(id)).into())
            }
            "list_loras" => {
                let ids = self.adapters.lora_adapter_ids().into_iter().map(Value::from);
                Ok(Value::Array(ids.collect()))
            }
            "collective_rpc" => {
                let parallel = &self.parts.config.engine.parallel;
                let workers = parallel.world_size() as usize;
                Ok(vec![Value::Nil; workers].into())
            }
            "get_weight_version" => Ok(lock_unpoisoned(&self.parts.weight_version).as_str().into()),
            "set_weight_version" => {
                *lock_unpoisoned(&self.parts.weight_version) =
                    args.take_text_field(0).ok_or("the weight version must be a string")?;
                Ok(Value::Nil)
            }
            "compute_weight_checksums" => Ok(Value::Array(Vec::new())),
            "get_kv_cache_group_metadata" => Ok(self.kv_cache_groups()),
            _ => Err(format!("the method {method} is not supported by the simulated engine core")),
        }
    }

    fn release_kv_cache_memory(&self) -> Result<Value, String> {
        let service = &self.parts.service;
        if !service.control.is_paused() {
            return Err("release_kv_cache_memory() requires a completed pause first".to_owned());
        }
        service.reset_prefix_cache(PrefixCacheResetScope::Preempt);
        Ok(Value::Nil)
    }

    fn supported_tasks(&self) -> Value {
        let tasks: &[&str] = match self.parts.config.api.task {
            ModelTask::Embed => &["embed", "token_embed"],
            ModelTask::Classify | ModelTask::Score | ModelTask::Reward => {
                &["classify", "token_classify"]
            }
            ModelTask::Transcription => &["transcription"],
            ModelTask::Realtime => &["generate", "transcription", "realtime"],
            ModelTask::All | ModelTask::Generate => &["generate"],
        };
        tasks.iter().map(|task| Value::from(*task)).collect()
    }

    async fn pause_generation(&self, args: &mut MsgpackArrayFields) -> Result<(), String> {
        let mode = parse_pause_mode(args.take_text_field(0))?;
        if args.take_field(1).as_bool().unwrap_or(true) {
            self.parts.service.pause_and_clear_caches(mode).await;
        } else {
            self.parts.service.pause_generation(mode).await;
        }
        Ok(())
    }

    fn add_lora(&self, lora: Value) -> Result<Value, String> {
        let lora = LoraRequest::decode_lora_request(lora).map_err(|error| error.to_string())?;
        self.adapters.load_lora_adapter(lora)?;
        Ok(true.into())
    }

    /// Returns the KV cache groups of layers in the order of KV events: sliding-window and Mamba
    /// groups first.
    fn kv_cache_groups(&self) -> Value {
        let engine = &self.parts.config.engine;
        let plan = engine.kv_cache.as_ref().map(|cache| &cache.plan);
        let sparse = plan.map_or(0, |plan| plan.sparse_groups);
        let full = plan.map_or(1, |plan| plan.full_groups);
        let group = |index: u32| {
            let (kind, window) = match plan {
                Some(plan) if index < sparse => match plan.sparse {
                    SparseLayerKind::Window(tokens) => ("sliding_window", Some(tokens)),
                    SparseLayerKind::State(_) => ("mamba", None),
                },
                Some(plan) if plan.is_mla => ("mla_attention", None),
                _ => ("full_attention", None),
            };
            let group = [
                ("group_idx", Value::from(index)),
                ("kind", kind.into()),
                ("block_size", engine.block_size.into()),
                ("sliding_window", window.map_or(Value::Nil, Value::from)),
            ];
            Value::Map(group.map(|(key, value)| (key.into(), value)).to_vec())
        };
        (0..sparse + full).map(group).collect()
    }
}

fn parse_pause_mode(mode: Option<String>) -> Result<PauseMode, String> {
    match mode.as_deref() {
        None | Some("abort") => Ok(PauseMode::Abort),
        Some("wait") => Ok(PauseMode::Wait),
        Some("keep") => Ok(PauseMode::Keep),
        Some(other) => Err(format!("mode is {other}, must be abort, wait or keep")),
    }
}

/// Parses the tags (`weights`, `kv_cache`, `scheduling`) that a call to wake up from vLLM's sleep
/// mode names; an empty list means all.
fn parse_sleep_tags(tags: &Value) -> Result<Vec<SleepTag>, String> {
    let tags = tags.as_array().map_or(&[][..], Vec::as_slice);
    let asset = |tag: &Value| match tag.as_str() {
        Some("weights") => Ok(SleepTag::Weights),
        Some("kv_cache") => Ok(SleepTag::KvCache),
        Some("scheduling") => Ok(SleepTag::Scheduling),
        _ => Err(format!("tag is {tag}, must be weights, kv_cache or scheduling")),
    };
    tags.iter().map(asset).collect()
}
