//! How the program starts: what it says, and who learns where it listens.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A program that is killed whatever happens.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, and its log up to the line that says where it listens.
pub(crate) fn start(words: &[&str]) -> (Running, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let command = command.args(words).args(["--host", "127.0.0.1"]);
    let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = Vec::new();
    for line in BufReader::new(running.0.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let last = line.contains("listening");
        log.push(line);
        if last {
            return (running, log);
        }
    }
    panic!("it ended: {log:#?}");
}

fn url(ready: &Path) -> String {
    let text = std::fs::read(ready).unwrap();
    let ready: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(ready["model"], "demo");
    ready["servers"][0]["url"].as_str().unwrap().to_owned()
}

#[test]
fn any_free_port_is_named_in_the_log_and_in_the_ready_file() {
    let folder = tempfile::tempdir().unwrap();
    for first in [&["--model", "demo"][..], &["serve", "demo"]] {
        let ready = folder.path().join("ready.json");
        std::fs::write(&ready, r#"{"pid": 1, "model": "demo", "servers": []}"#).unwrap();
        let file = ready.to_str().unwrap();
        let (mut running, log) = start(&[first, &["--port", "0", "--ready-file", file]].concat());
        let url = url(&ready);
        let last = log.last().unwrap();
        assert!(last.contains(&format!("listening on {url}: model demo, ")), "{last}");
        TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        let pid = running.0.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(running.0.wait().unwrap().success());
        assert!(!ready.exists(), "it is gone with the server");
    }
}

#[test]
fn unwritable_ready_file_fails_start() {
    let file = "/proc/no/such/folder/ready";
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(["--model", "demo", "--port", "0", "--ready-file", file]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("error: --ready-file {file}: ")), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_log_begins_with_the_addresses_of_the_pages() {
    let (_running, log) = start(&["--model", "demo", "--port", "0", "--api-key", "sesame"]);
    let own: Vec<&str> = log.iter().map(|line| line.split_once(" INFO ").unwrap().1).collect();
    let release = "imitates vLLM 0.33.0, with the flags of llm-d-inference-sim";
    assert!(own[0].ends_with(release), "{}", own[0]);
    let (_, url) = own.last().unwrap().split_once("listening on ").unwrap();
    let (url, rest) = url.split_once(": ").unwrap();
    assert!(rest.starts_with("model demo, seed "), "{rest}");
    for (name, path) in
        [("API", "/v1"), ("docs", "/docs"), ("dashboard", "/dashboard"), ("metrics", "/metrics")]
    {
        assert!(own.contains(&format!("{name} {url}{path}").as_str()), "{log:#?}");
    }
    for line in own {
        assert!(line.len() < 160 && !line.contains("sesame"), "{line}");
        assert!(!line.contains('=') && !line.contains("vllm_sim::"), "{line}");
    }
    let (_running, log) = start(&["--model", "demo", "--port", "0", "--log-level", "debug"]);
    assert!(log.iter().any(|line| line.contains("\"max-num-seqs\":5")));
}

#[test]
fn the_log_of_an_sglang_server_names_its_release_and_its_pages() {
    let served = ["sglang", "--model-path", "demo", "--port", "0"];
    let (_running, log) = start(&served);
    assert!(log[0].ends_with("imitates SGLang 0.5.23, with the flags of `sglang.launch_server`"));
    let ready = "The server is fired up and ready to roll!";
    assert!(log.iter().any(|line| line.ends_with(ready)), "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("Starting vLLM server")), "{log:#?}");
    let names = |word: &str| log.iter().any(|line| line.contains(&format!(" INFO {word} http")));
    assert!(names("API") && names("dashboard") && !names("docs") && !names("metrics"), "{log:#?}");
    let (_running, log) = start(&[&served[..], &["--enable-metrics"]].concat());
    assert!(log.iter().any(|line| line.contains(" INFO metrics http")), "{log:#?}");
}

#[test]
fn server_stops_at_end_of_stdin() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(["--model", "demo", "--host", "127.0.0.1", "--port", "0"]);
    command.arg("--exit-on-stdin-eof").stdin(Stdio::piped());
    let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("listening on")));
    drop(running.0.stdin.take());
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn a_call_without_arguments_prints_the_usage() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let output = command.env_clear().output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("Usage: vllm-sim --model MODEL"), "{text}");
    assert!(text.contains("vllm-sim --model demo"), "{text}");
    for tool in vllm_sim_config::TOOL_COMMANDS {
        let mut words = text.split([' ', ',', '\n']);
        assert!(words.any(|word| word == tool), "{tool}");
    }
    assert_eq!(output.status.code(), Some(2));
}

/// The log of a server up to this line.
fn log_until(words: &[&str], last: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let command = command.args(words).args(["--host", "127.0.0.1", "--port", "0"]);
    let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let mut log = Vec::new();
    for line in lines {
        log.push(line.unwrap());
        if log.iter().any(|line| line.contains(last)) {
            return log;
        }
    }
    panic!("it ended: {log:#?}");
}

#[test]
fn serve_prints_vllm_ready_lines() {
    let words =
        ["serve", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--max-model-len", "8192"];
    let log = log_until(&words, "Application startup complete.").join("\n");
    for line in [
        "Available KV cache memory: ",
        "GPU KV cache size: ",
        " tokens, Maximum concurrency for 8,192 tokens per request: ",
        "Starting vLLM server on http://127.0.0.1:",
    ] {
        assert!(log.contains(line), "no {line:?} in\n{log}");
    }
}

#[test]
fn a_deployment_of_which_a_port_is_taken_is_not_reported_as_started() {
    // Finds two consecutive ports, of which the second is taken.
    let (port, _taken) = std::iter::repeat_with(|| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let next = port.checked_add(1)?;
        let taken = std::net::TcpListener::bind(("127.0.0.1", next)).ok()?;
        Some((port.to_string(), taken))
    })
    .flatten()
    .next()
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let command = command.args(["serve", "demo", "--replicas", "2", "--host", "127.0.0.1"]);
    let output = command.args(["--port", &port]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("in use"), "{text}");
    assert!(!text.contains("Application startup complete."), "{text}");
}

#[test]
fn a_port_in_use_is_named_with_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let command = command.args(["serve", "demo", "--host", "127.0.0.1", "--port", "0"]);
    let output = command.args(["--grpc-port", &port]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("name another --grpc-port\n"), "{text}");
}

#[test]
fn an_engine_that_cannot_start_ends_as_vllms_does() {
    let words = ["serve", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "h100"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    let output = command.args(words).args(["--port", "0"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("KV cache is needed") || text.contains("does not fit"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}

#[test]
fn expert_parallel_over_eight_engines_fits() {
    let words = [
        "serve",
        "deepseek-ai/DeepSeek-V3",
        "--gpu",
        "h200",
        "-dp",
        "8",
        "--enable-expert-parallel",
        "--max-model-len",
        "32768",
    ];
    let log = log_until(&words, "Application startup complete.");
    assert!(log.iter().any(|line| line.contains("GPU KV cache size")));
}

#[test]
fn ready_file_never_replaces_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("c.yaml"), "max-num-seqs: 4\n").unwrap();
    std::fs::write(path("other.json"), r#"{"pid": 4}"#).unwrap();
    std::os::unix::fs::symlink("c.yaml", path("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", path("broken")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    for name in ["c.yaml", "other.json", "link", "broken", "folder"] {
        for more in [&["--port", "0"][..], &["--host", "203.0.113.1", "--port", "1"]] {
            let file = path(name);
            let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
            command.args(["serve", "demo", "--ready-file"]).arg(&file).args(more);
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{name}: {text}");
            assert!(text.contains("--ready-file"), "{name}: {text}");
            assert!(file.symlink_metadata().is_ok(), "{name} is gone");
        }
    }
    let text = std::fs::read_to_string(path("c.yaml")).unwrap();
    assert_eq!(text, "max-num-seqs: 4\n");
}

#[test]
fn a_server_leaves_the_ready_file_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready.json");
    std::fs::write(&ready, "").unwrap();
    let file = ready.to_str().unwrap();
    let (mut running, _) = start(&["--model", "demo", "--port", "0", "--ready-file", file]);
    url(&ready);
    let other = r#"{"pid": 1, "model": "demo", "servers": []}"#;
    std::fs::write(&ready, other).unwrap();
    let pid = running.0.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(running.0.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&ready).unwrap(), other);
}

#[test]
fn sighup_stops_server_like_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready.json");
    let file = ready.to_str().unwrap();
    let (mut running, _) = start(&["--model", "demo", "--port", "0", "--ready-file", file]);
    let pid = running.0.id().to_string();
    Command::new("kill").args(["-HUP", &pid]).status().unwrap();
    let status = running.0.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(!ready.exists(), "it is gone with the server");
}

/// Settings without effect and misspelt ones are warnings.
#[test]
fn settings_without_effect_are_warned_about() {
    let warned = |words: &[&str], vars: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
        command.args(["serve", "demo"]).args(words);
        // An address that nobody has ends the start, behind the warnings.
        command.args(["--host", "203.0.113.1", "--port", "1"]);
        let output = command.envs(vars.iter().copied()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let lines = text.lines().filter(|line| line.contains(" WARN "));
        lines.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    let log = warned(&["--latency-model", "polynomial", "--time-to-first-token", "2s"], &[]);
    assert!(log.contains("--time-to-first-token: no effect because a latency model"), "{log}");
    let log = warned(&["--failure-types", "server_error"], &[]);
    assert!(
        log.contains("--failure-types: no effect because --failure-injection-rate is 0"),
        "{log}"
    );
    let log = warned(&["--stream-faults", "cut_after=1"], &[]);
    assert!(log.contains("--stream-faults: no effect"), "{log}");
    let log = warned(&[], &[("VLLM_SIM_MAX_NUM_SEQ", "8")]);
    assert!(log.contains("did you mean VLLM_SIM_MAX_NUM_SEQS?"), "{log}");
    let words = [
        "--time-to-first-token",
        "2ms",
        "--failure-injection-rate",
        "1",
        "--failure-types",
        "server_error",
    ];
    let log = warned(&words, &[("VLLM_SIM_MAX_NUM_SEQS", "8")]);
    assert!(!log.contains("no effect") && !log.contains("VLLM_SIM_"), "{log}");
}
