//! ImageOutput in replies (llm-d's `--omni`).
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/` (`X-Send-Image`, `image-emission-rate`);
//! the `modality` member of a chunk is vLLM-Omni's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::HeaderMap;

use super::app::App;
use vllm_sim_config::Config;
use vllm_sim_random::{Draw, Purpose, mix, stream};
use vllm_sim_wire::fault::Fault;

/// A PNG of one grey pixel.
pub(crate) const PICTURE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";

/// What `/admin/config` may change about pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageOutput {
    /// Percentage of chat replies with one.
    rate: u8,
    /// Time to make it, and its standard deviation.
    delay: (Duration, Duration),
}

impl ImageOutput {
    /// What the configuration says.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            rate: config.content.image_emission_rate,
            delay: config.content.image_delay,
        }
    }
}

/// Whether a chat is answered with a picture, and how long that takes: as its header says, else
/// as chance has it.
///
/// # Errors
/// 400 for a header that is no boolean.
pub(crate) fn draw(app: &App, headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    if !app.config.content.omni {
        return Ok(None);
    }
    let pictures = app.pictures.load();
    let number = app.pictured.fetch_add(1, Ordering::Relaxed);
    let seed = app.service.settings().seed;
    let mut rng = stream(seed, mix(number, 0x1a6e), Purpose::Content);
    let sent = match headers.get("x-send-image") {
        Some(value) => {
            let text = String::from_utf8_lossy(value.as_bytes());
            boolean(text.trim()).ok_or_else(|| {
                Fault::bad_request(format!(
                    "Invalid X-Send-Image header value {text:?}: must be a boolean"
                ))
            })?
        }
        None => rng.percent(pictures.rate.into()),
    };
    let (mean, std_dev) = pictures.delay;
    Ok(sent.then(|| rng.delay(mean, std_dev)))
}

/// A boolean as Go's `strconv.ParseBool` reads it.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
