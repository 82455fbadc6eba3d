//! What is said: thoughts, scripts, pictures, schemas.

use rmpv::Value;
use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer, TokenizerLocation};

use super::front_end::*;

/// `<think>` and `</think>` of the model.
const THINK: [u32; 2] = [4088, 4089];

fn tokenizer() -> Tokenizer {
    let folder = TokenizerLocation::Folder(MODEL.into());
    Tokenizer::open(&folder).unwrap().0
}

/// A request with some of its fields replaced.
fn with(id: &str, params: &[(&str, Value)], changes: &[(usize, Value)]) -> Value {
    let Value::Array(mut fields) = request(id, params) else {
        panic!("a request is an array");
    };
    for (index, value) in changes {
        if fields.len() <= *index {
            fields.resize(index + 1, Value::Nil);
        }
        fields[*index] = value.clone();
    }
    fields.into()
}

fn said(
    front: &FrontEnd,
    id: &str,
    params: &[(&str, Value)],
    changes: &[(usize, Value)],
) -> Vec<u32> {
    front.send(0, ADD, &with(id, params, changes));
    tokens(&front.outputs(id).0)
}

#[test]
fn reasoning_is_between_the_marks_of_its_parser() {
    let front = FrontEnd::start(&["--reasoning-parser", "qwen3", "--reasoning-ratio", "0.5"]);
    let long = [("max_tokens", 60.into()), ("ignore_eos", true.into())];
    let marks = |said: &[u32]| {
        let at = |mark| said.iter().position(|id| *id == mark);
        THINK.map(at)
    };
    let whole = said(&front, "whole", &long, &[]);
    assert_eq!(whole.len(), 60);
    let [start, end] = marks(&whole);
    assert_eq!(start, Some(0), "the prompt opens none");
    let end = end.expect("an end");
    assert!((20..40).contains(&end), "half of it is thought: {end}");
    let open = ids(&[11, 12, THINK[0], 13]);
    let [start, end] = marks(&said(&front, "open", &long, &[(1, open)]));
    assert!(start.is_none() && end.is_some());
    let closed = ids(&[11, THINK[0], THINK[1], 13]);
    assert_eq!(marks(&said(&front, "closed", &long, &[(1, closed)])), [None, None]);
    assert_eq!(marks(&said(&front, "ended", &long, &[(17, true.into())])), [None, None]);
    let off = map(&[("chat_template_kwargs", map(&[("enable_thinking", false.into())]))]);
    assert_eq!(marks(&said(&front, "off", &long, &[(18, off)])), [None, None]);
    let budget = [
        ("max_tokens", 60.into()),
        ("thinking_token_budget", 3.into()),
        ("ignore_eos", true.into()),
    ];
    let bounded = said(&front, "bounded", &budget, &[]);
    assert_eq!(marks(&bounded)[1], Some(4), "a start and three words before it");
}

#[test]
fn thinking_budget_is_not_enforced_by_engine() {
    let front = FrontEnd::start(&[]);
    let budget = [("max_tokens", 3.into()), ("thinking_token_budget", 2.into())];
    assert_eq!(said(&front, "a", &budget, &[]).len(), 3);
}

#[test]
fn scripted_replies_match_last_message() {
    let script = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let rules = "- when: {contains: weather}\n  call: {name: f, arguments: {n: 1}}\n\
        - when: {matches: '^\\d+ degrees'}\n  say: It is warm.\n\
        - when: {contains: broken}\n  fail: {times: 1, error: 503}\n";
    std::fs::write(script.path(), rules).unwrap();
    let front = FrontEnd::start(&["--replies", script.path().to_str().unwrap()]);
    let tokenizer = tokenizer();
    let turn = |text: &str| {
        let text = format!(
            "<|start_header_id|>user<|end_header_id|>\n\nthe weather<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\n{text}<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n"
        );
        (1, ids(&tokenizer.encode(&text, SpecialTokenHandling::Without)))
    };
    let params = [("max_tokens", 200.into()), ("_eos_token_id", EOS.into())];
    let text = |id: &str, asked: &str| {
        let said = said(&front, id, &params, &[turn(asked)]);
        tokenizer.decode(&said, SpecialTokenHandling::Without)
    };
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";
    assert_eq!(text("call", "how is the weather?"), call);
    assert_eq!(text("say", "21 degrees"), "It is warm.");
    front.send(0, ADD, &with("fail", &params, &[turn("broken")]));
    let end = front.outputs("fail").0[0].1.clone();
    assert_eq!(get(&end[18], "retryable").as_bool(), Some(true), "503");
}

#[test]
fn images_are_hashed_by_position_and_content() {
    let front = FrontEnd::start(&["--enable-prefix-caching", "--block-size", "16"]);
    let prompt = ids(&[7; 40]);
    let picture = |hash: &str| {
        let position = map(&[("offset", 4.into()), ("length", 30.into())]);
        let pixels: Value =
            vec![Value::from("float32"), vec![Value::from(1)].into(), 1.into()].into();
        let data = map(&[("pixel_values", map(&[("data", pixels)]))]);
        let feature = map(&[
            ("data", data),
            ("modality", "image".into()),
            ("identifier", hash.into()),
            ("mm_position", position),
        ]);
        Value::from(vec![feature])
    };
    let cached = |id: &str, hash: &str| {
        let changes = [(1, prompt.clone()), (2, picture(hash))];
        let payload = pack(&with(id, &[("max_tokens", 1.into())], &changes));
        // The pixels stand in a frame of their own.
        let frames = [&[0, 0][..], ADD, &payload, &[0; 4]];
        front.input.send_multipart(frames, 0).unwrap();
        let outputs = front.outputs(id).0;
        get(&outputs[0].1[11], "num_cached_tokens").as_u64()
    };
    assert_eq!(cached("a", "one"), Some(0));
    assert_eq!(cached("b", "one"), Some(32));
    assert_eq!(cached("c", "other"), Some(0));
}

#[test]
fn prompts_of_embeddings_have_a_token_for_each_row() {
    let front = FrontEnd::start(&[]);
    let embeds = |data: Value| {
        let shape: Value = vec![Value::from(5), 2.into()].into();
        (9, Value::from(vec![Value::from("float32"), shape, data]))
    };
    let inside = embeds(Value::Ext(3, (0..40).collect()));
    front.send(0, ADD, &with("a", &[("max_tokens", 1.into())], &[(1, Value::Nil), inside]));
    let first = front.outputs("a").0[0].1.clone();
    assert_eq!(get(&first[11], "num_prompt_tokens").as_u64(), Some(5));
    let apart = embeds(1.into());
    let payload = pack(&with("b", &[("max_tokens", 1.into())], &[(1, Value::Nil), apart]));
    let frames = [&[0, 0][..], ADD, &payload, &[9; 40]];
    front.input.send_multipart(frames, 0).unwrap();
    let first = front.outputs("b").0[0].1.clone();
    assert_eq!(get(&first[11], "num_prompt_tokens").as_u64(), Some(5));
}

#[test]
fn json_schema_is_satisfied() {
    let front = FrontEnd::start(&[]);
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
    for (id, schema) in [("text", Value::from(schema)), ("map", map(&[("type", "object".into())]))]
    {
        let outputs = map(&[("json", schema)]);
        let params = [
            ("structured_outputs", outputs),
            ("max_tokens", 500.into()),
            ("_eos_token_id", EOS.into()),
        ];
        let text =
            tokenizer().decode(&said(&front, id, &params, &[]), SpecialTokenHandling::Without);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(value.is_object() && (id == "map" || value["n"].is_i64()), "{text}");
    }
}

#[test]
fn named_tokens_are_scored_in_the_prompt() {
    let front = FrontEnd::start(&[]);
    let rows: Vec<u8> = [7_i32, -1, 8, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
    let shape: Value = vec![Value::from(2), 2.into()].into();
    let asked: Value = vec![Value::from("<i4"), shape, Value::Ext(3, rows)].into();
    let params = [("prompt_logprob_token_ids", asked), ("max_tokens", 1.into())];
    front.send(0, ADD, &with("a", &params, &[]));
    let output = front.outputs("a").0[0].1.clone();
    let (dtype, shape, scores) = numbers(&output[17]);
    assert_eq!((dtype.as_str(), shape), ("float32", vec![2, 2]));
    let scores: Vec<_> = scores.into_iter().map(f32::from_le_bytes).collect();
    assert_eq!(scores[1], f32::NEG_INFINITY, "no token");
    assert!(scores[0] < 0.0 && scores[2] < 0.0);
}

#[test]
fn unsupported_requests_are_rejected_by_name() {
    let front = FrontEnd::start(&[]);
    front.send(0, ADD, &with("a", &[], &[(15, true.into())]));
    let end = front.outputs("a").0[0].1.clone();
    let message = get(&end[18], "message").as_str().unwrap();
    assert!(message.starts_with("resumable is true"), "{message}");
}

#[test]
fn headers_of_a_trace_come_back() {
    let front = FrontEnd::start(&[]);
    let headers =
        map(&[("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into())]);
    front.send(0, ADD, &with("a", &[("max_tokens", 1.into())], &[(14, headers.clone())]));
    assert_eq!(front.outputs("a").0[0].1[10], headers);
}

#[test]
fn bad_word_token_ids_are_not_generated() {
    let front = FrontEnd::start(&[]);
    let tokenizer = tokenizer();
    let long = [("max_tokens", 400.into()), ("ignore_eos", true.into())];
    let text = |id: &str, params: &[(&str, Value)]| {
        tokenizer.decode(&said(&front, id, params, &[]), SpecialTokenHandling::Without)
    };
    assert!(text("free", &long).contains(" the "));
    let words =
        ["the", " the"].map(|word| ids(&tokenizer.encode(word, SpecialTokenHandling::Without)));
    let [most, on] = long;
    let bad = [most, on, ("_bad_words_token_ids", words.to_vec().into())];
    assert!(!text("bad", &bad).contains(" the "));
}

/// The engine checks no `--max-logprobs`; an answer is as large as it says all the same.
#[test]
fn log_probabilities_without_number_are_refused_and_the_engine_lives() {
    let numbers = [1 << 61, 1 << 62, i64::MAX as u64, 1 << 63, u64::MAX];
    let front = FrontEnd::start(&["--force-dummy-tokenizer"]);
    for (at, number) in numbers.into_iter().enumerate() {
        for field in ["logprobs", "prompt_logprobs"] {
            let id = format!("{field}-{at}");
            front.add(&id, &[("max_tokens", 3.into()), (field, number.into())]);
            let (outputs, _) = front.outputs(&id);
            assert_eq!(outputs.len(), 1, "{id}");
            assert!(tokens(&outputs).is_empty(), "{id}");
        }
    }
    front.add("next", &[("max_tokens", 1.into())]);
    assert_eq!(tokens(&front.outputs("next").0).len(), 1);
}
