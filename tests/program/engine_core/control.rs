//! What front ends do to an engine by name, and what they and the coordinator are told of it.

use rmpv::Value;

use super::front_end::*;

fn lora(name: &str, id: i64) -> Value {
    vec![Value::from(name), id.into(), "path".into()].into()
}

#[test]
fn lora_adapters_are_added_and_removed() {
    let front = FrontEnd::start(&["--enable-lora", "--max-loras", "2"]);
    let listed = || front.call("list_loras", vec![]).unwrap();
    assert_eq!(listed(), Value::Array(vec![]));
    assert_eq!(front.call("add_lora", vec![lora("one", 7)]), Ok(true.into()));
    let mut with = request("a", &[("max_tokens", 2.into())]);
    if let Value::Array(fields) = &mut with {
        fields[6] = lora("two", 8);
    }
    front.send(0, ADD, &with);
    front.outputs("a");
    assert_eq!(listed(), ids(&[7, 8]), "a request brings its adapter");
    let by_id = |method: &str, id: i64| front.call(method, vec![id.into()]);
    assert_eq!(by_id("pin_lora", 7), Ok(true.into()));
    assert_eq!(by_id("remove_lora", 7), Ok(true.into()));
    assert_eq!(by_id("remove_lora", 7), Ok(false.into()));
    assert_eq!(listed(), ids(&[8]));
    let without = FrontEnd::start(&[]);
    let refused = without.call("add_lora", vec![lora("one", 7)]).unwrap_err();
    assert!(refused.contains("LoRA is not enabled"), "{refused}");
}

#[test]
fn active_lora_adapters_are_reported() {
    let front = FrontEnd::start(&["--enable-lora", "--inter-token-latency", "5"]);
    let mut with = request("a", &[("max_tokens", 1900.into())]);
    if let Value::Array(fields) = &mut with {
        fields[6] = lora("tuned", 1);
    }
    front.send(0, ADD, &with);
    loop {
        let message = front.next();
        if running(&message) == Some(1) {
            let used = get(&message[2], "running_lora_adapters");
            assert_eq!(get(used, "tuned").as_u64(), Some(1));
            break;
        }
    }
}

#[test]
fn an_engine_sleeps_and_wakes() {
    let front = FrontEnd::start(&["--enable-sleep-mode"]);
    assert_eq!(get(&front.ready[0], "enable_sleep_mode").as_bool(), Some(true));
    let asleep = || front.call("is_sleeping", vec![]).unwrap();
    assert_eq!(front.call("sleep", vec![1.into(), "abort".into()]), Ok(Value::Nil));
    assert_eq!(asleep(), true.into());
    let tags = |tag: &str| vec![Value::from(vec![Value::from(tag)])];
    assert_eq!(front.call("wake_up", tags("weights")), Ok(false.into()), "in part");
    assert_eq!(front.call("wake_up", vec![Value::Nil]), Ok(true.into()));
    assert_eq!(asleep(), false.into());
    assert!(front.call("wake_up", tags("tea")).unwrap_err().contains("tag is"));
    assert!(front.call("sleep", vec![9.into()]).is_err());
}

#[test]
fn a_paused_scheduler_queues() {
    let front = FrontEnd::start(&["--inter-token-latency", "5"]);
    front.add("cut", &[("max_tokens", 1900.into())]);
    front.first_output("cut");
    let mode = vec![Value::from("abort"), true.into()];
    assert_eq!(front.call("pause_scheduler", mode), Ok(Value::Nil));
    front.add("late", &[("max_tokens", 2.into())]);
    assert_eq!(front.call("is_scheduler_paused", vec![]), Ok(true.into()));
    // Its first token may come before the answer to this.
    let resume = vec![Value::from(0), 1.into(), "resume_scheduler".into(), Value::Array(vec![])];
    front.send(0, UTILITY, &Value::Array(resume));
    assert_eq!(tokens(&front.outputs("late").0).len(), 2, "it waited");
}

#[test]
fn memory_of_the_cache_is_released_while_paused() {
    let front = FrontEnd::start(&["--enable-prefix-caching", "--block-size", "1"]);
    let release = || front.call("release_kv_cache_memory", vec![]);
    assert!(release().unwrap_err().contains("requires a completed pause"));
    let cached = |id: &str| {
        front.add(id, &[("max_tokens", 1.into())]);
        let (outputs, _) = front.outputs(id);
        get(&outputs[0].1[11], "num_cached_tokens").as_u64()
    };
    assert_eq!(cached("cold"), Some(0));
    assert_eq!(cached("warm"), Some(2));
    let mode = vec![Value::from("wait"), false.into()];
    assert_eq!(front.call("pause_scheduler", mode), Ok(Value::Nil));
    assert_eq!(release(), Ok(Value::Nil));
    assert_eq!(front.call("resume_scheduler", vec![]), Ok(Value::Nil));
    assert_eq!(cached("cold again"), Some(0));
}

#[test]
fn utility_calls_without_effect_are_answered() {
    let front = FrontEnd::start(&["--tensor-parallel-size", "2"]);
    for method in ["reset_mm_cache", "reset_encoder_cache", "execute_dummy_batch", "profile"] {
        assert_eq!(front.call(method, vec![]), Ok(Value::Nil), "{method}");
    }
    let workers = front.call("collective_rpc", vec!["x".into()]).unwrap();
    assert_eq!(workers, vec![Value::Nil, Value::Nil].into());
    let flags = vec![false.into(), false.into()];
    assert_eq!(front.call("reset_prefix_cache", flags), Ok(true.into()));
    assert_eq!(front.call("get_weight_version", vec![]), Ok("default".into()));
    assert_eq!(front.call("set_weight_version", vec!["2".into()]), Ok(Value::Nil));
    assert_eq!(front.call("get_weight_version", vec![]), Ok("2".into()));
    let groups = front.call("get_kv_cache_group_metadata", vec![]).unwrap();
    assert_eq!(get(&groups[0], "kind").as_str(), Some("full_attention"));
    let call = vec![Value::from(0), 5.into(), "is_sleeping".into(), "no list".into()];
    front.send(0, UTILITY, &call.into());
    let answer = loop {
        let message = front.next();
        if let Some(answer) = message.get(4).and_then(Value::as_array) {
            break answer.clone();
        }
    };
    assert!(answer[1].as_str().unwrap().contains("args is"), "{answer:?}");
}

#[test]
fn sliding_windows_have_own_cache_groups() {
    let shape = r#"{"architectures":["Gemma3ForCausalLM"],"model_type":"gemma3_text","hidden_size":64,
        "intermediate_size":64,"num_hidden_layers":12,"num_attention_heads":4,"num_key_value_heads":4,
        "head_dim":16,"vocab_size":4096,"max_position_embeddings":2048,"sliding_window":512}"#;
    let front = FrontEnd::start(&["--hf-overrides", shape, "--kv-cache-memory-bytes", "64M"]);
    let groups = front.call("get_kv_cache_group_metadata", vec![]).unwrap();
    let groups = groups.as_array().unwrap();
    let windows = groups.iter().map(|group| get(group, "sliding_window").as_u64());
    let windows: Vec<_> = windows.collect();
    assert_eq!(windows.first(), Some(&Some(512)));
    assert_eq!(windows.last(), Some(&None));
}

#[test]
fn a_waiting_request_is_reported_immediately() {
    let front = FrontEnd::start(&[
        "--scheduler",
        "pool",
        "--max-num-seqs",
        "1",
        "--time-to-first-token",
        "20s",
    ]);
    front.add("runs", &[]);
    front.add("waits", &[]);
    loop {
        let message = front.next();
        if running(&message) == Some(1) && get(&message[2], "num_waiting_reqs").as_u64() == Some(1)
        {
            break;
        }
    }
}

#[test]
fn coordinator_gets_load_with_stats_disabled() {
    let slow = ["--disable-log-stats", "--inter-token-latency", "20"];
    let front = FrontEnd::of_ranks(2, true, &slow);
    let (_, hears) = front.coordinator.as_ref().unwrap();
    front.send(1, ADD, &request("a", &[("max_tokens", 2.into())]));
    let mut loads = Vec::new();
    while loads.last() != Some(&(1, 0)) {
        let message = unpack(&hears.recv_bytes(0).expect("a load"));
        let load = get(&message[2], "num_running_reqs").as_u64().unwrap();
        loads.push((message[0].as_u64().unwrap(), load));
    }
    assert_eq!(loads, [(1, 1), (1, 0)], "each change, once");
    loop {
        let message = front.next();
        assert!(message[2].is_nil(), "{message:?}");
        if !message[1].as_array().unwrap()[0][5].is_nil() {
            break;
        }
    }
}

#[test]
fn cache_and_step_stats_are_reported() {
    let front = FrontEnd::start(&[
        "--enable-prefix-caching",
        "--block-size",
        "16",
        "--inter-token-latency",
        "2",
    ]);
    let mut looked_up = (0, 0);
    let mut messages = 0;
    for id in ["a", "b"] {
        let mut fields = request(id, &[("max_tokens", 5.into()), ("ignore_eos", true.into())]);
        if let Value::Array(fields) = &mut fields {
            fields[1] = ids(&[9; 40]);
        }
        front.send(0, ADD, &fields);
        let mut ended = false;
        while !ended {
            let message = front.next();
            let outputs = message[1].as_array().unwrap();
            messages += usize::from(!outputs.is_empty());
            ended = outputs.iter().any(|output| !output[5].is_nil());
            if message[2].is_map() {
                let stats = get(&message[2], "prefix_cache_stats");
                looked_up.0 += get(stats, "queries").as_u64().unwrap();
                looked_up.1 += get(stats, "hits").as_u64().unwrap();
            }
        }
    }
    assert_eq!(looked_up, (80, 32));
    assert_eq!(messages, 10, "one for each step with outputs");
}

#[test]
fn supported_tasks_follow_model() {
    let tasks =
        |flags: &[&str]| FrontEnd::start(flags).call("get_supported_tasks", vec![]).unwrap();
    assert_eq!(tasks(&["--task", "transcription"]), vec![Value::from("transcription")].into());
    let classes: Value = vec![Value::from("classify"), "token_classify".into()].into();
    assert_eq!(tasks(&["--task", "score"]), classes);
}

#[test]
fn events_of_the_cache_are_where_the_engine_says() {
    let events = r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:*","topic":"t"}"#;
    let front = FrontEnd::start(&["--kv-events-config", events, "--enable-prefix-caching"]);
    let told = get(&front.ready[0], "kv_events_config");
    assert_eq!(get(told, "publisher").as_str(), Some("zmq"));
    assert_eq!(get(told, "topic").as_str(), Some("t"));
}
