//! Renders transcripts as one JSON object or as stream chunks.
//!
//! Source: vLLM 0.33 `entrypoints/speech_to_text/{base/serving,transcription/protocol}.py`.

use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::languages::separator;
use crate::json;
use crate::openai::logprobs;
use crate::stream::{ChoiceStep, Render};
use vllm_sim_engine::End;
use vllm_sim_service::generate::{Channel, Reason, StopReason};
use vllm_sim_service::{Choice, Reply};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::audio::{SpeechRequest, Task};

/// Resolution of the timestamps of the speech model, in seconds.
const TIMESTAMP_STEP: f64 = 0.02;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clip {
    /// Start of the audio clip in the file, in seconds.
    pub(super) start: f64,
    /// Duration of the audio clip, in seconds.
    pub(super) seconds: f64,
}

pub(super) struct Transcript {
    pub(super) id: Arc<str>,
    pub(super) created: u64,
    pub(super) model: Arc<str>,
    pub(super) seconds: f64,
    pub(super) clips: Vec<Clip>,
    pub(super) format: String,
    pub(super) language: Option<String>,
    pub(super) task: Task,
    pub(super) temperature: f64,
}

/// A sentence of a transcript, with its start and end in the audio.
struct Segment {
    id: usize,
    start: f64,
    end: f64,
    seek: u64,
    text: String,
    tokens: Vec<u32>,
    avg_logprob: f64,
}

impl Transcript {
    /// Returns the JSON body of a finished transcript.
    ///
    /// # Errors
    /// 400 for a diarized transcript without text.
    pub(super) fn unary(&self, reply: &Reply) -> Result<String, Fault> {
        Ok(match self.format.as_str() {
            "verbose_json" => self.verbose(reply),
            "diarized_json" => self.diarized(reply)?,
            _ => self.plain(reply),
        })
    }

    fn join<'a>(&self, texts: impl Iterator<Item = &'a str>) -> String {
        let separator = separator(self.language.as_deref());
        texts.collect::<Vec<_>>().join(separator)
    }

    fn plain(&self, reply: &Reply) -> String {
        let texts: Vec<String> = reply
            .choices
            .iter()
            .map(|choice| choice.script.text(Channel::Content, choice.released()))
            .collect();
        let mut out = String::from("{\"text\":");
        json::string(&mut out, &self.join(texts.iter().map(String::as_str)));
        if self.task == Task::Transcribe {
            self.usage(&mut out);
        }
        out.push('}');
        out
    }

    fn usage(&self, out: &mut String) {
        out.push_str(",\"usage\":{\"type\":\"duration\",\"seconds\":");
        json::int(out, self.seconds.ceil() as u64);
        out.push('}');
    }

    fn verbose(&self, reply: &Reply) -> String {
        let segments = self.segments(reply);
        let mut out = String::from("{\"duration\":");
        json::float(&mut out, self.seconds);
        out.push_str(",\"language\":");
        json::optional(&mut out, self.language.as_deref());
        out.push_str(",\"text\":");
        json::string(
            &mut out,
            &self.join(segments.iter().map(|s| s.text.as_str())),
        );
        out.push_str(",\"segments\":[");
        for (index, segment) in segments.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            self.segment(&mut out, segment);
        }
        out.push_str("],\"words\":null}");
        out
    }

    fn segment(&self, out: &mut String, segment: &Segment) {
        out.push_str("{\"id\":");
        json::int(out, segment.id);
        out.push_str(",\"avg_logprob\":");
        json::float(out, segment.avg_logprob);
        out.push_str(",\"compression_ratio\":");
        json::float(out, compression_ratio(&segment.text));
        out.push_str(",\"end\":");
        json::float(out, segment.end);
        out.push_str(",\"no_speech_prob\":null,\"seek\":");
        json::int(out, segment.seek);
        out.push_str(",\"start\":");
        json::float(out, segment.start);
        out.push_str(",\"temperature\":");
        json::float(out, self.temperature);
        out.push_str(",\"text\":");
        json::string(out, &segment.text);
        out.push_str(",\"tokens\":");
        json::ints(out, segment.tokens.iter().copied());
        out.push('}');
    }

    /// Renders a diarized transcript: two speakers alternate by sentence.
    fn diarized(&self, reply: &Reply) -> Result<String, Fault> {
        let segments = self.segments(reply);
        if segments.is_empty() {
            return Err(Fault::bad_request(
                "Model output did not contain a valid diarized transcript",
            ));
        }
        let mut out = String::from("{\"task\":\"transcribe\",\"duration\":");
        json::float(&mut out, self.seconds);
        out.push_str(",\"text\":");
        json::string(&mut out, &self.join(segments.iter().map(|s| s.text.trim())));
        out.push_str(",\"segments\":[");
        for (index, segment) in segments.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str("{\"type\":\"transcript.text.segment\",\"id\":\"seg_");
            json::int(&mut out, index);
            out.push_str("\",\"start\":");
            json::float(&mut out, segment.start);
            out.push_str(",\"end\":");
            json::float(&mut out, segment.end);
            out.push_str(",\"text\":");
            json::string(&mut out, segment.text.trim());
            out.push_str(",\"speaker\":\"S0");
            json::int(&mut out, index % 2 + 1);
            out.push_str("\"}");
        }
        out.push(']');
        self.usage(&mut out);
        out.push('}');
        Ok(out)
    }

    /// Returns all sentences of a transcript with their times; sentence ids restart with each clip.
    fn segments(&self, reply: &Reply) -> Vec<Segment> {
        let each = reply.choices.iter().zip(&self.clips);
        each.flat_map(|(choice, clip)| sentences(choice, clip))
            .collect()
    }
}

/// Splits the transcript of a clip into sentences, which divide the duration of the clip in
/// proportion to their tokens.
fn sentences(choice: &Choice, clip: &Clip) -> Vec<Segment> {
    let released = choice.script.tokens().take(choice.released() as usize);
    let tokens: Vec<_> = released.filter(|t| t.channel == Channel::Content).collect();
    let steps = (clip.seconds / TIMESTAMP_STEP).floor();
    let at = |index: usize| {
        let share = index as f64 / tokens.len().max(1) as f64;
        clip.start + TIMESTAMP_STEP * (steps * share).floor()
    };
    let mut segments: Vec<Segment> = Vec::new();
    let mut begun = 0;
    for (index, token) in tokens.iter().enumerate() {
        let over = token.text.trim_end().ends_with(['.', '!', '?']) || index + 1 == tokens.len();
        if !over {
            continue;
        }
        let end = index + 1;
        let sentence = &tokens[begun..end];
        // The timestamp token that ends a sentence has a log probability, the one before it has
        // none.
        let sum: f64 = (begun..=end)
            .map(|at| f64::from(logprobs::chosen(at) as f32))
            .sum();
        segments.push(Segment {
            id: segments.len(),
            start: at(begun),
            end: at(end),
            seek: clip.start as u64,
            text: sentence.iter().map(|t| t.text).collect(),
            tokens: sentence.iter().map(|t| t.id).collect(),
            avg_logprob: sum / (sentence.len() + 2) as f64,
        });
        begun = end;
    }
    segments
}

/// Returns the ratio of the length of a text to its zlib-compressed length, in bytes.
fn compression_ratio(text: &str) -> f64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let _ = encoder.write_all(text.as_bytes());
    let packed = encoder.finish().map_or(0, |packed| packed.len());
    text.len() as f64 / packed.max(1) as f64
}

pub(super) struct SpeechStream {
    head: String,
    separator: &'static str,
    include_usage: bool,
    continuous_usage: bool,
    /// Number of prompt tokens of each clip; `encoder_frames` are added to them.
    prompts: Vec<u32>,
    encoder_frames: u32,
    current: usize,
    /// Whether text of the current clip's transcript was written.
    has_text: bool,
    completion: u32,
    /// Output of later audio clips, buffered until the current clip ends.
    pending: Vec<PendingOutput>,
}

#[derive(Default, Clone)]
struct PendingOutput {
    text: String,
    tokens: u32,
    finish: Option<String>,
}

impl SpeechStream {
    pub(super) fn new(
        transcript: Transcript,
        request: &SpeechRequest,
        prompts: &[u32],
        encoder_frames: u32,
    ) -> Self {
        let object = match transcript.task {
            Task::Transcribe => "transcription.chunk",
            Task::Translate => "translation.chunk",
        };
        let mut head = String::from("data: {\"id\":");
        json::string(&mut head, &transcript.id);
        head.push_str(",\"object\":\"");
        head.push_str(object);
        head.push_str("\",\"created\":");
        json::int(&mut head, transcript.created);
        head.push_str(",\"model\":");
        json::string(&mut head, &transcript.model);
        head.push_str(",\"choices\":[");
        Self {
            head,
            separator: separator(transcript.language.as_deref()),
            include_usage: request.include_usage,
            continuous_usage: request.continuous_usage,
            prompts: prompts.to_vec(),
            encoder_frames,
            current: 0,
            has_text: false,
            completion: 0,
            pending: vec![PendingOutput::default(); transcript.clips.len()],
        }
    }

    /// Returns the transcript stream with usage at its end, even if the client did not request it.
    pub(super) fn with_usage(self) -> Self {
        Self {
            include_usage: true,
            ..self
        }
    }

    fn usage(&self, out: &mut String) {
        let prompt = self
            .prompts
            .get(self.current.min(self.prompts.len().saturating_sub(1)));
        let prompt = prompt.copied().unwrap_or(0) + self.encoder_frames;
        out.push_str(",\"usage\":{\"prompt_tokens\":");
        json::int(out, prompt);
        out.push_str(",\"total_tokens\":");
        json::int(out, prompt + self.completion);
        out.push_str(",\"completion_tokens\":");
        json::int(out, self.completion);
        out.push('}');
    }

    /// Writes the available transcript of the current clip, and moves to the next clip when it
    /// ends.
    fn flush(&mut self, out: &mut String) {
        while let Some(pending) = self.pending.get_mut(self.current) {
            let PendingOutput {
                text,
                tokens,
                finish,
            } = std::mem::take(pending);
            self.completion += tokens;
            if text.is_empty() && finish.is_none() {
                return;
            }
            out.push_str(&self.head);
            out.push_str("{\"delta\":{\"content\":\"");
            if self.current > 0 && !self.has_text && !text.is_empty() {
                out.push_str(self.separator);
                self.has_text = true;
            }
            json::escape(out, &text);
            out.push_str("\"}");
            if let Some(finish) = &finish {
                out.push_str(finish);
            }
            out.push_str("}]");
            if self.include_usage && self.continuous_usage {
                self.usage(out);
            }
            out.push_str("}\n\n");
            if finish.is_none() {
                return;
            }
            self.current += 1;
            self.has_text = false;
        }
    }
}

impl Render for SpeechStream {
    fn step(&mut self, out: &mut String, choice: &mut Choice, step: &ChoiceStep) {
        let Some(pending) = self.pending.get_mut(step.index) else {
            return;
        };
        for _ in 0..step.tokens {
            let Some(token) = choice.script.next(&mut choice.cursor) else {
                break;
            };
            pending.tokens += 1;
            if token.channel == Channel::Content {
                pending.text.push_str(token.text);
            }
        }
        if let Some(end) = step.end {
            pending.finish = Some(finish(choice, end));
        }
        if step.index == self.current {
            self.flush(out);
        }
    }

    fn close(&mut self, out: &mut String, _reply: &Reply) {
        if self.include_usage {
            out.push_str(&self.head);
            out.push(']');
            self.usage(out);
            out.push_str("}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}

fn finish(choice: &Choice, end: End) -> String {
    let mut out = String::from(",\"finish_reason\":\"");
    out.push_str(match (end, choice.script.finish.reason) {
        (End::Aborted | End::Cancelled | End::Threshold, _) => "abort",
        (End::Failed, _) => "error",
        (End::Finished, Reason::Length) => "length",
        (End::Finished, Reason::Stop) => "stop",
    });
    out.push_str("\",\"stop_reason\":");
    match &choice.script.finish.stop {
        Some(StopReason::Token(id)) if end == End::Finished => json::int(&mut out, *id),
        Some(StopReason::Text(text)) if end == End::Finished => json::string(&mut out, text),
        _ => out.push_str("null"),
    }
    out
}
