//! Tests step times from kernel tables. The tables of the fixture are synthetic, not measured.

use std::path::Path;

use serde_json::json;
use vllm_sim_engine::latency::{
    AicSetup, AicStepTimes, BatchWork, LatentAttentionShape, MixedStepTiming, ModelShape,
    StepOverhead,
};

fn setup() -> AicSetup {
    let config = json!({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 128});
    AicSetup {
        shape: ModelShape::from_config(&config).expect("is a shape"),
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

fn open(setup: &AicSetup) -> Result<AicStepTimes, String> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/aic");
    AicStepTimes::open(&data, setup).map_err(|error| error.to_string())
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
    batch.add_decode(10, 1, None);
    batch.add_decode(10, 1, None);
    batch.add_prompt_chunk(8, 8, None);
    // The mocker looks up one token more.
    near(aic.step_ms(&batch), prefill + aic.decode_ms(2, 2, 11));
    let combined = open(&AicSetup { mixed: MixedStepTiming::Combined, ..setup() });
    assert!(combined.expect("can be opened").step_ms(&batch) < prefill + decode);
}

#[test]
fn overheads_are_added_to_kernel_times() {
    let plain = open(&setup()).expect("can be opened");
    let overhead = StepOverhead { step: 200.0, sequence: 3.0, mixed: 600.0 };
    let with = open(&AicSetup { overhead, ..setup() }).expect("can be opened");
    let mut batch = BatchWork::default();
    batch.add_decode(10, 1, None);
    let more = |batch: &BatchWork| (with.step_time(batch) - plain.step_time(batch)).as_micros();
    assert_eq!(more(&batch), 203);
    batch.add_prompt_chunk(8, 0, None);
    assert_eq!(more(&batch), 806);
    assert!(with.step_time(&BatchWork::default()).is_zero());
}

#[test]
fn aic_error_names_missing_table_values() {
    let error = |change: &dyn Fn(&mut AicSetup)| {
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
    let compressed = error(&|setup| {
        setup.shape.mla = Some(LatentAttentionShape {
            q_rank: 16,
            kv_rank: 16,
            rope_dim: 8,
            nope_dim: 8,
            v_dim: 8,
        });
        setup.backend = "sglang".to_owned();
    });
    assert!(compressed.contains("for vLLM and DeepSeek's"), "{compressed}");
    let nowhere = AicStepTimes::open(Path::new("/nowhere"), &setup()).expect_err("is not there");
    assert!(nowhere.to_string().starts_with("/nowhere contains no kernel tables"));
}
