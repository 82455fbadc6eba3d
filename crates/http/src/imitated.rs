//! Servers whose HTTP API this crate imitates.
//!
//! A further server is a dialect like `crate::dialect::llmd`, or a folder with routes like
//! `crate::sglang`, and a line in each function of this file.

use super::app::Route;
use super::dialect::ApiRules;
use super::sglang;
use vllm_sim_config::{Config, MetricsCompat};
use vllm_sim_service::dialect::{LlmdDialect, VllmDialect};

/// Returns the rules of an imitated server's API.
pub fn api_rules(compat: MetricsCompat) -> ApiRules {
    ApiRules(match compat {
        MetricsCompat::Vllm => &VllmDialect,
        MetricsCompat::Llmd => &LlmdDialect,
        MetricsCompat::Sglang => &sglang::SglangDialect,
    })
}

/// Returns the routes of an imitated server whose API replaces vLLM's; `None` if the API is vLLM's.
pub(crate) fn own_routes(config: &Config) -> Option<Vec<Route>> {
    match config.model.compat {
        MetricsCompat::Vllm | MetricsCompat::Llmd => None,
        MetricsCompat::Sglang => Some(sglang::sglang_routes(config)),
    }
}
