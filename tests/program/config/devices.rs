//! Defaults that follow from the GPU and the model.

use super::{sim, try_words};
use vllm_sim_config::EngineConfig;

const LLAMA: &str = "meta-llama/Llama-3.1-8B-Instruct";
const LLAMA_70B: &str = "meta-llama/Llama-3.1-70B-Instruct";

/// `(max_num_seqs, max_num_batched_tokens)` of `serve` with these words.
fn limits(words: &[&str]) -> (u32, u32) {
    let words = [&["vllm-sim", "serve", LLAMA], words].concat();
    let engine = try_words(&words, &[]).unwrap().config.engine;
    (engine.max_num_seqs, engine.max_num_batched_tokens)
}

#[test]
fn a_step_is_as_large_as_vllm_makes_it_on_that_gpu() {
    for (gpu, expected) in [
        ("h100", (1024, 8192)),
        ("h200", (1024, 8192)),
        ("gh200", (1024, 8192)),
        ("rtx-pro-6000", (1024, 8192)),
        ("b200", (1024, 16_384)),
        ("b200_sxm", (1024, 16_384)),
        ("mi300x", (1024, 16_384)),
        ("a100", (256, 2048)),
        ("NVIDIA A100-SXM4-80GB", (256, 2048)),
        ("l40s", (256, 2048)),
        ("l4", (256, 2048)),
    ] {
        assert_eq!(limits(&["--gpu", gpu]), expected, "{gpu}");
    }
    assert_eq!(limits(&[]), (256, 2048), "no GPU");
    let llmd = sim(&["--max-num-seqs", "7"]).engine;
    assert_eq!((llmd.max_num_seqs, llmd.max_num_batched_tokens), (7, 8192));
}

#[test]
fn other_flags_move_the_defaults_of_a_step_as_in_vllm() {
    let h100 = |words: &[&str]| limits(&[&["--gpu", "h100"], words].concat());
    assert_eq!(h100(&["--performance-mode", "throughput"]), (2048, 16_384));
    assert_eq!(h100(&["--performance-mode", "interactivity"]), (1024, 8192));
    assert_eq!(
        h100(&["--performance-mode", "throughput", "--max-num-seqs", "64"]),
        (64, 16_384),
        "what is typed is not doubled"
    );
    assert_eq!(h100(&["--max-num-seqs", "2", "--max-model-len", "1000"]), (2, 2000));
    assert_eq!(h100(&["--max-num-batched-tokens", "512"]), (512, 512));
    assert_eq!(h100(&["--no-enable-chunked-prefill", "--max-model-len", "32768"]), (1024, 32_768));
    let experts = ["--enable-expert-parallel", "--data-parallel-size", "2"];
    let batched = [&experts[..], &["--all2all-backend", "deepep_low_latency"]].concat();
    assert_eq!(h100(&batched), (256, 256));
    assert_eq!(h100(&experts), (1024, 8192));
}

#[test]
fn ranks_of_a_model_with_experts_step_together() {
    const EXPERTS: &str = "Qwen/Qwen3-30B-A3B";
    let all = "here, ranks of other processes are not waited for";
    for (model, words, expected, warns) in [
        (EXPERTS, "--gpu h100 -dp 2", true, false),
        (EXPERTS, "--latency-model polynomial -dp 2", true, false),
        (EXPERTS, "--gpu h100 -dp 2 -dpn 1", true, true),
        (EXPERTS, "--gpu h100", false, false),
        (EXPERTS, "-dp 2 --inter-token-latency 9", false, false),
        (EXPERTS, "--latency-model polynomial -dp 2 --scheduler sglang", false, false),
        (LLAMA, "--gpu h100 -dp 2", false, false),
        (LLAMA, "--gpu h100 -dp 2 -ep", false, false),
        ("unknown", "--latency-model polynomial -dp 2", false, false),
        ("unknown", "--latency-model polynomial -dp 2 -ep", true, false),
    ] {
        let words = format!("vllm-sim serve {model} {words}");
        let loaded = try_words(&words.split(' ').collect::<Vec<_>>(), &[]).unwrap();
        assert_eq!(loaded.config.engine.lock_step, expected, "{words}");
        let warned = loaded.warnings.iter().any(|text| text.contains(all));
        assert_eq!(warned, warns, "{words}: {:?}", loaded.warnings);
    }
}

#[test]
fn blocks_and_steps_of_deployments_are_those_that_vllm_computes() {
    const GIB_20: &str = "21474836480";
    // Model, GPU, GPUs, cache; sequences, tokens, block size, blocks in 20 GiB: of these bytes, a
    // block takes block size x 2 x heads on a GPU x their width x layers of a group x bytes.
    for (model, gpu, tp, dtype, expected) in [
        (LLAMA, "H100", "1", "auto", (1024, 8192, 16, 10_240)),
        (LLAMA, "H100", "1", "fp8", (1024, 8192, 16, 20_480)),
        (LLAMA_70B, "H100", "4", "auto", (1024, 8192, 16, 16_384)),
        (LLAMA_70B, "H100", "8", "bfloat16", (1024, 8192, 16, 32_768)),
        ("Qwen/Qwen2.5-7B-Instruct", "A100", "1", "auto", (256, 2048, 16, 23_405)),
        ("Qwen/Qwen2.5-7B-Instruct", "L40S", "2", "int8_per_token_head", (256, 2048, 16, 90_785)),
        ("openai/gpt-oss-20b", "H100", "1", "auto", (1024, 8192, 16, 54_613)),
        ("openai/gpt-oss-120b", "H100", "2", "auto", (1024, 8192, 16, 72_817)),
        ("google/gemma-3-27b-it", "H200", "1", "auto", (1024, 8192, 16, 16_384)),
        ("deepseek-ai/DeepSeek-V3", "H200", "8", "auto", (1024, 8192, 16, 19_099)),
        ("deepseek-ai/DeepSeek-V3", "B200", "8", "fp8", (1024, 16_384, 32, 19_099)),
        ("mistralai/Mixtral-8x7B-v0.1", "H100", "2", "nvfp4", (1024, 8192, 16, 72_817)),
        ("meta-llama/Llama-4-Scout-17B-16E", "H100", "8", "auto", (1024, 8192, 16, 54_613)),
    ] {
        let words = ["vllm-sim", "serve", model, "--gpu", gpu, "-tp", tp];
        let cache = ["--kv-cache-dtype", dtype, "--kv-cache-memory-bytes", GIB_20];
        // The ten million tokens of Llama 4 Scout do not fit.
        let cache = [&cache[..], &["--max-model-len", "32768"]].concat();
        let loaded = try_words(&[&words[..], &cache[..]].concat(), &[]).unwrap();
        let engine = loaded.config.engine;
        let size = engine.kv_cache.unwrap();
        let found =
            (engine.max_num_seqs, engine.max_num_batched_tokens, engine.block_size, size.blocks);
        assert_eq!(found, expected, "{model} {gpu} {tp} {dtype}");
        assert_eq!(size.refusal, None);
    }
}

#[test]
fn auto_max_model_len_is_longest_that_fits() {
    for auto in ["auto", "-1"] {
        let length = format!("--max-model-len={auto}");
        let words = ["vllm-sim", "serve", LLAMA, "--gpu", "H100", &length];
        let bytes = ["--kv-cache-memory-bytes", "1073741824"];
        let loaded = try_words(&[&words[..], &bytes].concat(), &[]).unwrap();
        assert_eq!(loaded.config.model.max_model_len, 8176, "{auto}");
        let shown = loaded.to_config_yaml();
        assert!(shown.contains("# max-model-len: 8176  # derived: the longest"), "{shown}");
    }
}

#[test]
fn unknown_kv_cache_dtype_is_rejected() {
    let words = ["vllm-sim", "serve", "m", "--kv-cache-dtype", "float8"];
    let error = try_words(&words, &[]).unwrap_err().to_string();
    assert!(error.contains("float8") && error.contains("fp8_e4m3"), "{error}");
}

#[test]
fn a_threshold_beyond_the_context_is_refused() {
    let words = ["vllm-sim", "serve", "m", "--max-model-len", "100"];
    let words = [&words[..], &["--long-prefill-token-threshold", "101"]].concat();
    assert_eq!(
        try_words(&words, &[]).unwrap_err().to_string(),
        "long_prefill_token_threshold (101) cannot be greater than the max_model_len (100)."
    );
}

#[test]
fn a_derived_value_names_its_rule() {
    let loaded = try_words(&["vllm-sim", "serve", LLAMA, "--gpu", "H100"], &[]).unwrap();
    let shown = loaded.to_config_yaml();
    assert!(
        shown.contains(
            "# max-num-seqs: 1024  # derived: vLLM's default of GPUs with 70 GiB or more, except \
             A100 (H100-SXM-80GB)"
        ),
        "{shown}"
    );
}

#[test]
fn a_checkpoint_chooses_the_data_type_of_its_kv_cache() {
    let folder = tempfile::tempdir().unwrap();
    let load = |scheme: &str, words: &[&str]| {
        let config = format!(
            r#"{{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
                "quantization_config": {{"quant_method": "modelopt", "quant_algo": "NVFP4",
                    "kv_cache_scheme": {scheme}}}}}"#
        );
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let model = folder.path().to_str().unwrap();
        let words = [&["vllm-sim", "serve", model, "--gpu", "B200"], words].concat();
        let loaded = try_words(&words, &[]).unwrap();
        let engine = &loaded.config.engine;
        let blocks = engine.kv_cache.as_ref().unwrap().blocks;
        (engine.memory.kv_cache_dtype.clone(), blocks, loaded.to_config_yaml())
    };
    const FP8: &str = r#"{"dynamic": false, "num_bits": 8, "type": "float"}"#;
    let (plain, half, _) = load("null", &[]);
    let (own, blocks, shown) = load(FP8, &[]);
    assert_eq!((plain.as_str(), own.as_str()), ("auto", "fp8_e4m3"));
    assert!(blocks >= 2 * half, "{blocks} {half}");
    let rule = "# kv-cache-dtype: fp8_e4m3  # derived: the checkpoint's KV cache is quantized";
    assert!(shown.contains(rule), "{shown}");
    assert_eq!(load(FP8, &["--kv-cache-dtype", "bfloat16"]).0, "bfloat16");
}

#[test]
fn attention_backend_selects_block_size() {
    let of = |model: &str, words: &[&str]| {
        let words = [&["vllm-sim", "serve", model], words].concat();
        try_words(&words, &[]).unwrap().config.engine
    };
    const DEEPSEEK: &str = "deepseek-ai/DeepSeek-V3";
    for (model, words, expected) in [
        (LLAMA, &["--gpu", "h100"][..], 16),
        (LLAMA, &["--gpu", "b200"], 16),
        (DEEPSEEK, &["--gpu", "h200"], 16),
        (DEEPSEEK, &["--gpu", "h200", "--attention-backend", "FLASHMLA"], 64),
        (DEEPSEEK, &["--gpu", "b200"], 32),
        (DEEPSEEK, &["--gpu", "b200", "--attention-backend", "cutlass_mla"], 128),
        (DEEPSEEK, &["--gpu", "b200", "--block-size", "64"], 64),
        (DEEPSEEK, &[], 16),
    ] {
        let engine = of(model, words);
        assert_eq!(engine.block_size, expected, "{model} {words:?}");
        assert_eq!(engine.memory.block_size_typed, words.contains(&"--block-size"));
    }
}

fn config_of(words: &[&str]) -> vllm_sim_config::Config {
    let words = [&["vllm-sim", "serve", LLAMA, "--gpu", "H100"], words].concat();
    try_words(&words, &[]).unwrap().config
}

fn refused(words: &[&str]) -> String {
    let words = [&["vllm-sim", "serve", LLAMA, "--gpu", "H100"], words].concat();
    try_words(&words, &[]).unwrap_err().to_string()
}

#[test]
fn cuda_graph_sizes_follow_flags() {
    let sizes = |words: &[&str]| config_of(words).engine.graphs.cudagraph_capture_sizes().to_vec();
    assert_eq!(sizes(&[]).last(), Some(&512));
    assert_eq!(sizes(&["--max-num-seqs", "16"]).last(), Some(&32));
    assert!(sizes(&["--enforce-eager"]).is_empty());
    assert!(sizes(&["-O0"]).is_empty());
    assert!(sizes(&["-cc.cudagraph_mode=NONE"]).is_empty());
    assert_eq!(sizes(&["--cudagraph-capture-sizes", "1", "8"]), [1, 8]);
    assert_eq!(sizes(&["-cc.cudagraph_capture_sizes=[4,2]"]), [2, 4]);
    assert_eq!(sizes(&["--max-cudagraph-capture-size", "64"]).last(), Some(&64));
    let dense = sizes(&["--performance-mode", "interactivity"]);
    assert_eq!(dense[..32], (1..=32).collect::<Vec<u32>>());
    let both = refused(&["--cudagraph-capture-sizes", "8", "--max-cudagraph-capture-size", "4"]);
    assert!(both.contains("should be consistent with the max value"), "{both}");
}

#[test]
fn drafts_and_adapters_take_memory_of_the_cache() {
    let size = |words: &[&str]| config_of(words).engine.kv_cache.unwrap();
    let plain = size(&[]);
    let eagle = r#"{"method":"eagle3","model":"d","num_speculative_tokens":3}"#;
    let drafting = size(&["--speculative-config", eagle]);
    let gb = (plain.available_bytes - drafting.available_bytes) / 1e9;
    assert!((0.7..0.9).contains(&gb), "{gb}");
    // One layer of cache beside 32.
    let share = drafting.plan.block_bytes / plain.plan.block_bytes;
    assert!((share - 33.0 / 32.0).abs() < 1e-9, "{share}");
    let ngram = r#"{"method":"ngram","num_speculative_tokens":3}"#;
    assert_eq!(size(&["--speculative-config", ngram]).blocks, plain.blocks);
    let adapters = size(&["--enable-lora", "--max-loras", "8", "--max-lora-rank", "64"]);
    let gb = (plain.available_bytes - adapters.available_bytes) / 1e9;
    assert!((2.5..3.5).contains(&gb), "{gb}");
}

#[test]
fn gpus_that_share_a_context_hold_more_of_it() {
    let shared = config_of(&["-tp", "16", "-dcp", "2"]);
    let plain = config_of(&["-tp", "16"]);
    assert_eq!(shared.engine.block_size, 2 * plain.engine.block_size);
    let tokens =
        |config: &vllm_sim_config::Config| config.engine.kv_cache.as_ref().unwrap().tokens as f64;
    let times = tokens(&shared) / tokens(&plain);
    assert!((times - 2.0).abs() < 0.01, "{times}");
    assert_eq!(refused(&["-tp", "4", "-dcp", "3"]), "tp_size=4 must be divisible by dcp_size=3.");
}

#[test]
fn ranks_that_share_prompts_are_more_gpus_with_the_same_blocks() {
    let plain = config_of(&["-tp", "2"]).engine;
    let shared = config_of(&["-tp", "2", "-pcp", "4"]).engine;
    let worlds = [&plain, &shared].map(|engine| engine.parallel.world_size());
    assert_eq!(worlds, [2, 8]);
    let size = |engine: &EngineConfig| (engine.block_size, engine.kv_cache.clone());
    assert_eq!(size(&shared), size(&plain));
    for (context, tokens) in [("1", 16), ("4", 64), ("8", 128)] {
        let config = config_of(&["-tp", "2", "-pcp", "4", "-dcp", context]);
        assert_eq!(config.engine.block_size, tokens);
    }
    assert_eq!(
        refused(&["-tp", "2", "-pcp", "4", "-dcp", "2"]),
        "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP \
         axis. Got TP=2, PCP=4, DCP=2; valid DCP sizes are [1, 4, 8]."
    );
}

#[test]
fn encoder_budget_is_step_budget_or_one_item() {
    let encoder = |words: &[&str]| config_of(words).engine.encoder;
    assert_eq!(encoder(&[]), None);
    let image = |tokens: &str| {
        let rules = format!("{{\"image\": {tokens}}}");
        encoder(&["--mm-tokens-per-item", &rules]).map(|encoder| encoder.budget)
    };
    assert_eq!([image("576"), image("9000")], [Some(8192), Some(9000)]);
    let none = "{\"image\": 0, \"audio\": 0, \"video\": {\"count\": 0}}";
    let flags = ["--mm-tokens-per-item", "{}", "--limit-mm-per-prompt", none];
    assert_eq!(encoder(&flags), None);
    assert_eq!(
        refused(&["--mm-tokens-per-item", "{}", "--disable-chunked-mm-input"]),
        "Chunked MM input disabled but max_tokens_per_mm_item=16384 is larger than \
         max_num_batched_tokens=8192. Please increase max_num_batched_tokens."
    );
    let words = ["vllm-sim", "serve", LLAMA, "--disable-chunked-mm-input"];
    let warnings = try_words(&words, &[]).unwrap().warnings;
    let expected = "--disable-chunked-mm-input has no effect: it needs the vllm scheduler and a model \
                    that takes media";
    assert!(warnings.contains(&expected.to_owned()), "{warnings:?}");
}

#[test]
fn layer_groups_reject_fifo_preemption() {
    let words = ["vllm-sim", "serve", "openai/gpt-oss-20b", "--gpu=H100", "--preemption-mode=fifo"];
    let error = try_words(&words, &[]).unwrap_err();
    assert!(error.to_string().contains("--preemption-mode: fifo"), "{error}");
    let flat = [&words[..], &["--disable-hybrid-kv-cache-manager"]].concat();
    assert!(try_words(&flat, &[]).is_ok());
}

#[test]
fn cpu_offload_leaves_more_kv_blocks() {
    let cache = |words: &[&str]| {
        let words = [&["vllm-sim", "serve", LLAMA, "--gpu", "l4"], words].concat();
        let loaded = try_words(&words, &[]).unwrap();
        loaded.config.engine.kv_cache.unwrap()
    };
    let (all, some) = (
        cache(&["--max-model-len", "2048"]),
        cache(&["--max-model-len", "2048", "--cpu-offload-gb", "8"]),
    );
    let gib_8 = 8.0 * f64::from(1 << 30);
    let less = all.memory.weight_bytes - some.memory.weight_bytes;
    let more = some.available_bytes - all.available_bytes;
    for bytes in [some.offloaded_bytes, less, more] {
        assert!((bytes - gib_8).abs() < 1.0, "{bytes}");
    }
    assert!(some.blocks - all.blocks >= 4095, "{}", some.blocks);
    // No more than there are.
    let everything = cache(&["--max-model-len", "2048", "--cpu-offload-gb", "100"]);
    assert!((everything.offloaded_bytes - all.memory.weight_bytes).abs() < 1.0);
}
