//! Tests step times from kernel tables. The tables of the fixture are synthetic, not measured.

use std::path::Path;

use serde_json::json;
use vllm_sim_engine::latency::{
    AiConfiguratorSetup, AiConfiguratorStepTimes, BatchWork, MixedStepTiming, ModelShape,
    StepOverhead,
};

fn setup() -> AiConfiguratorSetup {
    let config = json!({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 128});
    AiConfiguratorSetup {
        shape: ModelShape::from_hf_config(&config).expect("is a shape"),
        system: "h100_sxm".to_owned(),
        backend: "vllm".to_owned(),
        version: None,
        tp: 1,
        moe_ep: 1,
        kv_bytes: 2,
        qk_norm: false,
        mixed: MixedStepTiming::Sum,
        overhead: StepOverhead::default(),
    }
}

fn open(setup: &AiConfiguratorSetup) -> Result<AiConfiguratorStepTimes, String> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/aic");
    AiConfiguratorStepTimes::load_kernel_times(&data, setup).map_err(|error| error.to_string())
}

/// Returns the time of a kernel that moves `bytes` bytes, in ms.
fn moving(bytes: f64) -> f64 {
    bytes * 2e-9 + 1e-3
}

#[test]
fn aic_pass_time_is_the_sum_of_kernel_times() {
    let aic = open(&setup()).expect("can be opened");
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a}, by hand {b}");
    let decode = 2.0 * (2.0 * moving(1024.0) + 0.10 + moving(1536.0) + 0.2) + moving(256.0) + 0.01;
    near(aic.decode_ms(2, 2, 10), decode);

    // Eight rows of the first product are between a row of an earlier version and one of this
    // version. Attention interpolates square roots. Half of the tokens were computed before.
    let first = 0.04 - 0.03 * 4.0 / 60.0;
    let attention = 0.256 * 0.75 + 1.1 * (2.0 * moving(192.0) + 2.0 * moving(64.0));
    let layer = 2.0 * moving(4096.0) + first + 0.09 + moving(6144.0) + attention;
    let prefill = 2.0 * layer + moving(1024.0) + 0.01;
    near(aic.prefill_ms(1, 8, 8), prefill);

    let mut batch = BatchWork::default();
    batch.add_decoding_sequence(10, 1, None);
    batch.add_decoding_sequence(10, 1, None);
    batch.add_prompt_chunk(8, 8, None);
    let step_ms = |aic: &AiConfiguratorStepTimes| {
        let (prompts, decodes) = aic.prefill_decode_step_ms(&batch);
        prompts + decodes
    };
    // The mocker looks up one token more.
    near(step_ms(&aic), prefill + aic.decode_ms(2, 2, 11));
    let combined = open(&AiConfiguratorSetup { mixed: MixedStepTiming::Combined, ..setup() });
    assert!(step_ms(&combined.expect("can be opened")) < prefill + decode);
}

/// Returns a small model with the attention and the shared expert of DeepSeek-V3, and with 64
/// heads, served by SGLang on two GPUs.
fn deepseek_setup() -> AiConfiguratorSetup {
    let config = json!({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 64,
        "intermediate_size": 128, "vocab_size": 256, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 128, "n_shared_experts": 1});
    AiConfiguratorSetup {
        shape: ModelShape::from_hf_config(&config).expect("is a shape"),
        backend: "sglang".to_owned(),
        tp: 2,
        ..setup()
    }
}

#[test]
fn deepseek_on_sglang_adds_single_kernels_of_attention() {
    let aic = open(&deepseek_setup()).expect("can be opened");
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a}, by hand {b}");
    // Down, query, output, and the two products before and after attention. The experts are slower
    // than the shared expert beside them; the only all-reduces are theirs.
    let decode = |requests: f64, attention: f64| {
        let products = 0.1 + 0.2 + 0.4 + 0.06 + 0.07;
        let layer = 2.0 * moving(512.0 * requests) + products + attention + 0.03 + 0.5 + 2.0 * 0.05;
        2.0 * layer + moving(128.0 * requests) + 0.01
    };
    // Attention takes 1000 times the minimum: that of memory for short, of compute for long
    // contexts. The kernel is measured with all 128 heads of DeepSeek-V3, 64 on each GPU.
    near(aic.decode_ms(2, 2, 64), decode(2.0, 0.42368));
    near(aic.decode_ms(16, 16, 1000), decode(16.0, 22.28224));

    // The up-projection of keys and values is one more product; the shared expert comes after the
    // others.
    let prefill = |tokens: f64, attention: f64| {
        let products = 0.1 + 0.2 + 0.3 + 0.4;
        let shared = 0.01 + moving(384.0 * tokens) + 0.02;
        let experts = 0.03 + 0.5 + 2.0 * 0.05 + shared;
        let layer = 2.0 * moving(512.0 * tokens) + products + attention + experts;
        2.0 * layer + moving(128.0 * tokens) + 0.01
    };
    near(aic.prefill_ms(1, 4, 4), prefill(4.0, 0.65536 * 0.75));
    near(aic.prefill_ms(1, 128, 0), prefill(128.0, 10.48576));
    // All tokens of a combined pass count as one prompt.
    near(aic.combined_forward_pass_ms((1, 3, 4), (1, 1, 900)), aic.prefill_ms(1, 4, 4));
}

#[test]
fn deepseek_uses_measured_attention_blocks_first() {
    let kernels = open(&deepseek_setup()).expect("can be opened");
    // The fixture has blocks for an fp8 cache only.
    let blocks =
        open(&AiConfiguratorSetup { kv_bytes: 1, ..deepseek_setup() }).expect("can be opened");
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, by hand {b}");
    // A block takes 100 times the minimum, with the two products of decode passes.
    let less = kernels.decode_ms(2, 2, 64) - blocks.decode_ms(2, 2, 64);
    near(less, 2.0 * (0.83 + 0.42368 - 0.8764288));
    let less = kernels.decode_ms(16, 16, 1000) - blocks.decode_ms(16, 16, 1000);
    near(less, 2.0 * (0.83 + 22.28224 - 2.0020224));
    let less = kernels.prefill_ms(1, 8, 0) - blocks.prefill_ms(1, 8, 0);
    near(less, 2.0 * (1.0 + 0.65536 - 0.024576));
}

#[test]
fn overheads_are_added_to_kernel_times() {
    let plain = open(&setup()).expect("can be opened");
    let overhead = StepOverhead { step: 200.0, sequence: 3.0, mixed: 600.0 };
    let with = open(&AiConfiguratorSetup { overhead, ..setup() }).expect("can be opened");
    let mut batch = BatchWork::default();
    batch.add_decoding_sequence(10, 1, None);
    let step_ms = |aic: &AiConfiguratorStepTimes, batch: &BatchWork| {
        let (prefill, decode) = aic.prefill_decode_step_ms(batch);
        prefill + decode
    };
    let more = |batch: &BatchWork| step_ms(&with, batch) - step_ms(&plain, batch);
    assert!((more(&batch) - 0.203).abs() < 1e-9);
    batch.add_prompt_chunk(8, 0, None);
    assert!((more(&batch) - 0.806).abs() < 1e-9);
    assert!(step_ms(&with, &BatchWork::default()).abs() < 1e-9);
}

#[test]
fn aic_error_names_missing_table_values() {
    let error = |change: &dyn Fn(&mut AiConfiguratorSetup)| {
        let mut setup = setup();
        change(&mut setup);
        open(&setup).expect_err("is not there")
    };
    assert_eq!(
        error(&|setup| setup.system = "cray_1".to_owned()),
        "the tables have no system \"cray_1\"; available are h100_sxm"
    );
    assert_eq!(
        error(&|setup| setup.version = Some("0.1.0".to_owned())),
        "the tables have no vllm 0.1.0 on h100_sxm; available are 0.2.0"
    );
    let narrow = error(&|setup| setup.shape.head_dim = 24);
    assert!(narrow.contains("head_dim 24"), "{narrow}");
    let small = error(&|setup| setup.shape.vocab = 8);
    assert!(small.starts_with("gemm_perf has no n 8, k 64"), "{small}");
    let split = error(&|setup| setup.tp = 2);
    assert!(split.starts_with("custom_allreduce_perf has no"), "{split}");
    let deepseek = |change: &dyn Fn(&mut AiConfiguratorSetup)| {
        error(&|setup| {
            *setup = deepseek_setup();
            change(setup);
        })
    };
    let ranks = deepseek(&|setup| setup.shape.mla.as_mut().expect("is MLA").kv_rank = 256);
    assert!(ranks.contains("with DeepSeek-V3's ranks"), "{ranks}");
    let heads = deepseek(&|setup| setup.shape.heads = 128);
    assert!(heads.starts_with("mla_bmm_perf has no op_name mla_gen_pre"), "{heads}");
    assert!(heads.contains("num_heads 64"), "{heads}");
    let vllm = deepseek(&|setup| {
        (setup.backend, setup.tp) = ("vllm".to_owned(), 1);
    });
    assert!(vllm.starts_with("mla_context_module_perf has no any row"), "{vllm}");
    let nowhere = AiConfiguratorStepTimes::load_kernel_times(Path::new("/nowhere"), &setup())
        .expect_err("is not there");
    assert!(nowhere.to_string().starts_with("/nowhere contains no kernel tables"));
}
