//! How it ends: engines that break, front ends that do not read or never come.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rmpv::Value;

use super::front_end::*;

/// For a file that follows an answer.
const FILE_PATIENCE: Duration = Duration::from_secs(30);

/// An engine that finds no front end at a port.
fn lonely(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(["serve", MODEL, "--headless", "--data-parallel-address", "127.0.0.1"]);
    command.args(["--data-parallel-rpc-port", "9"]).args(flags);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn engine_can_stop_before_handshake() {
    let scenario = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(scenario.path(), "name: drill\nphases:\n- {name: gone, do: [{restart: 1s}]}\n")
        .unwrap();
    let ended = lonely(&["--scenario", scenario.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("the engine core was stopped by EngineCore::kill"), "{said}");
}

#[test]
fn flags_without_effect_are_named() {
    let scenario = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(scenario.path(), "name: drill\nphases:\n- {name: gone, do: [{restart: 1s}]}\n")
        .unwrap();
    let flags = [
        "--scenario",
        scenario.path().to_str().unwrap(),
        "--stream-fault-rate",
        "10",
        "--request-history",
        "5",
        "--reasoning-parser",
        "openai_gptoss",
    ];
    let ended = lonely(&flags).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("--stream-fault-rate --request-history"), "{said}");
    assert!(said.contains("--reasoning-parser openai_gptoss: replies have no reasoning"), "{said}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a process works in real time")]
fn ready_file_appears_when_all_ranks_joined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ready.json");
    let mut front = FrontEnd::of_ranks(2, true, &["--ready-file", path.to_str().unwrap()]);
    // An answer comes from an engine that has joined; the file follows.
    front.call("is_sleeping", vec![]).unwrap();
    let begun = Instant::now();
    let text = loop {
        match std::fs::read_to_string(&path) {
            Ok(text) => break text,
            Err(error) => assert!(begun.elapsed() < FILE_PATIENCE, "{error}"),
        }
        std::thread::yield_now();
    };
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["ranks"], serde_json::json!([0, 1]));
    assert_eq!(told["pid"], front.engine.id());
    let pid = front.engine.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(front.engine.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn utility_calls_during_shutdown_are_refused() {
    let front = FrontEnd::start(&["--inter-token-latency", "5", "--shutdown-timeout", "20"]);
    front.add("last", &[("max_tokens", 1900.into()), ("ignore_eos", true.into())]);
    front.first_output("last");
    let pid = front.engine.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let refused = loop {
        if let Err(refused) = front.call("is_sleeping", vec![]) {
            break refused;
        }
    };
    assert_eq!(refused, "Server shutting down");
}

#[test]
fn stalled_front_end_loses_its_requests() {
    // More answers than wait for it and lie in the buffers of TCP.
    const CALLS: u64 = 180_000;
    let front = FrontEnd::start(&["--inter-token-latency", "50"]);
    let long = [("max_tokens", 1900.into()), ("ignore_eos", true.into())];
    front.add("long", &long);
    front.first_output("long");
    let call = |client: u64, id: u64, method: &str| {
        let call = vec![client.into(), id.into(), method.into(), Value::Array(vec![])];
        front.send(0, UTILITY, &Value::Array(call));
    };
    let method = "x".repeat(100);
    for id in 0..CALLS {
        call(0, id, &method);
    }
    // The other front end is served meanwhile; its call is behind all of these.
    call(1, 1, "is_sleeping");
    let other = unpack(&front.other.0.recv_bytes(0).expect("an answer"));
    assert!(other[4].is_array());
    let (outputs, _) = front.outputs("long");
    assert_eq!(outputs.last().unwrap().1[5].as_u64(), Some(2), "aborted");
    assert!(tokens(&outputs).len() < 1900);
    front.add("next", &[("max_tokens", 2.into())]);
    assert_eq!(tokens(&front.outputs("next").0).len(), 2, "it reads again");
}

/// Few messages are enough where they are large.
#[test]
fn stalled_front_end_with_large_output_is_dropped() {
    let front = FrontEnd::start(&["--inter-token-latency", "50"]);
    let long = [("max_tokens", 1900.into()), ("ignore_eos", true.into())];
    front.add("long", &long);
    front.first_output("long");
    // A refusal repeats the name: 200 MiB in all.
    let method = "x".repeat(1 << 20);
    for id in 0..200_u64 {
        let call = [0.into(), id.into(), Value::from(method.as_str()), Value::Array(vec![])];
        front.send(0, UTILITY, &Value::Array(call.into()));
    }
    let last = [1.into(), 1.into(), Value::from("is_sleeping"), Value::Array(vec![])];
    front.send(0, UTILITY, &Value::Array(last.into()));
    let other = unpack(&front.other.0.recv_bytes(0).expect("an answer"));
    assert!(other[4].is_array());
    let (outputs, _) = front.outputs("long");
    assert_eq!(outputs.last().unwrap().1[5].as_u64(), Some(2), "aborted");
    assert!(tokens(&outputs).len() < 1900);
    let peak = peak_kib(front.engine.id());
    assert!(peak < 600 << 10, "{peak} KiB at the most");
    front.add("next", &[("max_tokens", 2.into())]);
    assert_eq!(tokens(&front.outputs("next").0).len(), 2, "it reads again");
}

/// The most memory that a process has had.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

#[test]
fn engine_survives_front_end_exit() {
    let mut front = FrontEnd::start(&["--inter-token-latency", "5"]);
    front.add("lost", &[("max_tokens", 1900.into())]);
    front.first_output("lost");
    for socket in [&front.output, &front.input] {
        let at = socket.get_last_endpoint().unwrap().unwrap();
        socket.unbind(&at).unwrap();
    }
    assert!(front.engine.try_wait().unwrap().is_none(), "it waits for another signal");
    let pid = front.engine.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(front.engine.wait().unwrap().code(), Some(0));
}

/// The request that runs keeps its id, and ends as it would have ended.
#[test]
fn a_second_request_of_an_id_is_ignored() {
    let front = FrontEnd::start(&["--inter-token-latency", "30"]);
    front.add("same", &[("max_tokens", 6.into())]);
    front.first_output("same");
    front.add("same", &[("max_tokens", 2.into())]);
    assert_eq!(tokens(&front.outputs("same").0).len(), 5, "all but the first");
    front.add("next", &[("max_tokens", 1.into())]);
    assert_eq!(tokens(&front.outputs("next").0).len(), 1);
}
