//! Applies stop strings and stop tokens as vLLM's detokenizer does, token by token.
//!
//! Source: vLLM 0.33 `v1/engine/detokenizer.py`. A match may span tokens, and the first string of
//! the list wins. Streaming holds back `max(len) - 1` characters.

use super::script::{
    OutputChannel, OutputEndReason, OutputToken, PlannedOutputEnd, ReplyScript, ReplyScriptCursor,
    ReplyTokenRun, ReplyTokenSource, StopReason,
};
use crate::generate::request::{StopConditions, StopString};
use vllm_sim_tokenizer::{SpecialTokenHandling, TokenFragments, Tokenizer};

/// End marker of reasoning, as it appears in the text that is searched for stop strings.
const THINK_END: &str = "</think>";

/// Length of the end of an output in which stop expressions are searched for, in bytes.
const SEARCHED_BYTES: usize = 4096;

/// Cuts a reply at its first stop condition and distributes its text over the tokens as streaming
/// does.
pub(super) fn apply_stop_conditions(
    script: &mut ReplyScript,
    stops: &StopConditions,
    special: SpecialTokenHandling,
    tokenizer: &Tokenizer,
) {
    cut_at_stop_token(script, stops, tokenizer);
    if stops.include {
        show_stop_token(script, tokenizer, special);
    }
    if !stops.strings.is_empty() || !stops.patterns.is_empty() {
        cut_at_stop_string(script, stops);
    }
    if script.finish.stop.is_some() {
        let begun = script.runs.iter().filter_map(|run| match run.channel {
            OutputChannel::Call(call) => Some(usize::from(call) + 1),
            _ => None,
        });
        script.calls.truncate(begun.max().unwrap_or(0));
    }
}

fn cut_at_stop_token(script: &mut ReplyScript, stops: &StopConditions, tokenizer: &Tokenizer) {
    if stops.ids.is_empty() {
        return;
    }
    let hit = script
        .output_tokens()
        .enumerate()
        .find(|(index, token)| *index as u32 >= stops.min_tokens && stops.ids.contains(token.id));
    let Some((index, id)) = hit.map(|(index, token)| (index as u32, token.id)) else {
        return;
    };
    let primary = tokenizer.eos_token_id() == Some(id) && !stops.ignore_eos;
    truncate_script(script, index);
    script.runs.push(ReplyTokenRun {
        source: ReplyTokenSource::Silent(id),
        from: 0,
        to: 1,
        channel: OutputChannel::Marker,
    });
    script.len = index + 1;
    let stop = (!primary).then_some(StopReason::Token(id));
    script.finish = PlannedOutputEnd { reason: OutputEndReason::Stop, stop };
}

/// Gives the stop token at the end of a reply its text.
fn show_stop_token(script: &mut ReplyScript, tokenizer: &Tokenizer, special: SpecialTokenHandling) {
    let [.., before, last] = script.runs.as_slice() else {
        return;
    };
    let (ReplyTokenSource::Silent(id), channel) = (last.source, before.channel) else {
        return;
    };
    let ended = match script.finish.stop {
        Some(StopReason::Token(stop)) => stop == id,
        Some(StopReason::Text(_)) => false,
        None => {
            script.finish.reason == OutputEndReason::Stop && tokenizer.eos_token_id() == Some(id)
        }
    };
    let (Ok(own), true) = (u16::try_from(script.own.len()), ended) else {
        return;
    };
    let context = script.preceding_token_ids(script.len.saturating_sub(1) as usize);
    let text = tokenizer.detokenizer_after(&context, special).decode_token(id);
    if text.is_empty() {
        return;
    }
    script.own.push(TokenFragments { ids: vec![id], ends: vec![text.len() as u32], text });
    if let Some(last) = script.runs.last_mut() {
        last.source = ReplyTokenSource::Own(own);
        last.channel = channel;
    }
}

fn truncate_script(script: &mut ReplyScript, tokens: u32) {
    let mut left = tokens;
    script.runs.retain_mut(|run| {
        let kept = (run.to - run.from).min(left);
        run.to = run.from + kept;
        left -= kept;
        kept > 0
    });
    script.len = tokens.min(script.len);
}

/// The text of an output that is searched for stop strings, with the markers of tools and
/// reasoning.
#[derive(Default)]
struct SearchedText {
    text: String,
    ids: Vec<u32>,
    /// End offset of each token's text, in bytes.
    ends: Vec<usize>,
    channels: Vec<OutputChannel>,
}

impl SearchedText {
    fn push_token(&mut self, token: &OutputToken<'_>) {
        let thought = self.channels.last() == Some(&OutputChannel::Reasoning);
        let ends_it = token.channel == OutputChannel::Marker && token.text.is_empty() && thought;
        self.text.push_str(if ends_it { THINK_END } else { token.text });
        self.ids.push(token.id);
        self.ends.push(self.text.len());
        self.channels.push(token.channel);
    }

    /// Delays text that may turn out to be the beginning of a stop string, as streaming does.
    ///
    /// Each token of the content shows `held` characters less, and the last token shows the rest.
    /// Text held back at the end of the output is shown with the final token.
    fn hold_back(&mut self, held: usize) {
        let last = self.channels.len().saturating_sub(1);
        let mut held_back = HeldBackTail::new(&self.text, held);
        let mut from = 0;
        while from < self.channels.len() {
            let channel = self.channels[from];
            let same = |c: &OutputChannel| *c == channel;
            let to = from + self.channels[from..].iter().take_while(|c| same(c)).count();
            if channel == OutputChannel::Content {
                let silent = |c: &OutputChannel| *c == OutputChannel::Marker;
                let final_piece =
                    self.ends[to - 1] == self.text.len() && self.channels[to..].iter().all(silent);
                let shows_all = if final_piece { last } else { to - 1 };
                let start = from.checked_sub(1).map_or(0, |before| self.ends[before]);
                for end in &mut self.ends[from..shows_all] {
                    *end = held_back.shown_end(*end).max(start);
                }
                let shown = shows_all.checked_sub(1).map_or(0, |before| self.ends[before]);
                if shown < self.ends[shows_all] {
                    self.channels[shows_all] = OutputChannel::Content;
                }
            }
            from = to;
        }
    }
}

fn cut_at_stop_string(script: &mut ReplyScript, stops: &StopConditions) {
    let longest = stops.strings.iter().map(|s| s.as_str().chars().count()).max();
    let held = match stops.include {
        true => 0,
        false => longest.unwrap_or(0).saturating_sub(1),
    };
    let mut seen = SearchedText::default();
    let mut matched = None;
    let mut progress = vec![0; stops.strings.len()];
    let mut cursor = ReplyScriptCursor::default();
    while let Some(token) = script.next_token(&mut cursor) {
        let before = seen.text.len();
        seen.push_token(&token);
        let found = find_first_match(&seen.text[before..], &stops.strings, &mut progress);
        if seen.ids.len() as u32 <= stops.min_tokens {
            continue;
        }
        if let Some((which, end)) = found {
            matched = Some((stops.strings[which].as_str(), before + end));
            break;
        }
        let end = seen.text.len();
        let from = floor_char_boundary(&seen.text, end.saturating_sub(SEARCHED_BYTES));
        let tail = &seen.text[from..];
        if let Some(pattern) = stops.patterns.iter().find(|pattern| pattern.is_match(tail)) {
            // The output is cut where it contains the text of the expression itself.
            let stop = pattern.as_str();
            let end = seen.text.find(stop).unwrap_or(end) + stop.len();
            matched = Some((stop, end));
            break;
        }
    }
    let plain = |c: &OutputChannel| matches!(c, OutputChannel::Content | OutputChannel::Marker);
    if !seen.channels.iter().all(plain) && matched.is_none() {
        return;
    }
    if let Some((stop, end)) = matched {
        let end = if stops.include { end } else { end - stop.len() };
        seen.text.truncate(end);
        seen.ends.iter_mut().for_each(|shown| *shown = (*shown).min(end));
        script.finish = PlannedOutputEnd {
            reason: OutputEndReason::Stop,
            stop: Some(StopReason::Text(stop.to_owned())),
        };
    }
    seen.hold_back(held);
    rebuild_script(script, seen);
}

fn find_first_match(
    added: &str,
    strings: &[StopString],
    progress: &mut [u32],
) -> Option<(usize, usize)> {
    let mut first = None;
    for (which, (stop, matched)) in strings.iter().zip(progress).enumerate() {
        let end = stop.find_stop_string_end(added, matched);
        first = first.or(end.map(|end| (which, end)));
    }
    first
}

/// Position of the last `held` characters of a growing text, which streaming holds back.
struct HeldBackTail<'t> {
    text: &'t str,
    held: usize,
    read: usize,
    begin: usize,
    /// Number of characters between the byte offsets `begin` and `read` of the text, which
    /// streaming holds back.
    between: usize,
}

impl<'t> HeldBackTail<'t> {
    fn new(text: &'t str, held: usize) -> Self {
        Self { text, held, read: 0, begin: 0, between: 0 }
    }

    /// Returns the end of the part of `text[..end]` that streaming shows; `end` must not decrease
    /// between calls.
    fn shown_end(&mut self, end: usize) -> usize {
        let end = floor_char_boundary(self.text, end.min(self.text.len())).max(self.read);
        self.between += self.text[self.read..end].chars().count();
        self.read = end;
        let late = self.between.saturating_sub(self.held);
        let mut chars = self.text[self.begin..].chars();
        self.begin += chars.by_ref().take(late).map(char::len_utf8).sum::<usize>();
        self.between -= late;
        self.begin
    }
}

fn floor_char_boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Replaces the texts of a reply by one text, with one run of tokens per channel.
fn rebuild_script(script: &mut ReplyScript, seen: SearchedText) {
    let Ok(own) = u16::try_from(script.own.len()) else {
        return;
    };
    script.len = seen.ids.len() as u32;
    script.runs.clear();
    let mut from = 0;
    for same in seen.channels.chunk_by(|a, b| a == b) {
        let to = from + same.len() as u32;
        script.runs.push(ReplyTokenRun {
            source: ReplyTokenSource::Own(own),
            from,
            to,
            channel: same[0],
        });
        from = to;
    }
    script.own.push(TokenFragments {
        ids: seen.ids,
        text: seen.text,
        ends: seen.ends.into_iter().map(|end| end as u32).collect(),
    });
}
