//! Reads the scripted replies of `--replies`, and reports those that no request used.

use std::sync::Arc;

use super::error::{StartError, invalid_file_error};
use vllm_sim_config::Config;
use vllm_sim_service::InferenceService;
use vllm_sim_service::scripted::{ReplyRules, UnmatchedRequestPolicy};

pub(super) fn read_scripted_replies(
    config: &Config,
) -> Result<Option<Arc<ReplyRules>>, StartError> {
    let Some(path) = &config.faults.replies else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(config, error))?;
    let rules = ReplyRules::from_yaml(&text).map_err(|error| failed(config, error))?;
    Ok(Some(Arc::new(rules)))
}

/// Sets the scripted replies of a server, after a check against its tokenizer.
pub(super) fn set_reply_rules_of_server(
    config: &Config,
    service: &InferenceService,
    rules: Option<Arc<ReplyRules>>,
) -> Result<(), StartError> {
    if let Some(rules) = &rules {
        rules
            .check_completion_tokens(&|reply| service.generator.scripted_token_count(reply))
            .map_err(|error| failed(config, error))?;
    }
    service.replies.replace_rules(rules);
    service.replies.set_unmatched_request_policy(match config.faults.strict_replies {
        true => UnmatchedRequestPolicy::Refused,
        false => UnmatchedRequestPolicy::Generated,
    });
    Ok(())
}

/// Refuses scripted-reply rules with conditions that no request from vLLM's own API server can
/// fulfil.
#[cfg(feature = "zmq")]
pub(super) fn check_api_server_reply_rules(
    config: &Config,
    rules: Option<&ReplyRules>,
) -> Result<(), StartError> {
    match rules.and_then(ReplyRules::first_api_server_condition) {
        None => Ok(()),
        Some((index, key)) => Err(failed(
            config,
            format!(
                "replies[{index}]: 'when': {key:?} cannot be matched behind vLLM's API server, \
                 which sends token ids without messages, tools and headers"
            ),
        )),
    }
}

/// Logs the scripted replies that no request used on any of the servers, which count the uses
/// separately.
pub(super) fn log_unused_scripted_replies<'s>(
    services: impl Iterator<Item = &'s InferenceService>,
) {
    let all: Vec<Arc<ReplyRules>> =
        services.filter_map(|it| it.replies.current_reply_rules()).collect();
    let Some(rules) = all.first() else { return };
    for index in 0..rules.len() {
        if !all.iter().any(|rules| rules.is_rule_used(index)) {
            let rule = rules.rule_json(index);
            tracing::warn!(rule, "replies[{index}] was not used");
        }
    }
}

fn failed(config: &Config, why: impl ToString) -> StartError {
    invalid_file_error("--replies", config.faults.replies.as_ref(), why)
}
