//! Large, immutable data that all servers of a process share: the tokenizer and the dataset of
//! recorded replies.

use std::sync::Arc;

use super::error::StartError;
use super::setup;
use vllm_sim_config::Config;
#[cfg(feature = "zmq")]
use vllm_sim_dataset::DatasetFormat;
use vllm_sim_dataset::{Dataset, DatasetError, DatasetRowStorage};
use vllm_sim_service::generate::RecordedReplies;
use vllm_sim_tokenizer::{Tokenizer, TokenizerError};

#[derive(Debug, Clone)]
pub(super) struct SharedServerAssets {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) recordings: Option<RecordedReplies>,
}

impl SharedServerAssets {
    /// Opens the configured tokenizer and, on the blocking pool, the dataset of recorded replies,
    /// which is downloaded if configured.
    ///
    /// # Errors
    /// [`StartError`] if one of them cannot be opened.
    pub(super) async fn open_shared_assets(config: &Config) -> Result<Self, StartError> {
        let tokenizer = open_tokenizer(config)?;
        let Some(dataset) = config.content.dataset.clone() else {
            return Ok(Self { tokenizer, recordings: None });
        };
        let opened = match tokio::task::spawn_blocking(move || open_dataset(&dataset)).await {
            Ok(opened) => opened?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        Ok(Self { tokenizer, recordings: opened })
    }
}

#[cfg(feature = "zmq")]
impl SharedServerAssets {
    /// Returns whether the dataset finds recorded replies by texts and roles instead of token ids.
    pub(super) fn finds_recorded_replies_by_text(&self) -> bool {
        let recordings = self.recordings.as_ref();
        recordings.is_some_and(|some| some.dataset.format_version() == DatasetFormat::Texts)
    }
}

/// Opens the configured tokenizer.
///
/// A missing tokenizer that was not explicitly named is replaced by the simulated one.
fn open_tokenizer(config: &Config) -> Result<Arc<Tokenizer>, StartError> {
    let source = setup::tokenizer_location(config, &|name| std::env::var(name).ok());
    let (tokenizer, why) = match Tokenizer::open(&source) {
        Ok(opened) => opened,
        Err(error @ TokenizerError::Broken { .. }) => return Err(error.into()),
        Err(error) if setup::needs_tokenizer(config) => return Err(error.into()),
        Err(error) => (Tokenizer::new_simulated(), format!("simulated: {error}")),
    };
    tracing::info!("tokenizer: {why}");
    Ok(Arc::new(tokenizer))
}

/// Opens the dataset of recorded replies; `None` if that fails and a fallback is configured.
fn open_dataset(
    config: &vllm_sim_config::ReplyDatasetConfig,
) -> Result<Option<RecordedReplies>, DatasetError> {
    #[cfg(feature = "download")]
    let fetched = match &config.url {
        Some(url) => vllm_sim_dataset::download_dataset_if_missing(
            &config.path,
            url,
            config.sha256.as_deref(),
        )
        .map(|_| ()),
        None => Ok(()),
    };
    #[cfg(not(feature = "download"))]
    let fetched = Ok(());
    let rows = match config.in_memory {
        true => DatasetRowStorage::InMemory,
        false => DatasetRowStorage::OnDisk,
    };
    let open = |()| Dataset::open(&config.path, &config.table, rows);
    let dataset = match fetched.and_then(open) {
        Ok(dataset) => dataset,
        Err(error) if config.fallback => {
            tracing::warn!(%error, "the dataset cannot be opened: replies are built-in sentences");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    tracing::info!(
        path = %config.path.display(),
        replies = dataset.len(),
        format = ?dataset.format_version(),
        recorded = dataset.has_token_times(),
        in_memory = config.in_memory,
        "dataset"
    );
    if dataset.is_empty() {
        tracing::warn!("the dataset has no reply: replies are built-in sentences");
    }
    if config.replay_timing && !dataset.has_token_times() {
        tracing::warn!(
            "--replay-timing: `vllm-sim record` did not write this dataset, so it has no times"
        );
    }
    Ok(Some(RecordedReplies { dataset: Arc::new(dataset), timing: config.replay_timing }))
}
