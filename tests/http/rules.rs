//! What ends an answer, what it costs, and that it repeats.

use serde_json::{Value, json};

use super::sim::Sim;
use vllm_sim_config::CliMode;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// Ids of the tiny model's two end tokens; the tokenizer names the second.
const EOS: [u32; 2] = [4081, 4084];

async fn complete(sim: &Sim, body: Value) -> Value {
    let answer = sim.post(COMPLETION, &body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()
}

fn end(answer: &Value) -> (&Value, &Value) {
    let choice = &answer["choices"][0];
    (&choice["finish_reason"], &choice["stop_reason"])
}

#[tokio::test]
async fn usage_token_counts_add_up() {
    let sim = Sim::serve(&[]).await;
    for n in [1, 3] {
        for prompt in [json!("Hi"), json!(["Hi", "Hello there"]), json!([[1, 2, 3], [4]])] {
            let body = json!({"prompt": prompt, "n": n, "max_tokens": 7, "return_token_ids": true});
            let answer = complete(&sim, body.clone()).await;
            let usage = &answer["usage"];
            let count = |key: &str| usage[key].as_u64().unwrap();
            let choices = answer["choices"].as_array().unwrap();
            let ids = choices.iter().map(|c| c["token_ids"].as_array().unwrap().len() as u64);
            assert_eq!(count("completion_tokens"), ids.sum::<u64>(), "{body}");
            let prompts = choices
                .iter()
                .step_by(n)
                .map(|c| c["prompt_token_ids"].as_array().unwrap().len() as u64);
            assert_eq!(count("prompt_tokens"), prompts.sum::<u64>(), "{body}");
            let total = count("prompt_tokens") + count("completion_tokens");
            assert_eq!(count("total_tokens"), total, "{body}");
            let indices: Vec<_> = choices.iter().map(|c| c["index"].as_u64().unwrap()).collect();
            assert_eq!(indices, (0..choices.len() as u64).collect::<Vec<_>>());
        }
    }
}

/// The two endpoints read a conversation the same way, whatever is in it.
#[tokio::test]
async fn tokenize_count_equals_chat_prompt_tokens() {
    let flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
    let sim = Sim::serve(&flags).await;
    let function = json!({"name": "now"});
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}});
    let called = json!([
        {"role": "user", "content": "Wie spät?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12 Uhr"},
    ]);
    let hi = json!([{"role": "user", "content": "世界 😀"}]);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    let tools = json!([{"type": "function", "function": function}]);
    for body in [
        json!({"messages": hi}),
        json!({"messages": parts}),
        json!({"messages": called}),
        json!({"messages": hi, "tools": tools}),
        json!({"messages": called, "tools": tools}),
        json!({"messages": hi, "add_generation_prompt": false}),
        json!({"messages": hi, "add_special_tokens": true}),
        json!({"messages": [{"role": "developer", "content": "Be brief."}]}),
    ] {
        let count = sim.post("/tokenize", &body).await.json()["count"].clone();
        let mut chat = body.clone();
        chat["max_tokens"] = json!(1);
        let usage = sim.post(CHAT, &chat).await.json()["usage"]["prompt_tokens"].clone();
        assert!(count.is_u64(), "{body}");
        assert_eq!(count, usage, "{body}");
    }
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let body = json!({"messages": [{"role": "user", "content": [image]}]});
    for path in [CHAT, "/tokenize"] {
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["message"], "tiny-llama is not a multimodal model");
    }
}

#[tokio::test]
async fn a_stream_has_the_text_of_the_unary_response() {
    let sim = Sim::serve(&[]).await;
    for more in [
        json!({}),
        json!({"max_tokens": 5}),
        json!({"n": 2}),
        json!({"stop": ["e", "the"]}),
        json!({"stop": ["nobody says this"]}),
        json!({"stop": "a", "include_stop_str_in_output": true}),
        json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 9}),
        json!({"min_tokens": 30, "max_tokens": 60}),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Tell me."}], "seed": 5});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let whole = sim.post(CHAT, &body).await;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let stream = sim.post(CHAT, &body).await;
        let deltas = stream.deltas();
        let full = whole.json();
        for choice in full["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap();
            assert_eq!(whole.said(index), stream.said(index), "{more}");
            let mut own = deltas.iter().flat_map(|d| d["choices"].as_array().unwrap());
            let last = own.rfind(|c| c["index"] == index).unwrap();
            assert_eq!(last["finish_reason"], choice["finish_reason"], "{more}");
            assert_eq!(last["stop_reason"], choice["stop_reason"], "{more}");
        }
        let usage = &deltas.last().unwrap()["usage"];
        for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(usage[key], full["usage"][key], "{more}");
        }
    }
}

#[tokio::test]
async fn max_tokens_finishes_with_length() {
    let sim = Sim::serve(&[]).await;
    let answer = complete(&sim, json!({"prompt": "Hi", "ignore_eos": true})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    assert_eq!(end(&answer), (&json!("length"), &json!(null)));
    for max_tokens in [1, 2, 100] {
        let body = json!({"prompt": "Hi", "ignore_eos": true, "max_tokens": max_tokens});
        let answer = complete(&sim, body).await;
        assert_eq!(answer["usage"]["completion_tokens"], max_tokens);
        assert_eq!(end(&answer), (&json!("length"), &json!(null)));
    }
}

#[tokio::test]
async fn natural_reply_is_not_empty() {
    let sim = Sim::serve(&[]).await;
    for seed in 0..50 {
        let body = json!({"prompt": "Hi", "max_tokens": 5, "seed": seed});
        let answer = complete(&sim, body).await;
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
        assert!((2..=5).contains(&tokens), "{answer}");
    }
}

#[tokio::test]
async fn ignore_eos_fills_the_context() {
    let sim = Sim::serve(&["--max-model-len", "128"]).await;
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": true});
    let answer = sim.post(CHAT, &chat).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 128);
    assert_eq!(end(&answer), (&json!("length"), &json!(null)));
}

#[tokio::test]
async fn min_tokens_delays_the_end() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let short = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let answer = sim.post(CHAT, &short).await.json();
    let usual = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(usual < 10);
    for min_tokens in [10, 40] {
        let mut body = short.clone();
        body["min_tokens"] = json!(min_tokens);
        let answer = sim.post(CHAT, &body).await.json();
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() >= min_tokens, "{answer}");
    }
}

#[tokio::test]
async fn stop_string_is_not_in_reply() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let text = "One two three four five";
    for (stop, said, reason) in [
        (json!("three"), "One two ", "three"),
        (json!(["zero", "four", "two"]), "One ", "two"),
        (json!(["wo th"]), "One t", "wo th"),
        (json!("O"), "", "O"),
    ] {
        for stream in [false, true] {
            for with in [false, true] {
                let body = json!({
                    "prompt": text, "max_tokens": 50, "stop": stop, "stream": stream,
                    "include_stop_str_in_output": with,
                });
                let answer = sim.post(COMPLETION, &body).await;
                let expected = if with { format!("{said}{reason}") } else { said.to_owned() };
                assert_eq!(answer.said(0), expected, "{body}");
                let last = match stream {
                    true => answer.deltas().pop().unwrap(),
                    false => answer.json(),
                };
                assert_eq!(end(&last), (&json!("stop"), &json!(reason)), "{body}");
            }
        }
    }
    let body = json!({"prompt": text, "max_tokens": 50, "stop": "absent"});
    let answer = complete(&sim, body).await;
    assert_eq!(answer["choices"][0]["text"], text);
    assert_eq!(end(&answer), (&json!("stop"), &json!(null)));
}

#[tokio::test]
async fn stop_token_id_ends_reply() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let tokens = json!({"prompt": " there", "add_special_tokens": false});
    let ids = sim.post("/tokenize", &tokens).await.json();
    let there = ids["tokens"][0].as_u64().unwrap();
    let body =
        json!({"prompt": "Hello there, world.", "max_tokens": 50, "stop_token_ids": [there]});
    let answer = complete(&sim, body.clone()).await;
    assert_eq!(end(&answer), (&json!("stop"), &json!(there)));
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("Hello"), "{text}");
    assert!(!text.contains("world"), "{text}");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn a_bias_of_100_determines_every_token() {
    let sim = Sim::serve(&[]).await;
    let body = json!({"prompt": "Hi", "max_tokens": 5, "logit_bias": {"39": 100}, "return_token_ids": true});
    let answer = complete(&sim, body).await;
    assert_eq!(answer["choices"][0]["token_ids"], json!([39, 39, 39, 39, 39]));
    // Towards an end token: the primary one names no reason, the other its id.
    for (id, reason) in [(EOS[1], json!(null)), (EOS[0], json!(EOS[0]))] {
        let bias = json!({id.to_string(): 100});
        let body = json!({"prompt": "Hi", "max_tokens": 50, "logit_bias": bias});
        let answer = complete(&sim, body).await;
        assert_eq!(end(&answer), (&json!("stop"), &reason));
        assert_eq!(answer["usage"]["completion_tokens"], 1);
        assert_eq!(answer["choices"][0]["text"], "");
    }
}

/// The same seed, the same answers, whatever else goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_repeat_at_any_concurrency() {
    let flags = ["--max-num-seqs", "7", "--inter-token-latency", "1ms"];
    let mut rounds = Vec::new();
    for backwards in [false, true] {
        let sim = std::sync::Arc::new(Sim::serve(&flags).await);
        let mut order: Vec<usize> = (0..50).collect();
        if backwards {
            order.reverse();
        }
        let clients = order.into_iter().map(|i| {
            let sim = sim.clone();
            tokio::spawn(async move {
                let prompt = format!("Question {}", i % 25);
                let body = json!({
                    "messages": [{"role": "user", "content": prompt}], "max_tokens": 20,
                    "seed": i, "stream": i % 2 == 0, "n": 1 + i % 3, "temperature": 0.8,
                });
                let answer = sim.post(CHAT, &body).await;
                (i, (0..=(i % 3) as u64).map(|choice| answer.said(choice)).collect::<Vec<_>>())
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut texts = Vec::new();
        for client in clients {
            texts.push(client.await.unwrap());
        }
        texts.sort();
        assert!(sim.is_idle().await);
        rounds.push(texts);
    }
    assert_eq!(rounds[0], rounds[1]);
    let distinct: std::collections::BTreeSet<_> = rounds[0].iter().map(|(_, said)| said).collect();
    assert!(distinct.len() > 20, "answers hardly differ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paced_tokens_arrive_on_time() {
    let sim =
        Sim::serve(&["--time-to-first-token", "200ms", "--inter-token-latency", "150ms"]).await;
    let body = json!({"prompt": "Hi", "max_tokens": 5, "ignore_eos": true, "stream": true});
    let start = tokio::time::Instant::now();
    let answer = sim.post(COMPLETION, &body).await;
    let taken = start.elapsed().as_millis();
    // Never early; late only by what the machine adds.
    assert!((800..4000).contains(&taken), "{taken} ms");
    // The end shares the last token's chunk or has its own.
    assert!((5..=6).contains(&answer.chunks.len()), "{}", answer.chunks.len());
    for chunk in &answer.chunks[..4] {
        assert_eq!(chunk.matches("data: ").count(), 1, "{chunk}");
    }
}

#[tokio::test]
async fn an_echo_is_truncated_except_in_llm_d_mode() {
    let said = async |flags: &[&str]| {
        let flags = [&["--mode", "echo", "--force-dummy-tokenizer"], flags].concat();
        let sim = Sim::llmd(&flags).await;
        let prompt = "one two three four";
        let body = json!({"model": "tiny-llama", "prompt": prompt, "max_tokens": 2});
        let choice = sim.post(COMPLETION, &body).await.json()["choices"][0].take();
        let text = choice["text"].as_str().unwrap().to_owned();
        (text, choice["finish_reason"].as_str().unwrap().to_owned())
    };
    let length = || "length".to_owned();
    let (cut, whole) = ("one two ".to_owned(), "one two three four".to_owned());
    assert_eq!(said(&[]).await, (cut.clone(), length()));
    assert_eq!(said(&["--echo-cut=false"]).await, (whole.clone(), length()));
    assert_eq!(said(&["--compat", "llm-d"]).await, (whole, length()));
    let both = ["--compat", "llm-d", "--echo-cut"];
    assert_eq!(said(&both).await, (cut, length()));
}

#[tokio::test]
async fn multi_token_character_is_sent_once() {
    // The vocabulary is small: most letters beyond ASCII are two tokens or more.
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let said = "naïve Zürich, 城市 😀";
    let chat = json!({"messages": [{"role": "user", "content": said}], "logprobs": true, "top_logprobs": 1});
    let whole = sim.post("/v1/chat/completions", &chat).await.json();
    let joined = |content: &Value| -> String {
        let tokens = content.as_array().unwrap().iter();
        tokens.map(|t| t["token"].as_str().unwrap()).collect()
    };
    let content = &whole["choices"][0]["logprobs"]["content"];
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(joined(content).starts_with(text), "{whole}");
    assert!(!content.to_string().contains('\u{fffd}'), "{content}");
    let part = &content.as_array().unwrap().iter().find(|t| t["token"] == "").unwrap();
    assert_eq!(part["bytes"], json!([]));
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let answer = sim.post("/v1/chat/completions", &streamed).await;
    let deltas = answer.text();
    let chunks = deltas
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l.strip_prefix("data: ")?).ok());
    let parts: Vec<Value> = chunks
        .flat_map(|c| {
            c["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default()
        })
        .collect();
    assert_eq!(json!(parts), *content);
    let completion = json!({"prompt": said, "logprobs": 1, "echo": true, "max_tokens": 60});
    let answer = sim.post("/v1/completions", &completion).await.json();
    let lists = &answer["choices"][0]["logprobs"];
    assert!(!lists.to_string().contains('\u{fffd}'), "{lists}");
}

/// The named folder has precedence; the model's folder counts even with a dummy tokenizer.
#[tokio::test]
async fn what_a_request_leaves_out_is_what_the_generation_config_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("generation_config.json");
    std::fs::write(&file, r#"{"max_new_tokens": 3}"#).expect("is written");
    let path = folder.path().to_str().expect("is UTF-8");
    let tokens = async |sim: &Sim| {
        // Completions have a default limit of 16 in vLLM.
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let body = json!({"messages": messages, "ignore_eos": true});
        let answer = sim.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["completion_tokens"].clone()
    };
    let sim = Sim::serve(&["--generation-config", path]).await;
    assert_eq!(tokens(&sim).await, 3);
    let laid_over = ["--override-generation-config", r#"{"max_new_tokens": 5}"#];
    let flags = [&["--generation-config", path], &laid_over[..]].concat();
    assert_eq!(tokens(&Sim::serve(&flags).await).await, 5);
    // The default limit is the rest of the context.
    let rest = tokens(&Sim::serve(&["--generation-config", "vllm"]).await).await;
    assert!(rest.as_u64() > Some(1000), "{rest}");
    let flags = ["--model", path, "--force-dummy-tokenizer"];
    let sim = Sim::start(CliMode::Vllm, &flags).await;
    assert_eq!(tokens(&sim).await, 3);
}
