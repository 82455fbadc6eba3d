//! Messages of vLLM's API server: MessagePack, to an engine that has joined it.

use std::fs::File;

use rmpv::Value;
use serde_json::json;

use super::mutate::Corpus;
use super::run::fuzz;
use crate::engine_core::front_end::{
    ABORT, ADD, FrontEnd, UTILITY, ids, map, pack, request, tokens, unpack,
};

/// Ends a frame; MessagePack has no use for this byte, and chance brings it now and then.
const BETWEEN_FRAMES: u8 = 0xc1;

/// Names of fields and methods, and the JSON of constraints.
const TOKENS: &[&str] = &[
    "max_tokens",
    "structured_outputs",
    "structural_tag",
    "json_schema",
    "logprobs",
    "_eos_token_id",
    "_bad_words_token_ids",
    "prompt_logprob_token_ids",
    "mm_position",
    "int64",
    "add_lora",
    "collective_rpc",
    "pause_scheduler",
    "sleep",
    "{\"type\":\"object\"}",
    "\u{1}\u{2}",
];

/// A message in one piece.
fn message(kind: &[u8], payload: &Value, aux: &[u8]) -> Vec<u8> {
    let frames = [kind, &pack(payload), aux];
    frames.join(&BETWEEN_FRAMES)
}

/// JSON as MessagePack.
fn packed(json: &serde_json::Value) -> Value {
    unpack(&rmp_serde::to_vec(json).unwrap())
}

fn tensor(dtype: &str, shape: &[u64], data: Value) -> Value {
    let shape: Vec<Value> = shape.iter().map(|size| (*size).into()).collect();
    vec![Value::from(dtype), shape.into(), data].into()
}

/// Requests with every field that is looked at.
fn requests() -> Vec<Value> {
    let sampling = [
        json!({"max_tokens": 3}),
        json!({"max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 1, "logprobs": 2,
            "prompt_logprobs": 1, "_eos_token_id": 4081, "stop_token_ids": [7], "min_tokens": 1,
            "_bad_words_token_ids": [[5, 6]], "logit_bias": {"5": 1.5}, "ignore_eos": true}),
        json!({"max_tokens": 20, "structured_outputs": {"json": {"type": "object"}}}),
        json!({"max_tokens": 20, "structured_outputs": {"regex": "[a-c]+"}}),
        json!({"max_tokens": 20, "structured_outputs": {"grammar": "root ::= \"a\" | \"b\""}}),
        json!({"max_tokens": 20, "structured_outputs": {"structural_tag":
            json!({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": true}})
                .to_string()}}),
    ];
    let mut requests: Vec<Value> =
        sampling.iter().map(|params| with(&[(3, packed(params))])).collect();
    let scored = map(&[
        ("max_tokens", 2.into()),
        ("prompt_logprob_token_ids", tensor("int64", &[1, 2], 1.into())),
        ("prompt_logprob_start", 0.into()),
    ]);
    requests.push(with(&[(3, scored)]));
    let image = json!([{"modality": "image", "identifier": "ab",
        "mm_position": {"offset": 0, "length": 2}}]);
    let lora = json!(["one", 1, "/lora", null, false]);
    let trace = json!({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"});
    requests.push(with(&[
        (2, packed(&image)),
        (6, packed(&lora)),
        (7, "salt".into()),
        (13, 5.into()),
        (14, packed(&trace)),
        (17, true.into()),
        (18, packed(&json!({"enable_thinking": false}))),
    ]));
    let pooling = packed(&json!([true, 8, null, null, "embed"]));
    requests.push(with(&[(3, Value::Nil), (4, pooling)]));
    let raw = Value::Ext(3, vec![1; 64]);
    let embeds = tensor("bfloat16", &[4, 8], raw);
    requests.push(with(&[(1, Value::Nil), (9, embeds)]));
    requests
}

/// A request with other fields at some places.
fn with(fields: &[(usize, Value)]) -> Value {
    let Value::Array(mut all) = request("fuzz", &[("max_tokens", 2.into())]) else {
        unreachable!("a request is an array");
    };
    all.resize(20, Value::Nil);
    for (index, value) in fields {
        all[*index] = value.clone();
    }
    all.into()
}

/// Calls with the arguments that they take.
fn calls() -> Vec<Value> {
    let calls = [
        ("sleep", json!([1, "abort"])),
        ("wake_up", json!([["weights"]])),
        ("pause_generation", json!(["wait", false])),
        ("reset_prefix_cache", json!([true, true])),
        ("add_lora", json!([["two", 2, "/lora", null, false]])),
        ("remove_lora", json!([2])),
        ("collective_rpc", json!(["f", 1.5, [], {}])),
        ("set_weight_version", json!(["v2"])),
        ("get_supported_tasks", json!([])),
    ];
    let call = |(method, args)| vec![0.into(), 1.into(), Value::from(method), packed(&args)];
    calls.into_iter().map(|it| Value::Array(call(it))).collect()
}

/// Whatever came before, the engine still answers calls, and no task of it has panicked.
#[test]
fn fuzz_engine_core_messages() {
    let aux: Vec<u8> = [5_i64, 6].iter().flat_map(|id| id.to_le_bytes()).collect();
    let mut seeds: Vec<Vec<u8>> = requests().iter().map(|it| message(ADD, it, &aux)).collect();
    seeds.extend(calls().iter().map(|it| message(UTILITY, it, &[])));
    seeds.push(message(ABORT, &packed(&json!(["fuzz", "none"])), &[]));
    seeds.push(message(&[2], &ids(&[3, 0]), &[]));
    let corpus = Corpus { seeds, tokens: TOKENS };
    let folder = tempfile::tempdir().unwrap();
    let mut front = None;
    fuzz("messages of a front end", 1, corpus, move |input| {
        let log = folder.path().join("log");
        let front = front.get_or_insert_with(|| {
            let flags = ["--max-model-len", "64", "--log-level", "error"];
            FrontEnd::logged_to(File::create(&log).unwrap().into(), 1, false, &flags)
        });
        let rank = 0_u16.to_le_bytes();
        let frames = input.split(|byte| *byte == BETWEEN_FRAMES);
        let frames = [&rank[..]].into_iter().chain(frames);
        front.input.send_multipart(frames, 0).unwrap();
        front.call("wake_up", vec![Value::Nil]).unwrap();
        front.call("resume_scheduler", Vec::new()).unwrap();
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(!said.contains("panicked"), "{said}");
    });
}

/// The edges of the types that a number of a message may have.
fn edges() -> Vec<Value> {
    let integers =
        [i64::MIN, i64::from(i32::MIN), -1, 0, 1, i64::from(i32::MAX), 1 << 32, 1 << 53, i64::MAX];
    let floats =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, f64::MIN_POSITIVE];
    let integers = integers.into_iter().map(Value::from);
    let edges = integers.chain([Value::from(u64::MAX)]);
    edges.chain(floats.into_iter().map(Value::from)).collect()
}

/// Copies a value, and puts `edge` in the place of its number `at`; counts `at` down.
fn replaced(value: &Value, at: &mut usize, edge: &Value) -> Value {
    match value {
        Value::Integer(_) | Value::F32(_) | Value::F64(_) => {
            let is_here = *at == 0;
            *at = at.wrapping_sub(1);
            match is_here {
                true => edge.clone(),
                false => value.clone(),
            }
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| replaced(item, at, edge));
            Value::Array(items.collect())
        }
        Value::Map(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|(key, value)| (key.clone(), replaced(value, at, edge)));
            Value::Map(entries.collect())
        }
        other => other.clone(),
    }
}

/// Each number of each message at the edges of integers and floats: the engine answers on.
#[test]
fn numbers_of_messages_at_their_edges() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let flags = ["--max-model-len", "64", "--log-level", "error"];
    let front = FrontEnd::logged_to(File::create(&log).unwrap().into(), 1, false, &flags);
    let aux: Vec<u8> = [5_i64, 6].iter().flat_map(|id| id.to_le_bytes()).collect();
    let added = requests().into_iter().map(|it| (ADD, it));
    let called = calls().into_iter().map(|it| (UTILITY, it));
    let mut sent = 0;
    for (kind, message) in added.chain(called) {
        for number in 0.. {
            let mut is_last = false;
            for edge in edges() {
                let mut at = number;
                let mut changed = replaced(&message, &mut at, &edge);
                // The count passes zero where there is such a number.
                is_last = at < usize::MAX / 2;
                if is_last {
                    break;
                }
                if let (ADD, Value::Array(fields)) = (kind, &mut changed) {
                    fields[0] = format!("edge-{sent}").into();
                }
                let payload = pack(&changed);
                let rank = 0_u16.to_le_bytes();
                let frames = [&rank[..], kind, &payload, &aux];
                front.input.send_multipart(frames, 0).unwrap();
                sent += 1;
            }
            front.call("wake_up", vec![Value::Nil]).unwrap();
            front.call("resume_scheduler", Vec::new()).unwrap();
            if is_last {
                break;
            }
        }
    }
    assert!(sent > 1500, "{sent} messages");
    front.add("last", &[("max_tokens", 1.into())]);
    assert_eq!(tokens(&front.outputs("last").0).len(), 1);
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains("panicked"), "{said}");
}
