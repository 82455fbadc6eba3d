//! What a streamed token costs from the request to the socket: a server in this process, a client
//! that only counts.
//!
//! `cargo bench --bench stream` prints tokens per second; `cargo test --benches` runs it small.

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-llama");
const END: &[u8] = b"0\r\n\r\n";

/// Asks `times` times on one connection; bytes that came back.
async fn client(address: std::net::SocketAddr, request: Vec<u8>, times: u32) -> usize {
    let mut stream = TcpStream::connect(address).await.expect("a server");
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    for _ in 0..times {
        stream.write_all(&request).await.expect("a server");
        let mut tail = Vec::new();
        loop {
            let read = stream.read(&mut buffer).await.expect("a server");
            assert!(read > 0, "the server hangs up");
            total += read;
            tail.extend_from_slice(&buffer[read.saturating_sub(END.len())..read]);
            tail.drain(..tail.len().saturating_sub(END.len()));
            if tail == END {
                break;
            }
        }
    }
    total
}

#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
async fn measure(name: &str, path: &str, body: &str, clients: u32, times: u32, tokens: u32) {
    let words = ["--model", MODEL, "--host", "127.0.0.1", "--port", "0", "--seed", "7"];
    let loaded = LoadedConfig::from_flags(CliMode::Vllm, &words).expect("flags that are right");
    let server = SimulatorServer::start_server(loaded).await.expect("a start");
    let address = server.address.expect("a TCP address");
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let start = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|_| tokio::spawn(client(address, request.clone().into_bytes(), times)))
        .collect();
    let mut bytes = 0;
    for task in tasks {
        bytes += task.await.expect("a client");
    }
    let taken = start.elapsed().as_secs_f64();
    let all = f64::from(clients * times * tokens);
    assert!(bytes as f64 > 100.0 * all, "{name}: tokens are missing");
    println!("{name:<28} {:>12.0} tokens/s {:>9.1} MB/s", all / taken, bytes as f64 / taken / 1e6);
    server.shut_down_server().await;
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let (clients, times) = if full { (16, 60) } else { (2, 1) };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let limits = r#""max_tokens":1000,"ignore_eos":true,"stream":true"#;
        let chat = format!(r#"{{"messages":[{{"role":"user","content":"Hi"}}],{limits}}}"#);
        let text = format!(r#"{{"prompt":"Hi",{limits}}}"#);
        let rich = format!(r#"{{"prompt":"Hi","logprobs":2,"return_token_ids":true,{limits}}}"#);
        let (chats, texts) = ("/v1/chat/completions", "/v1/completions");
        measure("chat", chats, &chat, clients, times, 1000).await;
        measure("completion", texts, &text, clients, times, 1000).await;
        measure("completion with logprobs", texts, &rich, clients, times.div_ceil(10), 1000).await;
    });
}
