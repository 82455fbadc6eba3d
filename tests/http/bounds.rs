//! Every list and number of a body that multiplies what a request costs, at one more than it may be.

use serde_json::{Value, json};

use vllm_sim_config::CliMode;

use super::sim::{Sim, eventually, post};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// Path, body, and words of the refusal.
type Bound = (&'static str, Value, &'static str);

fn completion(fields: Value) -> Value {
    let mut body = json!({"prompt": "Hi", "max_tokens": 1});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

async fn all_refuse(sim: &Sim, bounds: &[Bound]) {
    for (path, body, words) in bounds {
        let answer = sim.post(path, body).await;
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(answer.status, 400, "{path} {shown}: {:.300}", answer.text());
        let message = answer.json()["error"]["message"].clone();
        let message = message.as_str().unwrap();
        assert!(message.contains(words), "{path} {shown}: {message:.400}");
        assert!(answer.text().len() < 20_000, "{path} {shown}");
    }
    assert!(sim.is_idle().await, "a slot is stuck");
}

#[tokio::test]
async fn generation_parameters_are_bounded() {
    let sim = Sim::serve(&[]).await;
    let words = |n: usize| vec!["x"; n];
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let said = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let tools = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": vec![tool; 5000], "tool_choice": "none"});
    let long = json!({"max_tokens": 2000, "min_tokens": 2000, "ignore_eos": true});
    let with = |fields: Value| {
        let mut body = completion(long.clone());
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        body
    };
    let too_large = "The response would take more than 256 MiB.";
    let too_long = "maximum context length is 2048 tokens";
    let bounds: &[Bound] = &[
        (COMPLETION, completion(json!({"n": 16_385})), "n must be at most 16384"),
        (COMPLETION, completion(json!({"prompt": words(1025)})), "1024"),
        (
            COMPLETION,
            completion(json!({"prompt": words(5), "n": 16_384})),
            "81920 sequences (prompts times n); at most 65536 are allowed",
        ),
        (COMPLETION, completion(json!({"stop": words(5)})), "at most 4 items"),
        (COMPLETION, completion(json!({"bad_words": words(129)})), "The max number is 128"),
        (COMPLETION, completion(json!({"logprobs": 21})), "20"),
        (COMPLETION, completion(json!({"prompt_logprobs": 21})), "20"),
        (COMPLETION, completion(json!({"logprobs": 1, "logprob_token_ids": vec![7; 129]})), "128"),
        (COMPLETION, with(json!({"n": 1000, "logprobs": 20})), too_large),
        (
            COMPLETION,
            completion(
                json!({"prompt": "x ".repeat(900), "echo": true, "n": 16_384, "logprobs": 9}),
            ),
            too_large,
        ),
        (
            COMPLETION,
            completion(json!({"prompt": vec!["x ".repeat(900); 200], "prompt_logprobs": 20})),
            too_large,
        ),
        (COMPLETION, json!({"prompt": vec![7; 200_000]}), too_long),
        (CHAT, said(vec![json!({"type": "text", "text": "x "}); 5000].into()), too_long),
        (CHAT, tools, too_long),
        (
            "/v1/chat/completions/batch",
            json!({"messages": vec![vec![json!({"role": "user", "content": "Hi"})]; 100],
                "allowed_token_ids": vec![7; 20_000]}),
            "20001 values for each of 100 conversations are too many",
        ),
        (
            "/generative_scoring",
            json!({"query": "red", "items": vec!["x"; 300], "label_token_ids": vec![7; 300]}),
            "300 items times 300 labels; at most 65536 scores are allowed",
        ),
    ];
    all_refuse(&sim, bounds).await;
}

#[tokio::test]
async fn pooling_parameters_are_bounded() {
    let cuts = r#"{"is_matryoshka":true,"hidden_size":8192}"#;
    let sim = Sim::serve(&["--task", "embed", "--hf-overrides", cuts]).await;
    let inputs = |count: usize| vec!["x"; count];
    let many = "The request has 65537 inputs; at most 65536 are allowed. Send fewer inputs per \
         request.";
    let large = "The response would have 2049 vectors of 8192 numbers; at most 16777216 numbers \
         are allowed. Send fewer inputs or request fewer dimensions.";
    let texts = |count| json!({"texts": inputs(count), "embedding_types": ["float"]});
    let documents = json!({"query": "red", "documents": inputs(65_537)});
    let bounds: &[Bound] = &[
        ("/v1/embeddings", json!({"input": inputs(65_537)}), many),
        ("/v1/embeddings", json!({"input": inputs(2049)}), large),
        ("/v1/embeddings", json!({"input": inputs(2049), "encoding_format": "base64"}), large),
        (
            "/v1/embeddings",
            json!({"input": "Hi", "dimensions": 1_000_000}),
            "dimensions must be at most 8192, got 1000000",
        ),
        ("/pooling", json!({"input": inputs(2049)}), large),
        ("/v2/embed", texts(65_537), many),
        ("/v2/embed", texts(2049), large),
        ("/rerank", documents, many),
        ("/score", json!({"text_1": "red", "text_2": inputs(65_537)}), many),
    ];
    all_refuse(&sim, bounds).await;
    // What may be asked for comes, in frames.
    let body = json!({"input": inputs(40)});
    let answer = sim.post("/v1/embeddings", &body).await;
    assert_eq!(answer.header("content-length"), None);
    let data = answer.json()["data"].clone();
    assert_eq!(data.as_array().unwrap().len(), 40);
    assert_eq!(data[39]["embedding"].as_array().unwrap().len(), 8192);
    assert_eq!(data[39]["index"], 39);
}

#[tokio::test]
async fn llmd_embeddings_have_bounds() {
    let sim = Sim::llmd(&[]).await;
    let body = json!({"input": vec!["x"; 17], "dimensions": 1_000_000});
    let words = "The response would have 17 vectors of 1000000 numbers; at most 16777216 numbers are allowed";
    all_refuse(&sim, &[("/v1/embeddings", body, words)]).await;
}

/// Values take many times the bytes that spell them, and errors many times those.
#[tokio::test]
async fn json_values_and_errors_have_bounds() {
    let sim = Sim::serve(&[]).await;
    let body = format!("{{\"prompt\":[{}1]}}", "1,".repeat((4 << 20) + 1));
    let answer = sim.ask(super::sim::post(COMPLETION, &[], body.as_bytes())).await;
    let words = "the request body holds more than 4194304 JSON values";
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json()["error"]["message"], words);

    let body = json!({"messages": vec![0; 50_000]});
    let answer = sim.post(CHAT, &body).await;
    assert_eq!(answer.status, 400);
    let text = answer.text();
    assert!(text.contains("at least 10000 validation errors:"), "{text:.200}");
    assert!(text.contains("...and at least 9990 more errors"), "{text}");

    let key = "k".repeat(100_000);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "logit_bias": {key: "x"}});
    let answer = sim.post(CHAT, &body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().len() < 20_000, "{} bytes", answer.text().len());
}

/// Every token of every choice is held against these lists; their length counts once.
#[tokio::test]
async fn long_token_lists_are_checked_once() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let many: Vec<u32> = (100_000..400_000).collect();
    let known = |from: u32| (0..30_000).map(|at| from + at % 500).collect::<Vec<_>>();
    let bias = |bias: i32| {
        let pairs = (0..4000).map(|id| (id.to_string(), bias.into()));
        Value::Object(pairs.collect())
    };
    let stops = ["ab".repeat(200_000) + "!", "a".repeat(300_000)];
    let long = |fields: Value| {
        let mut body = json!({"prompt": "a b ".repeat(120), "n": 32, "max_tokens": 1000,
            "min_tokens": 1000, "ignore_eos": true, "stream": true});
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        body
    };
    for fields in [
        json!({"stop_token_ids": many}),
        json!({"stop_token_ids": many, "allowed_token_ids": known(700)}),
        json!({"stop": stops, "include_stop_str_in_output": true}),
        json!({"stop": stops}),
        json!({"logit_bias": bias(-100)}),
        json!({"bad_words": vec!["e"; 128]}),
    ] {
        let answer = sim.post(COMPLETION, &long(fields.clone())).await;
        let shown: String = fields.to_string().chars().take(80).collect();
        assert_eq!(answer.status, 200, "{shown}: {:.300}", answer.text());
    }
    assert!(sim.is_idle().await, "a slot is stuck");
}

/// A template of a request ends by its bytes, its depth, its instructions, or by what it reads.
#[tokio::test]
async fn request_chat_template_cost_is_bounded() {
    let sim = Sim::serve(&["--trust-request-chat-template"]).await;
    let long = "{% set s = 'ab' * 400000 %}";
    let endless = |body: &str| format!("{long}{{% for i in range(99999) %}}{body}{{% endfor %}}");
    let cases = [
        ("x".repeat(2 << 20), "the chat template is too large"),
        (format!("{{{{ a{} }}}}", ".a".repeat(9999)), "operators in one expression"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(), "recursion"),
        ("{{ '%99999999d'|format(1) }}".to_owned(), "width of 99999999"),
        (endless("{% for j in range(99999) %}{% endfor %}"), "ran out of fuel"),
        (endless("{{ s }}"), "does too much"),
        (endless("{% if s|wordcount %}{% endif %}"), "does too much"),
        (endless("{% if s[::-1] == s %}{% endif %}"), "does too much"),
        (endless("{% if s[-1] == 'b' %}{% endif %}"), "does too much"),
    ];
    let bounds = cases.map(|(template, words)| {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        (CHAT, json!({"messages": messages, "chat_template": template}), words)
    });
    all_refuse(&sim, &bounds).await;
}

/// The blocks of a prompt are named in each of its choices.
#[tokio::test]
async fn prompts_times_n_are_bounded() {
    let events =
        r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:*"}"#;
    let flags = ["--model", "demo", "--force-dummy-tokenizer", "--max-model-len", "32768"];
    let flags = [&flags[..], &["--kv-events-config", events]].concat();
    let sim = Sim::start(CliMode::Vllm, &flags).await;
    let body = json!({"prompt": vec![7; 30_000], "n": 16_384, "max_tokens": 1, "stream": true});
    let words = "The prompts of all sequences (prompts times n) would take more than 128 MiB.";
    all_refuse(&sim, &[(COMPLETION, body, words)]).await;
}

/// Log probabilities without number end at the size of the answer, whatever the number wraps to.
#[tokio::test]
async fn log_probability_counts_do_not_overflow() {
    let flags = ["--model", "demo", "--max-logprobs", "-1"];
    let flags = [&flags[..], &["--force-dummy-tokenizer", "--enable-scale-out"]].concat();
    let sim = Sim::start(CliMode::Vllm, &flags).await;
    let numbers = [
        "10000000",
        "2305843009213693952",
        "4611686018427387904",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "170141183460469231731687303715884105727",
    ];
    let said = r#""messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4"#;
    for number in numbers {
        let bodies = [
            (COMPLETION, format!(r#"{{"prompt": "a b", "max_tokens": 4, "logprobs": {number}}}"#)),
            (
                COMPLETION,
                format!(
                    r#"{{"prompt": "a b", "max_tokens": 4, "echo": true, "logprobs": {number}}}"#
                ),
            ),
            (CHAT, format!(r#"{{{said}, "logprobs": true, "top_logprobs": {number}}}"#)),
            (CHAT, format!(r#"{{{said}, "prompt_logprobs": {number}}}"#)),
            (
                "/inference/v1/generate",
                format!(
                    r#"{{"token_ids": [1, 2], "sampling_params": {{"max_tokens": 4, "logprobs": {number}}}}}"#
                ),
            ),
        ];
        for (path, body) in bodies {
            let answer = sim.ask(post(path, &[], body.as_bytes())).await;
            assert_eq!(answer.status, 400, "{path} {body}: {:.300}", answer.text());
        }
    }
    assert!(sim.is_idle().await, "a slot is stuck");
}

/// Each response is within its own bound; those of clients that wait have a bound together.
#[tokio::test]
async fn all_large_responses_together_have_a_bound() {
    let flags = ["--model", "demo", "--force-dummy-tokenizer"];
    let waits = ["--max-logprobs", "-1", "--time-to-first-token", "10m"];
    let sim = Sim::start(CliMode::Vllm, &[&flags[..], &waits].concat()).await;
    // 192 MB each by their log probabilities, none of which is computed before the first token.
    let body = json!({"prompt": "a", "max_tokens": 100, "ignore_eos": true, "logprobs": 20_000,
        "stream": true});
    let request = post(COMPLETION, &[], body.to_string().as_bytes());
    let mut waiting = Vec::new();
    for _ in 0..11 {
        let mut wire = sim.connect().await;
        wire.send(&request).await;
        assert_eq!(wire.head().await.status, 200);
        waiting.push(wire);
    }
    let refused = sim.ask(&request).await;
    assert_eq!(refused.status, 503);
    let words = "The requests and responses in progress would take more than 2048 MiB.";
    assert!(refused.text().contains(words), "{}", refused.text());
    // Small ones are not counted.
    let small = json!({"prompt": "a", "max_tokens": 1, "stream": true});
    let mut wire = sim.connect().await;
    let small = post(COMPLETION, &[], small.to_string().as_bytes());
    wire.send(&small).await;
    assert_eq!(wire.head().await.status, 200);
    waiting.clear();
    drop(wire);
    assert!(eventually(async || sim.is_idle().await).await);
    let mut wire = sim.connect().await;
    wire.send(&request).await;
    assert_eq!(wire.head().await.status, 200);
}

/// A large answer arrives whole, though it is sent in parts.
#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let flags = ["--model", "demo", "--force-dummy-tokenizer"];
    let sim = Sim::start(CliMode::Vllm, &flags).await;
    let prompt: String = "word ".repeat(1_700_000);
    let answer = sim.post("/tokenize", &json!({"prompt": prompt})).await;
    assert_eq!(answer.status, 200);
    let length = answer.header("content-length").unwrap().parse::<usize>();
    assert_eq!(length.unwrap(), answer.text().len());
    assert!(answer.text().len() > 16 << 20, "{}", answer.text().len());
    let json = answer.json();
    assert_eq!(json["count"], json["tokens"].as_array().unwrap().len());
}

#[tokio::test]
async fn refused_request_of_several_sequences_leaves_no_trace() {
    let flags = ["--model", "m", "--max-num-seqs", "2", "--max-waiting-queue-length", "1"];
    let sim = Sim::start(CliMode::Llmd, &[&flags[..], &["--enable-kvcache"]].concat()).await;
    let body = completion(json!({"model": "m", "prompt": vec!["word"; 40].join(" "), "n": 6}));
    let answer = sim.post(COMPLETION, &body).await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    for name in ["vllm:prefix_cache_queries_total", "vllm:prompt_tokens_total"] {
        assert_eq!(sim.metric(name).await, 0.0, "{name}");
    }
    assert!(sim.is_idle().await);
}

#[tokio::test]
async fn large_requests_together_have_a_memory_limit() {
    let sim = Sim::serve(&["--latency-model", "delays", "--time-to-first-token", "60s"]).await;
    let values = vec!["0"; 3_500_000].join(",");
    let body = format!(r#"{{"prompt": "Hi", "max_tokens": 1, "note": [{values}]}}"#);
    let mut first = sim.connect().await;
    first.send(&post(COMPLETION, &[], body.as_bytes())).await;
    assert!(sim.runs(1.0).await);
    let answer = sim.ask(post(COMPLETION, &[], body.as_bytes())).await;
    assert_eq!(answer.status, 503, "{:.300}", answer.text());
    let words = "would take more than 2048 MiB";
    assert!(answer.text().contains(words), "{:.300}", answer.text());
    drop(first);
    assert!(sim.is_idle().await);
}
