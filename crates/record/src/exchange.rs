//! Parses the recorded bytes of chat and completion responses into texts with their arrival times.
//!
//! Shapes: vLLM 0.33 `vllm/entrypoints/openai/chat_completion/protocol.py`,
//! `completion/protocol.py`.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordedResponseDelivery {
    Whole,
    Streamed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedApi {
    Chat,
    Completions,
}

impl RecordedApi {
    /// Returns the OpenAI API of a request path; `None` if responses on this path are not recorded.
    pub(super) fn from_request_path(path: &str) -> Option<Self> {
        if path.ends_with("/v1/chat/completions") {
            Some(Self::Chat)
        } else if path.ends_with("/v1/completions") {
            Some(Self::Completions)
        } else {
            None
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Chat, Self::Completions].into_iter().find(|api| api.recorded_api_name() == name)
    }

    pub(super) fn recorded_api_name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TimedTextPiece {
    pub(super) text: String,
    /// Token ids of this piece of a reply's text, if the client requested them.
    pub(super) ids: Vec<u32>,
    pub(super) at: Duration,
    pub(super) reasoning: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RecordedChoice {
    pub(super) pieces: Vec<TimedTextPiece>,
    pub(super) finish: Option<String>,
    /// Whether generation ended by a stop condition other than the end-of-sequence token.
    pub(super) stopped: bool,
    /// Time from the sending of the request to the arrival of the choice's last piece of text.
    pub(super) ended: Duration,
    /// Whether the choice has tool calls, which a table of replies cannot represent.
    pub(super) calls: bool,
    /// Token ids of the prompt, if the client requested them.
    pub(super) prompt: Option<Vec<u32>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RecordedResponse {
    pub(super) choices: Vec<RecordedChoice>,
    /// Number of output tokens of all choices, from `usage`.
    pub(super) tokens: Option<u64>,
    pub(super) model: Option<String>,
}

const MAX_CHOICES: usize = 4096;

impl RecordedResponse {
    /// Parses a recorded response into its choices.
    ///
    /// # Errors
    /// Returns the reason why the response has no reply.
    pub(super) fn parse_response(
        delivery: RecordedResponseDelivery,
        chunks: &[(Duration, Bytes)],
    ) -> Result<Self, String> {
        let mut answer = Self::default();
        if delivery == RecordedResponseDelivery::Streamed {
            answer.read_events(chunks)?;
        } else {
            let at = chunks.last().map_or(Duration::ZERO, |(at, _)| *at);
            let body: Vec<u8> = chunks.iter().flat_map(|(_, data)| data.to_vec()).collect();
            let body = serde_json::from_slice(&body).map_err(|_| "the response is not JSON")?;
            answer.add_response_object(&body, at)?;
        }
        Ok(answer)
    }

    fn read_events(&mut self, chunks: &[(Duration, Bytes)]) -> Result<(), String> {
        let mut line = Vec::new();
        for (at, data) in chunks {
            let mut rest = &data[..];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&rest[..end]);
                rest = &rest[end + 1..];
                let event = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii);
                if let Some(event) = event.filter(|event| *event != b"[DONE]") {
                    let event =
                        serde_json::from_slice(event).map_err(|_| "an event is not JSON")?;
                    self.add_response_object(&event, *at)?;
                }
                line.clear();
            }
            line.extend_from_slice(rest);
        }
        Ok(())
    }

    fn add_response_object(&mut self, body: &Value, at: Duration) -> Result<(), String> {
        if !body["error"].is_null() {
            return Err("the response is an error".to_owned());
        }
        let usage = body["usage"]["completion_tokens"].as_u64();
        self.tokens = usage.or(self.tokens);
        if self.model.is_none() {
            self.model = body["model"].as_str().map(str::to_owned);
        }
        let whole = parse_token_ids(&body["prompt_token_ids"]);
        for choice in body["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or(0);
            let index = usize::try_from(index).ok().filter(|index| *index < MAX_CHOICES);
            let index = index.ok_or("the response has too many choices")?;
            if self.choices.len() <= index {
                self.choices.resize_with(index + 1, RecordedChoice::default);
            }
            let recorded = &mut self.choices[index];
            recorded.add_choice_object(choice, at);
            let prompt = parse_token_ids(&choice["prompt_token_ids"]);
            recorded.prompt = recorded.prompt.take().or(prompt).or(whole.clone());
        }
        Ok(())
    }
}

impl RecordedChoice {
    fn add_choice_object(&mut self, choice: &Value, at: Duration) {
        self.ended = at;
        let message = match &choice["delta"] {
            Value::Null => &choice["message"],
            delta => delta,
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let thought = match text(&message["reasoning"]) {
            thought if thought.is_empty() => text(&message["reasoning_content"]),
            thought => thought,
        };
        let content = match &choice["text"] {
            Value::String(text) => text.clone(),
            _ => text(&message["content"]),
        };
        let mut ids = parse_token_ids(&choice["token_ids"]).unwrap_or_default();
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        self.calls |= !calls.is_empty();
        let called = calls.iter().map(|call| {
            let function = &call["function"];
            (text(&function["name"]) + &text(&function["arguments"]), false)
        });
        for (text, reasoning) in [(thought, true), (content, false)].into_iter().chain(called) {
            if !text.is_empty() {
                let ids = std::mem::take(&mut ids);
                self.pieces.push(TimedTextPiece { text, ids, at, reasoning });
            }
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
            self.stopped = !choice["stop_reason"].is_null();
        }
    }
}

fn parse_token_ids(value: &Value) -> Option<Vec<u32>> {
    let ids = value.as_array()?.iter();
    ids.map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64, text: &str) -> (Duration, Bytes) {
        let text = text.to_owned();
        (Duration::from_millis(ms), text.into())
    }

    fn shown(answer: &RecordedResponse) -> Vec<Vec<(String, u128, bool)>> {
        let pieces = |choice: &RecordedChoice| {
            let shown = |p: &TimedTextPiece| (p.text.clone(), p.at.as_millis(), p.reasoning);
            choice.pieces.iter().map(shown).collect::<Vec<_>>()
        };
        answer.choices.iter().map(pieces).collect()
    }

    #[test]
    fn sse_events_are_parsed_across_chunk_splits() {
        let chunks = [
            at(
                5,
                "data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n: hm\n\ndata: {\"choi",
            ),
            at(
                9,
                "ces\":[{\"index\":0,\"delta\":{\"reasoning\":\"Eh\"}}]}\n\ndata: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"B\"}}]}\n\n",
            ),
            at(
                12,
                "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"A\"},\"finish_reason\":\"stop\",\"stop_reason\":null}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
            ),
        ];
        let answer = RecordedResponse::parse_response(RecordedResponseDelivery::Streamed, &chunks)
            .expect("an answer");
        assert_eq!(
            shown(&answer),
            [
                vec![("Eh".to_owned(), 9, true), ("A".to_owned(), 12, false)],
                vec![("B".to_owned(), 9, false)]
            ]
        );
        assert_eq!((answer.tokens, answer.model.as_deref()), (Some(3), Some("m")));
        let first = &answer.choices[0];
        assert_eq!((first.finish.as_deref(), first.stopped), (Some("stop"), false));
    }

    #[test]
    fn unary_body_is_parsed_when_complete() {
        let chunks = [
            at(5, "{\"choices\":[{\"index\":0,\"text\":\"A"),
            at(7, "B\",\"finish_reason\":\"stop\",\"stop_reason\":\"x\",\"token_ids\":[4]}]}"),
        ];
        let answer = RecordedResponse::parse_response(RecordedResponseDelivery::Whole, &chunks)
            .expect("an answer");
        assert_eq!(shown(&answer), [[("AB".to_owned(), 7, false)]]);
        assert_eq!(answer.choices[0].pieces[0].ids, [4]);
        assert!(answer.choices[0].stopped);
    }

    #[test]
    fn error_responses_are_not_recorded() {
        for (delivery, body) in [
            (RecordedResponseDelivery::Streamed, "data: {\"error\":{\"code\":500}}\n\n"),
            (RecordedResponseDelivery::Streamed, "data: nonsense\n\n"),
            (RecordedResponseDelivery::Streamed, "data: {\"choices\":[{\"index\":99999999}]}\n\n"),
            (RecordedResponseDelivery::Whole, "nonsense"),
            (RecordedResponseDelivery::Whole, "{\"error\":{}}"),
        ] {
            assert!(RecordedResponse::parse_response(delivery, &[at(1, body)]).is_err(), "{body}");
        }
    }
}
