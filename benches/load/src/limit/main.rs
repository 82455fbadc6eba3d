//! The limit server: the least work that still answers the same routes with the same number of SSE
//! events. `--engine hyper` is what the framework allows, `--engine epoll` what the machine does.
//! Bodies are only searched for `"stream":true`.
//!
//! `limit --port P [--engine hyper|epoll] [--ttft-ms N] [--itl-ms N] [--tokens N] [--batch N] [--tick-us N]`;
//! `--batch` events share a frame when there are no delays.
mod epoll;
mod hyper_server;
mod wheel;

use bytes::Bytes;
use std::sync::OnceLock;

pub struct Options {
    pub port: u16,
    pub ttft: u64,
    pub itl: u64,
    pub tokens: u32,
    pub tick: u64,
    pub batch: u32,
}
pub static OPTIONS: OnceLock<Options> = OnceLock::new();
pub fn options() -> &'static Options {
    OPTIONS.get().expect("set in main")
}

pub const HEAD: &str = r#"data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":""#;
pub const TAIL: &str = "\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
pub const DONE: &str = "data: [DONE]\n\n";
pub const WORDS: [&str; 8] = [
    " lorem",
    " ipsum",
    " dolor",
    " sit",
    " amet",
    " consectetur",
    " elit",
    " sed",
];
pub const JSON: &str = r#"{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":" lorem ipsum dolor sit amet consectetur elit sed lorem ipsum dolor sit amet consectetur elit sed","refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning_content":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":20,"total_tokens":36,"completion_tokens":16,"prompt_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}"#;

/// SSE text of token i; the last one carries [DONE].
pub fn sse(i: u32, last: bool) -> Bytes {
    static EVENTS: OnceLock<Vec<Bytes>> = OnceLock::new();
    let render = || {
        WORDS
            .iter()
            .map(|word| Bytes::from(format!("{HEAD}{word}{TAIL}")))
    };
    let events = EVENTS.get_or_init(|| render().collect());
    let event = &events[i as usize % WORDS.len()];
    match last {
        true => Bytes::from([event, DONE.as_bytes()].concat()),
        false => event.clone(),
    }
}

/// The same with chunked framing in front and behind; the last one closes the body.
pub fn framed(i: u32, last: bool, out: &mut Vec<u8>) {
    let b = sse(i, last);
    let _ = std::io::Write::write_fmt(out, format_args!("{:x}\r\n", b.len()));
    out.extend_from_slice(&b);
    out.extend_from_slice(if last { b"\r\n0\r\n\r\n" } else { b"\r\n" });
}
pub const SSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
pub fn json_response() -> &'static [u8] {
    static R: OnceLock<Vec<u8>> = OnceLock::new();
    R.get_or_init(|| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{JSON}",
            JSON.len()
        )
        .into_bytes()
    })
}

/// Length of one whole request at the front of `b`: (all bytes, body start).
pub fn request_len(b: &[u8]) -> Option<(usize, usize)> {
    let h = memchr::memmem::find(b, b"\r\n\r\n")? + 4;
    let low = b[..h].to_ascii_lowercase();
    let n = memchr::memmem::find(&low, b"content-length:").map_or(0, |i| {
        low[i + 15..]
            .trim_ascii_start()
            .iter()
            .take_while(|c| c.is_ascii_digit())
            .fold(0, |a, c| a * 10 + (c - b'0') as usize)
    });
    (b.len() >= h + n).then_some((h + n, h))
}
pub fn wants_stream(body: &[u8]) -> bool {
    memchr::memmem::find(body, b"\"stream\":true").is_some()
}

pub fn listen() -> std::net::TcpListener {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], options().port));
    let open = || -> std::io::Result<std::net::TcpListener> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    };
    open().unwrap_or_else(|error| panic!("{address}: {error}"))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |name: &str, default: &str| {
        let found = args.chunks(2).find(|pair| pair[0] == name);
        found.map_or(default.to_string(), |pair| pair[1].clone())
    };
    let number = |name: &str, default: &str| text(name, default).parse::<f64>().expect("a number");
    let options = Options {
        port: number("--port", "8000") as u16,
        ttft: (number("--ttft-ms", "0") * 1e6) as u64,
        itl: (number("--itl-ms", "0") * 1e6) as u64,
        tokens: number("--tokens", "100") as u32,
        tick: (number("--tick-us", "250") * 1e3) as u64,
        batch: number("--batch", "1") as u32,
    };
    OPTIONS.set(options).ok();
    match text("--engine", "hyper").as_str() {
        "epoll" => epoll::serve(),
        "hyper" => {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(hyper_server::serve());
        }
        other => panic!("--engine {other}: hyper or epoll"),
    }
}
