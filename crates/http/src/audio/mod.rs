//! Speech to text: `/v1/audio/transcriptions` and `/v1/audio/translations`.
//!
//! Audio is not decoded. The duration in the container determines the length of the transcript, and
//! a hash of the bytes its text. Each clip of a long file is one sequence.
//!
//! Source: vLLM 0.33 `entrypoints/speech_to_text/base/serving.py`.

mod duration;
mod form;
mod languages;
mod pass;
pub(super) mod realtime;
mod render;

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Response, StatusCode};
use sha2::{Digest, Sha256};

use super::app::App;
use super::body::RawRequest;
use super::error;
use super::error::HandlerResult;
use super::generation::{self, RejectedRequest};
use super::openai::prepare;
use super::request_head::RequestHead;
use form::Form;
use render::{Clip, SpeechStream, Transcript};
use vllm_sim_config::SpeechModel;
use vllm_sim_engine::driver::unix_now;
use vllm_sim_random::mix;
use vllm_sim_service::generate::request::{AudioInput, Prompt, Target};
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_service::{GenerationRequest, OutputBudget, SubmissionChecks, run_blocking_if_large};
use vllm_sim_tokenizer::{MediaFeature, Modality, SpecialTokens};
use vllm_sim_tokenizer::{Tokenizer, fnv1a};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::audio::{SpeechRequest, Task};

/// Output tokens per second of speech, for 150 words per minute and 1.2 tokens per word.
const TOKENS_PER_SECOND: f64 = 3.0;
/// Prompt tokens per second of audio, as in Voxtral and Qwen3-ASR.
const PROMPT_TOKENS_PER_SECOND: f64 = 12.5;
/// Window before the end of a clip in which vLLM looks for a quiet place to split, in seconds.
///
/// The simulator always splits at the start of the window.
const OVERLAP: f64 = 1.0;
const DETECTED_LANGUAGE: &str = "en";

pub(crate) async fn transcriptions(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    answer(&app, &received, Task::Transcribe).await
}

pub(crate) async fn translations(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    answer(&app, &received, Task::Translate).await
}

async fn answer(app: &Arc<App>, received: &RawRequest, task: Task) -> HandlerResult {
    let head = &received.head;
    let mut form = Form::read(received).await?;
    let mut request = SpeechRequest::parse(task, std::mem::take(&mut form.fields))?;
    let audio = form.files.get(request.file.0).cloned().unwrap_or_default();
    fits(app, &audio)?;
    let first = check_first(&request);
    let resolved = generation::resolve(app, head, request.model.as_deref(), first)?;
    let name = match task {
        Task::Transcribe => "transcribe-",
        Task::Translate => "translate-",
    };
    let id = prepare::request_id(name, &head.headers, None);
    let generation = GenerationRequest {
        max_tokens: request.max_completion_tokens,
        room: OutputBudget::Context,
        checks: SubmissionChecks::None,
        rank: None,
        // The prefix cache does not hold encoder output.
        skip_cache_read: !app.settings.speech.model.in_prompt,
        sampling: Ok(request.sampling.clone().into()).into(),
        ..generation::request(app, head, id)
    };
    // Admission is checked before the audio is read, and again with its prompts.
    let admitted = app.service.admits(1);
    admitted.map_err(|error| error::fault(&error))?;
    check_supported(app, &request, resolved.target())?;
    let seconds = seconds_of(app, audio.clone()).await?;
    let key = key_of(&audio);
    if request.language.is_none() && app.settings.speech.model.detects {
        detect(app, head, &generation, resolved.target(), key).await?;
        request.language = Some(DETECTED_LANGUAGE.to_owned());
    }
    let clips = clips(&app.settings.speech.model, seconds);
    let prompts = prompts(app, &request, &clips, key)?;
    let generation = GenerationRequest {
        prompts: PromptSource::Ready(prompts),
        ..generation
    };
    let stream = request.stream;
    let (generated, guard) = match generation::start(app, resolved, generation).await {
        Ok(started) => started,
        Err(RejectedRequest::Late { fault, .. }) if stream => {
            return Ok(prepare::failed_stream(&fault));
        }
        Err(refused) => return Err(refused.into()),
    };
    let (reply, facts) = (generated.reply, generated.facts);
    let transcript = Transcript {
        id: facts.id,
        created: unix_now() as u64,
        model: shown(app, &request, &facts.target),
        seconds,
        clips,
        format: request.response_format.clone(),
        language: request.language.clone(),
        task,
        temperature: request.temperature,
    };
    if stream {
        let frames = encoder_frames(app, transcript.seconds);
        let mut render = SpeechStream::new(transcript, &request, &reply.prompts, frames);
        if app.settings.answers.force_include_usage {
            render = render.with_usage();
        }
        return Ok(prepare::stream(app, head, reply, render, 1, guard));
    }
    let body = prepare::render_finished(reply, move |reply| transcript.unary(reply)).await??;
    Ok(unary(body))
}

/// Runs the checks of a speech request that precede the model lookup.
fn check_first(request: &SpeechRequest) -> Result<(), Fault> {
    if request.stream && request.use_beam_search {
        let text = "Streaming is not currently supported with beam search";
        return Err(Fault::bad_request(text));
    }
    Ok(())
}

/// Runs language detection for the speech request `asked`, as one sequence with one output token.
async fn detect(
    app: &Arc<App>,
    head: &RequestHead,
    asked: &GenerationRequest,
    target: &Target,
    key: u64,
) -> Result<(), Fault> {
    let start = special(app.service.generator.tokenizer(), "<|startoftranscript|>");
    let prompt = Prompt {
        tokens: vec![start],
        audio: Some(AudioInput { key, tokens: 1 }),
        ..Prompt::default()
    };
    let id = format!("{}-lang_detect", asked.id).into();
    let model = app.service.models.shown(target);
    let resolved = app.service.resolve(&app.rules, Some(&model));
    let resolved = resolved.map_err(|refusal| generation::request_error_fault(app, refusal))?;
    let request = GenerationRequest {
        arrived: asked.arrived,
        max_tokens: Some(1),
        rank: None,
        skip_cache_read: asked.skip_cache_read,
        ..generation::request(app, head, id)
    };
    let reply = pass::start(app, resolved, request, prompt).await?;
    reply.ended().await;
    match reply.failed() {
        true => Err(error::engine_failure()),
        false => Ok(()),
    }
}

fn unary(body: String) -> Response<Body> {
    error::json(StatusCode::OK, body)
}

/// Checks that an uploaded audio file is not too large.
///
/// # Errors
/// vLLM's 400 for a file above the limit.
fn fits(app: &App, audio: &Bytes) -> Result<(), Fault> {
    let most = app.settings.speech.max_file_bytes;
    if audio.len() as u64 <= most {
        return Ok(());
    }
    let megabytes = audio.len() as f64 / f64::from(1 << 20);
    let shown = vllm_sim_python::repr_float(megabytes);
    Err(Fault::invalid_value(
        "Maximum file size exceeded",
        "audio_filesize_mb",
        shown,
    ))
}

/// Checks that the model supports the options of a speech request.
///
/// # Errors
/// vLLM's errors, in its order.
fn check_supported(app: &App, request: &SpeechRequest, target: &Target) -> Result<(), Fault> {
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
        let name = shown(app, request, target);
        return Err(Fault::bad_request(format!(
            "Currently do not support {format} for {name}"
        )));
    }
    if request.stream && ["verbose_json", "diarized_json"].contains(&format) {
        return Err(Fault::bad_request(format!(
            "{format} format doesn't support streaming case"
        )));
    }
    let to = request.to_language.as_deref().filter(|to| !to.is_empty());
    for language in request.language.as_deref().into_iter().chain(to) {
        languages::check(language)?;
    }
    Ok(())
}

fn shown(app: &App, request: &SpeechRequest, target: &Target) -> Arc<str> {
    let named = request.model.as_deref().filter(|name| !name.is_empty());
    named.map_or_else(|| app.service.models.shown(target), Into::into)
}

/// Returns the duration of an audio file, in seconds.
///
/// # Errors
/// vLLM's 400 if the data is not audio.
async fn seconds_of(app: &App, audio: Bytes) -> Result<f64, Fault> {
    let limits = app.settings.speech;
    let any = app.settings.takes_any_audio;
    let size = audio.len();
    run_blocking_if_large(size, move || duration::seconds(&audio, &limits, any)).await
}

fn key_of(audio: &[u8]) -> u64 {
    let digest = Sha256::digest(audio);
    digest
        .iter()
        .take(8)
        .fold(0, |key, byte| key << 8 | u64::from(*byte))
}

/// Splits audio into clips of at most the model's clip length.
fn clips(model: &SpeechModel, seconds: f64) -> Vec<Clip> {
    let longest = model.clip.map_or(f64::INFINITY, f64::from);
    let mut clips = Vec::new();
    let mut start = 0.0;
    while seconds - start > longest {
        let length = longest - OVERLAP;
        clips.push(Clip {
            start,
            seconds: length,
        });
        start += length;
    }
    clips.push(Clip {
        start,
        seconds: seconds - start,
    });
    clips
}

/// Returns one prompt per audio clip.
///
/// # Errors
/// 400 for a prompt that exceeds the context length.
fn prompts(
    app: &App,
    request: &SpeechRequest,
    clips: &[Clip],
    key: u64,
) -> Result<Vec<Prompt>, Fault> {
    let tokenizer = app.service.generator.tokenizer();
    let model = &app.settings.speech.model;
    let task = match request.task {
        Task::Transcribe => "transcribe",
        Task::Translate => "translate",
    };
    let language = request.language.as_deref().unwrap_or(DETECTED_LANGUAGE);
    let times = if request.response_format == "verbose_json" {
        "<|0.00|>"
    } else {
        "<|notimestamps|>"
    };
    let mut before = Vec::new();
    if !request.prompt.is_empty() {
        before.push(special(tokenizer, "<|startofprev|>"));
        before.extend(tokenizer.encode(&request.prompt, SpecialTokens::Without));
    }
    let order = [
        "<|startoftranscript|>".to_owned(),
        format!("<|{language}|>"),
        format!("<|{task}|>"),
        times.to_owned(),
    ];
    before.extend(order.iter().map(|piece| special(tokenizer, piece)));
    let mut prompts = Vec::new();
    for (index, clip) in clips.iter().enumerate() {
        let key = mix(key, index as u64);
        let mut tokens = before.clone();
        let mut media = Vec::new();
        if model.in_prompt {
            let audio_tokens = (clip.seconds * PROMPT_TOKENS_PER_SECOND).ceil() as usize;
            media.push(MediaFeature {
                modality: Modality::Audio,
                identifier: format!("{key:016x}").into(),
                start: tokens.len() as u32,
                len: audio_tokens as u32,
            });
            let placeholder = special(tokenizer, "<|audio|>");
            tokens.resize(tokens.len() + audio_tokens, placeholder);
        }
        let rules = &app.rules;
        rules.dialect.check_tokens(&rules.limits, tokens.len())?;
        prompts.push(Prompt {
            tokens,
            echo: request.prompt.as_str().into(),
            media,
            audio: Some(AudioInput {
                key,
                tokens: (clip.seconds * TOKENS_PER_SECOND).round().max(1.0) as u32,
            }),
            ..Prompt::default()
        });
    }
    Ok(prompts)
}

/// Returns the id of a special token; a fixed other token if the tokenizer does not have it.
fn special(tokenizer: &Tokenizer, piece: &str) -> u32 {
    let other = || fnv1a(piece.as_bytes()) % tokenizer.vocab_size().max(1);
    tokenizer.id_of(piece).unwrap_or_else(other)
}

/// Returns the number of audio-encoder frames that usage counts as prompt tokens, one per 10 ms.
fn encoder_frames(app: &App, seconds: f64) -> u32 {
    if app.settings.speech.model.in_prompt {
        return 0;
    }
    (seconds * 100.0).ceil() as u32
}
