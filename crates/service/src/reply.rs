use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use crate::fault_control::KvLoadFailureReport;
use crate::generate::{ReplyScript, ScriptCursor};
use crate::{InFlightGuard, MessageReservation};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::{SequenceHandle, SequenceState};

/// A running generation job. Dropping it aborts the sequences that have not ended.
pub struct Reply {
    /// Choices of the job, grouped by prompt: choice s of prompt p has index p·n + s.
    pub choices: Vec<Choice>,
    /// Number of tokens of each prompt of the job.
    pub prompts: Vec<u32>,
    /// Estimated size of the whole response, in bytes.
    pub size: usize,
    /// Whether sequences stay open for some time after their last token.
    pub has_end_delay: bool,
    pub(crate) usage: Option<Arc<TokenUsage>>,
    pub(crate) load_failure: Option<KvLoadFailureReport>,
    pub(crate) memory_reservation: Option<MessageReservation>,
    _in_flight: InFlightGuard,
}

/// The token counts of a request, updated when its reply is dropped.
#[derive(Debug, Default)]
pub struct TokenUsage {
    prompt: AtomicU32,
    completion: AtomicU32,
}

impl TokenUsage {
    /// Returns the numbers of prompt tokens and output tokens; both are 0 until the reply is
    /// dropped.
    pub fn prompt_and_output_tokens(&self) -> (u32, u32) {
        let read = |count: &AtomicU32| count.load(Ordering::Relaxed);
        (read(&self.prompt), read(&self.completion))
    }

    fn add_tokens(&self, prompt: u32, completion: u32) {
        for (count, tokens) in [(&self.prompt, prompt), (&self.completion, completion)] {
            let add = |count: u32| Some(count.saturating_add(tokens));
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }
}

/// One sequence of a generation job: its content and its progress in the engine.
pub struct Choice {
    /// Index of the prompt that the sequence answers.
    pub prompt: usize,
    /// Generated content, complete before the first token is released.
    pub script: ReplyScript,
    /// Token position up to which the front end has written the reply.
    pub cursor: ScriptCursor,
    /// Number of output tokens that the front end has written.
    pub sent: u32,
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
            .map(|(index, (script, handle))| Choice {
                prompt: index / n.max(1) as usize,
                script,
                cursor: ScriptCursor::default(),
                sent: 0,
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
            _in_flight: in_flight,
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

    /// Waits until any choice of the job leaves the waiting queue or ends.
    pub async fn wait_until_started(&self) {
        poll_fn(|cx| {
            for choice in &self.choices {
                choice.register_waker(cx);
            }
            let waiting = self.choices.iter().all(|c| c.sequence_state() == SequenceState::Waiting);
            if waiting { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Returns the number of prompt tokens of the job; each prompt counts once, not once per
    /// choice.
    pub fn prompt_tokens(&self) -> u32 {
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
            let completion = saturating_sum(self.choices.iter().map(Choice::released_tokens));
            usage.add_tokens(self.prompt_tokens(), completion);
        }
        if let Some(report) = &self.load_failure
            && self.choices.iter().any(|c| c.progress().has_lost_kv_load())
        {
            report.report_failure();
        }
    }
}

impl Choice {
    /// Returns the state of the sequence in the engine. Read it before [`Self::released_tokens`].
    pub fn sequence_state(&self) -> SequenceState {
        self.handle.progress().state()
    }

    /// Returns the number of output tokens that the engine has released so far.
    pub fn released_tokens(&self) -> u32 {
        self.handle.progress().released_tokens()
    }

    /// Returns the progress of the sequence in the engine.
    pub fn progress(&self) -> &vllm_sim_engine::driver::SharedProgress {
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
