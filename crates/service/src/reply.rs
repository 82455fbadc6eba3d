use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use crate::InFlightGuard;
use crate::fault_control::LoadFailureReport;
use crate::generate::{Cursor, Script};
use vllm_sim_engine::End;
use vllm_sim_engine::driver::{Handle, SequenceState};

/// A job being played. Dropping it gives up what has not ended.
pub struct Reply {
    /// Choices, prompt-major: prompt p, sample s → p·n + s.
    pub choices: Vec<Choice>,
    /// Tokens of each prompt.
    pub prompts: Vec<u32>,
    /// Bytes that the whole answer takes, about.
    pub size: usize,
    /// Whether a sequence goes on for a while after its last token.
    pub lingers: bool,
    /// Who wants to know its tokens when it has gone.
    pub(crate) usage: Option<Arc<TokenUsage>>,
    /// Who counts that its prompt could not be loaded.
    pub(crate) load_failure: Option<LoadFailureReport>,
    _in_flight: InFlightGuard,
}

/// Tokens of a request, for who asks after its end.
#[derive(Debug, Default)]
pub struct TokenUsage {
    prompt: AtomicU32,
    completion: AtomicU32,
}

impl TokenUsage {
    /// Tokens of the prompts and of all choices; 0 while it goes on, or when it was refused.
    pub fn tokens(&self) -> (u32, u32) {
        let read = |count: &AtomicU32| count.load(Ordering::Relaxed);
        (read(&self.prompt), read(&self.completion))
    }

    fn add(&self, prompt: u32, completion: u32) {
        self.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.completion.fetch_add(completion, Ordering::Relaxed);
    }
}

/// One sequence of a job: what will be said and how far it is.
pub struct Choice {
    /// Which prompt it answers.
    pub prompt: usize,
    /// What will be said.
    pub script: Script,
    /// How far the edge has written it.
    pub cursor: Cursor,
    /// Tokens that the edge has written.
    pub sent: u32,
    handle: Handle,
}

impl Reply {
    pub(super) fn new(
        scripts: Vec<Script>,
        handles: Vec<Handle>,
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
                cursor: Cursor::default(),
                sent: 0,
                handle,
            })
            .collect();
        Self {
            choices,
            prompts,
            size,
            lingers: false,
            usage: None,
            load_failure: None,
            _in_flight: in_flight,
        }
    }

    /// Waits until every choice has ended.
    pub async fn ended(&self) {
        poll_fn(|cx| {
            let open = self
                .choices
                .iter()
                .any(|choice| choice.poll_end(cx).is_pending());
            if open { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Whether some choice ended with an error.
    pub fn failed(&self) -> bool {
        let mut choices = self.choices.iter();
        choices.any(|choice| choice.state() == SequenceState::Ended(End::Failed))
    }

    /// Waits until some choice leaves the queue or ends.
    pub async fn started(&self) {
        poll_fn(|cx| {
            for choice in &self.choices {
                choice.register(cx);
            }
            let waiting = self
                .choices
                .iter()
                .all(|c| c.state() == SequenceState::Waiting);
            if waiting {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    /// Prompt tokens in all; each prompt counts once.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompts.iter().sum()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(usage) = &self.usage {
            let completion = self.choices.iter().map(Choice::released).sum();
            usage.add(self.prompt_tokens(), completion);
        }
        if let Some(report) = &self.load_failure
            && self.choices.iter().any(|c| c.progress().lost_load())
        {
            report.count();
        }
    }
}

impl Choice {
    /// Where the sequence is. Read it before [`Self::released`].
    pub fn state(&self) -> SequenceState {
        self.handle.progress().state()
    }

    /// Tokens released so far.
    pub fn released(&self) -> u32 {
        self.handle.progress().released()
    }

    /// How far it is, in detail.
    pub fn progress(&self) -> &vllm_sim_engine::driver::Progress {
        self.handle.progress()
    }

    /// Wakes the task at the next change; look again afterwards.
    pub fn register(&self, cx: &Context<'_>) {
        self.handle.progress().register(cx.waker());
    }

    fn poll_end(&self, cx: &Context<'_>) -> Poll<()> {
        if matches!(self.state(), SequenceState::Ended(_)) {
            return Poll::Ready(());
        }
        self.register(cx);
        if matches!(self.state(), SequenceState::Ended(_)) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
