//! Manages the pods behind the gateway, and finds the pod that answered each request.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::Method;
use hyper::body::Bytes;
use tokio::runtime::Runtime;

use super::evidence::{ServingPodEvidence, mark_responses_without_pod_failed};
use super::fault_schedule::{PodFaultSchedule, PodOutage, ScheduledPodFault};
use super::gateway_run::GatewayRun;
use super::pod::{GatewayPod, GatewayPodState, PodRequestAttempt};
use super::scenario::PodFleetScenario;
use vllm_sim_replay::online::{RequestHeaderNames, TargetServer};

/// The future that stops the pods started by this program.
pub type StopPodsFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The future that starts the pods, and returns the future that stops them.
pub type StartPodsFuture = Pin<Box<dyn Future<Output = Result<StopPodsFuture>>>>;

/// Interval between checks of whether the gateway is ready.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodIdentitySource {
    ResponseHeader,
    RequestHistory,
}

impl PodIdentitySource {
    pub(super) fn pod_identity_source_name(self) -> &'static str {
        match self {
            Self::ResponseHeader => "response header",
            Self::RequestHistory => "request history",
        }
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct MisrouteCounts {
    /// Number of request attempts that a pod rejected with a 5xx status.
    pub(super) refused: u64,
    /// Number of request attempts sent to a pod that was asleep, failed or starting.
    pub(super) not_ready: u64,
    /// Number of requests without a complete response: timeouts, broken connections.
    pub(super) unanswered: u64,
    /// Number of requests that the gateway answered without a pod: with status 502 to 504, or with
    /// a response that no pod generated.
    pub(super) unrouted: u64,
}

impl MisrouteCounts {
    pub(super) fn total_misroutes(self) -> u64 {
        self.refused + self.not_ready + self.unanswered + self.unrouted
    }
}

#[derive(Default)]
pub(super) struct GatewayRoutingObservations {
    pub(super) known_by: Option<PodIdentitySource>,
    pub(super) misroutes: MisrouteCounts,
    /// Number of request attempts in addition to the first attempt of each request; `None` if
    /// unknown.
    pub(super) retries: Option<u64>,
    /// Number of completed requests that an unknown pod answered.
    pub(super) unseen: u64,
    pub(super) requests: Vec<u64>,
    pub(super) notes: Vec<String>,
}

pub(super) struct GatewayBackends {
    runtime: Runtime,
    own: Option<StopPodsFuture>,
    pub(super) pods: Vec<GatewayPod>,
}

impl GatewayBackends {
    /// Inspects the pods at the given addresses; if `own` is given, its future starts these pods
    /// first.
    ///
    /// # Errors
    /// Returns an error if pods do not start, or no pod is ready.
    pub(super) fn open_gateway_backends(
        servers: Vec<(TargetServer, String)>,
        own: Option<StartPodsFuture>,
        identity: &RequestHeaderNames,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start threads")?;
        let own = match own {
            Some(starting) => Some(runtime.block_on(starting)?),
            None => None,
        };
        let mut pods = Vec::new();
        for (target, url) in servers {
            pods.push(runtime.block_on(GatewayPod::inspect_pod(target, url, identity)));
        }
        let backends = Self { runtime, own, pods };
        if backends.ready_pod_count() == 0 {
            let states = backends.pods.iter();
            let states = states.map(|pod| format!("{} is {}", pod.url, pod.state.pod_state_name()));
            bail!("no pod is ready: {}", states.collect::<Vec<_>>().join(", "));
        }
        Ok(backends)
    }

    pub(super) fn ready_pods(&self) -> impl Iterator<Item = &GatewayPod> {
        self.pods.iter().filter(|pod| pod.state == GatewayPodState::Ready)
    }

    pub(super) fn ready_pod_count(&self) -> u32 {
        self.ready_pods().count() as u32
    }

    /// Waits until the gateway forwards a request to a pod and returns its response.
    ///
    /// # Errors
    /// Returns an error after the timeout `within`.
    pub(super) fn wait_for_gateway(&self, gateway: &TargetServer, within: Duration) -> Result<()> {
        let answers = async {
            loop {
                let answer = gateway.request_accepting_any_status(
                    Method::GET,
                    "/v1/models",
                    Bytes::new(),
                    READY_POLL_INTERVAL * 10,
                );
                let answer = answer.await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    return;
                }
                tokio::time::sleep(READY_POLL_INTERVAL).await;
            }
        };
        let waited = async { tokio::time::timeout(within, answers).await };
        if self.runtime.block_on(waited).is_err() {
            let urls: Vec<&str> = self.pods.iter().map(|pod| pod.url.as_str()).collect();
            bail!(
                "the gateway did not answer GET /v1/models within {within:?}; the pods are {}",
                urls.join(", ")
            );
        }
        Ok(())
    }

    /// Resets the prefix caches of all ready pods; returns false at the first pod that does not
    /// allow it.
    pub(super) fn reset_prefix_caches(&self) -> bool {
        self.ready_pods().all(|pod| self.runtime.block_on(pod.reset_prefix_cache()))
    }

    /// Runs `sending`, which sends the workload to the gateway, while faults are injected into the
    /// pods.
    ///
    /// Returns its result, notes about faults that failed, and the outages of pods.
    ///
    /// # Errors
    /// Returns an error for pods without fault injection, and the errors of `sending`.
    pub(super) fn run_with_pod_faults<T>(
        &self,
        (all, scenario): (&[ScheduledPodFault], Option<&PodFleetScenario>),
        sending: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Vec<String>, Vec<PodOutage>)> {
        let troubles =
            self.runtime.block_on(PodFaultSchedule::prepare_pod_faults(all, &self.pods))?;
        if let Some(scenario) = scenario {
            self.runtime.block_on(scenario.start_scenario_on_pods(&self.pods))?;
        }
        let troubles = Arc::new(troubles);
        let running = self.runtime.spawn(troubles.clone().inject_faults_until_end());
        let sent = sending();
        running.abort();
        // An aborted task needs no result.
        let _ = self.runtime.block_on(running);
        let mut notes = self.runtime.block_on(troubles.end_all_pod_faults());
        if let Some(scenario) = scenario {
            notes.extend(self.runtime.block_on(scenario.end_scenario_on_pods(&self.pods)));
        }
        Ok((sent?, notes, troubles.pod_outages()))
    }

    /// Finds the pod that answered each request of a run, and counts the retries and the attempts
    /// sent to pods that could not serve.
    pub(super) fn trace_requests_to_pods(
        &self,
        play: &mut GatewayRun,
        identity: &RequestHeaderNames,
        outages: &[PodOutage],
    ) -> GatewayRoutingObservations {
        let mut routing = GatewayRoutingObservations::default();
        let mut attempts = Vec::new();
        let mut remembers = Vec::new();
        let (mut hits, mut queries) = (0.0, 0.0);
        for (number, pod) in self.pods.iter().enumerate() {
            // A dead pod received no requests.
            let mut remembers_all = pod.state == GatewayPodState::Dead;
            if let Some((found, is_whole)) =
                self.runtime.block_on(pod.requests_since_inspection(number))
            {
                attempts.extend(found);
                remembers_all = is_whole;
                if !is_whole {
                    let note = "has a request history (--request-history) that is too short for \
                         this run";
                    routing.notes.push(format!("{} {note}", pod.url));
                }
            }
            remembers.push(remembers_all);
            if let Some(counted) = self.runtime.block_on(pod.prefix_cache_hits_and_queries()) {
                (hits, queries) = (hits + counted.0, queries + counted.1);
                play.counted = Some((hits, queries));
            }
        }
        let all_remember = self.ready_pods().all(|pod| pod.newest.is_some());
        let answers = play.turns.iter().filter(|turn| turn.completed).count() as u64;
        let (evidence, unclaimed) =
            assign_requests_to_pods(play, (&self.pods, outages), &attempts, identity, &mut routing);
        let unclaimed = remembers.into_iter().zip(unclaimed);
        let unclaimed = unclaimed.map(|(all, n)| all.then_some(n)).collect();
        mark_responses_without_pod_failed(&mut play.turns, &evidence, unclaimed, &mut routing);
        if !all_remember {
            routing.retries = None;
        }
        if routing.known_by.is_none() {
            routing.unseen = answers;
        }
        if routing.unseen > 0 {
            let unseen = routing.unseen;
            routing.notes.push(format!(
                "the pod is unknown for {unseen} of {answers} requests: the gateway removes the \
                 headers of --pod-header and X-Request-Id, or the pods have neither --pod-name \
                 nor --request-history; every share is unknown"
            ));
        }
        routing.requests = vec![0; self.pods.len()];
        for pod in play.turns.iter().filter_map(|turn| turn.pod) {
            routing.requests[pod] += 1;
        }
        routing
    }

    pub(super) fn shut_down_pods(self) {
        if let Some(own) = self.own {
            self.runtime.block_on(own);
        }
        self.runtime.shutdown_background();
    }
}

/// Finds the pod that answered each request, from a response header or, without one, from the pods'
/// own request histories.
///
/// Returns how the pod of each request is known. Also returns, for each pod, the number of requests
/// in its history that it served and whose id belongs to no request of this run.
fn assign_requests_to_pods(
    play: &mut GatewayRun,
    (pods, outages): (&[GatewayPod], &[PodOutage]),
    attempts: &[PodRequestAttempt],
    identity: &RequestHeaderNames,
    routing: &mut GatewayRoutingObservations,
) -> (Vec<ServingPodEvidence>, Vec<u64>) {
    let named = pods_by_name(pods);
    let mut remembered = HashMap::<&str, Vec<&PodRequestAttempt>>::new();
    for attempt in attempts.iter().filter(|a| !a.request_id.is_empty()) {
        let entry = remembered.entry(&attempt.request_id);
        entry.or_default().push(attempt);
    }
    let (mut retries, mut found) = (0, 0);
    let mut shown = Vec::with_capacity(play.turns.len());
    let mut claimed = HashSet::new();
    for turn in &mut play.turns {
        let ours = identity.request_id_of_turn(turn.session, turn.turn);
        let completion = turn.reply.id.as_deref();
        let theirs = completion.and_then(|id| id.split_once('-')).map(|id| id.1);
        let tries = remembered.get(ours.as_str()).or_else(|| remembered.get(theirs?));
        let tries = tries.map_or(&[][..], Vec::as_slice);
        let by_header = turn.reply.pod.as_ref().and_then(|name| named.get(name));
        let (pod, evidence) = ServingPodEvidence::find_answering_pod(by_header.copied(), tries);
        turn.pod = pod;
        shown.push(evidence);
        claimed.extend(tries.iter().map(|attempt| attempt.request_id.as_str()));
        let source = pod.map(|pod| match by_header == Some(&pod) {
            true => PodIdentitySource::ResponseHeader,
            false => PodIdentitySource::RequestHistory,
        });
        routing.known_by = routing.known_by.or(source);
        found += u64::from(!tries.is_empty());
        retries += (tries.len() as u64).saturating_sub(1);
        let before = routing.misroutes;
        for attempt in tries {
            let is_out =
                |o: &PodOutage| o.pod == attempt.pod && (o.from..o.to).contains(&attempt.started);
            if attempt.status >= Some(500) {
                routing.misroutes.refused += 1;
            } else if pods[attempt.pod].state != GatewayPodState::Ready
                || outages.iter().any(is_out)
            {
                routing.misroutes.not_ready += 1;
            }
        }
        if turn.completed || before != routing.misroutes {
            continue;
        }
        match turn.reply.status {
            // The gateway itself reports that it found no pod.
            Some(502..=504) => routing.misroutes.unrouted += 1,
            None | Some(200) => routing.misroutes.unanswered += 1,
            Some(_) => {}
        }
    }
    routing.retries = (found > 0).then_some(retries);
    let mut unclaimed = vec![0; pods.len()];
    let served = attempts.iter().filter(|attempt| attempt.is_served);
    for attempt in served.filter(|a| !claimed.contains(a.request_id.as_str())) {
        unclaimed[attempt.pod] += 1;
    }
    (shown, unclaimed)
}

/// Returns a map from the address and the unique name of each pod to its index in `pods`.
fn pods_by_name(pods: &[GatewayPod]) -> HashMap<String, usize> {
    let mut named = HashMap::new();
    for (number, pod) in pods.iter().enumerate() {
        named.insert(pod.target.host_and_port().to_owned(), number);
    }
    for (number, pod) in pods.iter().enumerate() {
        let Some(name) = &pod.identity else { continue };
        let shared = pods.iter().filter(|p| p.identity.as_ref() == Some(name));
        if shared.count() == 1 {
            named.insert(name.clone(), number);
        }
    }
    named
}
