//! Generates the tokens and texts of a scripted reply.

use super::ReplyGenerator;
use super::script::{OutputChannel, OutputEndReason, ReplyTokenSource};
use super::script_builder::ScriptBuilder;
use crate::scripted::{ScriptedFinishReason, ScriptedReply};

impl ScriptBuilder<'_> {
    pub(super) fn add_scripted_reply(&mut self, reply: &ScriptedReply) -> OutputEndReason {
        let room = |script: &Self| script.limit.saturating_sub(script.len);
        let mut whole = 0;
        let thought = reply.reasoning.as_deref();
        if let Some(thought) = thought.filter(|_| self.job.request.reasoning.is_some()) {
            let (start, end) = (self.prompt.reasoning_start_ids(), &self.generator.reasoning_end);
            self.push_marker_tokens(start);
            whole += self.add_texts(&[(thought, OutputChannel::Reasoning)], room(self));
            whole += (start.len() + end.len()) as u32;
            self.push_marker_tokens(end);
        }
        let text = [(reply.text.as_str(), OutputChannel::Content)];
        whole += self.add_texts(&text, room(self));
        whole += self.add_tool_calls(&reply.calls, room(self));
        let wanted = reply.completion_tokens.unwrap_or(0);
        let lacking =
            wanted.saturating_sub(self.len.saturating_add(self.generator.end_tokens(reply)));
        let filled = lacking.min(room(self));
        self.push_run(ReplyTokenSource::Silent(0), 0, filled, OutputChannel::Marker);
        whole = whole.saturating_add(lacking);
        let reason = match reply.finish {
            Some(ScriptedFinishReason::Length) => OutputEndReason::Length,
            Some(ScriptedFinishReason::Stop) | None => self.end_reply(whole, self.limit),
        };
        if self.len == 0 {
            self.push_silent_token(0);
        }
        self.times = reply.token_release_times(self.len);
        reason
    }
}

impl ReplyGenerator {
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
        let mut tokens = self.end_tokens(reply) + self.count_text_tokens(&reply.text);
        if let Some(thought) = reply.reasoning.as_ref().filter(|_| self.has_reasoning) {
            // Only clients that parse tokens may get a start marker, as long as the end marker.
            let markers = 1 + u32::from(self.marks_recorded);
            tokens += self.count_text_tokens(thought) + markers * self.reasoning_end.len() as u32;
        }
        tokens + reply.calls.iter().map(|call| self.count_tool_call_tokens(call)).sum::<u32>()
    }
}
