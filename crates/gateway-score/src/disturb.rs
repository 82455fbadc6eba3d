//! `--disturb 2=fail@5..15`: a pod that goes wrong while the workload is played.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use hyper::Method;
use hyper::body::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::pod::{PATIENCE, Pod};
use vllm_sim_command_line::refuse;
use vllm_sim_engine::SimTime;
use vllm_sim_replay::Scaling;
use vllm_sim_replay::online::Target;

/// How much slower a slow pod is.
const SLOWER: u32 = 8;

/// What a pod does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// It answers every request with 503, and `/health` with 200.
    Fail,
    /// It answers everything with 503.
    Down,
    /// It sleeps: requests wait until it wakes up.
    Sleep,
    /// Its steps take longer.
    Slow,
}

/// A pod that goes wrong, and when.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Disturbance {
    /// Its place in the fleet, from 0.
    pub(super) pod: usize,
    trouble: Trouble,
    from: Duration,
    to: Option<Duration>,
}

impl Disturbance {
    /// Reads `POD=TROUBLE`, `POD=TROUBLE@FROM` or `POD=TROUBLE@FROM..TO`, in seconds.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self> {
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
                    "fail" => Trouble::Fail,
                    "down" => Trouble::Down,
                    "sleep" => Trouble::Sleep,
                    "slow" => Trouble::Slow,
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

    async fn begin(&self, pod: &Target) -> Result<(), String> {
        let wanted = match self.trouble {
            Trouble::Sleep => return post(pod, "/sleep?level=1", Bytes::new()).await,
            Trouble::Fail => {
                json!({"failure-injection-rate": 100, "failure-types": ["server_error"]})
            }
            Trouble::Down => json!({
                "failure-injection-rate": 100,
                "failure-types": ["server_error"],
                "health-status": 503,
            }),
            Trouble::Slow => json!({"latency-factor": SLOWER}),
        };
        post(pod, "/admin/config", wanted.to_string().into()).await
    }

    async fn end(&self, pod: &Target, before: &Value) -> Result<(), String> {
        match self.trouble {
            Trouble::Sleep => post(pod, "/wake_up", Bytes::new()).await,
            _ => post(pod, "/admin/config", before.to_string().into()).await,
        }
    }
}

async fn post(pod: &Target, path: &str, body: Bytes) -> Result<(), String> {
    let answer = pod.call(Method::POST, path, body, PATIENCE).await?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("{path} answers {status}")),
    }
}

/// When a pod could serve nobody, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outage {
    pub(super) pod: usize,
    pub(super) from: f64,
    pub(super) to: f64,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the histories of pods have this time, too"
)]
fn since_1970() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

fn end_outages(outages: &Mutex<Vec<Outage>>, pod: usize) {
    let mut outages = outages.lock();
    let open = outages.iter_mut().filter(|outage| outage.to.is_infinite());
    for outage in open.filter(|outage| outage.pod == pod) {
        outage.to = since_1970();
    }
}

/// Disturbances of a fleet, with what is needed to end them.
pub(super) struct Troubles {
    all: Vec<(Disturbance, Arc<Target>, Value)>,
    outages: Arc<Mutex<Vec<Outage>>>,
}

impl Troubles {
    /// Looks whether the pods let themselves be disturbed.
    ///
    /// # Errors
    /// A pod that does not exist, or does not.
    pub(super) async fn prepare(all: &[Disturbance], pods: &[Pod]) -> Result<Self> {
        let mut ready = Vec::new();
        for disturbance in all {
            let number = disturbance.pod;
            let Some(pod) = pods.get(number) else {
                refuse!(
                    "--disturb: there is no pod {number}, the last is {}",
                    pods.len() - 1
                );
            };
            let Some(settings) = pod.json("/admin/config").await else {
                bail!(
                    "--disturb: {} has no /admin/config: start it with --dev-mode, or give \
                     --admin-api-key",
                    pod.url
                );
            };
            let keys = [
                "failure-injection-rate",
                "failure-types",
                "health-status",
                "latency-factor",
            ];
            let before: serde_json::Map<_, _> = keys
                .iter()
                .map(|key| ((*key).to_owned(), settings[*key].clone()))
                .collect();
            ready.push((disturbance.clone(), pod.target.clone(), before.into()));
        }
        Ok(Self {
            all: ready,
            outages: Arc::default(),
        })
    }

    /// Begins and ends each in its time; what fails is a note.
    pub(super) async fn run(&self) -> Vec<String> {
        let mut running = tokio::task::JoinSet::new();
        for (disturbance, pod, before) in self.all.iter().cloned() {
            let outages = self.outages.clone();
            running.spawn(async move {
                tokio::time::sleep(disturbance.from).await;
                disturbance.begin(&pod).await?;
                if disturbance.trouble != Trouble::Slow {
                    outages.lock().push(Outage {
                        pod: disturbance.pod,
                        from: since_1970(),
                        to: f64::INFINITY,
                    });
                }
                let Some(to) = disturbance.to else {
                    return Ok(());
                };
                tokio::time::sleep(to.saturating_sub(disturbance.from)).await;
                end_outages(&outages, disturbance.pod);
                disturbance.end(&pod, &before).await
            });
        }
        let ended: Vec<Result<(), String>> = running.join_all().await;
        let failed = ended.into_iter().filter_map(Result::err);
        failed
            .map(|problem| format!("--disturb: {problem}"))
            .collect()
    }

    /// When pods could serve nobody.
    pub(super) fn outages(&self) -> Vec<Outage> {
        self.outages.lock().clone()
    }

    /// Ends all, whether they began or not.
    pub(super) async fn end(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (disturbance, pod, before) in &self.all {
            if let Err(problem) = disturbance.end(pod, before).await {
                notes.push(format!("--disturb: {problem}"));
            }
        }
        notes
    }
}

/// The same for the ideal, which does without a pod as long as it is disturbed.
pub(super) fn scaling(all: &[Disturbance], pods: u32) -> Scaling {
    let at = |time: Duration| SimTime::ZERO + time;
    let times = all.iter().flat_map(|one| [Some(one.from), one.to]);
    let mut times: Vec<Duration> = times.flatten().collect();
    times.sort_unstable();
    times.dedup();
    let schedule = times.into_iter().map(|time| {
        let is_on = |one: &&Disturbance| one.from <= time && one.to.is_none_or(|to| time < to);
        let mut disturbed: Vec<usize> = all.iter().filter(is_on).map(|one| one.pod).collect();
        disturbed.sort_unstable();
        disturbed.dedup();
        (at(time), pods.saturating_sub(disturbed.len() as u32).max(1))
    });
    Scaling {
        schedule: schedule.collect(),
        ..Scaling::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_and_a_window_are_read() {
        let all = ["0=fail@5..15", "1=slow@10", "1=down@10..20"];
        let all: Vec<_> = all.map(|text| Disturbance::parse(text).unwrap()).into();
        let schedule = scaling(&all, 3).schedule;
        let shown = schedule
            .iter()
            .map(|(at, pods)| (at.nanos() / 1_000_000_000, *pods));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [(5, 2), (10, 1), (15, 2), (20, 2)]
        );
        for text in ["fail", "0=burn", "0=fail@5..4", "x=fail", "0=fail@-1"] {
            let error = Disturbance::parse(text).unwrap_err().to_string();
            assert!(error.contains("must be POD=TROUBLE@FROM..TO"), "{error}");
        }
    }
}
