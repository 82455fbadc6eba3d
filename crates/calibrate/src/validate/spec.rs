use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::latency::{
    CudaGraphLimits, CudaGraphs, KvCacheMemory, ModelQuantization, ModelShape, MoeShape,
    ProfileRun, QuantizationScheme, RooflineCoefficients, RooflineModelSetup, find_gpu,
    sampling_defaults,
};
use vllm_sim_engine::sched::vllm::{ChunkedPrefillConfig, VllmSchedulerConfig};
use vllm_sim_engine::{BlockKey, PlannedKvBlocks};
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, mix_u64_pair, request_rng};

use super::RecordedRunValidationError;
use super::factors::scale_roofline;

#[derive(Clone)]
pub(crate) struct RecordedRun {
    pub(crate) id: String,
    pub(crate) setup: RooflineModelSetup,
    pub(crate) engine: VllmSchedulerConfig,
    pub(crate) ranks: u32,
    pub(crate) requests: Vec<RecordedRequest>,
    /// Whether each load stage begins only after all responses of the previous one.
    pub(crate) drains: bool,
    pub(crate) stages: usize,
    pub(crate) timeout: Option<Duration>,
    /// Duration of the compilation of a server's kernels when they are first used; the first
    /// requests wait for it.
    pub(crate) first_use_stall: Duration,
    pub(crate) max_in_flight: usize,
    /// Whether the arrival times of the requests were drawn at random.
    pub(crate) random_arrivals: bool,
}

#[derive(Clone)]
pub(crate) struct RecordedRequest {
    /// Send time of the request, relative to the start of its load stage.
    pub(crate) at: SimTime,
    pub(crate) stage: usize,
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    pub(crate) plan: Arc<PlannedKvBlocks>,
}

/// Additional API server time of two public runs, in us. No field of the runs contains this time:
/// their servers were in another cluster, behind a load generator of their own.
const SLOW_API_SERVER_US: f64 = 9_800.0;
/// Prefix of the field `source` of the runs with additional API server time.
const SLOW_API_SERVER_RUN_PREFIX: &str = "inference-perf KubeCon NA 2025 demo (vLLM 0.11.0, GKE";
/// Compilation time of kernels at the first request, fitted to public runs with the constants of
/// the roofline model (`tests/python/roofline_fit.py`).
const FIRST_USE_STALL: Duration = Duration::from_millis(3_690);
/// Maximum relative deviation of generated prompt lengths from their mean.
const MAX_LENGTH_DEVIATION: f64 = 0.02;

/// Maximum number of requests of a recorded run; protects memory from mistyped values.
const MAX_REQUESTS: usize = 10_000_000;
/// Maximum number of tokens of one recorded request; protects memory from mistyped values.
const MAX_REQUEST_TOKENS: f64 = 16_777_216.0;

struct RunJsonFields<'a> {
    run: &'a str,
    value: &'a Value,
}

impl<'a> RunJsonFields<'a> {
    fn value_at(&self, path: &str) -> &'a Value {
        path.split('.').fold(self.value, |value, key| &value[key])
    }

    fn invalid_field(&self, path: &str, problem: impl Into<String>) -> RecordedRunValidationError {
        RecordedRunValidationError::Field {
            run: self.run.to_owned(),
            field: path.to_owned(),
            problem: problem.into(),
        }
    }

    fn number_at(&self, path: &str) -> Result<f64, RecordedRunValidationError> {
        let value = self.value_at(path).as_f64();
        value
            .filter(|n| *n >= 0.0)
            .ok_or_else(|| self.invalid_field(path, "must be a number, 0 or more"))
    }

    fn count_at(&self, path: &str) -> Result<u32, RecordedRunValidationError> {
        let value = self.value_at(path).as_u64().and_then(|n| u32::try_from(n).ok());
        value.ok_or_else(|| self.invalid_field(path, "must be a whole number"))
    }

    fn text_at(&self, path: &str) -> Result<&'a str, RecordedRunValidationError> {
        self.value_at(path).as_str().ok_or_else(|| self.invalid_field(path, "must be a string"))
    }

    /// Returns the duration that a field of the run gives in seconds, or `None` if the field is
    /// missing.
    fn duration_at(&self, path: &str) -> Result<Option<Duration>, RecordedRunValidationError> {
        let seconds = self.value_at(path).as_f64();
        let duration = seconds.map(Duration::try_from_secs_f64).transpose();
        duration.map_err(|error| self.invalid_field(path, error.to_string()))
    }

    fn flag_at(&self, path: &str) -> bool {
        self.value_at(path).as_bool() == Some(true)
    }
}

impl RecordedRun {
    /// Parses a recorded run; `coefficients` are those of the roofline model, except the API server
    /// time if the run has its own. Random arrival times are drawn with `seed`.
    pub(crate) fn parse_recorded_run(
        value: &Value,
        coefficients: &RooflineCoefficients,
        seed: u64,
    ) -> Result<Self, RecordedRunValidationError> {
        let id = value["id"].as_str().unwrap_or("without an id").to_owned();
        let fields = RunJsonFields { run: &id, value };
        let ranks = fields.count_at("dp")?.max(1);
        let setup = roofline_setup(&fields, ranks, coefficients)?;
        let engine = engine_config(&fields, &setup)?;
        let requests = match fields.text_at("workload.kind")? {
            "shared_prefix" => shared_prefix_requests(&fields, engine.block_size, seed)?,
            "trace" => trace_requests(&fields, engine.block_size)?,
            other => {
                let problem = format!("is {other:?}, must be \"shared_prefix\" or \"trace\"");
                return Err(fields.invalid_field("workload.kind", problem));
            }
        };
        let random_arrivals = fields.text_at("workload.kind")? == "shared_prefix"
            && arrivals(&fields)? == Arrivals::Random;
        let timeout = fields.duration_at("workload.client_timeout_s")?;
        let cap = fields.value_at("workload.client_max_concurrency").as_u64();
        Ok(Self {
            first_use_stall: fields
                .duration_at("workload.first_use_stall_s")?
                .unwrap_or_else(|| first_use_stall(&fields, &setup)),
            setup,
            engine,
            ranks,
            stages: requests.last().map_or(0, |r| r.stage + 1),
            requests,
            random_arrivals,
            drains: fields.value_at("score_level").as_str() == Some("stages"),
            timeout,
            max_in_flight: cap.map_or(usize::MAX, |n| n as usize),
            id,
        })
    }
}

/// Returns the time for which a server's first request waits until Triton kernels are compiled.
///
/// A fresh server compiles them for bf16 experts. In-process engines were warmed up.
fn first_use_stall(fields: &RunJsonFields, setup: &RooflineModelSetup) -> Duration {
    let shape = &setup.shape;
    let triton = shape.moe.is_some() && shape.quantization.scheme == QuantizationScheme::None;
    let in_process = fields.value_at("workload.api").as_str();
    let in_process = in_process.is_some_and(|api| api.contains("in process"));
    match triton && !in_process {
        true => FIRST_USE_STALL,
        false => Duration::ZERO,
    }
}

/// Parses the major and minor number of a vLLM version, such as `0.11.0` or `v0.11.0`; `None` for
/// others, such as `nightly-...`.
fn major_minor_version(value: &Value) -> Option<(u32, u32)> {
    let mut numbers = value.as_str()?.trim_start_matches('v').split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Name of the field of a recorded run that contains factors for constants of its GPU and for
/// roofline coefficients.
const FACTORS_FIELD: &str = "roofline_factors";

fn roofline_setup(
    fields: &RunJsonFields,
    ranks: u32,
    coefficients: &RooflineCoefficients,
) -> Result<RooflineModelSetup, RecordedRunValidationError> {
    let name = fields.text_at("hardware")?;
    let gpu = find_gpu(name)
        .ok_or_else(|| fields.invalid_field("hardware", format!("{name:?} is not known")))?;
    let in_process = fields.text_at("workload.api")?.contains("in process");
    let slow = fields.value_at("source").as_str();
    let slow = slow.is_some_and(|source| source.starts_with(SLOW_API_SERVER_RUN_PREFIX));
    let front_end_token_us = match in_process {
        true => 0.0,
        false => coefficients.front_end_token_us,
    };
    let (front_end_us, front_end_sequence_us) = match fields.value_at("workload.front_end_ms") {
        told if !told.is_null() => {
            (fields.number_at("workload.front_end_ms")? * 1e3, coefficients.front_end_sequence_us)
        }
        _ if in_process => (0.0, 0.0),
        _ => (
            coefficients.front_end_us + if slow { SLOW_API_SERVER_US } else { 0.0 },
            coefficients.front_end_sequence_us,
        ),
    };
    let gpu = match major_minor_version(fields.value_at("vllm.version")) {
        Some(version) => gpu.with_kernels_of_vllm_version(version),
        None => gpu.clone(),
    };
    let mut setup = RooflineModelSetup {
        graphs: cuda_graphs(fields)?,
        tp: fields.count_at("tp")?,
        expert_ranks: if fields.flag_at("ep") { ranks } else { 1 },
        expert_parallel: fields.flag_at("ep"),
        async_scheduling: fields.flag_at("vllm.async_scheduling"),
        tf32_products: fields.value_at("vllm.float32_matmul_precision").as_str() == Some("high"),
        kv_bytes: if fields.text_at("vllm.kv_cache_dtype")?.starts_with("fp8") { 1 } else { 2 },
        truncated_sampling: fields.flag_at("sampling.truncated_sampling"),
        penalized_sampling: match fields.value_at("sampling.penalized_sampling").as_bool() {
            Some(said) => said,
            None => sampling_defaults(fields.text_at("model")?)
                .is_some_and(|of| of.penalizes_repetition()),
        },
        coefficients: RooflineCoefficients {
            front_end_us,
            front_end_sequence_us,
            front_end_token_us,
            ..*coefficients
        },
        ..RooflineModelSetup::new(model_shape(fields)?, gpu)
    };
    if setup.shape.moe.is_some() {
        setup.expert_ranks = ranks;
    }
    let heads = setup.shape.heads;
    if setup.tp > 0 && !heads.is_multiple_of(setup.tp) {
        let problem = format!("is {}, must divide the {heads} attention heads", setup.tp);
        return Err(fields.invalid_field("tp", problem));
    }
    match fields.value_at(FACTORS_FIELD) {
        Value::Null => {}
        Value::Object(factors) => scale_roofline(&mut setup, factors)
            .map_err(|problem| fields.invalid_field(FACTORS_FIELD, problem))?,
        _ => return Err(fields.invalid_field(FACTORS_FIELD, "must be an object")),
    }
    Ok(setup)
}

/// Returns the batch sizes for which a run's server captures CUDA graphs: vLLM's sizes up to the
/// run's largest size, or the sizes of a server with default settings.
fn cuda_graphs(fields: &RunJsonFields) -> Result<CudaGraphs, RecordedRunValidationError> {
    const LARGEST_GRAPH_FIELD: &str = "vllm.max_cudagraph_capture_size";
    match fields.value_at(LARGEST_GRAPH_FIELD) {
        Value::Null => Ok(CudaGraphs::default()),
        _ => Ok(CudaGraphs::vllm_default_sizes(CudaGraphLimits {
            seqs: fields.count_at("vllm.max_num_seqs")?,
            tokens: fields.count_at("vllm.max_num_batched_tokens")?,
            drafts: 0,
            most: Some(fields.count_at(LARGEST_GRAPH_FIELD)?),
            blackwell: false,
            dense: false,
        })),
    }
}

/// Prefixes of the values of `weight_quantization` that also name the quantization of activations,
/// with the scheme of each.
const LONG_QUANTIZATION_NAMES: [(&str, QuantizationScheme); 4] = [
    ("fp8_", QuantizationScheme::Fp8),
    ("int8_", QuantizationScheme::Int8),
    ("int4_", QuantizationScheme::Int4),
    ("fp4_", QuantizationScheme::Fp4),
];

/// Parses the weight format of a run: `none`, a value of vLLM's `--quantization`, or a longer name.
fn quantization_scheme(
    fields: &RunJsonFields,
) -> Result<QuantizationScheme, RecordedRunValidationError> {
    const WEIGHT_QUANTIZATION_FIELD: &str = "model_config.weight_quantization";
    let name = fields.text_at(WEIGHT_QUANTIZATION_FIELD)?;
    let known =
        ModelQuantization::from_quantization_flag(name).map(|quantization| quantization.scheme);
    let long = || LONG_QUANTIZATION_NAMES.iter().find(|(start, _)| name.starts_with(start));
    known.or_else(|| Some(long()?.1)).ok_or_else(|| {
        let problem = format!(
            "{name:?} is not known; allowed are none, fp8, fp8_block, int8, int4, awq, gptq, \
             mxfp4, nvfp4 and the values of --quantization"
        );
        fields.invalid_field(WEIGHT_QUANTIZATION_FIELD, problem)
    })
}

fn model_shape(fields: &RunJsonFields) -> Result<ModelShape, RecordedRunValidationError> {
    let config = fields.value_at("model_config.config");
    if config.is_object() {
        return Ok(ModelShape::from_hf_config(config)?);
    }
    let n = |key: &str| fields.count_at(&format!("model_config.{key}"));
    let positive = |key: &str| match n(key)? {
        0 => Err(fields.invalid_field(&format!("model_config.{key}"), "must be at least 1")),
        n => Ok(n),
    };
    let experts = n("experts")?;
    let scheme = quantization_scheme(fields)?;
    let modules = fields.value_at("model_config.quantized_modules").as_str().unwrap_or_default();
    let moe = (experts > 1).then_some(MoeShape {
        experts,
        per_token: n("experts_per_token")?,
        intermediate: n("moe_intermediate")?,
        shared: n("shared_expert_intermediate")?,
        layers: positive("layers")?,
        fp32_router: fields.flag_at("model_config.fp32_router"),
    });
    let keep = modules.contains("experts");
    Ok(ModelShape {
        hidden: positive("hidden")?,
        layers: positive("layers")?,
        heads: positive("heads")?,
        kv_heads: positive("kv_heads")?,
        head_dim: positive("head_dim")?,
        intermediate: n("intermediate")?,
        vocab: positive("vocab")?,
        tied: fields.flag_at("model_config.tie_word_embeddings"),
        gated: fields.flag_at("model_config.gated_mlp"),
        mla: None,
        moe,
        window: None,
        state: None,
        // Llama 4 normalizes in another way (`ModelShape::qk_norm`).
        qk_norm: fields.flag_at("model_config.qk_norm")
            && !fields
                .value_at("model")
                .as_str()
                .is_some_and(|model| model.to_ascii_lowercase().contains("llama-4")),
        quantization: ModelQuantization {
            keep_attention: keep,
            keep_mlp: keep,
            ..ModelQuantization::for_all_weights(scheme)
        },
        max_context: u32::MAX,
    })
}

fn engine_config(
    fields: &RunJsonFields,
    setup: &RooflineModelSetup,
) -> Result<VllmSchedulerConfig, RecordedRunValidationError> {
    let block_size = fields.count_at("vllm.block_size")?.max(1);
    let max_num_batched_tokens = fields.count_at("vllm.max_num_batched_tokens")?;
    let max_num_seqs = fields.count_at("vllm.max_num_seqs")?;
    let profile = setup.profile_run(max_num_batched_tokens, max_num_seqs);
    let version = major_minor_version(fields.value_at("vllm.version"));
    let memory = KvCacheMemory::new(
        &setup.shape,
        &setup.gpu,
        setup.weight_ranks(),
        fields.number_at("vllm.gpu_memory_utilization")?,
        (block_size, setup.kv_bytes),
        &ProfileRun { version: version.unwrap_or(profile.version), ..profile },
    );
    let blocks = fields.value_at("vllm.num_gpu_blocks").as_u64();
    let blocks = blocks.map_or(memory.blocks, |n| u32::try_from(n).unwrap_or(u32::MAX));
    let max_model_len = fields.value_at("vllm.max_model_len").as_u64();
    Ok(VllmSchedulerConfig {
        // One block is vLLM's null block.
        num_gpu_blocks: blocks.saturating_sub(1),
        block_size,
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len: max_model_len.map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        enable_prefix_caching: fields.flag_at("vllm.enable_prefix_caching"),
        prefill: ChunkedPrefillConfig {
            enable_chunked_prefill: fields.flag_at("vllm.enable_chunked_prefill"),
            ..ChunkedPrefillConfig::default()
        },
        async_scheduling: setup.async_scheduling,
        ..VllmSchedulerConfig::default()
    })
}

/// Distribution of the arrival times of the requests in a load stage with a constant rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrivals {
    /// Gaps between arrivals are drawn from an exponential distribution and scaled to fill the
    /// stage, as inference-perf sends requests.
    ///
    /// **Source:** inference-perf `inference_perf/loadgen/load_timer.py`, `ConstantLoadTimer`.
    Random,
    /// Gaps between the arrivals of requests are equal.
    Even,
}

fn arrivals(fields: &RunJsonFields) -> Result<Arrivals, RecordedRunValidationError> {
    const ARRIVALS_FIELD: &str = "workload.arrivals";
    match fields.value_at(ARRIVALS_FIELD) {
        Value::Null => Ok(Arrivals::Random),
        _ => match fields.text_at(ARRIVALS_FIELD)? {
            "random" => Ok(Arrivals::Random),
            "even" => Ok(Arrivals::Even),
            other => {
                let problem = format!("is {other:?}, must be \"random\" or \"even\"");
                Err(fields.invalid_field(ARRIVALS_FIELD, problem))
            }
        },
    }
}

/// Returns the arrival times of `count` requests, in seconds from the start of their stage.
fn stage_times(
    arrivals: Arrivals,
    (rate, count): (f64, u32),
    (seed, stage): (u64, u64),
) -> Vec<f64> {
    if arrivals == Arrivals::Even {
        return (0..count).map(|i| f64::from(i) / rate).collect();
    }
    // Prompt lengths have the low numbers.
    let mut rng = request_rng(seed, u64::MAX - stage, RandomStreamPurpose::Workload);
    let mut sum = 0.0;
    let mut times: Vec<f64> = (0..count)
        .map(|_| {
            sum += rng.draw_exponential(1.0);
            sum
        })
        .collect();
    let scale = f64::from(count) / rate / sum.max(f64::MIN_POSITIVE);
    times.iter_mut().for_each(|time| *time *= scale);
    times
}

/// Builds a workload that sends its prompts in rotation; prompts of one group share their prefix.
fn shared_prefix_requests(
    fields: &RunJsonFields,
    block: u32,
    seed: u64,
) -> Result<Vec<RecordedRequest>, RecordedRunValidationError> {
    let prompts = fields.count_at("workload.prompts.unique_prompts")?;
    let prompts = prompts.clamp(1, MAX_REQUESTS as u32);
    let groups = fields.count_at("workload.prompts.groups")?.max(1);
    let shared = fields.count_at("workload.prompts.system_prompt_tokens")? / block;
    let mean = fields.number_at("workload.prompts.prompt_tokens_estimate")?;
    let output = fields.count_at("workload.output_tokens.requested")?;
    if mean + f64::from(output) > MAX_REQUEST_TOKENS {
        let problem = format!("is too long: {MAX_REQUEST_TOKENS} tokens with the output at most");
        return Err(fields.invalid_field("workload.prompts.prompt_tokens_estimate", problem));
    }
    let stages = fields.value_at("workload.stages").as_array();
    let stages = stages.ok_or_else(|| fields.invalid_field("workload.stages", "must be a list"))?;
    let lengths: Vec<u32> = (0..prompts)
        .map(|i| {
            let mut rng = request_rng(0, i.into(), RandomStreamPurpose::Workload);
            (mean * (1.0 + MAX_LENGTH_DEVIATION * (2.0 * rng.draw_unit_f64() - 1.0)))
                .round()
                .max(1.0) as u32
        })
        .collect();
    let arrivals = arrivals(fields)?;
    let drains = fields.value_at("score_level").as_str() == Some("stages");
    let mut requests = Vec::new();
    let mut start = 0.0;
    for (stage, spec) in stages.iter().enumerate() {
        let spec = RunJsonFields { run: fields.run, value: spec };
        let (rate, count) = (spec.number_at("rate_rps")?, spec.count_at("requests")?);
        if rate == 0.0 {
            return Err(fields.invalid_field("workload.stages", "has a rate of 0"));
        }
        if requests.len() + count as usize > MAX_REQUESTS {
            let problem = format!("has more than {MAX_REQUESTS} requests");
            return Err(fields.invalid_field("workload.stages", problem));
        }
        let times = stage_times(arrivals, (rate, count), (seed, stage as u64));
        for time in times {
            let n = requests.len() as u64;
            let which = (n % u64::from(prompts)) as u32;
            let prompt = lengths[which as usize];
            let keys = (0..(prompt + output) / block).map(|i| {
                let owner = match i {
                    _ if i < shared => mix_u64_pair(1, (which % groups).into()),
                    _ if i < prompt / block => mix_u64_pair(2, which.into()),
                    _ => mix_u64_pair(3, n),
                };
                BlockKey(mix_u64_pair(owner, i.into()))
            });
            requests.push(RecordedRequest {
                at: SimTime::from_nanos(((start + time) * 1e9) as u64),
                stage,
                prompt,
                output,
                plan: block_plan(keys.collect(), block),
            });
        }
        if !drains {
            start += f64::from(count) / rate;
        }
    }
    Ok(requests)
}

/// Builds a workload of recorded requests, with the KV blocks of their prompts.
fn trace_requests(
    fields: &RunJsonFields,
    block: u32,
) -> Result<Vec<RecordedRequest>, RecordedRunValidationError> {
    let rows = fields.value_at("workload.trace").as_array();
    let rows = rows.ok_or_else(|| fields.invalid_field("workload.trace", "must be a list"))?;
    rows.iter()
        .enumerate()
        .map(|(n, row)| {
            let row = RunJsonFields { run: fields.run, value: row };
            let (prompt, output) = (row.count_at("input")?, row.count_at("output")?);
            if f64::from(prompt) + f64::from(output) > MAX_REQUEST_TOKENS {
                let problem =
                    format!("is too long: {MAX_REQUEST_TOKENS} tokens with the output at most");
                return Err(row.invalid_field("input", problem));
            }
            let shared = row.value_at("blocks").as_array().map_or(&[][..], Vec::as_slice);
            let keys = (0..prompt.saturating_add(output) / block).map(|i| {
                let known = shared.get(i as usize).and_then(Value::as_u64);
                known.map_or(BlockKey(mix_u64_pair(mix_u64_pair(3, n as u64), i.into())), |k| {
                    BlockKey(mix_u64_pair(4, k))
                })
            });
            Ok(RecordedRequest {
                at: SimTime::from_nanos((row.number_at("t")? * 1e9) as u64),
                stage: 0,
                prompt: prompt.max(1),
                output: output.max(1),
                plan: block_plan(keys.collect(), block),
            })
        })
        .collect()
}

fn block_plan(keys: Vec<BlockKey>, block_size: u32) -> Arc<PlannedKvBlocks> {
    Arc::new(PlannedKvBlocks { keys, block_size, ..PlannedKvBlocks::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_arrivals_fill_their_stage() {
        let times = |seed| stage_times(Arrivals::Random, (4.0, 100), (seed, 0));
        let drawn = times(0);
        assert!((drawn[99] - 25.0).abs() < 1e-9, "{}", drawn[99]);
        assert!(drawn.is_sorted());
        assert_ne!(drawn, times(1));
        assert_ne!(drawn, stage_times(Arrivals::Random, (4.0, 100), (0, 1)));
        let even = stage_times(Arrivals::Even, (4.0, 3), (0, 0));
        assert_eq!(even, [0.0, 0.25, 0.5]);
    }

    #[test]
    fn versions_are_numbers() {
        let read = |text: &str| major_minor_version(&text.into());
        assert_eq!(read("0.11.0"), Some((0, 11)));
        assert_eq!((read("nightly-5b8c"), read("")), (None, None));
    }
}
