//! Converts the token ids of a choice to text.

use serde_json::Value;

use super::json_list::iter_array_field;
use super::options::DerenderOptions;
use super::parsed_text::OutputParsers;
use crate::app::App;
use crate::token_ids::to_decodable_token_id;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::Fault;

/// A choice of a token response of `/inference/v1/generate`, complete or a chunk.
pub(super) struct GenerateResponseChoice<'v> {
    pub(super) json: &'v Value,
    pub(super) ids: Vec<u32>,
}

impl<'v> GenerateResponseChoice<'v> {
    /// Parses a choice of a response of `/inference/v1/generate`, which has token ids instead of
    /// text.
    ///
    /// # Errors
    /// Returns a 400 for an id of more than 32 bits.
    pub(super) fn parse_choice(json: &'v Value) -> Result<Self, Fault> {
        let ids = iter_array_field(json, "token_ids")
            .map(|id| id.as_u64().map_or(Ok(u32::MAX), to_decodable_token_id));
        let ids = ids.collect::<Result<_, _>>()?;
        Ok(Self { json, ids })
    }

    /// Returns the `index` member of the choice, else its position in the list.
    pub(super) fn choice_index(&self, position: usize) -> u64 {
        let own = self.json.get("index").and_then(Value::as_u64);
        own.unwrap_or(position as u64)
    }

    pub(super) fn finish_reason(&self) -> Option<&'v str> {
        self.json.get("finish_reason").and_then(Value::as_str)
    }

    pub(super) fn stop_reason(&self) -> Value {
        let reason = self.json.get("stop_reason");
        reason.cloned().unwrap_or(Value::Null)
    }

    /// Returns the token ids of the choice without the stop token, and the stop reason to report.
    pub(super) fn output_token_ids(&self, app: &App, options: &DerenderOptions) -> (&[u32], Value) {
        let named = self.stop_reason();
        let Some((last, before)) = self.ids.split_last() else {
            return (&self.ids, named);
        };
        if self.finish_reason() != Some("stop") || named.is_string() {
            return (&self.ids, named);
        }
        let tokenizer = app.service.generator.tokenizer();
        let (stopped, reason) = match named.as_u64() {
            Some(id) => (id == u64::from(*last), named),
            None if !options.ignore_eos && tokenizer.eos_token_id() == Some(*last) => (true, named),
            None => {
                let own = !options.ignore_eos && tokenizer.stop_token_ids().contains(last);
                match own || options.stop_ids.contains(last) {
                    true => (true, (*last).into()),
                    false => (false, named),
                }
            }
        };
        match stopped && !options.include_stop {
            true => (before, reason),
            false => (&self.ids, reason),
        }
    }

    /// Returns the token ids of the choice if the derendered response includes them.
    pub(super) fn derendered_token_ids(
        &self,
        options: &DerenderOptions,
        parsers: Option<&OutputParsers>,
    ) -> Option<Vec<u32>> {
        (options.return_token_ids && !options.hides_output_tokens(parsers))
            .then(|| self.ids.clone())
    }
}

/// Returns the prompt token ids: from the request, else from the token response.
///
/// # Errors
/// Returns a 400 for an id of more than 32 bits.
pub(super) fn given_prompt_token_ids(
    given: Option<&[u64]>,
    reply: &Value,
) -> Result<Vec<u32>, Fault> {
    match given {
        Some(ids) => ids.iter().copied().map(to_decodable_token_id).collect(),
        None => iter_array_field(reply, "prompt_token_ids")
            .map(|id| to_decodable_token_id(id.as_u64().unwrap_or(u64::MAX)))
            .collect(),
    }
}

/// Returns the text of a complete choice, cut at a stop string, and its stop reason.
pub(super) fn choice_text_and_stop_reason(
    app: &App,
    choice: &GenerateResponseChoice<'_>,
    options: &DerenderOptions,
    prompt_ids: &[u32],
    special: SpecialTokenHandling,
) -> (String, Value) {
    let (ids, stop_reason) = choice.output_token_ids(app, options);
    let mut text = detokenize_output(app, ids, prompt_ids, special);
    let named = choice.stop_reason();
    let stops: &[String] = match (&named, choice.finish_reason()) {
        (Value::String(stop), Some("stop")) => std::slice::from_ref(stop),
        (Value::Null, Some("stop")) => &options.stops,
        _ => &[],
    };
    let found = stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
    let Some((at, stop)) = found.min_by_key(|(at, _)| *at) else {
        return (text, stop_reason);
    };
    let stop = stop.clone();
    text.truncate(if options.include_stop { at + stop.len() } else { at });
    (text, stop.into())
}

/// Detokenizes the output tokens `ids`, which follow the tokens of a prompt.
pub(super) fn detokenize_output(
    app: &App,
    ids: &[u32],
    prompt_ids: &[u32],
    special: SpecialTokenHandling,
) -> String {
    let mut decoder = app.service.generator.tokenizer().detokenizer_after(prompt_ids, special);
    let mut text = String::new();
    ids.iter().for_each(|id| decoder.decode_token_into(*id, &mut text));
    text
}
