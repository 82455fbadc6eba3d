//! Injects faults into pods during the workload: `--disturb 2=fail@5..15`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use hyper::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::pod::{GatewayPod, send_admin_request};
use vllm_sim_command_line::refuse;
use vllm_sim_engine::SimTime;
use vllm_sim_replay::WorkerScaling;
use vllm_sim_replay::online::TargetServer;

/// Prefix of the report's notes about faults that could not be injected.
pub(super) const FAULT_PROBLEM_PREFIX: &str = "--disturb: ";

const SLOW_LATENCY_FACTOR: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    /// Fault: every request fails with 503, but `/health` returns 200.
    Fail,
    /// Fault: every request and `/health` return 503.
    Down,
    /// Fault: the pod sleeps, and requests wait until it wakes up.
    Sleep,
    Slow,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScheduledPodFault {
    /// Index of the faulty pod in the fleet, from 0.
    pub(super) pod: usize,
    trouble: FaultKind,
    from: Duration,
    to: Option<Duration>,
}

impl ScheduledPodFault {
    /// Parses a fault as `POD=TROUBLE`, `POD=TROUBLE@FROM` or `POD=TROUBLE@FROM..TO`, with times in
    /// seconds.
    ///
    /// # Errors
    /// Returns a usage error for an invalid fault.
    pub(super) fn parse_scheduled_pod_fault(text: &str) -> Result<Self> {
        let read = || {
            let (pod, rest) = text.split_once('=')?;
            let (trouble, window) = rest.split_once('@').unwrap_or((rest, "0"));
            let (from, to) = match window.split_once("..") {
                Some((from, to)) => (from, Some(to)),
                None => (window, None),
            };
            let seconds = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
            let disturbance = Self {
                pod: pod.trim().parse().ok()?,
                trouble: match trouble {
                    "fail" => FaultKind::Fail,
                    "down" => FaultKind::Down,
                    "sleep" => FaultKind::Sleep,
                    "slow" => FaultKind::Slow,
                    _ => return None,
                },
                from: seconds(from)?,
                to: match to {
                    Some(to) => Some(seconds(to)?),
                    None => None,
                },
            };
            let is_window = disturbance.to.is_none_or(|to| to > disturbance.from);
            is_window.then_some(disturbance)
        };
        match read() {
            Some(disturbance) => Ok(disturbance),
            None => refuse!(
                "--disturb {text:?} must be POD=TROUBLE@FROM..TO, such as 0=fail@5..15: the pod's \
                 number from 0, fail, down, sleep or slow, and seconds"
            ),
        }
    }
}

impl FaultKind {
    fn admin_settings(self) -> Value {
        match self {
            Self::Sleep => json!({}),
            Self::Fail => json!({"failure-injection-rate": 100, "failure-types": ["server_error"]}),
            Self::Down => json!({
                "failure-injection-rate": 100,
                "failure-types": ["server_error"],
                "health-status": 503,
            }),
            Self::Slow => json!({"latency-factor": SLOW_LATENCY_FACTOR}),
        }
    }
}

/// Returns the admin settings that inject the faults `troubles` into a pod. They are merged over
/// `before`, the settings of the pod without faults.
fn merge_fault_settings(before: &Value, troubles: impl Iterator<Item = FaultKind>) -> Value {
    let mut settings = before.clone();
    for trouble in troubles {
        if let (Value::Object(all), Value::Object(own)) = (&mut settings, trouble.admin_settings())
        {
            all.extend(own);
        }
    }
    settings
}

async fn post_admin_settings(pod: &TargetServer, path: &str, body: String) -> Result<(), String> {
    match send_admin_request(pod, Method::POST, path, body).await?.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("{path} returned {status}")),
    }
}

/// Time range in which a pod cannot serve, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PodOutage {
    pub(super) pod: usize,
    pub(super) from: f64,
    pub(super) to: f64,
}

#[expect(clippy::disallowed_methods, reason = "the histories of pods have this time, too")]
fn unix_time_seconds() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

struct FaultyPod {
    disturbance: ScheduledPodFault,
    target: Arc<TargetServer>,
    /// Admin settings of the pod before the run, restored after a fault.
    before: Value,
}

pub(super) struct PodFaultSchedule {
    all: Vec<FaultyPod>,
    /// Start times of the active faults, in seconds since 1970; the key is the index of the fault.
    active: Mutex<BTreeMap<usize, f64>>,
    outages: Mutex<Vec<PodOutage>>,
    /// Indices of the faults that have been injected so far.
    begun: Mutex<BTreeSet<usize>>,
    problems: Mutex<Vec<String>>,
}

impl PodFaultSchedule {
    /// Checks that all faulty pods accept changes of their admin settings.
    ///
    /// # Errors
    /// Returns an error for a pod that does not exist, or has no `/admin/config`.
    pub(super) async fn prepare_pod_faults(
        faults: &[ScheduledPodFault],
        pods: &[GatewayPod],
    ) -> Result<Self> {
        let mut ready = Vec::new();
        for disturbance in faults {
            let number = disturbance.pod;
            let Some(pod) = pods.get(number) else {
                refuse!("--disturb: there is no pod {number}, the last is {}", pods.len() - 1);
            };
            let Some(settings) = pod.get_json("/admin/config").await else {
                bail!(
                    "--disturb: {} has no /admin/config: start it with --dev-mode, or give \
                     --admin-api-key",
                    pod.url
                );
            };
            let keys =
                ["failure-injection-rate", "failure-types", "health-status", "latency-factor"];
            let before: serde_json::Map<_, _> =
                keys.iter().map(|key| ((*key).to_owned(), settings[*key].clone())).collect();
            ready.push(FaultyPod {
                disturbance: disturbance.clone(),
                target: pod.target.clone(),
                before: before.into(),
            });
        }
        Ok(Self {
            all: ready,
            active: Mutex::default(),
            outages: Mutex::default(),
            begun: Mutex::default(),
            problems: Mutex::default(),
        })
    }

    /// Sends a pod the admin settings for the faults that are active on it.
    async fn apply_active_faults(&self, index: usize) -> Result<(), String> {
        let FaultyPod { disturbance, target, before } = &self.all[index];
        let troubles: Vec<FaultKind> = {
            let active = self.active.lock();
            let all = active.keys().map(|index| &self.all[*index].disturbance);
            let own = all.filter(|other| other.pod == disturbance.pod);
            own.map(|other| other.trouble).collect()
        };
        if disturbance.trouble == FaultKind::Sleep {
            return match troubles.contains(&FaultKind::Sleep) {
                // If another fault makes the pod sleep, it sleeps on.
                true => post_admin_settings(target, "/sleep?level=1", String::new()).await,
                false => post_admin_settings(target, "/wake_up", String::new()).await,
            };
        }
        let wanted = merge_fault_settings(before, troubles.into_iter());
        post_admin_settings(target, "/admin/config", wanted.to_string()).await
    }

    async fn begin_fault(&self, index: usize) -> Result<(), String> {
        self.active.lock().insert(index, unix_time_seconds());
        self.apply_active_faults(index).await?;
        self.begun.lock().insert(index);
        Ok(())
    }

    async fn end_fault(&self, index: usize) -> Result<(), String> {
        let Some(from) = self.active.lock().remove(&index) else {
            return Ok(());
        };
        let disturbance = &self.all[index].disturbance;
        if disturbance.trouble != FaultKind::Slow {
            self.outages.lock().push(PodOutage {
                pod: disturbance.pod,
                from,
                to: unix_time_seconds(),
            });
        }
        self.apply_active_faults(index).await
    }

    pub(super) async fn inject_faults_until_end(self: Arc<Self>) {
        let mut running = tokio::task::JoinSet::new();
        for index in 0..self.all.len() {
            let this = self.clone();
            running.spawn(async move {
                let ScheduledPodFault { from, to, .. } = this.all[index].disturbance;
                tokio::time::sleep(from).await;
                this.record_problem(this.begin_fault(index).await);
                if let Some(to) = to {
                    tokio::time::sleep(to.saturating_sub(from)).await;
                    this.record_problem(this.end_fault(index).await);
                }
            });
        }
        running.join_all().await;
    }

    fn record_problem(&self, done: Result<(), String>) {
        let problem = done.err().map(|why| format!("{FAULT_PROBLEM_PREFIX}{why}"));
        self.problems.lock().extend(problem);
    }

    pub(super) fn pod_outages(&self) -> Vec<PodOutage> {
        let mut outages = self.outages.lock().clone();
        let active = self.active.lock();
        let open = active.iter().map(|(index, from)| (&self.all[*index].disturbance, *from));
        let open = open.filter(|(disturbance, _)| disturbance.trouble != FaultKind::Slow);
        outages.extend(open.map(|(disturbance, from)| PodOutage {
            pod: disturbance.pod,
            from,
            to: f64::INFINITY,
        }));
        outages
    }

    /// Ends all active faults, and returns the problems that occurred when faults were injected,
    /// each beginning with [`FAULT_PROBLEM_PREFIX`].
    pub(super) async fn end_all_pod_faults(&self) -> Vec<String> {
        for index in 0..self.all.len() {
            self.record_problem(self.end_fault(index).await);
        }
        let mut problems = std::mem::take(&mut *self.problems.lock());
        let begun = self.begun.lock();
        let never = self.all.iter().enumerate();
        let never = never.filter(|(index, _)| problems.is_empty() && !begun.contains(index));
        let never: Vec<String> = never
            .map(|(_, FaultyPod { disturbance, .. })| {
                let (pod, from) = (disturbance.pod, disturbance.from.as_secs_f64());
                format!(
                    "{FAULT_PROBLEM_PREFIX}pod {pod} was to fail at {from} s, after the end of the \
                     workload"
                )
            })
            .collect();
        problems.extend(never);
        problems
    }
}

/// Returns the worker counts over time for the ideal router, which avoids a pod during its faults.
pub(super) fn worker_counts_without_faulty_pods(
    all: &[ScheduledPodFault],
    pods: u32,
) -> WorkerScaling {
    let at = |time: Duration| SimTime::ZERO + time;
    let times = all.iter().flat_map(|one| [Some(one.from), one.to]);
    let mut times: Vec<Duration> = times.flatten().collect();
    times.sort_unstable();
    times.dedup();
    let schedule = times.into_iter().map(|time| {
        let is_on =
            |one: &&ScheduledPodFault| one.from <= time && one.to.is_none_or(|to| time < to);
        let mut disturbed: Vec<usize> = all.iter().filter(is_on).map(|one| one.pod).collect();
        disturbed.sort_unstable();
        disturbed.dedup();
        (at(time), pods.saturating_sub(disturbed.len() as u32).max(1))
    });
    WorkerScaling { schedule: schedule.collect(), ..WorkerScaling::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_faults_of_a_pod_combine() {
        let before = json!({"failure-injection-rate": 3, "failure-types": [], "health-status": 200, "latency-factor": 1});
        let both = merge_fault_settings(&before, [FaultKind::Slow, FaultKind::Down].into_iter());
        assert_eq!((&both["latency-factor"], &both["health-status"]), (&json!(8), &json!(503)));
        let left = merge_fault_settings(&before, [FaultKind::Down].into_iter());
        assert_eq!(
            (&left["latency-factor"], &left["failure-injection-rate"]),
            (&json!(1), &json!(100))
        );
        assert_eq!(merge_fault_settings(&before, [FaultKind::Sleep].into_iter()), before);
    }

    #[test]
    fn parses_pod_fault_and_time_range() {
        let all = ["0=fail@5..15", "1=slow@10", "1=down@10..20"];
        let all: Vec<_> =
            all.map(|text| ScheduledPodFault::parse_scheduled_pod_fault(text).unwrap()).into();
        let schedule = worker_counts_without_faulty_pods(&all, 3).schedule;
        let shown = schedule.iter().map(|(at, pods)| (at.as_nanos() / 1_000_000_000, *pods));
        assert_eq!(shown.collect::<Vec<_>>(), [(5, 2), (10, 1), (15, 2), (20, 2)]);
        for text in ["fail", "0=burn", "0=fail@5..4", "x=fail", "0=fail@-1"] {
            let error = ScheduledPodFault::parse_scheduled_pod_fault(text).unwrap_err().to_string();
            assert!(error.contains("must be POD=TROUBLE@FROM..TO"), "{error}");
        }
    }
}
