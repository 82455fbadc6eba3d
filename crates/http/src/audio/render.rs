//! Renders transcripts as one JSON object or as stream chunks.
//!
//! Source: vLLM 0.33 `entrypoints/speech_to_text/{base/serving,transcription/protocol}.py`.

use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::languages::transcript_separator;
use crate::json;
use crate::openai::logprobs;
use crate::openai::response_settings::write_stop_reason;
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_service::generate::{OutputChannel, OutputEndReason};
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::audio::{SpeechRequest, SpeechTask};

/// Resolution of the timestamps of the speech model, in seconds.
const TIMESTAMP_STEP_SECONDS: f64 = 0.02;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AudioClip {
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
    pub(super) clips: Vec<AudioClip>,
    pub(super) format: String,
    pub(super) language: Option<String>,
    pub(super) task: SpeechTask,
    pub(super) temperature: f64,
}

/// A sentence of a transcript, with its start and end in the audio.
struct TranscriptSegment {
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
    pub(super) fn transcript_body_json(&self, reply: &Reply) -> Result<String, Fault> {
        Ok(match self.format.as_str() {
            "verbose_json" => self.verbose_json(reply),
            "diarized_json" => self.diarized_json(reply)?,
            _ => self.plain_text(reply),
        })
    }

    fn join_clip_texts<'a>(&self, texts: impl Iterator<Item = &'a str>) -> String {
        let separator = transcript_separator(self.language.as_deref());
        texts.collect::<Vec<_>>().join(separator)
    }

    fn plain_text(&self, reply: &Reply) -> String {
        let texts: Vec<String> = reply
            .choices
            .iter()
            .map(|choice| {
                choice.script.channel_text(OutputChannel::Content, choice.released_tokens())
            })
            .collect();
        let mut out = String::from("{\"text\":");
        json::write_json_string(&mut out, &self.join_clip_texts(texts.iter().map(String::as_str)));
        if self.task == SpeechTask::Transcribe {
            self.write_usage(&mut out);
        }
        out.push('}');
        out
    }

    fn write_usage(&self, out: &mut String) {
        let seconds = self.seconds.ceil() as u64;
        json::write_member(out, ",\"usage\":{\"type\":\"duration\",\"seconds\":", seconds);
        out.push('}');
    }

    fn verbose_json(&self, reply: &Reply) -> String {
        let segments = self.segments(reply);
        let mut out = String::from("{\"duration\":");
        json::write_python_float(&mut out, self.seconds);
        json::write_member(&mut out, ",\"language\":", self.language.as_deref());
        let text = self.join_clip_texts(segments.iter().map(|s| s.text.as_str()));
        json::write_member(&mut out, ",\"text\":", &text);
        out.push_str(",\"segments\":[");
        for (index, segment) in segments.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            self.write_segment(&mut out, segment);
        }
        out.push_str("],\"words\":null}");
        out
    }

    fn write_segment(&self, out: &mut String, segment: &TranscriptSegment) {
        json::write_member(out, "{\"id\":", segment.id);
        json::write_member(out, ",\"avg_logprob\":", segment.avg_logprob);
        json::write_member(out, ",\"compression_ratio\":", compression_ratio(&segment.text));
        json::write_member(out, ",\"end\":", segment.end);
        json::write_member(out, ",\"no_speech_prob\":null,\"seek\":", segment.seek);
        json::write_member(out, ",\"start\":", segment.start);
        json::write_member(out, ",\"temperature\":", self.temperature);
        json::write_member(out, ",\"text\":", &segment.text);
        out.push_str(",\"tokens\":");
        json::write_json_int_array(out, segment.tokens.iter().copied());
        out.push('}');
    }

    /// Renders a diarized transcript: two speakers alternate by sentence.
    fn diarized_json(&self, reply: &Reply) -> Result<String, Fault> {
        let segments = self.segments(reply);
        if segments.is_empty() {
            return Err(Fault::bad_request(
                "Model output did not contain a valid diarized transcript",
            ));
        }
        let mut out = String::from("{\"task\":\"transcribe\",\"duration\":");
        json::write_python_float(&mut out, self.seconds);
        let text = self.join_clip_texts(segments.iter().map(|s| s.text.trim()));
        json::write_member(&mut out, ",\"text\":", &text);
        out.push_str(",\"segments\":[");
        for (index, segment) in segments.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str("{\"type\":\"transcript.text.segment\",\"id\":\"seg_");
            json::write_json_int(&mut out, index);
            json::write_member(&mut out, "\",\"start\":", segment.start);
            json::write_member(&mut out, ",\"end\":", segment.end);
            json::write_member(&mut out, ",\"text\":", segment.text.trim());
            out.push_str(",\"speaker\":\"S0");
            json::write_json_int(&mut out, index % 2 + 1);
            out.push_str("\"}");
        }
        out.push(']');
        self.write_usage(&mut out);
        out.push('}');
        Ok(out)
    }

    /// Returns all sentences of a transcript with their times; sentence ids restart with each clip.
    fn segments(&self, reply: &Reply) -> Vec<TranscriptSegment> {
        let each = reply.choices.iter().zip(&self.clips);
        each.flat_map(|(choice, clip)| split_clip_sentences(choice, clip)).collect()
    }
}

/// Splits the transcript of a clip into sentences, which divide the duration of the clip in
/// proportion to their numbers of tokens.
fn split_clip_sentences(choice: &ReplyChoice, clip: &AudioClip) -> Vec<TranscriptSegment> {
    let released = choice.script.output_tokens().take(choice.released_tokens() as usize);
    let tokens: Vec<_> = released.filter(|t| t.channel == OutputChannel::Content).collect();
    let steps = (clip.seconds / TIMESTAMP_STEP_SECONDS).floor();
    let at = |index: usize| {
        let share = index as f64 / tokens.len().max(1) as f64;
        clip.start + TIMESTAMP_STEP_SECONDS * (steps * share).floor()
    };
    let mut segments: Vec<TranscriptSegment> = Vec::new();
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
        let sum: f64 =
            (begun..=end).map(|at| f64::from(logprobs::llmd_chosen_logprob(at) as f32)).sum();
        segments.push(TranscriptSegment {
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

/// Returns the compression ratio of a text: its length divided by its zlib-compressed length, both
/// in bytes.
fn compression_ratio(text: &str) -> f64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let _ = encoder.write_all(text.as_bytes());
    let packed = encoder.finish().map_or(0, |packed| packed.len());
    text.len() as f64 / packed.max(1) as f64
}

pub(super) struct TranscriptStream {
    head: String,
    separator: &'static str,
    /// Whether the stream ends with the usage.
    pub(super) include_usage: bool,
    continuous_usage: bool,
    /// Number of prompt tokens of each audio clip; `usage` reports these tokens plus the
    /// `encoder_frames`.
    prompts: Vec<u32>,
    encoder_frames: u32,
    current: usize,
    /// Whether the stream has sent text from the current audio clip's transcript.
    has_text: bool,
    completion: u32,
    /// Transcripts of later audio clips, buffered until the current clip ends.
    pending: Vec<PendingClipText>,
}

#[derive(Default, Clone)]
struct PendingClipText {
    text: String,
    tokens: u32,
    finish: Option<String>,
}

impl TranscriptStream {
    pub(super) fn new(
        transcript: Transcript,
        request: &SpeechRequest,
        prompts: &[u32],
        encoder_frames: u32,
    ) -> Self {
        let object = match transcript.task {
            SpeechTask::Transcribe => "transcription.chunk",
            SpeechTask::Translate => "translation.chunk",
        };
        let mut head = String::from("data: {\"id\":");
        json::write_json_string(&mut head, &transcript.id);
        json::write_member(&mut head, ",\"object\":", object);
        json::write_member(&mut head, ",\"created\":", transcript.created);
        json::write_member(&mut head, ",\"model\":", &transcript.model);
        head.push_str(",\"choices\":[");
        Self {
            head,
            separator: transcript_separator(transcript.language.as_deref()),
            include_usage: request.include_usage,
            continuous_usage: request.continuous_usage,
            prompts: prompts.to_vec(),
            encoder_frames,
            current: 0,
            has_text: false,
            completion: 0,
            pending: vec![PendingClipText::default(); transcript.clips.len()],
        }
    }

    fn write_usage(&self, out: &mut String) {
        let prompt = self.prompts.get(self.current.min(self.prompts.len().saturating_sub(1)));
        let prompt = prompt.copied().unwrap_or(0) + self.encoder_frames;
        json::write_member(out, ",\"usage\":{\"prompt_tokens\":", prompt);
        json::write_member(out, ",\"total_tokens\":", prompt + self.completion);
        json::write_member(out, ",\"completion_tokens\":", self.completion);
        out.push('}');
    }

    /// Writes the available transcript of the current clip, and moves to the next clip when it
    /// ends.
    fn write_available_text(&mut self, out: &mut String) {
        while let Some(pending) = self.pending.get_mut(self.current) {
            let PendingClipText { text, tokens, finish } = std::mem::take(pending);
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
            json::push_json_escaped_unicode(out, &text);
            out.push_str("\"}");
            if let Some(finish) = &finish {
                out.push_str(finish);
            }
            out.push_str("}]");
            if self.include_usage && self.continuous_usage {
                self.write_usage(out);
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

impl StreamRenderer for TranscriptStream {
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let Some(pending) = self.pending.get_mut(choice.index) else {
            return;
        };
        for token in choice.script.next_tokens(&mut choice.cursor, tokens) {
            pending.tokens += 1;
            if token.channel == OutputChannel::Content {
                pending.text.push_str(token.text);
            }
        }
        if let Some(end) = choice.sent_end {
            pending.finish = Some(finish_members(choice, end));
        }
        if choice.index == self.current {
            self.write_available_text(out);
        }
    }

    fn write_closing(&mut self, out: &mut String, _reply: &Reply) {
        if self.include_usage {
            out.push_str(&self.head);
            out.push(']');
            self.write_usage(out);
            out.push_str("}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}

fn finish_members(choice: &ReplyChoice, end: SequenceEndReason) -> String {
    let mut out = String::from(",\"finish_reason\":\"");
    out.push_str(match (end, choice.script.finish.reason) {
        (
            SequenceEndReason::Aborted
            | SequenceEndReason::Cancelled
            | SequenceEndReason::Threshold,
            _,
        ) => "abort",
        (SequenceEndReason::Failed, _) => "error",
        (SequenceEndReason::Finished, OutputEndReason::Length) => "length",
        (SequenceEndReason::Finished, OutputEndReason::Stop) => "stop",
    });
    out.push('"');
    write_stop_reason(&mut out, choice, end);
    out
}
