//! Stop strings and stop tokens, as vLLM's detokenizer sees them token by token.
//!
//! Source: vLLM 0.33 `v1/engine/detokenizer.py`: a match may span tokens, the first string of the
//! list that matches wins, and `max(len) - 1` characters are held back while streaming.

use super::script::{Channel, Cursor, Finish, Reason, Script, StopReason, TokenRun, TokenSource};
use crate::generate::request::Stops;
use vllm_sim_tokenizer::{Fragments, Tokenizer};

/// Cuts a script at its first stop condition and shows its text the way a stream does.
pub(super) fn apply(script: &mut Script, stops: &Stops, tokenizer: &Tokenizer) {
    cut_at_token(script, stops, tokenizer);
    if stops.strings.iter().any(|s| !s.is_empty()) {
        cut_at_string(script, stops);
    }
}

fn cut_at_token(script: &mut Script, stops: &Stops, tokenizer: &Tokenizer) {
    if stops.ids.is_empty() {
        return;
    }
    let hit = script
        .tokens()
        .enumerate()
        .find(|(index, token)| *index as u32 >= stops.min_tokens && stops.ids.contains(&token.id));
    let Some((index, id)) = hit.map(|(index, token)| (index as u32, token.id)) else {
        return;
    };
    let primary = tokenizer.eos() == Some(id) && !stops.ignore_eos;
    truncate(script, index);
    script.runs.push(TokenRun {
        source: TokenSource::Silent(id),
        from: 0,
        to: 1,
        channel: Channel::Marker,
    });
    script.len = index + 1;
    let stop = (!primary).then_some(StopReason::Token(id));
    script.finish = Finish {
        reason: Reason::Stop,
        stop,
    };
}

/// Keeps the first `tokens` tokens.
fn truncate(script: &mut Script, tokens: u32) {
    let mut left = tokens;
    script.runs.retain_mut(|run| {
        let kept = (run.to - run.from).min(left);
        run.to = run.from + kept;
        left -= kept;
        kept > 0
    });
    script.len = tokens.min(script.len);
}

fn cut_at_string(script: &mut Script, stops: &Stops) {
    let held = stops
        .strings
        .iter()
        .map(|s| s.chars().count())
        .max()
        .unwrap_or(0)
        .saturating_sub(1);
    let held = if stops.include { 0 } else { held };
    let mut text = String::new();
    let (mut ids, mut ends, mut channels) = (Vec::new(), Vec::new(), Vec::new());
    let mut matched = None;
    let mut cursor = Cursor::default();
    while let Some(token) = script.next(&mut cursor) {
        let before = text.len();
        if token.channel == Channel::Content {
            text.push_str(token.text);
        }
        ids.push(token.id);
        channels.push(token.channel);
        ends.push(text.len());
        if token.channel == Channel::Content && ids.len() as u32 > stops.min_tokens {
            matched = find(&text, before, &stops.strings);
            if matched.is_some() {
                break;
            }
        }
    }
    if channels
        .iter()
        .any(|c| !matches!(c, Channel::Content | Channel::Marker))
        && matched.is_none()
    {
        return;
    }
    if let Some((at, which)) = matched {
        let stop = &stops.strings[which];
        text.truncate(if stops.include { at + stop.len() } else { at });
        script.finish = Finish {
            reason: Reason::Stop,
            stop: Some(StopReason::Text(stop.clone())),
        };
    }
    let last = ends.len().saturating_sub(1);
    for (index, end) in ends.iter_mut().enumerate() {
        *end = if index == last {
            text.len()
        } else {
            hold_back(&text, *end, held)
        };
    }
    // What is held back until the end leaves with the token that ends it.
    let shown = last.checked_sub(1).map_or(0, |before| ends[before]);
    if shown < text.len() && channels[last] == Channel::Marker {
        channels[last] = Channel::Content;
    }
    rebuild(script, ids, &channels, ends, text);
}

/// The first stop string of the list that ends within what was just added.
fn find(text: &str, before: usize, strings: &[String]) -> Option<(usize, usize)> {
    strings
        .iter()
        .enumerate()
        .filter(|(_, s)| !s.is_empty())
        .find_map(|(which, stop)| {
            let mut from = before.saturating_sub(stop.len().saturating_sub(1));
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            text[from..]
                .find(stop.as_str())
                .map(|at| (from + at, which))
        })
}

/// The end of what is shown of `text[..end]` when `held` characters stay back.
fn hold_back(text: &str, end: usize, held: usize) -> usize {
    let end = end.min(text.len());
    let shown = &text[..floor(text, end)];
    shown
        .char_indices()
        .rev()
        .nth(held.wrapping_sub(1))
        .map_or_else(|| if held == 0 { shown.len() } else { 0 }, |(at, _)| at)
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Replaces the runs by one text of the script's own, cut into runs of one channel.
fn rebuild(
    script: &mut Script,
    ids: Vec<u32>,
    channels: &[Channel],
    ends: Vec<usize>,
    text: String,
) {
    script.len = ids.len() as u32;
    let others: Vec<bool> = channels.iter().map(|c| *c == Channel::Content).collect();
    let reasoning = (!others.iter().all(|c| *c)).then(|| script.clone());
    script.runs.clear();
    let own = script.own.len() as u16;
    let ends = ends.into_iter().map(|end| end as u32).collect();
    script.own.push(Fragments { ids, text, ends });
    let mut from = 0;
    while from < channels.len() {
        let channel = channels[from];
        let to = channels[from..]
            .iter()
            .position(|c| *c != channel)
            .map_or(channels.len(), |n| from + n);
        let source = TokenSource::Own(own);
        let run = TokenRun {
            source,
            from: from as u32,
            to: to as u32,
            channel,
        };
        if channel == Channel::Content || channel == Channel::Marker {
            script.runs.push(run);
        } else if let Some(original) = &reasoning {
            copy_runs(script, original, from as u32, to as u32);
        }
        from = to;
    }
}

/// Appends tokens `from..to` of `original` as they were.
fn copy_runs(script: &mut Script, original: &Script, from: u32, to: u32) {
    let mut at = 0;
    for run in &original.runs {
        let len = run.to - run.from;
        let (start, end) = (from.max(at), to.min(at + len));
        if start < end {
            let part = TokenRun {
                from: run.from + start - at,
                to: run.from + end - at,
                ..*run
            };
            script.runs.push(part);
        }
        at += len;
    }
}
