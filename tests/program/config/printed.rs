//! `vllm-sim config`, `/admin/config` and changes while running.

use std::time::Duration;

use serde_json::{Map, Value, json};
use vllm_sim_config::{FlagValueSource, LoadedConfig};

use super::{shell, try_words};

fn read(line: &str, vars: &[(&str, &str)]) -> LoadedConfig {
    let words = shell(line);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    try_words(&words, vars).unwrap()
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else {
        panic!("an object was expected");
    };
    map
}

#[test]
fn printed_config_can_be_loaded() {
    for line in [
        "vllm-sim --model m",
        "vllm-sim --model 007 --served-model-name yes 'a b' ~x --seed -5 --no-omni --lora-modules a=/a",
        "vllm-sim serve m --lora-modules '{\"name\":\"a\",\"path\":\"/p q\"}' -dp 2 --max-model-len 32k",
        "vllm-sim serve m --kv-events-config.enable_kv_cache_events true --chat-template '{{ x }}: #'",
        "vllm-sim --model m --time-to-first-token 1.5s --fake-metrics '{\"running-requests\":3}' --compat llm-d",
        "vllm serve m --lora-modules --max-num-queued-reqs 3 --disable-access-log-for-endpoints /a,/b",
        "llm-d-inference-sim --model m --failure-types rate_limit --hash-seed 0123 --log-http",
    ] {
        let first = read(line, &[("POD_IP", "10.1.2.3"), ("VLLM_SIM_REPLICAS", "2")]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = first.to_config_yaml();
        std::fs::write(file.path(), &text).unwrap();
        let path = file.path().to_str().unwrap();
        let mut second = try_words(&["vllm-sim", "--strict-config", "--config", path], &[])
            .unwrap_or_else(|e| panic!("{e}\n{text}"));
        // The program's name is no flag: what it meant for the wire is only a default.
        second.config.model.compat = first.config.model.compat;
        second.config.api = first.config.api.clone();
        second.config.content.echo_cut = first.config.content.echo_cut;
        second.config.content.tools.repeats_named = first.config.content.tools.repeats_named;
        assert_eq!(second.config, first.config, "{line}\n{text}");
    }
}

#[test]
fn printed_lines_name_value_source() {
    let text =
        read("vllm-sim --model m --port 1", &[("VLLM_API_KEY", "secret"), ("POD_NAME", "p")])
            .to_config_yaml();
    for line in [
        "port: 1  # command line",
        "pod-name: p  # environment POD_NAME",
        "# api-key: (not shown)  # environment VLLM_API_KEY",
        "# max-num-seqs: 5  # default",
        "# served-model-name: [m]  # derived",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(!text.contains("secret"));
    let keyed = read("vllm-sim --model m --api-key k", &[]);
    let hidden =
        "Not shown: api-key. A server with this file has no such values unless you add them.";
    assert_eq!(keyed.hidden_secrets_warning().as_deref(), Some(hidden));
    assert_eq!(read("vllm-sim --model m", &[]).hidden_secrets_warning(), None);
}

#[test]
fn effective_values_have_their_source() {
    let loaded = read("vllm-sim serve m --max-num-seqs 9", &[]);
    let of = |name: &str| {
        let entry = loaded.resolved_flags.iter().find(|e| e.name == name).unwrap();
        (entry.values.concat(), entry.source.clone())
    };
    assert_eq!(of("max-num-seqs"), ("9".to_owned(), FlagValueSource::CommandLine));
    assert_eq!(of("max-model-len"), ("32768".to_owned(), FlagValueSource::Derived));
    assert_eq!(of("block-size"), ("16".to_owned(), FlagValueSource::Default));
}

#[test]
fn admin_config_has_typed_values() {
    let json = read("vllm-sim --model m --time-to-first-token 1500 --omni", &[("HF_TOKEN", "x")])
        .to_admin_json();
    assert_eq!(json["time-to-first-token"], "1.5s");
    assert_eq!(json["fake-metrics-refresh-interval"], "100ms");
    assert_eq!((&json["omni"], &json["port"]), (&json!(true), &json!(8000)));
    assert_eq!(json["served-model-name"], json!(["m"]));
    assert_eq!(json["failure-types"], json!([]));
    assert_eq!(json["fake-metrics"], Value::Null);
    assert!(!json.contains_key("hf-token"));
}

#[test]
fn admin_update_changes_allowed_flags() {
    let loaded = read("vllm-sim --model m --inter-token-latency 10ms", &[]);
    let update = object(json!({
        "time-to-first-token": "250ms", "inter-token-latency": "500ms",
        "failure-injection-rate": 42, "failure-types": ["server_error"],
        "latency-calculator": "constant", "time-factor-under-load": 1.5, "prefill-overhead": null,
    }));
    let new = loaded.with_admin_update(&update).unwrap().config;
    assert_eq!(new.engine.timing.delays.ttft.0, Duration::from_millis(250));
    assert_eq!(new.engine.timing.delays.itl.0, Duration::from_millis(500));
    assert_eq!((new.faults.rates.rate, new.faults.rates.failures.len()), (42, 1));
    assert_eq!(loaded.config.faults.rates.rate, 0);
}

#[test]
fn admin_duration_needs_unit() {
    let update = |value: Value| object(json!({ "time-to-first-token": value }));
    let first_token = |words: &str, value: Value| {
        let tuned = read(words, &[]).with_admin_update(&update(value));
        tuned.map(|loaded| loaded.config.engine.timing.delays.ttft.0)
    };
    for words in ["vllm-sim --model m", "vllm-sim serve m"] {
        for number in [json!(500), json!(-1), json!(0.5), json!(5e8)] {
            let error = first_token(words, number.clone()).unwrap_err().to_string();
            let told = format!("time-to-first-token is {number}: a duration needs a unit, such as");
            assert!(error.starts_with(&told), "{error}");
        }
        assert_eq!(first_token(words, json!(0)).unwrap(), Duration::ZERO);
        let text = first_token(words, json!("500ms")).unwrap();
        assert_eq!(text, Duration::from_millis(500));
    }
    let llmd = first_token("vllm-sim --model m --compat llm-d", json!(500));
    assert_eq!(llmd.unwrap(), Duration::from_nanos(500));
}

#[test]
fn reset_restores_start_values() {
    let words = r#"vllm-sim --model m --time-to-first-token 10ms --fake-metrics '{"loras":[],"running-requests":3}'"#;
    let loaded = read(words, &[]);
    let change = json!({
        "time-to-first-token": "20ms", "failure-types": ["server_error"],
        "fake-metrics": {"running-requests": 7, "waiting-requests": 1},
    });
    let changed = loaded.with_admin_update(&object(change)).unwrap();
    assert_eq!(changed.runtime_changes_to_admin_json().len(), 3);
    let all = json!({"reset": ["time-to-first-token", "failure_types", "fake-metrics"]});
    let reset = changed.with_admin_update(&object(all)).unwrap();
    assert_eq!(reset.config, loaded.config);
    assert_eq!(reset.resolved_flags, loaded.resolved_flags);
    assert!(reset.runtime_changes_to_admin_json().is_empty());
    // Reset first, then set.
    let both = json!({"reset": ["fake-metrics"], "fake-metrics": {"waiting-requests": 2}});
    let both = changed.with_admin_update(&object(both)).unwrap();
    let fake = json!({"loras": [], "running-requests": 3, "waiting-requests": 2});
    assert_eq!(both.config.metrics.fake, Some(fake));
    for (wrong, message) in [
        (json!({"reset": ["port"]}), "field 'port' is not admin-configurable"),
        (json!({"reset": "failure-types"}), "'reset' must be a list of fields"),
    ] {
        let text = loaded.with_admin_update(&object(wrong)).unwrap_err().to_string();
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn invalid_admin_update_changes_nothing() {
    let loaded = read("vllm-sim --model m", &[]);
    for (update, message) in [
        (json!({"port": 9000}), "field 'port' is not admin-configurable"),
        (json!({"x": 1}), "field 'x' is not admin-configurable"),
        (
            json!({"failure-injection-rate": 150}),
            "failure injection rate should be between 0 and 100",
        ),
        (json!({"failure-types": ["bogus"]}), "invalid failure type 'bogus'"),
        (json!({"time-to-first-token": "notaduration"}), "time-to-first-token"),
        (
            json!({"time-to-first-token": "1ms", "time-to-first-token-std-dev": "0.5ms"}),
            "cannot be more than 30%",
        ),
        (
            json!({"fake-metrics": {"running-requests": 1}}),
            "the simulator is reporting real metrics; fake metrics cannot be updated",
        ),
    ] {
        let text = loaded.with_admin_update(&object(update)).unwrap_err().to_string();
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn fake_metrics_update_merges_keys() {
    let loaded = read(
        "vllm-sim --model m --fake-metrics '{\"running-requests\":3,\"waiting-requests\":4}'",
        &[],
    );
    let update = json!({"fake-metrics": {"running-requests": 7, "waiting-requests": null}});
    let new = loaded.with_admin_update(&object(update)).unwrap();
    let fake = new.config.metrics.fake.clone().unwrap();
    assert_eq!(fake, json!({"running-requests": 7, "waiting-requests": 4}));
    let again = new.with_admin_update(&object(json!({"fake-metrics": {"loras": []}}))).unwrap();
    assert_eq!(again.config.metrics.fake.unwrap()["running-requests"], 7);
}

#[test]
fn passwords_in_urls_are_masked() {
    let words = [
        "vllm-sim",
        "--model",
        "m",
        "--dataset-path",
        "d.sqlite3",
        "--dataset-url",
        "https://bob:s3cret@data.example:8443/a@b",
        "--otlp-traces-endpoint",
        "http://t0ken@collector:4317",
        "--kv-events-config",
        r#"{"enable_kv_cache_events": true, "endpoint": "tcp://a:p4ss@host:1"}"#,
    ];
    let loaded = super::try_words(&words, &[]).unwrap();
    let yaml = loaded.to_config_yaml();
    let json = serde_json::Value::Object(loaded.to_admin_json()).to_string();
    for (text, kind) in [(yaml, "yaml"), (json, "json")] {
        for shown in [
            "https://bob:***@data.example:8443/a@b",
            "http://***@collector:4317",
            "tcp://a:***@host:1",
        ] {
            assert!(text.contains(shown), "{kind}, {shown}: {text}");
        }
        for hidden in ["s3cret", "t0ken", "p4ss"] {
            assert!(!text.contains(hidden), "{kind}, {hidden}: {text}");
        }
    }
    // The server itself gets the whole.
    let url = loaded.config.content.dataset.unwrap().url.unwrap();
    assert_eq!(url, "https://bob:s3cret@data.example:8443/a@b");
}
