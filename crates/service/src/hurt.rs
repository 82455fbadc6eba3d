//! A wound at work on the reply of one request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::{Service, Tuned};
use crate::fault::{Ending, Flaw, Incision, Line, Wound};

/// What was said before a break is on its way by then.
pub const GRACE: Duration = Duration::from_millis(10);

/// What the writer of a reply has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
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

/// The wound of one reply, and the time it takes.
pub struct Hurt {
    wound: Wound,
    hold: Option<(Pin<Box<Sleep>>, Then)>,
    line: Option<Arc<Line>>,
    service: Arc<Service>,
    tuned: Arc<Tuned>,
}

impl Hurt {
    /// The wound that these flaws make on a connection; `None`: none.
    pub fn new(
        flaws: &[Flaw],
        line: Option<Arc<Line>>,
        service: &Arc<Service>,
        tuned: &Arc<Tuned>,
    ) -> Option<Box<Self>> {
        let wound = Wound::new(flaws)?;
        Some(Box::new(Self {
            wound,
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
            self.wound.room()
        }
    }

    /// `tokens` left.
    pub fn sent(&mut self, tokens: u32) {
        self.wound.sent(tokens);
    }

    /// Whether it will be told to garble something.
    pub fn garbles(&self) -> bool {
        self.wound.garbles()
    }

    /// How the stream ends; counted when it is not as it should be.
    pub fn end(&self) -> Ending {
        let ending = self.wound.ending();
        match ending {
            Ending::Proper => {}
            Ending::Missing => self.count("missing_done"),
            Ending::Duplicate => self.count("duplicate_done"),
        }
        ending
    }

    fn count(&self, kind: &'static str) {
        self.service.drill.count(kind, &self.tuned.origin);
    }

    fn wait(&mut self, time: Duration, then: Then) {
        self.hold = Some((Box::pin(tokio::time::sleep(time)), then));
    }

    /// What is due now.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Act> {
        loop {
            if let Some((sleep, then)) = &mut self.hold {
                ready!(sleep.as_mut().poll(cx));
                match then {
                    Then::Go => self.hold = None,
                    Then::Break => return Poll::Ready(Act::Break),
                    Then::Reset => {
                        let Some(line) = &self.line else {
                            return Poll::Ready(Act::Break);
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
            match self.wound.take() {
                None => return Poll::Ready(Act::Go),
                Some(Incision::Malformed) => {
                    self.count("malformed_after");
                    return Poll::Ready(Act::Garble);
                }
                Some(Incision::Stall(time)) => {
                    self.count("stall");
                    self.wait(time, Then::Go);
                }
                Some(Incision::Cut) => {
                    self.count("cut_after");
                    self.wait(GRACE, Then::Break);
                }
                Some(Incision::Reset) => {
                    self.count("reset_after");
                    self.wait(GRACE, Then::Reset);
                }
            }
        }
    }
}
