//! The HTTP API of SGLang (`--compat sglang`): what the shared steps of a request do differently.
//!
//! Routes, bodies and responses of SGLang are in `crate::sglang`.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints`.

use super::ApiDialect;
use vllm_sim_service::dialect::SglangDialect;

impl ApiDialect for SglangDialect {
    /// Always reports cached tokens; the routes of SGLang show them only with
    /// `--enable-cache-report`.
    fn always_reports_cached_tokens(&self) -> bool {
        true
    }

    fn media_type<'h>(&self, named: Option<&'h str>) -> Option<&'h str> {
        named
    }
}
