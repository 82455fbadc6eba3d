//! Differences of an SGLang server (`--compat sglang`) in the shared steps of a request.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints`, and `srt/managers/tokenizer_manager.py`
//! (`_validate_one_request`).

use serde_json::Value;

use crate::dialect::{ApiDialect, ApiProperties};
use vllm_sim_service::dialect::ServerDialect;
use vllm_sim_wire::openai::shared_request_fields::ChatTool;
use vllm_sim_wire::sglang::SGLANG_VERSION;
use vllm_sim_wire::{Fault, ServerLimits, VllmVersion};

/// Paths of the routes that change a server.
const ADMIN_PATHS: [&str; 28] = [
    "/flush_cache",
    "/hicache/storage-backend",
    "/hicache/storage-backend/clear",
    "/start_profile",
    "/stop_profile",
    "/freeze_gc",
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/begin_weight_update",
    "/end_weight_update",
    "/update_weight_version",
    "/get_weights_by_name",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/weights_checker",
    "/slow_down",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/configure_logging",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/set_internal_state",
    "/pd_role_switch",
];

/// The request checks of SGLang's tokenizer manager.
#[derive(Debug)]
pub(crate) struct SglangDialect;

impl ServerDialect for SglangDialect {
    /// Checks that prompt and requested output fit into the context together.
    fn check_prompt_and_output(
        &self,
        limits: &ServerLimits,
        prompt: usize,
        asked: Option<i128>,
    ) -> Result<(), Fault> {
        let most = limits.max_model_len;
        let completion = asked.unwrap_or(0);
        let total = completion.saturating_add(prompt as i128);
        if total <= i128::from(most) {
            return Ok(());
        }
        Err(Fault::bad_request(format!(
            "Requested token count exceeds the model's maximum context length of {most} tokens. \
             You requested a total of {total} tokens: {prompt} tokens from the input messages and \
             {completion} tokens for the completion. Please reduce the number of tokens in the \
             input messages or the completion to fit within the limit."
        )))
    }

    fn check_text_length(&self, _: &ServerLimits, _: &str, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Checks that a prompt leaves room for one token of output.
    fn check_encoded_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        let most = limits.max_model_len;
        if tokens < most as usize {
            return Ok(());
        }
        Err(Fault::bad_request(format!(
            "The input ({tokens} tokens) is longer than the model's context length ({most} tokens)."
        )))
    }

    fn check_prompt_ids_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        self.check_encoded_length(limits, tokens)
    }
}

/// Cached prompt tokens are always counted; SGLang's routes report them only with
/// `--enable-cache-report`.
const SGLANG_PROPERTIES: ApiProperties =
    ApiProperties { always_reports_cached_tokens: true, ..ApiProperties::VLLM };

impl ApiDialect for SglangDialect {
    fn properties(&self) -> &'static ApiProperties {
        &SGLANG_PROPERTIES
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

    /// Returns whether SGLang marks the route of a path `ADMIN_OPTIONAL`.
    ///
    /// Source: SGLang 0.5.23 `http_server.py`, `auth_level`.
    fn needs_admin_key(&self, path: &str) -> bool {
        ADMIN_PATHS.contains(&path)
    }

    /// Returns a tool's definition for chat templates, with SGLang's additional `defer_loading`.
    ///
    /// Members of a function that the client left out follow those that it sent. Source: SGLang
    /// 0.5.23 `openai/protocol.py`, `Function`.
    fn template_tool(&self, tool: &ChatTool) -> Value {
        let mut tool = tool.to_template_json();
        if let Some(function) = tool["function"].as_object_mut() {
            for name in ["description", "parameters"] {
                if function.get(name).is_some_and(Value::is_null) {
                    function.shift_remove(name);
                    function.insert(name.to_owned(), Value::Null);
                }
            }
        }
        tool["defer_loading"] = Value::Null;
        tool
    }
}
