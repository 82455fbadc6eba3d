//! Generates the tokens and texts of a scripted reply.

use super::script::{Channel, Reason, TokenSource};
use super::{Generator, ScriptBuilder, push_marks};
use crate::generate::request::GenerateRequest;
use crate::scripted::{ScriptedFinish, ScriptedReply};

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
        let end = match reply.finish {
            Some(ScriptedFinish::Length) => 0,
            Some(ScriptedFinish::Stop) | None => u32::from(self.tokenizer.eos().is_some()),
        };
        let wanted = reply.completion_tokens.unwrap_or(0);
        let lacking = wanted.saturating_sub(draft.len.saturating_add(end));
        let filled = lacking.min(room(draft));
        draft.push(TokenSource::Silent(0), 0, filled, Channel::Marker);
        whole = whole.saturating_add(lacking);
        let reason = match reply.finish {
            Some(ScriptedFinish::Length) => Reason::Length,
            Some(ScriptedFinish::Stop) | None => self.end(whole, request.limit, request, draft),
        };
        if draft.len == 0 {
            draft.push(TokenSource::Silent(0), 0, 1, Channel::Marker);
        }
        draft.times = reply.times(draft.len);
        reason
    }

    /// Returns the number of tokens of a scripted reply's content, with reasoning and the
    /// end-of-sequence token.
    pub fn scripted_tokens(&self, reply: &ScriptedReply) -> u32 {
        let mut draft = ScriptBuilder::default();
        let mut whole = u32::from(self.tokenizer.eos().is_some());
        if let Some(thought) = &reply.reasoning {
            // The start marker of a request's reasoning has one token, as its end has.
            whole += self.pieces(&[(thought, Channel::Reasoning)], 0, &mut draft);
            whole += 2 * self.reasoning_end.len() as u32;
        }
        whole += self.pieces(&[(reply.text.as_str(), Channel::Content)], 0, &mut draft);
        whole + self.calls(&reply.calls, 0, &mut draft)
    }
}
