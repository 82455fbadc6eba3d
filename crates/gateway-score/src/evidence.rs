//! Checks which pod generated each response of the gateway, from response headers and the pods'
//! request histories.

use super::fleet::GatewayRoutingObservations;
use super::gateway_run::GatewayRequestResult;
use super::pod::PodRequestAttempt;

/// Error message for a request whose response no pod generated.
const NOT_FROM_ANY_POD_ERROR: &str = "no pod of the fleet served this answer";

/// Kind of evidence for which pod answered a request: its request history, or a response header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServingPodEvidence {
    /// The request histories of pods contain the request.
    History {
        /// Whether a pod generated a response to the request.
        is_served: bool,
    },
    /// A response header names the pod of this index, but the pod's request history does not
    /// contain the id of the request.
    Header(usize),
    Nothing,
}

impl ServingPodEvidence {
    /// Returns the index of the pod that answered a request, and the evidence for it.
    ///
    /// The histories take precedence over a header that contradicts them.
    pub(super) fn find_answering_pod(
        named: Option<usize>,
        tries: &[&PodRequestAttempt],
    ) -> (Option<usize>, Self) {
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

/// Marks requests as failed if no pod generated their responses, and counts the completed requests
/// whose pod is unknown.
///
/// `unclaimed` holds for each pod the number of requests that it served and whose id belongs to no
/// request of this run; `None` if the pod's history is incomplete.
pub(super) fn mark_responses_without_pod_failed(
    turns: &mut [GatewayRequestResult],
    evidence: &[ServingPodEvidence],
    mut unclaimed: Vec<Option<u64>>,
    routing: &mut GatewayRoutingObservations,
) {
    let hidden = |evidence: &ServingPodEvidence| *evidence == ServingPodEvidence::Nothing;
    // Answers that name their pod come first.
    for is_hidden in [false, true] {
        let turns = turns.iter_mut().zip(evidence);
        for (turn, evidence) in
            turns.filter(|(turn, shown)| turn.completed && hidden(shown) == is_hidden)
        {
            let is_served = match evidence {
                ServingPodEvidence::History { is_served } => *is_served,
                ServingPodEvidence::Header(pod) => claim_served_request(&mut unclaimed[*pod]),
                ServingPodEvidence::Nothing => {
                    let forgets = unclaimed.iter().any(Option::is_none);
                    let found = forgets || unclaimed.iter_mut().any(claim_served_request);
                    routing.unseen += u64::from(found);
                    found
                }
            };
            if !is_served {
                turn.mark_request_failed(NOT_FROM_ANY_POD_ERROR);
                turn.pod = None;
                routing.misroutes.unrouted += 1;
            }
        }
    }
}

/// Removes one request from the count `unclaimed` of requests that a pod served and no client
/// request is matched to; returns `false` if the count is 0.
fn claim_served_request(unclaimed: &mut Option<u64>) -> bool {
    match unclaimed {
        None => true,
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
    }
}
