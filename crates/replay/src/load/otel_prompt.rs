//! Decides which prompts of recorded spans share tokens.

use std::collections::HashMap;

use super::otel_span::GenAiSpan;
use super::sharegpt::estimated_token_count;
use crate::workload::{PromptTokenRun, TurnPrompt};
use vllm_sim_random::mix_u64_pair;

/// Salt in the hashes of the texts of recorded prompts.
const TEXT_HASH_DOMAIN: u64 = 13;

/// Texts of all recorded prompts so far, with which later prompts may share tokens.
///
/// A prompt that continues the agent's previous one grows from it and from its output. Other
/// prompts share the leading texts that an earlier prompt had.
#[derive(Default)]
pub(super) struct RecordedPromptTexts {
    /// Known prompt prefixes by the hash of their texts. Each has its length in tokens, and the
    /// token run that represents its last text.
    prefixes: HashMap<u64, (u32, PromptTokenRun)>,
    /// Last request of each agent, by run and index of the agent.
    previous: HashMap<(String, usize), PreviousCall>,
    calls: u64,
}

struct PreviousCall {
    texts: Vec<String>,
    tokens: u32,
}

impl RecordedPromptTexts {
    /// Returns the prompt of an agent's next request.
    pub(super) fn prompt_of_call(&mut self, span: &GenAiSpan, agent: (&str, usize)) -> TurnPrompt {
        self.calls += 1;
        let key = (agent.0.to_owned(), agent.1);
        let call = PreviousCall {
            texts: span.prompt.clone(),
            tokens: span.input.saturating_add(span.output),
        };
        let last = self.previous.insert(key, call);
        let added = last.and_then(|last| {
            let extends = span.prompt.starts_with(&last.texts);
            span.input.checked_sub(last.tokens).filter(|_| extends)
        });
        match added {
            Some(added) => {
                let id = mix_u64_pair(TEXT_HASH_DOMAIN, self.calls);
                let run = PromptTokenRun { id, len: added, same: false };
                TurnPrompt::Grown(Vec::from_iter((added > 0).then_some(run)))
            }
            None => TurnPrompt::Whole(self.runs_of_texts(&span.prompt, span.input)),
        }
    }

    /// Converts the texts of a recorded prompt of `input` tokens to runs of tokens.
    fn runs_of_texts(&mut self, texts: &[String], input: u32) -> Vec<PromptTokenRun> {
        let mut hashes = Vec::with_capacity(texts.len());
        let mut hash = TEXT_HASH_DOMAIN;
        for text in texts {
            hash = mix_u64_pair(hash, text_hash(text));
            hashes.push(hash);
        }
        let mut runs = Vec::new();
        let mut tokens = 0;
        let known = hashes.iter().map_while(|hash| {
            let (end, run) = self.prefixes.get(hash)?;
            (*end <= input).then_some((*end, *run))
        });
        for (end, run) in known {
            tokens = end;
            runs.push(run);
        }
        // Texts that are new have their estimated lengths; the last one has all other tokens.
        for (at, hash) in hashes.iter().enumerate().skip(runs.len()) {
            let rest = input - tokens;
            let len = match at + 1 == texts.len() {
                true => rest,
                false => estimated_token_count(&texts[at]).min(rest),
            };
            tokens += len;
            let run = PromptTokenRun { id: *hash, len, same: false };
            self.prefixes.insert(*hash, (tokens, run));
            runs.push(run);
        }
        if tokens < input {
            let id = mix_u64_pair(mix_u64_pair(TEXT_HASH_DOMAIN, hash), self.calls);
            runs.push(PromptTokenRun { id, len: input - tokens, same: false });
        }
        runs.retain(|run| run.len > 0);
        runs
    }
}

fn text_hash(text: &str) -> u64 {
    let chunks = text.as_bytes().chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    });
    chunks.fold(text.len() as u64, mix_u64_pair)
}
