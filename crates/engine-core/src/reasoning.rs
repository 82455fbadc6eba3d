//! Reasoning markers: the tokens at which the front end's reasoning parser starts and ends
//! reasoning.
//!
//! Source: vLLM 0.33 `vllm/reasoning`, `vllm/parser`: the markers of each parser.

use std::sync::Arc;

use rmpv::Value;

use super::decode::msgpack_map_member;
use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer};

/// Number of tokens at the end of a prompt that are searched for reasoning markers.
const SEARCHED_TAIL_TOKENS: usize = 8;

const THINK_TAGS: [&str; 2] = ["<think>", "</think>"];

/// Returns the texts with which a reasoning parser starts and ends reasoning, and whether the
/// parser's models reason by default.
fn parser_markers(parser: &str) -> Option<([&'static str; 2], bool)> {
    let marks = match parser {
        "deepseek_v3" | "deepseek_v4" | "deepseek_v41" => return Some((THINK_TAGS, false)),
        "deepseek_r1"
        | "ernie45"
        | "glm45"
        | "glm47"
        | "holo2"
        | "hy_v3"
        | "kimi_k2"
        | "ling3"
        | "mimo"
        | "minicpmv"
        | "minimax_m2"
        | "minimax_m2_append_think"
        | "nemotron_v3"
        | "olmo3"
        | "poolside_v1"
        | "qwen3"
        | "step3"
        | "step3p5"
        | "step5" => THINK_TAGS,
        "cohere_command3" | "cohere_command4" => ["<|START_THINKING|>", "<|END_THINKING|>"],
        "gemma4" => ["<|channel>thought\n", "<channel|>"],
        "granite" => ["Here is my thought process:", "Here is my response:"],
        "kimi_k3" => ["<|open|>think<|sep|>", "<|close|>think<|sep|>"],
        "minimax_m3" => ["<mm:think>", "</mm:think>"],
        "mistral" => ["[THINK]", "[/THINK]"],
        "plamo3" => ["<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"],
        "seed_oss" => ["<seed:think>", "</seed:think>"],
        _ => return None,
    };
    Some((marks, true))
}

/// The tokens that start and end a model's reasoning, and the fraction of its output that is
/// reasoning.
#[derive(Debug, Clone)]
pub struct ReasoningMarkers {
    start: Arc<[u32]>,
    end: Vec<u32>,
    /// Whether the model reasons if a request does not specify whether it should.
    reasons_by_default: bool,
    /// Fraction of a reply's output tokens that is reasoning, 0 to 1.
    ratio: f64,
}

impl ReasoningMarkers {
    /// Returns the start and end tokens of vLLM's reasoning parser `parser`; `None` if the parser
    /// is unknown or `tokenizer` cannot encode its texts.
    pub fn for_reasoning_parser(
        parser: &str,
        reasoning_ratio: f64,
        tokenizer: &Tokenizer,
    ) -> Option<Self> {
        let ([start, end], reasons_by_default) = parser_markers(parser)?;
        let [start, end] = [start, end].map(|text| match tokenizer.token_id_of_entry(text) {
            Some(id) => vec![id],
            None => tokenizer.encode(text, SpecialTokenHandling::Without),
        });
        let known = !start.is_empty() && !end.is_empty();
        known.then(|| Self { start: start.into(), end, reasons_by_default, ratio: reasoning_ratio })
    }

    /// Returns the token ids of the marker that ends the reasoning.
    pub fn reasoning_end_token_ids(&self) -> &[u32] {
        &self.end
    }

    /// Returns the fraction of a request's output that is reasoning, and the token ids with which
    /// the output starts the reasoning: none if the prompt already started it. Returns `None`
    /// without reasoning.
    pub(crate) fn reasoning_fraction_and_start_ids(
        &self,
        prompt: &[u32],
        ended: Option<bool>,
        kwargs: &Value,
    ) -> Option<(f64, Arc<[u32]>)> {
        let tail = &prompt[prompt.len().saturating_sub(SEARCHED_TAIL_TOKENS)..];
        let last = |marks: &[u32]| tail.windows(marks.len()).rposition(|some| some == marks);
        let (opened, closed) = (last(&self.start), last(&self.end));
        let open = opened.is_some() && opened > closed;
        let kwargs = msgpack_map_member(kwargs, "chat_template_kwargs");
        let said =
            ["enable_thinking", "thinking"].map(|key| msgpack_map_member(kwargs, key).as_bool());
        let effort = msgpack_map_member(kwargs, "reasoning_effort").as_str();
        let thinks = match said[0].or(said[1]) {
            Some(thinks) => thinks,
            None => open || self.reasons_by_default && closed.is_none(),
        };
        if !thinks || ended == Some(true) || effort == Some("none") {
            return None;
        }
        let share = match effort {
            Some("minimal") => self.ratio * 0.25,
            Some("low") => self.ratio * 0.5,
            Some("high") => (self.ratio * 1.5).min(0.95),
            Some("xhigh" | "max") => (self.ratio * 2.0).min(0.95),
            _ => self.ratio,
        };
        let start = if open { Arc::default() } else { self.start.clone() };
        (share > 0.0).then_some((share, start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thoughts(reasons_by_default: bool) -> ReasoningMarkers {
        ReasoningMarkers { start: [7].into(), end: vec![8], reasons_by_default, ratio: 0.4 }
    }

    fn kwargs(key: &str, value: impl Into<Value>) -> Value {
        let inner = Value::Map(vec![(key.into(), value.into())]);
        Value::Map(vec![("chat_template_kwargs".into(), inner)])
    }

    #[test]
    fn prompt_and_template_args_decide_on_reasoning() {
        let nil = Value::Nil;
        let opened = |prompt: &[u32], ended, kwargs: &Value| {
            let asked = thoughts(true).reasoning_fraction_and_start_ids(prompt, ended, kwargs);
            asked.map(|(share, start)| (share, start.to_vec()))
        };
        assert_eq!(opened(&[1, 2], None, &nil), Some((0.4, vec![7])));
        assert_eq!(opened(&[1, 7, 2], None, &nil), Some((0.4, vec![])));
        assert_eq!(opened(&[1, 7, 8, 2], None, &nil), None);
        assert_eq!(opened(&[1, 2], Some(true), &nil), None);
        let off = kwargs("enable_thinking", false);
        assert_eq!(opened(&[1, 2], Some(false), &off), None);
        let low = kwargs("reasoning_effort", "low");
        assert_eq!(opened(&[], None, &low), Some((0.2, vec![7])));
        assert_eq!(thoughts(false).reasoning_fraction_and_start_ids(&[1], None, &nil), None);
        let on = kwargs("thinking", true);
        assert!(thoughts(false).reasoning_fraction_and_start_ids(&[1], None, &on).is_some());
    }

    #[test]
    fn reasoning_markers_match_the_parser() {
        let tokenizer = Tokenizer::new_simulated();
        let of = |parser| ReasoningMarkers::for_reasoning_parser(parser, 0.4, &tokenizer);
        let ends = ["qwen3", "mistral"].map(|parser| of(parser).expect("known").end);
        assert_ne!(ends[0], ends[1]);
        assert!(of("openai_gptoss").is_none());
    }
}
