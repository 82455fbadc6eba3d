//! A fault plan at work on the reply of one request.

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
    Proceed,
    /// Say something that is no event.
    Garble,
    /// Break off.
    Break,
}

enum AfterWait {
    Proceed,
    Break,
    Reset,
}

/// The plan of one reply, and the time it takes.
pub struct FaultInjector {
    plan: FaultPlan,
    hold: Option<(Pin<Box<Sleep>>, AfterWait)>,
    conn: Option<Arc<ConnHandle>>,
    service: Arc<Service>,
    settings: Arc<LiveSettings>,
}

impl FaultInjector {
    /// The plan that these faults make on a connection; `None`: none.
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

    /// Tokens that may leave before something happens.
    pub fn room(&self) -> u32 {
        if self.hold.is_some() {
            0
        } else {
            self.plan.room()
        }
    }

    /// `tokens` left.
    pub fn sent(&mut self, tokens: u32) {
        self.plan.sent(tokens);
    }

    /// Whether it will be told to garble something.
    pub fn garbles(&self) -> bool {
        self.plan.garbles()
    }

    /// How the stream ends; counted when it is not as it should be.
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

    /// What is due now.
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
                        // The connection goes and takes this reply along.
                        *after = AfterWait::Break;
                        sleep
                            .as_mut()
                            .reset(tokio::time::Instant::now() + GRACE * 100);
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
                    self.wait(GRACE, AfterWait::Break);
                }
                Some(FaultAction::Reset) => {
                    self.count("reset_after");
                    self.wait(GRACE, AfterWait::Reset);
                }
            }
        }
    }
}
