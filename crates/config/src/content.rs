use std::path::PathBuf;
use std::time::Duration;

use super::engine::with_std_dev;
use super::error::ConfigError;
use super::values::Values;
use vllm_sim_observe::metrics::Compat;
use vllm_sim_service::generate::Mode;
use vllm_sim_service::generate::tools::ToolSettings;
use vllm_sim_tokenizer::MediaRules;

/// What replies say.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    /// Where text comes from [random].
    pub mode: Mode,
    /// Root of every random stream; `None`: the clock's choice at start.
    pub seed: Option<u64>,
    /// Whether somebody chose the seed.
    pub seed_given: bool,
    /// Arguments of tool calls.
    pub tools: ToolSettings,
    /// Take any tool definition unchecked.
    pub skip_tool_validation: bool,
    /// Whether an echo is cut to the token limit [no, as llm-d].
    pub echo_cut: bool,
    /// Recorded replies.
    pub dataset: Option<Dataset>,
    /// Percentage of chat replies with an image, in omni mode [0].
    pub image_emission_rate: u8,
    /// Time to make that image, and its standard deviation [0].
    pub image_delay: (Duration, Duration),
    /// Length of an embedding when the request names none [384].
    pub default_embedding_dimensions: u32,
    /// Text and images (llm-d).
    pub omni: bool,
    /// Tokens of images, audio and video; `None`: the model decides whether it takes any.
    pub media: Option<MediaRules>,
}

/// Recorded replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// SQLite file.
    pub path: PathBuf,
    /// Where to fetch it from when it does not exist.
    pub url: Option<String>,
    /// Copy it to memory first.
    pub in_memory: bool,
    /// Table [llmd].
    pub table: String,
    /// SHA-256 that a fetched file must have, 64 lower-case hex digits.
    pub sha256: Option<String>,
    /// Start with built-in sentences when it cannot be used [no].
    pub fallback: bool,
    /// Tokens come when they came in the recording [no].
    pub replay_timing: bool,
}

impl Content {
    pub(super) fn from_values(v: &Values, compat: Compat) -> Result<Self, ConfigError> {
        let mode = mode(v)?;
        Ok(Self {
            mode: match v.switch("mm-encoder-only")? {
                true => Mode::Encoder,
                false => mode,
            },
            seed: v.opt_int("seed")?.map(|seed| seed as u64),
            seed_given: v.given("seed"),
            tools: tools(v)?,
            skip_tool_validation: v.switch("skip-tool-validation")?,
            echo_cut: echo_cut(v, compat)?,
            dataset: dataset(v, mode)?,
            image_emission_rate: v.ranged(
                "image-emission-rate",
                0..=100,
                "image emission rate should be between 0 and 100",
            )?,
            image_delay: with_std_dev(
                v,
                "time-to-generate-image",
                "time-to-generate-image-std-dev",
                "time to generate image",
                "time to generate image",
            )?,
            default_embedding_dimensions: v.ranged(
                "default-embedding-dimensions",
                1..=1_000_000,
                "default embedding dimensions must be at least 1",
            )?,
            omni: v.switch("omni")?,
            media: media(v)?,
        })
    }
}

fn media(v: &Values) -> Result<Option<MediaRules>, ConfigError> {
    let name = "mm-tokens-per-item";
    let Some(map) = v.object(name)? else {
        return Ok(None);
    };
    MediaRules::read(&map)
        .map(Some)
        .map_err(|problem| ConfigError::Invalid(format!("{name}: {problem}")))
}

/// A limit is a limit on vLLM's wire; llm-d leaves an echo whole.
fn echo_cut(v: &Values, compat: Compat) -> Result<bool, ConfigError> {
    if compat == Compat::Llmd && !v.given("echo-cut") {
        v.derive("echo-cut", false);
        return Ok(false);
    }
    v.switch("echo-cut")
}

fn mode(v: &Values) -> Result<Mode, ConfigError> {
    match v.text("mode").unwrap_or_default() {
        "echo" => Ok(Mode::Echo),
        "random" => Ok(Mode::Random),
        other => {
            let words = format!("invalid mode '{other}', valid values are 'random' and 'echo'");
            Err(v.wrong(words, "mode"))
        }
    }
}

fn dataset(v: &Values, mode: Mode) -> Result<Option<Dataset>, ConfigError> {
    let url = v.owned("dataset-url");
    let in_memory = v.switch("dataset-in-memory")?;
    let fallback = v.switch("dataset-fallback")?;
    let replay_timing = v.switch("replay-timing")?;
    let sha256 = v.owned("dataset-sha256").map(|hex| hex.to_lowercase());
    if let Some(hex) = &sha256
        && (hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()))
    {
        return Err(ConfigError::Invalid(format!(
            "dataset-sha256 must be 64 hex digits, got {hex:?}"
        )));
    }
    let Some(path) = v.path("dataset-path") else {
        for (flag, given) in [
            ("dataset-url", url.is_some()),
            ("replay-timing", replay_timing),
        ] {
            if given {
                return Err(ConfigError::Invalid(format!(
                    "dataset-path is required when {flag} is set"
                )));
            }
        }
        return Ok(None);
    };
    if mode == Mode::Echo {
        return Err(ConfigError::Invalid(
            "dataset cannot be defined in echo mode".to_owned(),
        ));
    }
    Ok(Some(Dataset {
        path,
        url,
        in_memory,
        table: v.text("dataset-table-name").unwrap_or("llmd").to_owned(),
        sha256,
        fallback,
        replay_timing,
    }))
}

fn tools(v: &Values) -> Result<ToolSettings, ConfigError> {
    let percent = |name: &str, field: &str| {
        let words = format!("{field} should be between 0 and 100");
        v.ranged(name, 0..=100, &words)
    };
    let integer = (
        v.int("min-tool-call-integer-param")?,
        v.int("max-tool-call-integer-param")?,
    );
    if integer.1 < integer.0 {
        return Err(v.wrong(
            "MaxToolCallIntegerParam cannot be less than MinToolCallIntegerParam",
            "max-tool-call-integer-param",
        ));
    }
    let number = (
        v.float("min-tool-call-number-param")?,
        v.float("max-tool-call-number-param")?,
    );
    if number.1 < number.0 {
        return Err(v.wrong(
            "MaxToolCallNumberParam cannot be less than MinToolCallNumberParam",
            "max-tool-call-number-param",
        ));
    }
    let (shortest, longest) = (
        "min-tool-call-array-param-length",
        "max-tool-call-array-param-length",
    );
    if v.int(longest)? < v.int(shortest)? {
        return Err(v.wrong(
            "MaxToolCallArrayParamLength cannot be less than MinToolCallArrayParamLength",
            longest,
        ));
    }
    let negative = "MinToolCallArrayParamLength cannot be negative";
    let long = "MaxToolCallArrayParamLength cannot be more than 100000";
    Ok(ToolSettings {
        // The defaults leave the choice to the names of fields.
        integer: Some(integer).filter(|range| *range != (0, 100)),
        number: Some(number).filter(|range| *range != (0.0, 100.0)),
        array: (
            v.ranged(shortest, 0..=100_000, negative)?,
            v.ranged(longest, 0..=100_000, long)?,
        ),
        not_required_probability: percent(
            "tool-call-not-required-param-probability",
            "ToolCallNotRequiredParamProbability",
        )?,
        object_not_required_probability: percent(
            "object-tool-call-not-required-field-probability",
            "ObjectToolCallNotRequiredParamProbability",
        )?,
        extra_call_probability: percent(
            "tool-call-extra-call-probability",
            "ToolCallExtraCallProbability",
        )?,
        strict_whitelist: v.switch("strict-tool-validation")?,
        ..ToolSettings::default()
    })
}
