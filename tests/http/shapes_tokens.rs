//! Tokens in or out: derender, render and generate, every shape of an answer. Source of the
//! shapes: vLLM 0.33 `entrypoints/serve/disagg/` and `entrypoints/serve/render/`.

use serde_json::{Value, json};

use super::derender::{CHAT, COMPLETION, TEXT, ids_of};
use super::golden;
use super::sim::{Sim, post};

async fn sim() -> Sim {
    let parsers = ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"];
    let flags = ["--enable-scale-out", "--enable-auto-tool-choice"];
    Sim::serve(&[&flags[..], &parsers].concat()).await
}

#[tokio::test]
async fn derender_response_shapes() {
    let sim = sim().await;
    let reply = |ids: &[u64], finish: Value| {
        json!({"request_id": "r1", "choices": [
            {"index": 0, "token_ids": ids, "finish_reason": finish}]})
    };
    let tool = json!({"type": "function", "function": {"name": "weather"}});
    let request = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    let (call, words) = (ids_of(&sim, TEXT).await, ids_of(&sim, "One two.").await);
    let chat = |reply: Value| json!({"generate_response": reply, "chat_request": request, "prompt_tokens": 7});
    let chunk = |reply: Value| {
        json!({"stream": true, "generate_chunk": reply, "chat_request": request,
            "prompt_token_ids": [1]})
    };
    golden::posts(
        &sim,
        CHAT,
        &[
            ("derender-chat", chat(reply(&words, "stop".into()))),
            ("derender-chat-call", chat(reply(&call, "stop".into()))),
            ("derender-chat-chunk", chunk(reply(&words[..2], Value::Null))),
            ("derender-chat-refused", json!({"generate_response": reply(&words, "stop".into())})),
        ],
    )
    .await;
    let completion = json!({"generate_responses": [reply(&words, "length".into())],
        "prompt_tokens": [4], "completion_request": {"prompt": "x", "return_token_ids": true}});
    let part = json!({"stream": true, "generate_chunk": reply(&words[..2], Value::Null),
        "prompt_token_ids": [1]});
    golden::posts(
        &sim,
        COMPLETION,
        &[("derender-completion", completion), ("derender-completion-chunk", part)],
    )
    .await;
}

#[tokio::test]
async fn requests_to_tokens() {
    let sim = sim().await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (name, path, body) in [
        ("render-chat", "/v1/chat/completions/render", json!({"messages": messages})),
        ("render-completion", "/v1/completions/render", json!({"prompt": "Hi", "max_tokens": 3})),
        (
            "render-messages",
            "/v1/messages/render",
            json!({"model": "tiny-llama", "max_tokens": 3, "messages": messages}),
        ),
        ("render-responses", "/v1/responses/render", json!({"input": "Hi"})),
    ] {
        golden::posts(&sim, path, &[(name, body)]).await;
    }
}

#[tokio::test]
async fn token_generate_response_shapes() {
    let sim = sim().await;
    let body = json!({"token_ids": [39, 68, 75], "sampling_params": {"max_tokens": 2, "seed": 3}});
    let mut stream = body.clone();
    stream["stream"] = true.into();
    golden::posts(
        &sim,
        "/inference/v1/generate",
        &[
            ("generate", body),
            ("generate-stream", stream),
            ("generate-refused", json!({"token_ids": [], "sampling_params": {}})),
        ],
    )
    .await;
}

#[tokio::test]
async fn long_token_id_list_response_shape() {
    let ids = vec!["7"; 40_000].join(",");
    let generate = format!(r#""sampling_params":{{"max_tokens":9,"seed":3}},"token_ids":[{ids}"#);
    let embed = format!(r#""encoding_format":"base64","input":[{ids}"#);
    for (flags, path, body) in [
        (&["--enable-scale-out"][..], "/inference/v1/generate", generate),
        (&["--task", "embed"], "/v1/embeddings", embed),
    ] {
        let sim = Sim::serve(&[flags, &["--max-model-len", "65536"]].concat()).await;
        // A list with a number that is no integer is read with the rest of the body.
        let [apart, whole] = ["1", "1.0"].map(|last| {
            let body = format!("{{{body},{last}]}}");
            post(path, &[], body.as_bytes())
        });
        let mut answers = Vec::new();
        for request in [apart, whole] {
            let mut wire = sim.connect().await;
            wire.send(&request).await;
            let answer = wire.answer().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let mut answer = answer.json();
            for drawn in ["id", "request_id", "created"] {
                answer[drawn].take();
            }
            answers.push(answer);
        }
        assert_eq!(answers[0], answers[1], "{path}");
        assert_eq!(answers[0]["usage"]["prompt_tokens"], 40_001);
    }
}
