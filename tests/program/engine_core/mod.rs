//! Engines behind an API server of vLLM: a scripted one stands in for it.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod content;
mod control;
mod ends;
pub(crate) mod front_end;

use std::process::Command;

use rmpv::Value;
use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer, TokenizerLocation};

use front_end::*;

#[test]
fn a_request_gets_its_tokens_at_the_engines_times() {
    let front = FrontEnd::start(&["--time-to-first-token", "20", "--inter-token-latency", "2"]);
    front.add("a-1", &[("max_tokens", 5.into())]);
    let (outputs, left) = front.outputs("a-1");
    let counts: Vec<_> = outputs.iter().map(|o| o.1[1].as_array().unwrap().len()).collect();
    assert_eq!(counts, [1; 5]);
    for pair in outputs.windows(2) {
        assert!((pair[1].0 - pair[0].0 - 0.002).abs() < 1e-9, "{pair:?}");
    }
    let (first_at, first) = &outputs[0];
    let events = first[7].as_array().unwrap();
    let kinds: Vec<_> = events.iter().map(|e| get(e, "type").as_u64()).collect();
    assert_eq!(kinds, [Some(1), Some(2)]);
    let scheduled = get(&events[1], "timestamp").as_f64().unwrap();
    assert!((first_at - scheduled - 0.02).abs() < 1e-9);
    assert_eq!(get(&first[11], "num_prompt_tokens").as_u64(), Some(3));
    let ends: Vec<_> = outputs.iter().map(|o| o.1[5].as_u64()).collect();
    assert_eq!(ends, [None, None, None, None, Some(1)], "the last one by its length");
    assert_eq!(left, Some(0), "the last message says that nothing runs");
}

#[test]
fn steps_of_a_batch_are_messages() {
    let front = FrontEnd::start(&["--scheduler", "vllm", "--inter-token-latency", "5"]);
    for id in ["a", "b", "c"] {
        front.add(id, &[("max_tokens", 6.into())]);
    }
    let mut ended = 0;
    let mut largest = 0;
    let mut last = 0.0;
    while ended < 3 {
        let message = front.next();
        let outputs = message[1].as_array().unwrap();
        let at = message[3].as_f64().unwrap();
        assert!(at > last || outputs.is_empty(), "one message for each step");
        last = at;
        largest = largest.max(outputs.len());
        let ends = |output: &&Value| !output.as_array().unwrap()[5].is_nil();
        ended += outputs.iter().filter(ends).count();
    }
    assert!(largest > 1, "requests of one step share a message");
}

#[test]
fn tokens_end_a_request_and_strings_do_not() {
    let front = FrontEnd::start(&[]);
    let only = |id: u32| ("allowed_token_ids", ids(&[id]));
    front.add("stop", &[only(9), ("stop_token_ids", ids(&[9]))]);
    let (stop, _) = front.outputs("stop");
    assert_eq!(tokens(&stop), [9]);
    let end = &stop[0].1;
    assert_eq!((end[5].as_u64(), end[6].as_u64()), (Some(0), Some(9)));
    front.add("eos", &[only(EOS), ("_eos_token_id", EOS.into())]);
    let (eos, _) = front.outputs("eos");
    assert_eq!(tokens(&eos), [EOS]);
    assert_eq!((eos[0].1[5].as_u64(), eos[0].1[6].is_nil()), (Some(0), true));
    let every: Vec<_> = ('a'..='z').map(|c| Value::from(c.to_string())).collect();
    front.add("text", &[("stop", every.into()), ("max_tokens", 12.into())]);
    let (text, _) = front.outputs("text");
    assert_eq!(tokens(&text).len(), 12, "stop strings are the front end's");
}

#[test]
fn an_aborted_request_stops_without_output() {
    let front = FrontEnd::start(&["--inter-token-latency", "5"]);
    front.add("gone", &[("max_tokens", 1900.into())]);
    front.next();
    front.send(0, ABORT, &vec![Value::from("gone"), "unknown".into()].into());
    front.rests();
    front.add("next", &[("max_tokens", 1.into())]);
    let outputs = front.outputs("next").0;
    assert_eq!(outputs.len(), 1);
}

#[test]
fn structured_output_is_satisfied() {
    let front = FrontEnd::start(&[]);
    let tag = r#"{"type":"structural_tag","format":{"type":"tags_with_separator","tags":[
        {"type":"tag","begin":"<tool_call>\n{\"name\": \"f\", \"arguments\": ",
         "content":{"type":"json_schema","json_schema":{"type":"object",
            "properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}},
         "end":"}\n</tool_call>"}],
        "separator":"","at_least_one":true,"stop_after_first":false}}"#;
    let outputs = map(&[("structural_tag", tag.into()), ("_backend", "xgrammar".into())]);
    front.add(
        "call",
        &[
            ("structured_outputs", outputs),
            ("max_tokens", 1000.into()),
            ("_eos_token_id", EOS.into()),
        ],
    );
    let said = tokens(&front.outputs("call").0);
    assert_eq!(said.last(), Some(&EOS));
    let folder = TokenizerLocation::Folder(MODEL.into());
    let (tokenizer, _) = Tokenizer::open(&folder).unwrap();
    let text = tokenizer.decode(&said, SpecialTokenHandling::Without);
    let call = text.split("<tool_call>\n").nth(1).expect("a call");
    let call = call.split("\n</tool_call>").next().unwrap();
    let call: serde_json::Value = serde_json::from_str(call).expect("JSON");
    assert_eq!(call["name"], "f");
    assert!(call["arguments"]["n"].is_i64(), "{call}");
}

#[test]
fn utility_calls_pause_and_query_engine() {
    let front = FrontEnd::start(&["--inter-token-latency", "5"]);
    let unknown = front.call("make_tea", vec![]).unwrap_err();
    assert!(unknown.starts_with("Call to make_tea method failed: "), "{unknown}");
    let tasks = front.call("get_supported_tasks", vec![]).unwrap();
    assert_eq!(tasks, vec![Value::from("generate")].into());
    front.add("cut", &[("max_tokens", 1900.into())]);
    front.first_output("cut");
    let pause = vec!["abort".into(), true.into()];
    front.send(
        0,
        UTILITY,
        &vec![0.into(), 1.into(), "pause_generation".into(), Value::Array(pause)].into(),
    );
    let (cut, _) = front.outputs("cut");
    assert_eq!(cut.last().unwrap().1[5].as_u64(), Some(2), "aborted");
    // Its end may be told before the pause is complete, which is answered then.
    let answered = |message: &[Value]| message.get(4).is_some_and(Value::is_array);
    while !answered(&front.next()) {}
    let paused = front.call("is_scheduler_paused", vec![]);
    assert_eq!(paused, Ok(true.into()));
    front.add("late", &[]);
    let (late, _) = front.outputs("late");
    let end = &late[0].1;
    assert_eq!(end[5].as_u64(), Some(3));
    assert_eq!(get(&end[18], "code").as_str(), Some("engine_paused"));
    assert_eq!(get(&end[18], "retryable").as_bool(), Some(true));
    assert_eq!(front.call("resume_scheduler", vec![]), Ok(Value::Nil));
    front.add("again", &[("max_tokens", 2.into())]);
    assert_eq!(tokens(&front.outputs("again").0).len(), 2);
}

#[test]
fn unreadable_messages_are_rejected_or_skipped() {
    let front = FrontEnd::start(&[]);
    for (kind, payload) in [(ADD, &b"\xc1"[..]), (ABORT, b""), (&[9], b"\x90")] {
        let frames = [&[0, 0][..], kind, payload];
        front.input.send_multipart(frames, 0).unwrap();
    }
    let mut wrong = request("wrong", &[]);
    if let Value::Array(fields) = &mut wrong {
        fields[1] = vec![Value::from(-1)].into();
    }
    front.send(0, ADD, &wrong);
    let (outputs, _) = front.outputs("wrong");
    let error = &outputs[0].1[18];
    assert_eq!(get(error, "code").as_str(), Some("validation_error"));
    let text = get(error, "message").as_str().unwrap();
    assert_eq!(text, "prompt_token_ids is -1, must be a token id");
}

#[test]
fn sigterm_aborts_running_requests() {
    let mut front = FrontEnd::start(&["--inter-token-latency", "5"]);
    front.add("cut", &[("max_tokens", 1900.into())]);
    front.first_output("cut");
    let pid = front.engine.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(killed.unwrap().success());
    let (cut, _) = front.outputs("cut");
    assert_eq!(cut.last().unwrap().1[5].as_u64(), Some(2));
    assert_eq!(front.engine.wait().unwrap().code(), Some(0));
}

#[test]
fn each_api_server_gets_the_outputs_of_its_requests() {
    let front = FrontEnd::start(&["--inter-token-latency", "2"]);
    let mut other = request("other", &[("max_tokens", 3.into())]);
    if let Value::Array(fields) = &mut other {
        fields[11] = 1.into();
    }
    front.send(0, ADD, &other);
    front.add("own", &[("max_tokens", 9.into())]);
    let (own, _) = front.outputs("own");
    assert_eq!(tokens(&own).len(), 9);
    let mut ended = false;
    while !ended {
        let message = unpack(&front.other.0.recv_bytes(0).expect("a message"));
        for output in message[1].as_array().unwrap() {
            assert_eq!(output[0].as_str(), Some("other"));
            ended |= !output[5].is_nil();
        }
    }
}

#[test]
fn draft_tokens_are_counted() {
    let draft = r#"{"method":"eagle","model":"x","num_speculative_tokens":2}"#;
    let front = FrontEnd::start(&[
        "--scheduler",
        "vllm",
        "--inter-token-latency",
        "2",
        "--speculative-config",
        draft,
    ]);
    front.add("a", &[("max_tokens", 30.into())]);
    let (mut drafts, mut accepted, mut decoded, mut steps) = (0, 0, 0, 0);
    loop {
        let message = front.next();
        let spec = message[2].as_map().map(|_| get(&message[2], "spec_decoding_stats"));
        if let Some(spec) = spec.filter(|spec| spec.is_map()) {
            drafts += get(spec, "num_drafts").as_u64().unwrap();
            accepted += get(spec, "num_accepted_tokens").as_u64().unwrap();
        }
        let outputs = message[1].as_array().unwrap();
        let Some(output) = outputs.first().and_then(Value::as_array) else {
            continue;
        };
        if output[11].is_nil() {
            steps += 1;
            decoded += output[1].as_array().unwrap().len() as u64;
        }
        if !output[5].is_nil() {
            break;
        }
    }
    // The last step may have more of them right than there is room for.
    assert!(accepted > 0 && drafts <= steps && decoded <= steps + accepted);
}

#[test]
fn ranks_join_and_answer_separately() {
    let front = FrontEnd::of_ranks(2, true, &[]);
    for (rank, ready) in front.ready.iter().enumerate() {
        assert_eq!(get(ready, "data_parallel_rank").as_u64(), Some(rank as u64));
        assert_eq!(get(ready, "data_parallel_size").as_u64(), Some(2));
        assert_eq!(get(ready, "max_loras").as_u64(), Some(0));
    }
    for joined in &front.joined {
        assert_eq!(get(joined, "status").as_str(), Some("READY"));
        assert!(get(joined, "parallel_config_hash").is_str());
    }
    front.send(1, ADD, &request("second", &[("max_tokens", 3.into())]));
    loop {
        let message = front.next();
        if message[1].as_array().is_some_and(|outputs| !outputs.is_empty()) {
            assert_eq!(message[0].as_u64(), Some(1));
            break;
        }
    }
}

#[test]
fn log_probabilities_are_arrays_of_a_row_for_each_token() {
    let front = FrontEnd::start(&["--inter-token-latency", "2"]);
    let asked = [("logprobs", 2.into()), ("prompt_logprobs", 1.into()), ("max_tokens", 2.into())];
    front.add("a", &asked);
    let (outputs, _) = front.outputs("a");
    let said = tokens(&outputs);
    for ((_, output), token) in outputs.iter().zip(said) {
        let arrays = output[2].as_array().expect("log probabilities");
        let (dtype, shape, ids) = numbers(&arrays[0]);
        assert_eq!((dtype.as_str(), shape), ("<i4", vec![1, 3]));
        assert_eq!(u32::from_le_bytes(ids[0]), token);
        let (dtype, shape, values) = numbers(&arrays[1]);
        assert_eq!((dtype.as_str(), shape), ("<f4", vec![1, 3]));
        let values: Vec<_> = values.into_iter().map(f32::from_le_bytes).collect();
        assert!(values.iter().all(|x| *x <= 0.0) && values[1] >= values[2]);
        assert_eq!(numbers(&arrays[2]).1, [1]);
        assert!(arrays[3].is_nil());
    }
    let prompt = outputs[0].1[3].as_array().expect("those of the prompt");
    let (dtype, shape, ids) = numbers(&prompt[0]);
    assert_eq!((dtype.as_str(), shape), ("int32", vec![2, 2]));
    let own = [ids[0], ids[2]].map(u32::from_le_bytes);
    assert_eq!(own, [12, 13], "a row for each token but the first one");
    assert_eq!(numbers(&prompt[1]).0, "float32");
    assert!(outputs[1].1[3].is_nil(), "once");
}

/// What the coordinator hears of waves, without loads: the wave that began or is complete.
fn wave_edge(coordinator: &zmq::Socket) -> (bool, u64) {
    loop {
        let message = unpack(&coordinator.recv_bytes(0).expect("a message"));
        let at = |index: usize| message.as_array()?.get(index)?.as_u64();
        if let Some(wave) = at(7) {
            return (true, wave);
        }
        if let Some(wave) = at(6) {
            return (false, wave);
        }
    }
}

#[test]
fn moe_ranks_start_and_end_waves() {
    let shape = r#"{"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","hidden_size":64,
        "intermediate_size":64,"moe_intermediate_size":64,"num_experts":4,"num_experts_per_tok":2,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"head_dim":16,
        "vocab_size":4096,"max_position_embeddings":2048}"#;
    // With steps of a model they also step together, which is nothing that is told.
    for model in [&[][..], &["--latency-model", "polynomial"]] {
        let flags = [&["--hf-overrides", shape], model].concat();
        let front = FrontEnd::of_ranks(2, true, &flags);
        let (_, hears) = front.coordinator.as_ref().unwrap();
        let wave = |of: u64| {
            let mut fields = request("a", &[("max_tokens", 2.into())]);
            if let Value::Array(fields) = &mut fields {
                fields.push(of.into());
            }
            front.send(1, ADD, &fields);
            front.outputs("a");
            [wave_edge(hears), wave_edge(hears)]
        };
        assert_eq!(wave(0), [(true, 0), (false, 0)]);
        assert_eq!(wave(0), [(true, 1), (false, 1)]);
        assert_eq!(wave(7), [(true, 7), (false, 7)]);
    }
}

#[test]
fn pooling_requests_return_vectors() {
    let front = FrontEnd::start(&["--runner", "pooling", "--convert", "embed"]);
    let tasks = front.call("get_supported_tasks", vec![]).unwrap();
    assert_eq!(tasks, vec![Value::from("embed"), "token_embed".into()].into());
    let pool_to = |id: &str, task: &str, dimensions: Value| {
        let mut fields = request(id, &[]);
        if let Value::Array(fields) = &mut fields {
            fields[3] = Value::Nil;
            let params = vec![Value::Nil, dimensions, Value::Nil, Value::Nil, task.into()];
            fields[4] = params.into();
        }
        front.send(0, ADD, &fields);
        let (outputs, _) = front.outputs(id);
        assert_eq!(outputs.len(), 1);
        outputs[0].1.clone()
    };
    let pool = |id: &str, task: &str| pool_to(id, task, Value::Nil);
    let whole = pool("whole", "embed");
    assert_eq!(whole[5].as_u64(), Some(0));
    let (dtype, shape, numbers_of_all) = numbers(&whole[4]);
    assert_eq!(dtype, "float32");
    assert_eq!(shape.len(), 1);
    let length: f32 = numbers_of_all.into_iter().map(|x| f32::from_le_bytes(x).powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-4, "{length}");
    let (_, each, _) = numbers(&pool("each", "token_embed")[4]);
    assert_eq!(each, [3, shape[0]]);
    let classes = pool("classes", "classify");
    assert_eq!(numbers(&classes[4]).1, [2]);
    for refused in [pool("plugin", "plugin"), pool_to("none", "embed", 0.into())] {
        assert_eq!(get(&refused[18], "code").as_str(), Some("validation_error"));
    }
    assert_eq!(numbers(&pool_to("four", "embed", 4.into())[4]).1, [4]);
}

#[test]
fn a_scenario_fails_requests_and_takes_the_engine_away() {
    let scenario = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let phases = "name: drill\nphases:\n\
        - {name: bad, requests: 2, set: {failure-injection-rate: 100, failure-types: [server_error]}}\n\
        - {name: calm, requests: 1}\n\
        - {name: gone, do: [{restart: 1s}]}\n";
    std::fs::write(scenario.path(), phases).unwrap();
    let path = scenario.path().to_str().unwrap();
    let mut front = FrontEnd::start(&["--inter-token-latency", "5", "--scenario", path]);
    for id in ["a", "b"] {
        front.add(id, &[]);
        let (outputs, _) = front.outputs(id);
        assert_eq!(outputs[0].1[5].as_u64(), Some(3));
    }
    front.add("lost", &[("max_tokens", 1900.into())]);
    loop {
        let frame = front.output.recv_bytes(0).expect("a last word");
        if frame == b"ENGINE_CORE_DEAD" {
            break;
        }
        let outputs = unpack(&frame)[1].as_array().cloned().unwrap_or_default();
        assert!(outputs.iter().all(|output| output[5].is_nil()), "no end");
    }
    assert_eq!(front.engine.wait().unwrap().code(), Some(1));
}

#[test]
fn an_engine_reports_what_it_is() {
    let flags =
        ["--max-model-len", "1024", "--num-gpu-blocks-override", "500", "--max-num-seqs", "8"];
    let front = FrontEnd::start(&flags);
    let shown = |value: &Value| {
        let entries = value.as_map().unwrap().iter();
        // Drawn anew each time.
        let entries = entries.filter(|(key, _)| key.as_str() != Some("instance_id"));
        let lines = entries.map(|(key, value)| format!("{} {value}", key.as_str().unwrap()));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(shown(&front.ready[0]), READY);
    let statuses = [&front.hello, &front.joined[0]].map(|value| shown(value).join(", "));
    let both =
        ["HELLO", "READY"].map(|word| format!("status \"{word}\", local false, headless true"));
    assert_eq!(statuses, both);
}

/// What it says, name by name.
const READY: [&str; 27] = [
    "max_model_len 1024",
    "num_gpu_blocks 500",
    "block_size 16",
    "dp_stats_address nil",
    "dtype \"bfloat16\"",
    "vllm_version \"0.33.0\"",
    "world_size 1",
    "data_parallel_size 1",
    "data_parallel_rank 0",
    "tensor_parallel_size 1",
    "pipeline_parallel_size 1",
    "decode_context_parallel_size 1",
    "max_num_seqs 8",
    "max_num_batched_tokens 2048",
    "supports_lora false",
    "max_loras 0",
    "mamba_block_size nil",
    "kv_cache_size_tokens 8000",
    "kv_cache_max_concurrency 7.8125",
    "kv_events_config nil",
    "weight_transfer_backend nil",
    "enable_sleep_mode false",
    "supports_draft_weight_updates false",
    "effective_attention_block_size 16",
    "coord_store_port 0",
    "coordinator_input_address nil",
    "coordinator_output_address nil",
];
