//! Scripted replies: fixed texts, tool calls or errors for requests that match a rule.
//!
//! The first matching rule with uses left answers the request. Without a matching rule, the server
//! generates the reply. A rule matches the text of the last message, or the prompt of a completion,
//! and other parts of the request.

mod condition;
mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use serde_json::{Value, json};

use crate::fault::InjectedFailure;
use crate::generate::tools::ToolCall;
use condition::ReplyRuleCondition;
use vllm_sim_wire::fault::{ErrorType, Fault};

pub use condition::{ConversationMatchInput, MatchedRequest};
pub use read::ScriptedReplyError;

/// The rules of scripted replies in use, shared by all front ends.
#[derive(Debug, Default)]
pub struct ScriptedReplies {
    rules: ArcSwapOption<ReplyRules>,
    strict: AtomicBool,
}

/// Rules of scripted replies, in order of priority.
#[derive(Debug)]
pub struct ReplyRules {
    rules: Vec<ReplyRule>,
    /// Names of the request headers in the conditions of scripted-reply rules, in lower case.
    headers: Vec<Box<str>>,
    /// Whether any scripted-reply rule matches messages or tools.
    reads_conversations: bool,
}

#[derive(Debug)]
struct ReplyRule {
    condition: ReplyRuleCondition,
    /// Reply of the scripted-reply rule; `None` if the rule only injects errors.
    reply: Option<Arc<ScriptedReply>>,
    failure: Option<ScriptedFailure>,
    /// Maximum number of replies by the scripted-reply rule; `None` means unlimited.
    times: Option<u64>,
    failed: AtomicU64,
    answered: AtomicU64,
    /// The rule for scripted replies as JSON, as the operator wrote it.
    source: Value,
}

/// A reply whose text, tool calls and token counts the operator has written in advance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScriptedReply {
    /// Reasoning before the reply's text; omitted if the server has no reasoning parser.
    pub reasoning: Option<String>,
    /// Text of the scripted reply.
    pub text: String,
    /// Tool calls after the reply's text.
    pub calls: Vec<ToolCall>,
    /// Timing of the reply's tokens; `None` uses the engine's latency model.
    pub pace: Option<ScriptedTokenPacing>,
    /// Finish reason of the scripted reply; `None` derives it from the output limit.
    pub finish: Option<ScriptedFinishReason>,
    /// Number of prompt tokens that the response shows; `None` for the real number.
    pub prompt_tokens: Option<u32>,
    /// Number of output tokens, padded with tokens without text; `None` for the number in the
    /// content.
    pub completion_tokens: Option<u32>,
}

/// The finish reason of a scripted reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptedFinishReason {
    /// Finish reason of a scripted reply: the model ended the reply.
    Stop,
    /// Finish reason of a scripted reply: the limit of output tokens ended the reply.
    Length,
}

/// The timing of a scripted reply's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptedTokenPacing {
    /// Time from the start of the sequence to the first token.
    pub first_token: Duration,
    /// Time between consecutive tokens of the reply.
    pub between_tokens: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ScriptedFailure {
    /// Number of requests that get the rule's error; later requests get its scripted reply.
    times: u64,
    error: ScriptedError,
    retry_after_seconds: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptedError {
    Failure(InjectedFailure),
    Status(u16),
}

/// Response to a request that no rule of scripted replies matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmatchedRequestPolicy {
    /// The server generates a reply to a request that no rule of scripted replies matches.
    Generated,
    /// The server refuses a request that no rule of scripted replies matches (`--strict-replies`).
    Refused,
}

/// An error response that takes the place of a scripted reply.
#[derive(Debug)]
pub struct ScriptedRefusal {
    /// The error response that replaces the scripted reply.
    pub fault: Fault,
    /// Name of the injected failure; `None` if no rule matched (`--strict-replies`).
    pub injected: Option<&'static str>,
}

impl ScriptedReplies {
    /// Replaces the rules of scripted replies and resets their usage counts; `None` removes the
    /// rules.
    pub fn replace_rules(&self, rules: Option<Arc<ReplyRules>>) {
        self.rules.store(rules);
    }

    /// Sets the response to requests that no rule of scripted replies matches.
    pub fn set_unmatched_request_policy(&self, unmatched: UnmatchedRequestPolicy) {
        self.strict.store(unmatched == UnmatchedRequestPolicy::Refused, Ordering::Relaxed);
    }

    /// Returns the rules of scripted replies in use; `None` if there are none.
    pub fn current_reply_rules(&self) -> Option<Arc<ReplyRules>> {
        self.rules.load_full()
    }

    /// Returns the request's headers that any rule of scripted replies names; `header_value` returns a
    /// header's value by its name.
    pub fn headers_read_by_reply_rules<'h>(
        &self,
        header_value: impl Fn(&str) -> Option<&'h str>,
    ) -> Box<[(Box<str>, Box<str>)]> {
        let rules = self.rules.load();
        let Some(rules) = rules.as_ref().filter(|rules| !rules.headers.is_empty()) else {
            return Box::default();
        };
        let named = rules.headers.iter();
        let found = named.filter_map(|name| Some((name.clone(), header_value(name)?.into())));
        found.collect()
    }

    /// Returns whether a rule of scripted replies looks at messages or tools, so that
    /// [`MatchedRequest::conversations`] is needed.
    pub fn has_conversation_conditions(&self) -> bool {
        let rules = self.rules.load();
        rules.as_ref().is_some_and(|rules| rules.reads_conversations)
    }

    /// Finds the rule that matches the last message of each prompt, given in `texts`, and reserves
    /// the rule's scripted reply. Returns an empty list if there are no rules.
    ///
    /// # Errors
    /// The first injected error of a matching rule, or a request without a matching rule in strict
    /// mode.
    pub fn reserve_replies<'t>(
        &self,
        texts: impl Iterator<Item = &'t str>,
        request: &MatchedRequest<'_>,
    ) -> Result<Vec<Option<ReservedReply>>, ScriptedRefusal> {
        // Costs two atomic loads without rules.
        let rules = self.rules.load();
        let strict = self.strict.load(Ordering::Relaxed);
        if rules.is_none() && !strict {
            return Ok(Vec::new());
        }
        let reserve = |(prompt, text): (usize, &str)| {
            let reserved = match &*rules {
                Some(rules) => rules.reserve_reply(text, prompt, request)?,
                None => None,
            };
            match reserved {
                None if strict => Err(unmatched_refusal(text, prompt, request)),
                reserved => Ok(reserved),
            }
        };
        texts.enumerate().map(reserve).collect()
    }
}

/// Returns the error for a request that no rule of scripted replies matches; its message contains
/// the values that rules could match.
fn unmatched_refusal(text: &str, prompt: usize, request: &MatchedRequest<'_>) -> ScriptedRefusal {
    /// Maximum number of characters of the chat message that the error shows.
    const SHOWN: usize = 200;
    let shown: String = text.chars().take(SHOWN).collect();
    let facts = request.conversations.get(prompt);
    let facts = facts.map_or_else(String::new, |facts| format!(", {facts}"));
    let words = format!(
        "no rule of the scripted replies matches this request (--strict-replies): last message \
         {shown:?}, model {:?}{facts}",
        request.model
    );
    ScriptedRefusal { fault: Fault::bad_request(words), injected: None }
}

/// A scripted reply reserved for one prompt.
///
/// Unless [`Self::mark_reply_used`] is called, dropping the value returns the use to its rule.
#[derive(Debug)]
pub struct ReservedReply {
    reply: Arc<ScriptedReply>,
    rule: Option<(Arc<ReplyRules>, usize)>,
}

impl ReservedReply {
    /// Returns the reserved scripted reply.
    pub fn reply(&self) -> &Arc<ScriptedReply> {
        &self.reply
    }

    /// Counts the use of the scripted-reply rule permanently, because the request was accepted.
    pub fn mark_reply_used(mut self) {
        self.rule = None;
    }
}

impl Drop for ReservedReply {
    fn drop(&mut self) {
        if let Some((rules, index)) = self.rule.take()
            && let Some(rule) = rules.rules.get(index)
        {
            rule.answered.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl ReplyRules {
    fn reserve_reply(
        self: &Arc<Self>,
        text: &str,
        prompt: usize,
        request: &MatchedRequest<'_>,
    ) -> Result<Option<ReservedReply>, ScriptedRefusal> {
        for (index, rule) in self.rules.iter().enumerate() {
            if !rule.condition.is_satisfied_by_request(text, prompt, request) {
                continue;
            }
            if let Some(failure) = &rule.failure
                && increment_below(&rule.failed, Some(failure.times))
            {
                let (fault, name) = failure.to_fault(request.model);
                return Err(ScriptedRefusal { fault, injected: Some(name) });
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
    pub fn reply_rules_with_usage_json(&self) -> Value {
        let rules = self.rules.iter().map(|rule| {
            json!({
                "rule": rule.source,
                "failed": rule.failed.load(Ordering::Relaxed),
                "answered": rule.answered.load(Ordering::Relaxed),
            })
        });
        rules.collect()
    }

    /// Returns the number of rules of scripted replies.
    #[expect(clippy::len_without_is_empty, reason = "nothing asks whether it is empty")]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns whether the scripted-reply rule at `index` was used: it answered or failed a
    /// request.
    pub fn is_rule_used(&self, index: usize) -> bool {
        let is_above_zero = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        let rule = self.rules.get(index);
        rule.is_some_and(|rule| is_above_zero(&rule.answered) || is_above_zero(&rule.failed))
    }

    /// Returns the scripted-reply rule at `index` as configured, in one line of JSON.
    pub fn rule_json(&self, index: usize) -> String {
        let rule = self.rules.get(index);
        rule.map_or_else(String::new, |rule| rule.source.to_string())
    }

    /// Returns the rule index and the key of the first condition on messages, tools or headers,
    /// which vLLM's own API server does not send to an engine.
    pub fn first_api_server_condition(&self) -> Option<(usize, &'static str)> {
        let mut rules = self.rules.iter().enumerate();
        rules.find_map(|(index, rule)| Some((index, rule.condition.api_server_condition_key()?)))
    }

    /// Checks that no scripted reply has more tokens than `completion_tokens` of its `usage`;
    /// `count` returns the tokens of a reply.
    ///
    /// # Errors
    /// [`ScriptedReplyError`] with the first rule whose number is too small.
    pub fn check_completion_tokens(
        &self,
        count: &dyn Fn(&ScriptedReply) -> u32,
    ) -> Result<(), ScriptedReplyError> {
        for (index, rule) in self.rules.iter().enumerate() {
            let Some(reply) = &rule.reply else { continue };
            let Some(asked) = reply.completion_tokens else {
                continue;
            };
            let least = count(reply);
            if asked < least {
                return Err(ScriptedReplyError(format!(
                    "replies[{index}]: 'usage': 'completion_tokens' is {asked}, but the reply has \
                     {least} tokens with this tokenizer"
                )));
            }
        }
        Ok(())
    }
}

/// Increments `count` unless it has reached `most`; returns whether it was incremented.
fn increment_below(count: &AtomicU64, most: Option<u64>) -> bool {
    let more = |count: u64| most.is_none_or(|most| count < most).then_some(count + 1);
    let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    counted.is_ok()
}

impl ScriptedFailure {
    fn to_fault(&self, model: &str) -> (Fault, &'static str) {
        let (fault, name) = match self.error {
            ScriptedError::Failure(failure) => {
                (failure.to_fault(model), failure.injected_failure_name())
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
    /// Returns the times at which a scripted reply's first `tokens` tokens are output, from the
    /// start of the sequence; `None` without timing.
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

    fn demo() -> MatchedRequest<'static> {
        MatchedRequest { model: "demo", ..MatchedRequest::default() }
    }

    fn reply_text(rules: &Arc<ReplyRules>, text: &str) -> Result<Option<String>, u16> {
        let chosen = rules.reserve_reply(text, 0, &demo());
        let chosen = chosen.map_err(|refusal| refusal.fault.status)?;
        Ok(chosen.map(|chosen| {
            let text = chosen.reply().text.clone();
            chosen.mark_reply_used();
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
        drop(rules.reserve_reply("sunny", 0, &demo()));
        assert_eq!(reply_text(&rules, "sunny"), some("once"));
        assert_eq!(reply_text(&rules, "sunny"), some("again"));
        assert_eq!(reply_text(&rules, "the sun"), Ok(None));
        assert_eq!(rules.reply_rules_with_usage_json()[0]["answered"], 1);
    }

    #[test]
    fn a_rule_fails_the_given_number_of_requests_and_then_replies() {
        let rules = rules("- {say: fine, fail: {times: 2, error: rate_limit, retry_after: 3}}\n");
        let refusal = rules.reserve_reply("x", 0, &demo()).unwrap_err();
        let fault = refusal.fault;
        assert_eq!((fault.status, refusal.injected), (429, Some("rate_limit")));
        assert_eq!(fault.retry_after_seconds, Some(3));
        assert_eq!(reply_text(&rules, "x"), Err(429));
        assert_eq!(reply_text(&rules, "x"), Ok(Some("fine".to_owned())));
    }

    #[test]
    fn tokens_are_emitted_at_the_pace_of_the_rule() {
        let rules = rules("- {say: a, pace: {first_token: 1s, between_tokens: 20ms}}\n");
        let chosen = rules.reserve_reply("", 0, &demo()).unwrap().unwrap();
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
            ("- {say: a, when: {role: robot}}", "'role' must be system, "),
            ("- {say: a, when: {turn: 0}}", "'turn' must be a whole number of at least 1"),
            (
                "- {say: a, when: {tool: [1]}}",
                "'tool' must be the name of a tool or a list of names",
            ),
            ("- {say: a, when: {header: x}}", "'header' must be a mapping of names to values"),
            ("- {say: a, finish: never}", "'finish' must be stop or length, not \"never\""),
            ("- {say: a, usage: {tokens: 1}}", "'usage': unknown key \"tokens\""),
            ("- {fail: {error: 500}, usage: {}}", "'usage' needs say or call"),
            ("- {fail: {error: 500}, pace: {}}", "replies[0]: 'pace' needs say or call"),
        ] {
            let error = ReplyRules::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
