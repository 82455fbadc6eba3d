//! Ids of what a response holds.

use std::sync::Arc;

use crate::openai::ids::{CallIds, call_ids, numbered, uid};
use vllm_sim_service::generate::Channel;

/// Ids of the output items, the same in every event.
pub(crate) struct Ids {
    pub(super) reasoning: String,
    pub(super) message: String,
    items: CallIds,
    calls: CallIds,
}

impl Ids {
    /// Fresh ones.
    pub(crate) fn new() -> Self {
        let (call_base, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self {
            reasoning: format!("rs_{}", uid()),
            message: format!("msg_{}", uid()),
            items: Arc::new(move |_, call| {
                let id = vllm_sim_random::mix(call_base, call as u64);
                format!("fc_{id:016x}")
            }),
            calls: call_ids(),
        }
    }

    /// llm-d's: the message has the number of the response, a call and its item share one.
    pub(crate) fn llmd(response: &str) -> Self {
        let number = response.strip_prefix("resp_").unwrap_or(response);
        let digits = numbered("");
        let items = digits.clone();
        Self {
            reasoning: format!("rs_{number}"),
            message: format!("msg_{number}"),
            items: Arc::new(move |choice, call| format!("fc_{}", items(choice, call))),
            calls: Arc::new(move |choice, call| format!("call_{}", digits(choice, call))),
        }
    }

    /// The id of the item that a channel belongs to.
    pub(super) fn item(&self, channel: Channel) -> String {
        match channel {
            Channel::Reasoning => self.reasoning.clone(),
            Channel::Call(call) => (self.items)(0, usize::from(call)),
            _ => self.message.clone(),
        }
    }

    /// The id of a call.
    pub(super) fn call(&self, call: u16) -> String {
        (self.calls)(0, usize::from(call))
    }
}
