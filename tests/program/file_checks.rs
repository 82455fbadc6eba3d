//! `vllm-sim replies check`, `vllm-sim scenario check`, and what a server says of rules that were
//! not used.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be unwrapped is a failure"
)]

use std::path::Path;

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
    write(
        "good.yaml",
        "- {when: {role: tool}, say: sunny}\n- {say: other}\n",
    );
    write(
        "wrong.yaml",
        "- {say: a}\n- {say: b, when: {roles: tool}}\n",
    );
    let text = printed(dir.path(), "replies check good.yaml");
    assert!(
        text.starts_with("good.yaml: 2 rules\n  [0] {\"when\""),
        "{text}"
    );
    let text = errors(dir.path(), "replies check good.yaml wrong.yaml");
    assert!(
        text.contains("wrong.yaml: replies[1]: 'when': unknown key \"roles\""),
        "{text}"
    );
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
    assert!(
        text.starts_with("good.yaml: scenario storm, 2 phases, 2 times\n"),
        "{text}"
    );
    assert!(
        text.contains("[1] burst: 9 requests, set {\"latency-factor\":4}"),
        "{text}"
    );
    let replica = "replicas: {0: {set: {latency-factor: -1}}}";
    for (name, phase, part) in [
        ("a.yaml", "set: {latency-facto: 4}", "latency-facto"),
        (
            "b.yaml",
            "set: {time-to-first-token: 500}",
            "time-to-first-token",
        ),
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
