//! Speech over WebSockets.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::sim::Sim;

/// A conversation with a server.
struct Talk(WebSocketStream<TcpStream>);

impl Talk {
    async fn open(sim: &Sim) -> Self {
        let stream = TcpStream::connect(sim.address()).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async("ws://sim/v1/realtime", stream)
            .await
            .expect("an upgrade");
        let mut talk = Self(socket);
        assert_eq!(talk.hear().await["type"], "session.created");
        talk
    }

    async fn say(&mut self, event: &Value) {
        let text = event.to_string();
        self.0.send(Message::Text(text.into())).await.unwrap();
    }

    /// Seconds of silence.
    async fn play(&mut self, seconds: f64) {
        let sound = vec![0u8; (seconds * 32_000.0) as usize];
        let audio = STANDARD.encode(sound);
        self.say(&json!({"type": "input_audio_buffer.append", "audio": audio})).await;
    }

    async fn commit(&mut self, last: bool) {
        self.say(&json!({"type": "input_audio_buffer.commit", "final": last})).await;
    }

    async fn next(&mut self) -> Option<Message> {
        let next = tokio::time::timeout(Duration::from_secs(20), self.0.next());
        next.await.expect("an answer").and_then(Result::ok)
    }

    async fn hear(&mut self) -> Value {
        loop {
            match self.next().await {
                Some(Message::Text(text)) => return serde_json::from_str(&text).unwrap(),
                Some(Message::Ping(_)) => {}
                other => panic!("no event: {other:?}"),
            }
        }
    }

    async fn choose_model(&mut self) {
        self.say(&json!({"type": "session.update", "model": "tiny-llama"})).await;
    }

    /// The deltas up to the end of an utterance, and its end.
    async fn utterance(&mut self) -> (String, Value) {
        let mut text = String::new();
        loop {
            let event = self.hear().await;
            if event["type"] == "transcription.done" {
                return (text, event);
            }
            assert_eq!(event["type"], "transcription.delta", "{event}");
            text.push_str(event["delta"].as_str().unwrap());
        }
    }
}

async fn listener() -> Sim {
    Sim::serve(&["--task", "realtime"]).await
}

#[tokio::test]
async fn utterance_is_transcribed_while_streaming() {
    let sim = listener().await;
    let mut talk = Talk::open(&sim).await;
    assert!(sim.shows("vllm:websocket_connections_active", 1.0).await);
    talk.choose_model().await;
    talk.commit(false).await;
    talk.play(6.0).await;
    // The first five seconds are answered before the speaker has finished.
    assert_eq!(talk.hear().await["type"], "transcription.delta");
    talk.play(6.0).await;
    talk.commit(true).await;
    let (_, done) = talk.utterance().await;
    let usage = &done["usage"];
    // 12 s: 15 + 15 + 6 tokens, and an end token each.
    assert_eq!(usage["completion_tokens"], 39, "{done}");
    assert_eq!(usage["prompt_tokens"], 70, "five seconds and the template");
    talk.commit(false).await;
    talk.play(2.0).await;
    talk.commit(true).await;
    let (text, done) = talk.utterance().await;
    assert_eq!(done["text"], text);
    assert!(!text.is_empty());
    drop(talk);
    assert!(sim.shows("vllm:websocket_connections_active", 0.0).await);
    assert_eq!(sim.metric("vllm:websocket_connections_total").await, 1.0);
    let ended = "vllm:websocket_connection_duration_seconds_count";
    assert_eq!(sim.metric(ended).await, 1.0);
    let page = sim.get("/metrics").await.text();
    assert!(!page.contains("handler=\"/v1/realtime\""), "{page}");
}

#[tokio::test]
async fn realtime_errors_keep_connection_open() {
    let sim = listener().await;
    let mut talk = Talk::open(&sim).await;
    let append = "input_audio_buffer.append";
    let cases = [
        (json!({"type": "x"}), "unknown_event", "Unknown event type: x"),
        (json!({}), "unknown_event", "Unknown event type: None"),
        (json!([]), "processing_error", "'list' object has no attribute 'get'"),
        (json!({"type": "session.update"}), "invalid_event", "Missing required field: model"),
        (
            json!({"type": "session.update", "model": "y"}),
            "model_not_found",
            "The model `y` does not exist.",
        ),
        (
            json!({"type": "input_audio_buffer.commit"}),
            "model_not_validated",
            "Model not validated.",
        ),
        (json!({"type": append, "audio": "!"}), "invalid_audio", "Invalid audio data"),
        (json!({"type": append, "audio": "AA=="}), "invalid_audio", "Invalid audio data"),
        (json!({"type": append, "audio": "AAAA"}), "invalid_audio", "Invalid audio data"),
        (
            json!({"type": append}),
            "processing_error",
            "1 validation error for InputAudioBufferAppend",
        ),
    ];
    for (event, code, words) in cases {
        talk.say(&event).await;
        let error = talk.hear().await;
        assert_eq!(error["code"], code, "{event} {error}");
        let told = error["error"].as_str().unwrap();
        assert!(told.starts_with(words), "{told}");
    }
    talk.0.send(Message::Text("{".into())).await.unwrap();
    assert_eq!(talk.hear().await["code"], "invalid_json");
    talk.0.send(Message::Binary(vec![1, 2].into())).await.unwrap();
    assert!(matches!(talk.next().await, Some(Message::Close(_)) | None));
    // What is no WebSocket finds nothing.
    assert_eq!(sim.get("/v1/realtime").await.status, 404);
    let text = Sim::serve(&[]).await;
    assert_eq!(text.get("/v1/realtime").await.status, 404);
}

#[tokio::test]
async fn a_connection_ends_with_its_server_and_a_request_with_its_connection() {
    let slow = ["--task", "realtime", "--time-to-first-token", "60s", "--scheduler", "pool"];
    let sim = Sim::serve(&slow).await;
    let mut talk = Talk::open(&sim).await;
    talk.choose_model().await;
    talk.commit(false).await;
    talk.play(5.0).await;
    assert!(sim.runs(1.0).await);
    drop(talk);
    assert!(sim.is_idle().await);
    let mut talk = Talk::open(&sim).await;
    let Sim { server, .. } = sim;
    let stopping = tokio::spawn(server.shut_down_server());
    assert!(matches!(talk.next().await, Some(Message::Close(_))));
    stopping.await.unwrap();
}
