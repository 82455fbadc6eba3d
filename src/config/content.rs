use std::path::PathBuf;
use std::time::Duration;

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
    pub tools: Tools,
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
    /// Encoder only (llm-d).
    pub mm_encoder_only: bool,
}

/// Where text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Built-in sentences, or the dataset.
    #[default]
    Random,
    /// The prompt.
    Echo,
}

/// Arguments of tool calls. All probabilities are percentages.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// Least and greatest integer [0, 100].
    pub integer: (i64, i64),
    /// Least and greatest number [0, 100].
    pub number: (f64, f64),
    /// Shortest and longest array [1, 5].
    pub array_length: (u32, u32),
    /// Chance that an optional parameter is there [50].
    pub optional_param_probability: u8,
    /// Chance that an optional field of a nested object is there [50].
    pub optional_field_probability: u8,
    /// Chance of one more call [45].
    pub extra_call_probability: u8,
    /// Take any tool definition unchecked.
    pub skip_validation: bool,
    /// Refuse what llm-d's own schema check refuses.
    pub strict_validation: bool,
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
}
