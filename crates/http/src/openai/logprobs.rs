//! Computes synthetic but deterministic log probabilities, in the JSON of vLLM 0.33.

use crate::app::App;
use crate::json;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_service::generate::{
    EMPTY_CONTEXT_HASH, OutputToken, ReplyScript, extend_context_hash,
};
use vllm_sim_service::logprobs::{LogprobInputs, RankedTokenLogprob};
use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer};

/// Format and source of the log probabilities in a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogprobFormat {
    /// Number of alternative tokens per position, in addition to the sampled token.
    pub(crate) top: u32,
    /// Whether tokens are shown as `token_id:N` instead of their text.
    pub(crate) as_ids: bool,
    pub(crate) distribution: LogprobSource,
}

/// Source of the log probability values of a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LogprobSource {
    /// Log probabilities computed as in llm-d-inference-sim's `logprobs.go`.
    ///
    /// The sampled token has −1.0 − 0.1 × (position mod 3), the j-th alternative 0.5 × j less.
    ByPosition,
    /// Log probabilities of a Zipf distribution over the vocabulary. The preceding tokens determine
    /// the order of the vocabulary and the exponent.
    ///
    /// The temperature flattens or sharpens the draw of a token's rank. Reported values ignore the
    /// temperature, like vLLM's `raw_logprobs`.
    ByRank { seed: u64, temperature: f64 },
}

impl LogprobSource {
    /// Returns the log probability distribution for prompt tokens, which were not sampled.
    pub(crate) fn logprob_source_for_prompt_tokens(self) -> Self {
        match self {
            Self::ByPosition => self,
            Self::ByRank { seed, .. } => Self::ByRank { seed, temperature: 1.0 },
        }
    }
}

pub(crate) struct TokenLogprob {
    pub(crate) id: u32,
    pub(crate) logprob: f64,
    /// Rank of the token by probability; 1 is the most likely.
    pub(crate) rank: u32,
    pub(crate) text: String,
}

/// Function that returns the tokens before a position; called if a token is only part of a
/// character.
pub(crate) type PrecedingTokens<'a> = &'a dyn Fn() -> Vec<u32>;

/// Position of a token in its sequence, with its preceding tokens.
#[derive(Clone, Copy)]
pub(crate) struct TokenPosition<'a> {
    pub(crate) position: usize,
    /// Hash of all tokens before the position.
    pub(crate) context: u64,
    pub(crate) before: PrecedingTokens<'a>,
}

/// Number of preceding tokens that can affect the text of a token.
pub(crate) const MAX_PRECEDING_TOKENS: usize = 4;

/// Calls `then` with the position of a reply token and its preceding tokens.
pub(crate) fn call_with_reply_token_position<R>(
    script: &ReplyScript,
    position: usize,
    then: impl FnOnce(TokenPosition<'_>) -> R,
) -> R {
    then(TokenPosition {
        position,
        context: script.context_hash(position),
        before: &|| script.preceding_token_ids(position),
    })
}

/// Calls `then` with each prompt token, its position and its preceding tokens.
pub(crate) fn for_each_prompt_token(tokens: &[u32], mut then: impl FnMut(u32, TokenPosition<'_>)) {
    let mut context = EMPTY_CONTEXT_HASH;
    for (position, id) in tokens.iter().enumerate() {
        let before = || tokens[position.saturating_sub(MAX_PRECEDING_TOKENS)..position].to_vec();
        then(*id, TokenPosition { position, context, before: &before });
        context = extend_context_hash(context, *id);
    }
}

/// Returns the log probabilities of the sampled token and of the `style.top` most likely tokens,
/// without duplicates.
///
/// The list has `top + 1` entries if the sampled token is not among the most likely. llm-d includes
/// the sampled token in `top`.
pub(crate) fn token_logprobs(
    tokenizer: &Tokenizer,
    id: u32,
    place: TokenPosition<'_>,
    style: LogprobFormat,
) -> Vec<TokenLogprob> {
    let top = style.top.min(tokenizer.vocab_size().max(2)) as usize;
    let values = match style.distribution {
        LogprobSource::ByPosition => {
            return llmd_token_logprobs(tokenizer, id, place, top.max(1), style);
        }
        LogprobSource::ByRank { seed, temperature } => {
            let position = LogprobInputs {
                vocabulary: tokenizer.vocab_size(),
                context: mix_u64_pair(seed, place.context),
                temperature,
            };
            position.deduplicated_chosen_and_top_tokens(id, top)
        }
    };
    let show = |RankedTokenLogprob { id, logprob, rank }| TokenLogprob {
        id,
        logprob: f64::from(logprob),
        rank,
        text: match style.as_ids {
            true => format!("token_id:{id}"),
            false => logprob_token_text(tokenizer, id, place.before),
        },
    };
    values.into_iter().map(show).collect()
}

/// Returns log probabilities as llm-d does: the token, and alternatives with derived names outside
/// the vocabulary.
fn llmd_token_logprobs(
    tokenizer: &Tokenizer,
    id: u32,
    place: TokenPosition<'_>,
    top: usize,
    style: LogprobFormat,
) -> Vec<TokenLogprob> {
    let own = match style.as_ids {
        true => format!("token_id:{id}"),
        false => logprob_token_text(tokenizer, id, place.before),
    };
    let entry = |rank: usize| TokenLogprob {
        // Each alternative gets its own id, counted down from the highest number.
        id: if rank == 0 { id } else { u32::MAX - rank as u32 },
        logprob: llmd_chosen_logprob(place.position) - 0.5 * rank as f64,
        rank: rank as u32 + 1,
        text: match rank {
            0 => own.clone(),
            _ => format!("{own}_{rank}"),
        },
    };
    (0..top).map(entry).collect()
}

/// Returns the text of a token, as vLLM shows it in log probabilities.
///
/// A token that ends inside a character has no text; the token that completes the character has all
/// of it.
///
/// Source: vLLM 0.33 `vllm/v1/engine/logprobs.py`, `_correct_decoded_token`.
pub(crate) fn logprob_token_text(
    tokenizer: &Tokenizer,
    id: u32,
    before: PrecedingTokens<'_>,
) -> String {
    const REPLACEMENT_CHARACTER: char = '\u{fffd}';

    let alone = tokenizer.token_text(id);
    if !alone.ends_with(REPLACEMENT_CHARACTER) {
        return alone;
    }
    let before = before();
    for start in (before.len().saturating_sub(MAX_PRECEDING_TOKENS)..before.len()).rev() {
        let context = &before[start..];
        let whole = tokenizer.decode(&[context, &[id]].concat(), SpecialTokenHandling::Without);
        if whole.ends_with(REPLACEMENT_CHARACTER) {
            continue;
        }
        let is_part = |id: &&u32| tokenizer.token_text(**id).ends_with(REPLACEMENT_CHARACTER);
        let parts = context.iter().rev().take_while(is_part).count();
        let clean =
            tokenizer.decode(&context[..context.len() - parts], SpecialTokenHandling::Without);
        let common = whole.chars().zip(clean.chars()).take_while(|(a, b)| a == b);
        return whole.chars().skip(common.count()).collect();
    }
    String::new()
}

pub(crate) fn llmd_chosen_logprob(position: usize) -> f64 {
    -1.0 - 0.1 * (position % 3) as f64
}

/// Appends the log probability of one token, an element of `logprobs.content` of a chat choice.
pub(super) fn write_chat_logprob_entry(
    out: &mut String,
    tokenizer: &Tokenizer,
    token: &OutputToken<'_>,
    place: TokenPosition<'_>,
    style: LogprobFormat,
) {
    let entries = token_logprobs(tokenizer, token.id, place, style);
    let real = logprob_token_text(tokenizer, token.id, place.before);
    write_logprob_entry(out, &entries[0], real.as_bytes());
    out.push_str(",\"top_logprobs\":[");
    for (index, other) in entries.iter().take(style.top as usize).enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_logprob_entry(out, other, other.text.as_bytes());
        out.push('}');
    }
    out.push_str("]}");
}

fn write_logprob_entry(out: &mut String, entry: &TokenLogprob, bytes: &[u8]) {
    json::write_member(out, "{\"token\":", &entry.text);
    json::write_member(out, ",\"logprob\":", entry.logprob);
    out.push_str(",\"bytes\":");
    json::write_json_int_array(out, bytes.iter().map(|b| u32::from(*b)));
}

/// The lists in `logprobs` of a completion choice, each with one element per token.
#[derive(Debug, Default)]
pub(super) struct CompletionLogprobs {
    offsets: String,
    values: String,
    tokens: String,
    tops: String,
    count: usize,
    /// Offset in the output text of the next token.
    pub(super) offset: usize,
}

impl CompletionLogprobs {
    pub(super) fn with_text_offset(offset: usize) -> Self {
        Self { offset, ..Self::default() }
    }

    /// Adds the first token of an echoed prompt to the lists of log probabilities; this token has
    /// no log probability.
    pub(super) fn push_first_prompt_token_logprob(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        place: TokenPosition<'_>,
        style: LogprobFormat,
    ) {
        self.push_text(&token_logprobs(tokenizer, id, place, style)[0].text);
        self.values.push_str("null");
        self.tops.push_str("null");
    }

    fn push_text(&mut self, text: &str) {
        if self.count > 0 {
            for list in [&mut self.offsets, &mut self.values, &mut self.tokens, &mut self.tops] {
                list.push(',');
            }
        }
        self.count += 1;
        json::write_json_int(&mut self.offsets, self.offset);
        json::write_json_string(&mut self.tokens, text);
        self.offset += text.chars().count();
    }

    pub(super) fn push_token_logprob(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        place: TokenPosition<'_>,
        style: LogprobFormat,
    ) {
        let entries = token_logprobs(tokenizer, id, place, style);
        self.push_text(&entries[0].text);
        json::write_python_float(&mut self.values, entries[0].logprob);
        self.tops.push('{');
        let mut seen = std::collections::BTreeSet::new();
        for other in &entries {
            // The map is keyed by text, so equal texts are merged.
            if !seen.insert(other.text.as_str()) {
                continue;
            }
            if seen.len() > 1 {
                self.tops.push(',');
            }
            json::write_json_string(&mut self.tops, &other.text);
            self.tops.push(':');
            json::write_python_float(&mut self.tops, other.logprob);
        }
        self.tops.push('}');
    }

    pub(super) fn write_completion_logprobs(&self, out: &mut String) {
        let Self { offsets, values, tokens, tops, .. } = self;
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

/// Appends the `prompt_logprobs` member: `null` for the first token, then for each token a map from
/// token ids to log probabilities.
pub(crate) fn write_prompt_logprobs(
    out: &mut String,
    tokenizer: &Tokenizer,
    tokens: &[u32],
    top: u32,
    distribution: LogprobSource,
) {
    let style = LogprobFormat {
        top: match distribution {
            LogprobSource::ByPosition => top.saturating_add(1),
            LogprobSource::ByRank { .. } => top,
        },
        as_ids: false,
        distribution: distribution.logprob_source_for_prompt_tokens(),
    };
    out.push('[');
    for_each_prompt_token(tokens, |id, place| {
        if place.position == 0 {
            out.push_str("null");
            return;
        }
        out.push_str(",{");
        for (index, entry) in token_logprobs(tokenizer, id, place, style).iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push('"');
            json::write_json_int(out, entry.id);
            json::write_member(out, "\":{\"logprob\":", entry.logprob);
            json::write_member(out, ",\"rank\":", entry.rank);
            json::write_member(out, ",\"decoded_token\":", &entry.text);
            out.push('}');
        }
        out.push('}');
    });
    out.push(']');
}

/// Returns the requested number of log probabilities per token; −1 means the whole vocabulary.
pub(crate) fn logprob_count(app: &App, asked: i128) -> u32 {
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    u32::try_from(asked).unwrap_or(vocabulary).min(vocabulary.max(1))
}
