//! A reply as messages: a chunk per token while it streams, then the whole of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use tonic::Status;

use super::proto::generate_response::Response;
use super::proto::{GenerateComplete, GenerateResponse, GenerateStreamChunk};
use crate::driver::State;
use crate::engine::End;
use crate::generate::Reason;
use crate::service::{Choice, Reply};

/// The messages of one generation. Of several choices the first one is shown, as vLLM does;
/// the end waits for all.
pub(super) struct Answer {
    reply: Reply,
    /// Whether tokens are shown as they come.
    stream: bool,
    closed: bool,
    output: Vec<u32>,
}

impl Answer {
    pub(super) fn new(reply: Reply, stream: bool) -> Self {
        Self {
            reply,
            stream,
            closed: false,
            output: Vec::new(),
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
            .all(|c| matches!(c.state(), State::Ended(_)));
        let prompt_tokens = self.reply.prompt_tokens();
        let choice = self.reply.choices.first_mut()?;
        let cached_tokens = choice.progress().cached();
        while choice.sent < choice.released() {
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
        ended.then(|| {
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
        State::Ended(End::Aborted | End::Cancelled) => "abort",
        State::Ended(End::Threshold) => "cache_threshold",
        State::Ended(End::Finished) | State::Running | State::Waiting => {
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
            None => Poll::Pending,
        }
    }
}
