use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value};

use vllm_sim_command_line::{UsageError, refuse};
use vllm_sim_dynamo_run as dynamo_run;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_explain::DeploymentPredictionEvidence;
use vllm_sim_replay::{
    EndpointPickerConfig, EndpointScorer, KvAwareRouterConfig, KvTransferTime, PoolSpec,
    RouterConfig, RouterQueuePolicy, WorkerScaling,
};

use super::deploy::{DeploymentFactory, EngineDeployment, ResultProvenance, StepTimeSettingSource};
use super::options::{PoolArgs, QueuePolicyName, RouterName, read_json_or_file};
use super::scaling::{build_worker_scaling, parse_seconds};
use super::without_effect::{warn_of_unread_worker_flags, warn_once};

/// Default bandwidth of KV transfers between prefill and decode workers, in GB/s. KV caches of
/// gpt-oss-120b that NIXL pulls between H200 servers arrive at this rate over links of 400 Gb/s.
///
/// **Source:** llm-d `guides/p2p-kv-cache-sharing/benchmark-results/gpt-oss-120b-h200.md`: 2,048
/// tokens take 49 ms, 49,152 take 550 ms, of which the front end has 3.2 us a token.
const DEFAULT_KV_TRANSFER_GB_PER_S: u32 = 10;

const KV_TRANSFER_BANDWIDTH_FLAG: &str = "--kv-transfer-bandwidth";

/// Flags of `serve` for the duration of KV transfers. If none is set, the default bandwidth applies.
const KV_TRANSFER_FLAGS: [&str; 3] = [
    KV_TRANSFER_BANDWIDTH_FLAG,
    "--kv-cache-transfer-latency",
    "--kv-cache-transfer-time-per-token",
];

#[derive(Clone)]
struct WorkerDeployment {
    engine: SchedulerSpec,
    /// Number of GPUs per data-parallel rank of the engine.
    gpus: u32,
    /// Name of the GPU; `None` if it is unknown.
    gpu_name: Option<String>,
    ranks: u32,
    /// Duration of KV cache transfers to the decode pool.
    transfer: KvTransferTime,
}

impl WorkerDeployment {
    fn new(deployment: &EngineDeployment) -> Self {
        Self {
            engine: deployment.engine.clone(),
            gpus: deployment.gpus,
            gpu_name: deployment.provenance.gpu.clone(),
            ranks: deployment.ranks,
            transfer: KvTransferTime {
                fixed: deployment.kv_transfer.0,
                ns_per_token: deployment.kv_transfer.1.as_nanos() as f64,
                whole: false,
            },
        }
    }

    fn engine_specs(&self, workers: u32) -> Vec<SchedulerSpec> {
        vec![self.engine.clone(); (workers * self.ranks) as usize]
    }

    /// Returns the number of data-parallel ranks that step together in a disaggregated deployment.
    fn lockstep_ranks(&self) -> u32 {
        match self.engine {
            SchedulerSpec::Vllm(_) | SchedulerSpec::Mocker(_) => self.ranks,
            SchedulerSpec::Pool(_) | SchedulerSpec::Sglang(_) => 1,
        }
    }
}

/// Pools of workers of one deployment, as simulated by a replay.
#[derive(Debug, Clone)]
pub struct WorkerPools {
    /// Pool of the prefill workers; `None` unless the deployment is disaggregated.
    pub prefill: Option<PoolSpec>,
    /// Pool of the workers that decode, or that do both prefill and decode.
    pub serving: PoolSpec,
    /// Number of GPUs per engine of the prefill pool, and of the other pool (the mean if they
    /// differ).
    pub gpus: (u32, u32),
    /// Names of the GPU of the prefill workers, and of the other workers; `None` if unknown.
    pub gpu_names: (Option<String>, Option<String>),
    /// Number of data-parallel ranks per prefill worker, and per other worker; each rank is an
    /// engine.
    pub ranks: (u32, u32),
    /// Measured errors of the latencies that the engine's latency model predicts, or the reason why
    /// none are known.
    pub evidence: Result<DeploymentPredictionEvidence, &'static str>,
    /// Name of the routing policy, and the router's settings from the command line.
    pub router: (String, Option<String>),
    /// Seed of all random draws of the simulation.
    pub seed: u64,
    /// Source of the step times that the flags common to all workers select.
    pub step_times: StepTimeSettingSource,
    /// Names and values that describe the deployment in a report.
    pub about: Vec<(String, String)>,
    /// Warnings about the common settings of the engines.
    pub warnings: Vec<String>,
    /// Whether the names and values of the report's description (`about`) apply to every worker.
    pub has_one_worker_kind: bool,
    /// Model and GPU of the deployment, and source of its step times.
    pub provenance: ResultProvenance,
}

/// Builds a worker from engine arguments of Dynamo's mocker, which are in the value of `flag`.
fn mocker_worker(flag: &str, value: &Value) -> Result<WorkerDeployment> {
    let tables = dynamo_run::python_env_kernel_table_folder();
    let folders =
        dynamo_run::DynamoRunFolders { run: Path::new("."), kernel_tables: tables.as_deref() };
    let worker = dynamo_run::parse_dynamo_worker(value, folders)
        .map_err(|error| UsageError(format!("{flag}: {error:#}")))?;
    if worker.ranks > 1 {
        refuse!("{flag}: dp_size above 1 is modelled for --dynamo-run alone");
    }
    Ok(WorkerDeployment {
        engine: worker.engine,
        gpus: worker.gpus,
        gpu_name: None,
        ranks: 1,
        transfer: worker.transfer,
    })
}

fn optional_mocker_worker(flag: &str, text: Option<&str>) -> Result<Option<WorkerDeployment>> {
    text.map(|text| mocker_worker(flag, &read_json_or_file(flag, text)?)).transpose()
}

/// Builds the worker pools from the arguments of `replay`; `flags` describe the engine.
pub fn build_worker_pools(
    args: &PoolArgs,
    flags: &[String],
    deploy: DeploymentFactory<'_>,
) -> Result<WorkerPools> {
    let own_flags = PoolFlags::parse_json(args.pool_flags.as_deref())?;
    let (mut plain, flags) = own_flags.deploy_common_engine(args, flags, deploy)?;
    let shared = optional_mocker_worker("--extra-engine-args", args.extra_engine_args.as_deref())?;
    let own = WorkerDeployment::new(&plain);
    let router = router_config(args)?;
    let pool = |engines: Vec<SchedulerSpec>, router: RouterConfig| -> Result<PoolSpec> {
        Ok(PoolSpec {
            engines,
            router,
            ranks: 1,
            transfer: KvTransferTime::default(),
            startup: parse_seconds("--startup-time", args.startup_time)?,
            cold: args.cold_start,
            scaling: build_worker_scaling(args)?,
        })
    };
    let is_common = args.workers.is_none() && shared.is_none();
    let mut gpu_names = (None, plain.provenance.gpu.clone().filter(|_| is_common));
    let (prefill, serving, gpus, ranks) = match (args.num_prefill_workers, args.num_decode_workers)
    {
        (Some(prefill), Some(decode)) => {
            let usual = shared.unwrap_or(own);
            let (first, second) =
                prefill_and_decode_workers(args, (&flags, &own_flags), deploy, usual)?;
            let transfers = describe_kv_transfers(&first, &second, &plain.about, args);
            plain.provenance.kv_transfers = Some(transfers);
            let (before, after) = router.prefill_and_decode_routers();
            let prefill = PoolSpec {
                transfer: first.transfer,
                ranks: first.lockstep_ranks(),
                ..pool(first.engine_specs(prefill), before)?
            };
            let decode = PoolSpec {
                ranks: second.lockstep_ranks(),
                ..pool(second.engine_specs(decode), after)?
            };
            gpu_names = (first.gpu_name, second.gpu_name);
            (Some(prefill), decode, (first.gpus, second.gpus), (first.ranks, second.ranks))
        }
        _ => {
            let usual = shared.unwrap_or(own);
            let (engines, gpus, ranks) = serving_workers(args, usual, &flags, deploy)?;
            (None, PoolSpec { ranks, ..pool(engines, router)? }, (0, gpus), (1, ranks))
        }
    };
    check_scaling(prefill.as_ref(), &serving.scaling, ranks.0.max(ranks.1))?;
    let has_one_worker_kind = args.has_one_worker_kind();
    let (provenance, evidence) = if has_one_worker_kind {
        plain.step_times.warn_if_default_step_times();
        (plain.provenance, plain.evidence)
    } else {
        let provenance = provenance_of_several_kinds(plain.provenance, &gpu_names);
        (provenance, Err("its workers differ, and servers of one kind were recorded"))
    };
    Ok(WorkerPools {
        prefill,
        serving,
        gpus,
        gpu_names,
        ranks,
        evidence,
        router: (router_name(args), args.router_config.clone()),
        seed: plain.seed,
        step_times: plain.step_times,
        about: plain.about,
        warnings: plain.warnings,
        has_one_worker_kind,
        provenance,
    })
}

/// Returns the engines of one pool, the GPUs of each rank and the ranks of each engine: those of
/// `--workers`, else `--num-workers` times `usual`.
fn serving_workers(
    args: &PoolArgs,
    usual: WorkerDeployment,
    flags: &[String],
    deploy: DeploymentFactory<'_>,
) -> Result<(Vec<SchedulerSpec>, u32, u32)> {
    let Some(file) = &args.workers else {
        return Ok((usual.engine_specs(args.num_workers), usual.gpus, usual.ranks));
    };
    let (engines, gpus) = read_workers_file(file, flags, deploy)?;
    Ok((engines, gpus, 1))
}

/// Returns the provenance of workers of several kinds; `common` is that of the common flags.
fn provenance_of_several_kinds(
    common: ResultProvenance,
    gpu_names: &(Option<String>, Option<String>),
) -> ResultProvenance {
    let gpu = match gpu_names {
        (Some(first), Some(second)) if first != second => Some(format!("{first}, {second}")),
        _ => common.gpu,
    };
    let step_times = format!("several, by worker; {}", common.step_times);
    ResultProvenance { step_times, gpu, ..common }
}

fn router_name(args: &PoolArgs) -> String {
    let name = args.router.to_possible_value();
    name.map_or_else(String::new, |name| name.get_name().to_owned())
}

impl PoolArgs {
    /// Returns the flags that replace the common flags of the engine for some workers, and whether
    /// each is on the command line.
    pub fn worker_specific_engine_flags(&self) -> [(&'static str, bool); 5] {
        [
            ("--extra-engine-args", self.extra_engine_args.is_some()),
            ("--prefill-engine-args", self.prefill_engine_args.is_some()),
            ("--decode-engine-args", self.decode_engine_args.is_some()),
            ("--pool-flags", self.pool_flags.is_some()),
            ("--workers", self.workers.is_some()),
        ]
    }

    /// Returns whether the common flags of the engine alone describe every worker.
    pub fn has_one_worker_kind(&self) -> bool {
        self.worker_specific_engine_flags().iter().all(|(_, given)| !given)
    }
}

/// Flags of `serve` for the prefill or the decode workers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolFlags {
    prefill: Option<Map<String, Value>>,
    decode: Option<Map<String, Value>>,
}

impl PoolFlags {
    fn parse_json(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else {
            return Ok(Self::default());
        };
        let value = read_json_or_file("--pool-flags", text)?;
        let read = serde_json::from_value(value);
        let flags: Self = read.map_err(|error| UsageError(format!("--pool-flags: {error}")))?;
        flags.check_equal_caches()?;
        Ok(flags)
    }

    /// Refuses a model of one pool, whose KV cache the other could not read, and warns about a data
    /// type of the KV cache that the pools do not share.
    fn check_equal_caches(&self) -> Result<()> {
        let value = |pool: &Option<Map<String, Value>>, wanted: &str| {
            let flags = pool.iter().flatten();
            let mut found = flags.filter(|(name, _)| name.replace('_', "-") == wanted);
            found.next().map(|(_, value)| value.clone())
        };
        let values = |flag: &str| [&self.prefill, &self.decode].map(|pool| value(pool, flag));
        if values("model").iter().any(Option::is_some) {
            refuse!("--pool-flags: model: both pools serve one model; name it with --model");
        }
        let [prefill, decode] = values("kv-cache-dtype");
        if prefill != decode {
            warn_once(
                "--pool-flags: kv-cache-dtype: vLLM's connectors refuse pools whose KV caches have \
                 different data types"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the engine flags that describe the deployment in reports and in the check of GPU
    /// memory.
    ///
    /// If both pools have their own flags, these are the flags of the decode workers.
    fn common_engine_flags(&self, flags: &[String]) -> Vec<String> {
        match (&self.prefill, &self.decode) {
            (Some(_), Some(own)) => append_json_flags(flags, own),
            _ => flags.to_vec(),
        }
    }

    /// Builds the engine that describes the deployment, and returns it with the flags of all workers.
    ///
    /// These are `flags`, and the default bandwidth of KV transfers between prefill and decode
    /// workers, unless a flag sets the duration of the transfers.
    fn deploy_common_engine(
        &self,
        args: &PoolArgs,
        flags: &[String],
        deploy: DeploymentFactory<'_>,
    ) -> Result<(EngineDeployment, Vec<String>)> {
        let plain = deploy(&self.common_engine_flags(flags))?;
        let own = [&self.prefill, &self.decode].into_iter().flatten().flat_map(Map::keys);
        let own = own.map(|name| format!("--{}", name.replace('_', "-")));
        let mut typed = plain.about.iter().map(|(name, _)| name.clone()).chain(own);
        let is_split = args.num_prefill_workers.is_some() && args.extra_engine_args.is_none();
        let is_typed = typed.any(|name| KV_TRANSFER_FLAGS.contains(&name.as_str()));
        if !is_split || is_typed {
            return Ok((plain, flags.to_vec()));
        }
        let default = format!("{KV_TRANSFER_BANDWIDTH_FLAG}={DEFAULT_KV_TRANSFER_GB_PER_S}");
        let flags = [flags, &[default]].concat();
        Ok((deploy(&self.common_engine_flags(&flags))?, flags))
    }
}

/// Describes the duration of KV transfers from a prefill worker to a decode worker; `about` has the
/// flags that all workers share.
fn describe_kv_transfers(
    prefill: &WorkerDeployment,
    decode: &WorkerDeployment,
    about: &[(String, String)],
    args: &PoolArgs,
) -> String {
    let (time, has_bandwidth) = match decode.engine {
        // Decode workers fetch the KV cache themselves.
        SchedulerSpec::Pool(_) => (decode.transfer, false),
        SchedulerSpec::Vllm(_) => (decode.transfer, true),
        SchedulerSpec::Mocker(_) | SchedulerSpec::Sglang(_) => (prefill.transfer, true),
    };
    let mut parts = Vec::new();
    if !time.fixed.is_zero() {
        parts.push(format!("{} ms", time.fixed.as_secs_f64() * 1e3));
    }
    if time.ns_per_token > 0.0 {
        parts.push(format!("{:.3} us per prompt token", time.ns_per_token / 1e3));
    }
    let set = about.iter().rev().find(|(name, _)| name == KV_TRANSFER_BANDWIDTH_FLAG);
    // Workers with flags of their own may have another bandwidth.
    let set = set.filter(|_| has_bandwidth && args.has_one_worker_kind());
    let set = set.map(|(name, value)| format!(" ({name} {value})"));
    match (parts.is_empty(), set) {
        (true, Some(set)) if !set.ends_with(" 0)") => {
            format!("no time, because the KV cache size of a token is unknown{set}")
        }
        (true, set) => format!("no time{}", set.unwrap_or_default()),
        (false, set) => format!("{}{}", parts.join(" and "), set.unwrap_or_default()),
    }
}

/// Creates a prefill worker and a decode worker; `usual` has the default configuration of both.
fn prefill_and_decode_workers(
    args: &PoolArgs,
    (flags, own): (&[String], &PoolFlags),
    deploy: DeploymentFactory<'_>,
    usual: WorkerDeployment,
) -> Result<(WorkerDeployment, WorkerDeployment)> {
    let one = |flag, engine: Option<&str>, own: Option<&Map<_, _>>| -> Result<WorkerDeployment> {
        Ok(match (optional_mocker_worker(flag, engine)?, own) {
            (Some(worker), _) => worker,
            (None, Some(own)) => WorkerDeployment::new(&deploy(&append_json_flags(flags, own))?),
            (None, None) => usual.clone(),
        })
    };
    let engine = args.prefill_engine_args.as_deref();
    let first = one("--prefill-engine-args", engine, own.prefill.as_ref())?;
    let engine = args.decode_engine_args.as_deref();
    let second = one("--decode-engine-args", engine, own.decode.as_ref())?;
    if first.engine.block_size() != second.engine.block_size() {
        let (a, b) = (first.engine.block_size(), second.engine.block_size());
        refuse!("blocks of prefill workers have {a} tokens, of decode workers {b}");
    }
    Ok((first, second))
}

fn check_scaling(prefill: Option<&PoolSpec>, scaling: &WorkerScaling, ranks: u32) -> Result<()> {
    if prefill.is_some() && !scaling.losses.is_empty() {
        refuse!("--lose-workers is not modelled for pools of prefill and decode workers");
    }
    if *scaling != WorkerScaling::default() && ranks > 1 {
        refuse!(
            "--scale, --autoscale-max and --lose-workers change single engines, and a worker of \
             --data-parallel-size is {ranks} that share experts"
        );
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerGroup {
    /// Number of workers of the group. Default 1.
    count: Option<u32>,
    /// Flags of `vllm-sim serve`, added to those of the command line.
    #[serde(default)]
    flags: Map<String, Value>,
    /// Engine arguments of Dynamo's mocker, which replace `flags`.
    engine_args: Option<Value>,
}

/// Returns the flags of the command line followed by the flags in a JSON object.
fn append_json_flags(flags: &[String], more: &Map<String, Value>) -> Vec<String> {
    let more = more.iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        format!("--{}={value}", name.replace('_', "-"))
    });
    flags.iter().cloned().chain(more).collect()
}

/// Reads the engines of a `--workers` file, and the mean number of GPUs of these engines.
fn read_workers_file(
    file: &Path,
    flags: &[String],
    deploy: DeploymentFactory<'_>,
) -> Result<(Vec<SchedulerSpec>, u32)> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("--workers: {shown}"))?;
    let groups: Vec<WorkerGroup> =
        serde_saphyr::from_str(&text).with_context(|| format!("--workers: {shown}"))?;
    let (mut engines, mut gpus) = (Vec::new(), 0);
    for group in &groups {
        let worker = match &group.engine_args {
            Some(value) => mocker_worker("--workers", value)?,
            None => WorkerDeployment::new(&deploy(&append_json_flags(flags, &group.flags))?),
        };
        if worker.ranks > 1 {
            refuse!("--workers: --data-parallel-size above 1 is not modelled in a list");
        }
        let count = group.count.unwrap_or(1);
        gpus += worker.gpus * count;
        engines.extend(std::iter::repeat_n(worker.engine, count as usize));
    }
    if engines.is_empty() {
        refuse!("--workers: {shown} has no workers");
    }
    let sizes = engines.iter().map(SchedulerSpec::block_size);
    if sizes.clone().min() != sizes.max() {
        refuse!("--workers: all workers need the same --block-size");
    }
    let mean = f64::from(gpus) / engines.len() as f64;
    Ok((engines, (mean.round() as u32).max(1)))
}

fn router_config(args: &PoolArgs) -> Result<RouterConfig> {
    let config = match &args.router_config {
        Some(text) => read_json_or_file("--router-config", text)?,
        None => Value::Object(Map::new()),
    };
    if !args.kv_event_lag_ms.is_finite() || args.kv_event_lag_ms < 0.0 {
        let lag = args.kv_event_lag_ms;
        refuse!("--kv-event-lag-ms is {lag}, must be a number of 0 or more");
    }
    let event_lag = Duration::from_secs_f64(args.kv_event_lag_ms / 1e3);
    warn_of_unread_router_flags(args);
    warn_of_unread_worker_flags(args);
    Ok(match args.router {
        RouterName::RoundRobin => RouterConfig::RoundRobin,
        RouterName::Random => RouterConfig::Random,
        RouterName::SessionHash => RouterConfig::SessionHash,
        RouterName::LeastLoaded => RouterConfig::LeastLoaded,
        RouterName::PowerOfTwo => RouterConfig::PowerOfTwo,
        RouterName::KvRouter => {
            let read = dynamo_run::router(&config);
            let read = read.map_err(|error| UsageError(format!("--router-config: {error:#}")))?;
            RouterConfig::Kv(KvAwareRouterConfig {
                queue_threshold: args.router_queue_threshold.or(read.queue_threshold),
                policy: match args.router_queue_policy {
                    None => read.policy,
                    Some(QueuePolicyName::Fcfs) => RouterQueuePolicy::Fcfs,
                    Some(QueuePolicyName::Lcfs) => RouterQueuePolicy::Lcfs,
                    Some(QueuePolicyName::Wspt) => RouterQueuePolicy::Wspt,
                },
                temperature: args.router_temperature.unwrap_or(read.temperature),
                event_lag,
                ..read
            })
        }
        RouterName::LlmD => {
            let mut scorers = EndpointPickerConfig { event_lag, ..EndpointPickerConfig::default() };
            let Some(weights) = config.as_object() else {
                refuse!("--router-config: must be a JSON object");
            };
            if !weights.is_empty() {
                scorers.weights = weights
                    .iter()
                    .map(|(name, weight)| Ok((scorer_by_name(name)?, json_number(name, weight)?)))
                    .collect::<Result<_>>()?;
            }
            RouterConfig::Scorers(scorers)
        }
    })
}

/// Logs a warning about the flags that the chosen router does not read: only once per process,
/// because a sweep builds a router for every point.
fn warn_of_unread_router_flags(args: &PoolArgs) {
    static WARNED: Once = Once::new();
    let (is_kv, is_llmd) = (args.router == RouterName::KvRouter, args.router == RouterName::LlmD);
    let flags = [
        ("--router-config", args.router_config.is_some(), is_kv || is_llmd),
        ("--kv-event-lag-ms", args.kv_event_lag_ms > 0.0, is_kv || is_llmd),
        ("--router-queue-threshold", args.router_queue_threshold.is_some(), is_kv),
        ("--router-queue-policy", args.router_queue_policy.is_some(), is_kv),
        ("--router-temperature", args.router_temperature.is_some(), is_kv),
    ];
    let unread = flags.into_iter().filter(|(_, given, is_read)| *given && !is_read);
    let unread: Vec<&str> = unread.map(|(flag, ..)| flag).collect();
    if !unread.is_empty() {
        let router = router_name(args);
        WARNED.call_once(|| {
            tracing::warn!("{}: no effect with --router {router}", unread.join(", "));
        });
    }
}

fn json_number(name: &str, value: &Value) -> Result<f64> {
    let number = value.as_f64().filter(|n| n.is_finite() && *n >= 0.0);
    let Some(number) = number else {
        refuse!("--router-config: {name} is {value}, must be 0 or more");
    };
    Ok(number)
}

fn scorer_by_name(name: &str) -> Result<EndpointScorer> {
    Ok(match name {
        "queue-scorer" | "queue" => EndpointScorer::Queue,
        "kv-cache-utilization-scorer" | "kv-cache-scorer" | "kv-usage" => EndpointScorer::KvUsage,
        "prefix-cache-scorer" | "precise-prefix-cache-scorer" | "prefix" => EndpointScorer::Prefix,
        "running-requests-size-scorer" | "running" => EndpointScorer::Running,
        "session-affinity-scorer" | "session" => EndpointScorer::Session,
        "lora-affinity-scorer" | "lora" => EndpointScorer::Lora,
        _ => refuse!(
            "--router-config: {name:?} is not known; allowed are queue-scorer, \
             kv-cache-utilization-scorer, prefix-cache-scorer, running-requests-size-scorer, \
             session-affinity-scorer, lora-affinity-scorer"
        ),
    })
}
