//! Command lines that other projects' documents, charts and manifests use, given to our binary as
//! they are written there.
//!
//! Each starts the built program, sends a chat to its first and last server and ends it with
//! SIGTERM. Ports are moved to free ones, and delays of seconds shortened, by flags behind the
//! rest: the later one counts. tests/compat/README.md lists the sources.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod commands;
mod migrating;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use commands::{COMMANDS, FILES, Line};

/// Longest wait for a server to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// So many ports in a row that nobody uses.
fn ports(count: u16) -> u16 {
    // Tests run side by side: nobody is given a block twice.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let taken = |port| TcpListener::bind(("127.0.0.1", port)).is_err();
    let start = 23_000 + (std::process::id() % 200) as u16 * 32;
    for _ in 0..200 {
        let first = start + NEXT.fetch_add(16, Ordering::Relaxed);
        if !(first..first + count).any(taken) {
            return first;
        }
    }
    panic!("no free ports")
}

fn get(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn ask(port: u16, path: &str, body: &str) -> Option<String> {
    let length = body.len();
    get(
        port,
        &format!(
            "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ),
    )
}

/// A program that is killed whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a process starts in real time")]
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(words: &[String], port: u16, line: &Line) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(words).args(["--port", &port.to_string()]);
    if line.slow {
        command.args(["--time-to-first-token", "1ms", "--inter-token-latency", "0"]);
        command.args(["--time-to-first-token-std-dev", "0", "--inter-token-latency-std-dev", "0"]);
    }
    command.envs([("POD_NAME", "pod"), ("POD_IP", "127.0.0.1")]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().unwrap())
}

fn serves(words: &[String], line: &Line) {
    let port = ports(line.servers);
    let mut running = start(words, port, line);
    let health = "GET /ready HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
    for port in [port, port + line.servers - 1] {
        wait_for(line.name, || {
            let ended = running.0.try_wait().unwrap();
            assert!(ended.is_none(), "{}: it ended: {ended:?}", line.name);
            get(port, health).is_some_and(|text| text.starts_with("HTTP/1.1 200"))
        });
        let body = format!(
            "{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}], \"max_tokens\": 5}}",
            line.model
        );
        // Those that fail on purpose are asked until they do not.
        let answered = (0..100).any(|_| {
            let answer = ask(port, "/v1/chat/completions", &body).unwrap();
            let ok = answer.starts_with("HTTP/1.1 200") && answer.contains("\"choices\"");
            assert!(ok || line.fails, "{}: {answer}", line.name);
            ok
        });
        assert!(answered, "{}: it always fails", line.name);
    }
    let pid = running.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let mut code = None;
    wait_for("its end", || {
        code = running.0.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(0), "{}: exit code", line.name);
}

/// Words of a command line, as a shell would cut them: quotes hold words together.
fn split_command_line(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_command_line_serves_a_chat() {
    for line in COMMANDS {
        serves(&split_command_line(line.words), line);
    }
}

#[test]
fn manifest_args_are_passed_separately() {
    // Each line of a manifest is one argument, however many words it has.
    let arguments = [
        "--model \"meta-llama/Llama-3.1-8B-Instruct\"",
        "--port 8000",
        "--mode echo",
        "--time-to-first-token 500",
        "--inter-token-latency 30",
    ];
    let line = Line {
        name: "seed 003, Kubernetes",
        model: "meta-llama/Llama-3.1-8B-Instruct",
        slow: true,
        ..Line::NONE
    };
    serves(&arguments.map(str::to_owned), &line);
}

#[test]
fn every_file_serves_a_chat() {
    let folder = tempfile::tempdir().unwrap();
    for (index, (text, line)) in FILES.iter().enumerate() {
        let path = folder.path().join(format!("{index}.yaml"));
        std::fs::write(&path, text).unwrap();
        let words = ["--config".to_owned(), path.display().to_string()];
        serves(&words, line);
    }
}

#[test]
fn invalid_start_exits_with_2() {
    // Seed 003 shows these two without the model that the program needs.
    for line in ["--v=2 --logtostderr=true", "--v=5 --logtostderr=true"] {
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-sim"))
            .args(split_command_line(line))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("model parameter is empty"), "{text}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-sim"))
        .args(["--model", "m", "--scenario", "missing.yaml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing.yaml"));
}
