use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;

use crate::fault_control::KvLoadFailureReport;
use crate::generate::{ReplyScript, ScriptCursor};
use crate::{InFlightGuard, LargeBodyReservation, LoadGuard, PrefillHandoff};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::{SequenceHandle, SequenceState};

/// A running generation job. Dropping it aborts the sequences that have not ended.
pub struct Reply {
    /// Choices of the job, grouped by prompt: choice s of prompt p has index p·n + s.
    pub choices: Vec<ReplyChoice>,
    /// Number of tokens of each prompt of the job.
    pub prompts: Vec<u32>,
    /// Estimated size of the whole response, in bytes.
    pub size: usize,
    /// Whether sequences stay open for some time after their last token.
    pub has_end_delay: bool,
    pub(crate) usage: Option<Arc<TokenUsage>>,
    pub(crate) load_failure: Option<KvLoadFailureReport>,
    pub(crate) memory_reservation: Option<LargeBodyReservation>,
    /// Guard of the request, which counts in the server's load until the reply is dropped.
    pub load: Option<LoadGuard>,
    /// Hand-off of the prompt to a decode server, which ends with the reply.
    handoff: Option<Arc<PrefillHandoff>>,
    _in_flight: InFlightGuard,
}

/// The token counts of a request, updated when its reply is dropped.
#[derive(Debug, Default)]
pub struct TokenUsage(Mutex<UsageCounts>);

/// Token counts of a request: prompt, cached and output tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageCounts {
    /// Prompt tokens; each prompt counts once, not once per choice.
    pub prompt: u32,
    /// Number of cached prompt tokens; part of `prompt`.
    pub cached: u32,
    /// Number of output tokens from the engine until the end of the request.
    pub generated: u32,
    /// Number of output tokens in the written response; part of `generated`.
    pub delivered: u32,
}

impl TokenUsage {
    /// Returns the token counts; all are 0 until the reply is dropped.
    pub fn token_counts(&self) -> UsageCounts {
        *self.0.lock()
    }

    fn add_counts(&self, more: UsageCounts) {
        let mut counts = self.0.lock();
        *counts = UsageCounts {
            prompt: counts.prompt.saturating_add(more.prompt),
            cached: counts.cached.saturating_add(more.cached),
            generated: counts.generated.saturating_add(more.generated),
            delivered: counts.delivered.saturating_add(more.delivered),
        };
    }
}

/// One sequence of a generation job: its content and its progress in the engine.
pub struct ReplyChoice {
    /// Index of the prompt that the sequence answers.
    pub prompt: usize,
    /// Generated content, complete before the first token is released.
    pub script: ReplyScript,
    /// Token position up to which the front end has written the reply.
    pub cursor: ScriptCursor,
    /// Number of output tokens that the front end has written.
    pub sent: u32,
    /// Whether another server decodes the prompt of the sequence.
    pub handed_over: bool,
    handle: SequenceHandle,
}

impl Reply {
    pub(super) fn new(
        scripts: Vec<ReplyScript>,
        handles: Vec<SequenceHandle>,
        prompts: Vec<u32>,
        n: u32,
        size: usize,
        in_flight: InFlightGuard,
    ) -> Self {
        let choices: Vec<_> = scripts
            .into_iter()
            .zip(handles)
            .enumerate()
            .map(|(index, (script, handle))| ReplyChoice {
                prompt: index / n.max(1) as usize,
                script,
                cursor: ScriptCursor::default(),
                sent: 0,
                handed_over: false,
                handle,
            })
            .collect();
        Self {
            choices,
            prompts,
            size,
            has_end_delay: false,
            usage: None,
            load_failure: None,
            memory_reservation: None,
            load: None,
            handoff: None,
            _in_flight: in_flight,
        }
    }

    /// Sets the hand-off of the prompt to a decode server, which ends with the reply.
    pub(super) fn set_handoff(&mut self, handoff: Option<Arc<PrefillHandoff>>) {
        self.choices.iter_mut().for_each(|choice| choice.handed_over = handoff.is_some());
        self.handoff = handoff;
    }

    /// Records that the front end writes all released tokens, in a response that is no stream.
    pub fn mark_delivered(&mut self) {
        for choice in &mut self.choices {
            choice.sent = choice.released_tokens();
        }
    }

    fn usage_counts(&self) -> UsageCounts {
        let cached = self.prompts.iter().zip(0..).map(|(prompt, index)| {
            // The first choice of a prompt finds what was cached before the request.
            let first = self.choices.iter().find(|choice| choice.prompt == index);
            first.map_or(0, |choice| choice.sequence_progress().reused_tokens(*prompt).min(*prompt))
        });
        UsageCounts {
            prompt: self.prompt_token_count(),
            cached: saturating_sum(cached),
            generated: saturating_sum(self.choices.iter().map(ReplyChoice::released_tokens)),
            delivered: saturating_sum(self.choices.iter().map(|choice| choice.sent)),
        }
    }

    /// Waits until every choice of the job has ended.
    pub async fn wait_until_ended(&self) {
        poll_fn(|cx| {
            let open = self.choices.iter().any(|choice| choice.poll_end(cx).is_pending());
            if open { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Returns whether any choice of the job ended with an error.
    pub fn has_failed_choice(&self) -> bool {
        let mut choices = self.choices.iter();
        choices.any(|choice| {
            choice.sequence_state() == SequenceState::Ended(SequenceEndReason::Failed)
        })
    }

    /// Returns the number of prompt tokens of the job; each prompt counts once, not once per
    /// choice.
    pub fn prompt_token_count(&self) -> u32 {
        saturating_sum(self.prompts.iter().copied())
    }
}

/// Adds numbers of tokens, which scripted replies may set to any values.
fn saturating_sum(tokens: impl Iterator<Item = u32>) -> u32 {
    tokens.fold(0, u32::saturating_add)
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(usage) = &self.usage {
            usage.add_counts(self.usage_counts());
        }
        if let Some(report) = &self.load_failure
            && self.choices.iter().any(|c| c.sequence_progress().has_failed_kv_load())
        {
            report.report_failure();
        }
    }
}

impl ReplyChoice {
    /// Returns the state of the sequence in the engine. Read it before [`Self::released_tokens`].
    pub fn sequence_state(&self) -> SequenceState {
        self.handle.progress().state()
    }

    /// Returns the number of output tokens that the engine has released so far.
    pub fn released_tokens(&self) -> u32 {
        self.handle.progress().released_tokens()
    }

    /// Returns the progress of the sequence in the engine.
    pub fn sequence_progress(&self) -> &vllm_sim_engine::driver::SharedProgress {
        self.handle.progress()
    }

    /// Registers the task to be woken at the next change of the sequence; check the state again
    /// afterwards.
    pub fn register_waker(&self, cx: &Context<'_>) {
        self.handle.progress().register_waker(cx.waker());
    }

    fn poll_end(&self, cx: &Context<'_>) -> Poll<()> {
        if matches!(self.sequence_state(), SequenceState::Ended(_)) {
            return Poll::Ready(());
        }
        self.register_waker(cx);
        if matches!(self.sequence_state(), SequenceState::Ended(_)) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
