//! Options of the original chat or completion request that affect its derendered response.

use serde_json::{Value, json};

use super::json_list::iter_array_field;
use super::parsed_text::OutputParsers;
use vllm_sim_tokenizer::SpecialTokenHandling;

#[derive(Debug, Clone)]
pub(super) struct DerenderOptions {
    /// Treatment of special tokens in the text of the derendered response.
    pub(super) special: SpecialTokenHandling,
    pub(super) include_reasoning: bool,
    pub(super) return_token_ids: bool,
    /// Stop strings of the original request; `include_stop` keeps a matched one in the output.
    pub(super) stops: Vec<String>,
    pub(super) include_stop: bool,
    pub(super) stop_ids: Vec<u32>,
    pub(super) ignore_eos: bool,
    pub(super) tools: bool,
    /// Maximum number of alternatives per token in log probabilities; `None` keeps all.
    pub(super) top: Option<usize>,
}

impl DerenderOptions {
    /// Reads the options of the original request; without one, returns vLLM's defaults.
    pub(super) fn read_derender_options(request: Option<&Value>) -> Self {
        let none = json!({});
        let request = request.unwrap_or(&none);
        let flag = |key: &str| request.get(key).and_then(Value::as_bool);
        let stops = match request.get("stop") {
            Some(Value::String(stop)) => vec![stop.clone()],
            _ => iter_array_field(request, "stop")
                .filter_map(|stop| stop.as_str().map(str::to_owned))
                .collect(),
        };
        let offered = iter_array_field(request, "tools").next().is_some();
        let chosen = request.get("tool_choice").and_then(Value::as_str);
        // `logprobs` is a boolean in chat requests and a number in completion requests.
        let top = match request.get("logprobs") {
            Some(Value::Bool(true)) => request.get("top_logprobs"),
            Some(number @ Value::Number(_)) => Some(number),
            _ => None,
        };
        Self {
            special: SpecialTokenHandling::from_bool(flag("skip_special_tokens") == Some(false)),
            include_reasoning: flag("include_reasoning") != Some(false),
            return_token_ids: flag("return_token_ids") == Some(true),
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            include_stop: flag("include_stop_str_in_output") == Some(true),
            stop_ids: iter_array_field(request, "stop_token_ids")
                .filter_map(|id| u32::try_from(id.as_u64()?).ok())
                .collect(),
            ignore_eos: flag("ignore_eos") == Some(true),
            tools: offered && chosen != Some("none"),
            top: top.and_then(Value::as_u64).map(|top| top as usize),
        }
    }

    /// Returns whether a derendered response must omit token ids and log probabilities, because
    /// they would reveal hidden reasoning.
    pub(super) fn hides_output_tokens(&self, parsers: Option<&OutputParsers>) -> bool {
        parsers.is_some() && !self.include_reasoning
    }
}
