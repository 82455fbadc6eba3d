//! Every flag of llm-d-inference-sim, of all its generations: default, values at the bounds and
//! beyond them, on the command line and as a YAML key.
//!
//! Source: llm-d-inference-sim `pkg/common/config.go`, v0.6 to HEAD of August 2026.

use std::fs;

use vllm_sim_config::{all_effective_flags, all_ignored_flags};

use super::try_words;

/// Name, default, values that are taken, values that are refused.
type Row = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

const TABLE: &[Row] = &[
    ("port", "8000", &["0", "1", "65535"], &["-1", "65536", "x"]),
    ("model", "", &["m"], &[""]),
    ("served-model-name", "", &["a"], &[]),
    ("max-loras", "1", &["1", "9"], &["0"]),
    ("max-cpu-loras", "", &["1", "9"], &["0"]),
    ("max-num-seqs", "5", &["1"], &["0"]),
    ("max-waiting-queue-length", "1000", &["0", "1"], &["-1"]),
    ("max-model-len", "1024", &["1", "32768"], &["0"]),
    ("lora-modules", "", &[r#"{"name":"a","path":"/p"}"#, "a=/p"], &[r#"{"path":"/p"}"#]),
    ("mode", "random", &["random", "echo"], &["hello"]),
    ("seed", "", &["0", "-5", "9223372036854775807"], &["x"]),
    ("time-to-first-token", "0", &["0", "250us", "1.5s", "1h2m", "3"], &["-1ms", "5 x"]),
    ("time-to-first-token-std-dev", "0", &["0"], &["-1ms"]),
    ("inter-token-latency", "0", &["0", "250us", "0.5"], &["-1ms", "s"]),
    ("inter-token-latency-std-dev", "0", &["0"], &["-1ms"]),
    ("kv-cache-transfer-latency", "0", &["0", "5ms"], &["-1ms"]),
    ("kv-cache-transfer-latency-std-dev", "0", &["0"], &["-1ms"]),
    ("prefill-overhead", "0", &["0", "1m"], &["-1ms"]),
    ("prefill-time-per-token", "0", &["0", "3us"], &["-1ms"]),
    ("prefill-time-std-dev", "0", &["0", "3us"], &["-1ms"]),
    ("kv-cache-transfer-time-per-token", "0", &["0", "3us"], &["-1ms"]),
    ("kv-cache-transfer-time-std-dev", "0", &["0", "3us"], &["-1ms"]),
    ("time-to-generate-image", "0", &["0", "3s"], &["-1ms"]),
    ("time-to-generate-image-std-dev", "0", &["0"], &["-1ms"]),
    ("time-factor-under-load", "1.0", &["1", "1.0", "3.5"], &["0.99", "0", "x"]),
    ("latency-calculator", "", &["constant", "per-token"], &["hello"]),
    ("max-tool-call-integer-param", "100", &["0", "5"], &["-1"]),
    ("min-tool-call-integer-param", "0", &["-7", "100"], &["101"]),
    ("max-tool-call-number-param", "100", &["0", "0.5"], &["-1"]),
    ("min-tool-call-number-param", "0", &["-7.5", "100"], &["100.5"]),
    ("max-tool-call-array-param-length", "5", &["1", "9"], &["0"]),
    ("min-tool-call-array-param-length", "1", &["0", "5"], &["-1", "6"]),
    ("tool-call-not-required-param-probability", "50", &["0", "100"], &["-1", "101"]),
    ("object-tool-call-not-required-field-probability", "50", &["0", "100"], &["-1", "101"]),
    ("tool-call-extra-call-probability", "45", &["0", "100"], &["-1", "101"]),
    ("skip-tool-validation", "false", &["true", "false"], &["perhaps"]),
    ("enable-kvcache", "false", &["true", "false"], &["perhaps"]),
    ("kv-cache-size", "1024", &["1", "9999"], &["-1"]),
    ("block-size", "16", &["8", "16", "32", "64", "128"], &["0", "17", "256"]),
    ("hash-seed", "", &["x", "42"], &[]),
    ("global-cache-hit-threshold", "0", &["0", "0.5", "1"], &["-0.1", "1.1"]),
    ("zmq-endpoint", "tcp://127.0.0.1:5557", &["tcp://a:1"], &[]),
    ("event-batch-size", "16", &["1"], &["0"]),
    ("kv-events-replay-endpoint", "", &["tcp://*:7000"], &[]),
    ("kv-events-replay-queue-size", "1024", &["1"], &[]),
    ("use-vllm-map-event-format", "false", &["true", "false"], &["perhaps"]),
    ("tokenizers-cache-dir", "", &["/x"], &[]),
    ("zmq-max-connect-attempts", "", &["0", "10"], &[]),
    ("fake-metrics", "", &[r#"{"running-requests":3}"#], &[r#"{"running-requests":-3}"#, "{"]),
    ("fake-metrics-refresh-interval", "100ms", &["1ms", "1s"], &[]),
    ("failure-injection-rate", "0", &["0", "100"], &["-1", "101"]),
    ("failure-types", "", &["rate_limit", "model_not_found"], &["x"]),
    ("image-emission-rate", "0", &["0", "100"], &["-1", "101"]),
    ("data-parallel-size", "1", &["1", "8"], &["0", "9"]),
    ("data-parallel-rank", "-1", &["0", "7"], &["8", "-2"]),
    ("ssl-certfile", "", &[], &["only-this"]),
    ("ssl-keyfile", "", &[], &["only-this"]),
    ("self-signed-certs", "false", &["true", "false"], &["perhaps"]),
    ("dataset-path", "", &["p"], &[]),
    ("dataset-url", "", &[], &["https://needs-a.path/x"]),
    ("dataset-in-memory", "false", &["true", "false"], &["perhaps"]),
    ("dataset-table-name", "llmd", &["t"], &[]),
    ("render-url", "", &["http://h:1"], &[]),
    ("render-timeout", "", &["30s"], &[]),
    ("mm-render-timeout", "", &["60s"], &[]),
    ("force-dummy-tokenizer", "false", &["true", "false"], &["perhaps"]),
    ("startup-duration", "0", &["0", "3s"], &["-1s"]),
    ("enable-sleep-mode", "false", &["true", "false"], &["perhaps"]),
    ("enable-request-id-headers", "false", &["true", "false"], &["perhaps"]),
    ("log-http", "false", &["true", "false"], &["perhaps"]),
    ("default-embedding-dimensions", "384", &["1"], &["0"]),
    ("mm-encoder-only", "false", &["true", "false"], &["perhaps"]),
    ("omni", "false", &["true", "false"], &["perhaps"]),
    ("max-request-body-size-mb", "4", &["1", "512"], &["0", "513"]),
    ("mm-processor-kwargs", "", &["{}"], &[]),
    ("ec-transfer-config", "", &["{}"], &[]),
    ("enforce-eager", "", &["true", "false"], &[]),
    ("enable-prefix-caching", "", &["true", "false"], &["perhaps"]),
    ("tensor-parallel-size", "1", &["2"], &[]),
];

/// Flags that klog brings; all are taken.
const KLOG: &[&str] = &[
    "-v=5",
    "--v=5",
    "--logtostderr",
    "--logtostderr=false",
    "--vmodule=a=1",
    "--stderrthreshold=2",
    "--alsologtostderr",
    "--log_dir=/x",
    "--log_file=/x",
    "--log_file_max_size=1",
    "--skip_headers",
    "--skip_log_headers",
    "--add_dir_header",
    "--one_output",
    "--log_backtrace_at=a:1",
];

/// Words that make one flag stand alone: some need a companion.
fn around(flag: &str) -> Vec<&'static str> {
    match flag {
        "model" => vec![],
        "enable-kvcache" => vec!["--model", "m", "--force-dummy-tokenizer"],
        _ => vec!["--model", "m"],
    }
}

fn on_the_command_line(flag: &str, value: &str) -> Result<(), String> {
    // As one word: a second word that is no boolean is none of the flag's.
    let typed = format!("--{flag}={value}");
    let mut words = vec!["vllm-sim"];
    words.extend(around(flag));
    words.push(&typed);
    let vars = [("POD_IP", "10.0.0.1")];
    try_words(&words, &vars).map(drop).map_err(|e| e.to_string())
}

fn in_yaml(flag: &str, value: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    // llm-d takes lists as YAML lists of strings, objects as mappings.
    let lists = ["served-model-name", "lora-modules", "failure-types"];
    let shown = if lists.contains(&flag) {
        format!("['{value}']")
    } else if value.is_empty() || value.contains(['/', '*']) {
        format!("'{value}'")
    } else {
        value.to_owned()
    };
    let model = if flag == "model" { "" } else { "model: m\n" };
    fs::write(&path, format!("{model}{flag}: {shown}\n")).unwrap();
    let path = path.display().to_string();
    let vars = [("POD_IP", "10.0.0.1")];
    let loaded = try_words(&["vllm-sim", "--config", &path], &vars);
    let loaded = loaded.map_err(|e| e.to_string())?;
    match loaded.warnings.iter().find(|w| w.contains(flag) && w.contains("unknown")) {
        Some(warning) => Err(warning.clone()),
        None => Ok(()),
    }
}

#[test]
fn every_flag_has_llm_ds_default() {
    let ignored: Vec<&str> = all_ignored_flags().map(|(name, _)| name).collect();
    let mut wrong = Vec::new();
    for (flag, default, ..) in TABLE {
        match all_effective_flags()
            .find(|known| known.name == *flag || known.aliases.contains(flag))
        {
            None if ignored.contains(flag) => {}
            None => wrong.push(format!("--{flag} is unknown")),
            Some(known) => {
                let ours = known.defaults.0;
                let number = |text: &str| text.parse::<f64>().ok();
                let same =
                    ours == *default || number(ours).is_some() && number(ours) == number(default);
                if !same {
                    wrong.push(format!("--{flag}: {ours:?}, llm-d has {default:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flags_accept_same_values_as_llmd() {
    let mut wrong = Vec::new();
    for (flag, _, good, bad) in TABLE {
        for value in *good {
            for (how, taken) in
                [("--", on_the_command_line(flag, value)), ("YAML ", in_yaml(flag, value))]
            {
                if let Err(why) = taken {
                    wrong.push(format!("{how}{flag} {value}: {why}"));
                }
            }
        }
        for value in *bad {
            for (how, taken) in
                [("--", on_the_command_line(flag, value)), ("YAML ", in_yaml(flag, value))]
            {
                if taken.is_ok() {
                    wrong.push(format!("{how}{flag} {value} is taken"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn klog_flags_are_accepted() {
    for flag in KLOG {
        let taken = try_words(&["vllm-sim", "--model", "m", flag], &[]);
        assert!(taken.is_ok(), "{flag}: {taken:?}");
    }
}

#[test]
fn std_dev_is_at_most_30_percent() {
    for name in [
        "time-to-first-token",
        "inter-token-latency",
        "kv-cache-transfer-latency",
        "time-to-generate-image",
    ] {
        let (mean, deviation) = (format!("--{name}"), format!("--{name}-std-dev"));
        for (value, taken) in [("300ms", true), ("301ms", false)] {
            let words = ["vllm-sim", "--model", "m", &mean, "1s", &deviation, value];
            assert_eq!(try_words(&words, &[]).is_ok(), taken, "{name} {value}");
        }
    }
}
