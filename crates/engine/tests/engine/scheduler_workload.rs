//! Plays a workload of `lab/scheduler` on the vLLM scheduler in virtual time and returns its step
//! log. The example `step_log` shares it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vllm_sim_engine::kv::{
    BlockHashConfig, BlockHasher, ExtraKeys, LayerGroups, LoraAdapter, SparseLayerKind,
};
use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::vllm::{
    ChunkedPrefillConfig, LoraConfig, ReportingConfig, SchedulingPolicy, SpeculationConfig,
    TransferConfig, VllmConfig, VllmScheduler,
};
use vllm_sim_engine::{
    EngineCommand, LoraId, Outbox, PrefixCacheReset, PromptTransfer, Scheduler, SeqId, Sequence,
    SimTime, StepDrafts,
};

/// Time of every step.
const STEP: Duration = Duration::from_secs(1);

/// Token that the workload's model samples, always.
const OUTPUT_TOKEN: u32 = 7;

/// Input of an engine at a time in milliseconds. At one time, commands come first, then new
/// requests, then aborts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Input {
    Command(usize),
    Submit(usize),
    Abort(usize),
}

/// Plays a workload; returns one JSON object per planned and per updated step, as vLLM's side
/// writes them.
pub(crate) fn play(work: &Value) -> Result<Vec<Value>, String> {
    let mut engine =
        VllmScheduler::new(config(&work["config"])).map_err(|error| error.to_string())?;
    let requests = list(&work["requests"]);
    let commands = list(&work["commands"]);
    let hasher = BlockHasher::new(BlockHashConfig {
        seed: Some("0".to_owned()),
        block_size: engine.config().block_size,
        lookahead: lookahead(&work["config"]),
        ..BlockHashConfig::default()
    });
    let mut inputs: Vec<(u64, Input)> = Vec::new();
    let times = |list: &[Value], key: &str, kind: fn(usize) -> Input| {
        let at = list.iter().enumerate();
        let at = at.filter_map(|(i, one)| Some((one[key].as_u64()?, kind(i))));
        at.collect::<Vec<_>>()
    };
    inputs.extend(times(commands, "at", Input::Command));
    inputs.extend(times(requests, "at", Input::Submit));
    inputs.extend(times(requests, "abort_at", Input::Abort));
    inputs.sort_unstable();
    let mut inputs: VecDeque<(u64, Input)> = inputs.into();
    let (mut out, mut log) = (Outbox::new(), Vec::new());
    // Begin of the last step whose time was set.
    let mut timed = None;
    loop {
        let due = inputs.front().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            break;
        };
        if engine.running_step_end() == Some(now) {
            // vLLM's engine core reads aborts before it processes the output of a step.
            inputs.retain(|&(at, input)| {
                let Input::Abort(i) = input else { return true };
                let is_due = SimTime::from_millis(at) == now;
                let is_known = requests[i]["at"].as_u64().is_some_and(|arrival| arrival < at);
                if is_due && is_known {
                    engine.abort(now, SeqId(i as u64), &mut out);
                }
                !(is_due && is_known)
            });
        }
        engine.advance(now, &mut out);
        let begun = engine.running_step().map(|(begun, _)| begun);
        if let Some(begun) = begun.filter(|begun| Some(*begun) != timed) {
            engine.end_step_at(begun + STEP);
            timed = Some(begun);
        }
        while inputs.front().is_some_and(|(at, _)| SimTime::from_millis(*at) == now)
            && let Some((_, input)) = inputs.pop_front()
        {
            match input {
                Input::Submit(i) => {
                    let seq = sequence(i, &requests[i], &hasher);
                    let taken = engine.submit(now, seq, &mut out);
                    taken.map_err(|error| error.to_string())?;
                }
                Input::Abort(i) => engine.abort(now, SeqId(i as u64), &mut out),
                Input::Command(i) => {
                    let command = command(commands[i]["do"].as_str().unwrap_or_default());
                    engine.apply_command(now, command, &mut out);
                }
            }
        }
        out.clear();
    }
    engine.take_step_log(&mut log);
    let name = |id: SeqId| requests[id.0 as usize]["id"].clone();
    let mut lines = Vec::new();
    for record in &log {
        let mut line = record.to_json(name);
        line["t"] = json!(record.at.nanos() / 1_000_000);
        lines.push(line);
    }
    Ok(lines)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn command(name: &str) -> EngineCommand {
    match name {
        "pause" => EngineCommand::Pause,
        "resume" => EngineCommand::Resume,
        "reset" => EngineCommand::ResetPrefixCache(PrefixCacheReset::WhenIdle),
        _ => EngineCommand::ResetPrefixCache(PrefixCacheReset::Preempt),
    }
}

/// Returns the number of tokens after a block that its hash includes.
fn lookahead(config: &Value) -> u32 {
    let speculation = &config["speculation"];
    let eagle = matches!(speculation["method"].as_str(), Some("eagle" | "mtp"));
    let plain = speculation["plain_hashes"].as_bool().unwrap_or(false);
    u32::from(eagle && !plain && config["load_ms"].is_null())
}

fn config(config: &Value) -> VllmConfig {
    let number = |name: &str, otherwise: u32| {
        let value = config[name].as_u64();
        value.map_or(otherwise, |value| value as u32)
    };
    let flag = |name: &str, otherwise: bool| config[name].as_bool().unwrap_or(otherwise);
    let groups: Vec<&str> = list(&config["groups"]).iter().filter_map(Value::as_str).collect();
    let sparse: Vec<&&str> = groups.iter().filter(|&&kind| kind != "full").collect();
    let max_model_len = number("max_model_len", u32::MAX);
    let kind = |name: &str| match name.parse() {
        Ok(window) => SparseLayerKind::Window(window),
        Err(_) => SparseLayerKind::State(max_model_len),
    };
    let layer_groups = sparse.first().map(|first| LayerGroups {
        full: (groups.len() - sparse.len()) as u32,
        sparse: sparse.len() as u32,
        kind: kind(first),
        interval: config["retention"].as_u64().map(|interval| interval as u32),
    });
    let (producer, consumer) = match (config["load_ms"].is_null(), config["kv_role"].as_str()) {
        (true, _) => (false, false),
        (false, Some("kv_producer")) => (true, false),
        (false, Some("kv_consumer")) => (false, true),
        (false, _) => (true, true),
    };
    VllmConfig {
        latency: LatencyModel::Constant { prefill: STEP, decode: STEP },
        // vLLM's count includes the null block.
        num_gpu_blocks: number("num_gpu_blocks", 2) - 1,
        block_size: number("block_size", 16),
        max_num_seqs: number("max_num_seqs", 256),
        max_num_batched_tokens: number("max_num_batched_tokens", 8192),
        max_model_len,
        prefill: ChunkedPrefillConfig {
            max_num_scheduled_tokens: config["max_num_scheduled_tokens"]
                .as_u64()
                .map(|tokens| tokens as u32),
            enable_chunked_prefill: flag("enable_chunked_prefill", true),
            long_prefill_token_threshold: number("long_prefill_token_threshold", 0),
            long_prefill_token_threshold_adaptive: flag(
                "long_prefill_token_threshold_adaptive",
                false,
            ),
            prefill_schedule_interval: number("prefill_schedule_interval", 1),
            reserve_full_prompt: flag("scheduler_reserve_full_isl", true),
        },
        enable_prefix_caching: flag("enable_prefix_caching", true),
        layer_groups,
        policy: match config["policy"].as_str() {
            Some("priority") => SchedulingPolicy::Priority,
            _ => SchedulingPolicy::Fcfs,
        },
        async_scheduling: flag("async_scheduling", false),
        watermark: config["watermark"].as_f64().unwrap_or(0.0),
        speculation: speculation(&config["speculation"], lookahead(config) > 0),
        loras: LoraConfig { max_loras: number("max_loras", 0), ..LoraConfig::default() },
        transfer: TransferConfig {
            is_producer: producer,
            is_consumer: consumer,
            fetch: (Duration::from_millis(number("load_ms", 0).into()), Duration::ZERO),
            ..TransferConfig::default()
        },
        reporting: ReportingConfig {
            kv_events: true,
            step_log: true,
            ..ReportingConfig::default()
        },
        ..VllmConfig::default()
    }
}

fn speculation(config: &Value, looks_ahead: bool) -> Option<SpeculationConfig> {
    let k = config["k"].as_u64()? as u32;
    let method = config["method"].as_str()?;
    let eagle = matches!(method, "eagle" | "mtp");
    Some(SpeculationConfig {
        accept: vec![0.5; k as usize],
        drops_last_block: eagle && !looks_ahead,
        lookahead_slots: if method == "ngram" { 0 } else { k },
        input_slots: u32::from(method == "draft_model"),
    })
}

fn sequence(i: usize, request: &Value, hasher: &BlockHasher) -> Sequence {
    let output = request["output"].as_u64().unwrap_or(1) as u32;
    // Runs of tokens: the first one and their number.
    let run = |run: &Value| {
        let first = run[0].as_u64().unwrap_or(0) as u32;
        first..first + run[1].as_u64().unwrap_or(0) as u32
    };
    let mut tokens: Vec<u32> = list(&request["prompt"]).iter().flat_map(run).collect();
    let prompt = tokens.len() as u32;
    tokens.extend(std::iter::repeat_n(OUTPUT_TOKEN, output as usize));
    let lora = request["lora"].as_u64().map(|lora| LoraId(lora as u32));
    let extras = ExtraKeys {
        salt: request["salt"].as_str().map(Into::into),
        lora: lora.map(|id| LoraAdapter {
            id,
            name: format!("a{}", id.0).into(),
            path: format!("/a{}", id.0).into(),
        }),
        ..ExtraKeys::default()
    };
    let draft = |pair: &Value| StepDrafts {
        proposed: pair[0].as_u64().unwrap_or(0) as u8,
        accepted: pair[1].as_u64().unwrap_or(0) as u8,
    };
    let drafts = request["drafts"].as_array();
    Sequence {
        priority: request["priority"].as_i64().unwrap_or(0),
        lora,
        transfer: match request["remote"].as_bool() {
            Some(true) => PromptTransfer::RemotePrefill,
            _ => PromptTransfer::Local,
        },
        plan: Some(Arc::new(hasher.block_plan(&tokens, &extras))),
        drafts: drafts.map(|drafts| drafts.iter().map(draft).collect()),
        ..Sequence::new(SeqId(i as u64), prompt, output)
    }
}
