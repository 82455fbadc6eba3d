//! Converts engine arguments of Dynamo's mocker (`--extra-engine-args`) to settings.
//!
//! Two formats of the file are read. Release 1.6 has `{"engine": {…}, "dp_size": …, "dynamo":
//! {…}}`; 1.4 has the same names in one flat object. As in the mocker, the file replaces the engine
//! flags, missing keys have the mocker's defaults, and an unknown key is an error.
//!
//! **Source:** `dynamo/mocker/args.py`, dynamo-mocker 1.6.1 `src/config.rs`.

use serde_json::{Map, Value};

use super::error::ConfigError;
use super::flag::{FlagSpec, value_to_flag_text};
use super::flags::{engine, kv, model, server};
use super::layers::{ConfigLayer, FlagValueSource};

const MOCKER_KEY_FLAGS: &[(&str, &FlagSpec)] = &[
    ("backend", &engine::SCHEDULER.spec),
    ("engine_type", &engine::SCHEDULER.spec),
    ("block_size", &kv::BLOCK_SIZE.spec),
    ("max_model_len", &model::MAX_MODEL_LEN.spec),
    ("max_num_seqs", &engine::MAX_NUM_SEQS.spec),
    ("max_num_batched_tokens", &engine::MAX_NUM_BATCHED_TOKENS.spec),
    ("enable_prefix_caching", &kv::ENABLE_PREFIX_CACHING.spec),
    ("enable_chunked_prefill", &engine::ENABLE_CHUNKED_PREFILL.spec),
    ("speedup_ratio", &engine::SPEEDUP_RATIO.spec),
    ("decode_speedup_ratio", &engine::DECODE_SPEEDUP_RATIO.spec),
    ("aic_nextn", &engine::SPEC_TOKENS.spec),
    ("aic_nextn_accept_rates", &engine::SPEC_ACCEPTANCE_RATES.spec),
    ("preemption_mode", &engine::PREEMPTION_MODE.spec),
    ("watermark", &engine::WATERMARK.spec),
    ("worker_type", &engine::DISAGGREGATION_MODE.spec),
    ("is_prefill", &engine::IS_PREFILL_WORKER.spec),
    ("is_decode", &engine::IS_DECODE_WORKER.spec),
    ("kv_transfer_bytes_per_token", &kv::KV_BYTES_PER_TOKEN.spec),
    ("kv_bytes_per_token", &kv::KV_BYTES_PER_TOKEN.spec),
    ("kv_transfer_bandwidth", &kv::KV_TRANSFER_BANDWIDTH.spec),
    ("kv_cache_dtype", &kv::KV_CACHE_DTYPE.spec),
    ("planner_profile_data", &engine::LATENCY_PROFILE.spec),
    ("dp_size", &engine::DATA_PARALLEL_SIZE.spec),
    ("tensor_parallel_size", &engine::TENSOR_PARALLEL_SIZE.spec),
    ("startup_time", &server::STARTUP_TIME.spec),
    ("gpu_memory_utilization", &engine::GPU_MEMORY_UTILIZATION.spec),
    ("mem_fraction_static", &engine::GPU_MEMORY_UTILIZATION.spec),
];

const SGLANG_KEY_FLAGS: &[(&str, &FlagSpec)] = &[
    ("schedule_policy", &engine::SGLANG_SCHEDULE_POLICY.spec),
    ("max_prefill_tokens", &engine::SGLANG_MAX_PREFILL_TOKENS.spec),
    ("chunked_prefill_size", &engine::SGLANG_CHUNKED_PREFILL_SIZE.spec),
    ("clip_max_new_tokens", &engine::SGLANG_CLIP_MAX_NEW_TOKENS.spec),
    ("schedule_conservativeness", &engine::SGLANG_SCHEDULE_CONSERVATIVENESS.spec),
];

/// Keys of Dynamo's mocker for the kernel-time tables of NVIDIA's AIConfigurator (without `aic_` or
/// `ais_`), with the flags of this program that replace them.
///
/// The simulator uses its roofline model instead of the tables.
const KERNEL_TABLE_KEY_FLAGS: &[(&str, &FlagSpec)] =
    &[("system", &engine::GPU.spec), ("tp_size", &engine::TENSOR_PARALLEL_SIZE.spec)];

/// Keys of Dynamo's mocker for kernel-time tables that this program ignores, because `--model` sets
/// the model.
const IGNORED_KERNEL_TABLE_KEYS: &[&str] = &[
    "backend",
    "backend_version",
    "model_path",
    "moe_tp_size",
    "moe_ep_size",
    "attention_dp_size",
];

/// GPU of the kernel-time tables of Dynamo's mocker if its arguments name none.
const DEFAULT_KERNEL_TABLE_GPU: &str = "h200_sxm";

/// Keys of the engine arguments of Dynamo's mocker that have no effect in a server.
const IGNORED_MOCKER_KEYS: &[&str] = &[
    "aic_mtp_seed",
    "dynamo",
    "emit_kv_events",
    "emit_kv_token_ids",
    "enable_local_indexer",
    "free_gpu_memory_fraction",
    "kv_cache_bytes_per_token",
    "kv_transfer_timing_mode",
    "bootstrap_port",
    "zmq_kv_events_port",
    "zmq_replay_port",
];

/// Keys of Dynamo's mocker for which `null` means unlimited, each with the number that replaces
/// `null`.
const NULL_MEANS_UNLIMITED_KEYS: [(&str, &FlagSpec, &str); 2] = [
    ("max_num_seqs", &engine::MAX_NUM_SEQS.spec, "1048576"),
    ("max_num_batched_tokens", &engine::MAX_NUM_BATCHED_TOKENS.spec, "16777216"),
];

/// Reads the engine arguments of Dynamo's mocker from a file, or from `path` itself if it starts
/// with a brace.
///
/// # Errors
/// [`ConfigError::File`] if the file cannot be read or is not a JSON object,
/// [`ConfigError::Unknown`] for a key that the mocker does not have.
pub(super) fn read_mocker_engine_args(path: &str) -> Result<ConfigLayer, ConfigError> {
    let file = |reason: String| ConfigError::File { path: path.to_owned(), reason };
    let text = match path.trim_start().starts_with('{') {
        true => path.to_owned(),
        false => std::fs::read_to_string(path).map_err(|e| file(e.to_string()))?,
    };
    let keys: Map<String, Value> =
        serde_saphyr::from_str(&text).map_err(|e| file(format!("not a JSON object: {e}")))?;
    let mut reader = MockerArgsReader { path, layer: ConfigLayer::default() };
    reader.read_all_keys(&keys)?;
    Ok(reader.layer)
}

struct MockerArgsReader<'a> {
    path: &'a str,
    layer: ConfigLayer,
}

impl MockerArgsReader<'_> {
    fn read_all_keys(&mut self, keys: &Map<String, Value>) -> Result<(), ConfigError> {
        let engine = keys.get("engine").unwrap_or(&Value::Null);
        let told = |key: &str| keys.get(key).or_else(|| engine.get(key));
        let measured = told("aic_backend").or_else(|| told("ais_backend"));
        let measured = measured.filter(|backend| !backend.is_null());
        let backend = told("backend").or_else(|| told("engine_type"));
        let backend = backend.or(measured);
        let sglang = backend.and_then(Value::as_str) == Some("sglang");
        self.set_flag(&engine::SCHEDULER, if sglang { "sglang" } else { "vllm" });
        self.set_flag(&kv::BLOCK_SIZE, if sglang { "1" } else { "64" });
        // vLLM's count includes the null block.
        self.set_flag(&kv::NUM_GPU_BLOCKS_OVERRIDE, "16385");
        self.set_flag(&engine::MAX_NUM_SEQS, "256");
        self.set_flag(&engine::MAX_NUM_BATCHED_TOKENS, "8192");
        self.set_flag(&kv::ENABLE_PREFIX_CACHING, "true");
        self.set_flag(&engine::ASYNC_SCHEDULING, "false");
        match measured {
            Some(_) => {
                self.set_flag(&engine::LATENCY_MODEL, "roofline");
                self.set_flag(&engine::GPU, DEFAULT_KERNEL_TABLE_GPU);
            }
            None => self.set_flag(&engine::LATENCY_MODEL, "polynomial"),
        }
        for (key, value) in keys {
            match (key.as_str(), value) {
                ("engine", Value::Object(engine)) => {
                    for (key, value) in engine {
                        self.read_key(key, value)?;
                    }
                }
                _ => self.read_key(key, value)?,
            }
        }
        Ok(())
    }

    fn read_key(&mut self, key: &str, value: &Value) -> Result<(), ConfigError> {
        match (key, value) {
            ("sglang", Value::Object(keys)) => {
                for (key, value) in keys {
                    let flag = SGLANG_KEY_FLAGS.iter().find(|(name, _)| name == key);
                    let (_, flag) = flag.ok_or_else(|| self.unknown_key_error(key))?;
                    self.set_flag(flag, &value_to_flag_text(value));
                }
            }
            ("num_gpu_blocks", value) => {
                let blocks = value.as_u64().filter(|n| (1..1 << 31).contains(n));
                let blocks = blocks
                    .ok_or_else(|| self.wrong_value_error(key, value, "a number of blocks"))?;
                self.set_flag(&kv::NUM_GPU_BLOCKS_OVERRIDE, &(blocks + 1).to_string());
            }
            ("timing_model", Value::Object(timing)) => self.read_timing_model(timing)?,
            ("backend" | "engine_type", Value::String(kind))
                if kind != "vllm" && kind != "sglang" =>
            {
                return Err(self.wrong_value_error(key, value, "vllm or sglang"));
            }
            ("worker_type", Value::String(kind)) if kind == "aggregated" => {}
            ("planner_profile_data", Value::String(path)) => {
                self.set_flag(&engine::LATENCY_MODEL, "profile");
                self.set_flag(&engine::LATENCY_PROFILE, path);
            }
            (_, Value::Null) => {
                let unlimited = NULL_MEANS_UNLIMITED_KEYS.iter().find(|(name, ..)| *name == key);
                if let Some((_, flag, most)) = unlimited {
                    self.set_flag(flag, most);
                }
            }
            _ if IGNORED_MOCKER_KEYS.contains(&key) => self.record_ignored_key(key),
            _ if kernel_table_key_name(key).is_some() => self.read_kernel_table_key(key, value)?,
            _ => {
                let flag = MOCKER_KEY_FLAGS.iter().find(|(name, _)| *name == key);
                let (_, flag) = flag.ok_or_else(|| self.unknown_key_error(key))?;
                self.set_flag(flag, &value_to_flag_text(value));
            }
        }
        Ok(())
    }

    fn read_kernel_table_key(&mut self, key: &str, value: &Value) -> Result<(), ConfigError> {
        let name = kernel_table_key_name(key).unwrap_or_default();
        if name == "backend" && !["vllm", "sglang", "trtllm"].iter().any(|known| value == known) {
            return Err(self.wrong_value_error(key, value, "vllm, sglang or trtllm"));
        }
        match KERNEL_TABLE_KEY_FLAGS.iter().find(|(known, _)| *known == name) {
            Some((_, flag)) => self.set_flag(flag, &value_to_flag_text(value)),
            None => self.record_ignored_key(key),
        }
        Ok(())
    }

    fn record_ignored_key(&mut self, key: &str) {
        self.layer.ignored.push(format!("{key} of {}", self.path));
    }

    fn read_timing_model(&mut self, timing: &Map<String, Value>) -> Result<(), ConfigError> {
        let ms =
            |key: &str| format!("{}ms", timing.get(key).and_then(Value::as_f64).unwrap_or(0.0));
        match timing.get("type").and_then(Value::as_str) {
            None | Some("polynomial") => {}
            Some("fixed") => {
                self.set_flag(&engine::LATENCY_MODEL, "delays");
                self.set_flag(&engine::TIME_TO_FIRST_TOKEN, &ms("prefill_ms"));
                self.set_flag(&engine::INTER_TOKEN_LATENCY, &ms("decode_ms"));
            }
            Some("external") if timing.get("provider") == Some(&"dynamo_profile".into()) => {
                let path = &timing.get("config").unwrap_or(&Value::Null)["path"];
                self.set_flag(&engine::LATENCY_MODEL, "profile");
                self.set_flag(&engine::LATENCY_PROFILE, &value_to_flag_text(path));
            }
            Some("external")
                if ["ais", "aic"]
                    .iter()
                    .any(|name| timing.get("provider") == Some(&(*name).into())) =>
            {
                let config = timing.get("config").unwrap_or(&Value::Null);
                self.set_flag(&engine::LATENCY_MODEL, "roofline");
                self.set_flag(
                    &engine::GPU,
                    config["system"].as_str().unwrap_or(DEFAULT_KERNEL_TABLE_GPU),
                );
                if !config["tp"].is_null() {
                    self.set_flag(
                        &engine::TENSOR_PARALLEL_SIZE,
                        &value_to_flag_text(&config["tp"]),
                    );
                }
            }
            Some(_) => {
                let value = Value::Object(timing.clone());
                let allowed =
                    "polynomial, fixed or external with provider dynamo_profile, ais or aic";
                return Err(self.wrong_value_error("timing_model", &value, allowed));
            }
        }
        Ok(())
    }

    fn set_flag(&mut self, flag: &FlagSpec, value: &str) {
        // A repeated key replaces the earlier value, also for lists.
        self.layer.settings.shift_remove(flag.name);
        let source = FlagValueSource::File(self.path.to_owned());
        self.layer.set_flag(flag, vec![value.to_owned()], source);
    }

    fn unknown_key_error(&self, key: &str) -> ConfigError {
        ConfigError::Unknown {
            what: format!("key in {}:", self.path),
            name: key.to_owned(),
            nearest: None,
        }
    }

    fn wrong_value_error(&self, key: &str, value: &Value, expected: &str) -> ConfigError {
        ConfigError::Value {
            flag: key.to_owned(),
            value: value_to_flag_text(value),
            expected: expected.to_owned(),
            origin: self.path.to_owned(),
        }
    }
}

/// Returns a key of Dynamo's mocker without its prefix `aic_` or `ais_`, if it is a key for
/// kernel-time tables.
fn kernel_table_key_name(key: &str) -> Option<&str> {
    let name = key.strip_prefix("aic_").or_else(|| key.strip_prefix("ais_"))?;
    let known = KERNEL_TABLE_KEY_FLAGS.iter().any(|(known, _)| *known == name);
    (known || IGNORED_KERNEL_TABLE_KEYS.contains(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_mocker_args_give_same_flags() {
        let old =
            read_mocker_engine_args(r#"{"num_gpu_blocks": 100, "block_size": 32, "dp_size": 2}"#)
                .unwrap();
        let new = read_mocker_engine_args(
            r#"{"engine": {"num_gpu_blocks": 100, "block_size": 32}, "dp_size": 2}"#,
        );
        let values = |layer: &ConfigLayer, flag: &str| layer.settings[flag].values.clone();
        let new = new.unwrap();
        for (flag, value) in [
            ("num-gpu-blocks-override", "101"),
            ("block-size", "32"),
            ("data-parallel-size", "2"),
            ("max-num-batched-tokens", "8192"),
        ] {
            assert_eq!(values(&old, flag), [value], "{flag}");
            assert_eq!(values(&new, flag), [value], "{flag}");
        }
    }

    #[test]
    fn kernel_tables_mean_the_roofline() {
        let layer = read_mocker_engine_args(
            r#"{"aic_backend": "sglang", "aic_system": "h100_sxm", "aic_tp_size": 2,
                "aic_model_path": "m", "block_size": 64}"#,
        )
        .unwrap();
        for (flag, value) in [
            ("latency-model", "roofline"),
            ("gpu", "h100_sxm"),
            ("tensor-parallel-size", "2"),
            ("scheduler", "sglang"),
        ] {
            assert_eq!(layer.settings[flag].values, [value], "{flag}");
        }
        let timing = r#"{"engine": {"timing_model": {"type": "external", "provider": "ais",
            "config": {"backend": "vllm", "model": "m", "tp": 4}}}}"#;
        let layer = read_mocker_engine_args(timing).unwrap();
        assert_eq!(layer.settings["gpu"].values, ["h200_sxm"]);
        assert_eq!(layer.settings["tensor-parallel-size"].values, ["4"]);
        let error = read_mocker_engine_args(r#"{"aic_backend": "tgi"}"#).unwrap_err().to_string();
        assert!(error.contains("vllm, sglang or trtllm"), "{error}");
    }

    #[test]
    fn unsupported_mocker_arguments_are_rejected() {
        let error = |text| read_mocker_engine_args(text).unwrap_err().to_string();
        assert!(error(r#"{"engine": {"blocksize": 3}}"#).contains("blocksize"));
        assert!(error(r#"{"engine": {"backend": "trtllm"}}"#).contains("vllm or sglang"));
        assert!(error("{").contains("not a JSON object"));
    }
}
