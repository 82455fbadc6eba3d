//! Input that is wrong, huge or malicious gets an answer, holds no slot and harms nobody else.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::sim::{MODEL, Sim, post};
use super::wire::Wire;
use vllm_sim_config::CliMode;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// The server still works, and nothing is left behind.
async fn assert_server_is_healthy(sim: &Sim) {
    assert!(sim.is_idle().await, "a slot is stuck");
    let answer = sim.post(COMPLETION, &json!({"prompt": "Hi", "max_tokens": 1})).await;
    assert_eq!(answer.status, 200);
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn malformed_json_bodies_are_rejected() {
    let sim = Sim::serve(&[]).await;
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    let cases: &[Vec<u8>] = &[
        b"".to_vec(),
        b"{".to_vec(),
        b"\"".to_vec(),
        b"{\"prompt\": \"Hi\"} trailing".to_vec(),
        b"{'prompt': 'Hi'}".to_vec(),
        b"{\"prompt\": \"\\u\"}".to_vec(),
        b"{\"prompt\": \"\x00\"}".to_vec(),
        b"\xff\xfe{\"prompt\"".to_vec(),
        b"{\"prompt\": \"\xc3\x28\"}".to_vec(),
        b"\x1f\x8b\x08\x00".to_vec(),
        deep("[", "]").into_bytes(),
        deep("{\"a\":", "").into_bytes(),
        format!("{{\"prompt\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000)).into_bytes(),
    ];
    for path in [CHAT, COMPLETION, "/tokenize", "/detokenize"] {
        for body in cases {
            let answer = sim.ask(post(path, &[], body)).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]);
            assert_eq!(answer.status, 400, "{path} {shown}: {}", answer.text());
            assert!(answer.json().is_object());
        }
    }
    // Python's parser takes a byte order mark.
    let marked = b"\xef\xbb\xbf{\"prompt\": \"Hi\"}";
    assert_eq!(sim.ask(post(COMPLETION, &[], marked)).await.status, 200);
    assert_server_is_healthy(&sim).await;
}

/// Values that a parser may accept or not; neither may break anything.
fn odd_values() -> Vec<Value> {
    let big = "9".repeat(5_000);
    let numbers = [
        "-1",
        "0",
        "-0.0",
        "1e400",
        "-1e400",
        "1e-400",
        "2.5",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "-9223372036854775809",
        "4294967296",
        &big,
    ];
    let mut values: Vec<Value> =
        numbers.iter().filter_map(|number| serde_json::from_str(number).ok()).collect();
    values.extend([
        json!(null),
        json!(true),
        json!(""),
        json!("\u{0}"),
        json!("NaN"),
        json!([]),
        json!([[]]),
        json!([null]),
        json!({}),
        json!({"": {}}),
        json!({"-1": -1e308, "99999999999999999999": "x"}),
        json!([-1, 4_294_967_296_u64, 9e99]),
    ]);
    values
}

#[tokio::test]
async fn odd_field_values_do_not_crash() {
    const FIELDS: &[&str] = &[
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "stream",
        "stream_options",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "tools",
        "tool_choice",
        "response_format",
        "structured_outputs",
        "echo",
        "suffix",
        "ignore_eos",
        "bad_words",
        "allowed_token_ids",
        "truncate_prompt_tokens",
        "return_token_ids",
        "request_id",
        "cache_salt",
        "kv_transfer_params",
        "priority",
        "stream_interval",
        "vllm_xargs",
        "documents",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "logprob_token_ids",
        "repetition_detection",
        "skip_special_tokens",
        "user",
    ];
    let sim = Sim::serve(&["--max-model-len", "256"]).await;
    let mut wire = sim.connect().await;
    for field in FIELDS {
        for value in odd_values() {
            for (path, mut body) in [
                (CHAT, json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})),
                (COMPLETION, json!({"prompt": "Hi", "max_tokens": 3})),
            ] {
                body[field] = value.clone();
                let text = body.to_string();
                wire.send(&post(path, &[], text.as_bytes())).await;
                let answer = wire.answer().await;
                let shown: String = text.chars().take(200).collect();
                let expected = matches!(answer.status, 200 | 400 | 404);
                assert!(expected, "{path} {shown}: {} {}", answer.status, answer.text());
                assert!(answer.text().len() < 1 << 20, "{path} {shown}");
            }
        }
    }
    assert_server_is_healthy(&sim).await;
}

#[tokio::test]
async fn extreme_json_numbers() {
    let sim = Sim::serve(&[]).await;
    for number in ["1e999", "-1e999", "NaN", "Infinity", "00", "1.", "0x1", &"9".repeat(10_000)] {
        for field in ["max_tokens", "temperature", "seed", "n", "priority"] {
            let body = format!("{{\"prompt\":\"Hi\",\"{field}\":{number}}}");
            let answer = sim.ask(post(COMPLETION, &[], body.as_bytes())).await;
            let expected = matches!(answer.status, 200 | 400);
            assert!(expected, "{field} {:.20}: {}", number, answer.text());
        }
    }
    assert_server_is_healthy(&sim).await;
}

/// As Python's parser has it, the last one counts.
#[tokio::test]
async fn last_of_duplicate_json_keys_wins() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let body = br#"{"prompt":"One","max_tokens":1,"prompt":"Two","max_tokens":50}"#;
    let answer = sim.ask(post(COMPLETION, &[], body)).await;
    assert_eq!(answer.said(0), "Two");
}

#[tokio::test]
async fn hostile_prompt_texts_do_not_crash() {
    let sim = Sim::serve(&["--mode", "echo", "--max-model-len", "4096"]).await;
    for text in [
        "\u{0}",
        "a\u{0}b",
        "\u{feff}",
        "\u{202e}reversed",
        "😀👩‍👩‍👧‍👦",
        "\u{1b}[31m",
        "\\u0000",
        "\r\n\r\n",
        "data: [DONE]\n\ndata: {}",
        "</script>",
        "\u{2028}\u{2029}",
        "\"quoted\" \\ back",
    ] {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        assert_eq!(sim.post(CHAT, &body).await.said(0), text);
        let body = json!({"messages": [{"role": "user", "content": text}], "stream": true});
        assert_eq!(sim.post(CHAT, &body).await.said(0), text);
    }
    // Half a surrogate pair is JSON, but no text.
    let lone = br#"{"messages":[{"role":"user","content":"\ud800"}]}"#;
    let answer = sim.ask(post(CHAT, &[], lone)).await;
    assert!(matches!(answer.status, 200 | 400), "{answer:?}");
    assert_server_is_healthy(&sim).await;
}

#[tokio::test]
async fn excessive_sizes_are_rejected() {
    let sim = Sim::serve(&["--max-model-len", "auto"]).await;
    let megabyte = "lorem ipsum ".repeat(90_000);
    let many: Vec<Value> = (0..10_000)
        .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "Hi"}))
        .collect();
    let keys: Value =
        (0..50_000).map(|i| (format!("k{i}"), json!(i))).collect::<serde_json::Map<_, _>>().into();
    for (path, body, status) in [
        (COMPLETION, json!({"prompt": megabyte}), 400),
        (CHAT, json!({"messages": [{"role": "user", "content": megabyte}]}), 400),
        (CHAT, json!({"messages": many}), 400),
        (COMPLETION, json!({"prompt": vec!["Hi"; 1025]}), 400),
        (COMPLETION, json!({"prompt": vec![7; 200_000]}), 400),
        (COMPLETION, json!({"prompt": "Hi", "n": 16_385}), 400),
        (COMPLETION, json!({"prompt": "Hi", "max_tokens": 1, "metadata": keys}), 200),
        (
            COMPLETION,
            json!({"prompt": "Hi", "max_tokens": 1, "stop": vec!["x".repeat(100_000)]}),
            200,
        ),
        ("/tokenize", json!({"prompt": megabyte}), 200),
        ("/tokenize", json!({"messages": many}), 200),
    ] {
        let answer = sim.post(path, &body).await;
        let shown: String = body.to_string().chars().take(60).collect();
        assert_eq!(answer.status, status, "{path} {shown}: {:.300}", answer.text());
    }
    assert_server_is_healthy(&sim).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let sim = Sim::serve(&["--max-request-body-size-mb", "1"]).await;
    let body = json!({"prompt": "x".repeat(2 << 20)}).to_string();
    let answer = sim.ask(post(COMPLETION, &[], body.as_bytes())).await;
    assert_eq!(answer.status, 413);
    // The same without a length.
    let mut wire = sim.connect().await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    wire.send(head.as_bytes()).await;
    for piece in body.as_bytes().chunks(1 << 19) {
        wire.send(format!("{:x}\r\n", piece.len()).as_bytes()).await;
        wire.send(piece).await;
        wire.send(b"\r\n").await;
    }
    assert_eq!(wire.answer().await.status, 413);
    assert_server_is_healthy(&sim).await;
}

#[tokio::test]
async fn non_http_input_is_rejected() {
    let sim = Sim::serve(&["--keep-alive-timeout", "1"]).await;
    for bytes in [
        &b"\r\n\r\n\r\n"[..],
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: sim\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nNO\r\n\r\n",
        b"PR",
        b"GET /version HTTP/1.1\r\nhost: s",
    ] {
        let stream = TcpStream::connect(sim.address()).await.unwrap();
        let mut stream = stream;
        stream.write_all(bytes).await.unwrap();
        // Answered and closed, or just closed; within the time of an idle connection.
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), read).await;
        let shown = String::from_utf8_lossy(bytes).into_owned();
        assert!(ended.is_ok(), "{shown:?} keeps its connection");
    }
    assert_server_is_healthy(&sim).await;
}

/// A client that sends a head and then nothing, or reads nothing of a long stream.
#[tokio::test]
async fn slow_clients_delay_no_other() {
    let sim = Sim::serve(&[]).await;
    let mut half = sim.connect().await;
    half.send(b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{\"pro").await;
    let mut deaf = Vec::new();
    for _ in 0..8 {
        let mut wire = Wire::new(TcpStream::connect(sim.address()).await.unwrap());
        let body = json!({"prompt": "Hi", "max_tokens": 2000, "ignore_eos": true, "stream": true, "logprobs": 5});
        wire.send(&post(COMPLETION, &[], body.to_string().as_bytes())).await;
        deaf.push(wire);
    }
    // The engine does not wait for readers.
    assert_server_is_healthy(&sim).await;
    for mut wire in deaf {
        let deltas = wire.answer().await.deltas();
        assert_eq!(deltas.len(), 2000);
    }
    drop(half);
    assert_server_is_healthy(&sim).await;
}

/// A status that comes before an answer is none.
#[tokio::test]
async fn injected_status_must_be_valid_http() {
    let sim = Sim::serve(&[]).await;
    let body = json!({"prompt": "Hi", "max_tokens": 1});
    for (asked, status, words) in [
        ("101", 400, "must be an integer from 200 to 999"),
        ("100", 400, "must be an integer from 200 to 999"),
        ("1000", 400, "must be an integer from 200 to 999"),
        ("often", 400, "must be an integer"),
        ("200", 200, "(code 200)"),
        ("999", 999, "(code 999)"),
    ] {
        let header = format!("x-return-error: {asked}");
        let answer = sim.post_with(COMPLETION, &[&header], &body).await;
        let message = answer.json()["error"]["message"].to_string();
        assert_eq!(answer.status, status, "{asked}: {message}");
        assert!(message.contains(words), "{asked}: {message}");
    }
    assert_server_is_healthy(&sim).await;
}

/// The split pattern of a downloaded model may backtrack without end on some texts.
#[tokio::test]
async fn untokenizable_text_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(MODEL).expect("the model").flatten() {
        let to = folder.path().join(entry.file_name());
        std::fs::copy(entry.path(), to).expect("is copied");
    }
    let file = folder.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&file).expect("is there");
    let mut tokenizer: Value = serde_json::from_str(&text).expect("is JSON");
    tokenizer["pre_tokenizer"] = json!({"type": "Split", "behavior": "Isolated", "invert": false,
        "pattern": {"Regex": "(a+)+$|(a|aa)+$|(.*)*x"}});
    std::fs::write(&file, tokenizer.to_string()).expect("is written");
    let flags =
        ["--model", folder.path().to_str().expect("UTF-8"), "--served-model-name", "tiny-llama"];
    let sim = Sim::start(CliMode::Vllm, &flags).await;
    let letters = format!("{}b", "a".repeat(100));
    let chat = json!({"messages": [{"role": "user", "content": letters}], "max_tokens": 2});
    for (path, body) in [
        ("/tokenize", json!({"prompt": letters})),
        ("/v1/completions", json!({"prompt": letters, "max_tokens": 2})),
        ("/v1/completions", json!({"prompt": letters.repeat(200), "max_tokens": 2})),
        ("/v1/chat/completions", chat),
    ] {
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.text().contains("tokenizer.json"), "{path}: {}", answer.text());
    }
    let answer = sim.post("/tokenize", &json!({"prompt": "b c"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Large ids are not clamped to other ids.
#[tokio::test]
async fn token_ids_beyond_a_tokenizer_are_refused() {
    let large = 1_i64 << 32;
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let generated = json!({"request_id": "r", "choices": [
        {"index": 0, "token_ids": [large, 300], "finish_reason": "length"}]});
    let chat = json!({"messages": [], "return_token_ids": true});
    let body = json!({"generate_response": generated, "chat_request": chat});
    let answer = sim.post("/v1/chat/completions/derender", &body).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let told = "out of range integral type conversion attempted";
    assert!(answer.text().contains(told), "{}", answer.text());
    let scoring = json!({"query": [large], "items": [[5]], "label_token_ids": [5, 6]});
    let answer = sim.post("/generative_scoring", &scoring).await;
    let told = "Token id 4294967296 is out of vocabulary";
    assert!(answer.text().contains(told), "{}", answer.text());
    for flags in [&["--runner", "pooling"][..], &["--runner", "pooling", "--force-dummy-tokenizer"]]
    {
        let sim = Sim::serve(flags).await;
        for path in ["/v1/embeddings", "/pooling"] {
            let answer = sim.post(path, &json!({"input": [large, 5]})).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
            assert!(answer.text().contains(told), "{path}: {}", answer.text());
        }
        let answer = sim.post("/v1/embeddings", &json!({"input": [5, 7]})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}
