use crate::latency::{All2AllBackend, find_gpu, known_model_shape};

use super::*;

#[test]
fn pipeline_stages_split_sequences_and_pay_transfers() {
    let time = |pp: u32, sequences: u32| {
        let setup = RooflineModelSetup { pp, ..llama(1) };
        let mut batch = BatchWork::default();
        (0..sequences).for_each(|_| batch.add_decoding_sequence(1000, 1, None));
        RooflineModel::new(&setup).unwrap().step_time(&batch).as_secs_f64()
    };
    // One sequence passes through all stages in turn, which takes slightly longer.
    let alone = time(4, 1) / time(1, 1);
    assert!((1.0..1.05).contains(&alone), "{alone}");
    // Four batches of 64 are in flight.
    let many = time(4, 256) / time(1, 64);
    assert!((1.0..1.05).contains(&many), "{many}");
    assert!(time(4, 256) < 0.8 * time(1, 256));
}

#[test]
fn ranks_share_only_prompt_chunks() {
    let time = |pcp: u32, batch: &BatchWork| {
        let setup = RooflineModelSetup { pcp, ..llama(1) };
        RooflineModel::new(&setup).unwrap().step_time(batch).as_secs_f64()
    };
    let mut prompt = BatchWork::default();
    prompt.add_prompt_chunk(8192, 8192, None);
    let share = time(4, &prompt) / time(1, &prompt);
    assert!((0.25..0.27).contains(&share), "{share}");
    assert_eq!(time(4, &decodes(64, 1000)), time(1, &decodes(64, 1000)));
}

#[test]
fn more_work_never_shortens_a_step() {
    for (model_name, tp) in [
        ("meta-llama/Llama-3.1-8B-Instruct", 1),
        ("meta-llama/Llama-3.1-8B-Instruct", 4),
        ("Qwen/Qwen3-30B-A3B", 2),
    ] {
        for gpu_name in ["H100", "L40S"] {
            let setup = RooflineModelSetup {
                tp,
                ..RooflineModelSetup::new(
                    known_model_shape(model_name).unwrap(),
                    find_gpu(gpu_name).unwrap().clone(),
                )
            };
            let roofline = RooflineModel::new(&setup).unwrap();
            assert!(roofline.step_time_grows_with_batch());
            let mut batch = BatchWork::default();
            batch.add_decoding_sequence(700, 1, roofline.sliding_window());
            for n in 0..300 {
                let before = roofline.step_time(&batch);
                match n % 3 {
                    0 => batch.add_prompt_chunk(1 + 3 * n, 40 * n, roofline.sliding_window()),
                    _ => batch.add_decoding_sequence(1 + 90 * n, 1, roofline.sliding_window()),
                }
                assert!(before <= roofline.step_time(&batch), "{model_name} {gpu_name} {n}");
            }
        }
    }
}

fn llama(tp: u32) -> RooflineModelSetup {
    let shape = known_model_shape("meta-llama/Llama-3.1-8B-Instruct").unwrap();
    RooflineModelSetup { tp, ..RooflineModelSetup::new(shape, find_gpu("H100").unwrap().clone()) }
}

fn decodes(n: u32, context: u32) -> BatchWork {
    let mut batch = BatchWork::default();
    (0..n).for_each(|_| batch.add_decoding_sequence(context, 1, None));
    batch
}

/// Computes a step with explicit numbers, to check the folded constants.
#[test]
fn a_decode_step_is_the_sum_of_its_kernels() {
    let roofline = RooflineModel::new(&llama(1)).unwrap();
    let (nd, context, bw, f) = (64.0, 1000.0, 3.35e6, 989.5e6);
    let gemm = |n: f64, k: f64, t: f64| {
        let bytes = n * k * 2.0 + 2.0 * t * (n + k);
        let flops = 2.0 * t * n * k;
        let (a, b) = (bytes / (0.933 * bw), flops / (0.76 * f));
        3.9 + (a.powi(4) + b.powi(4)).powf(0.25)
    };
    let layer = gemm(6144.0, 4096.0, nd)
        + gemm(4096.0, 4096.0, nd)
        + gemm(28672.0, 4096.0, nd)
        + gemm(4096.0, 14336.0, nd);
    let attention = 13.0 + nd * context * 4.0 * 8.0 * 128.0 / (0.934 * bw);
    let small = 15.1 + nd * (10.0 * 4096.0 + 8.0 * 4096.0) / bw;
    let head = gemm(128256.0, 4096.0, nd);
    let overhead = 81.5 + 4.51 * nd;
    let us = 32.0 * (layer + attention + small) + head + overhead;
    let step = roofline.step_time(&decodes(64, 1000)).as_nanos() as f64 / 1e3;
    assert!((step - us).abs() < 0.01, "{step} us, by hand {us} us");
}

#[test]
fn front_end_delay_grows_with_running_requests() {
    let roofline = RooflineModel::new(&llama(1)).unwrap();
    assert_eq!(roofline.front_end_processing_delay(0, 0), Duration::from_micros(3400));
    assert_eq!(roofline.front_end_processing_delay(0, 20), Duration::from_micros(4300));
}

#[test]
fn top_p_costs_time_per_step_and_sequence() {
    let plain = RooflineModel::new(&llama(1)).unwrap();
    let cut =
        RooflineModel::new(&RooflineModelSetup { truncated_sampling: true, ..llama(1) }).unwrap();
    for n in [1, 64] {
        let more = cut.step_time(&decodes(n, 500)) - plain.step_time(&decodes(n, 500));
        let us = 201.8 + 2.69e-3 * 128_256.0 + f64::from(n) * 38.8e-6 * 128_256.0;
        assert!((more.as_secs_f64() * 1e6 - us).abs() < 0.01, "{more:?}");
    }
}

#[test]
fn repetition_penalty_costs_time_per_sequence() {
    let plain = RooflineModel::new(&llama(1)).unwrap();
    let penalized =
        RooflineModel::new(&RooflineModelSetup { penalized_sampling: true, ..llama(1) }).unwrap();
    for n in [1, 64] {
        let more = penalized.step_time(&decodes(n, 500)) - plain.step_time(&decodes(n, 500));
        let us = f64::from(n) * 25.4e-6 * 128_256.0;
        assert!((more.as_secs_f64() * 1e6 - us).abs() < 0.01, "{more:?}");
    }
}

#[test]
fn flash_attention_2_rereads_kv_in_mixed_steps() {
    let more = |gpu_name: &str, repo: &str, tp: u32| {
        let setup = RooflineModelSetup {
            tp,
            ..RooflineModelSetup::new(
                known_model_shape(repo).unwrap(),
                find_gpu(gpu_name).unwrap().clone(),
            )
        };
        let once = RooflineModelSetup {
            coefficients: RooflineCoefficients {
                mixed_group_share: 0.0,
                ..RooflineCoefficients::default()
            },
            ..setup.clone()
        };
        let mut mixed = decodes(20, 700);
        mixed.add_prompt_chunk(16, 500, None);
        let time =
            |setup: &RooflineModelSetup| RooflineModel::new(setup).unwrap().step_time(&mixed);
        assert_eq!(
            RooflineModel::new(&setup).unwrap().step_time(&decodes(20, 700)),
            RooflineModel::new(&once).unwrap().step_time(&decodes(20, 700))
        );
        time(&setup) - time(&once)
    };
    assert!(more("A100", "meta-llama/Llama-3.1-8B", 1) > Duration::from_micros(500));
    assert!(more("A100", "meta-llama/Llama-2-7b-hf", 1).is_zero());
    assert!(more("H100", "meta-llama/Llama-3.1-8B", 1).is_zero());
    // There are 12 query heads in 2 groups: each of 4 GPUs has 3 of them and one whole
    // key/value head.
    let small = "Qwen/Qwen2.5-1.5B";
    let (two, four) = (more("A100", small, 2), more("A100", small, 4));
    let share = four.as_secs_f64() / two.as_secs_f64();
    assert!((share - 2.0 / 5.0).abs() < 0.01, "{share}");
}

#[test]
fn more_work_takes_longer_and_more_gpus_less() {
    let one = RooflineModel::new(&llama(1)).unwrap();
    let two = RooflineModel::new(&llama(2)).unwrap();
    assert!(one.step_time(&decodes(8, 500)) < one.step_time(&decodes(16, 500)));
    assert!(one.step_time(&decodes(8, 500)) < one.step_time(&decodes(8, 900)));
    assert!(two.step_time(&decodes(8, 500)) < one.step_time(&decodes(8, 500)));
    assert_eq!(one.step_time(&BatchWork::default()), Duration::ZERO);
}

#[test]
fn fp4_is_multiplied_natively_on_gpus_with_fp4_units() {
    let step = |repo: &str, on: &str, tokens: u32| {
        let setup = RooflineModelSetup::new(
            known_model_shape(repo).unwrap(),
            find_gpu(on).unwrap().clone(),
        );
        let mut batch = BatchWork::default();
        batch.add_prompt_chunk(tokens, 0, None);
        RooflineModel::new(&setup).unwrap().step_time_breakdown(&batch).gemm
    };
    let (plain, fp4, int4) =
        ("meta-llama/Llama-3.1-8B", "nvidia/Llama-3.1-8B-FP4", "meta-llama/Llama-3.1-8B-AWQ");
    assert!(step(fp4, "B200", 4096) < 0.5 * step(plain, "B200", 4096));
    assert!(step(int4, "B200", 4096) > 0.9 * step(plain, "B200", 4096));
    assert!(step(fp4, "H100", 4096) > 0.9 * step(plain, "H100", 4096));
}

#[test]
fn window_layer_time_is_bounded_by_the_window() {
    let setup = RooflineModelSetup::new(
        known_model_shape("openai/gpt-oss-20b").unwrap(),
        find_gpu("H100").unwrap().clone(),
    );
    let roofline = RooflineModel::new(&setup).unwrap();
    let mut near = BatchWork::default();
    near.add_decoding_sequence(4000, 1, None);
    let mut clipped = BatchWork::default();
    clipped.add_decoding_sequence(4000, 1, roofline.sliding_window());
    assert_eq!((clipped.context, clipped.clipped), (4000, 128));
    assert!(roofline.step_time(&clipped) < roofline.step_time(&near));
}

#[test]
fn unusable_roofline_setups_name_the_field() {
    let error = |setup: RooflineModelSetup| RooflineModel::new(&setup).unwrap_err().to_string();
    assert_eq!(error(llama(0)), "tensor-parallel size is 0, must be at least 1");
    let mut setup = llama(1);
    setup.coefficients.gemm_memory_scale = 0.0;
    assert_eq!(
        error(setup),
        "coefficient gemm_memory_scale is 0, must be a finite number, more than 0"
    );
}

#[test]
fn every_known_model_has_a_step_on_every_gpu() {
    for name in crate::latency::known_model_names() {
        for gpu in crate::latency::KNOWN_GPUS {
            let setup = RooflineModelSetup {
                tp: 8,
                ..RooflineModelSetup::new(known_model_shape(name).unwrap(), gpu.clone())
            };
            let mut batch = decodes(32, 700);
            batch.add_prompt_chunk(500, 20, None);
            let total = RooflineModel::new(&setup).unwrap().step_time_breakdown(&batch).total_us();
            assert!(total.is_finite() && total > 600.0, "{name} on {}: {total}", gpu.name);
        }
    }
}

#[test]
fn prompts_above_every_cuda_graph_take_longer() {
    let roofline = RooflineModel::new(&llama(1)).unwrap();
    let most = *CudaGraphs::default().cudagraph_capture_sizes().last().unwrap();
    let overhead = |tokens| {
        let mut batch = BatchWork::default();
        batch.add_prompt_chunk(tokens, 0, None);
        roofline.step_time_breakdown(&batch).overhead
    };
    let more = overhead(most + 1) - overhead(most);
    assert!((1460.0..1500.0).contains(&more), "{more} us");
    // Decodes of this size wait for no launch.
    let wide = decodes(most + 1, 100);
    assert!(roofline.step_time_breakdown(&wide).overhead < 81.5 + 4.51 * 600.0);
}

#[test]
fn prompts_within_a_cuda_graph_wait_for_no_launch() {
    let time = |model: &str, most| {
        let tokens = 8192;
        let graphs = CudaGraphs::from_configured_sizes((1..=most).collect(), tokens);
        let gpu = find_gpu("B200").unwrap().clone();
        let shape = known_model_shape(model).unwrap();
        let setup = RooflineModelSetup { tp: 8, graphs, ..RooflineModelSetup::new(shape, gpu) };
        let mut batch = BatchWork::default();
        batch.add_prompt_chunk(1000, 0, None);
        RooflineModel::new(&setup).unwrap().step_time(&batch)
    };
    let wait = |model| time(model, 512) - time(model, 2048);
    // The layers of a dense model are launched while the GPU computes.
    assert!(wait("meta-llama/Llama-3.1-70B") < Duration::from_millis(2));
    assert!(wait("Qwen/Qwen3-235B-A22B") > Duration::from_millis(10));
}

#[test]
fn enforce_eager_never_shortens_a_step() {
    for gpu in ["H100", "B200", "L40S"] {
        let graphs = RooflineModelSetup::new(llama(1).shape, find_gpu(gpu).unwrap().clone());
        let eager = RooflineModelSetup { graphs: CudaGraphs::NO_CUDA_GRAPHS, ..graphs.clone() };
        let time = |setup: &RooflineModelSetup, tokens| {
            let mut batch = BatchWork::default();
            batch.add_prompt_chunk(tokens, 0, None);
            RooflineModel::new(setup).unwrap().step_time(&batch)
        };
        for tokens in [1, 100, 511, 512, 513, 2_000, 8_192] {
            assert!(time(&eager, tokens) >= time(&graphs, tokens), "{gpu}, {tokens} tokens");
        }
    }
}

#[test]
fn front_end_delay_grows_with_prompt_tokens() {
    let roofline = RooflineModel::new(&llama(1)).unwrap();
    let more =
        roofline.front_end_processing_delay(10_000, 0) - roofline.front_end_processing_delay(0, 0);
    assert_eq!(more, Duration::from_millis(32));
}

#[test]
fn early_versions_have_slower_kernels() {
    let time = |name: &str, version, tokens| {
        let shape = known_model_shape("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8").unwrap();
        let gpu = find_gpu(name).unwrap().with_kernels_of_vllm_version(version);
        let setup = RooflineModelSetup { tp: 8, ..RooflineModelSetup::new(shape, gpu) };
        let mut batch = BatchWork::default();
        batch.add_prompt_chunk(tokens, 0, None);
        RooflineModel::new(&setup).unwrap().step_time(&batch)
    };
    assert_eq!(time("H100", (0, 11), 16), time("H100", (0, 12), 16));
    assert!(time("H100", (0, 11), 32) > time("H100", (0, 12), 32));
    assert!(time("B200", (0, 11), 1000) > time("B200", (0, 12), 1000));
    assert!(time("H100", (0, 17), 32) > time("H100", (0, 18), 32));
    assert_eq!(time("H100", (0, 17), 8), time("H100", (0, 18), 8));
    assert_eq!(time("A100", (0, 11), 1000), time("A100", (0, 12), 1000));
}

#[test]
fn early_hopper_reads_an_fp8_cache_no_faster_than_bf16() {
    let time = |version, kv_bytes| {
        let shape = known_model_shape("meta-llama/Llama-3.1-70B").unwrap();
        let gpu = find_gpu("H100").unwrap().with_kernels_of_vllm_version(version);
        let setup = RooflineModelSetup { kv_bytes, ..RooflineModelSetup::new(shape, gpu) };
        let roofline = RooflineModel::new(&setup).unwrap();
        roofline.step_time_breakdown(&decodes(64, 4000)).decode_attention
    };
    assert_eq!(time((0, 11), 1), time((0, 11), 2));
    assert!(time((0, 12), 1) < 0.6 * time((0, 12), 2));
}

#[test]
fn routers_in_fp32_take_time_on_blackwell_before_0_20() {
    let time = |gpu_name: &str, version, tf32_products| {
        let shape = known_model_shape("MiniMaxAI/MiniMax-M2.5").unwrap();
        let gpu = find_gpu(gpu_name).unwrap().with_kernels_of_vllm_version(version);
        let setup = RooflineModelSetup { tf32_products, ..RooflineModelSetup::new(shape, gpu) };
        RooflineModel::new(&setup).unwrap().step_time_breakdown(&decodes(64, 1000)).moe
    };
    let router = time("B200", (0, 19), false) - time("B200", (0, 19), true);
    assert!((1000.0..2000.0).contains(&router), "62 layers: {router}");
    assert_eq!(time("B200", (0, 20), false), time("B200", (0, 20), true));
    assert_eq!(time("H100", (0, 19), false), time("H100", (0, 19), true));
}

#[test]
fn blackwell_fuses_all_reduces_except_after_mxfp4_experts() {
    let time = |model_name: &str, fused: bool| {
        let mut gpu = find_gpu("B200").unwrap().clone();
        gpu.fused_all_reduce = gpu.fused_all_reduce.filter(|_| fused);
        let shape = known_model_shape(model_name).unwrap();
        let setup = RooflineModelSetup { tp: 8, ..RooflineModelSetup::new(shape, gpu) };
        RooflineModel::new(&setup).unwrap().step_time_breakdown(&decodes(16, 1000)).all_reduce
    };
    assert!(time("meta-llama/Llama-3.1-70B", true) < 0.7 * time("meta-llama/Llama-3.1-70B", false));
    assert_eq!(time("openai/gpt-oss-120b", true), time("openai/gpt-oss-120b", false));
}

#[test]
fn unequally_popular_experts_are_read_less_in_large_steps() {
    let time = |expert_popularity: f64, tokens| {
        let coefficients = RooflineCoefficients { expert_popularity, ..Default::default() };
        let shape = known_model_shape("MiniMaxAI/MiniMax-M2.5").unwrap();
        let gpu = find_gpu("B200").unwrap().clone();
        let setup = RooflineModelSetup { coefficients, ..RooflineModelSetup::new(shape, gpu) };
        RooflineModel::new(&setup).unwrap().step_time_breakdown(&decodes(tokens, 1000)).moe
    };
    let ratio = |tokens| time(256.0, tokens) / time(1e9, tokens);
    assert!((ratio(1) - 1.0).abs() < 1e-6, "{}", ratio(1));
    // Of all experts, 67 % are read for 87 % with equal chances; the rest of the time is the same.
    assert!((0.78..0.82).contains(&ratio(64)), "{}", ratio(64));
    assert!(ratio(4096) > 0.99, "{}", ratio(4096));
}

#[test]
fn more_expert_ranks_slow_no_engine() {
    let time = |ranks| {
        let setup = RooflineModelSetup {
            expert_ranks: ranks,
            ..RooflineModelSetup::new(
                known_model_shape("deepseek-ai/DeepSeek-V3").unwrap(),
                find_gpu("H200").unwrap().clone(),
            )
        };
        RooflineModel::new(&setup).unwrap().step_time(&decodes(64, 1000))
    };
    assert!(time(16) <= time(8), "{:?} {:?}", time(16), time(8));
    assert!(time(64) <= time(16), "{:?} {:?}", time(64), time(16));
}

/// Without expert parallelism, vLLM flattens tensor over data parallelism for experts.
#[test]
fn ranks_with_slices_of_experts_read_a_part_of_the_weights() {
    let experts = |expert_ranks, expert_parallel| {
        let shape = known_model_shape("Qwen/Qwen3-30B-A3B").unwrap();
        let gpu = find_gpu("H100").unwrap().clone();
        let setup = RooflineModelSetup {
            expert_ranks,
            expert_parallel,
            ..RooflineModelSetup::new(shape, gpu)
        };
        RooflineModel::new(&setup).unwrap().step_time_breakdown(&decodes(256, 1000)).moe
    };
    let (all, sliced, whole) = (experts(1, false), experts(2, false), experts(2, true));
    assert_eq!(all, experts(1, true));
    // Each rank reads half of the weights, and the inputs of the tokens of both.
    assert!(sliced < 0.7 * all, "{sliced} {all}");
    assert!(sliced > whole, "{sliced} {whole}");
}

#[test]
fn all2all_backends_differ_by_the_number_of_tokens() {
    let time = |all2all, ranks, tokens| {
        let shape = known_model_shape("deepseek-ai/DeepSeek-V3").unwrap();
        let gpu = find_gpu("H200").unwrap().clone();
        let setup = RooflineModelSetup {
            expert_ranks: ranks,
            all2all,
            ..RooflineModelSetup::new(shape, gpu)
        };
        RooflineModel::new(&setup).unwrap().step_time(&decodes(tokens, 1000))
    };
    use All2AllBackend::{HighThroughput, LowLatency};
    assert!(time(LowLatency, 16, 8) < time(HighThroughput, 16, 8));
    // The low-latency kernels send a token once per expert.
    assert!(time(LowLatency, 8, 4096) > time(HighThroughput, 8, 4096));
    // 58 layers of 90 us and 8 x 7168 x 3 bytes a token, 47 GB/s between 256 GPUs, 155 within 8.
    let more = time(LowLatency, 256, 128) - time(LowLatency, 8, 128);
    assert!(more > Duration::ZERO, "{more:?}");
}

#[test]
fn two_nodes_reduce_slower_than_one() {
    let time = |tp| {
        let shape = known_model_shape("meta-llama/Llama-3.1-405B").unwrap();
        let setup = RooflineModelSetup {
            tp,
            ..RooflineModelSetup::new(shape, find_gpu("H100").unwrap().clone())
        };
        RooflineModel::new(&setup).unwrap().step_time_breakdown(&decodes(64, 1000)).all_reduce
    };
    // Twice 126 all-reduces with two delays of 20 us each.
    assert!(time(16) - time(8) > 252.0 * 40.0, "{} {}", time(16), time(8));
}

#[test]
fn hopper_has_faster_kernels_since_0_20() {
    for (name, share) in [("H100", 0.591), ("H200", 0.572)] {
        let newest = find_gpu(name).unwrap();
        let (before, since) = (
            newest.with_kernels_of_vllm_version((0, 19)),
            newest.with_kernels_of_vllm_version((0, 20)),
        );
        assert!((before.gemm.compute - share).abs() < 1e-9, "{name}");
        assert_eq!(since, *newest);
        assert_eq!(before.experts.mxfp4, before.experts.int4);
        assert!(since.experts.mxfp4[1].compute > 2.0 * before.experts.int4[1].compute);
    }
    for name in ["A100", "L40S", "RTX-PRO-6000"] {
        let newest = find_gpu(name).unwrap();
        assert_eq!(newest.with_kernels_of_vllm_version((0, 19)), *newest, "{name}");
    }
}

#[test]
fn each_draft_is_verified_by_logits_of_its_own() {
    let setup = RooflineModelSetup { truncated_sampling: true, ..llama(1) };
    let roofline = RooflineModel::new(&setup).unwrap();
    let parts = |drafts: u32| {
        let mut batch = BatchWork::default();
        (0..64).for_each(|_| batch.add_decoding_sequence(1000, 1 + drafts, None));
        roofline.step_time_breakdown(&batch)
    };
    let (none, four) = (parts(0), parts(4));
    assert!(four.lm_head > 1.2 * none.lm_head, "{} {}", four.lm_head, none.lm_head);
    // 256 rows of 128256 entries more are cut.
    let more = four.overhead - none.overhead;
    assert!((more - 256.0 * 128_256.0 * 38.8e-6).abs() < 0.01, "{more}");
}
