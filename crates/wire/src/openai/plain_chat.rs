//! Chat requests that say nothing unusual, read straight from their bytes.
//!
//! Most chats are texts by the usual speakers and a few numbers of the type that upstream declares.
//! No validator has anything to say of them and nothing is coerced, so neither a tree of values nor a
//! walk over the schema is needed. Whatever else a body has, even a null where upstream's default is
//! no null, is left to [`ChatRequest::parse`], which alone refuses: what [`read`] reads, that reads
//! alike (the tests below draw bodies and compare).

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use super::chat::ChatRequest;
use super::message::{Message, PlainContent, PlainMessage, Speaker};
use super::plain::{self, Object, plain_body};
use crate::bounds::RequestBounds;
use crate::schema::Wire;

plain_body! {
    struct PlainChat for ChatRequest {
        messages: Vec<Message>,
        max_completion_tokens: Option<i64>,
    }
}

/// The request of a body of usual members; `None` for any other body, which may be as good.
pub(super) fn read(text: &[u8], bounds: &RequestBounds) -> Option<Box<ChatRequest>> {
    static BLANK: LazyLock<Option<Box<ChatRequest>>> =
        LazyLock::new(|| ChatRequest::read(&json!({"messages": []})).map(Box::new));

    let mut plain: PlainChat = plain::read(text)?;
    // Cloned and filled where it stays: it is large to move.
    let mut request = BLANK.as_ref()?.clone();
    request.messages = std::mem::take(&mut plain.messages);
    request.max_completion_tokens = plain.max_completion_tokens.map(i128::from);
    plain.fill(&mut request, bounds)?;
    Some(request)
}

impl<'de> Deserialize<'de> for Message {
    /// A message that is nothing but text by one of the usual speakers.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            role: Speaker,
            content: PlainContent,
        }

        let Object(Body { role, content }) = Object::deserialize(from)?;
        Ok(Self::plain(PlainMessage { role, content }))
    }
}

impl<'de> Deserialize<'de> for Speaker {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = Text::deserialize(from)?.0;
        Self::named(&name).ok_or_else(|| D::Error::custom("no usual speaker"))
    }
}

impl<'de> Deserialize<'de> for PlainContent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = PlainContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or parts that are texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PlainContent, E> {
        Ok(PlainContent::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<PlainContent, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Part<'t> {
            #[serde(borrow, rename = "type")]
            kind: Text<'t>,
            text: String,
        }

        let mut texts = Vec::new();
        while let Some(Object(Part { kind, text })) = parts.next_element()? {
            if kind.0 != "text" {
                return Err(A::Error::custom("a part that is no text"));
            }
            texts.push(text);
        }
        if texts.is_empty() {
            return Err(A::Error::custom("no part"));
        }
        Ok(PlainContent::Parts(texts))
    }
}

/// A text that is only looked at.
#[derive(Deserialize)]
struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::super::conversation::{ContentFormat, ShownMessage, conversation};
    use super::*;
    use crate::fault::Fault;

    /// What anybody may send as a number, a flag, a text.
    const SCALARS: [&str; 40] = [
        "null",
        "true",
        "false",
        "0",
        "1",
        "2",
        "3",
        "16",
        "-1",
        "-5",
        "-0",
        "0.0",
        "-0.0",
        "0.5",
        "1.0",
        "1e2",
        "1E-3",
        "1e400",
        "1.5",
        "2.5",
        "NaN",
        "Infinity",
        "9007199254740993",
        "123456789012345678",
        "9223372036854775807",
        "-9223372036854775809",
        "18446744073709551616",
        "0.1234567890123456789",
        "\"\"",
        "\"user\"",
        "\"5\"",
        "\"yes\"",
        "\"a\\u00e9\\ud83d\\ude00\\n\"",
        "\"\\ud800\"",
        "\"é\"",
        "01",
        "\"\t\"",
        "'x'",
        "[]",
        "{}",
    ];

    const KEYS: [&str; 34] = [
        "model",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "stream",
        "n",
        "seed",
        "stop",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "top_k",
        "min_p",
        "min_tokens",
        "ignore_eos",
        "priority",
        "user",
        "return_token_ids",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "tools",
        "tool_choice",
        "response_format",
        "echo",
        "structured_outputs",
        "kv_transfer_params",
        "cache_salt",
        "request_id",
        "guided_json",
        "messages",
        "unknown",
    ];

    const COMMON: usize = 19;

    fn scalar() -> impl Strategy<Value = String> {
        select(SCALARS.to_vec()).prop_map(str::to_owned)
    }

    fn message() -> impl Strategy<Value = String> {
        let roles = select(vec![
            "\"user\"",
            "\"user\"",
            "\"system\"",
            "\"assistant\"",
            "\"tool\"",
            "\"developer\"",
            "\"x\"",
            "null",
        ]);
        let contents = select(vec![
            "\"Hi\"",
            "\"\"",
            "\"a\\nb\"",
            "null",
            "[]",
            "{}",
            "5",
            "[{\"type\":\"text\",\"text\":\"x\"}]",
            "[{\"text\":\"\",\"type\":\"text\"},{\"text\":\"\\u00e9\",\"type\":\"te\\u0078t\"}]",
            "[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: 1\"},{\"type\":\"text\",\"text\":\"b\"}]",
            "[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"refusal\",\"text\":\"b\"}]",
            "[{\"type\":\"text\",\"text\":\"x\",\"cache\":1}]",
            "[[\"text\",\"x\"]]",
            "[\"x\"]",
            "\"x-anthropic-billing-header: 1\\nHi\"",
            "\"x-anthropic-billing-header: 1\"",
        ]);
        let extras = select(vec![
            "",
            "",
            "",
            "",
            "",
            "",
            ",\"name\":\"x\"",
            ",\"tool_calls\":[]",
            ",\"role\":\"user\"",
            ",\"content\":\"again\"",
            ",\"reasoning_content\":\"x\"",
            ",\"other\":1",
        ]);
        (roles, contents, extras, any::<bool>()).prop_map(|(role, content, extra, turned)| {
            match turned {
                false => format!("{{\"role\":{role},\"content\":{content}{extra}}}"),
                true => format!("{{\"content\":{content}, \"role\" : {role}{extra}}}"),
            }
        })
    }

    fn messages() -> impl Strategy<Value = String> {
        prop_oneof![
            9 => vec(message(), 0..4).prop_map(|all| format!("[{}]", all.join(","))),
            1 => scalar(),
        ]
    }

    /// A member, of its own type more often than not.
    fn member() -> impl Strategy<Value = String> {
        let keys = prop_oneof![
            5 => select(KEYS[..COMMON].to_vec()),
            1 => select(KEYS.to_vec()),
        ];
        let texts = select(vec![
            "[\"a\"]",
            "[\"a\",\"b\",\"c\",\"d\",\"e\"]",
            "[5]",
            "\"stop\"",
        ]);
        let options = select(vec![
            "{}",
            "{\"include_usage\":true}",
            "{\"include_usage\":null}",
            "{\"include_usage\":1}",
            "[true,false]",
            "{\"continuous_usage_stats\":false,\"include_usage\":false}",
            "{\"other\":1}",
            "true",
        ]);
        (keys, scalar(), texts, options, 0..4).prop_map(|(key, scalar, texts, options, own)| {
            let value = match (key, own) {
                (_, 0) => scalar.as_str(),
                ("stop", _) => texts,
                ("stream_options", _) => options,
                ("stream" | "ignore_eos" | "return_token_ids" | "logprobs", 1) => "false",
                ("stream" | "ignore_eos" | "return_token_ids" | "logprobs", _) => "true",
                ("model" | "user", _) => "\"demo\"",
                (_, 1) => "1",
                (_, 2) => "7",
                _ => &scalar,
            };
            format!("\"{key}\":{value}")
        })
    }

    /// A body, one in seven broken at some byte.
    fn body() -> impl Strategy<Value = Vec<u8>> {
        let parts = (messages(), vec(member(), 0..6), 0..6_usize, any::<bool>());
        let whole = parts.prop_map(|(messages, mut members, at, blank)| {
            members.insert(at.min(members.len()), format!("\"messages\":{messages}"));
            let (comma, end) = if blank {
                (" ,\n\t", " \r\n")
            } else {
                (",", "")
            };
            format!("{{{}}}{end}", members.join(comma)).into_bytes()
        });
        let breaks = (any::<prop::sample::Index>(), any::<u8>(), 0..21);
        (whole, breaks).prop_map(|(mut text, (at, byte, how))| {
            let at = at.index(text.len());
            match how {
                0 => text.truncate(at),
                1 => text[at] = byte,
                2 => text.insert(at, byte),
                _ => {}
            }
            text
        })
    }

    fn checked(text: &[u8]) -> Result<ChatRequest, Fault> {
        let value = crate::body::read(Some("application/json"), text)?;
        ChatRequest::parse(&value, &RequestBounds::default())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_straight_is_what_the_schema_makes_of_it(text in body()) {
            if let Some(request) = read(&text, &RequestBounds::default()) {
                let checked = checked(&text);
                // The order of members and the sign of zero count too.
                prop_assert_eq!(format!("{:?}", Ok::<_, Fault>(&request)), format!("{:?}", checked.as_ref()));
                prop_assert_eq!(Ok(*request), checked);
            }
        }

        #[test]
        fn a_text_by_a_usual_speaker_is_shown_as_any_message_is(text in message(), open in any::<bool>()) {
            let format = if open { ContentFormat::OpenAi } else { ContentFormat::String };
            let message = format!("{{\"messages\":[{text}]}}");
            if let Some(request) = read(message.as_bytes(), &RequestBounds::default()) {
                let said = conversation(&request.messages, format, "m");
                // A trusted message takes the long road, unless it is plain too.
                let named = {
                    let mut json = request.messages[0].to_json().into_owned();
                    json["name"] = "x".into();
                    vec![request.messages[0].with_json(json)]
                };
                let long = conversation(&named, format, "m").unwrap();
                let mut long = long.into_iter().map(ShownMessage::into_json);
                let mut long = long.next().unwrap();
                long.as_object_mut().unwrap().shift_remove("name");
                let said = said.unwrap().remove(0).into_json();
                prop_assert_eq!(format!("{said:?}"), format!("{long:?}"));
            }
        }
    }

    #[test]
    fn usual_chats_are_read_straight() {
        let usual = [
            r#"{"model":"demo","messages":[{"role":"user","content":"Hi"}]}"#,
            r#"{"messages":[{"role":"system","content":"Be brief"},{"role":"user","content":"Hi"},
                {"role":"assistant","content":"Hello"},{"content":"So?","role":"user"}],"model":"demo",
                "max_tokens":16,"temperature":0,"top_p":1,"n":1,"seed":7,"stream":true,"stop":["\n\n"],
                "stream_options":{"include_usage":true},"presence_penalty":0.5,"ignore_eos":true}"#,
            r#"{"messages":[{"role":"user","content":""}],"max_completion_tokens":null,"stop":"x"}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]}]}"#,
        ];
        for text in usual {
            assert!(
                read(text.as_bytes(), &RequestBounds::default()).is_some(),
                "{text}"
            );
        }
    }
}
