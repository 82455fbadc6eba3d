//! Speech recognition capabilities of models, by their architecture.
//!
//! **Source:** vLLM 0.33, `SupportsTranscription` and `SupportsRealtime` of
//! `model_executor/models/interfaces.py` and the models that implement them.

use serde_json::Value;

use super::choices::Task;
use super::error::ConfigError;
use super::flags::api;
use super::model::Model;
use super::values::Values;

/// Settings of speech recognition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speech {
    /// Whether the routes `/v1/audio/transcriptions` and `/v1/audio/translations` exist.
    pub transcribes: bool,
    /// Whether the route `/v1/realtime` exists.
    pub realtime: bool,
    /// Speech recognition capabilities of the model.
    pub model: SpeechModel,
    /// Maximum size of an uploaded audio file, in bytes (default 25 MiB).
    pub max_file_bytes: u64,
    /// Maximum duration of an uploaded audio file, in seconds (default 600).
    pub max_seconds: u32,
    /// Maximum size of decoded audio as 32-bit samples, in bytes (default 256 MiB).
    pub max_decoded_bytes: u64,
}

/// Speech recognition capabilities of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeechModel {
    /// Whether the model supports transcription only, not text generation.
    pub only: bool,
    /// Whether transcriptions can have timestamps (`verbose_json`).
    pub segments: bool,
    /// Whether transcriptions can name speakers (`diarized_json`).
    pub speakers: bool,
    /// Whether the model detects the spoken language in a separate pass.
    pub detects: bool,
    /// Maximum length of audio per pass, in seconds; longer audio is split. `None`: unlimited.
    pub clip: Option<u32>,
    /// Whether audio becomes prompt tokens; else an encoder reads it.
    pub in_prompt: bool,
}

const WHISPER: SpeechModel = SpeechModel {
    only: true,
    segments: true,
    speakers: false,
    detects: true,
    clip: Some(30),
    in_prompt: false,
};

const MULTIMODAL_LM: SpeechModel = SpeechModel {
    only: false,
    segments: false,
    detects: false,
    in_prompt: true,
    ..WHISPER
};

const SPEECH_MODELS: [(&str, SpeechModel); 14] = [
    ("WhisperForConditionalGeneration", WHISPER),
    (
        "CohereAsrForConditionalGeneration",
        SpeechModel {
            segments: false,
            detects: false,
            ..WHISPER
        },
    ),
    (
        "FireRedASR2ForConditionalGeneration",
        SpeechModel {
            detects: false,
            ..WHISPER
        },
    ),
    (
        "FunASRForConditionalGeneration",
        SpeechModel {
            detects: false,
            ..WHISPER
        },
    ),
    (
        "MossTranscribeDiarizeForConditionalGeneration",
        SpeechModel {
            only: true,
            speakers: true,
            clip: None,
            ..MULTIMODAL_LM
        },
    ),
    ("Gemma3nForConditionalGeneration", MULTIMODAL_LM),
    ("GlmAsrForConditionalGeneration", MULTIMODAL_LM),
    ("GraniteSpeechForConditionalGeneration", MULTIMODAL_LM),
    ("GraniteSpeechPlusForConditionalGeneration", MULTIMODAL_LM),
    ("MoonshotKimiaForCausalLM", MULTIMODAL_LM),
    ("Qwen3OmniMoeForConditionalGeneration", MULTIMODAL_LM),
    ("Qwen3ASRForConditionalGeneration", MULTIMODAL_LM),
    ("VoxtralForConditionalGeneration", MULTIMODAL_LM),
    ("Qwen3ASRRealtimeGeneration", MULTIMODAL_LM),
];

const REALTIME: [&str; 2] = ["VoxtralRealtimeGeneration", "Qwen3ASRRealtimeGeneration"];

impl Speech {
    /// Returns the speech recognition settings for `task`, and the task if the architecture
    /// determines it.
    pub(super) fn from_values(
        v: &Values,
        model: &Model,
        task: Task,
    ) -> Result<(Task, Self), ConfigError> {
        let architecture = model.hf_config.as_deref().and_then(architecture);
        let realtime = architecture.is_some_and(|name| REALTIME.contains(&name));
        let known = SPEECH_MODELS
            .iter()
            .find(|(name, _)| architecture == Some(name));
        let known = known.map(|(_, listener)| *listener);
        let known = known.or(realtime.then_some(MULTIMODAL_LM));
        // A configured task is kept; else a transcription-only model determines it.
        let chosen = v.given(&api::TASK) || v.given(&api::RUNNER);
        let task = match known {
            Some(listener) if listener.only && !chosen => Task::Transcription,
            _ => task,
        };
        let megabytes = v.get(&api::MAX_AUDIO_CLIP_FILESIZE_MB)?;
        let generates = task == Task::Generate;
        let speech = Self {
            transcribes: matches!(task, Task::All | Task::Transcription | Task::Realtime)
                || generates && known.is_some(),
            realtime: matches!(task, Task::All | Task::Realtime) || generates && realtime,
            model: known.unwrap_or(match task {
                Task::Realtime => MULTIMODAL_LM,
                _ => WHISPER,
            }),
            max_file_bytes: megabytes << 20,
            max_seconds: v.get(&api::MAX_AUDIO_DECODE_DURATION_S)?,
            max_decoded_bytes: v.get(&api::MAX_AUDIO_DECODE_BYTES)?,
        };
        Ok((task, speech))
    }
}

fn architecture(config: &Value) -> Option<&str> {
    config.get("architectures")?.get(0)?.as_str()
}
