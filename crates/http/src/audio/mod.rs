//! Speech to text: `/v1/audio/transcriptions` and `/v1/audio/translations`.
//!
//! Audio is not decoded. The duration in the container determines the length of the transcript, and
//! a hash of the bytes its text. Each clip of a long file is one sequence.
//!
//! Source: vLLM 0.33 `entrypoints/speech_to_text/base/serving.py`.

mod duration;
mod form;
mod languages;
pub(super) mod realtime;
mod render;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use sha2::{Digest, Sha256};

use super::app::{App, AppState};
use super::body::RawRequest;
use super::error::{self, HandlerResult};
use super::generation::{self, request_error_fault};
use super::request_head::request_id;
use crate::stream;
pub(crate) use form::AudioUploadForm;
use render::{AudioClip, Transcript, TranscriptStream};
use vllm_sim_config::SpeechModelCapabilities;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_service::generate::request::{AudioInput, TokenizedPrompt};
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_service::{
    GenerationRequest, LoraAdapter, OutputTokenBudget, PrefixCacheReadRules, RejectedRequest,
    Reply, RequestSubmissionChecks, run_blocking_if_large,
};
use vllm_sim_tokenizer::{MediaModality, PlacedMediaItem, SpecialTokenHandling};
use vllm_sim_tokenizer::{Tokenizer, fnv1a_32};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::audio::{SpeechRequest, SpeechTask};
use vllm_sim_wire::sampling::SamplingParams;

/// Output tokens per second of speech, for 150 words per minute and 1.2 tokens per word.
const SPEECH_TOKENS_PER_SECOND: f64 = 3.0;
/// Prompt tokens per second of audio, as in Voxtral and Qwen3-ASR.
const PROMPT_TOKENS_PER_SECOND: f64 = 12.5;
/// Length of the window at the end of an audio clip in which vLLM searches for a quiet position to
/// split the audio, in seconds.
///
/// The simulator always splits at the start of the window.
const CLIP_OVERLAP_SECONDS: f64 = 1.0;
const DETECTED_LANGUAGE: &str = "en";

pub(crate) async fn create_transcription(
    State(app): AppState,
    received: RawRequest,
) -> HandlerResult {
    answer_speech(&app, &received, SpeechTask::Transcribe).await
}

pub(crate) async fn create_translation(
    State(app): AppState,
    received: RawRequest,
) -> HandlerResult {
    answer_speech(&app, &received, SpeechTask::Translate).await
}

async fn answer_speech(app: &Arc<App>, received: &RawRequest, task: SpeechTask) -> HandlerResult {
    let mut form = AudioUploadForm::read_audio_upload_form(received).await?;
    let mut request = SpeechRequest::parse_form_fields(task, std::mem::take(&mut form.fields))?;
    let audio = form.files.get(request.file.0).cloned().unwrap_or_default();
    check_audio_size(app, &audio)?;
    let first = check_speech_before_lookup(&request);
    let lora = generation::resolve_model(app, received, request.model.as_deref(), first)?;
    let name = match task {
        SpeechTask::Transcribe => "transcribe-",
        SpeechTask::Translate => "translate-",
    };
    let id = request_id(name, &received.headers, None);
    let generation = GenerationRequest {
        max_tokens: request.max_completion_tokens,
        room: OutputTokenBudget::Context,
        checks: RequestSubmissionChecks::OnlySamplingRanges,
        rank: None,
        // The prefix cache does not hold encoder output.
        prefix_cache: PrefixCacheReadRules {
            skip: !app.settings.speech.model.in_prompt,
            ..Default::default()
        },
        sampling: Ok(Some(Box::new(request.sampling.clone()))).into(),
        ..generation::new_generation_request(app, received, id, request.model.as_deref())
    };
    // Admission is checked before the audio is read, and again with its prompts.
    let admitted = app.service.check_admission(1);
    admitted.map_err(|error| error::submission_error_fault(&error))?;
    check_speech_options(app, &request, lora.as_deref())?;
    let seconds = read_audio_seconds(app, audio.clone()).await?;
    let key = audio_hash(&audio);
    if request.language.is_none() && app.settings.speech.model.detects {
        detect_language(app, received, &generation, lora.clone(), key).await?;
        request.language = Some(DETECTED_LANGUAGE.to_owned());
    }
    let clips = split_into_clips(&app.settings.speech.model, seconds);
    let prompts = clip_prompts(app, &request, &clips, key)?;
    let generation = GenerationRequest { prompts: PromptSource::Ready(prompts), ..generation };
    let stream = request.stream;
    let (reply, job) = match generation::start_generation(app, lora, generation).await {
        Ok(started) => started,
        Err(RejectedRequest { error, late: Some(_) }) if stream => {
            return Ok(stream::failed_stream_response(&error));
        }
        Err(refused) => return Err(refused.error),
    };
    let transcript = Transcript {
        id: job.request.id.clone(),
        created: unix_now_secs() as u64,
        model: response_model_name(app, &request, job.lora.as_deref()),
        seconds,
        clips,
        format: request.response_format.clone(),
        language: request.language.clone(),
        task,
        temperature: request.temperature,
    };
    if stream {
        let frames = encoder_frame_count(app, transcript.seconds);
        let mut render = TranscriptStream::new(transcript, &request, &reply.prompts, frames);
        render.include_usage |= app.settings.answers.force_include_usage;
        return Ok(stream::stream_reply(app, received, reply, render, 1).await);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        transcript.transcript_body_json(reply)
    })
    .await??;
    Ok(error::json_response(StatusCode::OK, body))
}

/// Runs the checks of a speech request that precede the model lookup.
fn check_speech_before_lookup(request: &SpeechRequest) -> Result<(), Fault> {
    if request.stream && request.use_beam_search {
        let text = "Streaming is not currently supported with beam search";
        return Err(Fault::bad_request(text));
    }
    Ok(())
}

/// Runs language detection for the speech request `asked`, as one sequence with one output token.
async fn detect_language(
    app: &Arc<App>,
    received: &RawRequest,
    asked: &GenerationRequest,
    lora: Option<Arc<LoraAdapter>>,
    key: u64,
) -> Result<(), Fault> {
    let start = special_token_id(app.service.generator.tokenizer(), "<|startoftranscript|>");
    let prompt = TokenizedPrompt {
        tokens: vec![start],
        audio: Some(AudioInput { key, tokens: 1 }),
        ..TokenizedPrompt::default()
    };
    let id = format!("{}-lang_detect", asked.id).into();
    let request = GenerationRequest {
        arrived: asked.arrived,
        max_tokens: Some(1),
        rank: None,
        prefix_cache: asked.prefix_cache,
        ..generation::new_generation_request(app, received, id, None)
    };
    let reply = start_speech_to_text_generation(app, lora, request, prompt).await?;
    reply.wait_until_choices_ended().await;
    match reply.has_failed_choice() {
        true => Err(error::engine_failure_fault()),
        false => Ok(()),
    }
}

/// Checks that an uploaded audio file is not too large.
///
/// # Errors
/// vLLM's 400 for a file above the limit.
fn check_audio_size(app: &App, audio: &Bytes) -> Result<(), Fault> {
    let most = app.settings.speech.max_file_bytes;
    if audio.len() as u64 <= most {
        return Ok(());
    }
    let megabytes = audio.len() as f64 / f64::from(1 << 20);
    let shown = vllm_sim_python::python_repr_of_float(megabytes);
    Err(Fault::invalid_value_fault("Maximum file size exceeded", "audio_filesize_mb", shown))
}

/// Checks that the model supports the options of a speech request.
///
/// # Errors
/// vLLM's errors, in its order.
fn check_speech_options(
    app: &App,
    request: &SpeechRequest,
    lora: Option<&LoraAdapter>,
) -> Result<(), Fault> {
    let format = request.response_format.as_str();
    if !["text", "json", "verbose_json", "diarized_json"].contains(&format) {
        return Err(Fault::bad_request(
            "Currently only support response_format: `text`, `json`, `verbose_json` or `diarized_json`",
        ));
    }
    let model = &app.settings.speech.model;
    let can = match format {
        "verbose_json" => model.segments,
        "diarized_json" => model.speakers,
        _ => true,
    };
    if !can {
        let name = response_model_name(app, request, lora);
        return Err(Fault::bad_request(format!("Currently do not support {format} for {name}")));
    }
    if request.stream && ["verbose_json", "diarized_json"].contains(&format) {
        return Err(Fault::bad_request(format!("{format} format doesn't support streaming case")));
    }
    let to = request.to_language.as_deref().filter(|to| !to.is_empty());
    for language in request.language.as_deref().into_iter().chain(to) {
        languages::check_audio_language_code(language)?;
    }
    Ok(())
}

fn response_model_name(app: &App, request: &SpeechRequest, lora: Option<&LoraAdapter>) -> Arc<str> {
    let named = request.model.as_deref().filter(|name| !name.is_empty());
    named.map_or_else(|| app.service.models.model_name_in_responses(lora).clone(), Into::into)
}

/// Returns the duration of an audio file, in seconds.
///
/// # Errors
/// vLLM's 400 if the data is not audio.
async fn read_audio_seconds(app: &App, audio: Bytes) -> Result<f64, Fault> {
    let limits = app.settings.speech;
    let any = app.settings.takes_any_audio;
    let size = audio.len();
    run_blocking_if_large(size, move || duration::audio_duration_seconds(&audio, &limits, any))
        .await
}

fn audio_hash(audio: &[u8]) -> u64 {
    let digest = Sha256::digest(audio);
    digest.iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte))
}

/// Splits audio into clips of at most the model's clip length.
fn split_into_clips(model: &SpeechModelCapabilities, seconds: f64) -> Vec<AudioClip> {
    let longest = model.clip.map_or(f64::INFINITY, f64::from);
    let mut clips = Vec::new();
    let mut start = 0.0;
    while seconds - start > longest {
        let length = longest - CLIP_OVERLAP_SECONDS;
        clips.push(AudioClip { start, seconds: length });
        start += length;
    }
    clips.push(AudioClip { start, seconds: seconds - start });
    clips
}

/// Returns one prompt per audio clip.
///
/// # Errors
/// 400 for a prompt that exceeds the context length.
fn clip_prompts(
    app: &App,
    request: &SpeechRequest,
    clips: &[AudioClip],
    key: u64,
) -> Result<Vec<TokenizedPrompt>, Fault> {
    let tokenizer = app.service.generator.tokenizer();
    let model = &app.settings.speech.model;
    let task = match request.task {
        SpeechTask::Transcribe => "transcribe",
        SpeechTask::Translate => "translate",
    };
    let language = request.language.as_deref().unwrap_or(DETECTED_LANGUAGE);
    let times =
        if request.response_format == "verbose_json" { "<|0.00|>" } else { "<|notimestamps|>" };
    let mut before = Vec::new();
    if !request.prompt.is_empty() {
        before.push(special_token_id(tokenizer, "<|startofprev|>"));
        before.extend(tokenizer.encode(&request.prompt, SpecialTokenHandling::Without));
    }
    let order = [
        "<|startoftranscript|>".to_owned(),
        format!("<|{language}|>"),
        format!("<|{task}|>"),
        times.to_owned(),
    ];
    before.extend(order.iter().map(|piece| special_token_id(tokenizer, piece)));
    let mut prompts = Vec::new();
    for (index, clip) in clips.iter().enumerate() {
        let key = mix_u64_pair(key, index as u64);
        let mut tokens = before.clone();
        let mut media = Vec::new();
        if model.in_prompt {
            let audio_tokens = (clip.seconds * PROMPT_TOKENS_PER_SECOND).ceil() as usize;
            media.push(PlacedMediaItem {
                modality: MediaModality::Audio,
                identifier: format!("{key:016x}").into(),
                start: tokens.len() as u32,
                len: audio_tokens as u32,
            });
            let placeholder = special_token_id(tokenizer, "<|audio|>");
            tokens.resize(tokens.len() + audio_tokens, placeholder);
        }
        let rules = &app.rules;
        rules.dialect.check_prompt_ids_length(&rules.limits, tokens.len())?;
        prompts.push(TokenizedPrompt {
            tokens,
            echo: request.prompt.as_str().into(),
            media,
            audio: Some(AudioInput {
                key,
                tokens: (clip.seconds * SPEECH_TOKENS_PER_SECOND).round().max(1.0) as u32,
            }),
            ..TokenizedPrompt::default()
        });
    }
    Ok(prompts)
}

/// Returns the id of a special token; if the tokenizer lacks that token, an id derived from the
/// token's text.
fn special_token_id(tokenizer: &Tokenizer, piece: &str) -> u32 {
    let other = || fnv1a_32(piece.as_bytes()) % tokenizer.vocab_size().max(1);
    tokenizer.token_id_of_entry(piece).unwrap_or_else(other)
}

/// Returns the number of audio-encoder frames (10 ms of audio each) that usage counts as prompt
/// tokens.
fn encoder_frame_count(app: &App, seconds: f64) -> u32 {
    if app.settings.speech.model.in_prompt {
        return 0;
    }
    (seconds * 100.0).ceil() as u32
}

/// Starts a greedily sampled sequence for the audio prompt `prompt` of a speech-to-text request.
///
/// # Errors
/// The error of a rejected request.
pub(crate) async fn start_speech_to_text_generation(
    app: &Arc<App>,
    lora: Option<Arc<LoraAdapter>>,
    request: GenerationRequest,
    prompt: TokenizedPrompt,
) -> Result<Reply, Fault> {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let request = GenerationRequest {
        prompts: PromptSource::Ready(vec![prompt]),
        room: OutputTokenBudget::Context,
        checks: RequestSubmissionChecks::OnlySamplingRanges,
        sampling: Ok(Some(Box::new(params))).into(),
        ..request
    };
    let generated = app.service.generate_reply(&app.rules, lora, Box::new(request)).await;
    match generated {
        Ok((reply, _)) => Ok(reply),
        Err(refused) => Err(request_error_fault(app, refused.error)),
    }
}
