//! Determines the duration of an audio file from its container.
//!
//! The audio is not decoded.
//!
//! Source of the error texts: vLLM 0.33 `multimodal/media/audio.py`, `load_audio_torchcodec`.

use std::io::Cursor;

use lofty::config::ParseOptions;
use lofty::file::AudioFile;
use lofty::probe::Probe;

use vllm_sim_config::SpeechConfig;
use vllm_sim_wire::fault::Fault;

/// Assumed bit rate of audio without duration metadata, in bytes per second (64 kbit/s).
const ASSUMED_BYTES_PER_SECOND: f64 = 8000.0;
const SAMPLE_RATE_HZ: f64 = 16_000.0;
const MIB: f64 = (1 << 20) as f64;
/// First bytes of a WebM or Matroska file (EBML).
const MATROSKA_MAGIC: [u8; 4] = [0x1a, 0x45, 0xdf, 0xa3];

#[derive(Debug, Clone, Copy, PartialEq)]
struct AudioProperties {
    seconds: f64,
    channels: u32,
}

/// Returns the duration of an audio file, in seconds.
///
/// With `any`, data that is not audio gets a duration computed from its size.
///
/// # Errors
/// 400 if the data is not audio, or is too long.
pub(super) fn audio_duration_seconds(
    bytes: &[u8],
    limits: &SpeechConfig,
    any: bool,
) -> Result<f64, Fault> {
    let nominal = || {
        let counts = any || bytes.starts_with(&MATROSKA_MAGIC);
        (counts && !bytes.is_empty()).then(|| AudioProperties {
            seconds: bytes.len() as f64 / ASSUMED_BYTES_PER_SECOND,
            channels: 1,
        })
    };
    let properties =
        read_wav_properties(bytes).or_else(|| read_tagged_properties(bytes)).or_else(nominal);
    let Some(AudioProperties { seconds, channels }) = properties else {
        return Err(Fault::bad_request(
            "Invalid or corrupted audio data. Ensure the input is a valid audio or video file \
             (e.g. a complete WAV, MP3, or MP4).",
        ));
    };
    let decoded = seconds * SAMPLE_RATE_HZ * f64::from(channels) * 4.0;
    if decoded > limits.max_decoded_bytes as f64 {
        return Err(Fault::bad_request(format!(
            "Audio would allocate {:.0} MiB of PCM (~{seconds:.1}s at {SAMPLE_RATE_HZ}Hz x {channels}ch), \
             exceeding the {:.0} MiB limit. Set VLLM_MAX_AUDIO_DECODE_BYTES to increase this limit.",
            decoded / MIB,
            limits.max_decoded_bytes as f64 / MIB
        )));
    }
    if seconds > f64::from(limits.max_seconds) {
        return Err(Fault::bad_request(format!(
            "Audio exceeds maximum allowed duration of {}s (metadata reports {seconds:.1}s). Set \
             VLLM_MAX_AUDIO_DECODE_DURATION_S to increase this limit.",
            limits.max_seconds
        )));
    }
    if seconds <= 0.0 {
        return Err(Fault::bad_request("No audio found in the input."));
    }
    Ok(seconds)
}

/// Reads duration and channels of a RIFF WAVE file, exact to the sample. If the declared size
/// exceeds the file, as in streams, the actual size counts.
fn read_wav_properties(bytes: &[u8]) -> Option<AudioProperties> {
    let inside =
        bytes.strip_prefix(b"RIFF").and_then(|rest| rest.get(4..)?.strip_prefix(b"WAVE"))?;
    let (mut rest, mut format) = (inside, None);
    while rest.len() >= 8 {
        let (head, body) = rest.split_at(8);
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let body = &body[..size.min(body.len())];
        match &head[..4] {
            b"fmt " => format = WavFormat::read(body),
            b"data" => {
                let format = format?;
                return Some(AudioProperties {
                    seconds: body.len() as f64 / format.bytes_per_second,
                    channels: format.channels,
                });
            }
            _ => {}
        }
        // Chunks start at even offsets.
        rest = rest.get(8 + size.next_multiple_of(2)..).unwrap_or_default();
    }
    None
}

struct WavFormat {
    channels: u32,
    bytes_per_second: f64,
}

impl WavFormat {
    fn read(chunk: &[u8]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_le_bytes([*chunk.get(at)?, *chunk.get(at + 1)?]));
        let long = |at: usize| Some(u32::from(short(at)?) | u32::from(short(at + 2)?) << 16);
        let (tag, channels, rate) = (short(0)?, short(2)?, long(4)?);
        let (average, frame) = (long(8)?, short(12)?);
        // PCM, float, and either with the extensible header.
        let plain = matches!(tag, 1 | 3 | 0xfffe);
        let bytes_per_second =
            if plain { f64::from(rate) * f64::from(frame) } else { f64::from(average) };
        (bytes_per_second > 0.0 && channels > 0)
            .then_some(Self { channels: channels.into(), bytes_per_second })
    }
}

/// Reads duration and channels of audio in any container other than RIFF WAVE, such as FLAC, MP3,
/// MP4, Ogg, AAC and AIFF.
fn read_tagged_properties(bytes: &[u8]) -> Option<AudioProperties> {
    let options = ParseOptions::new().read_tags(false).read_cover_art(false);
    let probe = Probe::new(Cursor::new(bytes)).options(options);
    let file = probe.guess_file_type().ok()?.read().ok()?;
    let properties = file.properties();
    let seconds = properties.duration().as_secs_f64();
    (seconds > 0.0).then(|| AudioProperties {
        seconds,
        channels: properties.channels().unwrap_or(1).max(1).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcm(rate: u32, channels: u16, frames: u32, data_bytes: u32) -> Vec<u8> {
        let frame = channels * 2;
        let mut out = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0".to_vec();
        out.extend(channels.to_le_bytes());
        out.extend(rate.to_le_bytes());
        out.extend((rate * u32::from(frame)).to_le_bytes());
        out.extend(frame.to_le_bytes());
        out.extend(16u16.to_le_bytes());
        // A chunk of odd size is padded.
        out.extend(b"note\x03\0\0\0abc\0data");
        out.extend(data_bytes.to_le_bytes());
        out.resize(out.len() + frames as usize * usize::from(frame), 0);
        out
    }

    #[test]
    fn wav_duration_follows_from_its_samples() {
        let seconds = |bytes: &[u8]| read_wav_properties(bytes).map(|m| m.seconds);
        assert_eq!(seconds(&pcm(8000, 1, 12_345, 24_690)), Some(12_345.0 / 8000.0));
        assert_eq!(seconds(&pcm(44_100, 2, 44_100, 176_400)), Some(1.0));
        let endless = pcm(16_000, 1, 8000, u32::MAX);
        assert_eq!(seconds(&endless), Some(0.5));
        for cut in 0..60 {
            // An incomplete header yields no duration and no panic.
            let _ = read_wav_properties(&endless[..cut]);
        }
        assert_eq!(read_wav_properties(b"RIFF\0\0\0\0WAVEdata\x04\0\0\0abcd"), None);
    }
}
