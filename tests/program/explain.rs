//! How `explain` reads the deployments that flags describe.

use vllm_sim::server::batching_engine_config;
use vllm_sim_config::{CliMode, LoadedConfig, MediaEncoderConfig};
use vllm_sim_engine::latency::MediaEncoderShape;
use vllm_sim_explain::{EngineCacheSizes, NO_ROOFLINE_REASON, explain_engine_as_text};

#[test]
fn explain_shows_layer_groups_and_block_rule() {
    let flags = ["--model", "openai/gpt-oss-20b", "--gpu", "H100"];
    let bytes = ["--kv-cache-memory-bytes", "60G", "--max-model-len", "131072"];
    let flags = [&flags[..], &bytes].concat();
    let config = LoadedConfig::from_flags(CliMode::Vllm, &flags).unwrap().config;
    let (engine, setup) = batching_engine_config(&config).unwrap();
    let setup = setup.as_ref().map(|setup| (setup, 0.92, Err(NO_ROOFLINE_REASON)));
    let caches =
        EngineCacheSizes { kv: config.engine.kv_cache.as_ref(), ..EngineCacheSizes::default() };
    let text = explain_engine_as_text("gpt-oss-20b", &engine, setup, "", &[], (caches, None));
    for part in [
        "163839 usable blocks of 16 tokens that the groups share",
        "163840 blocks with the null block: --kv-cache-memory-bytes divided by the bytes of a \
         block",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let rows: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in
        ["0 12 the last 128 tokens 16 393216 1033 blocks", "1 12 all tokens 16 393216 8192 blocks"]
    {
        assert!(rows.contains(&row.to_owned()), "no {row:?} in\n{text}");
    }
}

#[test]
fn explain_shows_encoder_budget() {
    let tokens = ["--mm-tokens-per-item", "{\"image\": 576}"];
    let model = ["--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "H100"];
    let flags = [&model[..], &tokens].concat();
    let config = LoadedConfig::from_flags(CliMode::Vllm, &flags).unwrap().config;
    let (engine, setup) = batching_engine_config(&config).unwrap();
    let setup = setup.as_ref().map(|setup| (setup, 0.92, Err(NO_ROOFLINE_REASON)));
    let mut encoder = config.engine.encoder.unwrap();
    let shown = |encoder: &MediaEncoderConfig| {
        let caches = EngineCacheSizes { encoder: Some(encoder), ..EngineCacheSizes::default() };
        explain_engine_as_text("qwen", &engine, setup, "", &[], (caches, None))
    };
    let text = shown(&encoder);
    for part in [
        "Encoder     at most 8192 embeddings a step, and as many in its cache: the larger of \
         max-num-batched-tokens, 8192, and the largest item, 2048 tokens of a video",
        "1000 take 10.0 ms, a typical value: config.json does not describe the encoder",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let vision = serde_json::json!({"vision_config": {"depth": 32, "hidden_size": 1280}});
    encoder.shapes.0 = MediaEncoderShape::vision_encoder_from_config(&vision);
    let text = shown(&encoder);
    let part = "1000 of an image take 10.0 ms, an estimate: 32 layers of 1280, 1 patches";
    assert!(text.contains(part), "no {part:?} in\n{text}");
}
