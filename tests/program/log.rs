//! A log that cannot be written: no request, start or exit code changes with it.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be unwrapped is a failure"
)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
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
            let wanted = if path == "/v1/models" {
                "200 OK"
            } else {
                "404 Not Found"
            };
            let got = status(&mut running, port, path);
            assert_eq!(got, format!("HTTP/1.1 {wanted}"), "{path}");
        }
        let pid = running.0.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(killed.success());
        assert_eq!(running.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn an_error_that_nobody_reads_keeps_its_exit_code() {
    for (words, code) in [
        (&["--no-such-flag"][..], 2),
        (&["serve", "m", "--port", "x"], 2),
        (&["replay", "--no-such-flag"], 2),
        (&["replay", "missing.jsonl"], 1),
    ] {
        for stderr in [Stdio::from(full()), closed()] {
            let status = vllm_sim(words).stderr(stderr).status().unwrap();
            assert_eq!(status.code(), Some(code), "{words:?}");
        }
    }
}
