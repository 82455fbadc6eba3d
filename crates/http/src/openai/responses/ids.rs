//! Ids of the output items of a Responses API response.

use crate::request_head::{ToolCallIds, new_random_hex_id};
use vllm_sim_service::generate::OutputChannel;

/// Ids of the output items of a Responses API response, the same in all events of the response.
pub(crate) struct OutputItemIds {
    pub(super) reasoning: String,
    pub(super) message: String,
    items: ToolCallIds,
    calls: ToolCallIds,
}

impl OutputItemIds {
    pub(crate) fn with_random_hex_ids() -> Self {
        Self {
            reasoning: format!("rs_{}", new_random_hex_id()),
            message: format!("msg_{}", new_random_hex_id()),
            items: ToolCallIds::with_random_hex_ids().with_id_prefix("fc_"),
            calls: ToolCallIds::with_random_hex_ids(),
        }
    }

    /// Creates output item ids in llm-d's form. The message item has the number of the response; a
    /// tool call and its item have the same number.
    pub(crate) fn with_decimal_ids(response: &str) -> Self {
        let number = response.strip_prefix("resp_").unwrap_or(response);
        let items = ToolCallIds::with_decimal_ids("fc_");
        Self {
            reasoning: format!("rs_{number}"),
            message: format!("msg_{number}"),
            items,
            calls: items.with_id_prefix("call_"),
        }
    }

    /// Returns the id of the output item for a channel: reasoning, message or tool call.
    pub(super) fn output_item_id(&self, channel: OutputChannel) -> String {
        match channel {
            OutputChannel::Reasoning => self.reasoning.clone(),
            OutputChannel::Call(call) => self.items.tool_call_id(0, usize::from(call)),
            _ => self.message.clone(),
        }
    }

    pub(super) fn tool_call_id(&self, call: u16) -> String {
        self.calls.tool_call_id(0, usize::from(call))
    }
}
