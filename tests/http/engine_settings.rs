//! From flags to an engine: what a roofline knows of a deployment, and how the engine bears too
//! much of it.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::io::Write as _;
use std::time::Duration;

use vllm_sim::server::{batching_engine_config, default_sampling};
use vllm_sim_config::{CliMode, Config, LoadedConfig};
use vllm_sim_engine::SimTime;
use vllm_sim_engine::latency::{BatchWork, RooflineCoefficients, SimulationSpeedFactors};
use vllm_sim_engine::sched::vllm::{VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{Outbox, Scheduler, SchedulerEvent, SeqId, Sequence, SequenceEndReason};

use super::sim::Sim;

const LLAMA: &str = "meta-llama/Llama-3.1-8B-Instruct";

fn config(flags: &[&str]) -> Config {
    let mut all = vec!["--model", LLAMA, "--port", "0", "--host", "127.0.0.1"];
    all.extend(flags);
    LoadedConfig::from_flags(CliMode::Vllm, &all).unwrap().config
}

fn engine(flags: &[&str]) -> VllmSchedulerConfig {
    batching_engine_config(&config(flags)).unwrap().0
}

/// One step that decodes for 64 sequences.
fn decode(engine: &VllmSchedulerConfig) -> Duration {
    let mut batch = BatchWork::default();
    for _ in 0..64 {
        batch.add_decoding_sequence(1024, 1, None);
    }
    engine.latency.step_time(&batch, SimulationSpeedFactors::default())
}

#[tokio::test]
async fn metrics_show_the_blocks_that_fit_on_the_gpu() {
    let config = config(&["--gpu", "H100"]);
    let (engine, _) = batching_engine_config(&config).unwrap();
    let sim = Sim::start(CliMode::Vllm, &["--model", LLAMA, "--gpu", "H100"]).await;
    let page = sim.get("/metrics").await.text();
    sim.server.shut_down_server().await;
    let info = page.lines().find(|l| l.starts_with("vllm:cache_config_info{"));
    // 8 billion weights of two bytes leave a little more than half of 80 GB.
    assert!((20_000..40_000).contains(&engine.num_gpu_blocks), "{}", engine.num_gpu_blocks);
    let blocks = format!("num_gpu_blocks=\"{}\"", engine.num_gpu_blocks + 1);
    assert!(info.unwrap().contains(&blocks), "{blocks} is not in {info:?}");
}

/// The API server takes 600 ms here. The request waits in no queue of the engine meanwhile.
#[tokio::test]
async fn the_first_token_waits_for_the_simulated_api_server() {
    let dir = tempfile::tempdir().unwrap();
    let coefficients = dir.path().join("slow.yaml");
    std::fs::write(&coefficients, "front_end_us: 600000\n").unwrap();
    let coefficients = coefficients.to_str().unwrap();
    let flags = ["--model", LLAMA, "--gpu", "H100", "--latency-coefficients", coefficients];
    let sim = Sim::start(CliMode::Vllm, &flags).await;
    let body = serde_json::json!({"model": LLAMA, "prompt": "one two three", "max_tokens": 2,
        "ignore_eos": true});
    sim.post("/v1/completions", &body).await;
    let seconds = async |name: &str| sim.metric(&format!("vllm:{name}_seconds_sum")).await;
    let (first, e2e) = (seconds("time_to_first_token").await, seconds("e2e_request_latency").await);
    assert!(first >= 0.6 && e2e >= first, "{first}, {e2e}");
    assert_eq!(seconds("request_queue_time").await, 0.0);
    let inference = seconds("request_inference_time").await;
    assert!(inference <= e2e - 0.59, "{inference} of {e2e}");
    sim.server.shut_down_server().await;
}

/// Time of one completion of four tokens, and its token count.
async fn complete(flags: &[&str]) -> (Duration, u64) {
    let slow = ["--time-to-first-token", "700ms", "--scheduler", "pool"];
    let all = [&["--model", LLAMA], &slow[..], flags].concat();
    let sim = Sim::start(CliMode::Vllm, &all).await;
    let body = serde_json::json!({"model": LLAMA, "prompt": "one two three", "max_tokens": 4,
        "ignore_eos": true});
    let start = tokio::time::Instant::now();
    let answer = sim.post("/v1/completions", &body).await.json();
    let taken = start.elapsed();
    sim.server.shut_down_server().await;
    (taken, answer["usage"]["completion_tokens"].as_u64().unwrap())
}

#[tokio::test]
async fn a_prefill_worker_makes_one_token_and_a_decode_worker_reads_no_prompt() {
    let first = Duration::from_millis(700);
    let (taken, tokens) = complete(&["--is-prefill-worker"]).await;
    assert!(taken >= first && tokens == 1, "{taken:?}, {tokens} tokens");
    let (taken, tokens) = complete(&["--disaggregation-mode", "decode"]).await;
    assert!(taken < first && tokens == 4, "{taken:?}, {tokens} tokens");
    let flags = ["--is-decode-worker", "--disaggregation-mode", "prefill"];
    let error = LoadedConfig::from_flags(CliMode::Vllm, &flags).unwrap_err().to_string();
    assert!(error.contains("cannot be used together"), "{error}");
}

#[test]
fn bytes_for_the_cache_are_blocks() {
    // 32 layers x 2 x 8 heads of 128 x 2 bytes are 128 KiB a token.
    let short = ["--max-model-len", "8192"];
    let blocks = |flags: &[&str]| engine(&[&short, flags].concat()).num_gpu_blocks;
    let gib4 = "--kv-cache-memory-bytes=4294967296";
    assert_eq!(blocks(&[gib4]), 2047);
    assert_eq!(blocks(&[gib4, "--gpu", "L4"]), 2047);
    assert_eq!(blocks(&[gib4, "--kv-cache-dtype", "fp8"]), 4095);
    assert_eq!(blocks(&[gib4, "--num-gpu-blocks-override", "100"]), 99);
}

#[test]
fn max_num_scheduled_tokens_keeps_memory_plan() {
    let found = |flags: &[&str]| {
        let engine = engine(&[&["--gpu", "H100"], flags].concat());
        let prefill = &engine.prefill;
        let given = (prefill.max_num_scheduled_tokens, prefill.reserve_full_prompt);
        (given, engine.num_gpu_blocks)
    };
    let (usual, blocks) = found(&[]);
    assert_eq!(usual, (Some(8192), true));
    let few = ["--max-num-scheduled-tokens", "2k", "--no-scheduler-reserve-full-isl"];
    assert_eq!(found(&few), ((Some(2000), false), blocks));
    let many = ["--max-num-scheduled-tokens", "16384"];
    assert_eq!(found(&many), ((Some(8192), true), blocks));
}

#[test]
fn layer_groups_share_one_block_pool() {
    let model = ["--model", "openai/gpt-oss-20b", "--gpu", "H100"];
    let found = |more: &[&str]| {
        let all = [&model[..], &["--kv-cache-memory-bytes", "60G"], more].concat();
        let loaded = LoadedConfig::from_flags(CliMode::Vllm, &all).unwrap();
        let cache = loaded.config.engine.kv_cache.clone().unwrap();
        let engine = batching_engine_config(&loaded.config).unwrap().0;
        let groups = engine.layer_groups.map(|groups| (groups.sparse, groups.full));
        (cache.blocks, cache.tokens, engine.num_gpu_blocks, groups)
    };
    let long = ["--max-model-len", "131072"];
    // Figures of vLLM's rule; the scheduler has all blocks but the null block.
    assert_eq!(found(&long), (163_840, 2_327_895, 163_839, Some((1, 1))));
    // A shorter context changes what vLLM prints, not the blocks.
    let short = found(&["--max-model-len", "8192"]);
    assert_eq!((short.0, short.2), (163_840, 163_839));
    let flat = [&long[..], &["--disable-hybrid-kv-cache-manager"]].concat();
    assert_eq!(found(&flat), (81_920, 1_310_720, 81_919, None));
}

#[test]
fn block_size_fits_mamba_state() {
    let found = |gpu: &str, more: &[&str]| {
        let model = ["--model", "Qwen/Qwen3-Next-80B-A3B-Instruct", "--gpu", gpu];
        let bytes = ["--kv-cache-memory-bytes", "20G"];
        let all = [&model[..], &bytes, more].concat();
        let config = LoadedConfig::from_flags(CliMode::Vllm, &all).unwrap().config;
        let plan = config.engine.kv_cache.clone().unwrap().plan;
        let groups = (plan.sparse_groups, plan.full_groups);
        (config.engine.block_size, groups)
    };
    assert_eq!(found("H100", &[]), (576, (3, 1)));
    assert_eq!(found("A100", &[]), (544, (3, 1)));
    assert_eq!(found("A100", &["--block-size", "16"]), (544, (3, 1)));
    assert_eq!(found("A100", &["--block-size", "1024"]), (1024, (3, 1)));
}

#[test]
fn a_context_that_does_not_fit_is_refused_in_vllms_words() {
    let error = batching_engine_config(&config(&["--kv-cache-memory-bytes", "1G"])).unwrap_err();
    let words = "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV \
                 cache is needed, which is larger than the available KV cache memory (1.0 GiB). \
                 Based on the available memory, the estimated maximum model length is 8176. Try ";
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn quantized_weights_shorten_steps_and_add_blocks() {
    let (bf16, fp8, int4) = (
        engine(&["--gpu", "H100"]),
        engine(&["--gpu", "H100", "--quantization", "fp8"]),
        engine(&["--gpu", "H100", "--quantization", "awq"]),
    );
    assert!(decode(&fp8) < decode(&bf16));
    assert!(bf16.num_gpu_blocks < fp8.num_gpu_blocks);
    assert!(fp8.num_gpu_blocks < int4.num_gpu_blocks);
}

#[test]
fn coefficients_come_from_a_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let more_us = RooflineCoefficients::default().step_us + 5000.0;
    writeln!(file, "step_us: {more_us}").unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let path = path.as_str();
    let usual = decode(&engine(&["--gpu", "H100"]));
    let slower = decode(&engine(&["--gpu", "H100", "--latency-coefficients", path]));
    let more = (slower - usual).as_secs_f64();
    assert!((more - 0.005).abs() < 1e-6, "{more}");

    writeln!(file, "step_us2: 1").unwrap();
    let config = config(&["--gpu", "H100", "--latency-coefficients", path]);
    let error = batching_engine_config(&config).unwrap_err().to_string();
    assert!(error.contains(path) && error.contains("step_us2"), "{error}");
}

#[test]
fn top_p_in_generation_config_lengthens_steps() {
    let step = |flags: &[&str]| decode(&engine(&[&["--gpu", "H100"], flags].concat()));
    let laid_over = |json: &str| step(&["--override-generation-config", json]);
    let usual = step(&["--generation-config", "vllm"]);
    assert_eq!(laid_over(r#"{"top_p": 1.0, "top_k": -1}"#), usual);
    assert_eq!(laid_over(r#"{"top_k": 20, "temperature": 0.0}"#), usual);
    assert!(laid_over(r#"{"top_p": 0.9}"#) > usual);
    // A name on the hub brings what its family's generation_config.json says.
    assert_eq!(step(&[]), laid_over(r#"{"top_p": 0.9}"#));
    assert!(
        default_sampling(&config(&[])).because.starts_with("top-p 0.9: the generation_config.json")
    );

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("generation_config.json");
    std::fs::write(&file, r#"{"temperature": 0.6, "top_p": 0.9}"#).unwrap();
    let flags = ["--generation-config", folder.path().to_str().unwrap()];
    assert_eq!(step(&flags), laid_over(r#"{"top_p": 0.9}"#));
    std::fs::write(&file, "{").unwrap();
    let words = [&["--model", LLAMA, "--gpu", "H100"], &flags[..]].concat();
    let error = LoadedConfig::from_flags(CliMode::Vllm, &words).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("generation_config.json"), "{error}");
}

/// Lets everything happen that is due at or before `at`.
fn advance_to(engine: &mut VllmScheduler, at: SimTime, out: &mut Outbox) {
    while let Some(due) = engine.next_wakeup().filter(|due| *due <= at) {
        engine.advance(due, out);
    }
}

/// Arrivals at `rate` per second for `seconds`, then none: how long the queue was when they
/// ended, how many finished, and when the last did.
fn overload(rate: f64, seconds: f64) -> (usize, usize, SimTime) {
    let mut engine =
        VllmScheduler::new(engine(&["--gpu", "H100", "--num-gpu-blocks-override", "4000"]))
            .unwrap();
    let (mut out, mut finished, mut last) = (Outbox::new(), 0, SimTime::ZERO);
    let mut count = |out: &mut Outbox| {
        for (at, event) in out.drain(..) {
            if let SchedulerEvent::Ended { end, .. } = event {
                assert_eq!(end, SequenceEndReason::Finished);
                finished += 1;
                last = at;
            }
        }
    };
    let requests = (rate * seconds) as u64;
    for id in 0..requests {
        let at = SimTime::from_nanos((id as f64 / rate * 1e9) as u64);
        advance_to(&mut engine, at, &mut out);
        let sequence = Sequence::new(SeqId(id), 512, 128);
        engine.submit(at, sequence, &mut out).unwrap();
        count(&mut out);
    }
    let waiting = engine.stats().waiting;
    advance_to(&mut engine, SimTime::MAX, &mut out);
    count(&mut out);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.used_blocks), (0, 0, 0));
    assert_eq!(engine.block_pool().free_block_count(), engine.block_pool().usable_block_count());
    assert_eq!(engine.next_wakeup(), None);
    (waiting, finished, last)
}

#[test]
fn overload_queue_drains_without_loss() {
    // All at once: what the engine can do at most.
    let (_, finished, last) = overload(1e6, 2e-3);
    let capacity = finished as f64 / last.as_secs_f64();
    let (waiting, finished, last) = overload(1.5 * capacity, 60.0);
    assert_eq!(finished, (1.5 * capacity * 60.0) as usize);
    // A third of the arrivals waits when they end, and takes half as long again.
    let share = waiting as f64 / finished as f64;
    assert!((0.2..0.4).contains(&share), "{share}");
    assert!((85.0..100.0).contains(&last.as_secs_f64()), "{last:?}");
}

#[test]
fn dynamos_engine_arguments_replace_the_flags() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let args = r#"{"engine": {"num_gpu_blocks": 300, "max_num_seqs": 7, "speedup_ratio": 2.0,
        "timing_model": {"type": "fixed", "prefill_ms": 10.0, "decode_ms": 3.0}}}"#;
    write!(file, "{args}").unwrap();
    let path = file.path().to_str().unwrap();
    for args in [args, path] {
        let engine = engine(&["--max-num-seqs", "3", "--extra-engine-args", args]);
        assert_eq!((engine.num_gpu_blocks, engine.block_size), (300, 64));
        assert_eq!((engine.max_num_seqs, engine.async_scheduling), (7, false));
        let mut batch = BatchWork::default();
        batch.add_decoding_sequence(9, 1, None);
        let step = engine.latency.step_time(&batch, engine.speed);
        assert_eq!(step, Duration::from_micros(1500));
    }
}
