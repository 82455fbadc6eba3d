use std::path::Path;

use serde_json::{Map, Value};

use super::choices::SchedulerKind;
use super::error::ConfigError;
use super::flag::FlagSpec;
use super::flags::{engine, kv};
use super::model::{Model, read_json};
use super::speculative_keys;
use super::values::Values;
use vllm_sim_engine::latency::{self, ModelShape};

/// Most draft tokens of a step.
const MOST_DRAFTS: u64 = 64;
/// What `suffix` drafts unless it is told otherwise, vLLM's `suffix_decoding_max_tree_depth`.
const SUFFIX_DRAFTS: u64 = 24;
/// Tokens that `ngram` compares unless it is told otherwise.
const LOOKUP: u64 = 5;

/// Draft tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculative {
    /// vLLM's `method` (default ngram).
    pub method: String,
    /// Draft tokens per step; at least 1.
    pub num_tokens: u32,
    /// Chance that draft i is accepted when all before were; one per draft.
    pub acceptance: Vec<f64>,
    /// Whether a hit in the prefix cache gives up its last block.
    pub drops_last_block: bool,
    /// Tokens after a block that its name covers too, in place of that.
    pub lookahead: u32,
    /// Fewest and most tokens that are looked up in the text for drafts; `None`: drafts come by
    /// chance.
    pub prompt_lookup: Option<(u32, u32)>,
    /// Whether it is vLLM's, and not a number of drafts as Dynamo's mocker knows them.
    pub is_named: bool,
    /// The shape of the draft model, where it is known.
    pub draft: Option<ModelShape>,
    /// Whether all drafts come from one pass.
    pub parallel: bool,
    /// GPUs that share the draft model; `None`: as many as share the target.
    pub tensor: Option<u32>,
    /// Why steps are not scheduled ahead with it.
    pub synchronous: Option<String>,
    /// The whole object as typed.
    pub raw: Value,
}

/// The object of `--speculative-config`.
struct Keys(Map<String, Value>);

impl Speculative {
    /// `--speculative-config` with what the `--spec-*` flags add.
    pub(super) fn from_values(
        v: &Values,
        model: &Model,
        scheduler: SchedulerKind,
    ) -> Result<Option<Self>, ConfigError> {
        let keys = Keys::read(v)?;
        v.get(&engine::SPEC_TOKENS)?;
        if keys.0.is_empty() {
            return Ok(None);
        }
        speculative_keys::check(v, &keys.0)?;
        if scheduler != SchedulerKind::Vllm {
            v.warn(
                "--speculative-config has no effect but counters that stay 0: drafts need \
                 --scheduler vllm",
            );
        }
        let named = keys.method();
        let named = named.map(|typed| speculative_keys::method(v, typed));
        let named = named.transpose()?;
        let named = named.as_deref();
        let draft = keys.draft_config()?;
        let num_tokens = keys.num_tokens(named, model, draft.as_ref())?;
        let synthetic = keys.synthetic(num_tokens)?;
        let (drops_last_block, looks_ahead) = keys.last_block(v, named)?;
        let is_told = synthetic.is_some() || v.given(&engine::SPEC_ACCEPTANCE_RATES);
        let looks_up = named.is_some_and(|name| name.starts_with("ngram"));
        Ok(Some(Self {
            method: named.unwrap_or("ngram").to_owned(),
            num_tokens,
            acceptance: match (synthetic, named) {
                (Some(rates), _) => conditional(&rates),
                (None, Some(name)) if !is_told => usual(name, num_tokens as usize),
                (None, _) => typed(v, num_tokens)?,
            },
            drops_last_block,
            lookahead: match looks_ahead {
                true => keys.lookahead(named, num_tokens, model, draft.as_ref()),
                false => 0,
            },
            prompt_lookup: match looks_up && !is_told {
                true => Some(keys.prompt_lookup()?),
                false => None,
            },
            is_named: named.is_some(),
            draft: keys.draft_shape(draft.as_ref()),
            parallel: keys.is_on("parallel_drafting"),
            tensor: keys.draft_ranks()?,
            synchronous: keys.synchronous(named, v.get(&engine::PIPELINE_PARALLEL_SIZE)?),
            raw: Value::Object(keys.0),
        }))
    }
}

impl Keys {
    fn read(v: &Values) -> Result<Self, ConfigError> {
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
            let Some(text) = v.text(flag) else { continue };
            if config.contains_key(key) {
                return Err(ConfigError::Invalid(format!(
                    "--{} and --speculative-config['{key}'] are mutually exclusive",
                    flag.name
                )));
            }
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
            config.insert(key.to_owned(), value);
        }
        Ok(Self(config))
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    fn is_on(&self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool) == Some(true)
    }

    /// A member that is there and not null.
    fn given(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// The method, as vLLM finds it; `None`: nothing but a number of drafts is said, as Dynamo's
    /// mocker says it.
    fn method(&self) -> Option<&str> {
        match (self.text("method"), self.text("model")) {
            (Some(method), _) => Some(method),
            (None, Some("ngram" | "[ngram]")) => Some("ngram"),
            (None, Some(_)) => Some("draft_model"),
            (None, None) => None,
        }
    }

    /// As typed; else what the method or the draft model's `config.json` says.
    fn num_tokens(
        &self,
        method: Option<&str>,
        target: &Model,
        draft: Option<&Value>,
    ) -> Result<u32, ConfigError> {
        let trained = match (method, self.text("model")) {
            (Some("suffix"), _) => Some(SUFFIX_DRAFTS),
            // Its modules lie in the target's own files, and vLLM looks there if they are named.
            (Some("mtp"), Some(named)) if named == target.name => {
                target.hf_config.as_deref().and_then(trained_drafts)
            }
            _ => draft.and_then(trained_drafts),
        };
        let Some(number) = self
            .given("num_speculative_tokens")
            .map_or(trained, |given| {
                // What is no number is refused below.
                Some(given.as_u64().unwrap_or(0))
            })
        else {
            return Err(invalid(
                "num_speculative_tokens must be provided with speculative model unless the draft \
                 model config contains an n_predict parameter."
                    .to_owned(),
            ));
        };
        let number = Some(number).filter(|n| (1..=MOST_DRAFTS).contains(n));
        number
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| invalid("num_speculative_tokens must be between 1 and 64".to_owned()))
    }

    /// The `config.json` of the draft model, if its folder is here.
    fn draft_config(&self) -> Result<Option<Value>, ConfigError> {
        let folder = self.text("model").map(Path::new);
        folder.map_or(Ok(None), |folder| read_json(&folder.join("config.json")))
    }

    fn draft_shape(&self, config: Option<&Value>) -> Option<ModelShape> {
        match config {
            Some(config) => ModelShape::from_config(config).ok(),
            None => latency::model(self.text("model")?),
        }
    }

    fn draft_ranks(&self) -> Result<Option<u32>, ConfigError> {
        let Some(typed) = self.given("draft_tensor_parallel_size") else {
            return Ok(None);
        };
        let ranks = typed.as_u64().filter(|n| (1..=65_535).contains(n));
        let ranks = ranks.and_then(|n| u32::try_from(n).ok());
        ranks.map(Some).ok_or_else(|| {
            invalid(format!(
                "draft_tensor_parallel_size is {typed}, must be at least 1"
            ))
        })
    }

    /// What keeps vLLM from scheduling steps ahead, where it takes its older model runner.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `_get_v2_model_runner_unsupported_features` and
    /// `__post_init__`.
    fn synchronous(&self, method: Option<&str>, pipeline: u32) -> Option<String> {
        let method = method?;
        let at_once = self.is_on("parallel_drafting") && !matches!(method, "dflash" | "dspark");
        let is_foreign = matches!(method, "suffix" | "custom_class");
        if !(is_foreign || at_once || self.is_on("use_heterogeneous_vocab")) {
            return None;
        }
        if is_foreign || method == "ngram" {
            Some(format!("{method}-based speculative decoding"))
        } else if self.is_on("disable_padded_drafter_batch") {
            Some("disable_padded_drafter_batch=True".to_owned())
        } else {
            (pipeline > 1).then(|| "pipeline parallelism".to_owned())
        }
    }

    /// The unconditional rates of vLLM's synthetic acceptance, if it is asked for.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/speculative.py`,
    /// `_resolve_synthetic_acceptance_rates`.
    fn synthetic(&self, drafts: u32) -> Result<Option<Vec<f64>>, ConfigError> {
        let rates = self.given("synthetic_acceptance_rates");
        let length = self.given("synthetic_acceptance_length");
        let way = self.text("rejection_sample_method").unwrap_or("standard");
        match way {
            "standard" | "block" | "fly" if rates.is_none() && length.is_none() => Ok(None),
            "standard" | "block" | "fly" => Err(invalid(
                "synthetic_acceptance_rates / synthetic_acceptance_length are only valid with \
                 rejection_sample_method='synthetic'."
                    .to_owned(),
            )),
            "synthetic" => match (rates, length) {
                (Some(rates), None) => unconditional(rates, drafts as usize).map(Some),
                (None, Some(length)) => of_length(length, drafts).map(Some),
                _ => Err(invalid(
                    "rejection_sample_method='synthetic' requires exactly one of \
                     synthetic_acceptance_rates or synthetic_acceptance_length."
                        .to_owned(),
                )),
            },
            other => Err(invalid(format!(
                "rejection_sample_method {other:?} is not one of standard, synthetic, block, fly"
            ))),
        }
    }

    /// Whether a hit gives up its last block, and whether blocks are named by what follows them
    /// instead: only draft models that read the target's hidden states and the next token need one
    /// of them.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/speculative.py`, `needs_eagle_block_drop`;
    /// `vllm/config/vllm.py`, `num_hash_lookahead_tokens`.
    fn last_block(&self, v: &Values, method: Option<&str>) -> Result<(bool, bool), ConfigError> {
        let Some(method) = method else {
            return Ok((true, false));
        };
        let eagle = matches!(method, "eagle" | "eagle3") || method.ends_with("mtp");
        let eagle = eagle && !self.is_on("disable_eagle_block_drop");
        let offloads = v.get(&kv::KV_OFFLOADING_SIZE)?.is_some_and(|gib| gib > 0.0);
        let plain = self.is_on("disable_lookahead_block_hashes")
            || offloads
            || v.get(&kv::KV_TRANSFER_CONFIG)?.is_some();
        Ok((eagle && plain, eagle && !plain))
    }

    /// Tokens behind a block that its name covers: as many as the modules of a chain read ahead.
    ///
    /// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `num_prefill_lookahead_tokens`.
    fn lookahead(
        &self,
        method: Option<&str>,
        drafts: u32,
        target: &Model,
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

    /// `prompt_lookup_min` and `prompt_lookup_max`; one that is not said is as the other.
    fn prompt_lookup(&self) -> Result<(u32, u32), ConfigError> {
        let read = |key: &str| {
            let Some(value) = self.given(key) else {
                return Ok(None);
            };
            let number = value.as_u64().filter(|n| (1..=MOST_DRAFTS).contains(n));
            let number = number.and_then(|n| u32::try_from(n).ok());
            let words = || invalid(format!("{key} is {value}, must be between 1 and 64"));
            number.map(Some).ok_or_else(words)
        };
        let (min, max) = (read("prompt_lookup_min")?, read("prompt_lookup_max")?);
        let most = max.or(min).unwrap_or(LOOKUP as u32);
        let least = min.unwrap_or(most);
        if least > most {
            return Err(invalid(format!(
                "prompt_lookup_min={least} must be <= prompt_lookup_max={most}"
            )));
        }
        Ok((least, most))
    }
}

/// Drafts that a `config.json` says its modules were trained for.
fn trained_drafts(config: &Value) -> Option<u64> {
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

fn invalid(words: String) -> ConfigError {
    ConfigError::Invalid(format!("speculative-config: {words}"))
}

/// Rates as typed: one per draft, none greater than the one before.
fn unconditional(typed: &Value, drafts: usize) -> Result<Vec<f64>, ConfigError> {
    let rates: Option<Vec<f64>> = typed
        .as_array()
        .and_then(|list| list.iter().map(Value::as_f64).collect());
    let rates = rates.filter(|rates| rates.len() == drafts).ok_or_else(|| {
        let words = format!("synthetic_acceptance_rates must have length {drafts}, got {typed}.");
        invalid(words)
    })?;
    if rates.iter().any(|rate| !(0.0..=1.0).contains(rate)) {
        let words = format!("synthetic_acceptance_rates entries must be in [0, 1], got {typed}.");
        return Err(invalid(words));
    }
    if rates.windows(2).any(|pair| pair[1] > pair[0]) {
        let words = format!("synthetic_acceptance_rates must be non-increasing, got {typed}.");
        return Err(invalid(words));
    }
    Ok(rates)
}

/// The rates of least variance with this mean number of tokens a step.
fn of_length(typed: &Value, drafts: u32) -> Result<Vec<f64>, ConfigError> {
    let most = f64::from(drafts) + 1.0;
    let length = typed.as_f64().filter(|n| (1.0..=most).contains(n));
    let length = length.ok_or_else(|| {
        invalid(format!(
            "synthetic_acceptance_length must be in [1, {most}], got {typed}."
        ))
    })?;
    let rate = |draft: u32| (length - 1.0 - f64::from(draft)).clamp(0.0, 1.0);
    Ok((0..drafts).map(rate).collect())
}

/// Chances given that all drafts before were accepted.
fn conditional(rates: &[f64]) -> Vec<f64> {
    let before = std::iter::once(&1.0).chain(rates);
    let pairs = rates.iter().zip(before);
    let chance = |(rate, before): (&f64, &f64)| if *before > 0.0 { rate / before } else { 0.0 };
    pairs.map(chance).collect()
}

/// Chances that are usual for a method, from published acceptance rates of chats.
///
/// **Source:** vLLM `tests/v1/spec_decode/test_acceptance_length.py` (eagle3) and pull request 48892
/// (mtp); SemiAnalysis InferenceX `golden_al_distribution` (dspark); the rest is set beside these.
fn usual(method: &str, drafts: usize) -> Vec<f64> {
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
        // Only where no text is at hand: a fifth of the steps has drafts, and six in ten of them
        // begin right.
        "ngram" | "ngram_gpu" | "suffix" => listed(&[0.12, 0.85], 0.9),
        name if name.ends_with("mtp") => listed(&[0.83, 0.62], 0.55),
        _ => falling(0.72, 1.0),
    }
}

/// What `--spec-acceptance-rates` says, one chance per draft: missing ones are 0.
fn typed(v: &Values, drafts: u32) -> Result<Vec<f64>, ConfigError> {
    let flag = &engine::SPEC_ACCEPTANCE_RATES;
    let mut rates = Vec::new();
    for text in v.comma_list(flag)? {
        let rate = text
            .parse::<f64>()
            .ok()
            .filter(|rate| (0.0..=1.0).contains(rate));
        rates.push(rate.ok_or_else(|| v.bad(flag, &text, "a number between 0 and 1"))?);
    }
    rates.resize(drafts as usize, 0.0);
    Ok(rates)
}
