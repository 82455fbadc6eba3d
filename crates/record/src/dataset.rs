//! Implements `vllm-sim dataset`: builds datasets of recorded conversations, and inspects them.
//!
//! The alias `dataset-tool` accepts the flags of llm-d-inference-sim's tool of that name.
//! Source: llm-d-inference-sim, `pkg/dataset/ds_tool.go`, `ds_tool_config.go`, `ds_card.go`.

mod build;
mod card;
mod recording;
mod write;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser};

use vllm_sim_command_line::{parse_tool_args, refuse};
use vllm_sim_dataset::{DEFAULT_TABLE_NAME, Dataset, DatasetFormat, DatasetRowStorage};
use vllm_sim_tokenizer::{HuggingFaceHubSettings, Tokenizer, TokenizerLocation};

use build::{DatasetBuild, build_dataset};

/// Build a dataset of conversations (`build`), or inspect one (`inspect FILE`).
#[derive(Debug, Parser)]
#[command(name = "vllm-sim dataset build", no_binary_name = true)]
struct BuildArgs {
    /// Dataset of the Hugging Face Hub, as organisation/name.
    #[arg(long, conflicts_with = "local_path")]
    hf_repo: Option<String>,
    /// Local folder of the input file, or the input file itself.
    #[arg(long)]
    local_path: Option<PathBuf>,
    /// File in the dataset or folder: ShareGPT conversations or OpenAI messages as a JSON array or
    /// JSON lines, or a recording of `vllm-sim record`, whose timing is kept.
    #[arg(long, alias = "file")]
    input_file: Option<String>,
    /// Name of the dataset's output files, without extension.
    #[arg(long, default_value = "inference-sim-dataset")]
    output_file: String,
    /// Folder of the dataset's output files.
    #[arg(long, default_value = ".")]
    output_path: PathBuf,
    /// Name of the SQLite table to create.
    #[arg(long, default_value = DEFAULT_TABLE_NAME)]
    table_name: String,
    /// Maximum number of conversations to read.
    #[arg(long, default_value_t = 10_000)]
    max_records: usize,
    /// Model of the tokenizer to use: a name on the Hugging Face Hub, or a folder.
    #[arg(long)]
    model: String,
    /// Use the simulated tokenizer for any model.
    #[arg(long)]
    force_dummy_tokenizer: bool,
    /// Write the format of version 0.6: prompts hashed as text, replies without token ids.
    #[arg(long)]
    legacy: bool,
    /// Accepted but ignored: prompts are rendered locally.
    #[arg(long, hide = true)]
    render_url: Option<String>,
    /// Accepted but ignored: no render server is used.
    #[arg(long, hide = true)]
    render_timeout: Option<String>,
    /// Accepted but ignored: no render server is used.
    #[arg(long, hide = true)]
    mm_render_timeout: Option<String>,
    /// Accepted but ignored: the Hugging Face cache is used.
    #[arg(long, hide = true)]
    tokenizers_cache_dir: Option<PathBuf>,
}

/// Print the contents of a dataset, and check that every row is valid.
#[derive(Debug, Parser)]
#[command(name = "vllm-sim dataset inspect", no_binary_name = true)]
struct InspectArgs {
    /// Dataset file to print and check.
    file: PathBuf,
    /// Name of the SQLite table in the dataset file.
    #[arg(long, default_value = DEFAULT_TABLE_NAME)]
    table_name: String,
}

/// Returns the clap command of `dataset`.
pub fn dataset_clap_command() -> clap::Command {
    clap::Command::new("dataset")
        .about("Build a dataset from conversations, or inspect one")
        .subcommand(BuildArgs::command().name("build"))
        .subcommand(InspectArgs::command().name("inspect"))
}

/// Runs `build …`, `inspect FILE`, or llm-d's flags alone, and returns the text to print.
///
/// # Errors
/// Returns a message for the user.
pub fn run_dataset_command(
    args: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<String> {
    let (inspects, args) = match args.split_first() {
        Some((first, rest)) if first == "inspect" => (true, rest),
        Some((first, rest)) if first == "build" => (false, rest),
        _ => (false, args),
    };
    if inspects {
        return match parse_tool_args::<InspectArgs>(args)? {
            Ok(args) => inspect_dataset(&args.file, &args.table_name),
            Err(help) => Ok(help),
        };
    }
    match parse_tool_args::<BuildArgs>(args)? {
        Ok(args) => build_from_args(args, env),
        Err(help) => Ok(help),
    }
}

fn build_from_args(args: BuildArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    let hub = HuggingFaceHubSettings::from_env(env);
    let (input, origin) = match (&args.hf_repo, &args.local_path) {
        (Some(repo), _) => {
            let Some(file) = &args.input_file else {
                refuse!("--hf-repo is given but --input-file is not");
            };
            let origin = format!("https://huggingface.co/datasets/{repo}, file {file}");
            (fetch_from_hub(repo, file, &hub)?, origin)
        }
        (None, Some(path)) => {
            let input = match &args.input_file {
                Some(file) => path.join(file),
                None if path.is_file() => path.clone(),
                None if !path.exists() => {
                    refuse!("--local-path {}: no such file or folder", path.display())
                }
                None => refuse!("--local-path is a folder but --input-file is not given"),
            };
            let name = input.file_name().unwrap_or_default().to_string_lossy();
            let origin = format!("file {name}");
            (input, origin)
        }
        (None, None) => refuse!(
            "which conversations? Give --local-path FILE, or --hf-repo NAME with --input-file"
        ),
    };
    let tokenizer = open_tokenizer(&args, hub)?;
    let built = build_dataset(&DatasetBuild { input, origin, args }, &tokenizer)?;
    let files: Vec<_> = built.files.iter().map(|file| file.display().to_string()).collect();
    Ok(format!(
        "{} replies from {} of {} {}\n{}",
        built.records,
        built.used,
        built.read,
        if built.recorded { "recordings" } else { "conversations" },
        files.join("\n")
    ))
}

fn open_tokenizer(args: &BuildArgs, hub: HuggingFaceHubSettings) -> Result<Tokenizer> {
    let path = Path::new(&args.model);
    let source = if args.force_dummy_tokenizer {
        TokenizerLocation::Simulated
    } else if path.exists() {
        TokenizerLocation::Folder(path.to_owned())
    } else {
        TokenizerLocation::Hub { repo: args.model.clone(), revision: None, download: true, hub }
    };
    let opened = Tokenizer::open(&source);
    let (tokenizer, _) = opened.context(
        "no tokenizer for --model (--force-dummy-tokenizer uses the one of a model without files)",
    )?;
    Ok(tokenizer)
}

#[cfg(feature = "download")]
fn fetch_from_hub(repo: &str, file: &str, hub: &HuggingFaceHubSettings) -> Result<PathBuf> {
    let cache = hf_hub::Cache::new(hub.cache.clone());
    let mut builder =
        hf_hub::api::sync::ApiBuilder::from_cache(cache).with_token(hub.token.clone());
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let file = builder.build()?.dataset(repo.to_owned()).get(file);
    file.with_context(|| format!("cannot download from the dataset {repo}"))
}

#[cfg(not(feature = "download"))]
fn fetch_from_hub(_: &str, _: &str, _: &HuggingFaceHubSettings) -> Result<PathBuf> {
    bail!("--hf-repo: this program was built without the feature `download`")
}

/// Describes a dataset file as text: format version, number of rows, reply lengths.
///
/// # Errors
/// Returns an error if the file cannot be opened, or a row is invalid.
fn inspect_dataset(file: &Path, table: &str) -> Result<String> {
    let dataset = Dataset::open(file, table, DatasetRowStorage::OnDisk)?;
    let summary = dataset.reply_stats();
    let generation = match dataset.format_version() {
        DatasetFormat::Texts => "version 0.6 (prompts hashed as text, no token ids)",
        DatasetFormat::Tokens => "current (prompts hashed as token ids)",
    };
    if let Some((row, why)) = dataset.first_invalid_dataset_row() {
        bail!("table '{table}' of dataset {}, row {row}: {why}", file.display());
    }
    let [shortest, median, longest] = summary.lengths;
    let timing =
        if dataset.has_token_times() { "\ntiming   recorded (--replay-timing)" } else { "" };
    Ok(format!(
        "format   {generation}\nreplies  {}\nprompts  {}\ntokens   {} \
         (shortest {shortest}, median {median}, longest {longest}){timing}",
        summary.rows, summary.prompts, summary.tokens
    ))
}
