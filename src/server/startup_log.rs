//! Start-up log lines of vLLM, which scripts wait for.
//!
//! Source: vLLM 0.33 `vllm/v1/worker/gpu_worker.py`, `vllm/v1/core/kv_cache_utils.py`,
//! `vllm/entrypoints/launchers/api_server/entry.py`; uvicorn's `server.py`; SGLang 0.5.23
//! `srt/entrypoints/http_server.py`.

use std::net::SocketAddr;

use super::cache_config::kv_cache_tokens_and_concurrency;
use vllm_sim_config::{CliMode, Config, MetricsCompat};
use vllm_sim_engine::kv::OffloadConnector;
use vllm_sim_replay::report::group_thousands;

pub(super) fn log_engine_start(config: &Config) {
    if config.model.cli_mode == CliMode::Llmd || config.api.scale_out.render_only {
        return;
    }
    if let Some(size) = &config.engine.kv_cache {
        let gib = size.available_bytes / f64::from(1 << 30);
        tracing::info!("Available KV cache memory: {gib:.2} GiB");
    }
    let host = config.engine.kv_offload.as_ref();
    if host.is_some_and(|host| host.tier.rules == OffloadConnector::Native && !host.is_lmcache) {
        tracing::info!("Creating offloading spec with name: CPUOffloadingSpec");
    }
    if config.model.compat == MetricsCompat::Sglang {
        return;
    }
    let (tokens, concurrency) = kv_cache_tokens_and_concurrency(config);
    let (tokens, context) = (
        group_thousands(&tokens.to_string()),
        group_thousands(&config.model.max_model_len.to_string()),
    );
    tracing::info!(
        "GPU KV cache size: {tokens} tokens, Maximum concurrency for {context} tokens per request: \
         {concurrency:.2}x"
    );
}

/// Logs the lines by which vLLM or SGLang, and uvicorn, report that the server accepts requests;
/// `address` is `None` for a Unix socket.
pub(super) fn log_server_ready(config: &Config, address: Option<SocketAddr>) {
    if config.model.cli_mode == CliMode::Llmd {
        return;
    }
    if config.model.compat == MetricsCompat::Sglang {
        tracing::info!("Application startup complete.");
        tracing::info!("The server is fired up and ready to roll!");
        return;
    }
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    match (address, &config.server.uds) {
        (Some(address), _) => tracing::info!("Starting vLLM server on {scheme}://{address}"),
        (None, Some(path)) => tracing::info!("Starting vLLM server on unix:{}", path.display()),
        (None, None) => {}
    }
    tracing::info!("Application startup complete.");
}
