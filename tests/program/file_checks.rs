//! `vllm-sim replies check`, `vllm-sim scenario check`, and what a server says of rules that were
//! not used.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::replay_command::{printed, vllm_sim};

fn errors(dir: &Path, words: &str) -> String {
    let output = vllm_sim(dir, words);
    assert_eq!(output.status.code(), Some(2), "{words}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn reply_files_are_checked_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("good.yaml", "- {when: {role: tool}, say: sunny}\n- {say: other}\n");
    write("wrong.yaml", "- {say: a}\n- {say: b, when: {roles: tool}}\n");
    let text = printed(dir.path(), "replies check good.yaml");
    assert!(text.starts_with("good.yaml: 2 rules\n  [0] {\"when\""), "{text}");
    let text = errors(dir.path(), "replies check good.yaml wrong.yaml");
    assert!(text.contains("wrong.yaml: replies[1]: 'when': unknown key \"roles\""), "{text}");
    assert!(errors(dir.path(), "replies check none.yaml").contains("none.yaml"));
    assert!(errors(dir.path(), "replies chekc good.yaml").contains("check"));
}

#[test]
fn scenario_files_are_checked_with_the_settings_of_their_phases() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let good = "name: storm\nrepeat: 2\nphases:\n\
                - {name: calm, for: 30s}\n\
                - {name: burst, requests: 9, set: {latency-factor: 4}}\n";
    write("good.yaml", good);
    let text = printed(dir.path(), "scenario check good.yaml");
    assert!(text.starts_with("good.yaml: scenario storm, 2 phases, 2 times\n"), "{text}");
    assert!(text.contains("[1] burst: 9 requests, set {\"latency-factor\":4}"), "{text}");
    let replica = "replicas: {0: {set: {latency-factor: -1}}}";
    for (name, phase, part) in [
        ("a.yaml", "set: {latency-facto: 4}", "latency-facto"),
        ("b.yaml", "set: {time-to-first-token: 500}", "time-to-first-token"),
        ("c.yaml", replica, "latency"),
        ("d.yaml", "fro: 3s", "fro"),
    ] {
        write(name, &format!("name: x\nphases:\n- {{name: p, {phase}}}\n"));
        let text = errors(dir.path(), &format!("scenario check {name}"));
        assert!(text.contains(name) && text.contains(part), "{text}");
    }
    // The ready ones are right.
    let ready = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/scenarios");
    for file in std::fs::read_dir(ready).unwrap() {
        let file = file.unwrap().path();
        printed(dir.path(), &format!("scenario check {}", file.display()));
    }
}

/// A front end that sends token ids sends neither messages nor headers.
#[test]
#[cfg(feature = "zmq")]
fn an_engine_of_vllms_api_server_refuses_conditions_that_it_cannot_match() {
    let dir = tempfile::tempdir().unwrap();
    // Port 9 answers no handshake, so that a server that accepts the rules does not serve.
    let words = "serve demo --headless --data-parallel-address 127.0.0.1 \
                 --data-parallel-rpc-port 9 --replies replies.yaml";
    for (condition, key) in [("{header: {X-Tenant: acme}}", "header"), ("{turn: 1}", "turn")] {
        let rules = format!("- {{say: other}}\n- {{when: {condition}, say: hi}}\n");
        std::fs::write(dir.path().join("replies.yaml"), rules).unwrap();
        let text = errors(dir.path(), words);
        assert!(text.contains(&format!("replies[1]: 'when': {key:?} cannot be matched")), "{text}");
    }
}

#[test]
fn a_server_warns_at_its_end_of_rules_that_no_request_used() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "- {when: {contains: Hello}, say: Hi}\n- {when: {turn: 7}, say: never}\n";
    std::fs::write(dir.path().join("replies.yaml"), rules).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.current_dir(dir.path()).args(["--model", "demo", "--host", "127.0.0.1"]);
    command.args(["--port", "0", "--replies", "replies.yaml", "--exit-on-stdin-eof"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut log = BufReader::new(running.stderr.take().unwrap()).lines();
    let address = log.find_map(|line| {
        let line = line.unwrap();
        let (_, rest) = line.split_once("listening on http://")?;
        Some(rest.split(": ").next().unwrap().to_owned())
    });
    let body = r#"{"messages": [{"role": "user", "content": "Hello"}]}"#;
    let mut client = TcpStream::connect(address.unwrap()).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
                content-type: application/json\r\ncontent-length: ";
    write!(client, "{head}{}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"Hi\""), "{answer}");
    drop(running.stdin.take());
    let end: Vec<String> = log.map(Result::unwrap).collect();
    assert!(running.wait().unwrap().success());
    let warned = end.iter().any(|line| line.contains("replies[1] was not used"));
    let wrong = end.iter().any(|line| line.contains("replies[0] was not used"));
    assert!(warned && !wrong, "{end:#?}");
}
