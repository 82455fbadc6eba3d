//! Compares step times with results of NVIDIA's estimator: `aic_points DATA CONFIGS POINTS.jsonl`.
//!
//! DATA is a value of `--aic-data`, CONFIGS a folder of `<owner>--<model>_config.json`. Each line
//! of POINTS is one result: `system`, `backend`, `backend_version`, `model`, `tp`, `moe_ep`, `kind`
//! (`decode`, `prefill`, `mixed`) with its sizes, and `ms`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use vllm_sim_engine::latency::{
    AiConfiguratorSetup, AiConfiguratorStepTimes, MixedStepTiming, ModelShape, QuantizationScheme,
    StepOverhead,
};

/// Maximum relative difference that counts as equal.
const NEAR: f64 = 1e-9;

type Fault = Box<dyn std::error::Error>;

fn main() -> Result<(), Fault> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [data, configs, points] = &args[..] else {
        return Err("aic_points DATA CONFIGS POINTS.jsonl".into());
    };
    let mut opened: BTreeMap<String, Result<AiConfiguratorStepTimes, String>> = BTreeMap::new();
    let mut met: BTreeMap<String, (usize, usize, f64)> = BTreeMap::new();
    for line in std::fs::read_to_string(points)?.lines() {
        let point: Value = serde_json::from_str(line)?;
        let text = |key: &str| point[key].as_str().unwrap_or_default();
        let count = |key: &str| point[key].as_u64().unwrap_or(1);
        let who =
            format!("{} {} {} TP {}", text("system"), text("backend"), text("model"), count("tp"));
        let aic = match opened.get(&who) {
            Some(aic) => aic,
            None => {
                let aic = open(Path::new(data), Path::new(configs), &point)?;
                opened.entry(who.clone()).or_insert(aic)
            }
        };
        let tally = met.entry(who).or_default();
        tally.1 += 1;
        let Ok(aic) = aic else {
            continue;
        };
        let ms = match text("kind") {
            "decode" => aic.decode_ms(count("requests"), count("requests"), count("context") + 1),
            "prefill" => aic.prefill_ms(count("requests"), count("new_tokens"), count("prefix")),
            _ => aic.combined_forward_pass_ms(
                (count("prefill_requests"), count("new_tokens"), count("prefix")),
                (count("decode_requests"), count("decode_requests"), count("context") + 1),
            ),
        };
        let off = (ms / point["ms"].as_f64().unwrap_or(0.0) - 1.0).abs();
        tally.0 += usize::from(off <= NEAR);
        tally.2 = tally.2.max(off);
    }
    let mut sum = (0, 0);
    for (who, (near, all, worst)) in &met {
        let why = opened.get(who).and_then(|aic| aic.as_ref().err());
        let why = why.map_or(format!("worst {worst:.1e}"), Clone::clone);
        println!("{near:4} of {all:4}  {who}: {why}");
        sum = (sum.0 + near, sum.1 + all);
    }
    println!("{} of {}", sum.0, sum.1);
    Ok(())
}

fn open(
    data: &Path,
    configs: &Path,
    point: &Value,
) -> Result<Result<AiConfiguratorStepTimes, String>, Fault> {
    let text = |key: &str| point[key].as_str().unwrap_or_default();
    let count = |key: &str| u32::try_from(point[key].as_u64().unwrap_or(1)).unwrap_or(1);
    let file = format!("{}_config.json", text("model").replace('/', "--"));
    let config: Value = serde_json::from_str(&std::fs::read_to_string(configs.join(file))?)?;
    let shape = ModelShape::from_hf_config(&config)?;
    let kind = config["model_type"].as_str().unwrap_or_default();
    let setup = AiConfiguratorSetup {
        // The estimator uses an fp8 cache with fp8 weights.
        kv_bytes: match shape.quantization.scheme {
            QuantizationScheme::Fp8 | QuantizationScheme::Fp8Block => 1,
            _ => 2,
        },
        shape,
        system: text("system").to_owned(),
        backend: text("backend").to_owned(),
        version: Some(text("backend_version").to_owned()),
        tp: count("tp"),
        moe_ep: count("moe_ep"),
        qk_norm: kind.starts_with("qwen3"),
        mixed: MixedStepTiming::Combined,
        overhead: StepOverhead::default(),
    };
    Ok(AiConfiguratorStepTimes::load_kernel_times(data, &setup).map_err(|error| error.to_string()))
}
