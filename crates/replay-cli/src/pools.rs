use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value};

use vllm_sim_command_line::{UsageError, refuse};
use vllm_sim_dynamo_run as dynamo_run;
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_explain::DeploymentEvidence;
use vllm_sim_replay::{
    KvConfig, PoolSpec, QueuePolicy, RouterConfig, Scaling, Scorer, ScorersConfig, TransferTime,
};

use super::deploy::{DeploymentFactory, Provenance};
use super::options::{PolicyName, PoolArgs, RouterName, json_or_file};
use super::scaling::{scaling, seconds};

#[derive(Clone)]
struct Worker {
    engine: EngineSpec,
    /// Number of GPUs per data-parallel rank.
    gpus: u32,
    ranks: u32,
    /// Duration of KV cache transfers to the decode pool.
    transfer: TransferTime,
}

impl Worker {
    fn engines(&self, workers: u32) -> Vec<EngineSpec> {
        vec![self.engine.clone(); (workers * self.ranks) as usize]
    }

    /// Returns the number of data-parallel ranks that step together in a disaggregated deployment.
    fn split_ranks(&self) -> u32 {
        match self.engine {
            EngineSpec::Vllm(_) | EngineSpec::Mocker(_) => self.ranks,
            EngineSpec::Pool(_) | EngineSpec::Sglang(_) => 1,
        }
    }
}

/// Pools of workers of one deployment, as simulated by a replay.
#[derive(Debug, Clone)]
pub struct Pools {
    /// Pool of the prefill workers; `None` unless the deployment is disaggregated.
    pub prefill: Option<PoolSpec>,
    /// Pool of the workers that decode, or that do both prefill and decode.
    pub serving: PoolSpec,
    /// Number of GPUs per engine of the prefill pool, and of the other pool (the mean if they
    /// differ).
    pub gpus: (u32, u32),
    /// Number of data-parallel ranks per prefill worker, and per other worker; each rank is an
    /// engine.
    pub ranks: (u32, u32),
    /// Measured errors of the latencies that the engine's latency model predicts, where known.
    pub evidence: Option<DeploymentEvidence>,
    /// Name of the routing policy, and the router's settings from the command line.
    pub router: (String, Option<String>),
    /// Seed of all random draws of the simulation.
    pub seed: u64,
    /// Names and values that describe the deployment in a report.
    pub about: Vec<(String, String)>,
    /// Model, GPU and source of the step times.
    pub provenance: Provenance,
}

fn mocker(flag: &str, text: Option<&str>) -> Result<Option<Worker>> {
    let Some(text) = text else {
        return Ok(None);
    };
    let value = json_or_file(flag, text)?;
    let tables = dynamo_run::environment_tables();
    let worker = dynamo_run::worker(&value, here(tables.as_deref()));
    let worker = worker.map_err(|error| UsageError(format!("{flag}: {error:#}")))?;
    if worker.ranks > 1 {
        refuse!("{flag}: dp_size above 1 is modelled for --dynamo-run alone");
    }
    Ok(Some(Worker {
        engine: worker.engine,
        gpus: worker.gpus,
        ranks: 1,
        transfer: worker.transfer,
    }))
}

/// Returns the folders for a recorded Dynamo run, with paths relative to the working directory.
fn here(kernel_tables: Option<&std::path::Path>) -> dynamo_run::Folders<'_> {
    dynamo_run::Folders {
        run: std::path::Path::new("."),
        kernel_tables,
    }
}

/// Builds the worker pools from the arguments of `replay`; `flags` describe the engine.
pub fn pools(args: &PoolArgs, flags: &[String], deploy: DeploymentFactory<'_>) -> Result<Pools> {
    let own_flags = PoolFlags::read(args.pool_flags.as_deref())?;
    let plain = deploy(&own_flags.common(flags))?;
    let shared = mocker("--extra-engine-args", args.extra_engine_args.as_deref())?;
    let own = Worker {
        engine: plain.engine.clone(),
        gpus: plain.gpus,
        ranks: plain.ranks,
        transfer: TransferTime::default(),
    };
    let router = router(args)?;
    let pool = |engines: Vec<EngineSpec>, router: RouterConfig| -> Result<PoolSpec> {
        Ok(PoolSpec {
            engines,
            router,
            ranks: 1,
            transfer: TransferTime::default(),
            startup: seconds("--startup-time", args.startup_time)?,
            cold: args.cold_start,
            scaling: scaling(args)?,
        })
    };
    let (prefill, serving, gpus, ranks) = match (args.num_prefill_workers, args.num_decode_workers)
    {
        (Some(prefill), Some(decode)) => {
            let usual = shared.unwrap_or(own);
            let (first, second) = split(args, (flags, &own_flags), deploy, usual)?;
            let (before, after) = router.split();
            let prefill = PoolSpec {
                transfer: first.transfer,
                ranks: first.split_ranks(),
                ..pool(first.engines(prefill), before)?
            };
            let decode = PoolSpec {
                ranks: second.split_ranks(),
                ..pool(second.engines(decode), after)?
            };
            let gpus = (first.gpus, second.gpus);
            (Some(prefill), decode, gpus, (first.ranks, second.ranks))
        }
        _ => {
            let (engines, gpus, ranks) = match &args.workers {
                Some(file) => {
                    let (engines, gpus) = different(file, flags, deploy)?;
                    (engines, gpus, 1)
                }
                None => {
                    let worker = shared.unwrap_or(own);
                    let engines = worker.engines(args.num_workers);
                    (engines, worker.gpus, worker.ranks)
                }
            };
            let pool = PoolSpec {
                ranks,
                ..pool(engines, router)?
            };
            (None, pool, (0, gpus), (1, ranks))
        }
    };
    check_scaling(prefill.as_ref(), &serving.scaling, ranks.0.max(ranks.1))?;
    let is_one_kind = is_one_kind(args);
    let provenance = match is_one_kind {
        true => plain.provenance,
        false => plain.provenance.of_several_workers(),
    };
    if is_one_kind {
        plain.step_times.warn_of_default();
    }
    Ok(Pools {
        prefill,
        serving,
        gpus,
        ranks,
        evidence: plain.evidence.filter(|_| is_one_kind),
        router: (router_name(args), args.router_config.clone()),
        seed: plain.seed,
        about: plain.about,
        provenance,
    })
}

fn router_name(args: &PoolArgs) -> String {
    let name = args.router.to_possible_value();
    name.map_or_else(String::new, |name| name.get_name().to_owned())
}

/// Returns whether the common flags alone describe every worker.
fn is_one_kind(args: &PoolArgs) -> bool {
    let others = [
        &args.extra_engine_args,
        &args.prefill_engine_args,
        &args.decode_engine_args,
        &args.pool_flags,
    ];
    others.iter().all(|other| other.is_none()) && args.workers.is_none()
}

/// Flags of `serve` for the prefill or the decode workers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolFlags {
    prefill: Option<Map<String, Value>>,
    decode: Option<Map<String, Value>>,
}

impl PoolFlags {
    fn read(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else {
            return Ok(Self::default());
        };
        let value = json_or_file("--pool-flags", text)?;
        let read = serde_json::from_value(value);
        Ok(read.map_err(|error| UsageError(format!("--pool-flags: {error}")))?)
    }

    /// Returns the flags of the engine whose memory is checked and that describes the deployment.
    ///
    /// If both pools have their own flags, these are the flags of the decode workers.
    fn common(&self, flags: &[String]) -> Vec<String> {
        match (&self.prefill, &self.decode) {
            (Some(_), Some(own)) => added(flags, own),
            _ => flags.to_vec(),
        }
    }
}

/// Creates a prefill worker and a decode worker; `usual` is the default for both.
fn split(
    args: &PoolArgs,
    (flags, own): (&[String], &PoolFlags),
    deploy: DeploymentFactory<'_>,
    usual: Worker,
) -> Result<(Worker, Worker)> {
    let one = |flag, engine: Option<&str>, own: Option<&Map<_, _>>| -> Result<Worker> {
        if let Some(worker) = mocker(flag, engine)? {
            return Ok(worker);
        }
        match own {
            Some(own) => worker(&added(flags, own), deploy),
            None => Ok(usual.clone()),
        }
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

fn check_scaling(prefill: Option<&PoolSpec>, scaling: &Scaling, ranks: u32) -> Result<()> {
    if prefill.is_some() && !scaling.losses.is_empty() {
        refuse!("--lose-workers is not modelled for pools of prefill and decode workers");
    }
    if *scaling != Scaling::default() && ranks > 1 {
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
    #[serde(default = "one")]
    count: u32,
    /// Flags of `vllm-sim serve`, added to those of the command line.
    #[serde(default)]
    flags: Map<String, Value>,
    /// Engine arguments of Dynamo's mocker, which replace `flags`.
    engine_args: Option<Value>,
}

fn one() -> u32 {
    1
}

/// Appends flags from a JSON object to the flags of the command line.
fn added(flags: &[String], more: &Map<String, Value>) -> Vec<String> {
    let more = more.iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        format!("--{}={value}", name.replace('_', "-"))
    });
    flags.iter().cloned().chain(more).collect()
}

fn worker(flags: &[String], deploy: DeploymentFactory<'_>) -> Result<Worker> {
    let found = deploy(flags)?;
    Ok(Worker {
        engine: found.engine,
        gpus: found.gpus,
        ranks: found.ranks,
        transfer: TransferTime::default(),
    })
}

/// Reads the engines of a `--workers` file, and the mean number of their GPUs.
fn different(
    file: &std::path::Path,
    flags: &[String],
    deploy: DeploymentFactory<'_>,
) -> Result<(Vec<EngineSpec>, u32)> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("--workers: {shown}"))?;
    let groups: Vec<WorkerGroup> =
        serde_saphyr::from_str(&text).with_context(|| format!("--workers: {shown}"))?;
    let (mut engines, mut gpus) = (Vec::new(), 0);
    for group in &groups {
        let (engine, each) = match &group.engine_args {
            Some(value) => {
                let tables = dynamo_run::environment_tables();
                let worker = dynamo_run::worker(value, here(tables.as_deref()))?;
                if worker.ranks > 1 {
                    refuse!("--workers: dp_size above 1 is modelled for --dynamo-run alone");
                }
                (worker.engine, worker.gpus)
            }
            None => {
                let found = deploy(&added(flags, &group.flags))?;
                if found.ranks > 1 {
                    refuse!("--workers: --data-parallel-size above 1 is not modelled in a list");
                }
                (found.engine, found.gpus)
            }
        };
        gpus += each * group.count;
        engines.extend(std::iter::repeat_n(engine, group.count as usize));
    }
    if engines.is_empty() {
        refuse!("--workers: {shown} has no workers");
    }
    let sizes = engines.iter().map(EngineSpec::block_size);
    if sizes.clone().min() != sizes.max() {
        refuse!("--workers: all workers need the same --block-size");
    }
    let mean = f64::from(gpus) / engines.len() as f64;
    Ok((engines, (mean.round() as u32).max(1)))
}

fn router(args: &PoolArgs) -> Result<RouterConfig> {
    let config = match &args.router_config {
        Some(text) => json_or_file("--router-config", text)?,
        None => Value::Object(Map::new()),
    };
    if !args.kv_event_lag_ms.is_finite() || args.kv_event_lag_ms < 0.0 {
        let lag = args.kv_event_lag_ms;
        refuse!("--kv-event-lag-ms is {lag}, must be a number of 0 or more");
    }
    let event_lag = Duration::from_secs_f64(args.kv_event_lag_ms / 1e3);
    Ok(match args.router {
        RouterName::RoundRobin => RouterConfig::RoundRobin,
        RouterName::Random => RouterConfig::Random,
        RouterName::SessionHash => RouterConfig::SessionHash,
        RouterName::LeastLoaded => RouterConfig::LeastLoaded,
        RouterName::PowerOfTwo => RouterConfig::PowerOfTwo,
        RouterName::KvRouter => {
            let read = dynamo_run::router(&config);
            let read = read.map_err(|error| UsageError(format!("--router-config: {error:#}")))?;
            RouterConfig::Kv(KvConfig {
                queue_threshold: args.router_queue_threshold.or(read.queue_threshold),
                policy: match args.router_queue_policy {
                    None => read.policy,
                    Some(PolicyName::Fcfs) => QueuePolicy::Fcfs,
                    Some(PolicyName::Lcfs) => QueuePolicy::Lcfs,
                    Some(PolicyName::Wspt) => QueuePolicy::Wspt,
                },
                temperature: args.router_temperature.unwrap_or(read.temperature),
                event_lag,
                ..read
            })
        }
        RouterName::LlmD => {
            let mut scorers = ScorersConfig {
                event_lag,
                ..ScorersConfig::default()
            };
            let Some(weights) = config.as_object() else {
                refuse!("--router-config: must be a JSON object");
            };
            if !weights.is_empty() {
                scorers.weights = weights
                    .iter()
                    .map(|(name, weight)| Ok((scorer(name)?, number(name, weight)?)))
                    .collect::<Result<_>>()?;
            }
            RouterConfig::Scorers(scorers)
        }
    })
}

fn number(name: &str, value: &Value) -> Result<f64> {
    let number = value.as_f64().filter(|n| n.is_finite() && *n >= 0.0);
    let Some(number) = number else {
        refuse!("--router-config: {name} is {value}, must be 0 or more");
    };
    Ok(number)
}

fn scorer(name: &str) -> Result<Scorer> {
    Ok(match name {
        "queue-scorer" | "queue" => Scorer::Queue,
        "kv-cache-utilization-scorer" | "kv-cache-scorer" | "kv-usage" => Scorer::KvUsage,
        "prefix-cache-scorer" | "precise-prefix-cache-scorer" | "prefix" => Scorer::Prefix,
        "running-requests-size-scorer" | "running" => Scorer::Running,
        "session-affinity-scorer" | "session" => Scorer::Session,
        "lora-affinity-scorer" | "lora" => Scorer::Lora,
        _ => refuse!(
            "--router-config: {name:?} is not known; allowed are queue-scorer, \
             kv-cache-utilization-scorer, prefix-cache-scorer, running-requests-size-scorer, \
             session-affinity-scorer, lora-affinity-scorer"
        ),
    })
}
