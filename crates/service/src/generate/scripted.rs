//! Generates the tokens and texts of a scripted reply.

use super::script::{Channel, Reason};
use super::{Generator, ScriptBuilder, push_marks};
use crate::generate::request::GenerateRequest;
use crate::scripted::ScriptedReply;

impl Generator {
    pub(super) fn scripted(
        &self,
        reply: &ScriptedReply,
        request: &GenerateRequest,
        draft: &mut ScriptBuilder,
    ) -> Reason {
        let room = |draft: &ScriptBuilder| request.limit.saturating_sub(draft.len);
        let mut whole = 0;
        let thought = reply.reasoning.as_deref();
        if let Some(thought) = thought.filter(|_| request.reasoning.is_some()) {
            let (start, end) = (request.reasoning_start, &self.reasoning_end);
            push_marks(start, request, draft);
            whole += self.pieces(&[(thought, Channel::Reasoning)], room(draft), draft);
            whole += (start.len() + end.len()) as u32;
            push_marks(end, request, draft);
        }
        let text = [(reply.text.as_str(), Channel::Content)];
        whole += self.pieces(&text, room(draft), draft);
        whole += self.calls(&reply.calls, room(draft), draft);
        let reason = self.end(whole, request.limit, request, draft);
        draft.times = reply.times(draft.len);
        reason
    }
}
