//! Converts a reply to gRPC messages.
//!
//! A unary call gets one message. A stream gets a message per token, and a final message that
//! repeats the last tokens.
//!
//! Source: `smg_grpc_servicer/vllm/servicer.py` of smg-grpc-servicer 0.14, vLLM's gRPC service.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use tonic::Status;

use super::proto::generate_response::Response;
use super::proto::{GenerateComplete, GenerateResponse, GenerateStreamChunk};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::SequenceState;
use vllm_sim_service::generate::OutputEndReason;
use vllm_sim_service::{FaultInjector, FaultInjectorAction, Reply, ReplyChoice};

/// The stream of gRPC messages of one `Generate` call.
///
/// Of several choices only the first is sent, as in vLLM; the final message waits for all choices.
pub(super) struct GenerateMessageStream {
    reply: Reply,
    /// Whether the client requested a stream, with one gRPC message per output token, instead of
    /// one final message.
    stream: bool,
    closed: bool,
    /// Token ids of the latest gRPC message: all output tokens, or those since the previous
    /// message.
    output: Vec<u32>,
    /// Whether the empty gRPC message that ends an aborted reply has been sent.
    aborted: bool,
    faults: Option<Box<FaultInjector>>,
}

impl GenerateMessageStream {
    pub(super) fn new(
        reply: Reply,
        is_streaming: bool,
        faults: Option<Box<FaultInjector>>,
    ) -> Self {
        Self {
            reply,
            stream: is_streaming,
            closed: false,
            output: Vec::new(),
            aborted: false,
            faults,
        }
    }

    /// Returns the reply's next gRPC message; `None` if the engine has output no new tokens of the
    /// reply.
    ///
    /// Tokens that are released together become separate messages, sent in one write.
    fn next_due_message(&mut self) -> Option<Response> {
        // Reads the states first: an ended sequence has released all its tokens.
        let ended = self
            .reply
            .choices
            .iter()
            .all(|c| matches!(c.sequence_state(), SequenceState::Ended(_)));
        let prompt_tokens = self.reply.prompt_token_count();
        let choice = self.reply.choices.first_mut()?;
        let cached_tokens = choice.sequence_progress().reused_prompt_tokens(prompt_tokens);
        while choice.sent < choice.released_tokens() {
            if let Some(faults) = &mut self.faults {
                if faults.tokens_until_fault() == 0 {
                    return None;
                }
                faults.count_sent_tokens(1);
            }
            choice.sent += 1;
            let Some(token) = choice.script.next_token(&mut choice.cursor) else {
                break;
            };
            if self.stream {
                self.output = vec![token.id];
                return Some(stream_chunk(&self.output, prompt_tokens, cached_tokens));
            }
            self.output.push(token.id);
        }
        let whole = self.faults.as_ref().is_none_or(|faults| faults.tokens_until_fault() > 0);
        if !ended || !whole {
            return None;
        }
        let finish_reason = finish_reason(choice);
        if self.stream && finish_reason == "abort" && !std::mem::replace(&mut self.aborted, true) {
            // vLLM sends an empty chunk for an abort.
            self.output.clear();
            return Some(stream_chunk(&[], prompt_tokens, cached_tokens));
        }
        self.closed = true;
        Some(Response::Complete(GenerateComplete {
            completion_tokens: self.output.len() as u32,
            output_ids: std::mem::take(&mut self.output),
            finish_reason: finish_reason.to_owned(),
            prompt_tokens,
            cached_tokens,
        }))
    }
}

fn stream_chunk(token_ids: &[u32], prompt_tokens: u32, cached_tokens: u32) -> Response {
    Response::Chunk(GenerateStreamChunk {
        token_ids: token_ids.to_vec(),
        prompt_tokens,
        completion_tokens: token_ids.len() as u32,
        cached_tokens,
    })
}

/// Returns vLLM's name for the finish reason of an ended choice.
fn finish_reason(choice: &ReplyChoice) -> &'static str {
    match choice.sequence_state() {
        SequenceState::Ended(SequenceEndReason::Aborted | SequenceEndReason::Cancelled) => "abort",
        SequenceState::Ended(SequenceEndReason::Threshold) => "cache_threshold",
        SequenceState::Ended(SequenceEndReason::Failed) => "error",
        SequenceState::Ended(SequenceEndReason::Finished)
        | SequenceState::Running
        | SequenceState::Waiting => match choice.script.finish.reason {
            OutputEndReason::Length => "length",
            OutputEndReason::Stop => "stop",
        },
    }
}

impl Stream for GenerateMessageStream {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.closed {
            return Poll::Ready(None);
        }
        while let Some(faults) = &mut this.faults {
            match faults.poll_action(cx) {
                Poll::Pending => return Poll::Pending,
                // Protobuf messages are not garbled.
                Poll::Ready(FaultInjectorAction::Garble) => {}
                Poll::Ready(FaultInjectorAction::Proceed) => break,
                Poll::Ready(FaultInjectorAction::Break) => {
                    this.closed = true;
                    let status =
                        Status::unavailable("the response was cut off by an injected fault");
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
        let due = this.next_due_message().or_else(|| {
            for choice in &this.reply.choices {
                choice.register_waker(cx);
            }
            // Checks again for tokens released before the registration.
            this.next_due_message()
        });
        match due {
            Some(response) => Poll::Ready(Some(Ok(GenerateResponse { response: Some(response) }))),
            None => {
                if this.faults.as_ref().is_some_and(|faults| faults.tokens_until_fault() == 0) {
                    // Polls again to apply the fault.
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}
