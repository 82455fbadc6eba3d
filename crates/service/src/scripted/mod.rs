//! Scripted replies: fixed texts, tool calls or errors for requests that match a rule.
//!
//! The first matching rule with uses left answers the request. Without one, the server generates
//! the reply. A rule matches the text of the last message, or the prompt of a completion.

mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use regex::Regex;
use serde_json::{Value, json};

use crate::fault::Failure;
use crate::generate::tools::ToolCall;
use vllm_sim_wire::fault::{ErrorType, Fault};

pub use read::ScriptedReplyError;

/// The current rules, shared by all front ends.
#[derive(Debug, Default)]
pub struct ScriptedReplies(ArcSwapOption<ReplyRules>);

/// Reply rules, in order of priority.
#[derive(Debug)]
pub struct ReplyRules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    condition: RuleCondition,
    /// `None` if the rule only injects errors.
    reply: Option<Arc<ScriptedReply>>,
    failure: Option<ScriptedFailure>,
    /// Maximum number of replies; `None` means unlimited.
    times: Option<u64>,
    failed: AtomicU64,
    answered: AtomicU64,
    /// Rule as configured.
    source: Value,
}

/// All given conditions must hold.
#[derive(Debug, Default)]
struct RuleCondition {
    contains: Option<String>,
    matches: Option<Regex>,
    model: Option<String>,
}

/// A reply with fixed content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScriptedReply {
    /// Reasoning before the text; omitted if the server has no reasoning parser.
    pub reasoning: Option<String>,
    /// Text.
    pub text: String,
    /// Tool calls after the text.
    pub calls: Vec<ToolCall>,
    /// Token timing; `None` uses the engine's latency model.
    pub pace: Option<TokenPacing>,
}

/// The token timing of a scripted reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenPacing {
    /// Time from the start of the sequence to the first token.
    pub first_token: Duration,
    /// Time between consecutive tokens.
    pub between_tokens: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ScriptedFailure {
    /// Number of requests that fail.
    times: u64,
    error: ScriptedError,
    retry_after_seconds: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptedError {
    Failure(Failure),
    Status(u16),
}

impl ScriptedReplies {
    /// Replaces the rules, with their usage counts; `None` removes them.
    pub fn set(&self, rules: Option<Arc<ReplyRules>>) {
        self.0.store(rules);
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Option<Arc<ReplyRules>> {
        self.0.load_full()
    }

    /// Reserves the scripted reply, if any, for each of the last message texts; empty without
    /// rules.
    ///
    /// # Errors
    /// The first error of a matching rule, with its fault name.
    pub fn choose<'t>(
        &self,
        texts: impl Iterator<Item = &'t str>,
        model: &str,
    ) -> Result<Vec<Option<ReservedReply>>, (Fault, &'static str)> {
        // Costs one atomic load without rules.
        match &*self.0.load() {
            None => Ok(Vec::new()),
            Some(rules) => texts.map(|text| rules.choose(text, model)).collect(),
        }
    }
}

/// A scripted reply reserved for a prompt.
///
/// Unless [`Self::give`] is called, dropping it returns the use to its rule.
#[derive(Debug)]
pub struct ReservedReply {
    reply: Arc<ScriptedReply>,
    rule: Option<(Arc<ReplyRules>, usize)>,
}

impl ReservedReply {
    /// Returns the reply.
    pub fn reply(&self) -> &Arc<ScriptedReply> {
        &self.reply
    }

    /// Counts the use permanently, because the request was accepted.
    pub fn give(mut self) {
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
    fn choose(
        self: &Arc<Self>,
        text: &str,
        model: &str,
    ) -> Result<Option<ReservedReply>, (Fault, &'static str)> {
        for (index, rule) in self.0.iter().enumerate() {
            if !rule.condition.holds(text, model) {
                continue;
            }
            if let Some(failure) = &rule.failure
                && below(&rule.failed, Some(failure.times))
            {
                return Err(failure.fault(model));
            }
            if let Some(reply) = &rule.reply
                && below(&rule.answered, rule.times)
            {
                return Ok(Some(ReservedReply {
                    reply: reply.clone(),
                    rule: Some((self.clone(), index)),
                }));
            }
        }
        Ok(None)
    }

    /// Returns each rule as configured, with its usage counts.
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

/// Increments `count` unless it has reached `most`; returns whether it did.
fn below(count: &AtomicU64, most: Option<u64>) -> bool {
    let more = |count: u64| most.is_none_or(|most| count < most).then_some(count + 1);
    let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    counted.is_ok()
}

impl RuleCondition {
    fn holds(&self, text: &str, model: &str) -> bool {
        let contains = self.contains.as_ref();
        let matches = self.matches.as_ref();
        contains.is_none_or(|part| text.contains(part.as_str()))
            && matches.is_none_or(|regex| regex.is_match(text))
            && self.model.as_ref().is_none_or(|name| name == model)
    }
}

impl ScriptedFailure {
    fn fault(&self, model: &str) -> (Fault, &'static str) {
        let (fault, name) = match self.error {
            ScriptedError::Failure(failure) => {
                let status = failure.status();
                let kind = ErrorType::of_status(status);
                let fault = Fault {
                    param: failure.param().map(str::to_owned),
                    ..Fault::new(status, kind, failure.message(model))
                };
                (fault, failure.name())
            }
            ScriptedError::Status(status) => {
                let words = format!("Scripted error (code {status})");
                let kind = ErrorType::of_status(status);
                (Fault::new(status, kind, words), "return_error")
            }
        };
        let retry_after_seconds = self.retry_after_seconds;
        let fault = Fault {
            retry_after_seconds,
            ..fault
        };
        (fault, name)
    }
}

impl ScriptedReply {
    /// Returns the times of the first `tokens` tokens, measured from the start of the sequence.
    pub(crate) fn times(&self, tokens: u32) -> Option<Arc<[Duration]>> {
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
        let chosen = rules.choose(text, "demo");
        let chosen = chosen.map_err(|(fault, _)| fault.status)?;
        Ok(chosen.map(|chosen| {
            let text = chosen.reply().text.clone();
            chosen.give();
            text
        }))
    }

    #[test]
    fn the_first_rule_that_matches_and_is_not_used_up_answers() {
        let rules = rules(
            "- {when: {contains: sun}, say: once, times: 1}\n\
             - {when: {matches: '(?i)^SUN'}, say: again}\n\
             - {when: {model: other}, say: never}\n",
        );
        let some = |text: &str| Ok(Some(text.to_owned()));
        // A dropped reservation returns its use.
        drop(rules.choose("sunny", "demo"));
        assert_eq!(said(&rules, "sunny"), some("once"));
        assert_eq!(said(&rules, "sunny"), some("again"));
        assert_eq!(said(&rules, "the sun"), Ok(None));
        assert_eq!(rules.to_json()[0]["answered"], 1);
    }

    #[test]
    fn a_rule_fails_so_many_requests_and_then_answers() {
        let rules = rules("- {say: fine, fail: {times: 2, error: rate_limit, retry_after: 3}}\n");
        let (fault, name) = rules.choose("x", "demo").unwrap_err();
        assert_eq!((fault.status, name), (429, "rate_limit"));
        assert_eq!(fault.retry_after_seconds, Some(3));
        assert_eq!(said(&rules, "x"), Err(429));
        assert_eq!(said(&rules, "x"), Ok(Some("fine".to_owned())));
    }

    #[test]
    fn tokens_come_at_the_pace_of_the_rule() {
        let rules = rules("- {say: a, pace: {first_token: 1s, between_tokens: 20ms}}\n");
        let chosen = rules.choose("", "").unwrap().unwrap();
        let times = [1000, 1020, 1040].map(Duration::from_millis);
        assert_eq!(chosen.reply().times(3).as_deref(), Some(&times[..]));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, words) in [
            ("{}", "a list of rules was expected"),
            ("- {}", "replies[0]: one of say, call and fail is needed"),
            ("- {say: a, tell: b}", "replies[0]: unknown key \"tell\""),
            ("- {say: 1}", "replies[0]: 'say' is a text, not 1"),
            (
                "- {say: a}\n- {say: a, when: {matches: '('}}",
                "replies[1]: 'when': 'matches'",
            ),
            (
                "- {say: a, when: {text: b}}",
                "replies[0]: 'when': unknown key \"text\"",
            ),
            (
                "- {call: {arguments: {}}}",
                "replies[0]: 'call' needs a 'name'",
            ),
            (
                "- {say: a, times: 0}",
                "replies[0]: 'times' is a whole number from 1 on",
            ),
            (
                "- {say: a, pace: {first_token: x}}",
                "replies[0]: 'pace': 'first_token'",
            ),
            (
                "- {fail: {pace: {}, call: {name: a}}}",
                "'fail': unknown key \"pace\"",
            ),
            (
                "- {fail: {error: oops}}",
                "replies[0]: 'error' is rate_limit",
            ),
            (
                "- {fail: {error: 200}}",
                "or a status from 400 to 599, not 200",
            ),
            (
                "- {fail: {error: 500}, pace: {}}",
                "replies[0]: 'pace' needs say or call",
            ),
        ] {
            let error = ReplyRules::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
