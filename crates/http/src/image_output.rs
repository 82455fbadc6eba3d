//! Images in chat replies (llm-d's `--omni`).
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/` (`X-Send-Image`, `image-emission-rate`);
//! the `modality` member of a chunk is vLLM-Omni's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;

use super::settings::RuntimeSettings;
use vllm_sim_config::Config;
use vllm_sim_random::{DrawRandom, StreamPurpose, mix_u64_pair, request_rng};
use vllm_sim_wire::fault::Fault;

pub(crate) const GREY_PIXEL_DATA_URL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";

/// Rate and delay of images in chat replies, which `/admin/config` may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOutputSettings {
    /// Percentage of chat replies with a generated image.
    rate: u8,
    /// Mean and standard deviation of the time to generate an image.
    delay: (Duration, Duration),
}

impl ImageOutputSettings {
    /// Reads the settings of images in replies from the configuration.
    pub fn from_config(config: &Config) -> Self {
        Self { rate: config.content.image_emission_rate, delay: config.content.image_delay }
    }
}

/// Selects the chat replies that contain an image.
#[derive(Debug)]
pub(crate) struct ImageOutput {
    enabled: bool,
    settings: ArcSwap<ImageOutputSettings>,
    /// Number of chat replies considered so far; it seeds the random choice.
    replies: AtomicU64,
}

impl ImageOutput {
    pub(crate) fn new(settings: &RuntimeSettings) -> Self {
        Self {
            enabled: settings.has_images,
            settings: ArcSwap::from_pointee(settings.images),
            replies: AtomicU64::new(0),
        }
    }

    pub(crate) fn replace_settings(&self, settings: Arc<ImageOutputSettings>) {
        self.settings.store(settings);
    }

    /// Returns the delay of the image in a chat reply; `None` if the reply contains none.
    ///
    /// The header `X-Send-Image` decides, else the configured rate.
    ///
    /// # Errors
    /// 400 if the header is not a boolean.
    pub(crate) fn draw_image_delay(
        &self,
        headers: &HeaderMap,
        seed: u64,
    ) -> Result<Option<Duration>, Fault> {
        if !self.enabled {
            return Ok(None);
        }
        let settings = self.settings.load();
        let number = self.replies.fetch_add(1, Ordering::Relaxed);
        let mut rng = request_rng(seed, mix_u64_pair(number, 0x1a6e), StreamPurpose::Content);
        let wanted = match headers.get("x-send-image") {
            Some(value) => {
                let text = String::from_utf8_lossy(value.as_bytes());
                parse_go_bool(text.trim()).ok_or_else(|| {
                    Fault::bad_request(format!(
                        "Invalid X-Send-Image header value {text:?}: must be a boolean"
                    ))
                })?
            }
            None => rng.draw_percent_chance(settings.rate.into()),
        };
        let (mean, std_dev) = settings.delay;
        Ok(wanted.then(|| rng.draw_clamped_delay(mean, std_dev)))
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(crate) fn parse_go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
