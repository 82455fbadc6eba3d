//! Generates the tokens and texts of a scripted reply.

use super::script::{OutputChannel, OutputEndReason, ReplyTokenSource};
use super::{ReplyGenerator, ScriptBuilder, push_marker_tokens};
use crate::generate::request::ReplyGeneratorInput;
use crate::scripted::{ScriptedFinishReason, ScriptedReply};

impl ReplyGenerator {
    pub(super) fn add_scripted_reply(
        &self,
        reply: &ScriptedReply,
        request: &ReplyGeneratorInput,
        draft: &mut ScriptBuilder,
    ) -> OutputEndReason {
        let room = |draft: &ScriptBuilder| request.limit.saturating_sub(draft.len);
        let mut whole = 0;
        let thought = reply.reasoning.as_deref();
        if let Some(thought) = thought.filter(|_| request.reasoning.is_some()) {
            let (start, end) = (request.prompt.reasoning_start_ids(), &self.reasoning_end);
            push_marker_tokens(start, request, draft);
            whole += self.add_texts(&[(thought, OutputChannel::Reasoning)], room(draft), draft);
            whole += (start.len() + end.len()) as u32;
            push_marker_tokens(end, request, draft);
        }
        let text = [(reply.text.as_str(), OutputChannel::Content)];
        whole += self.add_texts(&text, room(draft), draft);
        whole += self.add_tool_calls(&reply.calls, room(draft), draft);
        let wanted = reply.completion_tokens.unwrap_or(0);
        let lacking = wanted.saturating_sub(draft.len.saturating_add(self.end_tokens(reply)));
        let filled = lacking.min(room(draft));
        draft.push_run(ReplyTokenSource::Silent(0), 0, filled, OutputChannel::Marker);
        whole = whole.saturating_add(lacking);
        let reason = match reply.finish {
            Some(ScriptedFinishReason::Length) => OutputEndReason::Length,
            Some(ScriptedFinishReason::Stop) | None => {
                self.end_reply(whole, request.limit, request, draft)
            }
        };
        if draft.len == 0 {
            draft.push_run(ReplyTokenSource::Silent(0), 0, 1, OutputChannel::Marker);
        }
        draft.times = reply.token_release_times(draft.len);
        reason
    }

    /// Returns the number of end-of-sequence tokens after the content of a scripted reply.
    fn end_tokens(&self, reply: &ScriptedReply) -> u32 {
        match reply.finish {
            Some(ScriptedFinishReason::Length) => 0,
            Some(ScriptedFinishReason::Stop) | None => {
                u32::from(self.tokenizer.eos_token_id().is_some())
            }
        }
    }

    /// Returns the number of tokens of a scripted reply's content, with the end-of-sequence token
    /// and, if replies have any, with reasoning.
    pub fn scripted_token_count(&self, reply: &ScriptedReply) -> u32 {
        let mut draft = ScriptBuilder::default();
        let mut whole = self.end_tokens(reply);
        if let Some(thought) = reply.reasoning.as_ref().filter(|_| self.has_reasoning) {
            // Only clients that parse tokens may get a start marker, as long as the end marker.
            let markers = 1 + u32::from(self.marks_recorded);
            whole += self.add_texts(&[(thought, OutputChannel::Reasoning)], 0, &mut draft);
            whole += markers * self.reasoning_end.len() as u32;
        }
        whole += self.add_texts(&[(reply.text.as_str(), OutputChannel::Content)], 0, &mut draft);
        whole + self.add_tool_calls(&reply.calls, 0, &mut draft)
    }
}
