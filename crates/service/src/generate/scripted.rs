//! Replies that a script gives word by word.

use super::script::{Channel, Reason, TokenSource};
use super::{Draft, Generator};
use crate::generate::request::GenerateRequest;
use crate::scripted::ScriptedReply;

impl Generator {
    /// A thought where one is shown, the text, the calls; at the pace of the script.
    pub(super) fn scripted(
        &self,
        reply: &ScriptedReply,
        request: &GenerateRequest,
        draft: &mut Draft,
    ) -> Reason {
        let room = |draft: &Draft| request.limit.saturating_sub(draft.len);
        let mut whole = 0;
        let thought = reply.reasoning.as_deref();
        if let Some(thought) = thought.filter(|_| request.reasoning.is_some()) {
            whole += self.pieces(&[(thought, Channel::Reasoning)], request.limit, draft) + 1;
            if room(draft) > 0 {
                let end = self.think_end.unwrap_or_default();
                draft.push(TokenSource::Silent(end), 0, 1, Channel::Marker);
            }
        }
        let text = [(reply.text.as_str(), Channel::Content)];
        whole += self.pieces(&text, room(draft), draft);
        whole += self.calls(&reply.calls, room(draft), draft);
        let reason = self.end(whole, request.limit, request, draft);
        draft.times = reply.times(draft.len);
        reason
    }
}
