//! Speech to text: every shape of an answer. Source of the shapes: vLLM 0.33
//! `entrypoints/openai/speech_to_text/`.

use super::audio::{TRANSCRIBE, TRANSLATE, listener, transcribe, wav};
use super::golden;

#[tokio::test]
async fn transcription_response_shapes() {
    let sim = listener().await;
    let seed = ("seed", "3");
    for (name, path, seconds, fields) in [
        ("transcription", TRANSCRIBE, 2.5, &[seed][..]),
        ("transcription-text", TRANSCRIBE, 2.5, &[("response_format", "text")]),
        ("transcription-verbose", TRANSCRIBE, 31.0, &[("response_format", "verbose_json")]),
        ("transcription-stream", TRANSCRIBE, 1.0, &[("stream", "true")]),
        (
            "transcription-stream-usage",
            TRANSCRIBE,
            1.0,
            &[("stream", "true"), ("stream_include_usage", "true")],
        ),
        ("translation", TRANSLATE, 2.5, &[]),
        ("translation-verbose", TRANSLATE, 2.5, &[("response_format", "verbose_json")]),
        ("translation-stream", TRANSLATE, 1.0, &[("stream", "true")]),
        ("transcription-refused", TRANSCRIBE, 1.0, &[("response_format", "srt")]),
    ] {
        let answer = transcribe(&sim, path, fields, &wav(seconds)).await;
        let shown = fields.iter().map(|(name, value)| format!("{name}={value}\n"));
        let request = format!("POST {path}\n{}file: {seconds} s", shown.collect::<String>());
        golden::check(name, &request, &answer);
    }
}
