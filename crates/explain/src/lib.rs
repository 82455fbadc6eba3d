#![doc = include_str!("../README.md")]
//!
//! Explains the speed of a simulated deployment, in text and tables.

mod api_server;
mod budget;
mod nearest_run;
mod unmeasured;

use std::fmt::{self, Write as _};
use std::time::Duration;

use vllm_sim_config::{KvCacheCapacity, KvOffloadConfig, MediaEncoderConfig};
use vllm_sim_engine::kv::SparseLayerKind;
use vllm_sim_engine::latency::{
    BatchWork, KvCacheMemory, LatencyModel, ModelShape, RooflineCoefficients, RooflineModelSetup,
    SimulationSpeedFactors, StepTimeBreakdown,
};
use vllm_sim_engine::sched::sglang::SglangConfig;
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;

const DECODE_CONTEXT_TOKENS: u32 = 1024;
const DECODE_BATCH_SIZES: [u32; 8] = [1, 4, 8, 16, 32, 64, 128, 256];
const PROMPT_LENGTHS_TOKENS: [u32; 6] = [64, 256, 1024, 4096, 16_384, 65_536];

pub use nearest_run::{DeploymentPredictionEvidence, KnownPredictionErrors, PromptCacheUse};
pub use unmeasured::unmeasured_setting_flags;

/// Returns the known prediction errors of a simulated vLLM engine, for prompts that are mostly
/// cached, mostly computed, or both.
///
/// # Errors
/// The reason why none are known, unless its latency model is a roofline with default coefficients,
/// and servers with such settings were recorded.
pub fn prediction_evidence_for_engine(
    engine: &VllmSchedulerConfig,
    setup: Option<&RooflineModelSetup>,
) -> Result<DeploymentPredictionEvidence, &'static str> {
    let is_roofline = matches!(engine.latency, LatencyModel::Roofline(_));
    let setup = setup.filter(|_| is_roofline).ok_or(NO_ROOFLINE_REASON)?;
    if setup.coefficients != RooflineCoefficients::default() {
        return Err("its coefficients differ from the defaults");
    }
    if engine.speed != SimulationSpeedFactors::default() {
        return Err("its step times are sped up");
    }
    Ok(DeploymentPredictionEvidence::new(setup))
}

/// Known prediction errors of an engine, or the reason why none are known.
pub type KnownEvidence<'a> = Result<&'a DeploymentPredictionEvidence, &'a str>;

/// Reason why no prediction errors are known of an engine with another latency model.
pub const NO_ROOFLINE_REASON: &str = "its step times are not from the roofline";

/// Explains an engine as text: model size, KV cache size, step times and their parts.
///
/// - `setup`, the utilization of its memory, and the known prediction errors, or the reason why none
///   are known, add details of a roofline latency model.
/// - `derived` lists settings with computed defaults, with their rules.
/// - `sampling` names the source of truncated sampling.
/// - `sglang` describes the batches if the scheduler is that of SGLang.
pub fn explain_engine_as_text(
    name: &str,
    engine: &VllmSchedulerConfig,
    setup: Option<(&RooflineModelSetup, f64, KnownEvidence<'_>)>,
    sampling: &str,
    derived: &[DerivedEngineSetting<'_>],
    (caches, sglang): (EngineCacheSizes<'_>, Option<&SglangConfig>),
) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let setup = setup.map(|(setup, utilization, known)| (setup, utilization, (sampling, known)));
    let _ = write_explanation(&mut text, name, engine, setup, derived, (caches, sglang));
    text
}

/// Planned sizes of an engine's caches; `None` for a cache that has no plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineCacheSizes<'a> {
    /// Size of the KV cache on the GPUs.
    pub kv: Option<&'a KvCacheCapacity>,
    /// Size of the KV cache in host memory.
    pub host: Option<&'a KvOffloadConfig>,
    /// Size of the encoder cache for images and audio.
    pub encoder: Option<&'a MediaEncoderConfig>,
}

/// Setting of an engine that has a computed default value.
#[derive(Debug, Clone, Copy)]
pub struct DerivedEngineSetting<'a> {
    /// Name of the engine setting's command-line flag.
    pub flag: &'a str,
    /// Computed default value of the engine setting.
    pub value: &'a str,
    /// Rule for the value of the engine setting, as a text for the user.
    pub rule: &'a str,
}

fn write_explanation(
    text: &mut String,
    name: &str,
    engine: &VllmSchedulerConfig,
    setup: Option<(&RooflineModelSetup, f64, (&str, KnownEvidence<'_>))>,
    derived: &[DerivedEngineSetting<'_>],
    (caches, sglang): (EngineCacheSizes<'_>, Option<&SglangConfig>),
) -> fmt::Result {
    let EngineCacheSizes { kv: cache, host, encoder } = caches;
    writeln!(text, "Model       {name}")?;
    if let Some((setup, utilization, _)) = setup {
        write_model_shape(text, &setup.shape)?;
        write_memory(text, setup, utilization, engine, cache)?;
    }
    write_kv_cache(text, engine, cache)?;
    if let Some(cache) = cache {
        write_layer_groups(text, cache, engine.max_model_len)?;
    }
    if let Some(host) = host {
        write_host_cache(text, host, engine.block_size)?;
    }
    write_batch_limits(text, engine, sglang)?;
    if let Some(encoder) = encoder {
        budget::write_encoder_times(text, engine, encoder)?;
    }
    if engine.lock_step {
        writeln!(
            text,
            "Ranks       run in lockstep because the model has experts: a step takes as long as \
             on the slowest rank, and idle ranks run dummy steps"
        )?;
    }
    if let Some((setup, _, (sampling, _))) = setup {
        budget::write_sampling_cost(text, setup, sampling)?;
    }
    if engine.speed != SimulationSpeedFactors::default() {
        writeln!(text, "Speed-up    {} x", engine.speed.all)?;
    }
    match setup.map(|(_, _, (_, evidence))| evidence) {
        Some(Ok(known)) => nearest_run::write_nearest_recorded_runs(text, known)?,
        Some(Err(why)) => writeln!(text, "Evidence    none: {why}")?,
        None => {}
    }
    budget::write_draft_model_times(text, engine)?;
    if let (Some((setup, utilization, _)), Some(cache)) = (setup, cache) {
        budget::write_gpu_memory_budget(text, setup, utilization, cache)?;
    }
    write_derived_settings(text, derived)?;
    let ranks = setup.map_or(1, |(setup, ..)| setup.expert_ranks);
    let on_each = if ranks > 1 { " on every rank" } else { "" };
    writeln!(text, "\nOne decode step{on_each}, context {DECODE_CONTEXT_TOKENS} each (ms)\n")?;
    write_decode_times(text, engine)?;
    // Only ranks of one process know that others are idle.
    let (alone, ranks) = match engine.lock_step {
        false if ranks > 1 => ("on every rank", 1),
        _ => ("alone", ranks),
    };
    writeln!(text, "\nOne prompt {alone}, nothing cached (ms)\n")?;
    write_prefill_times(text, engine, sglang, ranks)
}

fn write_batch_limits(
    text: &mut String,
    engine: &VllmSchedulerConfig,
    sglang: Option<&SglangConfig>,
) -> fmt::Result {
    match sglang {
        Some(sglang) => writeln!(
            text,
            "Batch       at most {} sequences; prompts are computed in batches of their own, of at \
             most {} tokens, of which {} are of one prompt",
            engine.max_num_seqs, sglang.max_prefill_tokens, sglang.chunked_prefill_size,
        ),
        None => writeln!(
            text,
            "Batch       at most {} sequences, {} tokens a step; steps are scheduled {}",
            engine.max_num_seqs,
            engine.max_num_batched_tokens,
            if engine.async_scheduling { "one ahead" } else { "one at a time" },
        ),
    }
}

fn write_kv_cache(
    text: &mut String,
    engine: &VllmSchedulerConfig,
    cache: Option<&KvCacheCapacity>,
) -> fmt::Result {
    let tokens = u64::from(engine.num_gpu_blocks) * u64::from(engine.block_size);
    let (blocks, size) = (engine.num_gpu_blocks, engine.block_size);
    match cache.filter(|cache| cache.plan.sparse_groups > 0) {
        None => writeln!(text, "KV cache    {blocks} blocks of {size} = {tokens} tokens"),
        Some(cache) => writeln!(
            text,
            "KV cache    {blocks} usable blocks of {size} tokens that the groups share; room for {} \
             tokens of the longest requests",
            cache.tokens,
        ),
    }
}

fn write_layer_groups(text: &mut String, cache: &KvCacheCapacity, context: u32) -> fmt::Result {
    let plan = &cache.plan;
    writeln!(
        text,
        "            {} blocks with the null block: {}; {:.2} requests of {context} tokens",
        cache.blocks, cache.rule, cache.concurrency,
    )?;
    let title = format!("of {context} tokens");
    writeln!(
        text,
        "            {:<8}{:>7}  {:<32}{:>10}{:>16}{:>20}",
        "group", "layers", "keeps", "tokens", "bytes a block", title
    )?;
    let sparse = match plan.sparse {
        SparseLayerKind::Window(tokens) => format!("the last {tokens} tokens"),
        SparseLayerKind::State(most) => format!("a state, {most} at most"),
    };
    let sparse_groups = 0..plan.sparse_groups;
    let full_groups = plan.sparse_groups..plan.sparse_groups + plan.full_groups;
    let (full, few) = cache.request_blocks;
    for (groups, keeps, blocks) in
        [(sparse_groups, sparse.as_str(), few), (full_groups, "all tokens", full)]
    {
        let name = match groups.len() {
            0 => continue,
            1 => groups.start.to_string(),
            _ => format!("{} to {}", groups.start, groups.end - 1),
        };
        writeln!(
            text,
            "            {name:<8}{:>7}  {keeps:<32}{:>10}{:>16}{blocks:>13} blocks",
            plan.group_layers, plan.block_size, plan.block_bytes,
        )?;
    }
    Ok(())
}

fn write_host_cache(text: &mut String, host: &KvOffloadConfig, block_size: u32) -> fmt::Result {
    let (tier, link) = (&host.tier, host.link);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    writeln!(
        text,
        "Host cache  {} chunks of {} = {} tokens in {:.1} GiB; {} GB/s from each of {} GPUs and {} \
         GB/s back ({}): {:.3} and {:.3} ms a chunk",
        tier.chunks,
        tier.blocks_per_chunk * block_size,
        host.tokens,
        host.bytes as f64 / f64::from(1 << 30),
        link.to_host,
        host.workers,
        link.to_device,
        link.name,
        ms(tier.chunk_time.0),
        ms(tier.chunk_time.1),
    )
}

fn write_derived_settings(text: &mut String, derived: &[DerivedEngineSetting<'_>]) -> fmt::Result {
    if !derived.is_empty() {
        writeln!(text, "\nFlags that were not set, and the rule for each value\n")?;
    }
    for DerivedEngineSetting { flag, value, rule } in derived {
        writeln!(text, "{flag:<24}{value:>10}   {rule}")?;
    }
    Ok(())
}

fn write_model_shape(text: &mut String, shape: &ModelShape) -> fmt::Result {
    write!(
        text,
        "            {} layers of {}, {} query and {} key/value heads of {}, MLP {}, vocabulary {}",
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.intermediate,
        shape.vocab,
    )?;
    if let Some(moe) = shape.moe {
        write!(text, "; {} experts of {}, {} each", moe.experts, moe.intermediate, moe.per_token)?;
        if moe.layers < shape.layers {
            write!(text, " in {} layers", moe.layers)?;
        }
    }
    if let Some(window) = shape.window {
        write!(text, "; {} layers see {} tokens", window.layers, window.tokens)?;
    }
    let weights = shape.quantization.scheme.weight_dtype_name();
    writeln!(text, "; weights {weights}")
}

fn write_memory(
    text: &mut String,
    setup: &RooflineModelSetup,
    utilization: f64,
    engine: &VllmSchedulerConfig,
    cache: Option<&KvCacheCapacity>,
) -> fmt::Result {
    let gpu = &setup.gpu;
    writeln!(
        text,
        "GPU         {} x {}: {} TFLOP/s, {} TB/s, {} GiB",
        setup.gpu_count(),
        gpu.name,
        gpu.bf16_tflops,
        gpu.bandwidth_tbs,
        gpu.memory_gib,
    )?;
    let memory = KvCacheMemory::new(
        &setup.shape.largest_pipeline_stage(setup.pp),
        gpu,
        setup.weight_ranks(),
        utilization,
        (engine.block_size, setup.kv_bytes),
        &setup.profile_run(engine.max_num_batched_tokens, engine.max_num_seqs),
    );
    let plain = memory.block_bytes / f64::from(engine.block_size.max(1));
    let token = cache.map_or(plain, |cache| cache.plan.kv_bytes_per_token());
    write!(
        text,
        "Memory      {:.2} GB of weights on each GPU, {token} bytes of cache per token",
        cache.map_or(memory, |cache| cache.memory).weight_bytes / 1e9,
    )?;
    match cache {
        // The table of groups has this number.
        Some(cache) if cache.plan.sparse_groups > 0 => writeln!(text),
        None => writeln!(text, "; {} blocks fit into {utilization} of it", memory.blocks),
        Some(cache) => writeln!(
            text,
            "; {:.2} GB of cache are {} blocks",
            cache.available_bytes / 1e9,
            (cache.available_bytes / cache.plan.block_bytes) as u64
        ),
    }
}

fn decode_batch(n: u32, window: Option<u32>) -> BatchWork {
    let mut batch = BatchWork::default();
    (0..n).for_each(|_| batch.add_decoding_sequence(DECODE_CONTEXT_TOKENS, 1, window));
    batch
}

fn write_decode_times(text: &mut String, engine: &VllmSchedulerConfig) -> fmt::Result {
    let window = engine.latency.sliding_window();
    let sizes = DECODE_BATCH_SIZES.iter().copied().filter(|&n| n <= engine.max_num_seqs);
    let steps: Vec<(u32, BatchWork)> = sizes.map(|n| (n, decode_batch(n, window))).collect();
    write_table_line(text, "sequences", steps.iter().map(|(n, _)| n.to_string()))?;
    let ms = |batch: &BatchWork| engine.step_time(batch).as_secs_f64() * 1e3;
    write_table_line(text, "step", steps.iter().map(|(_, batch)| format!("{:.2}", ms(batch))))?;
    let rate = |n: u32, ms: f64| match ms {
        0.0 => "-".to_owned(),
        ms => format!("{:.0}", f64::from(n) * 1e3 / ms),
    };
    write_table_line(text, "tokens/s", steps.iter().map(|(n, batch)| rate(*n, ms(batch))))?;
    let LatencyModel::Roofline(roofline) = &engine.latency else {
        return Ok(());
    };
    let parts = steps.iter().map(|(_, batch)| step_parts(&roofline.step_time_breakdown(batch)));
    let parts: Vec<_> = parts.collect();
    write_step_parts(text, &parts)?;
    write_weights_from_host(text, engine, steps.iter().map(|_| 1))
}

/// Writes the times of prompts that run alone: each of the other `ranks` runs steps of one token.
fn write_prefill_times(
    text: &mut String,
    engine: &VllmSchedulerConfig,
    sglang: Option<&SglangConfig>,
    ranks: u32,
) -> fmt::Result {
    let fits = |&n: &u32| n <= engine.max_model_len;
    let lengths: Vec<u32> = PROMPT_LENGTHS_TOKENS.iter().copied().filter(fits).collect();
    write_table_line(text, "tokens", lengths.iter().map(u32::to_string))?;
    let window = engine.latency.sliding_window();
    let chunks = |length: u32| {
        let budget = match (sglang, engine.prefill.enable_chunked_prefill) {
            (Some(sglang), _) => sglang.chunked_prefill_size.min(sglang.max_prefill_tokens),
            (None, true) => engine.max_num_batched_tokens,
            (None, false) => length,
        };
        let budget = budget.max(1);
        (0..length).step_by(budget as usize).map(move |past| {
            let mut batch = BatchWork::default();
            batch.add_prompt_chunk(budget.min(length - past), past, window);
            batch
        })
    };
    write_table_line(text, "steps", lengths.iter().map(|&n| chunks(n).count().to_string()))?;
    // Experts that the ranks share compute the tokens of all of them.
    let others = f64::from(ranks.saturating_sub(1));
    let average = |tokens: f64| (tokens + others) / (1.0 + others);
    let time = |n: u32| -> f64 {
        let steps = chunks(n).map(|batch| {
            let tokens = batch.computed_tokens() as f64;
            let experts = |tokens| engine.latency.distributed_expert_time(tokens, engine.speed);
            let alone = engine.step_time(&batch) + experts(average(tokens));
            alone.saturating_sub(experts(tokens))
        });
        steps.map(|d| d.as_secs_f64() * 1e3).sum()
    };
    write_table_line(text, "first token", lengths.iter().map(|&n| format!("{:.1}", time(n))))?;
    if let Some(tier) = &engine.host_tier {
        let chunk = tier.blocks_per_chunk * engine.block_size;
        let load = |n: u32| match n / chunk.max(1) {
            0 => "-".to_owned(),
            chunks => {
                let time = tier.latency + tier.chunk_time.1 * chunks;
                format!("{:.1}", time.as_secs_f64() * 1e3)
            }
        };
        write_table_line(text, "from the host", lengths.iter().map(|&n| load(n)))?;
    }
    let LatencyModel::Roofline(roofline) = &engine.latency else {
        return Ok(());
    };
    let parts = lengths.iter().map(|&n| {
        let steps = chunks(n).map(|batch| {
            let mut parts = roofline.step_time_breakdown(&batch);
            let tokens = batch.computed_tokens() as f64;
            let experts_us = |n| roofline.distributed_expert_time(n).as_secs_f64() * 1e6;
            parts.moe += experts_us(average(tokens)) - experts_us(tokens);
            step_parts(&parts)
        });
        steps.fold([0.0; 8], |sums, parts| std::array::from_fn(|part| sums[part] + parts[part]))
    });
    write_step_parts(text, &parts.collect::<Vec<_>>())?;
    write_weights_from_host(text, engine, lengths.iter().map(|&n| chunks(n).count()))?;
    match sglang {
        Some(_) => Ok(()),
        None => api_server::write_api_server_time(text, engine),
    }
}

/// Names of the parts of a step's time, in the order of [`step_parts`].
const STEP_PART_NAMES: [&str; 8] = [
    "matrices",
    "experts",
    "output head",
    "attention",
    "attention",
    "all-reduce",
    "small kernels",
    "overhead",
];

/// Returns the parts of a step's time, in us.
fn step_parts(b: &StepTimeBreakdown) -> [f64; 8] {
    [
        b.gemm,
        b.moe,
        b.lm_head,
        b.decode_attention,
        b.prefill_attention,
        b.all_reduce,
        b.small,
        b.overhead,
    ]
}

fn write_step_parts(text: &mut String, steps: &[[f64; 8]]) -> fmt::Result {
    for (part, name) in STEP_PART_NAMES.iter().enumerate() {
        if steps.iter().any(|parts| parts[part] > 0.0) {
            let cells = steps.iter().map(|parts| format!("{:.2}", parts[part] / 1e3));
            write_table_line(text, &format!("  {name}"), cells)?;
        }
    }
    Ok(())
}

/// Writes a line with the time that the explained steps spend on loading weights from host memory.
fn write_weights_from_host(
    text: &mut String,
    engine: &VllmSchedulerConfig,
    steps: impl Iterator<Item = usize>,
) -> fmt::Result {
    let each = engine.weights_from_host.as_secs_f64() * 1e3;
    if each == 0.0 {
        return Ok(());
    }
    let cells = steps.map(|steps| format!("{:.2}", each * steps as f64));
    write_table_line(text, "  host weights", cells)
}

fn write_table_line(
    text: &mut String,
    head: &str,
    cells: impl Iterator<Item = String>,
) -> fmt::Result {
    write!(text, "{head:<16}")?;
    for cell in cells {
        write!(text, "{cell:>10}")?;
    }
    writeln!(text)
}

#[cfg(test)]
mod tests {
    use vllm_sim_engine::latency::{RooflineModel, find_gpu, known_model_shape};

    use super::*;

    #[test]
    fn roofline_explanation_splits_steps_by_cause() {
        let shape = known_model_shape("meta-llama/Llama-3.1-8B").unwrap();
        let setup = RooflineModelSetup::new(shape, find_gpu("H100").unwrap().clone());
        let engine = VllmSchedulerConfig {
            latency: LatencyModel::Roofline(Box::new(RooflineModel::new(&setup).unwrap())),
            max_num_seqs: 64,
            ..VllmSchedulerConfig::default()
        };
        let known = prediction_evidence_for_engine(&engine, Some(&setup));
        let text = explain_engine_as_text(
            "Llama-3.1-8B",
            &engine,
            Some((&setup, 0.9, known.as_ref().map_err(|why| *why))),
            "no top-p or top-k: a test",
            &[],
            (EngineCacheSizes::default(), None),
        );
        for part in [
            "32 layers of 4096",
            "1 x H100-SXM-80GB",
            "131072 bytes",
            "Sampling    the vocabulary is not cut (no top-p or top-k: a test)",
            "  matrices",
            "3.4 ms in the API server",
            "Evidence    not recorded; the nearest is Qwen/Qwen3-32B, bf16, computed prompts",
            "1 x H100-SXM-80GB with bf16 weights of this size and cached prompts was recorded",
            "its 30 stable runs of vLLM <= 0.19 with",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("experts") && !text.contains("all-reduce"), "{text}");
        assert!(text.lines().all(|line| line.len() < 170), "{text}");
    }

    /// The other ranks run dummy steps of one token.
    #[test]
    fn a_prompt_alone_shares_the_experts_with_idle_ranks() {
        let shape = known_model_shape("Qwen/Qwen3-30B-A3B").unwrap();
        let gpu = find_gpu("H100").unwrap().clone();
        let setup = RooflineModelSetup { expert_ranks: 2, ..RooflineModelSetup::new(shape, gpu) };
        let roofline = RooflineModel::new(&setup).unwrap();
        let mut prompt = BatchWork::default();
        prompt.add_prompt_chunk(1024, 0, None);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let every = ms(roofline.step_time(&prompt));
        let experts = |tokens| ms(roofline.distributed_expert_time(tokens));
        let one = every - experts(1024.0) + experts(512.5);
        let mut engine = VllmSchedulerConfig {
            latency: LatencyModel::Roofline(Box::new(roofline.clone())),
            lock_step: true,
            ..VllmSchedulerConfig::default()
        };
        for (heading, expected) in [("alone", one), ("on every rank", every)] {
            let setup = Some((&setup, 0.9, Err(NO_ROOFLINE_REASON)));
            let caches = (EngineCacheSizes::default(), None);
            let text = explain_engine_as_text("qwen", &engine, setup, "", &[], caches);
            let start = format!("\nOne prompt {heading}, nothing cached (ms)\n");
            let (_, table) = text.split_once(&start).unwrap();
            let line = table.lines().find(|line| line.starts_with("first token")).unwrap();
            let cells: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(cells[4], format!("{expected:.1}"), "{text}");
            engine.lock_step = false;
        }
        assert!(one < 0.8 * every, "{one} {every}");
    }

    #[test]
    fn other_latency_models_are_explained_by_step_times() {
        let engine = VllmSchedulerConfig {
            latency: LatencyModel::Constant {
                prefill: Duration::from_millis(10),
                decode: Duration::from_millis(4),
            },
            max_num_seqs: 4,
            max_model_len: 4096,
            max_num_batched_tokens: 512,
            ..VllmSchedulerConfig::default()
        };
        let none = Err(NO_ROOFLINE_REASON);
        assert_eq!(prediction_evidence_for_engine(&engine, None), none);
        let caches = (EngineCacheSizes::default(), None);
        let text = explain_engine_as_text("some", &engine, None, "", &[], caches);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["tokens/s", "250", "1000"]), "{text}");
        assert!(rows.contains(&vec!["first", "token", "10.0", "10.0", "20.0", "80.0"]), "{text}");
    }
}
