//! The injected faults of one request: decided once when it arrives, and applied while its reply is
//! written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::{ConnectionHandle, InferenceService, LiveFaultSettings};
use crate::fault::{
    FaultSpec, FaultSpecError, InjectedFailure, ReplyFaultPlan, StreamEnding, StreamFault,
    StreamFaultAction,
};

/// The injected faults of one request, and the fault settings at its arrival.
pub struct RequestFaults {
    /// Fault settings at the arrival of the request.
    pub settings: Arc<LiveFaultSettings>,
    /// Error response in place of the reply; `None` serves the request.
    pub failure: Option<InjectedFailure>,
    /// Faults injected into the reply.
    pub stream_faults: Vec<StreamFault>,
    conn: Option<Arc<ConnectionHandle>>,
}

impl RequestFaults {
    /// Decides on the injected faults of a request that arrives on connection `conn`.
    ///
    /// The value of the header `X-Sim-Fault` in `asked` replaces randomly drawn faults.
    ///
    /// # Errors
    /// [`FaultSpecError`] if `asked` is not a valid fault spec.
    pub fn decide_request_faults(
        service: &InferenceService,
        request_id: Option<&str>,
        asked: Option<&str>,
        conn: Option<Arc<ConnectionHandle>>,
    ) -> Result<Self, FaultSpecError> {
        let control = &service.faults;
        let (settings, drawn) = if control.needs_fault_draw() {
            control.decide_faults(service.settings().seed, service.now(), request_id)
        } else {
            (control.settings(), Default::default())
        };
        let spec = match asked {
            Some(text) => text.parse()?,
            None => {
                let spec = drawn.spec.unwrap_or_default();
                FaultSpec { failure: drawn.failure.or(spec.failure), ..spec }
            }
        };
        Ok(Self { settings, failure: spec.failure, stream_faults: spec.stream_faults, conn })
    }

    /// Returns the percentage of KV blocks that are still loaded; `None` unless the load of the
    /// prompt's KV cache is to fail.
    pub fn loaded_kv_block_percent(&self) -> Option<u8> {
        self.stream_faults.iter().find_map(|fault| match fault {
            StreamFault::KvLoadFailure(percent) => Some(*percent),
            _ => None,
        })
    }

    /// Counts an injected fault of the request that reached the client.
    pub fn report_fault(&self, service: &InferenceService, kind: &'static str) {
        service.faults.report_fault(kind, &self.settings.origin);
    }

    /// Waits for the delay that an injected fault adds before the first byte of the response.
    pub async fn wait_first_byte_delay(&self, service: &InferenceService) {
        for stream_fault in &self.stream_faults {
            if let StreamFault::SlowFirstByte(time) = stream_fault {
                self.report_fault(service, stream_fault.stream_fault_name());
                tokio::time::sleep(*time).await;
            }
        }
    }

    /// Returns the injector of faults into the reply; `None` if there are none.
    pub fn reply_fault_injector(
        &self,
        service: &Arc<InferenceService>,
    ) -> Option<Box<FaultInjector>> {
        let conn = self.conn.clone();
        FaultInjector::new(&self.stream_faults, conn, service, &self.settings)
    }
}

/// Delay between the last write and an injected break of the connection.
///
/// The delay lets data that was already written reach the client first.
pub const CONNECTION_BREAK_FLUSH_DELAY: Duration = Duration::from_millis(10);

/// An instruction of the fault injector to the code that writes a reply to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultInjectorAction {
    /// Instruction to the response writer: go on with the next tokens of the reply.
    Proceed,
    /// Instruction to the response writer: send an event that is not JSON.
    Garble,
    /// Instruction to the response writer: close the client's connection.
    Break,
}

enum AfterWait {
    Proceed,
    Break,
    Reset,
}

/// Applies the injected faults of one reply, including pauses.
pub struct FaultInjector {
    plan: ReplyFaultPlan,
    hold: Option<(Pin<Box<Sleep>>, AfterWait)>,
    conn: Option<Arc<ConnectionHandle>>,
    service: Arc<InferenceService>,
    settings: Arc<LiveFaultSettings>,
}

impl FaultInjector {
    /// Creates the injector of the given faults; `None` if they do not affect the stream.
    pub fn new(
        stream_faults: &[StreamFault],
        conn: Option<Arc<ConnectionHandle>>,
        service: &Arc<InferenceService>,
        settings: &Arc<LiveFaultSettings>,
    ) -> Option<Box<Self>> {
        let plan = ReplyFaultPlan::new(stream_faults)?;
        Some(Box::new(Self {
            plan,
            hold: None,
            conn,
            service: service.clone(),
            settings: settings.clone(),
        }))
    }

    /// Returns the number of tokens that may be sent before the next fault; 0 during a pause.
    pub fn tokens_until_fault(&self) -> u32 {
        if self.hold.is_some() { 0 } else { self.plan.tokens_until_fault() }
    }

    /// Records that the writer of the reply sent `tokens` more tokens.
    pub fn count_sent_tokens(&mut self, tokens: u32) {
        self.plan.count_sent_tokens(tokens);
    }

    /// Returns whether the plan of faults contains a malformed event.
    pub fn has_malformed_event(&self) -> bool {
        self.plan.has_malformed_event()
    }

    /// Returns how the stream ends, and counts a fault injected into its end.
    pub fn record_stream_ending(&self) -> StreamEnding {
        let ending = self.plan.stream_ending();
        match ending {
            StreamEnding::Proper => {}
            StreamEnding::Missing => self.report_fault("missing_done"),
            StreamEnding::Duplicate => self.report_fault("duplicate_done"),
        }
        ending
    }

    fn report_fault(&self, kind: &'static str) {
        self.service.faults.report_fault(kind, &self.settings.origin);
    }

    fn start_wait(&mut self, time: Duration, after: AfterWait) {
        self.hold = Some((Box::pin(tokio::time::sleep(time)), after));
    }

    /// Returns the fault injector's next instruction to the response writer; pending during an
    /// injected pause.
    pub fn poll_action(&mut self, cx: &mut Context<'_>) -> Poll<FaultInjectorAction> {
        loop {
            if let Some((sleep, after)) = &mut self.hold {
                ready!(sleep.as_mut().poll(cx));
                match after {
                    AfterWait::Proceed => self.hold = None,
                    AfterWait::Break => return Poll::Ready(FaultInjectorAction::Break),
                    AfterWait::Reset => {
                        let Some(conn) = &self.conn else {
                            return Poll::Ready(FaultInjectorAction::Break);
                        };
                        conn.reset_connection();
                        // The reset drops the connection, and this reply with it.
                        *after = AfterWait::Break;
                        sleep.as_mut().reset(
                            tokio::time::Instant::now() + CONNECTION_BREAK_FLUSH_DELAY * 100,
                        );
                    }
                }
                continue;
            }
            match self.plan.take_due_fault() {
                None => return Poll::Ready(FaultInjectorAction::Proceed),
                Some(StreamFaultAction::Malformed) => {
                    self.report_fault("malformed_after");
                    return Poll::Ready(FaultInjectorAction::Garble);
                }
                Some(StreamFaultAction::Stall(time)) => {
                    self.report_fault("stall");
                    self.start_wait(time, AfterWait::Proceed);
                }
                Some(StreamFaultAction::Cut) => {
                    self.report_fault("cut_after");
                    self.start_wait(CONNECTION_BREAK_FLUSH_DELAY, AfterWait::Break);
                }
                Some(StreamFaultAction::Reset) => {
                    self.report_fault("reset_after");
                    self.start_wait(CONNECTION_BREAK_FLUSH_DELAY, AfterWait::Reset);
                }
            }
        }
    }
}
