//! Flags of generated content.

use std::path::PathBuf;
use std::time::Duration;

use crate::flag::{Flag, RuntimeChangeScope};
use crate::group::FlagHelpGroup::{Content, Tools};
use crate::read::JsonMap;
use vllm_sim_service::generate::ReplyTextMode;

flags! {
    MODE: ReplyTextMode = Flag::choice("mode", Content, words![("random", ReplyTextMode::Random), ("echo", ReplyTextMode::Echo)], "Source of reply text: random (built-in sentences, or the dataset) or echo (the prompt).")
        .with_default("random");
    SEED: Option<i64> = Flag::new("seed", Content, "Seed of all random choices. Default: the clock at start; with `serve`: 0.")
        .with_default_by_mode("", "0");
    ECHO_CUT: bool = Flag::new("echo-cut", Content, "Cut an echoed prompt to the request's token limit. Default with --compat llm-d: false.")
        .with_default("true");
    DATASET_PATH: Option<PathBuf> = Flag::new("dataset-path", Content, "SQLite file to read replies from.");
    DATASET_URL: Option<String> = Flag::new("dataset-url", Content, "URL to download --dataset-path from if the file does not exist.");
    DATASET_IN_MEMORY: bool = Flag::new("dataset-in-memory", Content, "Copy the dataset to memory at start.")
        .with_default("false");
    DATASET_TABLE_NAME: String = Flag::new("dataset-table-name", Content, "SQLite table to read replies from.").with_default("llmd");
    DATASET_SHA256: Option<String> = Flag::new("dataset-sha256", Content, "SHA-256 of the file of --dataset-url, in hex; another file is rejected.");
    DATASET_FALLBACK: bool = Flag::new("dataset-fallback", Content, "Use built-in sentences if the dataset cannot be opened, as llm-d-inference-sim v0.6 does.")
        .with_default("false");
    REPLAY_TIMING: bool = Flag::new("replay-timing", Content, "Release the tokens of a reply recorded by `vllm-sim record` at their recorded times. Selects the pool scheduler.")
        .with_default("false");
    DEFAULT_EMBEDDING_DIMENSIONS: u32 = Flag::new("default-embedding-dimensions", Content, "Length of an embedding if the request sets no dimensions.")
        .with_default("384").with_integer_bounds(1, 1_000_000, "default embedding dimensions must be at least 1");
    OMNI: bool = Flag::new("omni", Content, "Allow images in replies, as in llm-d's omni mode.").with_default("false");
    IMAGE_EMISSION_RATE: u8 = Flag::new("image-emission-rate", Content, "Share of chat replies with an image, in percent; requires --omni.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Server)
        .with_integer_bounds(0, 100, "image emission rate should be between 0 and 100");
    TIME_TO_GENERATE_IMAGE: Duration = Flag::new("time-to-generate-image", Content, "Time to generate an image in a reply; requires --omni.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Server).with_bounds_error("time to generate image cannot be negative");
    TIME_TO_GENERATE_IMAGE_STD_DEV: Duration = Flag::new("time-to-generate-image-std-dev", Content, "Standard deviation of --time-to-generate-image, at most 30 % of it.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Server)
        .with_bounds_error("time to generate image standard deviation cannot be negative");
    MM_ENCODER_ONLY: bool = Flag::new("mm-encoder-only", Content, "Serve as a multimodal encoder: replies are exclamation marks, as in llm-d-inference-sim.")
        .with_default("false");
    MM_TOKENS_PER_ITEM: Option<JsonMap> = Flag::new("mm-tokens-per-item", Content, "Accept media, with these tokens per item: '{\"image\": 576, \"audio\": 250, \"video\": 2048}'. Images also by area: '{\"image\": {\"patch\": 28, \"least\": 4, \"most\": 16384, \"unknown\": 576}}'.");
    MM_PROCESSOR_CACHE_GB: f64 = Flag::new("mm-processor-cache-gb", Content, "Size of the cache of processed media, in GiB; affects metrics only. 0: no cache.")
        .with_default("4").with_float_bounds(0.0, 1e6, "mm-processor-cache-gb must be between 0 and 1000000");
    MAX_TOOL_CALL_INTEGER_PARAM: i64 = Flag::new("max-tool-call-integer-param", Tools, "Maximum of a generated integer argument.")
        .with_default("100");
    MIN_TOOL_CALL_INTEGER_PARAM: i64 = Flag::new("min-tool-call-integer-param", Tools, "Minimum of a generated integer argument.")
        .with_default("0");
    MAX_TOOL_CALL_NUMBER_PARAM: f64 = Flag::new("max-tool-call-number-param", Tools, "Maximum of a generated number argument.")
        .with_default("100");
    MIN_TOOL_CALL_NUMBER_PARAM: f64 = Flag::new("min-tool-call-number-param", Tools, "Minimum of a generated number argument.")
        .with_default("0");
    MAX_TOOL_CALL_ARRAY_PARAM_LENGTH: u64 = Flag::new("max-tool-call-array-param-length", Tools, "Maximum length of a generated array argument.")
        .with_default("5").with_integer_bounds(0, 100_000, "MaxToolCallArrayParamLength cannot be more than 100000");
    MIN_TOOL_CALL_ARRAY_PARAM_LENGTH: u64 = Flag::new("min-tool-call-array-param-length", Tools, "Minimum length of a generated array argument.")
        .with_default("1").with_integer_bounds(0, 100_000, "MinToolCallArrayParamLength cannot be negative");
    TOOL_CALL_NOT_REQUIRED_PARAM_PROBABILITY: u32 = Flag::new("tool-call-not-required-param-probability", Tools, "Chance, in percent, that an optional parameter is included in a tool call.")
        .with_default("50").with_integer_bounds(0, 100, "ToolCallNotRequiredParamProbability should be between 0 and 100");
    OBJECT_TOOL_CALL_NOT_REQUIRED_FIELD_PROBABILITY: u32 = Flag::new("object-tool-call-not-required-field-probability", Tools, "Chance, in percent, that an optional field of a nested object is included in a tool call.")
        .with_default("50")
        .with_integer_bounds(0, 100, "ObjectToolCallNotRequiredParamProbability should be between 0 and 100");
    TOOL_CALL_EXTRA_CALL_PROBABILITY: u32 = Flag::new("tool-call-extra-call-probability", Tools, "Chance, in percent, of each further tool call in a reply.")
        .with_default("45").with_integer_bounds(0, 100, "ToolCallExtraCallProbability should be between 0 and 100");
    SKIP_TOOL_VALIDATION: bool = Flag::new("skip-tool-validation", Tools, "Accept tool definitions without checking them.")
        .with_default("false");
    STRICT_TOOL_VALIDATION: bool = Flag::new("strict-tool-validation", Tools, "Reject the JSON Schema keywords that llm-d-inference-sim rejects; `--compat llm-d` does so in any case.")
        .with_default("false");
}
