//! Plays a workload of `lab/scheduler` on the vLLM scheduler in virtual time and returns its step
//! log. The example `step_log` shares it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vllm_sim_engine::kv::{
    BlockHashConfig, BlockHashExtraKeys, BlockHasher, HashedMediaSpan, HostCacheConfig,
    HostCacheEvictionPolicy, KvCacheLayerGroups, LoraAdapter, OffloadConnector, SparseLayerKind,
};
use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::lock_step::RankLockStep;
use vllm_sim_engine::sched::vllm::{
    ChunkedPrefillConfig, EncoderSchedulingConfig, LoraConfig, PrefillTransferConfig,
    SchedulerReportingConfig, SchedulingPolicy, SpeculativeDecodingConfig, VllmScheduler,
    VllmSchedulerConfig,
};
use vllm_sim_engine::step_log::StepLogRecord;
use vllm_sim_engine::{
    EngineCommand, GrammarCompilation, InjectedKvLoadFailure, KvLoadFailurePolicy, LoraId,
    MediaEncoderKind, Outbox, PrefixCacheResetScope, PromptKvTransfer, PromptMediaItem, Scheduler,
    SchedulerEvent, SeqId, Sequence, SimTime, StepDraftCounts,
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
    /// Another engine has read the prompt.
    Release(usize),
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
    let mut sleeps = false;
    let mut ranks = engine.is_in_lock_step().then(RankLockStep::default);
    loop {
        let due = inputs.front().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            break;
        };
        if engine.running_step_end() == Some(now) {
            // vLLM's engine core reads aborts before it processes the output of a step, which has the
            // blocks that were read.
            inputs.retain(|&(at, input)| {
                if SimTime::from_millis(at) != now {
                    return true;
                }
                match input {
                    Input::Abort(i) if requests[i]["at"].as_u64() < Some(at) => {
                        engine.abort(now, SeqId(i as u64), &mut out);
                    }
                    Input::Release(i) => {
                        let read = EngineCommand::Release(SeqId(i as u64));
                        engine.apply_command(now, read, &mut out);
                    }
                    _ => return true,
                }
                false
            });
        }
        engine.advance(now, &mut out);
        while inputs.front().is_some_and(|(at, _)| SimTime::from_millis(*at) == now)
            && let Some((_, input)) = inputs.pop_front()
        {
            match input {
                Input::Submit(i) => {
                    let seq = sequence(i, &requests[i], &work["config"], &hasher);
                    let taken = engine.submit(now, seq, &mut out);
                    taken.map_err(|error| error.to_string())?;
                }
                Input::Abort(i) => engine.abort(now, SeqId(i as u64), &mut out),
                Input::Release(i) => {
                    engine.apply_command(now, EngineCommand::Release(SeqId(i as u64)), &mut out);
                }
                Input::Command(i) => {
                    let command = command(commands[i]["do"].as_str().unwrap_or_default());
                    engine.apply_command(now, command, &mut out);
                    sleeps = commands[i]["do"] == "sleep";
                }
            }
        }
        if sleeps && engine.steps_in_flight() == 0 {
            // Sleep empties the caches when all steps have ended.
            sleeps = false;
            for command in [
                EngineCommand::ResetPrefixCache(PrefixCacheResetScope::Preempt),
                EngineCommand::ResetEncoderCache,
            ] {
                engine.apply_command(now, command, &mut out);
            }
        }
        add_reads(&out, requests, &mut inputs);
        if let Some(ranks) = &mut ranks
            && engine.next_wakeup().is_none_or(|next| next > now)
        {
            ranks.synchronize_rank_steps(now, &mut [&mut engine], |rank| Some(*rank));
        }
        out.clear();
    }
    engine.take_step_log(&mut log);
    Ok(named_lines(&log, requests))
}

/// Adds the reads of prompts for another engine, each some time after its end.
fn add_reads(out: &Outbox, requests: &[Value], inputs: &mut VecDeque<(u64, Input)>) {
    for (at, event) in out {
        if let SchedulerEvent::Leased { id, .. } = event
            && let Some(ms) = requests[id.0 as usize]["send_ms"].as_u64()
        {
            let read = (at.as_nanos() / 1_000_000 + ms, Input::Release(id.0 as usize));
            inputs.insert(inputs.partition_point(|input| *input < read), read);
        }
    }
}

/// Formats a step log with the names of requests and times in milliseconds.
fn named_lines(log: &[StepLogRecord], requests: &[Value]) -> Vec<Value> {
    let lines = log.iter().map(|record| {
        let mut line = record.to_step_log_json(|id| requests[id.0 as usize]["id"].clone());
        line["t"] = json!(record.at.as_nanos() / 1_000_000);
        line
    });
    lines.collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn command(name: &str) -> EngineCommand {
    match name {
        "pause" | "sleep" => EngineCommand::Pause,
        "pause-new" => EngineCommand::PauseAdmission,
        "resume" => EngineCommand::Resume,
        "reset-encoder" => EngineCommand::ResetEncoderCache,
        "reset" => EngineCommand::ResetPrefixCache(PrefixCacheResetScope::WhenIdle),
        _ => EngineCommand::ResetPrefixCache(PrefixCacheResetScope::Preempt),
    }
}

/// Returns the number of tokens after a block that its hash includes.
fn lookahead(config: &Value) -> u32 {
    let speculation = &config["speculation"];
    let eagle = matches!(speculation["method"].as_str(), Some("eagle" | "mtp"));
    let plain = speculation["plain_hashes"].as_bool().unwrap_or(false);
    let has_connector = !config["load_ms"].is_null() || config["offload"].is_object();
    u32::from(eagle && !plain && !has_connector)
}

fn config(config: &Value) -> VllmSchedulerConfig {
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
    let layer_groups = sparse.first().map(|first| KvCacheLayerGroups {
        full: (groups.len() - sparse.len()) as u32,
        sparse: sparse.len() as u32,
        kind: kind(first),
        interval: config["retention"].as_u64().map(|interval| interval as u32),
    });
    let (producer, consumer) = match (config["load_ms"].is_null(), config["kv_role"].as_str()) {
        // A prefix cache in host memory also loads blocks that the scheduler has freed.
        (true, _) => (false, config["offload"].is_object()),
        (false, Some("kv_producer")) => (true, false),
        (false, Some("kv_consumer")) => (false, true),
        (false, _) => (true, true),
    };
    VllmSchedulerConfig {
        // Every step takes the same time.
        latency: LatencyModel::ZERO,
        weights_from_host: STEP,
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
        lock_step: flag("ranks", false),
        watermark: config["watermark"].as_f64().unwrap_or(0.0),
        speculation: speculation(&config["speculation"], lookahead(config) > 0),
        encoder: encoder(config),
        host_tier: host_tier(&config["offload"]),
        loras: LoraConfig { max_loras: number("max_loras", 0), ..LoraConfig::default() },
        transfer: PrefillTransferConfig {
            is_producer: producer,
            is_consumer: consumer,
            fetch: (Duration::from_millis(number("load_ms", 0).into()), Duration::ZERO),
            lease: config["lease_ms"].as_u64().map(Duration::from_millis),
            ..PrefillTransferConfig::default()
        },
        reporting: SchedulerReportingConfig {
            kv_events: true,
            step_log: true,
            ..SchedulerReportingConfig::default()
        },
        ..VllmSchedulerConfig::default()
    }
}

fn host_tier(config: &Value) -> Option<HostCacheConfig> {
    let number = |name: &str| config[name].as_u64();
    let time = |name: &str| number(name).map_or(Duration::ZERO, Duration::from_millis);
    let is_simple = config["simple"].as_bool().unwrap_or(false);
    Some(HostCacheConfig {
        rules: match is_simple {
            true => OffloadConnector::Simple,
            false => OffloadConnector::Native,
        },
        eviction: HostCacheEvictionPolicy::Lru,
        chunks: number("chunks")? as u32,
        blocks_per_chunk: 1,
        chunk_bytes: 1,
        outputs: is_simple,
        threshold: None,
        latency: Duration::ZERO,
        chunk_time: (time("store_ms"), time("load_ms")),
    })
}

fn encoder(config: &Value) -> Option<Box<EncoderSchedulingConfig>> {
    let number = |name: &str| config["encoder"][name].as_u64().map(|number| number as u32);
    Some(Box::new(EncoderSchedulingConfig {
        budget: number("budget")?,
        cache_size: number("cache")?,
        chunked_input: !config["disable_chunked_mm_input"].as_bool().unwrap_or(false),
        latency: None,
    }))
}

fn speculation(config: &Value, looks_ahead: bool) -> Option<SpeculativeDecodingConfig> {
    let k = config["k"].as_u64()? as u32;
    let method = config["method"].as_str()?;
    let eagle = matches!(method, "eagle" | "mtp");
    Some(SpeculativeDecodingConfig {
        accept: vec![0.5; k as usize],
        drops_last_block: eagle && !looks_ahead,
        lookahead_slots: if method == "ngram" { 0 } else { k },
        input_slots: u32::from(method == "draft_model"),
    })
}

/// Returns content and place of the images in a prompt.
fn media(request: &Value) -> impl Iterator<Item = (&str, u32, u32)> {
    list(&request["media"]).iter().map(|item| {
        let number = |at: usize| item[at].as_u64().unwrap_or(0) as u32;
        (item[0].as_str().unwrap_or_default(), number(1), number(2))
    })
}

fn media_items(request: &Value) -> Option<Arc<[PromptMediaItem]>> {
    let items = media(request).map(|(identifier, start, len)| PromptMediaItem {
        key: identifier.trim_start_matches("image").parse().unwrap_or(0),
        kind: MediaEncoderKind::Vision,
        start,
        len,
    });
    PromptMediaItem::sorted_without_overlap(items.collect())
}

fn sequence(i: usize, request: &Value, config: &Value, hasher: &BlockHasher) -> Sequence {
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
    let extras = BlockHashExtraKeys {
        salt: request["salt"].as_str().map(Into::into),
        lora: lora.map(|id| LoraAdapter {
            id,
            name: format!("a{}", id.0).into(),
            path: format!("/a{}", id.0).into(),
        }),
        media: media(request)
            .map(|(identifier, start, len)| HashedMediaSpan {
                identifier: identifier.into(),
                start,
                len,
            })
            .collect(),
        ..BlockHashExtraKeys::default()
    };
    let draft = |pair: &Value| StepDraftCounts {
        proposed: pair[0].as_u64().unwrap_or(0) as u8,
        accepted: pair[1].as_u64().unwrap_or(0) as u8,
    };
    let drafts = request["drafts"].as_array();
    Sequence {
        priority: request["priority"].as_i64().unwrap_or(0),
        lora,
        transfer: match request["remote"].as_bool() {
            Some(true) => PromptKvTransfer::RemotePrefill,
            _ if request["send_ms"].is_u64() => PromptKvTransfer::RemoteDecode,
            _ => PromptKvTransfer::Local,
        },
        load_failure: request["load_fails"].as_bool().unwrap_or(false).then(|| {
            InjectedKvLoadFailure {
                policy: match config["load_failure_policy"].as_str() {
                    Some("recompute") => KvLoadFailurePolicy::Recompute,
                    _ => KvLoadFailurePolicy::Fail,
                },
                loaded: 0.0,
            }
        }),
        grammar: request["grammar_ms"].as_u64().map(|ms| GrammarCompilation {
            takes: Duration::from_millis(ms),
            fails: request["grammar_fails"].as_bool().unwrap_or(false),
        }),
        media: media_items(request),
        plan: Some(Arc::new(hasher.plan_kv_blocks(&tokens, &extras))),
        drafts: drafts.map(|drafts| drafts.iter().map(draft).collect()),
        ..Sequence::new(SeqId(i as u64), prompt, output)
    }
}
