//! Files that commands write: no input is lost, none of two outputs, and nothing is left half written.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const TRACE: &str = "{\"timestamp\":0,\"input_length\":64,\"output_length\":8,\"hash_ids\":[1]}\n";

fn run(dir: &Path, words: &str, env: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let command = command.current_dir(dir).envs(env.iter().copied());
    let output = command.args(words.split_whitespace()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), errors)
}

/// Returns the content of every file of a folder.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.path().is_file());
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    files.map(read).collect()
}

/// A trace with other names, and files that commands read.
fn inputs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("t.jsonl"), TRACE).unwrap();
    std::fs::write(path("c.yaml"), "max-num-seqs: 4\n").unwrap();
    for name in ["w.yaml", "p.yaml", "a.json", "b.json", "x.csv"] {
        std::fs::write(path(name), format!("input {name}\n")).unwrap();
    }
    std::fs::create_dir(path("sub")).unwrap();
    std::fs::create_dir(path("runs")).unwrap();
    std::fs::write(path("runs/args.json"), "{}").unwrap();
    std::os::unix::fs::symlink("t.jsonl", path("link.jsonl")).unwrap();
    std::os::unix::fs::symlink("nowhere", path("broken")).unwrap();
    std::fs::hard_link(path("t.jsonl"), path("hard.jsonl")).unwrap();
    dir
}

/// Words, and what the refusal names.
const LOST: &[(&str, &[&str])] = &[
    ("replay t.jsonl --per-request t.jsonl", &["--per-request", "t.jsonl"]),
    ("replay t.jsonl --per-request ./sub/../t.jsonl", &["--per-request"]),
    ("replay t.jsonl --per-request link.jsonl", &["--per-request"]),
    ("replay link.jsonl --per-request=t.jsonl", &["--per-request"]),
    ("replay t.jsonl --step-log t.jsonl", &["--step-log", "t.jsonl"]),
    ("replay t.jsonl --trace-out t.jsonl", &["--trace-out", "t.jsonl"]),
    ("replay t.jsonl --trace-out o.json --report-json o.json", &["--trace-out", "--report-json"]),
    ("replay t.jsonl --report-json hard.jsonl", &["--report-json"]),
    ("replay t.jsonl --html t.jsonl", &["--html"]),
    ("replay t.jsonl --config c.yaml --report_json c.yaml", &["--report-json", "--config"]),
    ("replay t.jsonl --workers w.yaml --html w.yaml", &["--html", "--workers"]),
    ("replay --compare a.json,b.json t.jsonl --html b.json", &["--html", "--compare"]),
    ("replay --input-tokens histogram:x.csv --html x.csv", &["--html", "--input-tokens"]),
    ("replay --dynamo-run runs --report-json runs/args.json", &["--report-json", "--dynamo-run"]),
    ("replay t.jsonl --report-json o --html o", &["--html", "--report-json"]),
    (
        "replay t.jsonl --per-request o.jsonl --report-json ./sub/../o.jsonl",
        &["--per-request", "--report-json"],
    ),
    ("replay t.jsonl --html broken", &["--html", "link"]),
    ("sweep t.jsonl --grid max-num-seqs=1,2 --html t.jsonl", &["--html"]),
    ("sweep t.jsonl --grid config=c.yaml,c.yaml --html c.yaml", &["--html", "--grid"]),
    (
        "sweep t.jsonl --grid max-num-seqs=1,2 --merge a.json,b.json --report-json a.json",
        &["--report-json", "--merge"],
    ),
    ("sweep t.jsonl --grid max-num-seqs=1,2 --shard 1/2 --report-json t.jsonl", &["--report-json"]),
    (
        "plan t.jsonl --slo-ttft-ms 9 --prices p.yaml --helm-values p.yaml",
        &["--helm-values", "--prices"],
    ),
    ("plan t.jsonl --slo-ttft-ms 9 --helm-values o --html o", &["--html", "--helm-values"]),
    ("bench t.jsonl --target http://127.0.0.1:9 --per-request t.jsonl", &["--per-request"]),
    ("calibrate --data x.csv --gpu H100 --out x.csv", &["--out", "--data"]),
    ("calibrate --data x.csv --config c.yaml --out c.yaml", &["--out", "--config"]),
    ("validate --runs runs --out runs", &["--out", "--runs"]),
    (
        "validate --runs runs --latency-coefficients c.yaml --json c.yaml",
        &["--json", "--latency-coefficients"],
    ),
    ("gateway score t.jsonl --target http://127.0.0.1:9 --replicas 1 --json t.jsonl", &["--json"]),
    (
        "gateway score t.jsonl --target http://127.0.0.1:9 --replicas 1 --json o --html o",
        &["--html", "--json"],
    ),
];

#[test]
fn outputs_never_overwrite_inputs_or_each_other() {
    let dir = inputs();
    let before = contents(dir.path());
    for (words, named) in LOST {
        let (code, errors) = run(dir.path(), words, &[]);
        assert_eq!(code, 2, "{words}: {errors}");
        for name in *named {
            assert!(errors.contains(name), "{words}: {errors}");
        }
        assert_eq!(contents(dir.path()), before, "{words}");
    }
    for words in [
        "sweep t.jsonl --grid max-num-seqs=1,2 --per-request rows.jsonl",
        "sweep t.jsonl --grid max-num-seqs=1,2 --trace-out trace.json",
        "plan t.jsonl --slo-ttft-ms 900 --trace-out trace.json",
        "replay --dynamo-run . --trace-out trace.json",
        "replay --dynamo-run . --per-request rows.jsonl",
        "replay --dynamo-run . --step-log steps.jsonl",
        "replay t.jsonl --scheduler mocker --step-log steps.jsonl",
        "replay t.jsonl --target http://127.0.0.1:9 --step-log steps.jsonl",
        "sweep t.jsonl --grid max-num-seqs=1,2 --step-log steps.jsonl",
    ] {
        let (code, errors) = run(dir.path(), words, &[]);
        assert_eq!(code, 2, "a flag that would write nothing: {words}: {errors}");
    }
    let words = "replay t.jsonl --html c.yaml";
    let (code, errors) = run(dir.path(), words, &[("VLLM_SIM_CONFIG", "c.yaml")]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("VLLM_SIM_CONFIG"), "{errors}");
}

#[test]
fn outputs_are_replaced_atomically() {
    let dir = inputs();
    let words = "replay t.jsonl --per-request o.jsonl --report-json r.json --html p.html --trace-out \
                 trace.json";
    let mut first = Vec::new();
    for round in 0..2 {
        let (code, errors) = run(dir.path(), words, &[]);
        assert_eq!(code, 0, "{errors}");
        let files = contents(dir.path());
        assert!(files.keys().all(|name| !name.ends_with(".part")), "{:?}", files.keys());
        let rows = std::str::from_utf8(&files["o.jsonl"]).unwrap();
        assert_eq!(rows.lines().count(), 1);
        assert!(files["p.html"].ends_with(b"</html>\n"), "a whole page");
        assert!(files["trace.json"].ends_with(b"]}\n"), "a whole trace");
        if round > 0 {
            assert_eq!(first, files["o.jsonl"]);
        }
        first = files["o.jsonl"].clone();
    }
    // A run that fails leaves the old files.
    std::fs::write(dir.path().join("t.jsonl"), "{\"timestamp\":0}\n").unwrap();
    let before = contents(dir.path());
    let (code, _) = run(dir.path(), words, &[]);
    assert_ne!(code, 0);
    assert_eq!(contents(dir.path()), before);
    // Behind a link the file changes, and the link stays.
    std::fs::write(dir.path().join("t.jsonl"), TRACE).unwrap();
    std::os::unix::fs::symlink("r.json", dir.path().join("latest.json")).unwrap();
    let (code, errors) = run(dir.path(), "replay t.jsonl --report-json latest.json", &[]);
    assert_eq!(code, 0, "{errors}");
    assert!(dir.path().join("latest.json").is_symlink());
    let (code, errors) = run(dir.path(), "replay t.jsonl --html no/folder.html", &[]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("cannot write no/folder.html"), "{errors}");
}

/// A device or a pipe has no content to lose.
#[test]
fn output_to_dev_null_is_written() {
    let dir = inputs();
    let replay = "replay t.jsonl --request-count 1";
    for words in [
        format!("{replay} --html /dev/null"),
        format!("{replay} --html /dev/null --report-json /dev/null"),
        format!("{replay} --report-json /dev/stdout"),
        "sweep t.jsonl --grid max-num-seqs=1,2 --report-json /dev/null".to_owned(),
    ] {
        let (code, errors) = run(dir.path(), &words, &[]);
        assert_eq!(code, 0, "{words}: {errors}");
    }
    use std::os::unix::fs::FileTypeExt;
    let null = std::fs::metadata("/dev/null").unwrap();
    assert!(null.file_type().is_char_device());
}
