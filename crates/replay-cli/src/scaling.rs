use std::time::Duration;

use anyhow::Result;

use vllm_sim_engine::SimTime;
use vllm_sim_replay::{AutoscalerPolicy, AutoscalerRule, WorkerScaling};

use super::options::{AutoscalerName, PoolArgs};
use vllm_sim_command_line::{UsageError, refuse};

pub(super) fn build_worker_scaling(args: &PoolArgs) -> Result<WorkerScaling> {
    Ok(WorkerScaling {
        schedule: parse_scaling_plan("--scale", args.scale.as_deref())?,
        rule: args.autoscale_max.map(|max| build_autoscaler_rule(args, max)).transpose()?,
        losses: parse_scaling_plan("--lose-workers", args.lose_workers.as_deref())?,
    })
}

/// Parses a scaling plan such as `60=4,300=2`: times in seconds, each with a number of workers.
fn parse_scaling_plan(flag: &str, text: Option<&str>) -> Result<Vec<(SimTime, u32)>> {
    let mut steps = Vec::new();
    for step in text.iter().flat_map(|plan| plan.split(',')) {
        let read = || {
            let (at, workers) = step.split_once('=')?;
            let at = Duration::try_from_secs_f64(at.trim().parse().ok()?).ok()?;
            Some((at, workers.trim().parse::<u32>().ok()?))
        };
        let Some((at, workers)) = read() else {
            refuse!("{flag}: {step:?} must be SECONDS=WORKERS");
        };
        match (flag, workers) {
            ("--scale", 0) => refuse!("{flag}: {step:?}: at least one worker must remain"),
            (_, 0) => refuse!("{flag}: {step:?}: must be at least one worker"),
            _ => steps.push((SimTime::ZERO + at, workers)),
        }
    }
    steps.sort_unstable();
    Ok(steps)
}

fn build_autoscaler_rule(args: &PoolArgs, max: u32) -> Result<AutoscalerRule> {
    let (queue, kv) = (args.autoscale_target_queue, args.autoscale_target_kv_usage);
    let targets = [("--autoscale-target-queue", queue), ("--autoscale-target-kv-usage", kv)];
    for (name, target) in targets {
        if target.is_some_and(|target| !target.is_finite() || target <= 0.0) {
            refuse!("{name} must be a number above 0");
        }
        if target.is_some() && args.autoscale_policy == AutoscalerName::Wva {
            refuse!(
                "{name} cannot be used with --autoscale-policy wva, whose thresholds are fixed"
            );
        }
    }
    if let Some(kv) = kv.filter(|kv| *kv > 1.0) {
        refuse!("--autoscale-target-kv-usage is {kv}, must be a fraction above 0 up to 1");
    }
    if kv.is_none() && queue.is_none() && args.autoscale_policy != AutoscalerName::Wva {
        refuse!("--autoscale-max needs --autoscale-target-queue or -kv-usage");
    }
    if args.autoscale_min == 0 || max < args.autoscale_min {
        let min = args.autoscale_min;
        refuse!("--autoscale-min is {min}, must be from 1 to --autoscale-max ({max})");
    }
    if args.num_workers > max {
        let workers = args.num_workers;
        refuse!("--num-workers is {workers}, must be at most --autoscale-max ({max})");
    }
    let interval = parse_seconds("--autoscale-interval", args.autoscale_interval)?;
    if interval.is_zero() {
        refuse!("--autoscale-interval is 0, must be above 0");
    }
    Ok(AutoscalerRule {
        policy: match args.autoscale_policy {
            AutoscalerName::Hpa => AutoscalerPolicy::Hpa,
            AutoscalerName::Keda => AutoscalerPolicy::Keda,
            AutoscalerName::Wva => AutoscalerPolicy::Wva,
        },
        min: args.autoscale_min,
        max,
        target_waiting: queue,
        target_kv_usage: kv,
        interval,
        cool_down: parse_seconds("--autoscale-cool-down", args.autoscale_cool_down)?,
    })
}

pub(super) fn parse_seconds(flag: &str, value: f64) -> Result<Duration> {
    let duration = Duration::try_from_secs_f64(value);
    duration.map_err(|_| UsageError(format!("{flag} is {value}, must be 0 or more")).into())
}
