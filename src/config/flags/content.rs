use super::{
    Flag,
    Group::{Content, Tools},
    Kind::{Choice, Duration, Float, Int, Path, Switch, Text},
};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "mode",
        Content,
        Choice(&["random", "echo"]),
        "Replies are built-in sentences (or the dataset's), or the prompt.",
    )
    .or("random"),
    Flag::new(
        "seed",
        Content,
        Int,
        "Root of every random choice [the clock at start; behind `serve` 0].",
    )
    .doors("", "0"),
    Flag::new(
        "echo-cut",
        Content,
        Switch,
        "Cut an echo to the token limit.",
    )
    .or("false"),
    Flag::new(
        "dataset-path",
        Content,
        Path,
        "SQLite file of recorded replies.",
    ),
    Flag::new(
        "dataset-url",
        Content,
        Text,
        "Where to fetch that file from when it does not exist.",
    ),
    Flag::new(
        "dataset-in-memory",
        Content,
        Switch,
        "Copy the dataset to memory at start.",
    )
    .or("false"),
    Flag::new("dataset-table-name", Content, Text, "Its table.").or("llmd"),
    Flag::new(
        "default-embedding-dimensions",
        Content,
        Int,
        "Length of an embedding when the request names none.",
    )
    .or("384"),
    Flag::new("omni", Content, Switch, "Replies may hold images.").or("false"),
    Flag::new(
        "image-emission-rate",
        Content,
        Int,
        "In omni mode: percentage of chat replies with an image.",
    )
    .or("0")
    .tunable(),
    Flag::new(
        "time-to-generate-image",
        Content,
        Duration,
        "Time to make that image.",
    )
    .or("0")
    .tunable(),
    Flag::new(
        "time-to-generate-image-std-dev",
        Content,
        Duration,
        "Its standard deviation, at most 30 %.",
    )
    .or("0")
    .tunable(),
    Flag::new(
        "mm-encoder-only",
        Content,
        Switch,
        "Only the multimodal encoder.",
    )
    .or("false"),
    Flag::new(
        "max-tool-call-integer-param",
        Tools,
        Int,
        "Greatest integer argument.",
    )
    .or("100"),
    Flag::new(
        "min-tool-call-integer-param",
        Tools,
        Int,
        "Least integer argument.",
    )
    .or("0"),
    Flag::new(
        "max-tool-call-number-param",
        Tools,
        Float,
        "Greatest number argument.",
    )
    .or("100"),
    Flag::new(
        "min-tool-call-number-param",
        Tools,
        Float,
        "Least number argument.",
    )
    .or("0"),
    Flag::new(
        "max-tool-call-array-param-length",
        Tools,
        Int,
        "Longest array argument.",
    )
    .or("5"),
    Flag::new(
        "min-tool-call-array-param-length",
        Tools,
        Int,
        "Shortest array argument.",
    )
    .or("1"),
    Flag::new(
        "tool-call-not-required-param-probability",
        Tools,
        Int,
        "Percentage of optional parameters that are there.",
    )
    .or("50"),
    Flag::new(
        "object-tool-call-not-required-field-probability",
        Tools,
        Int,
        "Percentage of optional fields of nested objects that are there.",
    )
    .or("50"),
    Flag::new(
        "tool-call-extra-call-probability",
        Tools,
        Int,
        "Percentage chance of one more call.",
    )
    .or("45"),
    Flag::new(
        "skip-tool-validation",
        Tools,
        Switch,
        "Take tool definitions unchecked.",
    )
    .or("false"),
    Flag::new(
        "strict-tool-validation",
        Tools,
        Switch,
        "Refuse the JSON Schema keywords that llm-d-inference-sim refuses.",
    )
    .or("false"),
];
