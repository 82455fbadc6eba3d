//! A small workload on two workers behind a KV-aware router: `cargo run --example replay`.

use std::time::Duration;

use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_replay::report::{ReplayRunTotals, ReportCollector, ReportOptions};
use vllm_sim_replay::synth::{ArrivalProcess, SyntheticWorkload, TokenLengthDistribution};
use vllm_sim_replay::{KvAwareRouterConfig, PoolSpec, ReplaySettings, RouterConfig, run_replay};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let workers = 2;
    let engine = VllmSchedulerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(40),
            decode: Duration::from_millis(10),
        },
        num_gpu_blocks: 4000,
        ..VllmSchedulerConfig::default()
    };
    let settings = ReplaySettings::new(PoolSpec::new(
        SchedulerSpec::Vllm(Box::new(engine)),
        workers,
        RouterConfig::Kv(KvAwareRouterConfig::default()),
    ));
    // 200 requests at 20 per second, in eight groups that share half of their prompts.
    let mut workload = SyntheticWorkload {
        sessions: 200,
        input: TokenLengthDistribution::Uniform(200, 1000),
        output: TokenLengthDistribution::Uniform(50, 150),
        arrivals: ArrivalProcess::Gamma { rate: 20.0, burstiness: 1.0 },
        shared_prefix_ratio: 0.5,
        prefix_groups: 8,
        ..SyntheticWorkload::default()
    }
    .into_source()?;
    let mut collector = ReportCollector::new(ReportOptions::default());
    let totals = run_replay(&settings, &mut workload, &mut collector)?;
    let report = collector.into_report(&ReplayRunTotals {
        requests: totals.requests,
        prefill_worker_seconds: totals.prefill_worker_seconds,
        decode_worker_seconds: Some(totals.worker_seconds),
        workers,
        gpus: (1, 1),
        prefill_tokens: totals.prefill_tokens,
    });
    print!("{}", report.render_report_table());
    Ok(())
}
