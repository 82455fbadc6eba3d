//! A fault_plan at work on the reply of one request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::{LiveSettings, Service};
use crate::fault::{ConnHandle, Ending, FaultAction, FaultPlan, StreamFault};

/// What was said before a break is on its way by then.
pub const GRACE: Duration = Duration::from_millis(10);

/// What the writer of a reply has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectorAction {
    /// Go on.
    Go,
    /// Say something that is no event.
    Garble,
    /// Break off.
    Break,
}

enum Then {
    Go,
    Break,
    Reset,
}

/// The fault_plan of one reply, and the time it takes.
pub struct FaultInjector {
    fault_plan: FaultPlan,
    hold: Option<(Pin<Box<Sleep>>, Then)>,
    line: Option<Arc<ConnHandle>>,
    service: Arc<Service>,
    tuned: Arc<LiveSettings>,
}

impl FaultInjector {
    /// The fault_plan that these stream_faults make on a connection; `None`: none.
    pub fn new(
        stream_faults: &[StreamFault],
        line: Option<Arc<ConnHandle>>,
        service: &Arc<Service>,
        tuned: &Arc<LiveSettings>,
    ) -> Option<Box<Self>> {
        let fault_plan = FaultPlan::new(stream_faults)?;
        Some(Box::new(Self {
            fault_plan,
            hold: None,
            line,
            service: service.clone(),
            tuned: tuned.clone(),
        }))
    }

    /// Tokens that may leave before something happens.
    pub fn room(&self) -> u32 {
        if self.hold.is_some() {
            0
        } else {
            self.fault_plan.room()
        }
    }

    /// `tokens` left.
    pub fn sent(&mut self, tokens: u32) {
        self.fault_plan.sent(tokens);
    }

    /// Whether it will be told to garble something.
    pub fn garbles(&self) -> bool {
        self.fault_plan.garbles()
    }

    /// How the stream ends; counted when it is not as it should be.
    pub fn end(&self) -> Ending {
        let ending = self.fault_plan.ending();
        match ending {
            Ending::Proper => {}
            Ending::Missing => self.count("missing_done"),
            Ending::Duplicate => self.count("duplicate_done"),
        }
        ending
    }

    fn count(&self, kind: &'static str) {
        self.service.faults.count(kind, &self.tuned.origin);
    }

    fn wait(&mut self, time: Duration, then: Then) {
        self.hold = Some((Box::pin(tokio::time::sleep(time)), then));
    }

    /// What is due now.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<InjectorAction> {
        loop {
            if let Some((sleep, then)) = &mut self.hold {
                ready!(sleep.as_mut().poll(cx));
                match then {
                    Then::Go => self.hold = None,
                    Then::Break => return Poll::Ready(InjectorAction::Break),
                    Then::Reset => {
                        let Some(line) = &self.line else {
                            return Poll::Ready(InjectorAction::Break);
                        };
                        line.reset();
                        // The connection goes and takes this reply along.
                        *then = Then::Break;
                        sleep
                            .as_mut()
                            .reset(tokio::time::Instant::now() + GRACE * 100);
                    }
                }
                continue;
            }
            match self.fault_plan.take() {
                None => return Poll::Ready(InjectorAction::Go),
                Some(FaultAction::Malformed) => {
                    self.count("malformed_after");
                    return Poll::Ready(InjectorAction::Garble);
                }
                Some(FaultAction::Stall(time)) => {
                    self.count("stall");
                    self.wait(time, Then::Go);
                }
                Some(FaultAction::Cut) => {
                    self.count("cut_after");
                    self.wait(GRACE, Then::Break);
                }
                Some(FaultAction::Reset) => {
                    self.count("reset_after");
                    self.wait(GRACE, Then::Reset);
                }
            }
        }
    }
}
