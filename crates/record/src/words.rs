//! The command line of `vllm-sim record`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};

use super::{RecordConfig, Recorder, Summary, model_of};
use vllm_sim_command_line::parse;
use vllm_sim_dataset::TABLE;
use vllm_sim_tokenizer::{Hub, Tokenizer, TokenizerLocation};

/// Record what an endpoint answers, and when, into a dataset: a proxy in front of it.
///
/// Point clients at the proxy instead of the endpoint; end it with Ctrl-C or SIGTERM. Then
/// `vllm-sim --model MODEL --dataset-path FILE --replay-timing` answers the same.
#[derive(Debug, Parser)]
#[command(name = "vllm-sim record", no_binary_name = true, after_help = EXAMPLES)]
struct Args {
    /// The endpoint, like http://localhost:8000.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// File to make: SQLite, in llm-d-inference-sim's form and with a table of timings beside it.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Port to listen on; 0 is any.
    #[arg(long, default_value_t = 8001)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Table to write.
    #[arg(long, default_value = TABLE)]
    table_name: String,
    /// Add to a file that is there.
    #[arg(long)]
    append: bool,
    /// Model whose tokenizer names prompts and counts tokens: a folder, or a name of the hub's
    /// cache [the first that the endpoint lists]. The server that replays needs the same.
    #[arg(long)]
    model: Option<String>,
    /// Fetch a tokenizer that is not on this machine; otherwise the simulated one stands in.
    #[arg(long)]
    download_tokenizer: bool,
    /// Use the simulated tokenizer, whatever the model.
    #[arg(long)]
    force_dummy_tokenizer: bool,
    /// Certificates (PEM) to trust an https endpoint by [those that browsers trust].
    #[arg(long, value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
}

/// The command line as clap sees it.
pub fn command() -> clap::Command {
    Args::command()
}

/// Records until `ended`; what is to be printed then.
///
/// # Errors
/// What to tell the user.
pub fn run(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
    ended: impl Future<Output = ()>,
) -> Result<String> {
    let words = match parse::<Args>(words)? {
        Ok(words) => words,
        Err(help) => return Ok(help),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let out = words.out.display().to_string();
        let recorder = start(words, env).await?;
        tracing::info!(address = %recorder.address, out, "recording; SIGINT or SIGTERM ends it");
        ended.await;
        let summary = recorder.stop().await?;
        Ok(shown(&summary, &out))
    })
}

async fn start(words: Args, env: &dyn Fn(&str) -> Option<String>) -> Result<Recorder> {
    let model = match &words.model {
        Some(model) => model.clone(),
        None if words.force_dummy_tokenizer => String::new(),
        None => model_of(&words.upstream, words.upstream_ca.as_deref()).await?,
    };
    let tokenizer = tokenizer(&words, &model, env)?;
    let record = RecordConfig {
        upstream: words.upstream,
        out: words.out,
        table: words.table_name,
        append: words.append,
        listen: (words.host, words.port),
        authority: words.upstream_ca,
        tokenizer: Arc::new(tokenizer),
    };
    Ok(Recorder::start(record).await?)
}

/// The tokenizer that a server of this model opens by itself.
fn tokenizer(words: &Args, model: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Tokenizer> {
    let path = Path::new(model);
    let source = if words.force_dummy_tokenizer {
        TokenizerLocation::Simulated
    } else if path.exists() {
        TokenizerLocation::Folder(path.to_owned())
    } else {
        TokenizerLocation::Hub {
            repo: model.to_owned(),
            revision: None,
            download: words.download_tokenizer,
            hub: Hub::from_env(env),
        }
    };
    match Tokenizer::open(&source) {
        Ok((tokenizer, what)) => {
            tracing::info!(model, "tokenizer: {what}");
            Ok(tokenizer)
        }
        Err(error) if words.download_tokenizer || path.exists() => {
            Err(error).context("no tokenizer for --model")
        }
        Err(error) => {
            tracing::warn!(model, "tokenizer: simulated: {error}");
            Ok(Tokenizer::simulated())
        }
    }
}

fn shown(summary: &Summary, out: &str) -> String {
    let mut text = format!("{} replies in {out}", summary.replies);
    for (why, count) in &summary.skipped {
        text.push_str(&format!("\nnot recorded, {why}: {count}"));
    }
    text
}

/// Commands to begin with, below the help text.
const EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim record --upstream http://localhost:8000 --out replies.sqlite";
