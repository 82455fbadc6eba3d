//! Languages of speech-to-text models, as ISO 639-1 codes.
//!
//! Source: vLLM 0.33 `model_executor/models/whisper_utils.py` (languages of OpenAI's API) and
//! Whisper's tokenizer, which has more.

use serde_json::Value;

use vllm_sim_python as python;
use vllm_sim_wire::fault::Fault;

/// ISO 639-1 codes of the languages that the speech-to-text model supports.
const SUPPORTED_LANGUAGES: [&str; 57] = [
    "af", "ar", "hy", "az", "be", "bs", "bg", "ca", "zh", "hr", "cs", "da", "nl", "en", "et", "fi",
    "fr", "gl", "de", "el", "he", "hi", "hu", "is", "id", "it", "ja", "kn", "kk", "ko", "lv", "lt",
    "mk", "ms", "mr", "mi", "ne", "no", "fa", "pl", "pt", "ro", "ru", "sr", "sk", "sl", "es", "sw",
    "sv", "tl", "ta", "th", "tr", "uk", "ur", "vi", "cy",
];

/// Codes of further languages that the tokenizer of the speech-to-text model knows.
const OTHER_TOKENIZER_LANGUAGES: [&str; 43] = [
    "la", "ml", "te", "bn", "br", "eu", "mn", "sq", "km", "sn", "yo", "so", "oc", "ka", "tg", "sd",
    "gu", "am", "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "mg",
    "as", "tt", "haw", "ln", "ha", "ba", "jw", "su", "yue", "si", "pa",
];

/// Checks that the speech-to-text model or its tokenizer knows a language code.
///
/// # Errors
/// vLLM's 400 with the list of languages.
pub(super) fn check_audio_language_code(language_code: &str) -> Result<(), Fault> {
    if SUPPORTED_LANGUAGES.contains(&language_code)
        || OTHER_TOKENIZER_LANGUAGES.contains(&language_code)
    {
        return Ok(());
    }
    let all = Value::from(SUPPORTED_LANGUAGES.to_vec());
    Err(Fault::bad_request(format!(
        "Unsupported language: {}.  Must be one of {}.",
        python::python_repr_of_str(language_code),
        python::python_repr(&all)
    )))
}

/// Returns the separator between the transcripts of two audio clips: empty in Japanese and Chinese,
/// else a space.
pub(super) fn transcript_separator(language_code: Option<&str>) -> &'static str {
    let none =
        language_code.is_some_and(|code| ["ja", "zh"].contains(&code.to_lowercase().as_str()));
    if none { "" } else { " " }
}
