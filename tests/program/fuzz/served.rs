//! Forms and media, through a server: what the HTTP crate reads by itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig};

use super::mutate::Corpus;
use super::root;
use super::run::fuzz;

/// Longest wait for an answer. Only a failure takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server, and a connection to it.
struct Served {
    /// Both live as long as the connection.
    _running: (SimulatorServer, Runtime),
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Served {
    fn start(flags: &[&str]) -> Self {
        let model = root("tests/fixtures/tiny-llama");
        let always = ["--model", model.to_str().unwrap(), "--host", "127.0.0.1"];
        let mut loaded = LoadedConfig::from_flags(CliMode::Vllm, &[&always, flags].concat())
            .expect("good flags");
        loaded.config.server.port = 0;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let server = runtime.block_on(SimulatorServer::start_server(loaded)).expect("a start");
        let address = server.address.unwrap();
        Self { _running: (server, runtime), address, stream: None }
    }

    /// Posts a body, which is taken or refused.
    fn post(&mut self, path: &str, kind: &str, body: &[u8]) {
        let mut stream = self.stream.take().unwrap_or_else(|| {
            let stream = TcpStream::connect(self.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        });
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        let mut piece = [0; 65_536];
        loop {
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "the connection ends within an answer");
            answer.extend_from_slice(&piece[..read]);
            if is_whole(&answer) {
                break;
            }
        }
        self.stream = Some(stream);
        let status = &answer[9..12];
        let known = [&b"200"[..], b"400", b"404", b"413", b"422"].contains(&status);
        assert!(known, "{path}: {}", answer.escape_ascii());
    }
}

/// Whether an answer has come to its end.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    match head.split("content-length: ").nth(1) {
        Some(length) => {
            let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
            answer.len() >= end + 4 + length
        }
        None => answer.ends_with(b"\r\n0\r\n\r\n"),
    }
}

#[test]
fn fuzz_multipart_forms() {
    let form = "--xyz\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--xyz\r\n\
        content-disposition: form-data; name=\"temperature\"\r\n\r\n0.5\r\n--xyz\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
        content-type: audio/wav\r\n\r\n";
    let wav = b"RIFF\x44\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\x20\0\0\0";
    let whole = [form.as_bytes(), wav, &[0; 32], b"\r\n--xyz--\r\n"].concat();
    let pairs =
        b"model=tiny&temperature=0.5&timestamp_granularities%5B%5D=word&language=en".to_vec();
    let corpus = Corpus {
        seeds: vec![whole, pairs],
        tokens: &[
            "--xyz",
            "--xyz--",
            "\r\n",
            "\r\n\r\n",
            "content-disposition: form-data; name=\"x[]\"",
            "; filename=\"\"",
            "content-type: ",
            "RIFF",
            "WAVE",
            "fmt ",
            "data",
            "OggS",
            "ID3",
            "fLaC",
            "\u{1a}E\u{df}",
            "ftyp",
            "\x7f\x7f\x7f\x7f",
            "name=\"stream\"\r\n\r\ntrue",
            "&",
            "=",
            "%",
            "%5B%5D",
            "+",
            "name=\"response_format\"\r\n\r\nverbose_json",
            "name=\"language\"\r\n\r\nxx",
        ],
    };
    let mut server = Served::start(&["--task", "transcription"]);
    fuzz("forms", 4, corpus, move |input| {
        let kind = match input.contains(&b'\n') {
            true => "multipart/form-data; boundary=xyz",
            false => "application/x-www-form-urlencoded",
        };
        server.post("/v1/audio/transcriptions", kind, input);
    });
}

#[test]
fn fuzz_media_items() {
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let part = |kind: &str, url: &str| {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"{kind}","{kind}":{{"url":"{url}"}}}},{{"type":"text","text":"Hi"}}]}}],"max_tokens":2}}"#
        );
        body.into_bytes()
    };
    let corpus = Corpus {
        seeds: vec![
            part("image_url", &format!("data:image/png;base64,{png}")),
            part("audio_url", "data:audio/wav;base64,UklGRiQAAABXQVZFZm10IBAAAAABAAEA"),
            part("video_url", "https://example.com/a.mp4"),
            br#"{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}]}],"max_tokens":2}"#.to_vec(),
        ],
        tokens: &[
            "data:", ";base64,", "data:image/jpeg;base64,/9j/4AAQSkZJRg", "data:image/gif;base64,R0lGODlh",
            "data:image/webp;base64,UklGRg", "data:,", "https://", "file:///", "==", "{", "}", "[", "]", ",",
            "\"uuid\":\"a\"", "\"type\":\"image_embeds\"", "\"detail\":\"high\"", "null",
        ],
    };
    let mut server = Served::start(&["--mm-tokens-per-item", r#"{"audio": 7, "video": 9}"#]);
    fuzz("media", 4, corpus, move |input| {
        // A limit that a change takes away would make long answers.
        if input.windows(14).any(|at| at == b"\"max_tokens\":2") {
            server.post("/v1/chat/completions", "application/json", input);
        }
    });
}
