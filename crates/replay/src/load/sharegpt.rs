//! Reads conversations in the JSON format of ShareGPT or of OpenAI's `messages`.
//!
//! Lengths are estimated from the texts. There are no arrival times.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::Value;

use super::lines;
use super::loaded::LoadedSessions;
use crate::workload::{
    ClientSession, MAX_PROMPT_OR_OUTPUT_TOKENS, PromptTokenRun, SessionTurn, TurnPrompt,
    WorkloadError,
};
use vllm_sim_dataset::{Conversation, ConversationMessage, for_each_conversation};
use vllm_sim_random::mix_u64_pair;

/// Estimates the number of tokens in a text: one per four bytes.
pub(super) fn estimated_token_count(text: &str) -> u32 {
    text.len().div_ceil(4) as u32
}

/// Reads conversations as sessions; the messages between two assistant replies form the prompt that
/// a turn adds.
pub(super) fn open_sharegpt_conversations(
    paths: &[PathBuf],
    most: Option<u64>,
) -> Result<LoadedSessions, WorkloadError> {
    let mut sessions = VecDeque::new();
    for path in paths {
        let bad = |error: serde_json::Error| WorkloadError::Bad {
            place: format!("{}:{}", path.display(), error.line()),
            problem: format!("is not a conversation in ShareGPT's or OpenAI's format: {error}"),
        };
        for_each_conversation(lines::open_maybe_gzip(path)?, |conversation| {
            sessions.extend(build_session(conversation, sessions.len() as u64));
            match most.is_some_and(|most| sessions.len() as u64 >= most) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
        .map_err(bad)?;
    }
    let mut sessions = LoadedSessions::from_ordered_sessions(sessions);
    sessions.facts.has_no_start_times = true;
    Ok(sessions)
}

fn build_session(conversation: Conversation, number: u64) -> Option<ClientSession> {
    let mut turns = Vec::new();
    let mut said = String::new();
    let tokens = |text: &str| estimated_token_count(text).min(MAX_PROMPT_OR_OUTPUT_TOKENS as u32);
    for ConversationMessage { role, text } in conversation.messages {
        if role != "assistant" {
            if !said.is_empty() {
                said.push('\n');
            }
            said.push_str(&text);
            continue;
        }
        let (input, output) = (tokens(&said), tokens(&text));
        if output == 0 || (input == 0 && turns.is_empty()) {
            continue;
        }
        let id = mix_u64_pair(mix_u64_pair(9, number), turns.len() as u64);
        let run = (input > 0).then_some(PromptTokenRun { id, len: input, same: false });
        let runs = run.into_iter().collect();
        let prompt = match turns.is_empty() {
            true => TurnPrompt::Whole(runs),
            false => TurnPrompt::Grown(runs),
        };
        let mut turn = SessionTurn::new(prompt, output);
        turn.text = Some(std::mem::take(&mut said).into());
        turns.push(turn);
    }
    let id = match conversation.id {
        Some(Value::String(id)) => id,
        _ => format!("conversation-{number}"),
    };
    (!turns.is_empty()).then(|| ClientSession::new(Some(id.into()), turns))
}
