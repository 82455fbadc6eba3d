//! Flags of generated content.

use std::path::PathBuf;
use std::time::Duration;

use crate::flag::{Flag, Scope};
use crate::group::FlagGroup::{Content, Tools};
use crate::read::JsonMap;
use vllm_sim_service::generate::Mode;

flags! {
    MODE: Mode = Flag::choice("mode", Content, words![("random", Mode::Random), ("echo", Mode::Echo)], "Replies are built-in sentences (or the dataset's), or the prompt.")
        .or("random");
    SEED: Option<i64> = Flag::new("seed", Content, "Root of every random choice [the clock at start; with `serve` 0].")
        .by_mode("", "0");
    ECHO_CUT: bool = Flag::new("echo-cut", Content, "Cut an echo to the token limit [with --compat llm-d it is left whole].")
        .or("true");
    DATASET_PATH: Option<PathBuf> = Flag::new("dataset-path", Content, "SQLite file of recorded replies.");
    DATASET_URL: Option<String> = Flag::new("dataset-url", Content, "Where to fetch that file from when it does not exist.");
    DATASET_IN_MEMORY: bool = Flag::new("dataset-in-memory", Content, "Copy the dataset to memory at start.")
        .or("false");
    DATASET_TABLE_NAME: String = Flag::new("dataset-table-name", Content, "Its table.").or("llmd");
    DATASET_SHA256: Option<String> = Flag::new("dataset-sha256", Content, "SHA-256 that the fetched file must have, in hex.");
    DATASET_FALLBACK: bool = Flag::new("dataset-fallback", Content, "Start with the built-in sentences when the dataset cannot be used, as llm-d v0.6 did.")
        .or("false");
    REPLAY_TIMING: bool = Flag::new("replay-timing", Content, "Release each token of a reply that `vllm-sim record` wrote when it came in the recording; takes the pool scheduler.")
        .or("false");
    DEFAULT_EMBEDDING_DIMENSIONS: u32 = Flag::new("default-embedding-dimensions", Content, "Length of an embedding when the request names none.")
        .or("384").range(1, 1_000_000, "default embedding dimensions must be at least 1");
    OMNI: bool = Flag::new("omni", Content, "Replies may hold images.").or("false");
    IMAGE_EMISSION_RATE: u8 = Flag::new("image-emission-rate", Content, "In omni mode: percentage of chat replies with an image.")
        .or("0").live(Scope::Server)
        .range(0, 100, "image emission rate should be between 0 and 100");
    TIME_TO_GENERATE_IMAGE: Duration = Flag::new("time-to-generate-image", Content, "Time to make that image.")
        .or("0").live(Scope::Server).refusal("time to generate image cannot be negative");
    TIME_TO_GENERATE_IMAGE_STD_DEV: Duration = Flag::new("time-to-generate-image-std-dev", Content, "Its standard deviation, at most 30 %.")
        .or("0").live(Scope::Server)
        .refusal("time to generate image standard deviation cannot be negative");
    MM_ENCODER_ONLY: bool = Flag::new("mm-encoder-only", Content, "Only the multimodal encoder.")
        .or("false");
    MM_TOKENS_PER_ITEM: Option<JsonMap> = Flag::new("mm-tokens-per-item", Content, "The model takes media; tokens of an item of each modality: '{\"image\": 576, \"audio\": 250, \"video\": 2048}', images also by area: '{\"image\": {\"patch\": 28, \"least\": 4, \"most\": 16384, \"unknown\": 576}}'.");
    MM_PROCESSOR_CACHE_GB: f64 = Flag::new("mm-processor-cache-gb", Content, "GiB of processed media that are remembered, for the metrics alone; 0: none.")
        .or("4").within(0.0, 1e6, "mm-processor-cache-gb must be between 0 and 1000000");
    MAX_TOOL_CALL_INTEGER_PARAM: i64 = Flag::new("max-tool-call-integer-param", Tools, "Greatest integer argument.")
        .or("100");
    MIN_TOOL_CALL_INTEGER_PARAM: i64 = Flag::new("min-tool-call-integer-param", Tools, "Least integer argument.")
        .or("0");
    MAX_TOOL_CALL_NUMBER_PARAM: f64 = Flag::new("max-tool-call-number-param", Tools, "Greatest number argument.")
        .or("100");
    MIN_TOOL_CALL_NUMBER_PARAM: f64 = Flag::new("min-tool-call-number-param", Tools, "Least number argument.")
        .or("0");
    MAX_TOOL_CALL_ARRAY_PARAM_LENGTH: u64 = Flag::new("max-tool-call-array-param-length", Tools, "Longest array argument.")
        .or("5").range(0, 100_000, "MaxToolCallArrayParamLength cannot be more than 100000");
    MIN_TOOL_CALL_ARRAY_PARAM_LENGTH: u64 = Flag::new("min-tool-call-array-param-length", Tools, "Shortest array argument.")
        .or("1").range(0, 100_000, "MinToolCallArrayParamLength cannot be negative");
    TOOL_CALL_NOT_REQUIRED_PARAM_PROBABILITY: u32 = Flag::new("tool-call-not-required-param-probability", Tools, "Percentage of optional parameters that are there.")
        .or("50").range(0, 100, "ToolCallNotRequiredParamProbability should be between 0 and 100");
    OBJECT_TOOL_CALL_NOT_REQUIRED_FIELD_PROBABILITY: u32 = Flag::new("object-tool-call-not-required-field-probability", Tools, "Percentage of optional fields of nested objects that are there.")
        .or("50")
        .range(0, 100, "ObjectToolCallNotRequiredParamProbability should be between 0 and 100");
    TOOL_CALL_EXTRA_CALL_PROBABILITY: u32 = Flag::new("tool-call-extra-call-probability", Tools, "Percentage chance of one more call.")
        .or("45").range(0, 100, "ToolCallExtraCallProbability should be between 0 and 100");
    SKIP_TOOL_VALIDATION: bool = Flag::new("skip-tool-validation", Tools, "Take tool definitions unchecked.")
        .or("false");
    STRICT_TOOL_VALIDATION: bool = Flag::new("strict-tool-validation", Tools, "Refuse the JSON Schema keywords that llm-d-inference-sim refuses.")
        .or("false");
}
