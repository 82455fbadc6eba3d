//! The HTTP API of SGLang (`--compat sglang`): what the shared steps of a request do differently.
//!
//! Routes, bodies and responses of SGLang are in `crate::sglang`.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints`.

use serde_json::Value;

use super::ApiDialect;
use vllm_sim_service::dialect::SglangDialect;
use vllm_sim_wire::VllmVersion;
use vllm_sim_wire::openai::shared::ChatTool;
use vllm_sim_wire::sglang::SGLANG_VERSION;

impl ApiDialect for SglangDialect {
    /// Returns true: cached prompt tokens are always counted, and SGLang's routes report them only
    /// with `--enable-cache-report`.
    fn always_reports_cached_tokens(&self) -> bool {
        true
    }

    fn release(&self, _: VllmVersion) -> (&'static str, &'static str) {
        ("SGLang", SGLANG_VERSION)
    }

    fn launch_command(&self) -> Option<&'static str> {
        Some("`sglang.launch_server`")
    }

    /// Returns whether requests to a path need an API key: all paths but probes, `/metrics` and the
    /// pages of vllm-sim itself.
    ///
    /// Source: SGLang 0.5.23 `srt/utils/auth.py`, `decide_request_auth`.
    fn needs_api_key(&self, path: &str) -> bool {
        const OPEN: [&str; 6] =
            ["/health", "/ready", "/metrics", "/dashboard", "/admin", "/fake_metrics"];
        !OPEN.iter().any(|prefix| path.starts_with(prefix))
    }

    /// Returns a tool's definition for chat templates, with SGLang's additional `defer_loading`.
    fn template_tool(&self, tool: &ChatTool) -> Value {
        let mut tool = tool.to_template_json();
        tool["defer_loading"] = Value::Null;
        tool
    }

    fn media_type<'h>(&self, named: Option<&'h str>) -> Option<&'h str> {
        named
    }
}
