//! What became of the requests of one play, live or offline.

use vllm_sim_engine::SimTime;
use vllm_sim_replay::outcome::{HttpReply, Outcome, Sink, Status};

/// One request, over.
pub(super) struct PlayedTurn {
    pub(super) session: u64,
    pub(super) turn: u32,
    pub(super) sent: SimTime,
    /// Who answered it, as far as that is known.
    pub(super) pod: Option<usize>,
    pub(super) input: u32,
    /// Prompt tokens from the prefix cache; `None`: nobody says.
    pub(super) cached: Option<u32>,
    /// Times to the first and to the last token, of a completed request.
    pub(super) ttft_ms: Option<f64>,
    pub(super) e2e_ms: Option<f64>,
    pub(super) completed: bool,
    /// What the answer said of itself; empty offline.
    pub(super) reply: HttpReply,
    pub(super) error: Option<String>,
}

/// All requests of a play.
#[derive(Default)]
pub(super) struct Play {
    pub(super) turns: Vec<PlayedTurn>,
    /// Pods that took requests.
    pub(super) pods: usize,
    /// Hits and queries of the prefix cache as the pods counted them, where answers do not say.
    pub(super) counted: Option<(f64, f64)>,
}

impl Play {
    /// Of so many pods, nothing yet.
    pub(super) fn of(pods: usize) -> Self {
        Self {
            pods,
            ..Self::default()
        }
    }
}

impl PlayedTurn {
    /// Counts it as failed, though an answer came.
    pub(super) fn fail(&mut self, why: &str) {
        self.completed = false;
        (self.ttft_ms, self.e2e_ms) = (None, None);
        self.error = Some(why.to_owned());
    }
}

impl Sink for Play {
    fn request(&mut self, outcome: &Outcome<'_>) {
        let completed = outcome.status == Status::Completed;
        let after = |at: Option<SimTime>| {
            let at = at.filter(|_| completed)?;
            Some(at.since(outcome.arrival).as_secs_f64() * 1e3)
        };
        let offline = || {
            let first = outcome.admissions.first()?;
            Some(first.reused.min(outcome.input))
        };
        self.turns.push(PlayedTurn {
            session: outcome.session,
            turn: outcome.turn,
            sent: outcome.arrival,
            // A live request names the gateway.
            pod: match outcome.reply {
                Some(_) => None,
                None => outcome.worker.map(|worker| worker as usize),
            },
            input: outcome.input,
            cached: match outcome.reply {
                Some(reply) => reply.cached,
                None => offline(),
            },
            ttft_ms: after(outcome.first),
            e2e_ms: after(outcome.last),
            completed,
            reply: outcome.reply.cloned().unwrap_or_default(),
            error: outcome.error.map(str::to_owned),
        });
    }

    fn gaps(&mut self, _: u64, _: u64) {}
}
