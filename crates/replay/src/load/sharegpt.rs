//! Reads conversations in the JSON format of ShareGPT or of OpenAI's `messages`.
//!
//! Lengths are estimated from the texts. There are no arrival times.

use std::collections::VecDeque;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{SeqAccess, Visitor};
use serde_json::Value;

use super::lines;
use super::loaded::LoadedSessions;
use crate::workload::{
    ClientSession, MAX_PROMPT_OR_OUTPUT_TOKENS, PromptTokenRun, SessionTurn, TurnPrompt,
    WorkloadError,
};
use vllm_sim_random::mix_u64_pair;

/// Estimates the number of tokens in a text: one per four bytes.
pub(super) fn estimated_token_count(text: &str) -> u32 {
    text.len().div_ceil(4) as u32
}

#[derive(Deserialize)]
struct Conversation {
    id: Option<Value>,
    #[serde(alias = "conversation", alias = "messages")]
    conversations: Option<Vec<Message>>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(alias = "from")]
    role: String,
    #[serde(alias = "value")]
    content: Option<Value>,
}

impl Message {
    fn text(&self) -> String {
        match &self.content {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }

    fn is_by_model(&self) -> bool {
        matches!(self.role.as_str(), "assistant" | "gpt" | "chatgpt" | "bing" | "bard" | "model")
    }
}

/// Reads conversations as sessions; the messages between two assistant replies form the prompt that
/// a turn adds.
pub(super) fn open_sharegpt_conversations(
    paths: &[PathBuf],
    most: Option<u64>,
) -> Result<LoadedSessions, WorkloadError> {
    let mut sessions = VecDeque::new();
    let full =
        |sessions: &VecDeque<ClientSession>| most.is_some_and(|n| sessions.len() as u64 >= n);
    for path in paths {
        let bad = |error: serde_json::Error| WorkloadError::Bad {
            place: format!("{}:{}", path.display(), error.line()),
            problem: format!("is not a conversation in ShareGPT's or OpenAI's format: {error}"),
        };
        let mut reader = lines::open_maybe_gzip(path)?;
        let mut each = |item: Conversation| {
            sessions.extend(build_session(item, sessions.len() as u64));
            !full(&sessions)
        };
        let first = loop {
            let seen = reader.fill_buf().map_err(lines::io_error_of_file(path))?;
            if seen.is_empty() {
                break None;
            }
            let blanks = seen.iter().take_while(|b| b.is_ascii_whitespace()).count();
            let found = seen.get(blanks).copied();
            std::io::BufRead::consume(&mut reader, blanks);
            if found.is_some() {
                break found;
            }
        };
        if first == Some(b'[') {
            let mut json = serde_json::Deserializer::from_reader(reader);
            serde::Deserializer::deserialize_seq(&mut json, ConversationVisitor(&mut each))
                .map_err(bad)?;
        } else {
            let items = serde_json::Deserializer::from_reader(reader).into_iter::<Conversation>();
            for item in items {
                if !each(item.map_err(bad)?) {
                    break;
                }
            }
        }
    }
    let mut sessions = LoadedSessions::from_ordered_sessions(sessions);
    sessions.facts.has_no_start_times = true;
    Ok(sessions)
}

struct ConversationVisitor<'a>(&'a mut dyn FnMut(Conversation) -> bool);

impl<'de> Visitor<'de> for ConversationVisitor<'_> {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a list of conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut wanted = true;
        while let Some(item) = items.next_element::<Conversation>()? {
            wanted = wanted && (self.0)(item);
        }
        Ok(())
    }
}

fn build_session(item: Conversation, number: u64) -> Option<ClientSession> {
    let mut turns = Vec::new();
    let (mut said, mut runs) = (String::new(), Vec::new());
    let tokens = |text: &str| estimated_token_count(text).min(MAX_PROMPT_OR_OUTPUT_TOKENS as u32);
    for message in item.conversations.unwrap_or_default() {
        let text = message.text();
        if !message.is_by_model() {
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
        if input > 0 {
            runs.push(PromptTokenRun {
                id: mix_u64_pair(mix_u64_pair(9, number), turns.len() as u64),
                len: input,
                same: false,
            });
        }
        let runs = std::mem::take(&mut runs);
        let prompt = match turns.is_empty() {
            true => TurnPrompt::Whole(runs),
            false => TurnPrompt::Grown(runs),
        };
        let mut turn = SessionTurn::new(prompt, output);
        turn.text = Some(std::mem::take(&mut said).into());
        turns.push(turn);
    }
    let id = match item.id {
        Some(Value::String(id)) => id,
        _ => format!("conversation-{number}"),
    };
    (!turns.is_empty()).then(|| ClientSession::new(Some(id.into()), turns))
}
