//! Parses the command line of `vllm-sim record`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};

use super::{Recorder, RecorderConfig, RecordingSummary, first_model_of_upstream};
use vllm_sim_command_line::parse_tool_args;
use vllm_sim_dataset::DEFAULT_TABLE_NAME;
use vllm_sim_tokenizer::{HuggingFaceHubSettings, Tokenizer, TokenizerLocation};

/// Record the responses of an endpoint with their timing, as a proxy in front of it.
///
/// Point clients at the proxy instead of the endpoint; stop it with Ctrl-C or SIGTERM. Then
/// `vllm-sim --model MODEL --dataset-path FILE --replay-timing` returns the same responses.
#[derive(Debug, Parser)]
#[command(name = "vllm-sim record", no_binary_name = true, after_help = HELP_EXAMPLES)]
struct RecordArgs {
    /// URL of the endpoint, like http://localhost:8000.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// SQLite file to create, in llm-d-inference-sim's format with an additional table of timings.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Port to listen on; 0 selects a free port.
    #[arg(long, default_value_t = 8001)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Name of the SQLite table to write.
    #[arg(long, default_value = DEFAULT_TABLE_NAME)]
    table_name: String,
    /// Append to an existing dataset file.
    #[arg(long)]
    append: bool,
    /// Model of the tokenizer that hashes prompts and counts tokens: a folder, or a name in the
    /// Hugging Face cache [the first model that the endpoint lists]. The replaying server needs the
    /// same one.
    #[arg(long)]
    model: Option<String>,
    /// Download a tokenizer that is not in the cache; without this flag the simulated one is used.
    #[arg(long)]
    download_tokenizer: bool,
    /// Use the simulated tokenizer for any model.
    #[arg(long)]
    force_dummy_tokenizer: bool,
    /// PEM file of the certificates that verify an https endpoint [the public ones that browsers
    /// trust].
    #[arg(long, value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
}

/// Returns the clap command of `record`.
pub fn record_clap_command() -> clap::Command {
    RecordArgs::command()
}

/// Records responses until `ended` resolves, and returns the text to print.
///
/// # Errors
/// Returns a message for the user.
pub fn run_record_command(
    args: &[String],
    env: &dyn Fn(&str) -> Option<String>,
    ended: impl Future<Output = ()>,
) -> Result<String> {
    let args = match parse_tool_args::<RecordArgs>(args)? {
        Ok(args) => args,
        Err(help) => return Ok(help),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let out = args.out.display().to_string();
        let recorder = start_recorder(args, env).await?;
        tracing::info!(address = %recorder.address, out, "recording; SIGINT or SIGTERM ends it");
        ended.await;
        let summary = recorder.stop().await?;
        Ok(format_summary(&summary, &out))
    })
}

async fn start_recorder(
    args: RecordArgs,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Recorder> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None if args.force_dummy_tokenizer => String::new(),
        None => first_model_of_upstream(&args.upstream, args.upstream_ca.as_deref()).await?,
    };
    let tokenizer = open_tokenizer(&args, &model, env)?;
    let record = RecorderConfig {
        upstream: args.upstream,
        out: args.out,
        table: args.table_name,
        append: args.append,
        listen: (args.host, args.port),
        authority: args.upstream_ca,
        tokenizer: Arc::new(tokenizer),
    };
    Ok(Recorder::start(record).await?)
}

fn open_tokenizer(
    args: &RecordArgs,
    model: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Tokenizer> {
    let path = Path::new(model);
    let source = if args.force_dummy_tokenizer {
        TokenizerLocation::Simulated
    } else if path.exists() {
        TokenizerLocation::Folder(path.to_owned())
    } else {
        TokenizerLocation::Hub {
            repo: model.to_owned(),
            revision: None,
            download: args.download_tokenizer,
            hub: HuggingFaceHubSettings::from_env(env),
        }
    };
    match Tokenizer::open(&source) {
        Ok((tokenizer, what)) => {
            tracing::info!(model, "tokenizer: {what}");
            Ok(tokenizer)
        }
        Err(error) if args.download_tokenizer || path.exists() => {
            Err(error).context("no tokenizer for --model")
        }
        Err(error) => {
            tracing::warn!(model, "tokenizer: simulated: {error}");
            Ok(Tokenizer::new_simulated())
        }
    }
}

fn format_summary(summary: &RecordingSummary, out: &str) -> String {
    let mut text = format!("{} replies in {out}", summary.replies);
    for (why, count) in &summary.skipped {
        text.push_str(&format!("\nnot recorded, {why}: {count}"));
    }
    text
}

/// Example commands below the help text of `vllm-sim record`.
const HELP_EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim record --upstream http://localhost:8000 --out replies.sqlite";
