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
    /// Always reports cached tokens; the routes of SGLang show them only with
    /// `--enable-cache-report`.
    fn always_reports_cached_tokens(&self) -> bool {
        true
    }

    fn release(&self, _: VllmVersion) -> (&'static str, &'static str) {
        ("SGLang", SGLANG_VERSION)
    }

    fn launch_command(&self) -> Option<&'static str> {
        Some("`sglang.launch_server`")
    }

    /// Returns whether a path is neither a probe, metrics nor a page of vllm-sim itself, which has a
    /// guard of its own.
    ///
    /// Source: SGLang 0.5.23 `srt/utils/auth.py`, `decide_request_auth`.
    fn needs_api_key(&self, path: &str) -> bool {
        const OPEN: [&str; 6] =
            ["/health", "/ready", "/metrics", "/dashboard", "/admin", "/fake_metrics"];
        !OPEN.iter().any(|prefix| path.starts_with(prefix))
    }

    /// Returns the description of a tool with one more member, which SGLang's class of tools has.
    fn template_tool(&self, tool: &ChatTool) -> Value {
        let mut tool = tool.to_template_json();
        tool["defer_loading"] = Value::Null;
        tool
    }

    fn media_type<'h>(&self, named: Option<&'h str>) -> Option<&'h str> {
        named
    }
}
