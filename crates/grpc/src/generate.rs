//! A reply as messages: a chunk per token while it streams, then the whole of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use tonic::Status;

use super::proto::generate_response::Response;
use super::proto::{GenerateComplete, GenerateResponse, GenerateStreamChunk};
use vllm_sim_engine::End;
use vllm_sim_engine::driver::SequenceState;
use vllm_sim_service::generate::Reason;
use vllm_sim_service::{Choice, FaultInjector, InjectorAction, Reply};

/// The messages of one generation. Of several choices the first one is shown, as vLLM does;
/// the end waits for all.
pub(super) struct Answer {
    reply: Reply,
    /// Whether tokens are shown as they come.
    stream: bool,
    closed: bool,
    output: Vec<u32>,
    /// What goes wrong with it, when something does.
    faults: Option<Box<FaultInjector>>,
}

impl Answer {
    pub(super) fn new(reply: Reply, stream: bool, faults: Option<Box<FaultInjector>>) -> Self {
        Self {
            reply,
            stream,
            closed: false,
            output: Vec::new(),
            faults,
        }
    }

    /// The next message that is due. Tokens that are due together are separate messages, which
    /// leave in one write.
    fn due(&mut self) -> Option<Response> {
        // The states first: an ended sequence has released all it ever will.
        let ended = self
            .reply
            .choices
            .iter()
            .all(|c| matches!(c.state(), SequenceState::Ended(_)));
        let prompt_tokens = self.reply.prompt_tokens();
        let choice = self.reply.choices.first_mut()?;
        let cached_tokens = choice.progress().cached();
        while choice.sent < choice.released() {
            if let Some(faults) = &mut self.faults {
                if faults.room() == 0 {
                    return None;
                }
                faults.sent(1);
            }
            choice.sent += 1;
            let Some(token) = choice.script.next(&mut choice.cursor) else {
                break;
            };
            self.output.push(token.id);
            if self.stream {
                return Some(Response::Chunk(GenerateStreamChunk {
                    token_ids: vec![token.id],
                    prompt_tokens,
                    completion_tokens: 1,
                    cached_tokens,
                }));
            }
        }
        let whole = self.faults.as_ref().is_none_or(|faults| faults.room() > 0);
        (ended && whole).then(|| {
            self.closed = true;
            Response::Complete(GenerateComplete {
                completion_tokens: self.output.len() as u32,
                output_ids: std::mem::take(&mut self.output),
                finish_reason: finish_reason(choice).to_owned(),
                prompt_tokens,
                cached_tokens,
            })
        })
    }
}

/// vLLM's word for the end of a choice that has ended.
fn finish_reason(choice: &Choice) -> &'static str {
    match choice.state() {
        SequenceState::Ended(End::Aborted | End::Cancelled) => "abort",
        SequenceState::Ended(End::Threshold) => "cache_threshold",
        SequenceState::Ended(End::Finished) | SequenceState::Running | SequenceState::Waiting => {
            match choice.script.finish.reason {
                Reason::Length => "length",
                Reason::Stop => "stop",
            }
        }
    }
}

impl Stream for Answer {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.closed {
            return Poll::Ready(None);
        }
        while let Some(faults) = &mut this.faults {
            match faults.poll(cx) {
                Poll::Pending => return Poll::Pending,
                // A message of protobuf cannot be garbled here: it is left as it is.
                Poll::Ready(InjectorAction::Garble) => {}
                Poll::Ready(InjectorAction::Proceed) => break,
                Poll::Ready(InjectorAction::Break) => {
                    this.closed = true;
                    let status = Status::unavailable("the answer was broken off on purpose");
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
        let due = this.due().or_else(|| {
            for choice in &this.reply.choices {
                choice.register(cx);
            }
            // What came between the look and the registration.
            this.due()
        });
        match due {
            Some(response) => Poll::Ready(Some(Ok(GenerateResponse {
                response: Some(response),
            }))),
            None => {
                if this
                    .faults
                    .as_ref()
                    .is_some_and(|faults| faults.room() == 0)
                {
                    // The next look finds what goes wrong.
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}
