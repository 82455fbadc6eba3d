//! Parameters of pooling requests, as vLLM 0.33's own front end takes and refuses them
//! (`tests/python/front_end_oracle.py --pooling`).

use serde_json::{Value, json};

use crate::sim::{MODEL, Sim};
use vllm_sim_config::{CliMode, LoadedConfig};

async fn pooling() -> Sim {
    Sim::serve(&["--runner", "pooling", "--convert", "embed"]).await
}

/// Returns the prompt tokens of an answer.
fn tokens(answer: &Value) -> Option<u64> {
    answer["usage"]["prompt_tokens"].as_u64()
}

#[tokio::test]
async fn parameters_are_refused_in_the_words_of_vllm() {
    let sim = pooling().await;
    let pair = |more: Value| merged(json!({"text_1": "a fox", "text_2": ["a", "b"]}), more);
    let texts = |more: Value| merged(json!({"texts": ["a b c d e"]}), more);
    for (path, body, text) in [
        (
            "/pooling",
            json!({"input": "a", "dimensions": 8, "model": "nobody"}),
            "dimensions is currently not supported",
        ),
        (
            "/pooling",
            json!({"input": "a", "task": "classify", "model": "nobody"}),
            "Unsupported task: 'classify'",
        ),
        (
            "/v1/embeddings",
            json!({"input": "a", "mm_processor_kwargs": {"a": 1}, "model": "nobody"}),
            "Per-request mm_processor_kwargs are disabled by default",
        ),
        ("/v1/embeddings", json!({"input": "hello ".repeat(90_000)}), "contains 540000 characters"),
        (
            "/score",
            json!({"text_1": ["a", "b"], "text_2": []}),
            "Input lengths must be either 1:1, 1:N or N:N",
        ),
        (
            "/score",
            pair(json!({"truncate_prompt_tokens": 0})),
            "The decoder prompt cannot be empty",
        ),
        (
            "/score",
            pair(json!({"max_tokens_per_query": -1})),
            "max_tokens_per_query must be a non-negative integer",
        ),
        (
            "/score",
            pair(json!({"max_tokens_per_doc": 2048})),
            "max_tokens_per_doc (2048) must be less than max_model_len (2048).",
        ),
        (
            "/score",
            pair(json!({"text_1": {"content": [{"type": "text", "text": "a"}]}})),
            "MultiModalParam is not supported for LlamaForCausalLM",
        ),
        ("/v2/embed", texts(json!({"max_tokens": 0})), "The decoder prompt cannot be empty"),
        (
            "/v2/embed",
            texts(json!({"max_tokens": 2049})),
            "truncate_prompt_tokens=2049 cannot be greater than max_model_len = 2048.",
        ),
        (
            "/v2/embed",
            texts(json!({"max_tokens": -2})),
            "1 validation error for EmbeddingCompletionRequest\ntruncate_prompt_tokens\n  Input should be greater than or equal to -1",
        ),
        (
            "/v2/embed",
            texts(json!({"max_tokens": 3, "truncate": "NONE"})),
            "Input of 6 tokens exceeds max_tokens=3 with truncate=NONE.",
        ),
        (
            "/v2/embed",
            texts(json!({"input_type": "query"})),
            "Unsupported input_type 'query'. This model does not define any input_type",
        ),
        (
            "/v2/embed",
            json!({"texts": ["hello ".repeat(9000)], "truncate": "NONE"}),
            "contains at least 2049 input tokens",
        ),
    ] {
        let answer = sim.post(path, &body).await;
        let shown = answer.json();
        let message = shown["error"]["message"].as_str().or(shown["detail"].as_str());
        assert!(message.is_some_and(|m| m.contains(text)), "{path} {text}: {shown}");
    }
}

fn merged(mut body: Value, more: Value) -> Value {
    let more = more.as_object().cloned().unwrap_or_default();
    body.as_object_mut().unwrap().extend(more);
    body
}

/// Without a side the end is cut and special tokens stay; a side cuts the tokens as they are.
#[tokio::test]
async fn pooling_requests_are_cut_at_the_end_unless_they_name_a_side() {
    let sim = pooling().await;
    let vector = async |body: Value| sim.post("/v1/embeddings", &body).await.json()["data"].clone();
    let text = "one two three four";
    let ids = sim.post("/tokenize", &json!({"prompt": text})).await.json()["tokens"].clone();
    let ids: Vec<u64> = serde_json::from_value(ids).unwrap();
    for (side, kept) in
        [(None, &ids[..3]), (Some("right"), &ids[..3]), (Some("left"), &ids[ids.len() - 3..])]
    {
        let cut = json!({"input": text, "truncate_prompt_tokens": 3, "truncation_side": side});
        assert_eq!(vector(cut).await, vector(json!({"input": kept})).await, "{side:?}");
    }
    let long = json!({
        "messages": [{"role": "user", "content": "hello ".repeat(9000)}], "truncate_prompt_tokens": -1,
    });
    assert_eq!(tokens(&sim.post("/v1/embeddings", &long).await.json()), Some(2048));
}

#[tokio::test]
async fn inputs_are_padded_to_the_context_after_their_truncation() {
    let sim = pooling().await;
    let padded = json!({"input": "a b c", "padding": "max_length", "truncate_prompt_tokens": 2});
    let answer = sim.post("/v1/embeddings", &padded).await.json();
    assert_eq!(tokens(&answer), Some(2048));
    let ids = sim.post("/tokenize", &json!({"prompt": "a b c"})).await.json()["tokens"].clone();
    // `pad_token` of the model.
    let ids: Vec<u64> =
        (0..2048).map(|at| if at < 2 { ids[at].as_u64().unwrap() } else { 4086 }).collect();
    let same = sim.post("/v1/embeddings", &json!({"input": ids})).await.json();
    assert_eq!(answer["data"], same["data"]);
    let pair = json!({"text_1": "a", "text_2": ["b", "c"], "padding": "max_length"});
    assert_eq!(tokens(&sim.post("/score", &pair).await.json()), Some(3 * 2048));
}

/// One letter each would otherwise take 8 KiB of memory, and as much work as a full context.
#[tokio::test]
async fn padding_of_many_inputs_is_limited() {
    let sim = pooling().await;
    let many = vec!["a"; 8193];
    for (path, body, inputs) in [
        ("/v1/embeddings", json!({"input": many}), 8193),
        ("/pooling", json!({"input": many}), 8193),
        ("/score", json!({"text_1": "a", "text_2": many}), 8194),
        ("/rerank", json!({"query": "a", "documents": many}), 8194),
    ] {
        let refused = sim.post(path, &merged(body, json!({"padding": "max_length"}))).await;
        let error = refused.json()["error"].clone();
        let text = format!(
            "padding=\"max_length\" would make {inputs} inputs of 2048 tokens; at most 16777216 \
             tokens are allowed. Send fewer inputs or no padding."
        );
        assert!(error["message"].as_str().is_some_and(|m| m.starts_with(&text)), "{path}: {error}");
        assert_eq!((refused.status, &error["param"]), (400, &json!("padding")), "{path}");
    }
    let body = json!({"input": many, "encoding_format": "base64", "padding": null});
    assert_eq!(tokens(&sim.post("/v1/embeddings", &body).await.json()), Some(2 * 8193));
}

#[tokio::test]
async fn queries_and_documents_have_limits_of_their_own() {
    let sim = pooling().await;
    let body = json!({
        "query": "a b c d e", "documents": ["a b c d e", "bb cc dd ee"],
        "max_tokens_per_query": 3, "max_tokens_per_doc": 2,
    });
    // Each text has one special token.
    assert_eq!(tokens(&sim.post("/rerank", &body).await.json()), Some(4 + 3 + 3));
}

#[tokio::test]
async fn a_cross_encoder_reads_both_texts_together() {
    let flags = ["--runner", "pooling", "--convert", "classify", "--num-labels", "1"];
    let sim = Sim::serve(&flags).await;
    let read = async |more: Value| {
        let body = merged(json!({"text_1": "a", "text_2": ["b c", "d", ""]}), more);
        tokens(&sim.post("/score", &body).await.json())
    };
    // Each text has one special token, but an empty second text is none.
    assert_eq!(read(json!({})).await, Some((2 + 3) + (2 + 2) + 2));
    assert_eq!(read(json!({"truncate_prompt_tokens": 4})).await, Some(4 + 4 + 2));
    assert_eq!(read(json!({"max_tokens_per_doc": 1})).await, Some((2 + 2) + (2 + 2) + 2));
    let padded = json!({"padding": "max_length"});
    assert_eq!(read(padded).await, Some(3 * 2048));
}

#[tokio::test]
async fn cohere_requests_are_truncated_and_encoded() {
    let sim = pooling().await;
    let texts = json!(["a b c d e", "b"]);
    let read = async |more: Value| {
        sim.post("/v2/embed", &merged(json!({"texts": texts}), more)).await.json()
    };
    let task = json!({"input": "a", "task": "classify"});
    assert_eq!(sim.post("/v1/embeddings", &task).await.status, 200, "the field is of /pooling");
    let input_tokens = |answer: &Value| answer["meta"]["billed_units"]["input_tokens"].as_u64();
    assert_eq!(input_tokens(&read(json!({"max_tokens": 3})).await), Some(3 + 2));
    let long = json!({"texts": ["hello ".repeat(9000)]});
    assert_eq!(input_tokens(&sim.post("/v2/embed", &long).await.json()), Some(2048));
    let answer = read(json!({"embedding_types": []})).await;
    let float = answer["embeddings"]["float"][0].as_array().unwrap();
    let answer = read(json!({"embedding_types": ["ubinary", "binary", "ubinary"]})).await;
    let first = float[..8].iter().fold(0, |bits, x| 2 * bits + i64::from(x.as_f64() >= Some(0.0)));
    assert_eq!(answer["embeddings"]["ubinary"][0][0], first);
    assert_eq!(answer["embeddings"]["binary"][0][0], first - 128);
    let mixed = json!({"inputs": [{"content": [{"type": "text", "text": "a"}]}]});
    let answer = sim.post("/v2/embed", &mixed).await.json();
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    assert_eq!(input_tokens(&answer), tokens(&sim.post("/v1/embeddings", &chat).await.json()));
    assert!(answer.get("texts").is_none(), "{answer}");
}

/// A model folder with prompts of Sentence Transformers has an `input_type` for each.
#[tokio::test]
async fn input_types_are_the_prompts_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(MODEL).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let prompts = json!({"prompts": {"query": "Find: ", "document": ""}}).to_string();
    std::fs::write(folder.path().join("config_sentence_transformers.json"), prompts).unwrap();
    let model = folder.path().display().to_string();
    let flags = ["--model", &model, "--runner", "pooling", "--convert", "embed"];
    let sim = Sim::start(CliMode::Vllm, &flags).await;
    let read = async |kind: &str| {
        sim.post("/v2/embed", &json!({"texts": ["a"], "input_type": kind})).await.json()
    };
    let chat = json!({"messages": [
        {"role": "system", "content": "Find: "}, {"role": "user", "content": "a"},
    ]});
    let same = sim.post("/v1/embeddings", &chat).await.json();
    let query = read("query").await;
    assert_eq!(query["meta"]["billed_units"]["input_tokens"].as_u64(), tokens(&same), "{query}");
    assert_eq!(read("document").await["meta"]["billed_units"]["input_tokens"], 2);
    let message = read("x").await["error"]["message"].clone();
    assert_eq!(message, "Unsupported input_type 'x'. Supported values: document, query");
}

#[tokio::test]
async fn a_classifier_has_the_classes_of_its_config_json() {
    let labels = r#"{"id2label": {"0": "no", "1": "maybe", "2": "yes"}}"#;
    let both = r#"{"id2label": {"0": "no", "1": "maybe", "2": "yes"}, "num_labels": 9}"#;
    let cases: [(&[&str], u64); 5] = [
        (&[], 2),
        (&["--hf-overrides", r#"{"num_labels": 4}"#], 4),
        (&["--hf-overrides", labels], 3),
        (&["--hf-overrides", both], 3),
        (&["--hf-overrides", labels, "--num-labels", "5"], 5),
    ];
    for (more, classes) in cases {
        let flags = [&["--runner", "pooling", "--convert", "classify"], more].concat();
        let answer = Sim::serve(&flags).await.post("/classify", &json!({"input": "a"})).await;
        assert_eq!(answer.json()["data"][0]["num_classes"], classes, "{more:?}");
    }
}

#[test]
fn overrides_of_config_json_are_checked() {
    let load = |model: &str, overrides: &str| {
        LoadedConfig::from_flags(CliMode::Vllm, &["--model", model, "--hf-overrides", overrides])
    };
    for (overrides, named) in [
        (r#"{"num_labels": 0}"#, "1 to 100000"),
        (r#"{"max_position_embeddings": 0}"#, "max_position_embeddings is 0"),
    ] {
        let error = load(MODEL, overrides).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    let warnings = load("org/name", r#"{"num_labels": 4}"#).unwrap().warnings;
    assert!(
        warnings.iter().any(|text| text.contains("--hf-overrides has no effect")),
        "{warnings:?}"
    );
}
