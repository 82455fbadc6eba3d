//! Streams a reply as server-sent events.
//!
//! The first frames of a stream carry one event each, as in vLLM. Later frames carry all events
//! since the last one: one event per token in steady state, many if the client or the server is
//! behind. A slow client buffers only the frame that it has not read.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::{Body as HttpBody, Frame};
use tokio::time::{Instant, Sleep};

use super::app::App;
use super::body::RawRequest;
use super::error;
use super::fault::{self, InjectedBodyError};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::SequenceState;
use vllm_sim_service::fault::StreamEnding;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{FaultInjector, FaultInjectorAction, Reply, ReplyChoice};
use vllm_sim_wire::fault::Fault;

/// Result of polling the body of a stream.
type PolledFrame = Poll<Option<Result<Frame<Bytes>, InjectedBodyError>>>;

/// Approximate maximum size of one body frame of a stream, in bytes.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// Approximate size of one event of a stream, in bytes, to reserve capacity for a frame.
const TYPICAL_EVENT_BYTES: usize = 320;

/// Maximum time for which a stream's response headers wait for the first token.
///
/// vLLM's front end takes about as long before it answers. A head that is sent within microseconds
/// of the request makes proxies fail that still hold the request open: Caddy 2.6 cuts every tenth
/// stream.
const HEAD_WAIT: Duration = Duration::from_millis(1);

/// Number of events at the start of a stream that are sent in separate frames.
///
/// Short replies then look like vLLM's, which sends one HTTP chunk per event. Ten events per frame
/// take about a third of the CPU time, so later frames combine them.
const SINGLE_EVENT_FRAMES: u32 = 24;

/// Calls `write` for the next `tokens` tokens of a choice, once per run of consecutive tokens of
/// one channel, with the run's text.
pub(super) fn for_each_output_channel_text(
    choice: &mut ReplyChoice,
    tokens: u32,
    mut write: impl FnMut(OutputChannel, &str, &ReplyChoice),
) {
    let mut run: Option<(OutputChannel, String)> = None;
    for _ in 0..tokens {
        let Some(token) = choice.script.next_token(&mut choice.cursor) else {
            break;
        };
        match &mut run {
            Some((channel, text)) if *channel == token.channel => text.push_str(token.text),
            _ => {
                let next = (token.channel, token.text.to_owned());
                if let Some((channel, text)) = run.replace(next) {
                    write(channel, &text, choice);
                }
            }
        }
    }
    if let Some((channel, text)) = run {
        write(channel, &text, choice);
    }
}

/// Renders the stream events of one API.
pub(super) trait StreamRenderer: Send + 'static {
    /// Appends the events at the start of the stream of a reply, before any token is available.
    fn write_opening(&mut self, _out: &mut String) {}
    /// Appends the stream events that precede the first token of any choice, in a separate frame.
    fn write_before_tokens(&mut self, _out: &mut String) {}
    /// Appends the events for the next `tokens` tokens of a choice, and for its end if
    /// [`ReplyChoice::sent_end`] is set; advances the choice's read position by exactly `tokens`.
    ///
    /// [`ReplyChoice::sent`] includes these tokens. Their number is 0 only if the choice ended early.
    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32);
    /// Appends the stream events of up to `most` tokens of a reply's only choice, one event per
    /// token, until `bytes` bytes are appended.
    ///
    /// The tokens are neither the first nor the last ones. Returns the number of tokens that the
    /// cursor was advanced by; 0 makes the caller use [`StreamRenderer::write_step`].
    fn write_single_tokens(
        &mut self,
        _out: &mut String,
        _choice: &mut ReplyChoice,
        _most: u32,
        _bytes: usize,
    ) -> u32 {
        0
    }
    /// Appends the stream events that follow the end of all choices, such as usage and `[DONE]`.
    fn write_closing(&mut self, out: &mut String, reply: &Reply);
    /// Appends the events that report a failed choice; returns false if the connection breaks off
    /// afterwards.
    fn write_failure(&mut self, out: &mut String) -> bool {
        let fault = error::engine_failure_fault();
        out.push_str(&error::stream_error_events(&fault.to_json_with_spaces()));
        true
    }
    /// Returns the keep-alive comment, sent while no token is available.
    fn keep_alive_comment(&self) -> &'static str {
        ": keep-alive\n\n"
    }
    /// Returns an event that breaks off inside its JSON, as an injected fault.
    fn garbled_event(&self) -> &'static str {
        "data: {\"id\":\"garbled\",\"object\":\n\n"
    }
}

/// Moment of a stream at which a simulated disconnect closes its connection.
#[derive(Clone, Copy)]
enum DisconnectPoint {
    /// The stream's connection breaks off once the data written so far has been sent.
    Soon,
    /// The stream's connection breaks off immediately.
    Now,
}

/// The body of a reply that is streamed as server-sent events.
pub(super) struct EventStream<R> {
    reply: Reply,
    render: R,
    interval: u32,
    open_choices: usize,
    frames: u32,
    opened: bool,
    begun: bool,
    /// Index of the choice whose tokens the stream writes next, if there are several choices.
    turn: usize,
    closed: bool,
    /// Simulated disconnect after the last frame; `None` if the stream ends properly.
    breaks: Option<DisconnectPoint>,
    keep_alive: Option<(Duration, Pin<Box<Sleep>>)>,
    /// Faults to inject into the stream; `None` without faults.
    faults: Option<Box<FaultInjector>>,
}

impl<R: StreamRenderer> EventStream<R> {
    /// Creates a stream of `reply` with at least `interval` tokens per event, except for the first
    /// and last event of a choice.
    pub(super) fn new(
        reply: Reply,
        render: R,
        interval: u32,
        faults: Option<Box<FaultInjector>>,
        keep_alive: Option<Duration>,
    ) -> Self {
        let choices = reply.choices.len();
        Self {
            reply,
            render,
            interval: interval.max(1),
            open_choices: choices,
            frames: 0,
            opened: false,
            begun: false,
            turn: 0,
            closed: false,
            breaks: None,
            keep_alive: keep_alive.map(|every| (every, Box::pin(tokio::time::sleep(every)))),
            faults,
        }
    }

    /// Waits until the first token of any choice is available or the reply has ended, but at most
    /// for [`HEAD_WAIT`].
    pub(super) async fn wait_for_first_token(&mut self) {
        let first = std::future::poll_fn(move |cx| {
            // Registers first, so that later releases wake this task.
            self.register_waker(cx);
            if self.has_begun() { Poll::Ready(()) } else { Poll::Pending }
        });
        // Without a token the head is sent alone, as in vLLM.
        let _ = tokio::time::timeout(HEAD_WAIT, first).await;
    }

    fn has_begun(&self) -> bool {
        self.reply.choices.iter().any(|choice| {
            let ended = matches!(choice.sequence_state(), SequenceState::Ended(_));
            ended || choice.released_tokens() > 0 || choice.script.len() == 0
        })
    }

    /// Appends the stream events that precede the first token, once there is a token or the reply
    /// has ended.
    fn write_beginning(&mut self, out: &mut String) {
        if self.has_begun() {
            self.begun = true;
            out.reserve(TYPICAL_EVENT_BYTES);
            self.render.write_before_tokens(out);
        }
    }

    /// Appends the next event of the stream, or all available events up to the size of a frame.
    fn write_frame(&mut self, out: &mut String) {
        if self.closed {
            return;
        }
        if !self.begun {
            self.write_beginning(out);
            if !self.begun || !out.is_empty() {
                return;
            }
        }
        if self.frames < SINGLE_EVENT_FRAMES {
            // A step may append nothing; then the next one is tried.
            while out.is_empty() && self.write_next_step(out) {}
            if !out.is_empty() {
                return;
            }
        } else {
            self.write_in_turns(out);
        }
        if self.open_choices == 0
            && !self.closed
            && out.len() < MAX_FRAME_BYTES
            && self.tokens_until_fault() > 0
        {
            self.closed = true;
            let start = out.len();
            self.render.write_closing(out, &self.reply);
            if let Some(faults) = &self.faults {
                apply_end_fault(out, start, faults.record_stream_ending());
            }
        }
    }

    /// Appends the stream events of one step of the choice with the fewest sent tokens; returns
    /// false if no choice has tokens to send.
    fn write_next_step(&mut self, out: &mut String) -> bool {
        if self.reply.choices.len() == 1 {
            return self.open_choices > 0 && self.write_choice(0, 1, out);
        }
        let open = self.reply.choices.iter().filter(|choice| choice.sent_end.is_none());
        let mut order: Vec<(u32, usize)> = open.map(|choice| (choice.sent, choice.index)).collect();
        order.sort_unstable();
        order.into_iter().any(|(_, index)| self.write_choice(index, 1, out))
    }

    /// Appends the stream events of all available tokens, up to the size of a frame. Several
    /// choices alternate, because each engine step adds a token to each choice.
    fn write_in_turns(&mut self, out: &mut String) {
        let choices = self.reply.choices.len();
        let max_steps = if choices == 1 { usize::MAX } else { 1 };
        loop {
            let mut stepped = false;
            for _ in 0..choices {
                if out.len() >= MAX_FRAME_BYTES {
                    return;
                }
                let index = self.turn;
                self.turn = (index + 1) % choices;
                if self.reply.choices[index].sent_end.is_none() {
                    stepped |= self.write_choice(index, max_steps, out);
                }
            }
            if !stepped || max_steps > 1 {
                break;
            }
        }
    }

    /// Returns the number of tokens that may be sent before the next injected fault.
    fn tokens_until_fault(&self) -> u32 {
        self.faults.as_ref().map_or(u32::MAX, |faults| faults.tokens_until_fault())
    }

    /// Appends the events of at most `max_steps` steps of a choice to `out`; returns false if the
    /// choice has no tokens to send.
    fn write_choice(&mut self, index: usize, max_steps: usize, out: &mut String) -> bool {
        // Another choice has failed, which ended the stream.
        if self.closed {
            return false;
        }
        let choice = &mut self.reply.choices[index];
        // Reads the state first: an ended sequence releases no more tokens.
        let state = choice.sequence_state();
        let released = choice.released_tokens();
        let total = choice.script.len();
        let mut steps = 0;
        while out.len() < MAX_FRAME_BYTES && steps < max_steps {
            if max_steps == usize::MAX && self.interval == 1 && self.faults.is_none() {
                let written = write_plain_tokens(&mut self.render, out, choice, released);
                if written > 0 {
                    steps += written;
                    continue;
                }
            }
            let due = released - choice.sent;
            let ended = match state {
                SequenceState::Ended(end) => Some(end),
                // The last token is released, so the end is certain.
                _ if released == total && !self.reply.has_end_delay => {
                    Some(SequenceEndReason::Finished)
                }
                _ if due == 0 => break,
                _ => None,
            };
            let first = choice.sent == 0;
            let least = if first { 1 } else { self.interval };
            let group =
                choice.sequence_progress().output_chunk_end(choice.sent, least) - choice.sent;
            let mut tokens = if due >= group || ended.is_some() { due.min(group) } else { 0 };
            if let Some(faults) = &mut self.faults {
                let room = faults.tokens_until_fault();
                if room == 0 {
                    break;
                }
                tokens = tokens.min(room);
                faults.count_sent_tokens(tokens);
            }
            let last = ended.filter(|end| tokens == due && *end != SequenceEndReason::Failed);
            if tokens == 0 && last.is_none() {
                break;
            }
            if out.is_empty() {
                let events = (due / group.max(1)) as usize;
                // The last event begins within the bound.
                let most = max_steps.min(MAX_FRAME_BYTES / TYPICAL_EVENT_BYTES + 2);
                out.reserve(events.clamp(1, most) * TYPICAL_EVENT_BYTES);
            }
            choice.sent += tokens;
            choice.sent_end = last;
            steps += 1;
            self.render.write_step(out, choice, tokens);
            if last.is_some() {
                self.open_choices -= 1;
                break;
            }
        }
        if state == SequenceState::Ended(SequenceEndReason::Failed)
            && choice.sent == released
            && !self.closed
        {
            self.closed = true;
            self.breaks = (!self.render.write_failure(out)).then_some(DisconnectPoint::Soon);
            return true;
        }
        steps > 0
    }

    /// Returns the result of polling after the last frame: the end of the body, or a simulated
    /// disconnect.
    fn poll_after_end(&mut self, cx: &Context<'_>) -> PolledFrame {
        match self.breaks.take() {
            None => Poll::Ready(None),
            Some(DisconnectPoint::Soon) => {
                self.breaks = Some(DisconnectPoint::Now);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(DisconnectPoint::Now) => Poll::Ready(Some(Err(InjectedBodyError))),
        }
    }

    fn register_waker(&self, cx: &Context<'_>) {
        let open = self.reply.choices.iter().filter(|choice| choice.sent_end.is_none());
        open.for_each(|choice| choice.register_waker(cx));
    }

    /// Returns the frame or error that an injected fault causes at this point of the stream; `None`
    /// if there is no fault at this point.
    fn poll_faults(&mut self, cx: &mut Context<'_>) -> Option<PolledFrame> {
        let action = match self.faults.as_mut()?.poll_action(cx) {
            Poll::Pending => return Some(Poll::Pending),
            Poll::Ready(action) => action,
        };
        match action {
            FaultInjectorAction::Proceed => None,
            FaultInjectorAction::Garble => {
                let text = self.render.garbled_event();
                let frame = Frame::data(Bytes::from_static(text.as_bytes()));
                Some(Poll::Ready(Some(Ok(frame))))
            }
            FaultInjectorAction::Break => {
                self.closed = true;
                Some(Poll::Ready(Some(Err(InjectedBodyError))))
            }
        }
    }

    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        let (every, sleep) = self.keep_alive.as_mut()?;
        if sleep.as_mut().poll(cx).is_pending() {
            return None;
        }
        sleep.as_mut().reset(Instant::now() + *every);
        // Registers the new deadline; it cannot have passed yet.
        let _ = sleep.as_mut().poll(cx);
        Some(self.render.keep_alive_comment())
    }
}

/// Appends a stream event for each available token between the first and the last one of a reply's
/// only choice; returns the number of those tokens.
fn write_plain_tokens<R: StreamRenderer>(
    render: &mut R,
    out: &mut String,
    choice: &mut ReplyChoice,
    released: u32,
) -> usize {
    let due = released - choice.sent;
    if choice.sent == 0 || due < 2 || choice.sequence_progress().has_tokens_released_together() {
        return 0;
    }
    let most = due - 1;
    if out.is_empty() {
        let events = most as usize + 1;
        out.reserve((events * TYPICAL_EVENT_BYTES).min(MAX_FRAME_BYTES + 2 * TYPICAL_EVENT_BYTES));
    }
    let written = render.write_single_tokens(out, choice, most, MAX_FRAME_BYTES);
    choice.sent += written;
    written as usize
}

/// Removes or repeats the last event in `out` after the offset `start`, as an injected fault at the
/// end of a stream.
fn apply_end_fault(out: &mut String, start: usize, ending: StreamEnding) {
    let whole = out[start..].trim_end_matches('\n');
    let last = start + whole.rfind("\n\n").map_or(0, |at| at + 2);
    match ending {
        StreamEnding::Proper => {}
        StreamEnding::Missing => out.truncate(last),
        StreamEnding::Duplicate => out.extend_from_within(last..),
    }
}

impl<R: StreamRenderer + Unpin> HttpBody for EventStream<R> {
    type Data = Bytes;
    type Error = InjectedBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.closed {
            return this.poll_after_end(cx);
        }
        let mut out = String::new();
        if !this.opened {
            this.opened = true;
            this.render.write_opening(&mut out);
        } else if let Some(faults) = this.poll_faults(cx) {
            return faults;
        }
        // Registers first, so that later releases wake this task.
        this.register_waker(cx);
        this.write_frame(&mut out);
        if !out.is_empty() {
            if let Some((every, sleep)) = &mut this.keep_alive {
                sleep.as_mut().reset(Instant::now() + *every);
            }
            this.frames = this.frames.saturating_add(1);
            return Poll::Ready(Some(Ok(Frame::data(out.into()))));
        }
        if this.closed {
            return this.poll_after_end(cx);
        }
        if this.tokens_until_fault() == 0 {
            // A fault occurs before the first byte.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match this.poll_keep_alive(cx) {
            Some(comment) => {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(comment.as_bytes())))))
            }
            None => Poll::Pending,
        }
    }
}

/// Returns a streamed response with at least `interval` tokens per event.
pub(crate) async fn stream_reply<R: StreamRenderer + Unpin>(
    app: &App,
    received: &RawRequest,
    reply: Reply,
    render: R,
    interval: u32,
) -> Response {
    let interval = interval.max(app.settings.answers.stream_interval);
    let silence = app.settings.answers.sse_keep_alive_interval;
    let faults = fault::stream_fault_injector(app, received);
    start_stream(EventStream::new(reply, render, interval, faults, silence)).await
}

/// Returns a streamed response that sends no keep-alive comments.
pub(crate) async fn stream_reply_without_keep_alive<R: StreamRenderer + Unpin>(
    app: &App,
    received: &RawRequest,
    reply: Reply,
    render: R,
) -> Response {
    let interval = app.settings.answers.stream_interval;
    let faults = fault::stream_fault_injector(app, received);
    start_stream(EventStream::new(reply, render, interval, faults, None)).await
}

async fn start_stream<R: StreamRenderer + Unpin>(mut stream: EventStream<R>) -> Response {
    stream.wait_for_first_token().await;
    event_stream_response(Body::new(stream))
}

pub(crate) fn event_stream_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Returns the response of a stream that fails before its first token: status 200, then an error
/// event.
pub(crate) fn failed_stream_response(fault: &Fault) -> Response {
    event_stream_response(Body::from(error::stream_error_events(&fault.to_json_with_spaces())))
}
