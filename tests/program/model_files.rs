//! Files of a model folder that are there and cannot be used: each ends the start, and is named.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;
use std::process::Command;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-llama");

fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(MODEL).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

/// Exit code and standard error of a start; one that finds nothing wrong ends at its address, with 1.
fn start(model: &Path, flags: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.arg("serve").arg(model).args(flags);
    command.args(["--host", "203.0.113.1", "--port", "1"]);
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), errors)
}

fn refuses(model: &Path, flags: &[&str], words: &[&str]) {
    let (code, errors) = start(model, flags);
    assert_eq!(code, 2, "{flags:?} {words:?}: {errors}");
    for word in words {
        assert!(errors.contains(word), "{flags:?}: {errors}");
    }
}

#[test]
fn broken_model_files_fail_start() {
    let folder = copy();
    let (code, errors) = start(folder.path(), &[]);
    assert_eq!(code, 1, "{errors}");
    let bomb = r#"{"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}]}"#;
    let whole = std::fs::read_to_string(folder.path().join("tokenizer.json")).unwrap();
    let mut long: serde_json::Value = serde_json::from_str(&whole).unwrap();
    long["normalizer"] = serde_json::from_str(bomb).unwrap();
    let long = long.to_string();
    let cases: &[(&str, &str)] = &[
        ("config.json", "[]"),
        ("config.json", "\"s\""),
        ("config.json", "{broken"),
        ("config.json", r#"{"max_position_embeddings": -5}"#),
        ("config.json", r#"{"num_hidden_layers": "x"}"#),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", &whole[..whole.len() / 2]),
        ("tokenizer.json", &long),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[1]"),
        ("generation_config.json", "[1]"),
        ("generation_config.json", "{"),
    ];
    for (name, text) in cases {
        let folder = copy();
        std::fs::write(folder.path().join(name), text).unwrap();
        refuses(folder.path(), &[], &[name]);
    }
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    {
        let folder = copy();
        let _ = std::fs::remove_file(folder.path().join(name));
        std::fs::create_dir(folder.path().join(name)).unwrap();
        refuses(folder.path(), &[], &[name]);
    }
    // Who wants none of it may say so.
    let folder = copy();
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let (code, errors) = start(folder.path(), &["--force-dummy-tokenizer"]);
    assert_eq!(code, 1, "{errors}");
}

#[test]
fn values_that_vllm_refuses_end_the_start() {
    let folder = copy();
    for (flags, words) in [
        (&["--enable-lora", "--max-lora-rank", "3"][..], "1, 8, 16, 32"),
        (&["--max-model-len", "99999999999"], "more than 4294967295"),
    ] {
        refuses(folder.path(), flags, &[words]);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.arg("explain").arg(folder.path());
    let output = command.args(["--kv-cache-memory-bytes", "1"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("To serve at least one request"), "{errors}");
}

#[test]
fn templates_and_sampling_defaults_that_are_not_there_end_the_start() {
    let folder = copy();
    let refused = |flags: &[&str], word: &str| refuses(folder.path(), flags, &[word]);
    let path_like = "appears path-like, but doesn't exist!";
    refused(&["--chat-template", "/nowhere/t.jinja"], path_like);
    refused(&["--chat-template", "t.jinja"], path_like);
    refused(&["--chat-template", MODEL], MODEL);
    refused(&["--generation-config", "/nowhere"], "/nowhere");
    refused(&["--generation-config", "./nowhere"], "generation-config");
    let template = folder.path().join("t.jinja");
    std::fs::write(&template, "plain").unwrap();
    for template in [template.to_str().unwrap(), "{{ messages }}", "template_chatml.jinja"] {
        let (code, errors) = start(folder.path(), &["--chat-template", template]);
        assert_eq!(code, 1, "{template}: {errors}");
    }
}
