//! A log that cannot be written: no request, start or exit code changes with it.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A device on which every write fails, as on a full disk.
fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// A pipe whose reader is gone.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn vllm_sim(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.args(words).stdout(Stdio::null());
    command
}

/// A program that is killed whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The status line of an answer, once the server listens.
fn status(running: &mut Running, port: u16, path: &str) -> String {
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => {
                let ended = running.0.try_wait().unwrap();
                assert!(ended.is_none(), "it ended: {ended:?}");
                std::thread::yield_now();
            }
        }
    };
    let request = format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_server_without_a_log_serves_and_ends_well() {
    for stderr in [Stdio::from(full()), closed()] {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let port_word = port.to_string();
        let words = [
            "--model",
            "m",
            "--host",
            "127.0.0.1",
            "--port",
            &port_word,
            "--log-level",
            "trace",
            "--log-http",
        ];
        let mut command = vllm_sim(&words);
        let mut running = Running(command.stderr(stderr).spawn().unwrap());
        for path in ["/v1/models", "/no/such/path", "/v1/models"] {
            let wanted = if path == "/v1/models" { "200 OK" } else { "404 Not Found" };
            let got = status(&mut running, port, path);
            assert_eq!(got, format!("HTTP/1.1 {wanted}"), "{path}");
        }
        let pid = running.0.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(killed.success());
        assert_eq!(running.0.wait().unwrap().code(), Some(0));
    }
}

/// uvicorn's lines, which scripts look for behind `serve`.
#[test]
fn serve_prints_a_line_for_each_request_and_the_plain_mode_none() {
    let logged = |words: &[&str], line: &str| {
        let mut command = vllm_sim(words);
        command.args(["--host", "127.0.0.1", "--port", "0"]);
        let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines();
        let mut find = |words: &str| log.find(|line| line.as_ref().unwrap().contains(words));
        let listening = find("listening on").unwrap().unwrap();
        let (_, rest) = listening.split_once("127.0.0.1:").unwrap();
        let port = rest.split(':').next().unwrap().parse().unwrap();
        for path in ["/health", "/v1/models?x=1"] {
            assert_eq!(status(&mut running, port, path), "HTTP/1.1 200 OK");
        }
        let found = (!line.is_empty()).then(|| find(line).unwrap().unwrap());
        let pid = running.0.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(running.0.wait().unwrap().success());
        let rest = log.map(Result::unwrap).filter(|line| line.contains("\"GET "));
        (found, rest.count())
    };
    let path = "/v1/models?x=1 HTTP/1.1";
    let (line, _) = logged(&["serve", "m"], path);
    let line = line.unwrap();
    let port = line.strip_prefix("INFO:     127.0.0.1:").unwrap();
    let (port, rest) = port.split_once(' ').unwrap();
    assert!(port.parse::<u16>().is_ok(), "{line}");
    assert_eq!(rest, format!("- \"GET {path}\" 200 OK"));
    for quiet in [
        &["--model", "m"][..],
        &["serve", "m", "--disable-uvicorn-access-log"],
        &["serve", "m", "--uvicorn-log-level", "warning", "--log-level", "info"],
    ] {
        assert_eq!(logged(quiet, "").1, 0, "{quiet:?}");
    }
}

#[test]
fn closed_stderr_keeps_exit_code() {
    for (words, code) in [
        (&["--no-such-flag"][..], 2),
        (&["serve", "m", "--port", "x"], 2),
        (&["replay", "--no-such-flag"], 2),
        (&["replay", "missing.jsonl"], 2),
    ] {
        for stderr in [Stdio::from(full()), closed()] {
            let status = vllm_sim(words).stderr(stderr).status().unwrap();
            assert_eq!(status.code(), Some(code), "{words:?}");
        }
    }
}
