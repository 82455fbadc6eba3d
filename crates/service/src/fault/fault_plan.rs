use std::time::Duration;

use super::StreamFault;

/// A fault injected at one token of a streamed reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFaultAction {
    /// Injected fault: pauses the streamed reply for the given time.
    Stall(Duration),
    /// Injected fault: closes the client's connection in the normal way, without a TCP reset.
    Cut,
    /// Injected fault: resets the client's connection (TCP RST).
    Reset,
    /// Injected fault: sends a server-sent event that is not JSON.
    Malformed,
}

/// End of a stream with or without an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamEnding {
    /// The last event of the stream (`[DONE]`) is sent once, without a fault.
    #[default]
    Proper,
    /// The last event of the stream (`[DONE]`) is missing, as an injected fault.
    Missing,
    /// The last event of the stream (`[DONE]`) is sent twice, as an injected fault.
    Duplicate,
}

/// The faults injected into one reply, in token order.
///
/// The writer may send [`Self::tokens_until_fault`] tokens, then [`Self::take_due_fault`] returns the next action.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplyFaultPlan {
    /// Fault actions, each with the number of tokens before it, sorted descending so that the next
    /// action is last.
    actions: Vec<(u32, StreamFaultAction)>,
    sent: u32,
    ending: StreamEnding,
}

impl ReplyFaultPlan {
    /// Creates the plan of the given faults; `None` if none of them affects tokens or the end of
    /// the stream.
    pub fn new(stream_faults: &[StreamFault]) -> Option<Self> {
        let mut plan = Self::default();
        for stream_fault in stream_faults {
            match *stream_fault {
                StreamFault::Stall { after, time } => {
                    plan.actions.push((after, StreamFaultAction::Stall(time)));
                }
                StreamFault::CutAfter(after) => plan.actions.push((after, StreamFaultAction::Cut)),
                StreamFault::ResetAfter(after) => {
                    plan.actions.push((after, StreamFaultAction::Reset))
                }
                StreamFault::MalformedAfter(after) => {
                    plan.actions.push((after, StreamFaultAction::Malformed))
                }
                StreamFault::DuplicateDone => plan.ending = StreamEnding::Duplicate,
                StreamFault::MissingDone => plan.ending = StreamEnding::Missing,
                StreamFault::SlowFirstByte(_)
                | StreamFault::WrongContentLength(_)
                | StreamFault::KvLoadFailure(_) => {}
            }
        }
        // A stable sort keeps the given order of faults at the same token.
        plan.actions.sort_by_key(|(after, _)| *after);
        plan.actions.reverse();
        (plan != Self::default()).then_some(plan)
    }

    /// Returns how the stream ends, with or without a fault.
    pub fn stream_ending(&self) -> StreamEnding {
        self.ending
    }

    /// Returns the number of tokens that may be sent before the next fault; `u32::MAX` without one.
    pub fn tokens_until_fault(&self) -> u32 {
        match self.actions.last() {
            Some((after, _)) => after.saturating_sub(self.sent),
            None => u32::MAX,
        }
    }

    /// Records that the writer of the reply sent `tokens` more tokens.
    pub fn count_sent_tokens(&mut self, tokens: u32) {
        self.sent = self.sent.saturating_add(tokens);
    }

    /// Returns whether the plan contains a malformed event.
    pub fn has_malformed_event(&self) -> bool {
        let mut actions = self.actions.iter();
        actions.any(|(_, action)| *action == StreamFaultAction::Malformed)
    }

    /// Removes and returns the fault at the current token, if there is one.
    pub fn take_due_fault(&mut self) -> Option<StreamFaultAction> {
        if self.tokens_until_fault() > 0 {
            return None;
        }
        self.actions.pop().map(|(_, action)| action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_actions_occur_at_their_tokens_in_order() {
        let time = Duration::from_secs(1);
        let stream_faults = [
            StreamFault::CutAfter(5),
            StreamFault::MalformedAfter(2),
            StreamFault::Stall { after: 2, time },
        ];
        let mut plan = ReplyFaultPlan::new(&stream_faults).unwrap();
        let mut seen = Vec::new();
        for _ in 0..10 {
            while let Some(action) = plan.take_due_fault() {
                seen.push((plan.sent, action));
            }
            if plan.tokens_until_fault() > 0 {
                plan.count_sent_tokens(1);
            }
        }
        assert_eq!(
            seen,
            [
                (2, StreamFaultAction::Malformed),
                (2, StreamFaultAction::Stall(time)),
                (5, StreamFaultAction::Cut)
            ]
        );
        assert_eq!(plan.tokens_until_fault(), u32::MAX);
    }

    #[test]
    fn faults_outside_the_tokens_make_no_plan() {
        let stream_faults =
            [StreamFault::SlowFirstByte(Duration::ZERO), StreamFault::WrongContentLength(3)];
        assert_eq!(ReplyFaultPlan::new(&stream_faults), None);
        let ending =
            ReplyFaultPlan::new(&[StreamFault::MissingDone]).map(|plan| plan.stream_ending());
        assert_eq!(ending, Some(StreamEnding::Missing));
    }
}
