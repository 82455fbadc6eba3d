//! Writes HTTP request bodies with prompts of a planned length; equal token runs become equal
//! tokens.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use super::exchange::GenerationResponse;
use super::options::{GenerationApi, OnlineReplayError, OnlineReplayOptions};
use super::target::TargetServer;
use crate::workload::{PromptTokenRun, SessionTurn, TurnPrompt};
use vllm_sim_random::mix_u64_pair;

/// Minimum number of distinct token ids from which prompts are drawn, so that the prompts differ
/// enough.
const MIN_TOKEN_IDS: usize = 16;
const DEFAULT_TOKEN_IDS: std::ops::Range<u32> = 100..30_000;

/// Short words, most of which are one token with a leading space;
/// [`PromptTextWriter::calibrate_prompt_token_counts`] removes the others.
const PROMPT_WORDS: &str = "time year people way day man thing woman life child world school state family \
student group country problem hand part place case week company system program question work \
government number night point home water room mother area money story fact month lot right study \
book eye job word business issue side kind head house service friend father power hour game line \
end member law car city community name president team minute idea kid body information back parent \
face others level office door health person art war history party result change morning reason \
research girl guy moment air teacher force education";

pub(super) struct PromptTextWriter {
    api: GenerationApi,
    model: String,
    /// Whether every request asks for token ids, so that the client can count the generated tokens.
    counts_ids: bool,
    alphabet: Vec<u32>,
    seed: u64,
    words: Vec<&'static str>,
    /// Number of tokens that the chat template adds to one message.
    template: u32,
    /// Number of tokens that the chat template adds per further message.
    per_message: u32,
}

#[derive(Debug, Default)]
pub(super) struct ChatHistory {
    ids: Vec<u32>,
    messages: Vec<(bool, String)>,
}

impl ChatHistory {
    pub(super) fn push_response(&mut self, response: &GenerationResponse) {
        self.ids.extend(&response.ids);
        self.messages.push((false, response.text.clone()));
    }
}

impl PromptTextWriter {
    /// Measures for chat prompts which words are one token and how many tokens the chat template
    /// adds.
    pub(super) async fn calibrate_prompt_token_counts(
        target: &Arc<TargetServer>,
        model: String,
        options: &OnlineReplayOptions,
    ) -> Result<Self, OnlineReplayError> {
        let mut writer = Self {
            api: options.api,
            model,
            counts_ids: options.identity.is_some(),
            alphabet: Vec::new(),
            seed: options.seed,
            words: PROMPT_WORDS.split_whitespace().collect(),
            template: 0,
            per_message: 0,
        };
        if options.api == GenerationApi::Completions {
            writer.alphabet = accepted_token_ids(target, &writer.model, options).await;
            return Ok(writer);
        }
        let count = async |body: Value| -> Option<u32> {
            let body = Bytes::from(body.to_string());
            let answer =
                target.request_json(Method::POST, "/tokenize", body, options.timeout).await;
            u32::try_from(answer.ok()?["count"].as_u64()?).ok()
        };
        let model = writer.model.clone();
        let user = |text: &str| json!({"role": "user", "content": text});
        let chat = |messages: Value| json!({"model": model, "messages": messages});
        let Some(one) = count(chat(json!([user("time")]))).await else {
            // Without /tokenize, each word counts as one token.
            return Ok(writer);
        };
        let mut single = Vec::new();
        for word in &writer.words {
            let text = format!("time{}", format!(" {word}").repeat(8));
            if count(chat(json!([user(&text)]))).await == Some(one + 8) {
                single.push(*word);
            }
        }
        if single.len() >= 2 {
            writer.words = single;
        }
        writer.template = one.saturating_sub(1);
        let answer = json!({"role": "assistant", "content": "time"});
        let three = count(chat(json!([user("time"), answer, user("time")]))).await;
        writer.per_message = three.map_or(0, |three| three.saturating_sub(one + 2) / 2);
        Ok(writer)
    }

    pub(super) async fn generation_request_body(
        &self,
        turn: &SessionTurn,
        history: &mut ChatHistory,
        follows: bool,
    ) -> Bytes {
        let (grown, runs) = match &turn.prompt {
            TurnPrompt::Whole(runs) => (false, runs),
            TurnPrompt::Grown(runs) => (true, runs),
        };
        if !grown {
            *history = ChatHistory::default();
        }
        let mut body = match self.api {
            GenerationApi::Completions => {
                self.push_token_ids(runs, &mut history.ids);
                let mut body = String::with_capacity(history.ids.len() * 6 + 256);
                body.push_str("{\"prompt\":[");
                for (i, id) in history.ids.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    let _ = write!(body, "{comma}{id}");
                }
                body.push(']');
                body
            }
            GenerationApi::Chat => {
                let text = match &turn.text {
                    Some(text) => text.to_string(),
                    None if history.messages.is_empty() => self.prompt_text(runs, self.template),
                    None => self.prompt_text(runs, self.per_message),
                };
                history.messages.push((true, text));
                let messages = history.messages.iter().map(|(user, text)| {
                    let role = if *user { "user" } else { "assistant" };
                    json!({"role": role, "content": text})
                });
                let messages: Vec<Value> = messages.collect();
                format!("{{\"messages\":{}", Value::Array(messages))
            }
        };
        // The next turn of a completions session repeats the generated tokens.
        if self.counts_ids || (follows && self.api == GenerationApi::Completions) {
            body.push_str(",\"return_token_ids\":true");
        }
        let model = turn.lora.as_deref().unwrap_or(&self.model);
        let model = Value::String(model.to_owned());
        let output = turn.output.max(1);
        let _ = write!(
            body,
            ",\"model\":{model},\"max_tokens\":{output},\"stream\":true,\"ignore_eos\":true,\
             \"stream_options\":{{\"include_usage\":true}}"
        );
        if turn.priority != 0 {
            let _ = write!(body, ",\"priority\":{}", turn.priority);
        }
        body.push('}');
        Bytes::from(body)
    }

    fn push_token_ids(&self, runs: &[PromptTokenRun], to: &mut Vec<u32>) {
        let span = self.alphabet.len().max(1) as u64;
        for run in runs {
            let id = mix_u64_pair(self.seed, run.id);
            to.extend((0..run.len).map(|i| {
                // Also for a run of equal tokens: the ids are too few to tell many runs apart.
                let letter = self.alphabet.get((mix_u64_pair(id, i.into()) % span) as usize);
                letter.copied().unwrap_or_default()
            }));
        }
    }

    /// Returns a prompt text with one word per token of `runs`, less the tokens that the chat
    /// template adds.
    fn prompt_text(&self, runs: &[PromptTokenRun], template_tokens: u32) -> String {
        let mut skip = template_tokens;
        let mut text = String::new();
        for run in runs {
            let id = mix_u64_pair(self.seed, run.id);
            for i in 0..run.len {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                let word =
                    self.words[(mix_u64_pair(id, i.into()) % self.words.len() as u64) as usize];
                if !text.is_empty() {
                    text.push(' ');
                }
                text.push_str(word);
            }
        }
        if text.is_empty() {
            text.push_str("time");
        }
        text
    }
}

/// Returns token ids that the server accepts in prompts, from its tokenization of common words.
async fn accepted_token_ids(
    target: &TargetServer,
    model: &str,
    options: &OnlineReplayOptions,
) -> Vec<u32> {
    let body = json!({"model": model, "prompt": PROMPT_WORDS, "add_special_tokens": false});
    let body = Bytes::from(body.to_string());
    let answer = target.request_json(Method::POST, "/tokenize", body, options.timeout).await;
    let tokens = answer.unwrap_or_default();
    let tokens = tokens["tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let ids = tokens.iter().filter_map(Value::as_u64);
    let mut ids: Vec<u32> = ids.filter_map(|id| u32::try_from(id).ok()).collect();
    ids.sort_unstable();
    ids.dedup();
    match ids.len() >= MIN_TOKEN_IDS {
        true => ids,
        false => DEFAULT_TOKEN_IDS.collect(),
    }
}
