//! Ids of what a response holds.

use crate::openai::ids::{CallIds, uid};
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
        Self {
            reasoning: format!("rs_{}", uid()),
            message: format!("msg_{}", uid()),
            items: CallIds::fresh().with_prefix("fc_"),
            calls: CallIds::fresh(),
        }
    }

    /// llm-d's: the message has the number of the response, a call and its item share one.
    pub(crate) fn llmd(response: &str) -> Self {
        let number = response.strip_prefix("resp_").unwrap_or(response);
        let items = CallIds::numbered("fc_");
        Self {
            reasoning: format!("rs_{number}"),
            message: format!("msg_{number}"),
            items,
            calls: items.with_prefix("call_"),
        }
    }

    /// The id of the item that a channel belongs to.
    pub(super) fn item(&self, channel: Channel) -> String {
        match channel {
            Channel::Reasoning => self.reasoning.clone(),
            Channel::Call(call) => self.items.of(0, usize::from(call)),
            _ => self.message.clone(),
        }
    }

    /// The id of a call.
    pub(super) fn call(&self, call: u16) -> String {
        self.calls.of(0, usize::from(call))
    }
}
