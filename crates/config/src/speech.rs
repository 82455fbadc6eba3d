//! Speech recognition capabilities of models, by their architecture.
//!
//! **Source:** vLLM 0.33, `SupportsTranscription` and `SupportsRealtime` of
//! `model_executor/models/interfaces.py` and the models that implement them.

use serde_json::Value;

use super::choices::ModelTask;
use super::error::ConfigError;
use super::flags::api;
use super::model::ModelConfig;
use super::values::FlagValues;

/// Settings of speech recognition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeechConfig {
    /// Whether the routes `/v1/audio/transcriptions` and `/v1/audio/translations` exist.
    pub transcribes: bool,
    /// Whether the route `/v1/realtime` exists.
    pub realtime: bool,
    /// Speech recognition capabilities of the served model.
    pub model: SpeechModelCapabilities,
    /// Maximum size of an uploaded audio file, in bytes (default 25 MiB).
    pub max_file_bytes: u64,
    /// Maximum duration of an uploaded audio file, in seconds (default 600).
    pub max_seconds: u32,
    /// Maximum size of decoded audio as 32-bit samples, in bytes (default 256 MiB).
    pub max_decoded_bytes: u64,
}

/// Speech recognition capabilities of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeechModelCapabilities {
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
    /// Whether audio becomes tokens of the prompt; if false, an encoder reads the audio.
    pub in_prompt: bool,
}

const WHISPER_CAPABILITIES: SpeechModelCapabilities = SpeechModelCapabilities {
    only: true,
    segments: true,
    speakers: false,
    detects: true,
    clip: Some(30),
    in_prompt: false,
};

const MULTIMODAL_LM_CAPABILITIES: SpeechModelCapabilities = SpeechModelCapabilities {
    only: false,
    segments: false,
    detects: false,
    in_prompt: true,
    ..WHISPER_CAPABILITIES
};

const SPEECH_ARCHITECTURES: [(&str, SpeechModelCapabilities); 14] = [
    ("WhisperForConditionalGeneration", WHISPER_CAPABILITIES),
    (
        "CohereAsrForConditionalGeneration",
        SpeechModelCapabilities { segments: false, detects: false, ..WHISPER_CAPABILITIES },
    ),
    (
        "FireRedASR2ForConditionalGeneration",
        SpeechModelCapabilities { detects: false, ..WHISPER_CAPABILITIES },
    ),
    (
        "FunASRForConditionalGeneration",
        SpeechModelCapabilities { detects: false, ..WHISPER_CAPABILITIES },
    ),
    (
        "MossTranscribeDiarizeForConditionalGeneration",
        SpeechModelCapabilities {
            only: true,
            speakers: true,
            clip: None,
            ..MULTIMODAL_LM_CAPABILITIES
        },
    ),
    ("Gemma3nForConditionalGeneration", MULTIMODAL_LM_CAPABILITIES),
    ("GlmAsrForConditionalGeneration", MULTIMODAL_LM_CAPABILITIES),
    ("GraniteSpeechForConditionalGeneration", MULTIMODAL_LM_CAPABILITIES),
    ("GraniteSpeechPlusForConditionalGeneration", MULTIMODAL_LM_CAPABILITIES),
    ("MoonshotKimiaForCausalLM", MULTIMODAL_LM_CAPABILITIES),
    ("Qwen3OmniMoeForConditionalGeneration", MULTIMODAL_LM_CAPABILITIES),
    ("Qwen3ASRForConditionalGeneration", MULTIMODAL_LM_CAPABILITIES),
    ("VoxtralForConditionalGeneration", MULTIMODAL_LM_CAPABILITIES),
    ("Qwen3ASRRealtimeGeneration", MULTIMODAL_LM_CAPABILITIES),
];

const REALTIME_ARCHITECTURES: [&str; 2] =
    ["VoxtralRealtimeGeneration", "Qwen3ASRRealtimeGeneration"];

impl SpeechConfig {
    /// Returns the speech recognition settings for `task`, and the task if the architecture
    /// determines it.
    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
        task: ModelTask,
    ) -> Result<(ModelTask, Self), ConfigError> {
        let architecture = model.hf_config.as_deref().and_then(model_architecture);
        let realtime = architecture.is_some_and(|name| REALTIME_ARCHITECTURES.contains(&name));
        let known = SPEECH_ARCHITECTURES.iter().find(|(name, _)| architecture == Some(name));
        let known = known.map(|(_, listener)| *listener);
        let known = known.or(realtime.then_some(MULTIMODAL_LM_CAPABILITIES));
        // A configured task is kept; else a transcription-only model determines it.
        let chosen = v.is_flag_set(&api::TASK) || v.is_flag_set(&api::RUNNER);
        let task = match known {
            Some(listener) if listener.only && !chosen => ModelTask::Transcription,
            _ => task,
        };
        let megabytes = v.get(&api::MAX_AUDIO_CLIP_FILESIZE_MB)?;
        let generates = task == ModelTask::Generate;
        let speech = Self {
            transcribes: matches!(
                task,
                ModelTask::All | ModelTask::Transcription | ModelTask::Realtime
            ) || generates && known.is_some(),
            realtime: matches!(task, ModelTask::All | ModelTask::Realtime) || generates && realtime,
            model: known.unwrap_or(match task {
                ModelTask::Realtime => MULTIMODAL_LM_CAPABILITIES,
                _ => WHISPER_CAPABILITIES,
            }),
            max_file_bytes: megabytes << 20,
            max_seconds: v.get(&api::MAX_AUDIO_DECODE_DURATION_S)?,
            max_decoded_bytes: v.get(&api::MAX_AUDIO_DECODE_BYTES)?,
        };
        Ok((task, speech))
    }
}

fn model_architecture(config: &Value) -> Option<&str> {
    config.get("architectures")?.get(0)?.as_str()
}
