//! Completions that say nothing unusual, read straight from their bytes as chats are
//! ([`super::plain_chat`]). Prompts of millions of token ids are read into their numbers here; a tree
//! of values takes many times the bytes that spell them.

use std::fmt;
use std::sync::LazyLock;

use serde::de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use super::completion::{CompletionRequest, Prompt, Prompts};
use super::plain::{self, plain_body};
use crate::bounds::RequestBounds;
use crate::schema::Wire;

plain_body! {
    struct PlainCompletion for CompletionRequest {
        prompt: PromptsBody,
        #[serde(default, deserialize_with = "plain::present")]
        echo: Option<bool>,
    }
}

/// A text, token ids, or a list of either that is not empty.
struct PromptsBody(Vec<Prompt>);

impl<'de> Deserialize<'de> for PromptsBody {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PromptsVisitor).map(Self)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Vec<Prompt>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("texts or token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(vec![Prompt::Text(text.to_owned())])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let rest = SeqAccessDeserializer::new;
        match items.next_element()? {
            None => Err(A::Error::custom("no prompt")),
            Some(Item::Text(first)) => {
                let texts = Vec::<String>::deserialize(rest(items))?;
                let all = std::iter::once(first).chain(texts);
                Ok(all.map(Prompt::Text).collect())
            }
            Some(Item::Id(first)) => {
                let ids = token_ids(Some(first), items)?;
                Ok(vec![Prompt::Tokens(ids.0)])
            }
            Some(Item::Ids(first)) => {
                let ids = Vec::<TokenIds>::deserialize(rest(items))?;
                let all = std::iter::once(first).chain(ids);
                Ok(all.map(|ids| Prompt::Tokens(ids.0)).collect())
            }
        }
    }
}

/// Token ids up to the end of a list, in the width that [`Prompt`] has.
fn token_ids<'de, A: SeqAccess<'de>>(
    first: Option<u32>,
    mut items: A,
) -> Result<TokenIds, A::Error> {
    let mut ids: Vec<i64> = first.into_iter().map(i64::from).collect();
    while let Some(id) = items.next_element::<u32>()? {
        ids.push(id.into());
    }
    Ok(TokenIds(ids))
}

struct TokenIds(Vec<i64>);

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(TokenIdsVisitor)
    }
}

struct TokenIdsVisitor;

impl<'de> Visitor<'de> for TokenIdsVisitor {
    type Value = TokenIds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<TokenIds, A::Error> {
        token_ids(None, items)
    }
}

/// The first of a list, which says what the others are to be.
enum Item {
    Text(String),
    Id(u32),
    Ids(TokenIds),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id or token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
        u32::try_from(id).map(Item::Id).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Item, A::Error> {
        token_ids(None, items).map(Item::Ids)
    }
}

/// The request of a body of usual members; `None` for any other body, which may be as good.
///
/// `max_tokens` is `None` where the body has none; [`CompletionRequest::parse`] has upstream's
/// default there.
pub(super) fn read(text: &[u8], bounds: &RequestBounds) -> Option<CompletionRequest> {
    static BLANK: LazyLock<Option<CompletionRequest>> =
        LazyLock::new(|| CompletionRequest::read(&json!({"prompt": "x"})));

    let mut plain: PlainCompletion = plain::read(text)?;
    let prompts = std::mem::take(&mut plain.prompt.0);
    let is_blank = matches!(prompts.as_slice(), [Prompt::Text(text)] if text.is_empty());
    if is_blank || prompts.len() > bounds.prompts {
        return None;
    }
    let mut request = BLANK.clone()?;
    request.prompt = Some(Prompts(prompts));
    request.echo = Some(plain.echo.unwrap_or(false));
    plain.fill(&mut request, bounds)?;
    Some(request)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde_json::Value;

    use super::super::completion::DEFAULT_MAX_TOKENS;
    use super::*;
    use crate::fault::Fault;

    fn prompt() -> impl Strategy<Value = String> {
        let items = select(vec![
            "\"Hi\"",
            "\"\"",
            "0",
            "7",
            "4294967295",
            "4294967296",
            "-1",
            "1.0",
            "true",
            "null",
            "[]",
            "[1,2]",
            "[3]",
            "[-1]",
            "[\"x\"]",
            "[4294967296]",
            "{}",
        ]);
        let list = vec(items.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(",")));
        prop_oneof![items.prop_map(str::to_owned), list]
    }

    fn member() -> impl Strategy<Value = String> {
        let keys = select(vec![
            "model",
            "max_tokens",
            "temperature",
            "stream",
            "n",
            "stop",
            "echo",
            "seed",
            "logprobs",
            "stream_options",
            "suffix",
            "min_tokens",
            "ignore_eos",
            "unknown",
            "prompt",
        ]);
        let values = select(vec![
            "null",
            "true",
            "false",
            "1",
            "0",
            "-1",
            "2.5",
            "\"x\"",
            "[\"x\"]",
            "[]",
            "{\"include_usage\":true}",
            "99999999999999999999",
        ]);
        (keys, values).prop_map(|(key, value)| format!("\"{key}\":{value}"))
    }

    fn checked(text: &[u8]) -> Result<CompletionRequest, Fault> {
        let value: Value = crate::body::read(Some("application/json"), text)?;
        CompletionRequest::parse(&value, &RequestBounds::default())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_straight_is_what_the_schema_makes_of_it(prompt in prompt(), members in vec(member(), 0..4)) {
            let members: Vec<String> = std::iter::once(format!("\"prompt\":{prompt}")).chain(members).collect();
            let text = format!("{{{}}}", members.join(","));
            if let Some(mut request) = read(text.as_bytes(), &RequestBounds::default()) {
                request.max_tokens = request.max_tokens.or(Some(DEFAULT_MAX_TOKENS));
                prop_assert_eq!(Ok(request), checked(text.as_bytes()), "{}", text);
            }
        }
    }

    #[test]
    fn usual_completions_are_read_straight() {
        let usual = [
            (
                r#"{"model":"demo","prompt":"Hi","max_tokens":16,"stream":true}"#,
                1,
            ),
            (
                r#"{"prompt":["Hi",""],"temperature":0,"stop":["\n\n"],"echo":true}"#,
                2,
            ),
            (r#"{"prompt":[1,2,3],"n":2}"#, 1),
            (r#"{"prompt":[[1,2],[],[3]],"seed":7}"#, 3),
        ];
        for (text, prompts) in usual {
            let request = read(text.as_bytes(), &RequestBounds::default());
            let count = request
                .and_then(|request| request.prompt)
                .map(|p| p.0.len());
            assert_eq!(count, Some(prompts), "{text}");
        }
    }
}
