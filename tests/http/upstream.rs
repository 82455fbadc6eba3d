//! Where several routes of vLLM have to agree, and how a stream of several choices begins.

use serde_json::{Value, json};

use super::sim::{Sim, post};

/// The data of every event of a stream.
fn events(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn stream_sends_role_of_all_choices_first() {
    let sim = Sim::serve(&[]).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}],
        "n": 3, "max_tokens": 2, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let answer = sim.post("/v1/chat/completions", &body).await;
    let events = events(&answer.text());
    let seen: Vec<(i64, bool, i64)> = events
        .iter()
        .filter_map(|event| {
            let choice = event["choices"].get(0)?;
            let used = event["usage"]["completion_tokens"].as_i64()?;
            let role = choice["delta"].get("role").is_some();
            Some((choice["index"].as_i64()?, role, used))
        })
        .collect();
    let expected = [
        (0, true, 0),
        (1, true, 0),
        (2, true, 0),
        (0, false, 1),
        (1, false, 1),
        (2, false, 1),
        (0, false, 2),
        (1, false, 2),
        (2, false, 2),
    ];
    assert_eq!(seen, expected);
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn render_tokens_equal_usage_tokens() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let body = json!({
        "model": "tiny-llama", "max_tokens": 4, "system": "Be kind.",
        "messages": [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "UTC"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "12:00"},
                {"type": "text", "text": "And now?"},
            ]},
        ],
    });
    let rendered = sim.post("/v1/messages/render", &body).await.json();
    let mut asked = body.clone();
    asked.as_object_mut().unwrap().remove("max_tokens");
    let counted = sim.post("/v1/messages/count_tokens", &asked).await.json();
    let answered = sim.post("/v1/messages", &body).await.json();
    let tokens = rendered["token_ids"].as_array().unwrap().len();
    assert_eq!(counted["input_tokens"], tokens);
    assert_eq!(answered["usage"]["input_tokens"], tokens);

    let body = json!({"max_output_tokens": 4, "instructions": "Be kind.", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]},
        {"type": "function_call", "call_id": "t1", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t1", "output": "12:00"},
    ]});
    let rendered = sim.post("/v1/responses/render", &body).await.json();
    let answered = sim.post("/v1/responses", &body).await.json();
    let tokens = rendered["token_ids"].as_array().unwrap().len();
    assert_eq!(answered["usage"]["input_tokens"], tokens);
    let refused = sim.post("/v1/responses/render", &json!({})).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "body.input");
    let empty = sim.post("/v1/completions/render", &json!({"prompt": [[]]})).await;
    assert_eq!(empty.status, 400, "{}", empty.text());
}

#[tokio::test]
async fn guided_decoding_fields_work_when_enabled() {
    let body = json!({"prompt": "Hi", "guided_choice": ["red"]});
    let old = Sim::serve(&["--legacy-guided"]).await;
    let answer = old.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "red");
    let new = Sim::serve(&[]).await;
    let answer = new.post("/v1/completions", &body).await.json();
    assert_ne!(answer["choices"][0]["text"], "red");
}

#[tokio::test]
async fn pooling_accepts_every_input_form() {
    let sim = Sim::serve(&["--runner", "pooling"]).await;
    let count = |answer: Value| answer["data"].as_array().map(Vec::len);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (input, vectors) in [
        (json!({"input": "Hi"}), 1),
        (json!({"input": ["Hi", "Ho"]}), 2),
        (json!({"input": [1, 2]}), 1),
        (json!({"input": [[1, 2], [3]]}), 2),
        (json!({"messages": messages}), 1),
        (json!({"messages": [messages, messages]}), 2),
        (json!({"input": messages}), 1),
    ] {
        let answer = sim.post("/v1/embeddings", &input).await;
        assert_eq!(answer.status, 200, "{input}: {}", answer.text());
        assert_eq!(count(answer.json()), Some(vectors), "{input}");
    }
    for (path, body, param) in [
        ("/v1/embeddings", json!({}), "body.input"),
        ("/v1/embeddings", json!({"input": "x", "normalize": true}), "normalize"),
        ("/pooling", json!({"input": "x", "task": "score"}), "task"),
        ("/pooling", json!({"data": {}}), "task"),
        ("/score", json!({"queries": "a"}), "body.documents"),
        ("/rerank", json!({"query": "a"}), "body.documents"),
        ("/rerank", json!({"query": "a", "documents": ["b"], "top_n": -1}), "body.top_n"),
        ("/v2/embed", json!({"texts": ["a"], "images": ["b"]}), "body"),
    ] {
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param, "{path} {body}");
    }
}

/// Sampling parameters that vLLM's own class fills in are its defaults, and those are left out.
#[tokio::test]
async fn rendered_sampling_params_omit_defaults() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (temperature, penalty, left_out) in [
        (json!(0.7), json!(0.0), &[][..]),
        (json!(0), json!(0.0), &["top_p", "min_p"]),
        (json!(0.7), Value::Null, &[]),
    ] {
        let body = json!({
            "messages": messages, "prompt": "Hi", "max_tokens": 3, "top_p": 0.5,
            "temperature": temperature, "presence_penalty": penalty,
        });
        for path in ["/v1/chat/completions/render", "/v1/completions/render"] {
            let rendered = sim.post(path, &body).await.json();
            let rendered = rendered.get(0).unwrap_or(&rendered);
            let shown = &rendered["sampling_params"];
            for key in ["temperature", "top_p", "min_p", "presence_penalty"] {
                assert_eq!(shown.get(key).is_none(), left_out.contains(&key), "{path} {rendered}");
            }
        }
    }
}

/// A pooling request needs no room for an output token, and its texts are cut as it asks for.
#[tokio::test]
async fn pooling_inputs_are_truncated_as_requested() {
    let sim = Sim::serve(&["--runner", "pooling"]).await;
    let ask = async |path: &str, body: Value| sim.post(path, &body).await;
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64();
    let models = sim.get("/v1/models").await.json();
    let context = models["data"][0]["max_model_len"].as_u64();
    let long = "hello ".repeat(9000);
    for path in ["/v1/embeddings", "/pooling"] {
        let body = json!({"input": long, "truncate_prompt_tokens": -1});
        assert_eq!(tokens(&ask(path, body).await.json()), context, "{path}");
    }
    let query = tokens(&ask("/v1/embeddings", json!({"input": "a"})).await.json());
    for document in ["hello ".repeat(300), long] {
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            let body =
                json!({"query": "a", "documents": [document], "truncate_prompt_tokens": 100});
            let answer = ask(path, body).await.json();
            assert_eq!(tokens(&answer), query.map(|query| query + 100), "{path}: {answer}");
        }
        for path in ["/score", "/v1/score"] {
            let body = json!({"text_1": "a", "text_2": document, "truncate_prompt_tokens": 100});
            let answer = ask(path, body).await.json();
            assert_eq!(tokens(&answer), query.map(|query| query + 100), "{path}: {answer}");
        }
    }
    let above = context.unwrap() + 1;
    for (path, mut body) in [
        ("/v1/embeddings", json!({"input": "hello"})),
        ("/pooling", json!({"input": "hello"})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/score", json!({"text_1": "a", "text_2": "b"})),
    ] {
        body["truncate_prompt_tokens"] = above.into();
        let answer = ask(path, body).await;
        assert_eq!(answer.status, 400, "{path}");
        let message = answer.json()["error"]["message"].clone();
        let words = "truncate_prompt_tokens value is greater than max_model_len. \
                     Please request a smaller truncation size.";
        assert_eq!(message, words, "{path}");
    }
}

/// If the request names a side, vLLM cuts the tokens themselves, special ones too.
#[tokio::test]
async fn a_named_truncation_side_cuts_special_tokens() {
    let sim = Sim::serve(&[]).await;
    let ids = sim.post("/tokenize", &json!({"prompt": "one two three four"})).await.json();
    let ids: Vec<u64> = serde_json::from_value(ids["tokens"].clone()).unwrap();
    let last = &ids[ids.len() - 2..];
    for (side, kept) in [
        (None, [&ids[..1], last].concat()),
        (Some("left"), ids[ids.len() - 3..].to_vec()),
        (Some("right"), ids[..3].to_vec()),
    ] {
        let body = json!({
            "prompt": "one two three four", "max_tokens": 1, "return_token_ids": true,
            "truncate_prompt_tokens": 3, "truncation_side": side,
        });
        let answer = sim.post("/v1/completions", &body).await.json();
        assert_eq!(answer["choices"][0]["prompt_token_ids"], json!(kept), "{side:?}");
    }
}

#[tokio::test]
async fn messages_refuse_numbers_that_are_not_finite() {
    let sim = Sim::serve(&[]).await;
    for (field, value, text) in [
        ("top_p", "Infinity", "top_p must be in (0, 1], got inf."),
        ("top_p", "NaN", "top_p must be in (0, 1], got nan."),
        ("temperature", "-Infinity", "temperature must be a finite number, got -inf."),
    ] {
        let body = format!(
            r#"{{"model": "tiny-llama", "max_tokens": 2, "{field}": {value},
                "messages": [{{"role": "user", "content": "Hi"}}]}}"#
        );
        let answer = sim.ask(post("/v1/messages", &[], body.as_bytes())).await;
        let message = answer.json()["error"]["message"].to_string();
        assert!(answer.status == 400 && message.contains(text), "{field} {value}: {message}");
    }
}

/// Without a parser vLLM refuses the choice of a tool, also if the request has no tools.
#[tokio::test]
async fn messages_without_tools_need_a_parser_for_a_tool_choice() {
    let sim = Sim::serve(&[]).await;
    let parsing = Sim::serve(&["--tool-call-parser", "hermes", "--enable-auto-tool-choice"]).await;
    let said = json!([{"role": "user", "content": "Hi"}]);
    let body = |more: Value| {
        let mut body = json!({"model": "tiny-llama", "max_tokens": 2, "messages": said});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, text) in [
        (json!({"tools": []}), "\"auto\" tool choice requires"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice=\"required\" requires"),
        (
            json!({"tool_choice": {"type": "tool", "name": "f"}}),
            "tool_choice=function \"f\" requires",
        ),
    ] {
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            let answer = sim.post(path, &body(more.clone())).await;
            let message = answer.json()["error"]["message"].clone();
            let message = message.as_str().unwrap_or_default();
            assert!(answer.status == 400 && message.starts_with(text), "{path} {more}: {message}");
        }
        assert_eq!(parsing.post("/v1/messages", &body(more)).await.status, 200);
    }
    let none = body(json!({"tool_choice": {"type": "none"}}));
    assert_eq!(sim.post("/v1/messages", &none).await.status, 200);
}

/// Half of a character is no text for a tokenizer; elsewhere in a body it does no harm.
#[tokio::test]
async fn an_unpaired_surrogate_in_a_prompt_is_refused() {
    let sim = Sim::serve(&[]).await;
    let said = |text: &str| format!(r#""messages": [{{"role": "user", "content": "{text}"}}]"#);
    let ask = async |path: &str, prompt: &str| {
        let body = format!(r#"{{"model": "tiny-llama", "max_tokens": 1, {prompt}}}"#);
        sim.ask(post(path, &[], body.as_bytes())).await
    };
    for (path, prompt) in [
        ("/tokenize", r#""prompt": "a\ud800b""#.to_owned()),
        ("/v1/completions", r#""prompt": ["a", "\uDC00\ud800"]"#.to_owned()),
        ("/v1/chat/completions", said(r"a\ud800")),
        ("/v1/messages", said(r"a\ud800")),
        ("/v1/responses", r#""input": "a\ud800b""#.to_owned()),
    ] {
        let answer = ask(path, &prompt).await;
        let message = answer.json()["error"]["message"].to_string();
        assert!(answer.status == 400 && message.contains("TextEncodeInput"), "{path}: {message}");
    }
    // A member that the route does not read is left alone, whatever else is wrong.
    let other = ask("/v1/chat/completions", r#""prompt": "\ud800""#).await.json();
    assert!(other["error"]["message"].to_string().contains("messages"), "{other}");
    let envelope = ask("/v1/messages", &said(r"a\ud800")).await.json();
    assert_eq!(envelope["error"]["type"], "invalid_request_error", "{envelope}");
    // U+10FFFF is a character like any other.
    let last = "\"prompt\": \"\u{10ffff}\\ud83d\\ude00\"";
    for accepted in [
        r#""prompt": "\ud83d\ude00""#,
        last,
        r#""prompt": "a", "user": "\ud800""#,
        r#""prompt": "a", "tools": ["\ud800"], "input": "\ud800""#,
    ] {
        let answer = ask("/v1/completions", accepted).await;
        assert_eq!(answer.status, 200, "{accepted}: {answer:?}");
    }
}

/// The tokenizer reads the prompt after the schema and the model were checked.
#[tokio::test]
async fn an_unpaired_surrogate_is_refused_after_the_schema_and_the_model() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let said = r#""messages": [{"role": "user", "content": "a\ud800"}]"#;
    for (path, body, status, text) in [
        ("/v1/completions", r#"{"prompt": "\ud800", "n": "x"}"#.to_owned(), 400, "body.n"),
        ("/v1/completions", r#"{"prompt": "\ud800", "model": "no"}"#.to_owned(), 404, "exist"),
        ("/v1/chat/completions", format!(r#"{{{said}, "model": "no"}}"#), 404, "exist"),
        ("/v1/messages", format!(r#"{{{said}, "max_tokens": 1, "model": "no"}}"#), 404, "exist"),
        ("/v1/responses", r#"{"input": "\ud800", "model": "no"}"#.to_owned(), 404, "exist"),
        ("/tokenize", r#"{"prompt": "\ud800", "model": "no"}"#.to_owned(), 404, "exist"),
        ("/invocations", format!("{{{said}}}"), 400, "TextEncodeInput"),
        ("/v1/chat/completions/render", format!("{{{said}}}"), 400, "TextEncodeInput"),
        ("/v1/completions/render", r#"{"prompt": "\ud800"}"#.to_owned(), 400, "TextEncodeInput"),
    ] {
        let answer = sim.ask(post(path, &[], body.as_bytes())).await;
        let message = answer.json()["error"]["message"].to_string();
        assert!(answer.status == status && message.contains(text), "{path} {body}: {message}");
    }
    let pooling = Sim::serve(&["--runner", "pooling", "--convert", "embed"]).await;
    for (path, body, status, text) in [
        ("/v1/embeddings", r#"{"input": ["a", "\ud800"]}"#, 400, "TextEncodeInput"),
        ("/v1/embeddings", r#"{"input": "\ud800", "model": "no"}"#, 404, "exist"),
        ("/pooling", r#"{"input": "\udc00"}"#, 400, "TextEncodeInput"),
        ("/score", r#"{"text_1": "a", "text_2": "\ud800"}"#, 400, "TextEncodeInput"),
        ("/rerank", r#"{"query": "\ud800", "documents": ["a"]}"#, 400, "TextEncodeInput"),
        ("/v2/embed", r#"{"texts": ["\ud800"]}"#, 400, "TextEncodeInput"),
    ] {
        let answer = pooling.ask(post(path, &[], body.as_bytes())).await;
        let shown = answer.json();
        let shown = shown["error"]["message"].as_str().or(shown["detail"].as_str());
        let found = shown.is_some_and(|message| message.contains(text));
        assert!(answer.status == status && found, "{path} {body}: {answer:?}");
    }
}

/// vLLM's response object has no `truncation` of null, though the request may have it.
#[tokio::test]
async fn a_response_cannot_show_a_truncation_of_null() {
    let sim = Sim::serve(&[]).await;
    let body = json!({"input": "Hi", "max_output_tokens": 1, "truncation": null});
    let answer = sim.post("/v1/responses", &body).await;
    let message = answer.json()["error"]["message"].to_string();
    assert_eq!(answer.status, 400, "{message}");
    assert!(message.contains("1 validation error for ResponsesResponse"), "{message}");
    // With null, a prompt beyond the context is truncated before, as with `auto`.
    let long = json!({"input": "hello ".repeat(9000), "max_output_tokens": 1, "truncation": null});
    let long = sim.post("/v1/responses", &long).await.json()["error"]["message"].to_string();
    assert_eq!(long, message);
    let body =
        json!({"input": "Hi", "max_output_tokens": 1, "prompt_cache_options": {"prewarm": true}});
    let options = sim.post("/v1/responses", &body).await.json()["prompt_cache_options"].clone();
    assert_eq!(options, json!({"mode": "implicit", "ttl": "30m", "comparison_response_id": null}));
}

/// Requests whose answers the comparison with vLLM's own front end mended (`tests/python/front_end_oracle.py`).
#[tokio::test]
async fn refusals_are_those_of_the_python_front_end() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let said = json!([{"role": "user", "content": "Hi"}]);
    let scored = |labels: Value, items: Value, salt: &str| json!({"query": "a", "items": items, "label_token_ids": labels, "cache_salt": salt});
    for (path, body, text) in [
        (
            "/v1/chat/completions",
            json!({"messages": said, "continue_final_message": true}),
            "continue_final_message and add_generation_prompt are not compatible.",
        ),
        (
            "/tokenize",
            json!({"messages": said, "continue_final_message": true}),
            "continue_final_message and add_generation_prompt are not compatible.",
        ),
        (
            "/tokenize",
            json!({"messages": said, "mm_processor_kwargs": {"a": 1}}),
            "Per-request mm_processor_kwargs are disabled by default",
        ),
        (
            "/v1/chat/completions/batch",
            json!({"messages": [said], "continue_final_message": true}),
            "Cannot set both `continue_final_message`",
        ),
        (
            "/v1/chat/completions/batch",
            json!({"messages": [said], "tool_choice": "auto"}),
            "Input should be 'none'",
        ),
        (
            "/v1/chat/completions/batch",
            json!({"messages": [said], "guided_decoding_backend": 5}),
            "Input should be a valid string",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
            "You must use one kind of structured outputs constraint",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "You can only use one kind of structured outputs constraint",
        ),
        (
            "/v1/completions/render",
            json!({"prompt": "a", "use_beam_search": true}),
            "Beam search is not supported by the render endpoint",
        ),
        ("/v1/completions/render", json!({"prompt": [[]]}), "No token_ids rendered"),
        (
            "/generative_scoring",
            scored(json!([5]), json!([]), "s"),
            "items must contain at least one item.",
        ),
        (
            "/generative_scoring",
            scored(json!([]), json!(["a"]), "s"),
            "label_token_ids must contain at least one token ID.",
        ),
        (
            "/generative_scoring",
            scored(json!([-1]), json!([]), "s"),
            "Please provide valid token IDs.",
        ),
        (
            "/generative_scoring",
            scored(json!([5]), json!(["a"]), ""),
            "Parameter 'cache_salt' must be a non-empty string",
        ),
    ] {
        let answer = sim.post(path, &body).await;
        let message = answer.json()["error"]["message"].to_string();
        assert!(answer.status == 400 && message.contains(text), "{path} {body}: {message}");
    }
}

#[tokio::test]
async fn scores_of_two_labels_add_up_to_one() {
    let sim = Sim::serve(&[]).await;
    let mut sum = 0.0;
    for labels in [[30, 31], [31, 30]] {
        let body = json!({"query": [20, 21], "items": [[22]], "label_token_ids": labels});
        let answer = sim.post("/generative_scoring", &body).await.json();
        sum += answer["data"][0]["score"].as_f64().unwrap();
    }
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
}

#[tokio::test]
async fn a_batch_reports_nothing_of_its_prompts() {
    let sim = Sim::serve(&[]).await;
    let chat = json!([{"role": "user", "content": "Hi"}]);
    let body = json!({"messages": [chat], "max_tokens": 1, "return_token_ids": true});
    let answer = sim.post("/v1/chat/completions/batch", &body).await.json();
    assert_eq!(answer["prompt_token_ids"], json!(null));
    assert!(answer["choices"][0]["token_ids"].is_array(), "{answer}");
}

#[tokio::test]
async fn an_empty_request_id_is_an_id() {
    let sim = Sim::serve(&[]).await;
    for (path, body, id) in [
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1, "request_id": ""}), "cmpl-"),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 1, "request_id": ""}), ""),
    ] {
        assert_eq!(sim.post(path, &body).await.json()["id"], id, "{path}");
    }
}

#[tokio::test]
async fn requests_that_the_python_front_end_takes_are_taken() {
    let sim = Sim::serve(&[]).await;
    let said = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        ("/tokenize", json!({"messages": said, "chat_template_kwargs": {"tokenize": true}})),
        ("/v1/completions", json!({"prompt": "a", "prompt_embeds": [], "max_tokens": 1})),
        ("/v1/responses", json!({"input": "a", "stop": "", "max_output_tokens": 1})),
    ] {
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.json());
    }
}

#[tokio::test]
async fn a_rendered_chat_has_what_derendering_needs() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low",
        "kv_transfer_params": {"a": 1}, "vllm_xargs": {"b": 2}, "stream_interval": 2,
        "structured_outputs": {"regex": "a"}, "repetition_detection": {},
    });
    let rendered = sim.post("/v1/chat/completions/render", &body).await.json();
    let kwargs = json!({
        "cohere_format": "cmd4", "add_generation_prompt": true, "continue_final_message": false,
        "reasoning_effort": "low", "enable_thinking": true,
    });
    assert_eq!(rendered["parse_context"]["chat_template_kwargs"], kwargs);
    assert_eq!(rendered["parse_context"]["tool_choice"], "none");
    assert_eq!(rendered["kv_transfer_params"], json!({"a": 1}));
    let params = &rendered["sampling_params"];
    assert_eq!(params["extra_args"], json!({"b": 2}));
    assert_eq!(params["stream_interval"], 2);
    assert_eq!(params["structured_outputs"].as_object().map(|members| members.len()), Some(11));
    assert_eq!(params["repetition_detection"]["min_count"], 0);
}

#[tokio::test]
async fn a_streamed_response_keeps_log_probabilities_and_messages() {
    let sim = Sim::serve(&[]).await;
    let body = json!({
        "input": "Hi", "max_output_tokens": 4, "temperature": 0, "stream": true, "parallel_tool_calls": null,
        "enable_response_messages": true, "include": ["message.output_text.logprobs"],
    });
    let text = sim.post("/v1/responses", &body).await.text();
    let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let response = &serde_json::from_str::<Value>(last).unwrap()["response"];
    let part = &response["output"][0]["content"][0];
    assert!(part["logprobs"][0]["bytes"].is_array(), "{part}");
    assert_eq!(response["parallel_tool_calls"], true);
    let input = response["input_messages"][0]["message"].as_str().unwrap();
    assert_eq!(input.matches("<|begin_of_text|>").count(), 1, "{input}");
    let output = &response["output_messages"][0]["message"];
    assert_eq!(*output, part["text"]);
}
