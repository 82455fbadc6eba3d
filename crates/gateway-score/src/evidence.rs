//! Which answers a pod served: what a gateway says, held against what its pods remember.

use super::fleet::Routing;
use super::play::PlayedTurn;
use super::pod::Attempt;

/// Of a request that was answered and that no pod served.
const INVENTED: &str = "no pod of the fleet served this answer";

/// What shows who answered a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Histories have the request; some pod generated for it, or none.
    History {
        is_served: bool,
    },
    /// A header names this pod, and no history has the request's id.
    Header(usize),
    Nothing,
}

impl Evidence {
    /// Returns the pod that answered, and what shows it; a pod whose header contradicts the
    /// histories did not.
    pub(super) fn of(named: Option<usize>, tries: &[&Attempt]) -> (Option<usize>, Self) {
        let is_served = tries.iter().any(|attempt| attempt.is_served);
        let last = tries.iter().max_by(|a, b| a.started.total_cmp(&b.started));
        match (named, last) {
            (Some(pod), None) => (Some(pod), Self::Header(pod)),
            (None, None) => (None, Self::Nothing),
            (named, Some(last)) => {
                let named = named.filter(|pod| tries.iter().any(|attempt| attempt.pod == *pod));
                (named.or(Some(last.pod)), Self::History { is_served })
            }
        }
    }
}

/// Fails the answers that no pod can have served, and counts those whose pod nothing shows. Each pod
/// served so many requests that no answer claims by its id; `None`: it does not remember all.
pub(super) fn judge(
    turns: &mut [PlayedTurn],
    evidence: &[Evidence],
    mut unclaimed: Vec<Option<u64>>,
    routing: &mut Routing,
) {
    let hidden = |evidence: &Evidence| *evidence == Evidence::Nothing;
    // Answers that name their pod claim first.
    for is_hidden in [false, true] {
        let turns = turns.iter_mut().zip(evidence);
        for (turn, evidence) in
            turns.filter(|(turn, shown)| turn.completed && hidden(shown) == is_hidden)
        {
            let is_served = match evidence {
                Evidence::History { is_served } => *is_served,
                Evidence::Header(pod) => claim(&mut unclaimed[*pod]),
                Evidence::Nothing => {
                    let forgets = unclaimed.iter().any(Option::is_none);
                    let found = forgets || unclaimed.iter_mut().any(claim);
                    routing.unseen += u64::from(found);
                    found
                }
            };
            if !is_served {
                turn.fail(INVENTED);
                turn.pod = None;
                routing.misroutes.unrouted += 1;
            }
        }
    }
}

/// Takes one request of a pod; `false`: it served no more.
fn claim(unclaimed: &mut Option<u64>) -> bool {
    match unclaimed {
        None => true,
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
    }
}
