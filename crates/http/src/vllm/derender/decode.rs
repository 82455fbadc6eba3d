//! From tokens to text.

use serde_json::Value;

use super::asked::Asked;
use super::list;
use crate::app::App;

/// A choice in tokens, or what is new of it.
pub(super) struct Piece<'v> {
    pub(super) choice: &'v Value,
    pub(super) ids: Vec<u32>,
}

impl<'v> Piece<'v> {
    pub(super) fn of(choice: &'v Value) -> Self {
        let ids = list(choice, "token_ids").map(|id| id.as_u64().and_then(|id| id.try_into().ok()));
        Self {
            choice,
            ids: ids.map(|id| id.unwrap_or(u32::MAX)).collect(),
        }
    }

    /// Its own number, or its place.
    pub(super) fn index(&self, place: usize) -> u64 {
        let own = self.choice.get("index").and_then(Value::as_u64);
        own.unwrap_or(place as u64)
    }

    pub(super) fn finish(&self) -> Option<&'v str> {
        self.choice.get("finish_reason").and_then(Value::as_str)
    }

    pub(super) fn stop_reason(&self) -> Value {
        let told = self.choice.get("stop_reason");
        told.cloned().unwrap_or(Value::Null)
    }

    /// Its tokens but the one that stopped it, and what is to be said of that.
    pub(super) fn spoken(&self, app: &App, asked: &Asked) -> (&[u32], Value) {
        let told = self.stop_reason();
        let Some((last, before)) = self.ids.split_last() else {
            return (&self.ids, told);
        };
        if self.finish() != Some("stop") || told.is_string() {
            return (&self.ids, told);
        }
        let tokenizer = app.service.generator.tokenizer();
        let (stopped, reason) = match told.as_u64() {
            Some(id) => (id == u64::from(*last), told),
            None if !asked.ignore_eos && tokenizer.eos() == Some(*last) => (true, told),
            None => {
                let own = !asked.ignore_eos && tokenizer.stop_ids().contains(last);
                match own || asked.stop_ids.contains(last) {
                    true => (true, (*last).into()),
                    false => (false, told),
                }
            }
        };
        match stopped && !asked.include_stop {
            true => (before, reason),
            false => (&self.ids, reason),
        }
    }
}

/// The prompt behind which a reply stands: the given one, or the reply's own.
pub(super) fn seed(given: Option<&[u64]>, reply: &Value) -> Vec<u32> {
    let id = |id: u64| u32::try_from(id).unwrap_or(u32::MAX);
    match given {
        Some(ids) => ids.iter().map(|n| id(*n)).collect(),
        None => list(reply, "prompt_token_ids")
            .map(|n| id(n.as_u64().unwrap_or(u64::MAX)))
            .collect(),
    }
}

/// The text of a whole choice, and which stop condition ended it.
pub(super) fn whole(
    app: &App,
    piece: &Piece<'_>,
    asked: &Asked,
    seed: &[u32],
    skip: bool,
) -> (String, Value) {
    let (ids, stop_reason) = piece.spoken(app, asked);
    let mut text = text(app, ids, seed, skip);
    let told = piece.stop_reason();
    let stops: &[String] = match (&told, piece.finish()) {
        (Value::String(stop), Some("stop")) => std::slice::from_ref(stop),
        (Value::Null, Some("stop")) => &asked.stops,
        _ => &[],
    };
    let found = stops
        .iter()
        .filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
    let Some((at, stop)) = found.min_by_key(|(at, _)| *at) else {
        return (text, stop_reason);
    };
    let stop = stop.clone();
    text.truncate(if asked.include_stop {
        at + stop.len()
    } else {
        at
    });
    (text, stop.into())
}

/// The text of tokens behind a prompt.
pub(super) fn text(app: &App, ids: &[u32], seed: &[u32], skip: bool) -> String {
    let mut decoder = app
        .service
        .generator
        .tokenizer()
        .detokenizer_after(seed, skip);
    let mut text = String::new();
    ids.iter().for_each(|id| decoder.push_to(*id, &mut text));
    text
}
