//! Replies that go wrong on purpose, as they look on the wire.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::sim::{Sim, post};

/// What a raw client reads until the connection is gone, and how it went.
pub(crate) struct Rest {
    pub(crate) text: String,
    reset: bool,
    time: Duration,
}

impl Rest {
    /// Whether the body has its end.
    pub(crate) fn is_whole(&self) -> bool {
        self.text.ends_with("0\r\n\r\n")
    }

    /// How often something was said.
    fn count(&self, what: &str) -> usize {
        self.text.matches(what).count()
    }
}

#[expect(clippy::disallowed_methods, reason = "a stall takes real time")]
pub(crate) async fn spoiled(sim: &Sim, path: &str, fault: &str, body: &Value) -> Rest {
    let mut stream = TcpStream::connect(sim.address()).await.unwrap();
    let header = format!("X-Sim-Fault: {fault}");
    let request = post(path, &[&header, "connection: close"], body.to_string().as_bytes());
    let begin = Instant::now();
    stream.write_all(&request).await.unwrap();
    let (mut bytes, mut reset) = (Vec::new(), false);
    let patience = Duration::from_secs(20);
    loop {
        let mut piece = [0; 4096];
        let read = tokio::time::timeout(patience, stream.read(&mut piece)).await;
        match read.expect("the server hangs") {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(error) => {
                reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                break;
            }
        }
    }
    Rest { text: String::from_utf8(bytes).unwrap(), reset, time: begin.elapsed() }
}

/// Each streaming route, what each token of it looks like and what its last event holds.
fn streams() -> [(&'static str, Value, &'static str, &'static str); 4] {
    let said = json!([{"role": "user", "content": "a b c d e f g h i j"}]);
    [
        (
            "/v1/chat/completions",
            json!({"messages": said, "stream": true}),
            "\"delta\":{\"content\":\"",
            "data: [DONE]\n\n",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a b c d e f g h i j", "stream": true}),
            "\"text\":\"",
            "data: [DONE]\n\n",
        ),
        (
            "/v1/responses",
            json!({"input": "a b c d e f g h i j", "stream": true}),
            "event: response.output_text.delta\n",
            "event: response.completed\n",
        ),
        (
            "/v1/messages",
            json!({"model": "tiny-llama", "max_tokens": 20, "messages": said, "stream": true}),
            "\"text_delta\"",
            "event: message_stop\n",
        ),
    ]
}

async fn echo() -> Sim {
    Sim::llmd(&["--mode", "echo", "--force-dummy-tokenizer"]).await
}

#[tokio::test]
async fn a_stream_is_cut_after_the_given_number_of_tokens() {
    let sim = echo().await;
    for (path, body, token, last) in streams() {
        let whole = spoiled(&sim, path, "stall=1ms", &body).await;
        let tokens = whole.count(token);
        assert!(whole.is_whole() && tokens >= 10, "{path}: {}", whole.text);
        for n in [0, 1, 5] {
            let cut = spoiled(&sim, path, &format!("cut_after={n}"), &body).await;
            assert_eq!((cut.count(token), cut.count(last)), (n, 0), "{path}: {}", cut.text);
            assert!(!cut.is_whole() && !cut.reset, "{path}");
            let reset = spoiled(&sim, path, &format!("reset_after={n}"), &body).await;
            assert_eq!((reset.count(token), reset.reset), (n, true), "{path}");
        }
        // The last token is out, but not the end.
        let late = spoiled(&sim, path, &format!("cut_after={tokens}"), &body).await;
        assert_eq!((late.count(token), late.count(last)), (tokens, 0), "{path}");
        let never = spoiled(&sim, path, "cut_after=1000", &body).await;
        assert!(never.is_whole(), "{path}");
    }
    assert_eq!(sim.metric("vllm_sim_faults_total").await, 4.0 * 8.0);
}

#[tokio::test]
async fn a_faulty_stream_has_garbled_events_and_a_wrong_end() {
    let sim = echo().await;
    for (path, body, token, last) in streams() {
        let whole = spoiled(&sim, path, "stall=1ms", &body).await;
        let malformed = spoiled(&sim, path, "malformed_after=2", &body).await;
        let garbled = malformed.text.split("\n\n").filter_map(|event| {
            let data = event.split("data: ").nth(1)?;
            let end = data.find(['\n', '\r']).unwrap_or(data.len());
            (data[..end] != *"[DONE]").then_some(&data[..end])
        });
        let wrong = garbled.filter(|data| serde_json::from_str::<Value>(data).is_err());
        assert_eq!(wrong.count(), 1, "{path}: {}", malformed.text);
        assert!(malformed.is_whole(), "{path}");
        let missing = spoiled(&sim, path, "missing_done", &body).await;
        let twice = spoiled(&sim, path, "duplicate_done", &body).await;
        let counts = [&whole, &missing, &twice].map(|rest| (rest.count(token), rest.count(last)));
        let tokens = counts[0].0;
        assert_eq!(counts, [(tokens, 1), (tokens, 0), (tokens, 2)], "{path}");
        assert!(missing.is_whole() && twice.is_whole(), "{path}");
    }
}

#[tokio::test]
async fn stream_stall_lasts_given_time() {
    let sim = echo().await;
    let least = Duration::from_millis(120);
    for (path, body, ..) in streams() {
        for fault in
            ["stall=120ms", "stall=0:120ms", "stall=3:60ms;stall=5:60ms", "slow_first_byte=120ms"]
        {
            let rest = spoiled(&sim, path, fault, &body).await;
            assert!(rest.is_whole() && rest.time >= least, "{path} {fault}: {:?}", rest.time);
        }
    }
}

#[tokio::test]
async fn unary_replies_have_faults_too() {
    let sim = echo().await;
    for (path, mut body, ..) in streams() {
        body["stream"] = false.into();
        let length = |rest: &Rest| {
            let (head, body) = rest.text.split_once("\r\n\r\n").unwrap();
            let told = head.split("content-length: ").nth(1).unwrap();
            let told: usize = told.lines().next().unwrap().parse().unwrap();
            let whole = serde_json::from_str::<Value>(body).is_ok();
            (told as i64 - body.len() as i64, whole)
        };
        let cut = spoiled(&sim, path, "cut_after", &body).await;
        let reset = spoiled(&sim, path, "reset_after", &body).await;
        assert!(length(&cut).0 > 0 && !cut.reset, "{path}: {}", cut.text);
        assert!(length(&reset).0 > 0 && reset.reset, "{path}: {}", reset.text);
        let garbled = spoiled(&sim, path, "malformed_after", &body).await;
        assert_eq!(length(&garbled), (0, false), "{path}");
        let long = spoiled(&sim, path, "wrong_content_length=30", &body).await;
        assert_eq!(length(&long), (30, true), "{path}");
        let short = spoiled(&sim, path, "wrong_content_length=-30", &body).await;
        assert_eq!(length(&short), (0, false), "{path}");
        let refused = spoiled(&sim, path, "rate_limit;cut_after", &body).await;
        assert!(refused.text.starts_with("HTTP/1.1 429 "), "{path}: {}", refused.text);
    }
}

#[tokio::test]
async fn invalid_fault_header_lists_allowed_values() {
    let sim = echo().await;
    for (path, body, ..) in streams() {
        let answer = sim.post_with(path, &["x-sim-fault: explode=now"], &body).await;
        assert_eq!(answer.status, 400, "{path}");
        let text = answer.text();
        for word in ["explode=now", "cut_after=TOKENS", "rate_limit"] {
            assert!(text.contains(word), "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn fault_rates_follow_probability_and_seed() {
    let fates = async |seed: &str| {
        let flags = [
            "--mode",
            "echo",
            "--force-dummy-tokenizer",
            "--stream-fault-rate",
            "40",
            "--stream-faults",
            "missing_done",
            "duplicate_done",
            "--seed",
            seed,
        ];
        let sim = Sim::llmd(&flags).await;
        let (path, body, _, last) = &streams()[0];
        let mut fates = Vec::new();
        for _ in 0..40 {
            fates.push(sim.post(path, body).await.text().matches(last).count());
        }
        fates
    };
    let (first, again, other) = (fates("11").await, fates("11").await, fates("12").await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    let spoiled = first.iter().filter(|ends| **ends != 1).count();
    assert!((6..27).contains(&spoiled), "{first:?}");
    assert!(first.contains(&0) && first.contains(&2), "{first:?}");
}
