//! Sampling parameters of SGLang.
//!
//! All routes build the same JSON object of `sampling_params`. SGLang checks its form by a schema
//! whose errors read like those of serde, so serde reads it here.
//!
//! Source: SGLang 0.5.23 `api/v1/api_types.py`, `decode_SamplingParams`;
//! `srt/sampling/sampling_params.py`, `SamplingParams.verify`.

use std::fmt;

use indexmap::IndexMap;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use vllm_sim_python as python;

use super::generate_types::check_sampling_param_types;
use crate::fault::{ErrorType, Fault};
use crate::lax::parse_python_int;
use crate::openai::sampling_fields::{StopStrings, TokenLogitBias};
use crate::openai::shared_request_fields::StructuredOutputs;
use crate::sampling::SamplingParams;
use crate::schema::RequestField;

/// The temperature below which sampling is greedy.
const SAMPLING_EPS: f64 = 1e-6;

/// Maximum number of stop strings of a request.
const MAX_STOP_COUNT: usize = 32;

/// Maximum length of a stop expression (`stop_regex`), in bytes.
const MAX_STOP_REGEX_BYTES: usize = 256;

/// Default maximum number of output tokens (`max_new_tokens`).
const DEFAULT_MAX_NEW_TOKENS: i64 = 128;

/// Builds the sampling parameters of an OpenAI request as the native route takes them.
macro_rules! native_sampling_params {
    ($request:expr, $max_new_tokens:expr, $json_schema:expr) => {
        serde_json::json!({
            "temperature": $request.temperature,
            "max_new_tokens": $max_new_tokens,
            "min_new_tokens": $request.min_tokens,
            "stop": $request.stop,
            "stop_token_ids": $request.stop_token_ids,
            "stop_regex": $request.stop_regex,
            "top_p": $request.top_p,
            "top_k": $request.top_k,
            "min_p": $request.min_p,
            "presence_penalty": $request.presence_penalty,
            "frequency_penalty": $request.frequency_penalty,
            "repetition_penalty": $request.repetition_penalty,
            "regex": $request.regex,
            "json_schema": $json_schema,
            "ebnf": $request.ebnf,
            "n": $request.n,
            "no_stop_trim": $request.no_stop_trim,
            "ignore_eos": $request.ignore_eos,
            "skip_special_tokens": $request.skip_special_tokens,
            "logit_bias": $request.logit_bias,
            "sampling_seed": $request.seed,
        })
    };
}
pub(super) use native_sampling_params;

/// Value of a request field: one string or a list of strings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Strings(Vec<String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(StringsVisitor)
    }
}

struct StringsVisitor;

impl<'de> Visitor<'de> for StringsVisitor {
    type Value = Strings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or an array of values for StringOrList")
    }

    fn visit_str<E>(self, text: &str) -> Result<Strings, E> {
        Ok(Strings(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strings, A::Error> {
        let mut strings = Vec::new();
        while let Some(text) = items.next_element()? {
            strings.push(text);
        }
        Ok(Strings(strings))
    }
}

/// The sampling parameters of a request to SGLang. Null means the default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SglangSamplingParams {
    #[serde(default = "default_max_new_tokens")]
    max_new_tokens: Option<i64>,
    stop: Option<Strings>,
    stop_token_ids: Option<Vec<Option<i64>>>,
    stop_regex: Option<Strings>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    min_new_tokens: Option<i64>,
    n: Option<i64>,
    json_schema: Option<String>,
    regex: Option<String>,
    ebnf: Option<String>,
    structural_tag: Option<String>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    spaces_between_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    stream_interval: Option<i64>,
    logit_bias: Option<IndexMap<String, f64>>,
    sampling_seed: Option<i64>,
    custom_params: Option<Value>,
    beam_width: Option<i64>,
    watermark: Option<Value>,
    choice: Option<Vec<String>>,
}

#[expect(clippy::unnecessary_wraps, reason = "serde needs the type of the field")]
fn default_max_new_tokens() -> Option<i64> {
    Some(DEFAULT_MAX_NEW_TOKENS)
}

impl SglangSamplingParams {
    /// Reads and checks a JSON object of sampling parameters; null means an empty one.
    ///
    /// # Errors
    /// SGLang's 400 for an unknown member, a wrong type or a value out of range, and one of ours
    /// for a parameter that is not simulated.
    pub fn parse_sampling_params(value: &Value, vocabulary: u32) -> Result<Self, Fault> {
        let sampling = Self::read(value)?;
        if sampling.output_count() < 1 {
            let text = match sampling.output_count() {
                0 => "range() arg 3 must not be zero".to_owned(),
                outputs => format!("n must be at least 1, got {outputs}."),
            };
            return Err(Fault::new(400, ErrorType::BadRequestName, text));
        }
        sampling.verified(value, vocabulary)
    }

    /// Reads and checks a JSON object of sampling parameters, with its number of outputs replaced
    /// by `outputs`.
    ///
    /// # Errors
    /// The errors of [`Self::parse_sampling_params`].
    pub fn parse_sampling_with_output_count(
        value: &Value,
        vocabulary: u32,
        outputs: i64,
    ) -> Result<Self, Fault> {
        let sampling = Self::read(value)?;
        Self { n: Some(outputs), ..sampling }.verified(value, vocabulary)
    }

    /// Reads a JSON object of sampling parameters, without checks of their values.
    fn read(value: &Value) -> Result<Self, Fault> {
        let empty = Map::new();
        let map = match value {
            Value::Null => &empty,
            Value::Object(map) => map,
            other => {
                let shown = python::python_repr(other);
                let text = format!("sampling_params must be a map, got {shown}");
                return Err(Fault::bad_request(text));
            }
        };
        let fail = |text: String| Fault::new(400, ErrorType::Bare, text);
        check_sampling_param_types(map).map_err(fail)?;
        Self::deserialize(map).map_err(|error| fail(error.to_string()))
    }

    fn verified(mut self, raw: &Value, vocabulary: u32) -> Result<Self, Fault> {
        self.check_simulated()?;
        self.verify(raw, vocabulary)?;
        // No output contains a token outside the vocabulary.
        let is_known = |id: &Option<i64>| id.is_some_and(|id| (0..vocabulary.into()).contains(&id));
        self.stop_token_ids.iter_mut().for_each(|ids| ids.retain(is_known));
        Ok(self)
    }

    /// Rejects sampling parameters that are not simulated because they need a real model.
    fn check_simulated(&self) -> Result<(), Fault> {
        let is_false = |value: &Value| value.get("enabled") == Some(&Value::Bool(false));
        let is_given = |value: &Value| {
            value.get("enabled").is_some_and(|enabled| !enabled.is_null())
                || value.get("key").is_some_and(|key| !key.is_null())
        };
        // Source: SGLang 0.5.23 `srt/sampling/watermarking/core.py`.
        if self.watermark.as_ref().is_some_and(|value| !is_given(value)) {
            return Err(Fault::bad_request("request watermark must set enabled or key"));
        }
        if let Some(width) = self.beam_width.filter(|width| *width < 1) {
            let text = format!("beam_width must be at least 1, got {width}.");
            return Err(Fault::bad_request(text));
        }
        // SGLang's class of sampling parameters lacks this member of its interface.
        if self.choice.is_some() {
            return Err(super::unhandled_exception_fault());
        }
        let refused = [
            ("beam_width", self.beam_width.is_some_and(|width| width != 1)),
            ("watermark", self.watermark.as_ref().is_some_and(|value| !is_false(value))),
        ];
        match refused.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => Err(Fault::bad_request(format!("{name} is not simulated"))),
        }
    }

    /// Checks the values of the sampling parameters, in SGLang's order and words.
    fn verify(&self, raw: &Value, vocabulary: u32) -> Result<(), Fault> {
        let shown = |name: &str| python::python_repr(raw.get(name).unwrap_or(&Value::Null));
        let fail = |text: String| Err(Fault::bad_request(text));
        let stops = self.stop.as_ref().map_or(0, |stop| stop.0.len());
        if stops > MAX_STOP_COUNT {
            return fail(format!("at most {MAX_STOP_COUNT} stop strings are allowed, got {stops}"));
        }
        self.verify_stop_regex()?;
        let within = |value: Option<f64>, least: f64, most: f64| {
            value.is_none_or(|value| (least..=most).contains(&value))
        };
        if !self.temperature.is_none_or(|value| value.is_finite() && value >= 0.0) {
            let got = shown("temperature");
            return fail(format!("temperature must be a non-negative finite number, got {got}."));
        }
        if !self.top_p.is_none_or(|value| value > 0.0 && value <= 1.0) {
            return fail(format!("top_p must be in (0, 1], got {}.", shown("top_p")));
        }
        if !within(self.min_p, 0.0, 1.0) {
            return fail(format!("min_p must be in [0, 1], got {}.", shown("min_p")));
        }
        if !self.top_k.is_none_or(|value| value == -1 || value >= 1) {
            let got = shown("top_k");
            return fail(format!("top_k must be -1 (disable) or at least 1, got {got}."));
        }
        for (name, value) in [
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ] {
            if !within(value, -2.0, 2.0) {
                return fail(format!("{name} must be in [-2, 2], got {}.", shown(name)));
            }
        }
        if !self.repetition_penalty.is_none_or(|value| value > 0.0 && value <= 2.0) {
            return fail(format!(
                "repetition_penalty must be in (0, 2] (1.0 = no penalty), got {}.",
                shown("repetition_penalty")
            ));
        }
        self.verify_lengths()?;
        self.verify_logit_bias(vocabulary)?;
        if self.grammars().count() > 1 {
            return fail(
                "Only one of json_schema, regex, ebnf, or structural_tag can be set.".to_owned(),
            );
        }
        Ok(())
    }

    /// Checks the number and the lengths of the stop expressions.
    ///
    /// Source: SGLang 0.5.23 `srt/sampling/sampling_params.py`, `normalize`.
    fn verify_stop_regex(&self) -> Result<(), Fault> {
        let patterns = self.stop_regex.as_ref().map_or(&[][..], |stop| &stop.0);
        let long = patterns.iter().map(String::len).find(|length| *length > MAX_STOP_REGEX_BYTES);
        let text = match (patterns.len(), long) {
            (given, _) if given > MAX_STOP_COUNT => {
                format!("at most {MAX_STOP_COUNT} stop_regex patterns are allowed, got {given}")
            }
            (_, Some(length)) => {
                format!("stop_regex is {length} bytes, over the {MAX_STOP_REGEX_BYTES}-byte limit")
            }
            _ => return Ok(()),
        };
        Err(Fault::bad_request(text))
    }

    /// Returns the regular expressions that end an output; the empty one stands for an empty stop
    /// string, which every output contains.
    pub fn stop_patterns(&self) -> Vec<String> {
        let empty = self.stop.iter().flat_map(|stop| &stop.0).filter(|stop| stop.is_empty());
        empty.chain(self.stop_regex.iter().flat_map(|stop| &stop.0)).cloned().collect()
    }

    fn verify_lengths(&self) -> Result<(), Fault> {
        let least = self.min_new_tokens.unwrap_or(0);
        let text = match self.max_new_tokens {
            _ if least < 0 => {
                format!("min_new_tokens must be in [0, max_new_tokens], got {least}.")
            }
            Some(most) if most < 0 => format!("max_new_tokens must be at least 0, got {most}."),
            Some(most) if least > most => {
                format!("min_new_tokens must be in [0, max_new_tokens({most})], got {least}.")
            }
            _ => return Ok(()),
        };
        Err(Fault::bad_request(text))
    }

    fn verify_logit_bias(&self, vocabulary: u32) -> Result<(), Fault> {
        for token in self.logit_bias.iter().flat_map(IndexMap::keys) {
            let Some(id) = parse_python_int(token) else {
                let shown = python::python_repr_of_str(token);
                return Err(Fault::bad_request(format!(
                    "invalid literal for int() with base 10: {shown}"
                )));
            };
            if id.as_u64().is_none_or(|id| id >= vocabulary.into()) {
                return Err(Fault::bad_request(format!(
                    "logit_bias must has keys in [0, {}], got {token}.",
                    vocabulary.saturating_sub(1)
                )));
            }
        }
        Ok(())
    }

    /// Returns the number of outputs per prompt.
    pub fn output_count(&self) -> i64 {
        self.n.unwrap_or(1)
    }

    /// Returns the limit of output tokens; `None`: the rest of the context.
    pub fn max_new_tokens(&self) -> Option<i64> {
        self.max_new_tokens
    }

    /// Returns the number of tokens per event of a stream, if the request sets it.
    pub fn stream_interval(&self) -> Option<i128> {
        self.stream_interval.map(i128::from)
    }

    /// Returns SGLang's kind and the text of each grammar of the request.
    fn grammars(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let grammars = [
            ("json", &self.json_schema),
            ("regex", &self.regex),
            ("ebnf", &self.ebnf),
            ("structural_tag", &self.structural_tag),
        ];
        let given = grammars.into_iter().filter_map(|(kind, text)| Some((kind, text.as_ref()?)));
        given.filter(|(_, text)| !text.is_empty())
    }

    fn structured_outputs(&self) -> Option<StructuredOutputs> {
        let (kind, text) = self.grammars().next()?;
        let member = if kind == "ebnf" { "grammar" } else { kind };
        StructuredOutputs::read(&json!({member: text}))
    }

    /// Returns SGLang's name of the kind of grammar that constrains the output, if any.
    pub fn output_grammar_kind(&self) -> Option<&'static str> {
        self.grammars().next().map(|(kind, _)| kind)
    }

    /// Returns whether a grammar constrains the output.
    pub fn is_structured_output(&self) -> bool {
        self.output_grammar_kind().is_some()
    }

    /// Converts the parameters to those of the engine; `logprobs` and `prompt_logprobs` are the
    /// numbers of log probabilities per output token and per prompt token.
    pub fn to_sampling_params(
        &self,
        logprobs: Option<u32>,
        prompt_logprobs: Option<u32>,
    ) -> Box<SamplingParams> {
        let temperature = self.temperature.unwrap_or(1.0);
        let is_greedy = temperature < SAMPLING_EPS;
        let ids = self.stop_token_ids.iter().flatten().flatten();
        let bias = self.logit_bias.iter().flatten();
        let token = |text: &str| Some(parse_python_int(text)?.as_u64()?.into());
        let bias = bias.filter_map(|(id, bias)| Some((token(id)?, *bias)));
        Box::new(SamplingParams {
            n: self.output_count().into(),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            temperature: if is_greedy { 0.0 } else { temperature },
            top_p: self.top_p.unwrap_or(1.0),
            top_k: self.top_k.filter(|k| *k > 0).unwrap_or(0).into(),
            min_p: self.min_p.unwrap_or(0.0),
            seed: self.sampling_seed.map(i128::from),
            stop: self.stop.clone().map(|stop| StopStrings(stop.0)),
            stop_token_ids: Some(ids.map(|id| i128::from(*id)).collect()),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            min_tokens: self.min_new_tokens.unwrap_or(0).into(),
            logprobs: logprobs.map(i128::from),
            prompt_logprobs: prompt_logprobs.map(i128::from),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            spaces_between_special_tokens: self.spaces_between_special_tokens.unwrap_or(true),
            include_stop_str_in_output: self.no_stop_trim.unwrap_or(false),
            structured_outputs: self.structured_outputs(),
            logit_bias: self.logit_bias.as_ref().map(|_| TokenLogitBias(bias.collect())),
            ..SamplingParams::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(value: &Value) -> String {
        SglangSamplingParams::parse_sampling_params(value, 100).unwrap_err().message
    }

    #[test]
    fn values_out_of_range_are_refused_in_the_words_of_sglang() {
        for (value, text) in [
            (
                json!({"temperature": -1}),
                "temperature must be a non-negative finite number, got -1.",
            ),
            (json!({"top_p": 1.5}), "top_p must be in (0, 1], got 1.5."),
            (json!({"top_k": 0}), "top_k must be -1 (disable) or at least 1, got 0."),
            (
                json!({"max_new_tokens": 2, "min_new_tokens": 3}),
                "min_new_tokens must be in [0, max_new_tokens(2)], got 3.",
            ),
            (json!({"logit_bias": {"100": 1}}), "logit_bias must has keys in [0, 99], got 100."),
            (
                json!({"regex": "a", "json_schema": "{}"}),
                "Only one of json_schema, regex, ebnf, or structural_tag can be set.",
            ),
            (
                json!({"stop": 3}),
                "invalid type: integer `3`, expected a value or an array of values for StringOrList",
            ),
            (json!({"ignore_eos": "x"}), "invalid type: string \"x\", expected a boolean"),
            (
                json!({"stop_regex": vec!["a"; 33]}),
                "at most 32 stop_regex patterns are allowed, got 33",
            ),
            (
                json!({"stop_regex": "a".repeat(257)}),
                "stop_regex is 257 bytes, over the 256-byte limit",
            ),
            (json!({"watermark": {}}), "request watermark must set enabled or key"),
            (json!({"watermark": {"key": "k"}}), "watermark is not simulated"),
            (json!({"beam_width": 0}), "beam_width must be at least 1, got 0."),
            (json!({"logit_bias": {"x": 1}}), "invalid literal for int() with base 10: 'x'"),
            (json!({"n": 1e30}), "invalid type: floating point `1e+30`, expected i64"),
            (json!({"stop_token_ids": [null]}), "invalid type: null, expected i64"),
        ] {
            assert_eq!(refused(&value), text, "{value}");
        }
        let unknown = refused(&json!({"max_tokens": 3}));
        assert!(
            unknown.starts_with(
                "unknown field `max_tokens`, expected one of `max_new_tokens`, `stop`"
            ),
            "{unknown}"
        );
    }

    #[test]
    fn null_means_the_default() {
        let sampling =
            SglangSamplingParams::parse_sampling_params(&json!({"temperature": null}), 100)
                .unwrap();
        assert_eq!(sampling.max_new_tokens(), Some(128));
        assert_eq!(sampling.to_sampling_params(None, None).temperature, 1.0);
        let unlimited =
            SglangSamplingParams::parse_sampling_params(&json!({"max_new_tokens": null}), 100)
                .unwrap();
        assert_eq!(unlimited.max_new_tokens(), None);
    }
}
