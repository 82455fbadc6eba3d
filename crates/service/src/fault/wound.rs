use std::time::Duration;

use super::Flaw;

/// What a reply suffers at one of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incision {
    /// Silence for this long.
    Stall(Duration),
    /// The connection closes.
    Cut,
    /// The connection is reset.
    Reset,
    /// An event that is not JSON.
    Malformed,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// As it should.
    #[default]
    Proper,
    /// Without its last event.
    Missing,
    /// With its last event twice.
    Duplicate,
}

/// Where a reply is hurt: it may send [`Self::room`] tokens, then [`Self::take`] says what happens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wound {
    /// By token, the next one last.
    incisions: Vec<(u32, Incision)>,
    sent: u32,
    ending: Ending,
}

impl Wound {
    /// The wound of these flaws; `None` when they leave the tokens alone.
    pub fn new(flaws: &[Flaw]) -> Option<Self> {
        let mut wound = Self::default();
        for flaw in flaws {
            match *flaw {
                Flaw::Stall { after, time } => {
                    wound.incisions.push((after, Incision::Stall(time)));
                }
                Flaw::CutAfter(after) => wound.incisions.push((after, Incision::Cut)),
                Flaw::ResetAfter(after) => wound.incisions.push((after, Incision::Reset)),
                Flaw::MalformedAfter(after) => wound.incisions.push((after, Incision::Malformed)),
                Flaw::DuplicateDone => wound.ending = Ending::Duplicate,
                Flaw::MissingDone => wound.ending = Ending::Missing,
                Flaw::SlowFirstByte(_) | Flaw::WrongContentLength(_) => {}
            }
        }
        // Stable: at one token, what was named first happens first.
        wound.incisions.sort_by_key(|(after, _)| *after);
        wound.incisions.reverse();
        (wound != Self::default()).then_some(wound)
    }

    /// How the stream ends.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// Tokens that may leave before the next incision.
    pub fn room(&self) -> u32 {
        match self.incisions.last() {
            Some((after, _)) => after.saturating_sub(self.sent),
            None => u32::MAX,
        }
    }

    /// `tokens` left.
    pub fn sent(&mut self, tokens: u32) {
        self.sent = self.sent.saturating_add(tokens);
    }

    /// Whether some incision garbles the reply.
    pub fn garbles(&self) -> bool {
        let mut incisions = self.incisions.iter();
        incisions.any(|(_, incision)| *incision == Incision::Malformed)
    }

    /// The incision that is due, once.
    pub fn take(&mut self) -> Option<Incision> {
        if self.room() > 0 {
            return None;
        }
        self.incisions.pop().map(|(_, incision)| incision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incisions_come_at_their_tokens_in_the_order_they_were_named() {
        let time = Duration::from_secs(1);
        let flaws = [
            Flaw::CutAfter(5),
            Flaw::MalformedAfter(2),
            Flaw::Stall { after: 2, time },
        ];
        let mut wound = Wound::new(&flaws).unwrap();
        let mut seen = Vec::new();
        for _ in 0..10 {
            while let Some(incision) = wound.take() {
                seen.push((wound.sent, incision));
            }
            if wound.room() > 0 {
                wound.sent(1);
            }
        }
        assert_eq!(
            seen,
            [
                (2, Incision::Malformed),
                (2, Incision::Stall(time)),
                (5, Incision::Cut)
            ]
        );
        assert_eq!(wound.room(), u32::MAX);
    }

    #[test]
    fn flaws_outside_the_tokens_make_no_wound() {
        let flaws = [
            Flaw::SlowFirstByte(Duration::ZERO),
            Flaw::WrongContentLength(3),
        ];
        assert_eq!(Wound::new(&flaws), None);
        let ending = Wound::new(&[Flaw::MissingDone]).map(|wound| wound.ending());
        assert_eq!(ending, Some(Ending::Missing));
    }
}
