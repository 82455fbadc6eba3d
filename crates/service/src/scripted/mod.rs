//! Scripted replies: fixed texts, tool calls or errors for requests that match a rule.
//!
//! The first matching rule with uses left answers the request. Without a matching rule, the server
//! generates the reply. A rule matches the text of the last message, or the prompt of a completion.

mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use regex::Regex;
use serde_json::{Value, json};

use crate::fault::InjectedFailure;
use crate::generate::tools::ToolCall;
use vllm_sim_wire::fault::{ErrorType, Fault};

pub use read::ScriptedReplyError;

/// The rules of scripted replies in use, shared by all front ends.
#[derive(Debug, Default)]
pub struct ScriptedReplies(ArcSwapOption<ReplyRules>);

/// Rules of scripted replies, in order of priority.
#[derive(Debug)]
pub struct ReplyRules(Vec<ReplyRule>);

#[derive(Debug)]
struct ReplyRule {
    condition: RuleCondition,
    /// Reply of the rule; `None` if the rule only injects errors.
    reply: Option<Arc<ScriptedReply>>,
    failure: Option<ScriptedFailure>,
    /// Maximum number of replies by the rule; `None` means unlimited.
    times: Option<u64>,
    failed: AtomicU64,
    answered: AtomicU64,
    /// The rule for scripted replies as JSON, as the operator wrote it.
    source: Value,
}

/// Conditions of a rule, all of which a request must meet.
#[derive(Debug, Default)]
struct RuleCondition {
    contains: Option<String>,
    matches: Option<Regex>,
    model: Option<String>,
}

/// A reply with fixed content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScriptedReply {
    /// Reasoning before the reply's text; omitted if the server has no reasoning parser.
    pub reasoning: Option<String>,
    /// Text of the scripted reply.
    pub text: String,
    /// Tool calls after the reply's text.
    pub calls: Vec<ToolCall>,
    /// Timing of the reply's tokens; `None` uses the engine's latency model.
    pub pace: Option<TokenPacing>,
}

/// The timing of a scripted reply's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenPacing {
    /// Time from the start of the sequence to the first token.
    pub first_token: Duration,
    /// Time between consecutive tokens of the reply.
    pub between_tokens: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ScriptedFailure {
    /// Number of requests that get the error before the rule replies.
    times: u64,
    error: ScriptedError,
    retry_after_seconds: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptedError {
    Failure(InjectedFailure),
    Status(u16),
}

impl ScriptedReplies {
    /// Replaces the rules and resets their usage counts; `None` removes the rules.
    pub fn replace_rules(&self, rules: Option<Arc<ReplyRules>>) {
        self.0.store(rules);
    }

    /// Returns the rules in use; `None` if there are none.
    pub fn rules(&self) -> Option<Arc<ReplyRules>> {
        self.0.load_full()
    }

    /// Reserves the scripted reply of the matching rule for each of the last message texts; empty
    /// without rules.
    ///
    /// # Errors
    /// The first injected error of a matching rule, with its fault name.
    pub fn reserve_replies<'t>(
        &self,
        texts: impl Iterator<Item = &'t str>,
        model: &str,
    ) -> Result<Vec<Option<ReservedReply>>, (Fault, &'static str)> {
        // Costs one atomic load without rules.
        match &*self.0.load() {
            None => Ok(Vec::new()),
            Some(rules) => texts.map(|text| rules.reserve_reply(text, model)).collect(),
        }
    }
}

/// A scripted reply reserved for one prompt.
///
/// Unless [`Self::mark_given`] is called, dropping the value returns the use to its rule.
#[derive(Debug)]
pub struct ReservedReply {
    reply: Arc<ScriptedReply>,
    rule: Option<(Arc<ReplyRules>, usize)>,
}

impl ReservedReply {
    /// Returns the scripted reply.
    pub fn reply(&self) -> &Arc<ScriptedReply> {
        &self.reply
    }

    /// Counts the use of the rule permanently, because the request was accepted.
    pub fn mark_given(mut self) {
        self.rule = None;
    }
}

impl Drop for ReservedReply {
    fn drop(&mut self) {
        if let Some((rules, index)) = self.rule.take()
            && let Some(rule) = rules.0.get(index)
        {
            rule.answered.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl ReplyRules {
    fn reserve_reply(
        self: &Arc<Self>,
        text: &str,
        model: &str,
    ) -> Result<Option<ReservedReply>, (Fault, &'static str)> {
        for (index, rule) in self.0.iter().enumerate() {
            if !rule.condition.is_met(text, model) {
                continue;
            }
            if let Some(failure) = &rule.failure
                && increment_below(&rule.failed, Some(failure.times))
            {
                return Err(failure.to_fault(model));
            }
            if let Some(reply) = &rule.reply
                && increment_below(&rule.answered, rule.times)
            {
                return Ok(Some(ReservedReply {
                    reply: reply.clone(),
                    rule: Some((self.clone(), index)),
                }));
            }
        }
        Ok(None)
    }

    /// Returns each rule of scripted replies as configured, with its usage counts.
    pub fn to_json(&self) -> Value {
        let rules = self.0.iter().map(|rule| {
            json!({
                "rule": rule.source,
                "failed": rule.failed.load(Ordering::Relaxed),
                "answered": rule.answered.load(Ordering::Relaxed),
            })
        });
        rules.collect()
    }
}

/// Increments `count` unless it has reached `most`; returns whether it was incremented.
fn increment_below(count: &AtomicU64, most: Option<u64>) -> bool {
    let more = |count: u64| most.is_none_or(|most| count < most).then_some(count + 1);
    let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    counted.is_ok()
}

impl RuleCondition {
    fn is_met(&self, text: &str, model: &str) -> bool {
        let contains = self.contains.as_ref();
        let matches = self.matches.as_ref();
        contains.is_none_or(|part| text.contains(part.as_str()))
            && matches.is_none_or(|regex| regex.is_match(text))
            && self.model.as_ref().is_none_or(|name| name == model)
    }
}

impl ScriptedFailure {
    fn to_fault(&self, model: &str) -> (Fault, &'static str) {
        let (fault, name) = match self.error {
            ScriptedError::Failure(failure) => {
                let status = failure.http_status();
                let kind = ErrorType::from_http_status(status);
                let fault = Fault {
                    param: failure.error_param().map(str::to_owned),
                    ..Fault::new(status, kind, failure.error_message(model))
                };
                (fault, failure.name())
            }
            ScriptedError::Status(status) => {
                let words = format!("Scripted error (code {status})");
                let kind = ErrorType::from_http_status(status);
                (Fault::new(status, kind, words), "return_error")
            }
        };
        let retry_after_seconds = self.retry_after_seconds;
        let fault = Fault { retry_after_seconds, ..fault };
        (fault, name)
    }
}

impl ScriptedReply {
    /// Returns the release times of the first `tokens` tokens, from the start of the sequence;
    /// `None` without timing.
    pub(crate) fn token_release_times(&self, tokens: u32) -> Option<Arc<[Duration]>> {
        let pace = self.pace?;
        let at = |token| pace.first_token + pace.between_tokens * token;
        Some((0..tokens).map(at).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Arc<ReplyRules> {
        Arc::new(ReplyRules::from_yaml(text).unwrap())
    }

    fn said(rules: &Arc<ReplyRules>, text: &str) -> Result<Option<String>, u16> {
        let chosen = rules.reserve_reply(text, "demo");
        let chosen = chosen.map_err(|(fault, _)| fault.status)?;
        Ok(chosen.map(|chosen| {
            let text = chosen.reply().text.clone();
            chosen.mark_given();
            text
        }))
    }

    #[test]
    fn the_first_matching_rule_with_replies_left_is_used() {
        let rules = rules(
            "- {when: {contains: sun}, say: once, times: 1}\n\
             - {when: {matches: '(?i)^SUN'}, say: again}\n\
             - {when: {model: other}, say: never}\n",
        );
        let some = |text: &str| Ok(Some(text.to_owned()));
        // A dropped reservation returns its use.
        drop(rules.reserve_reply("sunny", "demo"));
        assert_eq!(said(&rules, "sunny"), some("once"));
        assert_eq!(said(&rules, "sunny"), some("again"));
        assert_eq!(said(&rules, "the sun"), Ok(None));
        assert_eq!(rules.to_json()[0]["answered"], 1);
    }

    #[test]
    fn a_rule_fails_the_given_number_of_requests_and_then_replies() {
        let rules = rules("- {say: fine, fail: {times: 2, error: rate_limit, retry_after: 3}}\n");
        let (fault, name) = rules.reserve_reply("x", "demo").unwrap_err();
        assert_eq!((fault.status, name), (429, "rate_limit"));
        assert_eq!(fault.retry_after_seconds, Some(3));
        assert_eq!(said(&rules, "x"), Err(429));
        assert_eq!(said(&rules, "x"), Ok(Some("fine".to_owned())));
    }

    #[test]
    fn tokens_are_emitted_at_the_pace_of_the_rule() {
        let rules = rules("- {say: a, pace: {first_token: 1s, between_tokens: 20ms}}\n");
        let chosen = rules.reserve_reply("", "").unwrap().unwrap();
        let times = [1000, 1020, 1040].map(Duration::from_millis);
        assert_eq!(chosen.reply().token_release_times(3).as_deref(), Some(&times[..]));
    }

    #[test]
    fn rule_errors_name_the_rule_and_the_field() {
        for (text, words) in [
            ("{}", "a list of rules was expected"),
            ("- {}", "replies[0]: one of say, call and fail is required"),
            ("- {say: a, tell: b}", "replies[0]: unknown key \"tell\""),
            ("- {say: 1}", "replies[0]: 'say' must be a string, not 1"),
            ("- {say: a}\n- {say: a, when: {matches: '('}}", "replies[1]: 'when': 'matches'"),
            ("- {say: a, when: {text: b}}", "replies[0]: 'when': unknown key \"text\""),
            ("- {call: {arguments: {}}}", "replies[0]: 'call' needs a 'name'"),
            ("- {say: a, times: 0}", "replies[0]: 'times' must be a whole number of at least 1"),
            ("- {say: a, pace: {first_token: x}}", "replies[0]: 'pace': 'first_token'"),
            ("- {fail: {pace: {}, call: {name: a}}}", "'fail': unknown key \"pace\""),
            ("- {fail: {error: oops}}", "replies[0]: 'error' must be rate_limit"),
            ("- {fail: {error: 200}}", "or a status from 400 to 599, not 200"),
            ("- {fail: {error: 500}, pace: {}}", "replies[0]: 'pace' needs say or call"),
        ] {
            let error = ReplyRules::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
