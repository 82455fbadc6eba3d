//! Log probabilities, made up but stable: a function of position and token.
//!
//! The chosen token has −1.0 − 0.1 × (position mod 3), the j-th alternative 0.5 × j less
//! (llm-d-inference-sim `logprobs.go`); shapes and order are vLLM 0.33's.

use crate::json;
use vllm_sim_random::{Draw, Purpose, stream};
use vllm_sim_service::generate::Token;
use vllm_sim_tokenizer::Tokenizer;

/// How tokens are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogprobStyle {
    /// Entries per position besides the chosen token's own.
    pub(crate) top: u32,
    /// `token_id:N` instead of text.
    pub(crate) as_ids: bool,
}

/// One entry of a position.
pub(crate) struct TokenLogprob {
    pub(crate) id: u32,
    pub(crate) logprob: f64,
    pub(crate) text: String,
}

/// The last tokens before a position; asked for when a token is a part of a character.
pub(crate) type Before<'a> = &'a dyn Fn() -> Vec<u32>;

/// How many of them matter.
pub(crate) const CONTEXT: usize = 4;

/// The chosen token and `top - 1` others (only the chosen one for `top` 0), best first.
pub(crate) fn entries(
    tokenizer: &Tokenizer,
    id: u32,
    before: Before<'_>,
    position: usize,
    top: u32,
    as_ids: bool,
) -> Vec<TokenLogprob> {
    let show = |id: u32| {
        if as_ids {
            format!("token_id:{id}")
        } else {
            text(tokenizer, id, before)
        }
    };
    let chosen = chosen(position);
    let mut entries = vec![TokenLogprob {
        id,
        logprob: chosen,
        text: show(id),
    }];
    let vocabulary = u64::from(tokenizer.vocab_size().max(2));
    let mut rng = stream(u64::from(id), position as u64, Purpose::Logprobs);
    let top = u64::from(top).min(vocabulary);
    for rank in 1..top {
        let mut other = rng.between(0, vocabulary - 1) as u32;
        while entries.iter().any(|e| e.id == other) {
            other = (u64::from(other) + 1).rem_euclid(vocabulary) as u32;
        }
        // 32-bit floats widened, as vLLM sends them; the floor is its -9999.
        let logprob = f64::from((chosen - 0.5 * rank as f64).max(-9999.0) as f32);
        entries.push(TokenLogprob {
            id: other,
            logprob,
            text: show(other),
        });
    }
    entries
}

/// The text of a token. One that is a part of a character has the text of all that it completes
/// with those before it, or none.
///
/// Source: vLLM 0.33 `vllm/v1/engine/logprobs.py`, `_correct_decoded_token`.
pub(crate) fn text(tokenizer: &Tokenizer, id: u32, before: Before<'_>) -> String {
    const CUT: char = '\u{fffd}';

    let alone = tokenizer.token_text(id);
    if !alone.ends_with(CUT) {
        return alone;
    }
    let before = before();
    for start in (before.len().saturating_sub(CONTEXT)..before.len()).rev() {
        let context = &before[start..];
        let whole = tokenizer.decode(&[context, &[id]].concat(), true);
        if whole.ends_with(CUT) {
            continue;
        }
        let is_part = |id: &&u32| tokenizer.token_text(**id).ends_with(CUT);
        let parts = context.iter().rev().take_while(is_part).count();
        let clean = tokenizer.decode(&context[..context.len() - parts], true);
        let common = whole.chars().zip(clean.chars()).take_while(|(a, b)| a == b);
        return whole.chars().skip(common.count()).collect();
    }
    String::new()
}

/// Log probability of the token at a position.
pub(crate) fn chosen(position: usize) -> f64 {
    f64::from((-1.0 - 0.1 * (position % 3) as f64) as f32)
}

/// Appends one element of a chat choice's `logprobs.content`.
pub(super) fn chat_entry(
    out: &mut String,
    tokenizer: &Tokenizer,
    token: &Token<'_>,
    before: Before<'_>,
    position: usize,
    style: LogprobStyle,
) {
    let (top, as_ids) = (style.top, style.as_ids);
    let entries = entries(tokenizer, token.id, before, position, top, as_ids);
    let real = text(tokenizer, token.id, before);
    entry(out, &entries[0], real.as_bytes());
    out.push_str(",\"top_logprobs\":[");
    let shown = if style.top == 0 { 0 } else { entries.len() };
    for (index, other) in entries.iter().take(shown).enumerate() {
        if index > 0 {
            out.push(',');
        }
        entry(out, other, other.text.as_bytes());
        out.push('}');
    }
    out.push_str("]}");
}

fn entry(out: &mut String, entry: &TokenLogprob, bytes: &[u8]) {
    out.push_str("{\"token\":");
    json::string(out, &entry.text);
    out.push_str(",\"logprob\":");
    json::float(out, entry.logprob);
    out.push_str(",\"bytes\":");
    json::ints(out, bytes.iter().map(|b| u32::from(*b)));
}

/// The parallel lists of a completion choice's `logprobs`.
#[derive(Debug, Default)]
pub(super) struct CompletionLogprobs {
    offsets: String,
    values: String,
    tokens: String,
    tops: String,
    count: usize,
    offset: usize,
}

impl CompletionLogprobs {
    /// CompletionLogprobs whose first token stands at character `offset` of the text.
    pub(super) fn at(offset: usize) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    /// Characters covered so far.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Adds a position; `position` `None` is the first token of an echoed prompt, which has none.
    pub(super) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        before: Before<'_>,
        position: Option<usize>,
        style: LogprobStyle,
    ) {
        if self.count > 0 {
            for list in [
                &mut self.offsets,
                &mut self.values,
                &mut self.tokens,
                &mut self.tops,
            ] {
                list.push(',');
            }
        }
        self.count += 1;
        json::int(&mut self.offsets, self.offset);
        let entries = entries(
            tokenizer,
            id,
            before,
            position.unwrap_or(0),
            style.top + 1,
            style.as_ids,
        );
        json::string(&mut self.tokens, &entries[0].text);
        self.offset += entries[0].text.chars().count();
        if position.is_none() {
            self.values.push_str("null");
            self.tops.push_str("null");
            return;
        }
        json::float(&mut self.values, entries[0].logprob);
        self.tops.push('{');
        let mut seen: Vec<&str> = Vec::new();
        for other in &entries {
            // The map is keyed by text, so equal texts collapse.
            if seen.contains(&other.text.as_str()) {
                continue;
            }
            if !seen.is_empty() {
                self.tops.push(',');
            }
            seen.push(&other.text);
            json::string(&mut self.tops, &other.text);
            self.tops.push(':');
            json::float(&mut self.tops, other.logprob);
        }
        self.tops.push('}');
    }

    /// Appends the object.
    pub(super) fn write(&self, out: &mut String) {
        let Self {
            offsets,
            values,
            tokens,
            tops,
            ..
        } = self;
        out.push_str("{\"text_offset\":[");
        out.push_str(offsets);
        out.push_str("],\"token_logprobs\":[");
        out.push_str(values);
        out.push_str("],\"tokens\":[");
        out.push_str(tokens);
        out.push_str("],\"top_logprobs\":[");
        out.push_str(tops);
        out.push_str("]}");
    }
}

/// Appends `prompt_logprobs`: `null` for the first token, then maps from token id.
pub(crate) fn prompt(out: &mut String, tokenizer: &Tokenizer, tokens: &[u32], top: u32) {
    out.push('[');
    for (position, id) in tokens.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        if position == 0 {
            out.push_str("null");
            continue;
        }
        out.push('{');
        let before = || tokens[position.saturating_sub(CONTEXT)..position].to_vec();
        let entries = entries(tokenizer, *id, &before, position, top + 1, false);
        for (rank, entry) in entries.iter().enumerate() {
            if rank > 0 {
                out.push(',');
            }
            out.push('"');
            json::int(out, entry.id);
            out.push_str("\":{\"logprob\":");
            json::float(out, entry.logprob);
            out.push_str(",\"rank\":");
            json::int(out, rank + 1);
            out.push_str(",\"decoded_token\":");
            json::string(out, &entry.text);
            out.push('}');
        }
        out.push('}');
    }
    out.push(']');
}
