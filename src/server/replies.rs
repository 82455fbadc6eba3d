//! Reads the scripted replies of `--replies`.

use std::sync::Arc;

use super::error::StartError;
use vllm_sim_config::Config;
use vllm_sim_service::scripted::ReplyRules;

pub(super) fn read_scripted_replies(
    config: &Config,
) -> Result<Option<Arc<ReplyRules>>, StartError> {
    let Some(path) = &config.faults.replies else {
        return Ok(None);
    };
    let failed = |why: String| StartError::Replies { path: path.display().to_string(), why };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let rules = ReplyRules::from_yaml(&text).map_err(|error| failed(error.to_string()))?;
    Ok(Some(Arc::new(rules)))
}
