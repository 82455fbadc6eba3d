//! Applies the injected faults of one reply while it is written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::{LiveSettings, Service};
use crate::fault::{ConnHandle, Ending, FaultAction, FaultPlan, StreamFault};

/// Delay between the last write and an injected break of the connection.
///
/// The delay lets data that was already written reach the client first.
pub const FLUSH_DELAY: Duration = Duration::from_millis(10);

/// An instruction of the fault injector to the writer of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectorAction {
    /// Continue writing the reply.
    Proceed,
    /// Write an event that is not JSON.
    Garble,
    /// Close the client's connection.
    Break,
}

enum AfterWait {
    Proceed,
    Break,
    Reset,
}

/// Applies the injected faults of one reply, including pauses.
pub struct FaultInjector {
    plan: FaultPlan,
    hold: Option<(Pin<Box<Sleep>>, AfterWait)>,
    conn: Option<Arc<ConnHandle>>,
    service: Arc<Service>,
    settings: Arc<LiveSettings>,
}

impl FaultInjector {
    /// Creates the injector of the given faults; `None` if they do not affect the stream.
    pub fn new(
        stream_faults: &[StreamFault],
        conn: Option<Arc<ConnHandle>>,
        service: &Arc<Service>,
        settings: &Arc<LiveSettings>,
    ) -> Option<Box<Self>> {
        let plan = FaultPlan::new(stream_faults)?;
        Some(Box::new(Self {
            plan,
            hold: None,
            conn,
            service: service.clone(),
            settings: settings.clone(),
        }))
    }

    /// Returns the number of tokens that may be sent before the next fault; 0 during a pause.
    pub fn room(&self) -> u32 {
        if self.hold.is_some() {
            0
        } else {
            self.plan.room()
        }
    }

    /// Records that the writer sent `tokens` more tokens.
    pub fn sent(&mut self, tokens: u32) {
        self.plan.sent(tokens);
    }

    /// Returns whether the plan of faults contains a malformed event.
    pub fn garbles(&self) -> bool {
        self.plan.garbles()
    }

    /// Returns how the stream ends, and counts a fault injected into its end.
    pub fn end(&self) -> Ending {
        let ending = self.plan.ending();
        match ending {
            Ending::Proper => {}
            Ending::Missing => self.count("missing_done"),
            Ending::Duplicate => self.count("duplicate_done"),
        }
        ending
    }

    fn count(&self, kind: &'static str) {
        self.service.faults.count(kind, &self.settings.origin);
    }

    fn wait(&mut self, time: Duration, after: AfterWait) {
        self.hold = Some((Box::pin(tokio::time::sleep(time)), after));
    }

    /// Returns the next instruction to the writer; pending during a pause.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<InjectorAction> {
        loop {
            if let Some((sleep, after)) = &mut self.hold {
                ready!(sleep.as_mut().poll(cx));
                match after {
                    AfterWait::Proceed => self.hold = None,
                    AfterWait::Break => return Poll::Ready(InjectorAction::Break),
                    AfterWait::Reset => {
                        let Some(conn) = &self.conn else {
                            return Poll::Ready(InjectorAction::Break);
                        };
                        conn.reset();
                        // The reset drops the connection, and this reply with it.
                        *after = AfterWait::Break;
                        sleep
                            .as_mut()
                            .reset(tokio::time::Instant::now() + FLUSH_DELAY * 100);
                    }
                }
                continue;
            }
            match self.plan.take() {
                None => return Poll::Ready(InjectorAction::Proceed),
                Some(FaultAction::Malformed) => {
                    self.count("malformed_after");
                    return Poll::Ready(InjectorAction::Garble);
                }
                Some(FaultAction::Stall(time)) => {
                    self.count("stall");
                    self.wait(time, AfterWait::Proceed);
                }
                Some(FaultAction::Cut) => {
                    self.count("cut_after");
                    self.wait(FLUSH_DELAY, AfterWait::Break);
                }
                Some(FaultAction::Reset) => {
                    self.count("reset_after");
                    self.wait(FLUSH_DELAY, AfterWait::Reset);
                }
            }
        }
    }
}
