//! Ids of the output items of a Responses API response.

use crate::openai::ids::{CallIds, uid};
use vllm_sim_service::generate::Channel;

/// Ids of the output items of a Responses API response, equal in all its events.
pub(crate) struct Ids {
    pub(super) reasoning: String,
    pub(super) message: String,
    items: CallIds,
    calls: CallIds,
}

impl Ids {
    pub(crate) fn new() -> Self {
        Self {
            reasoning: format!("rs_{}", uid()),
            message: format!("msg_{}", uid()),
            items: CallIds::fresh().with_prefix("fc_"),
            calls: CallIds::fresh(),
        }
    }

    /// Creates item ids in llm-d's form: the message has the number of the response, and a tool
    /// call has one number with its item.
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

    /// Returns the id of the output item for a channel: reasoning, message or tool call.
    pub(super) fn item(&self, channel: Channel) -> String {
        match channel {
            Channel::Reasoning => self.reasoning.clone(),
            Channel::Call(call) => self.items.of(0, usize::from(call)),
            _ => self.message.clone(),
        }
    }

    pub(super) fn call(&self, call: u16) -> String {
        self.calls.of(0, usize::from(call))
    }
}
