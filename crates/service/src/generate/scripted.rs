//! Generates the tokens and texts of a scripted reply.

use super::script::{EndReason, OutputChannel};
use super::{ReplyGenerator, ScriptBuilder, push_marker_tokens};
use crate::generate::request::GeneratorInput;
use crate::scripted::ScriptedReply;

impl ReplyGenerator {
    pub(super) fn add_scripted_reply(
        &self,
        reply: &ScriptedReply,
        request: &GeneratorInput,
        draft: &mut ScriptBuilder,
    ) -> EndReason {
        let room = |draft: &ScriptBuilder| request.limit.saturating_sub(draft.len);
        let mut whole = 0;
        let thought = reply.reasoning.as_deref();
        if let Some(thought) = thought.filter(|_| request.reasoning.is_some()) {
            let (start, end) = (request.reasoning_start, &self.reasoning_end);
            push_marker_tokens(start, request, draft);
            whole += self.add_texts(&[(thought, OutputChannel::Reasoning)], room(draft), draft);
            whole += (start.len() + end.len()) as u32;
            push_marker_tokens(end, request, draft);
        }
        let text = [(reply.text.as_str(), OutputChannel::Content)];
        whole += self.add_texts(&text, room(draft), draft);
        whole += self.add_tool_calls(&reply.calls, room(draft), draft);
        let reason = self.end_reply(whole, request.limit, request, draft);
        draft.times = reply.token_release_times(draft.len);
        reason
    }
}
