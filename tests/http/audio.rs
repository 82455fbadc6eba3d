//! Speech to text: forms in, transcripts out.

use serde_json::{Value, json};

use super::sim::Sim;
use super::wire::Answer;

pub(crate) const TRANSCRIBE: &str = "/v1/audio/transcriptions";
pub(crate) const TRANSLATE: &str = "/v1/audio/translations";

/// A recording of silence, 16 kHz, 16 bits.
pub(crate) fn wav(seconds: f64) -> Vec<u8> {
    let bytes = (seconds * 16_000.0) as u32 * 2;
    let mut out = b"RIFF".to_vec();
    out.extend((36 + bytes).to_le_bytes());
    out.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
    out.extend(bytes.to_le_bytes());
    out.resize(out.len() + bytes as usize, 0);
    out
}

/// The body of a form with a file.
fn form(fields: &[(&str, &str)], file: Option<&[u8]>) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let part =
            format!("--xyz\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend(part.into_bytes());
    }
    if let Some(file) = file {
        body.extend(b"--xyz\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav\r\n\r\n");
        body.extend(file);
        body.extend(b"\r\n");
    }
    body.extend(b"--xyz--\r\n");
    body
}

async fn send(sim: &Sim, path: &str, kind: &str, body: &[u8]) -> Answer {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\nx-request-id: 42\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend(body);
    sim.ask(request).await
}

pub(crate) async fn transcribe(
    sim: &Sim,
    path: &str,
    fields: &[(&str, &str)],
    file: &[u8],
) -> Answer {
    let body = form(fields, Some(file));
    send(sim, path, "multipart/form-data; boundary=xyz", &body).await
}

async fn refused(sim: &Sim, fields: &[(&str, &str)], file: &[u8]) -> (u16, String) {
    let answer = transcribe(sim, TRANSCRIBE, fields, file).await;
    let error = answer.json()["error"].clone();
    (answer.status, error["message"].as_str().unwrap_or_default().to_owned())
}

/// Fields, file, status, and how the message begins.
type Refusal<'a> = (&'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);

pub(crate) async fn listener() -> Sim {
    Sim::serve(&["--task", "transcription"]).await
}

/// The parsed events of a stream, `[DONE]` left out.
fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let data = text.split("\n\n").filter_map(|e| e.strip_prefix("data: "));
    let data = data.filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn transcript_length_follows_audio_duration() {
    let sim = listener().await;
    let answer = transcribe(&sim, TRANSCRIBE, &[("model", "tiny-llama")], &wav(2.5)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["usage"], json!({"type": "duration", "seconds": 3}));
    let keys: Vec<_> = body.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["text", "usage"]);
    let again = transcribe(&sim, TRANSCRIBE, &[], &wav(2.5)).await;
    assert_eq!(again.json()["text"], body["text"]);
    let long = transcribe(&sim, TRANSCRIBE, &[], &wav(20.0)).await.json();
    let length = |body: &Value| body["text"].as_str().unwrap().len();
    assert!(length(&long) > 3 * length(&body), "{long} {body}");
    let translated = transcribe(&sim, TRANSLATE, &[], &wav(2.5)).await.json();
    let keys: Vec<_> = translated.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["text"]);
    // A request without a language is heard twice: once to find it out.
    assert_eq!(sim.metric("vllm:request_success_total").await, 8.0);
    transcribe(&sim, TRANSCRIBE, &[("language", "de")], &wav(1.0)).await;
    assert_eq!(sim.metric("vllm:request_success_total").await, 9.0);
}

#[tokio::test]
async fn verbose_transcription_has_timestamps() {
    let sim = listener().await;
    let fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "segment")];
    let body = transcribe(&sim, TRANSCRIBE, &fields, &wav(40.0)).await.json();
    assert_eq!(body["duration"], 40.0);
    assert_eq!(body["language"], "en");
    assert_eq!(body["words"], Value::Null);
    let segments = body["segments"].as_array().unwrap();
    let number = |s: &Value, key: &str| s[key].as_f64().unwrap();
    let mut last = 0.0;
    for segment in segments {
        assert!(number(segment, "start") >= last - 1e-9, "{body}");
        last = number(segment, "end");
        assert!(number(segment, "compression_ratio") > 0.0);
        assert!(number(segment, "avg_logprob") < 0.0);
        assert!(!segment["tokens"].as_array().unwrap().is_empty());
    }
    assert!((38.0..=40.0).contains(&last), "{last}");
    // Two clips: the second begins where vLLM looks for silence first, and counts anew.
    let second: Vec<_> = segments.iter().filter(|s| s["seek"] == 29).collect();
    assert_eq!(second[0]["id"], 0, "{body}");
    assert_eq!(second[0]["start"], 29.0);
    let texts: Vec<_> = segments.iter().map(|s| s["text"].as_str().unwrap()).collect();
    assert_eq!(body["text"], texts.join(" "));
}

#[tokio::test]
async fn streams_have_the_same_text_and_may_end_with_usage() {
    let sim = listener().await;
    let whole = transcribe(&sim, TRANSCRIBE, &[], &wav(35.0)).await.json();
    let fields = [
        ("stream", "true"),
        ("stream_include_usage", "true"),
        ("stream_continuous_usage_stats", "true"),
    ];
    let answer = transcribe(&sim, TRANSCRIBE, &fields, &wav(35.0)).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = events(&answer);
    let (last, parts) = events.split_last().unwrap();
    let text: String =
        parts.iter().map(|e| e["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(whole["text"], text);
    let first = &parts[0];
    assert_eq!(first["id"], "transcribe-42");
    assert_eq!(first["object"], "transcription.chunk");
    assert_eq!(first["choices"][0].as_object().unwrap().len(), 1, "{first}");
    let ends = parts.iter().filter(|e| e["choices"][0]["finish_reason"] == "stop");
    assert_eq!(ends.count(), 2, "one per clip");
    assert_eq!(last["choices"], json!([]));
    let usage = &last["usage"];
    // Four markers, and 100 frames of each second.
    assert_eq!(usage["prompt_tokens"], 3504);
    assert_eq!(*usage, parts.last().unwrap()["usage"]);
    let plain = transcribe(&sim, TRANSLATE, &[("stream", "1")], &wav(1.0)).await;
    let plain = self::events(&plain);
    assert_eq!(plain[0]["object"], "translation.chunk");
    assert!(plain.iter().all(|e| e.get("usage").is_none()));
}

#[tokio::test]
async fn invalid_audio_is_rejected() {
    let sim = listener().await;
    let fine = wav(1.0);
    let cases: [Refusal<'_>; 10] = [
        (&[], b"not audio", 400, "Invalid or corrupted audio data."),
        (&[], b"", 400, "Invalid or corrupted audio data."),
        (&[], &wav(0.0), 400, "No audio found in the input."),
        (
            &[],
            &wav(601.0),
            400,
            "Audio exceeds maximum allowed duration of 600s (metadata reports 601.0s).",
        ),
        (&[("model", "x")], &fine, 404, "The model `x` does not exist."),
        (
            &[("response_format", "srt")],
            &fine,
            400,
            "Currently only support response_format: `text`, `json`",
        ),
        (
            &[("response_format", "diarized_json")],
            &fine,
            400,
            "Currently do not support diarized_json for tiny-llama",
        ),
        (
            &[("response_format", "verbose_json"), ("stream", "true")],
            &fine,
            400,
            "verbose_json format doesn't support streaming case",
        ),
        (
            &[("language", "xx")],
            &fine,
            400,
            "Unsupported language: 'xx'.  Must be one of ['af', 'ar',",
        ),
        (
            &[("stream_include_usage", "true")],
            &fine,
            400,
            "Stream options can only be defined when `stream=True`. (parameter=stream_include_usage)",
        ),
    ];
    for (fields, file, status, words) in cases {
        let (got, message) = refused(&sim, fields, file).await;
        assert_eq!(got, status, "{message}");
        assert!(message.starts_with(words), "{message}");
    }
    let (_, message) = refused(&sim, &[("n", "x"), ("response_format", "xml")], &fine).await;
    assert!(
        message.starts_with(
            "2 validation errors:\n  {'type': 'literal_error', 'loc': 'body.response_format'"
        ),
        "{message}"
    );
    let small = Sim::serve(&["--task", "transcription", "--max-audio-clip-filesize-mb", "1"]).await;
    let (status, message) = refused(&small, &[], &wav(40.0)).await;
    assert_eq!(status, 400);
    assert_eq!(
        message,
        "Maximum file size exceeded (parameter=audio_filesize_mb, value=1.2207450866699219)"
    );
}

#[tokio::test]
async fn forms_are_parsed_as_in_starlette() {
    let sim = listener().await;
    let multipart = "multipart/form-data; boundary=xyz";
    let text = send(&sim, TRANSCRIBE, multipart, &form(&[("file", "abc")], None)).await;
    assert_eq!(text.status, 422);
    assert_eq!(
        text.json()["error"],
        json!({"message": "Expected 'file' to be a file-like object, not 'str'.", "type": "Unprocessable Entity", "param": null, "code": 422})
    );
    let missing = send(&sim, TRANSCRIBE, "application/json", b"{}").await;
    assert_eq!(missing.status, 400);
    assert_eq!(missing.json()["error"]["param"], "body.file");
    let cut = form(&[("model", "tiny-llama")], Some(&wav(1.0)));
    let cut = send(&sim, TRANSCRIBE, multipart, &cut[..cut.len() - 40]).await;
    assert_eq!(cut.json()["error"]["param"], "body.file");
    let no_boundary = send(&sim, TRANSCRIBE, "multipart/form-data", b"abc").await;
    assert_eq!(
        (no_boundary.status, no_boundary.text()),
        (400, "{\"detail\":\"Missing boundary in multipart.\"}".to_owned())
    );
    let garbage = send(&sim, TRANSCRIBE, multipart, b"abc").await;
    assert_eq!(garbage.status, 400, "{}", garbage.text());
    let encoded =
        send(&sim, TRANSCRIBE, "application/x-www-form-urlencoded", b"file=a&model=b").await;
    assert_eq!(encoded.status, 422);
}

#[tokio::test]
async fn model_capability_selects_audio_routes() {
    let text = Sim::serve(&[]).await;
    assert_eq!(transcribe(&text, TRANSCRIBE, &[], &wav(1.0)).await.status, 404);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let serve = async |architecture: &str| {
        let value = json!({"architectures": [architecture], "max_position_embeddings": 448});
        std::fs::write(&config, value.to_string()).unwrap();
        Sim::serve(&["--hf-config-path", config.to_str().unwrap()]).await
    };
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
    let whisper = serve("WhisperForConditionalGeneration").await;
    assert_eq!(transcribe(&whisper, TRANSCRIBE, &[], &wav(1.0)).await.status, 200);
    assert_eq!(whisper.post("/v1/chat/completions", &chat).await.status, 404);
    let voxtral = serve("VoxtralForConditionalGeneration").await;
    assert_eq!(voxtral.post("/v1/chat/completions", &chat).await.status, 200);
    let heard = transcribe(&voxtral, TRANSCRIBE, &[], &wav(1.0)).await;
    assert_eq!(heard.status, 200, "{}", heard.text());
    let (status, message) =
        refused(&voxtral, &[("response_format", "verbose_json")], &wav(1.0)).await;
    assert_eq!(status, 400, "{message}");
    // llm-d's simulator has every route, and takes anything for a sound.
    let llmd = Sim::llmd(&[]).await;
    let guessed = transcribe(&llmd, TRANSCRIBE, &[], &[b'a'; 16_000]).await.json();
    assert_eq!(guessed["usage"]["seconds"], 2, "{guessed}");
}
