//! Refusals in vLLM's words. Source: vLLM 0.33 `entrypoints/serve/exception_handling/`,
//! `sampling_params.py`, `renderers/`; clients match on these texts.

use serde_json::{Value, json};

use super::sim::Sim;

/// Body, then type, `param` and message of the 400 that answers it.
type Case = (Value, &'static str, Option<&'static str>, &'static str);

const BAD: &str = "BadRequestError";
const SCHEMA: &str = "Bad Request";
const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// What a 400 looks like.
fn fault(kind: &str, param: Option<&str>, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": param, "code": 400}})
}

/// The simulated tokenizer has no vocabulary that could be counted.
#[tokio::test]
async fn all_log_probabilities_are_named_as_they_were_requested() {
    let flags = ["--model", "demo", "--force-dummy-tokenizer"];
    let sim = Sim::start(vllm_sim_config::CliMode::Vllm, &flags).await;
    let message = "Requested sample logprobs of -1, which is greater than max allowed: 20 (parameter=logprobs, value=-1)";
    let cases = [(json!({"logprobs": -1}), BAD, Some("logprobs"), message)];
    check(&sim, COMPLETION, &json!({"prompt": "a"}), &cases).await;
}

async fn check(sim: &Sim, path: &str, base: &Value, cases: &[Case]) {
    let mut wrong = Vec::new();
    for (more, kind, param, message) in cases {
        let mut body = base.clone();
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let answer = sim.post(path, &body).await;
        let expected = fault(kind, *param, message).to_string();
        if (answer.status, answer.text()) != (400, expected.clone()) {
            let text: String = answer.text().chars().take(400).collect();
            wrong.push(format!(
                "{more}\n  expected {expected}\n  answered {} {text}",
                answer.status
            ));
        }
    }
    assert!(wrong.is_empty(), "{path}:\n{}", wrong.join("\n"));
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn max_tokens_limits_are_validated() {
    let sim = Sim::serve(&["--max-model-len", "1024"]).await;
    let base = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let cases: &[Case] = &[
        (
            json!({"max_tokens": 0}),
            BAD,
            Some("max_tokens"),
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        ),
        (
            json!({"max_tokens": 5000}),
            BAD,
            Some("max_tokens"),
            "max_tokens=5000 cannot be greater than max_model_len=1024. Please request fewer output tokens. (parameter=max_tokens, value=5000)",
        ),
        (
            json!({"min_tokens": 9, "max_tokens": 3}),
            BAD,
            None,
            "min_tokens must be less than or equal to max_tokens=3, got 9.",
        ),
        (
            json!({"stream_options": {"include_usage": true}}),
            BAD,
            Some("stream_options"),
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
        ),
    ];
    check(&sim, CHAT, &base, cases).await;
}

#[tokio::test]
async fn sampling_parameters_have_ranges() {
    let sim = Sim::serve(&["--max-model-len", "1024"]).await;
    let cases: &[Case] = &[
        (
            json!({"temperature": -1}),
            BAD,
            Some("temperature"),
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
        ),
        (
            json!({"temperature": 3}),
            BAD,
            Some("temperature"),
            "temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)",
        ),
        (
            json!({"top_p": 0}),
            BAD,
            Some("top_p"),
            "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)",
        ),
        (json!({"top_k": -5}), BAD, None, "top_k must be 0 (disable), or at least 1, got -5."),
        (json!({"min_p": 2}), BAD, None, "min_p must be in [0, 1], got 2.0."),
        (
            json!({"presence_penalty": 3}),
            BAD,
            None,
            "presence_penalty must be in [-2, 2], got 3.0.",
        ),
        (
            json!({"repetition_penalty": 0}),
            BAD,
            None,
            "repetition_penalty must be greater than zero, got 0.0.",
        ),
        (json!({"n": 0}), BAD, None, "n must be at least 1, got 0."),
        (
            json!({"n": 20_000}),
            BAD,
            None,
            "n must be at most 16384, got 20000. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.",
        ),
        (
            json!({"n": 2, "temperature": 0}),
            BAD,
            None,
            "n must be 1 when using greedy sampling, got 2.",
        ),
        (json!({"stop": ""}), BAD, None, "stop cannot contain an empty string."),
        (
            json!({"logit_bias": {"abc": 1}}),
            BAD,
            Some("logit_bias"),
            "logit_bias contains key(s) that cannot be converted to integer token IDs: ['abc'] (parameter=logit_bias, value=['abc'])",
        ),
        (
            json!({"logit_bias": {"99999": 1}}),
            BAD,
            Some("logit_bias"),
            "token_id(s) [99999] in logit_bias contain out-of-vocab token ids. Vocabulary size: 4096 (parameter=logit_bias, value=[99999])",
        ),
    ];
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    check(&sim, CHAT, &chat, cases).await;
    check(&sim, COMPLETION, &json!({"prompt": "Hi"}), cases).await;
}

#[tokio::test]
async fn chat_requests_are_validated() {
    let sim = Sim::serve(&["--max-model-len", "1024"]).await;
    let base = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let cases: &[Case] = &[
        (
            json!({"messages": []}),
            BAD,
            None,
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        ),
        (
            json!({"top_logprobs": 2}),
            BAD,
            Some("top_logprobs"),
            "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)",
        ),
        (
            json!({"logprobs": true, "top_logprobs": 30}),
            BAD,
            Some("logprobs"),
            "Requested sample logprobs of 30, which is greater than max allowed: 20 (parameter=logprobs, value=30)",
        ),
        (
            json!({"tools": []}),
            BAD,
            Some("tools"),
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely. (parameter=tools)",
        ),
        (
            json!({"tool_choice": "auto"}),
            BAD,
            Some("tool_choice"),
            "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)",
        ),
        (
            json!({"tools": [tool], "tool_choice": "weird"}),
            BAD,
            Some("tool_choice"),
            "Invalid value for `tool_choice`: weird! Only named tools, \"none\", \"auto\" or \"required\" are supported. (parameter=tool_choice)",
        ),
        (
            json!({"tools": [tool]}),
            BAD,
            None,
            "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
        ),
        (
            json!({"chat_template": "x"}),
            BAD,
            None,
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with untrusted chat template.",
        ),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            BAD,
            None,
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        ),
        (
            json!({"max_tokens": "abc"}),
            SCHEMA,
            Some("body.max_tokens"),
            "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'abc'}",
        ),
    ];
    check(&sim, CHAT, &base, cases).await;
    let missing = "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 2 items>'}";
    let case = (json!({}), SCHEMA, Some("body.messages"), missing);
    check(&sim, CHAT, &json!({"model": "tiny-llama", "n": 1}), &[case]).await;
}

#[tokio::test]
async fn completion_requests_are_validated() {
    let sim = Sim::serve(&["--max-model-len", "1024"]).await;
    let nothing =
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
    let cases: &[Case] = &[
        (json!({}), BAD, Some("prompt"), nothing),
        (json!({"prompt": ""}), BAD, Some("prompt"), nothing),
        (
            json!({"prompt": []}),
            BAD,
            Some("prompt"),
            "You must pass at least one prompt (parameter=prompt)",
        ),
        (json!({"prompt": [[]]}), BAD, None, "The decoder prompt cannot be empty"),
        (
            json!({"prompt": "Hi", "max_tokens": 0}),
            BAD,
            Some("max_tokens"),
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        ),
        (json!({"prompt": [999_999]}), BAD, None, "Token id 999999 is out of vocabulary"),
        (
            json!({"prompt": [4_294_967_296_u64]}),
            BAD,
            None,
            "Token id 4294967296 is out of vocabulary",
        ),
        (
            json!({"prompt": "Hi", "suffix": "x"}),
            BAD,
            Some("suffix"),
            "suffix is only supported for models with FIM completion rendering",
        ),
    ];
    check(&sim, COMPLETION, &json!({}), cases).await;
}

#[tokio::test]
async fn prompts_longer_than_the_context() {
    let sim = Sim::serve(&["--max-model-len", "64"]).await;
    let says = |least: &str, tokens: u32| {
        format!(
            "This model's maximum context length is 64 tokens. However, your prompt contains {least}{tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={tokens})"
        )
    };
    let text = "one two three ".repeat(30);
    let ids: Vec<u32> = (100..200).collect();
    let chat = json!({"messages": [{"role": "user", "content": text}]});
    // The tokenizer stops at one more than the limit, so a text never shows its length.
    for (path, body, message) in [
        (CHAT, chat, says("at least ", 65)),
        (COMPLETION, json!({"prompt": text}), says("at least ", 65)),
        (COMPLETION, json!({"prompt": ids}), says("", 100)),
        (COMPLETION, json!({"prompt": &ids[..65]}), says("at least ", 65)),
    ] {
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.json(), fault(BAD, Some("input_tokens"), &message), "{body}");
    }
    let full = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)";
    let answer = sim.post(COMPLETION, &json!({"prompt": &ids[..64]})).await;
    assert_eq!(answer.json(), fault(BAD, Some("max_tokens"), full));
    let characters = json!({"prompt": "x".repeat(100_000)});
    let answer = sim.post(COMPLETION, &characters).await.json();
    assert_eq!(answer["error"]["param"], "input_text", "{answer}");
    // Prompt plus limit beyond the context is no error: the limit is cut.
    let body = json!({"prompt": &ids[..60], "max_tokens": 60, "ignore_eos": true});
    let answer = sim.post(COMPLETION, &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

/// What vLLM's engine finds comes after the headers of a stream.
#[tokio::test]
async fn late_errors_are_sent_in_stream() {
    let sim = Sim::serve(&[]).await;
    let message = "Requested sample logprobs of 30, which is greater than max allowed: 20 (parameter=logprobs, value=30)";
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let body = json!({"messages": hi, "logprobs": true, "top_logprobs": 30, "stream": true});
    let answer = sim.post(CHAT, &body).await;
    assert_eq!(answer.status, 200);
    let compact = fault(BAD, Some("logprobs"), message).to_string();
    assert_eq!(answer.events(), [compact.as_str(), "[DONE]"]);
    let body = json!({"prompt": [999_999], "stream": true});
    let answer = sim.post(COMPLETION, &body).await;
    assert_eq!(answer.status, 200);
    // Python's default separators.
    let spaced = r#"{"error": {"message": "Token id 999999 is out of vocabulary", "type": "BadRequestError", "param": null, "code": 400}}"#;
    assert_eq!(answer.events(), [spaced, "[DONE]"]);
}

#[tokio::test]
async fn tokenizer_requests_have_rules() {
    let sim = Sim::serve(&[]).await;
    let neither = "2 validation errors:\n  {'type': 'missing', 'loc': 'body.prompt', 'msg': 'Field required', 'input': '<dict of 1 items>'}\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}";
    let case = (json!({}), SCHEMA, Some("body.prompt"), neither);
    check(&sim, "/tokenize", &json!({"model": "tiny-llama"}), &[case]).await;
    for (body, param) in [
        (json!({}), "body.tokens"),
        (json!({"tokens": "abc"}), "body.tokens"),
        (json!({"tokens": [-1]}), "body.tokens.0"),
    ] {
        let answer = sim.post("/detokenize", &body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
    let unknown = json!({"model": "gpt-4", "prompt": "Hi"});
    let answer = sim.post("/tokenize", &unknown).await;
    assert_eq!(answer.status, 404);
    let message = "The model `gpt-4` does not exist. Valid aliases: tiny-llama.";
    let expected = json!({"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}});
    assert_eq!(answer.json(), expected);
}
