use std::path::Path;

use serde_json::{Map, Value};

use super::choices::SchedulerKind;
use super::error::{ConfigError, bail, invalid};
use super::flag::FlagSpec;
use super::flags::{engine, kv};
use super::model::{ModelConfig, read_json_object_file};
use super::speculative_keys;
use super::values::FlagValues;
use vllm_sim_engine::latency::{self, ModelShape};
use vllm_sim_wire::VllmVersion;

const MAX_DRAFTS: u64 = 64;
/// Default number of draft tokens for the method `suffix`, vLLM's `suffix_decoding_max_tree_depth`.
const SUFFIX_DEFAULT_DRAFT_TOKENS: u64 = 24;
const NGRAM_DEFAULT_LOOKUP_TOKENS: u64 = 5;

/// Settings of speculative decoding.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculativeConfig {
    /// Speculative decoding method, vLLM's `method` (default ngram).
    pub method: String,
    /// Number of draft tokens per step, at least 1.
    pub num_tokens: u32,
    /// Acceptance rate of each draft token, given that all before it were accepted (0 to 1).
    pub acceptance: Vec<f64>,
    /// Whether a prefix-cache hit is shortened by its last block, as in vLLM with EAGLE drafters.
    pub drops_last_block: bool,
    /// Number of tokens after a KV block that the block's hash covers too, so that a prefix-cache
    /// hit need not be shortened by its last block.
    pub lookahead: u32,
    /// Minimum and maximum length of the n-gram to look up in the prompt, in tokens; `None`: drafts
    /// are accepted at random.
    pub prompt_lookup: Option<(u32, u32)>,
    /// Whether `--speculative-config` names a method; false if only a number of draft tokens is
    /// set, as in Dynamo's mocker.
    pub is_named: bool,
    /// Layer sizes and weights of the draft model, if known.
    pub draft: Option<ModelShape>,
    /// Whether one forward pass of the draft model proposes all draft tokens.
    pub parallel: bool,
    /// Tensor-parallel size of the draft model; `None`: that of the target model.
    pub tensor: Option<u32>,
    /// Reason why asynchronous scheduling is disabled, as text; `None`: it stays enabled.
    pub synchronous: Option<String>,
    /// JSON object of `--speculative-config`, as typed.
    pub raw: Value,
}

impl SpeculativeConfig {
    /// Returns the number of KV slots that the drafter writes after the tokens of a step.
    ///
    /// **Source:** `num_lookahead_tokens`, vLLM 0.33 `vllm/config/vllm.py`.
    pub fn lookahead_kv_slots(&self) -> u32 {
        match self.method.as_str() {
            "dflash" => self.num_tokens.saturating_add(1),
            "eagle" | "eagle3" | "mtp" | "dspark" | "draft_model" => self.num_tokens,
            _ => 0,
        }
    }

    /// Returns the number of tokens by which drafting for one sequence reduces the token budget of
    /// a step.
    ///
    /// **Source:** `max_num_new_slots_for_drafting`, vLLM 0.33 `vllm/config/speculative.py`.
    pub fn max_new_slots_for_drafting(&self) -> u32 {
        match (self.method.as_str(), self.parallel) {
            ("dflash" | "dspark", _) => 0,
            ("draft_model", true) => self.num_tokens,
            ("draft_model", false) => 1,
            (_, true) => self.num_tokens.saturating_sub(1),
            (_, false) => 0,
        }
    }
}

struct SpeculativeConfigKeys(Map<String, Value>);

impl SpeculativeConfig {
    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
        scheduler: SchedulerKind,
    ) -> Result<Option<Self>, ConfigError> {
        let keys = SpeculativeConfigKeys::read_speculative_config(v)?;
        v.get(&engine::SPEC_TOKENS)?;
        if keys.0.is_empty() {
            return Ok(None);
        }
        speculative_keys::check_speculative_keys(v, &keys.0)?;
        if scheduler != SchedulerKind::Vllm {
            v.add_no_effect_warning(
                "--speculative-config has no effect except for counters that stay 0: drafts need \
                 --scheduler vllm"
                    .to_owned(),
            );
        }
        let named = keys.method_name();
        let named = named.map(|typed| speculative_keys::current_speculative_method_name(v, typed));
        let named = named.transpose()?;
        let named = named.as_deref();
        let draft = keys.draft_model_hf_config()?;
        let num_tokens = keys.num_tokens(named, model, draft.as_ref())?;
        let synthetic = keys.synthetic_acceptance_rates(num_tokens)?;
        let (drops_last_block, looks_ahead) = keys.prefix_cache_last_block_rules(v, named)?;
        let is_told = synthetic.is_some() || v.is_flag_set(&engine::SPEC_ACCEPTANCE_RATES);
        let looks_up = named.is_some_and(|name| name.starts_with("ngram"));
        Ok(Some(Self {
            method: named.unwrap_or("ngram").to_owned(),
            num_tokens,
            acceptance: match (synthetic, named) {
                (Some(rates), _) => to_conditional_rates(&rates),
                (None, Some(name)) if !is_told => {
                    typical_acceptance_rates(name, num_tokens as usize)
                }
                (None, _) => read_acceptance_rates_flag(v, num_tokens)?,
            },
            drops_last_block,
            lookahead: match looks_ahead {
                true => keys.hash_lookahead_tokens(named, num_tokens, model, draft.as_ref()),
                false => 0,
            },
            prompt_lookup: match looks_up && !is_told {
                true => Some(keys.prompt_lookup_lengths()?),
                false => None,
            },
            is_named: named.is_some(),
            draft: keys.draft_shape(draft.as_ref()),
            parallel: keys.is_true("parallel_drafting"),
            tensor: keys.draft_tensor_parallel_size()?,
            synchronous: keys
                .async_scheduling_conflict(named, v.get(&engine::PIPELINE_PARALLEL_SIZE)?),
            raw: Value::Object(keys.0),
        }))
    }
}

impl SpeculativeConfigKeys {
    fn read_speculative_config(v: &FlagValues) -> Result<Self, ConfigError> {
        let mut config: Map<String, Value> = v
            .get(&engine::SPECULATIVE_CONFIG)?
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key.replace('-', "_"), value))
            .collect();
        let flags: [(&FlagSpec, &str); 3] = [
            (&engine::SPEC_METHOD, "method"),
            (&engine::SPEC_MODEL, "model"),
            (&engine::SPEC_TOKENS, "num_speculative_tokens"),
        ];
        for (flag, key) in flags {
            let Some(text) = v.get_text(flag) else {
                continue;
            };
            if config.contains_key(key) {
                bail!("--{} and --speculative-config['{key}'] are mutually exclusive", flag.name);
            }
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            config.insert(key.to_owned(), value);
        }
        Ok(Self(config))
    }

    fn get_text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    fn is_true(&self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool) == Some(true)
    }

    fn get_non_null(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Returns the speculative decoding method; `None` if only a number of draft tokens is set, as
    /// in Dynamo's mocker.
    fn method_name(&self) -> Option<&str> {
        match (self.get_text("method"), self.get_text("model")) {
            (Some(method), _) => Some(method),
            (None, Some("ngram" | "[ngram]")) => Some("ngram"),
            (None, Some(_)) => Some("draft_model"),
            (None, None) => None,
        }
    }

    /// Returns the number of draft tokens per step: the configured number, or the default of the
    /// method or of the draft model's `config.json`.
    fn num_tokens(
        &self,
        method: Option<&str>,
        target: &ModelConfig,
        draft: Option<&Value>,
    ) -> Result<u32, ConfigError> {
        let trained = match (method, self.get_text("model")) {
            (Some("suffix"), _) => Some(SUFFIX_DEFAULT_DRAFT_TOKENS),
            // The MTP modules are part of the target's files, which vLLM reads in this case.
            (Some("mtp"), Some(named)) if named == target.name => {
                target.hf_config.as_deref().and_then(trained_mtp_draft_tokens)
            }
            _ => draft.and_then(trained_mtp_draft_tokens),
        };
        let Some(number) = self.get_non_null("num_speculative_tokens").map_or(trained, |given| {
            // A value that is not a number is rejected below.
            Some(given.as_u64().unwrap_or(0))
        }) else {
            bail!(
                "speculative-config: num_speculative_tokens must be provided with speculative \
                 model unless the draft model config contains an n_predict parameter."
            );
        };
        number_up_to(number, MAX_DRAFTS).ok_or_else(|| {
            invalid!("speculative-config: num_speculative_tokens must be between 1 and 64")
        })
    }

    fn draft_model_hf_config(&self) -> Result<Option<Value>, ConfigError> {
        let folder = self.get_text("model").map(Path::new);
        folder.map_or(Ok(None), |folder| read_json_object_file(&folder.join("config.json")))
    }

    fn draft_shape(&self, config: Option<&Value>) -> Option<ModelShape> {
        match config {
            Some(config) => ModelShape::from_hf_config(config).ok(),
            None => latency::known_model_shape(self.get_text("model")?),
        }
    }

    fn draft_tensor_parallel_size(&self) -> Result<Option<u32>, ConfigError> {
        let Some(typed) = self.get_non_null("draft_tensor_parallel_size") else {
            return Ok(None);
        };
        let ranks = typed.as_u64().and_then(|n| number_up_to(n, 65_535));
        ranks.map(Some).ok_or_else(|| {
            invalid!(
                "speculative-config: draft_tensor_parallel_size is {typed}, must be at least 1"
            )
        })
    }

    /// Returns the reason why vLLM's older model runner disables asynchronous scheduling for this
    /// speculative method; `None` if it does not.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `_get_v2_model_runner_unsupported_features` and
    /// `__post_init__`.
    fn async_scheduling_conflict(&self, method: Option<&str>, pipeline: u32) -> Option<String> {
        let method = method?;
        let at_once = self.is_true("parallel_drafting") && !matches!(method, "dflash" | "dspark");
        let is_foreign = matches!(method, "suffix" | "custom_class");
        if !(is_foreign || at_once || self.is_true("use_heterogeneous_vocab")) {
            return None;
        }
        if is_foreign || method == "ngram" {
            Some(format!("{method}-based speculative decoding"))
        } else if self.is_true("disable_padded_drafter_batch") {
            Some("disable_padded_drafter_batch=True".to_owned())
        } else {
            (pipeline > 1).then(|| "pipeline parallelism".to_owned())
        }
    }

    /// Returns the unconditional acceptance rates of vLLM's synthetic rejection sampler, if
    /// configured.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/speculative.py`,
    /// `_resolve_synthetic_acceptance_rates`.
    fn synthetic_acceptance_rates(&self, drafts: u32) -> Result<Option<Vec<f64>>, ConfigError> {
        let rates = self.get_non_null("synthetic_acceptance_rates");
        let length = self.get_non_null("synthetic_acceptance_length");
        let way = self.get_text("rejection_sample_method").unwrap_or("standard");
        match way {
            "standard" | "block" | "fly" if rates.is_none() && length.is_none() => Ok(None),
            "standard" | "block" | "fly" => Err(invalid!(
                "speculative-config: synthetic_acceptance_rates / synthetic_acceptance_length are \
                 only valid with rejection_sample_method='synthetic'."
            )),
            "synthetic" => match (rates, length) {
                (Some(rates), None) => parse_acceptance_rates(rates, drafts as usize).map(Some),
                (None, Some(length)) => rates_of_acceptance_length(length, drafts).map(Some),
                _ => Err(invalid!(
                    "speculative-config: rejection_sample_method='synthetic' requires exactly one \
                     of synthetic_acceptance_rates or synthetic_acceptance_length."
                )),
            },
            other => Err(invalid!(
                "speculative-config: rejection_sample_method {other:?} is not one of standard, \
                 synthetic, block, fly"
            )),
        }
    }

    /// Returns whether a prefix-cache hit is shortened by its last block, and whether KV block
    /// hashes cover following tokens instead. Only draft models that read the target's hidden
    /// states and the next token need either.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/speculative.py`, `needs_eagle_block_drop`;
    /// `vllm/config/vllm.py`, `num_hash_lookahead_tokens`.
    fn prefix_cache_last_block_rules(
        &self,
        v: &FlagValues,
        method: Option<&str>,
    ) -> Result<(bool, bool), ConfigError> {
        let Some(method) = method else {
            return Ok((true, false));
        };
        let eagle = matches!(method, "eagle" | "eagle3") || method.ends_with("mtp");
        let eagle = eagle && !self.is_true("disable_eagle_block_drop");
        let offloads = v.get(&kv::KV_OFFLOADING_SIZE)?.is_some_and(|gib| gib > 0.0);
        let plain = v.vllm_version()? < VllmVersion::V033
            || self.is_true("disable_lookahead_block_hashes")
            || offloads
            || v.get(&kv::KV_TRANSFER_CONFIG)?.is_some();
        Ok((eagle && plain, eagle && !plain))
    }

    /// Returns the number of tokens after a KV block that the block's hash covers too: the tokens
    /// that a chain of MTP modules reads ahead.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `num_prefill_lookahead_tokens`.
    fn hash_lookahead_tokens(
        &self,
        method: Option<&str>,
        drafts: u32,
        target: &ModelConfig,
        draft: Option<&Value>,
    ) -> u32 {
        let chains = method.is_some_and(|name| name.ends_with("mtp"));
        let own = draft.or(target.hf_config.as_deref()).filter(|_| chains);
        let modules = own.and_then(|config| config.get("num_nextn_predict_layers")?.as_u64());
        match modules.unwrap_or(1).min(drafts.into()) > 1 {
            true => drafts,
            false => 1,
        }
    }

    /// Reads the n-gram lengths `prompt_lookup_min` and `prompt_lookup_max`; if one of them is
    /// missing, it equals the other.
    fn prompt_lookup_lengths(&self) -> Result<(u32, u32), ConfigError> {
        let read = |key: &str| {
            let Some(value) = self.get_non_null(key) else {
                return Ok(None);
            };
            let number = value.as_u64().and_then(|n| number_up_to(n, MAX_DRAFTS));
            let words =
                || invalid!("speculative-config: {key} is {value}, must be between 1 and 64");
            number.map(Some).ok_or_else(words)
        };
        let (min, max) = (read("prompt_lookup_min")?, read("prompt_lookup_max")?);
        let most = max.or(min).unwrap_or(NGRAM_DEFAULT_LOOKUP_TOKENS as u32);
        let least = min.unwrap_or(most);
        if least > most {
            bail!(
                "speculative-config: prompt_lookup_min={least} must be <= prompt_lookup_max={most}"
            );
        }
        Ok((least, most))
    }
}

/// Returns `number` if it is from 1 to `most`.
fn number_up_to(number: u64, most: u64) -> Option<u32> {
    (1..=most).contains(&number).then(|| u32::try_from(number).ok()).flatten()
}

/// Returns the number of draft tokens for which the MTP modules were trained, from `config.json`.
fn trained_mtp_draft_tokens(config: &Value) -> Option<u64> {
    let parts = [Some(config), config.get("text_config")];
    let keys = [
        "n_predict",
        "num_nextn_predict_layers",
        "mtp_num_hidden_layers",
        "num_mtp_modules",
        "num_mtp_layers",
        "block_size",
        "dspark_block_size",
    ];
    let mut parts = parts.into_iter().flatten();
    parts.find_map(|part| keys.iter().find_map(|key| part.get(*key)?.as_u64()))
}

fn parse_acceptance_rates(typed: &Value, drafts: usize) -> Result<Vec<f64>, ConfigError> {
    let rates: Option<Vec<f64>> =
        typed.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
    let rates = rates.filter(|rates| rates.len() == drafts).ok_or_else(|| {
        invalid!(
            "speculative-config: synthetic_acceptance_rates must have length {drafts}, got {typed}."
        )
    })?;
    if rates.iter().any(|rate| !(0.0..=1.0).contains(rate)) {
        bail!(
            "speculative-config: synthetic_acceptance_rates entries must be in [0, 1], got {typed}."
        );
    }
    if rates.windows(2).any(|pair| pair[1] > pair[0]) {
        bail!(
            "speculative-config: synthetic_acceptance_rates must be non-increasing, got {typed}."
        );
    }
    Ok(rates)
}

/// Returns the unconditional acceptance rates of least variance with which a step produces `typed`
/// tokens on average.
fn rates_of_acceptance_length(typed: &Value, drafts: u32) -> Result<Vec<f64>, ConfigError> {
    let most = f64::from(drafts) + 1.0;
    let length = typed.as_f64().filter(|n| (1.0..=most).contains(n));
    let length = length.ok_or_else(|| {
        invalid!(
            "speculative-config: synthetic_acceptance_length must be in [1, {most}], got {typed}."
        )
    })?;
    let rate = |draft: u32| (length - 1.0 - f64::from(draft)).clamp(0.0, 1.0);
    Ok((0..drafts).map(rate).collect())
}

fn to_conditional_rates(rates: &[f64]) -> Vec<f64> {
    let before = std::iter::once(&1.0).chain(rates);
    let pairs = rates.iter().zip(before);
    let chance = |(rate, before): (&f64, &f64)| if *before > 0.0 { rate / before } else { 0.0 };
    pairs.map(chance).collect()
}

/// Returns typical conditional acceptance rates of a speculative method, from published results for
/// chats.
///
/// **Source:** vLLM `tests/v1/spec_decode/test_acceptance_length.py` (eagle3) and pull request
/// 48892 (mtp); SemiAnalysis InferenceX `golden_al_distribution` (dspark); the others are
/// estimates.
fn typical_acceptance_rates(method: &str, drafts: usize) -> Vec<f64> {
    let falling = |first: f64, factor: f64| {
        let chances = std::iter::successors(Some(first), move |chance| Some(chance * factor));
        chances.take(drafts).collect()
    };
    let listed = |first: &[f64], rest: f64| {
        let chances = first.iter().copied().chain(std::iter::repeat(rest));
        chances.take(drafts).collect()
    };
    match method {
        "eagle3" => falling(0.72, 0.97),
        "eagle" => falling(0.65, 0.93),
        "dflash" | "dspark" => falling(0.88, 0.93),
        // Used only without a text: a fifth of the steps has drafts, and six in ten of these start
        // right.
        "ngram" | "ngram_gpu" | "suffix" => listed(&[0.12, 0.85], 0.9),
        name if name.ends_with("mtp") => listed(&[0.83, 0.62], 0.55),
        _ => falling(0.72, 1.0),
    }
}

fn read_acceptance_rates_flag(v: &FlagValues, drafts: u32) -> Result<Vec<f64>, ConfigError> {
    let flag = &engine::SPEC_ACCEPTANCE_RATES;
    let mut rates = Vec::new();
    for text in v.read_comma_separated_list(flag)? {
        let rate = text.parse::<f64>().ok().filter(|rate| (0.0..=1.0).contains(rate));
        rates.push(
            rate.ok_or_else(|| v.unreadable_value_error(flag, &text, "a number between 0 and 1"))?,
        );
    }
    rates.resize(drafts as usize, 0.0);
    Ok(rates)
}
