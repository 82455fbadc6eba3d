//! Who looks at a body first: the schema, or what llm-d-inference-sim checks in an order and in
//! words of its own (`--compat llm-d`): whether the body can be read, injected failures, the model,
//! the numbers, and with the prompt at hand the context.
//!
//! Source: llm-d-inference-sim `pkg/communication/http.go`, `pkg/api/request.go`,
//! `pkg/llm-d-inference-sim/helpers.go`, `validateRequest` (August 2026).

use std::borrow::Cow;

use serde_json::Value;

use super::{llmd_bodies, llmd_lenient, llmd_responses};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::completion::Prompt;

/// Who looks at a body first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstReader {
    /// The schema, as pydantic does.
    Schema,
    /// llm-d's own checks, with failures and the model among them.
    Llmd,
}

/// What a body asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
    Generate,
    Embeddings,
    Tokenize,
}

impl Api {
    /// Where a request says how many tokens it wants; the first one counts.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["/max_completion_tokens", "/max_tokens"],
            Self::Completions | Self::Messages => &["/max_tokens"],
            Self::Responses => &["/max_output_tokens"],
            Self::Generate => &["/sampling_params/max_tokens"],
            Self::Embeddings | Self::Tokenize => &[],
        }
    }
}

impl FirstReader {
    /// The body `text` of usual members as the schema is to read it, with true where its prompt is, which
    /// takes many times its bytes as a tree; `None`: something is filled in or left out.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_around_prompt(self, api: Api, text: &[u8]) -> Result<Option<Value>, Fault> {
        let member = match api {
            Api::Chat => "messages",
            _ => "prompt",
        };
        let Some(body) = vllm_sim_wire::body::read_around(text, member) else {
            return Ok(None);
        };
        let unchanged = matches!(self.read(api, Cow::Borrowed(&body))?, Cow::Borrowed(_));
        Ok(unchanged.then_some(body))
    }

    /// Whether nothing is wrong with the prompts of a completion that was read.
    pub(crate) fn takes(self, prompts: &[Prompt]) -> bool {
        let empty = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.is_empty(),
            Prompt::Tokens(ids) => ids.is_empty(),
        };
        self == Self::Schema || !prompts.iter().any(empty)
    }

    /// The body as the schema is to read it, with what this reader fills in.
    ///
    /// # Errors
    /// What is wrong with it whoever is asked.
    pub(crate) fn read<'b>(self, api: Api, body: Cow<'b, Value>) -> Result<Cow<'b, Value>, Fault> {
        if self == Self::Schema {
            return Ok(body);
        }
        if !body.is_object() {
            let words = "Failed to read and parse request body, a JSON object is expected";
            return Err(Fault::bad_request(words));
        }
        let mut body = llmd_lenient::body(api, body);
        match api {
            Api::Chat if wants_one_alternative(&body) => {
                body.to_mut()["top_logprobs"] = 1.into();
            }
            Api::Responses => llmd_responses::body(body.to_mut())?,
            Api::Generate => llmd_bodies::move_inside(body.to_mut()),
            Api::Embeddings => llmd_bodies::input(&body)?,
            Api::Tokenize => llmd_bodies::text_or_chat(&body)?,
            Api::Chat | Api::Completions | Api::Messages => {}
        }
        Ok(body)
    }

    /// What llm-d looks at once the model is found.
    ///
    /// # Errors
    /// Its 400.
    pub(crate) fn check_content(self, api: Api, body: &Value) -> Result<(), Fault> {
        match api {
            _ if self == Self::Schema => Ok(()),
            Api::Completions => llmd_bodies::prompt(body.get("prompt").unwrap_or(&Value::Null)),
            Api::Messages => llmd_bodies::messages(body),
            Api::Generate => llmd_bodies::generate(body),
            Api::Chat | Api::Responses | Api::Embeddings | Api::Tokenize => Ok(()),
        }
    }

    /// Whether a request fails on purpose, or for its model, before its schema is looked at.
    pub(crate) fn asks_model_first(self, api: Api) -> bool {
        self == Self::Llmd && !api.limits().is_empty()
    }

    /// What is wrong with the numbers of a body, for a model that is there.
    ///
    /// # Errors
    /// llm-d's refusal.
    pub(crate) fn check_numbers(self, api: Api, body: &Value) -> Result<(), Fault> {
        let number = |path: &&str| body.pointer(path).filter(|value| !value.is_null());
        if number(&"/n").and_then(Value::as_i64).is_some_and(|n| n < 1) {
            return Err(Fault::bad_request("n must be at least 1"));
        }
        let asked = api.limits().iter().find_map(number);
        if asked.and_then(Value::as_i64).is_some_and(|n| n < 1) {
            let words = "Max completion tokens and max tokens should be positive";
            return Err(Fault::bad_request(words));
        }
        Ok(())
    }

    /// Whether a body that never ends says how long it may be.
    ///
    /// # Errors
    /// llm-d's refusal.
    pub(crate) fn check_end(self, api: Api, body: &Value) -> Result<(), Fault> {
        let ignores_end = body.get("ignore_eos").and_then(Value::as_bool) == Some(true);
        let given = |path: &&str| body.pointer(path).is_some_and(|value| !value.is_null());
        if ignores_end && !api.limits().iter().any(given) {
            return Err(Fault::bad_request(
                "Ignore_eos is true but max_completion_tokens (or max_tokens) is not set",
            ));
        }
        Ok(())
    }

    /// vLLM's report about a body that cannot be read, as llm-d begins such a sentence.
    pub(crate) fn unread(self, fault: Fault) -> Fault {
        if self == Self::Schema || fault.error_type != ErrorType::BadRequestPhrase {
            return fault;
        }
        Fault::bad_request(format!(
            "Failed to read and parse request body, {}",
            fault.message
        ))
    }
}

/// Log probabilities come with one alternative where nobody says more.
fn wants_one_alternative(body: &Value) -> bool {
    let silent = body.get("top_logprobs").is_none_or(Value::is_null);
    silent && body.get("logprobs").and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_body_that_stays_as_it_is_is_read_around_its_prompt() {
        let read = |api, text: &str| FirstReader::Llmd.read_around_prompt(api, text.as_bytes());
        let usual = r#"{"prompt":[1,2],"temperature":1}"#;
        let around = json!({"prompt": true, "temperature": 1});
        assert_eq!(read(Api::Completions, usual), Ok(Some(around)));
        let chat = r#"{"messages":[{"role":"user","content":"a"}],"n":1}"#;
        let around = json!({"messages": true, "n": 1});
        assert_eq!(read(Api::Chat, chat), Ok(Some(around)));
        for edited in [
            r#""temperature":5"#,
            r#""n":2,"temperature":0"#,
            r#""stop":"""#,
        ] {
            let text = format!(r#"{{"prompt":"a",{edited}}}"#);
            assert_eq!(read(Api::Completions, &text), Ok(None), "{edited}");
        }
    }

    #[test]
    fn an_empty_prompt_is_left_to_who_refuses_it() {
        let lists = [
            vec![Prompt::Text("a".to_owned()), Prompt::Text(String::new())],
            vec![Prompt::Tokens(vec![1]), Prompt::Tokens(Vec::new())],
        ];
        for prompts in lists {
            assert!(FirstReader::Schema.takes(&prompts));
            assert!(!FirstReader::Llmd.takes(&prompts));
            assert!(FirstReader::Llmd.takes(&prompts[..1]));
        }
    }
}
