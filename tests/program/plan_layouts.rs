//! The parallelism that `vllm-sim plan` searches, the costs of its answer and the files that deploy
//! it.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::Path;

use serde_json::Value;

use super::replay_command::printed;

const DENSE: &str = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100";
const EXPERTS: &str = "--model Qwen/Qwen3-30B-A3B --gpu H100";
const WORK: &str = "--input-tokens 3000 --output-tokens 60 --request-count 120 --request-rate 24 \
                    --slo-ttft-ms 400 --slo-itl-ms 15 --max-gpus 6";
const PRICES: &str = "date: 2026-11-01\ncurrency: USD\ngpu_hour: {H100: 3}\n";

fn json(dir: &Path, words: &str) -> Value {
    serde_json::from_str(&printed(dir, &format!("{words} --report-json -"))).unwrap()
}

fn best(plan: &Value) -> &Value {
    &plan["points"][plan["order"][0].as_u64().unwrap() as usize]
}

/// Returns the fewest GPUs of the points of a sweep in which enough requests are good.
fn fewest_gpus(sweep: &Value) -> Option<u64> {
    let points = sweep["points"].as_array().unwrap().iter();
    let good = points.filter(|point| {
        let good = point["summary"]["slo_attainment"].as_f64();
        good.is_some_and(|good| good >= 0.95)
    });
    good.map(|point| point["gpus"].as_f64().unwrap().round() as u64).min()
}

#[test]
fn the_searched_layout_has_as_few_gpus_as_the_best_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let plan = json(dir.path(), &format!("plan {DENSE} {WORK} --threads 2"));
    let bounds = WORK.strip_suffix("--max-gpus 6").unwrap();
    let sweep = |grid: &str| {
        let words = format!("sweep {DENSE} {bounds} --threads 2 {grid}");
        fewest_gpus(&json(dir.path(), &words))
    };
    let mut all = Vec::new();
    for (size, most) in [(1, 6), (2, 3), (4, 1)] {
        let counts: Vec<String> = (1..=most).map(|count| count.to_string()).collect();
        let workers = counts.join(",");
        let layout = format!("--grid tensor-parallel-size={size}");
        all.extend(sweep(&format!("{layout} --grid num-workers={workers}")));
        let prefills = &counts[..counts.len() - 1];
        for (index, prefill) in prefills.iter().enumerate() {
            let decodes = counts[..counts.len() - 1 - index].join(",");
            all.extend(sweep(&format!(
                "{layout} --grid num-prefill-workers={prefill} \
                 --grid num-decode-workers={decodes} --kv-transfer-bandwidth 10"
            )));
        }
    }
    let found = &best(&plan)["found"];
    assert_eq!(found["gpus"].as_u64(), all.into_iter().min());
    // One GPU would not do, so that the search had something to find.
    assert!(found["gpus"].as_u64() > Some(1), "{found}");
    let points = plan["points"].as_array().unwrap();
    let split = points.iter().find(|it| it["disaggregated"] == true);
    let split = &split.unwrap()["found"];
    let (prefill, decode) = (&split["prefill_workers"], &split["decode_workers"]);
    assert_eq!(
        split["workers"].as_u64().unwrap(),
        prefill.as_u64().unwrap() + decode.as_u64().unwrap()
    );
}

#[test]
fn models_with_experts_are_tried_with_ranks_that_share_them() {
    let dir = tempfile::tempdir().unwrap();
    let work = "--input-tokens 500 --output-tokens 30 --request-count 40 --request-rate 10 \
                --slo-ttft-ms 900 --max-gpus 4";
    let plan = json(dir.path(), &format!("plan {EXPERTS} {work}"));
    let points = plan["points"].as_array().unwrap();
    let shared = points.iter().find(|it| it["flags"]["data-parallel-size"] == "2");
    let shared = shared.unwrap();
    assert_eq!(shared["flags"]["enable-expert-parallel"], "true");
    assert_eq!(shared["found"]["gpus"].as_u64().unwrap() % 2, 0);
    // A model without experts has no such column, and a named size ends the search.
    let plan = json(dir.path(), &format!("plan {DENSE} {work}"));
    assert!(best(&plan)["flags"].get("data-parallel-size").is_none());
    let plan = json(dir.path(), &format!("plan {EXPERTS} {work} -tp 2"));
    assert_eq!(plan["points"].as_array().unwrap().len(), 1);
}

#[test]
fn costs_are_those_of_an_hour_a_month_and_a_million_tokens() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("prices.yaml"), PRICES).unwrap();
    let words = format!("plan {DENSE} {WORK} --prices prices.yaml");
    let plan = json(dir.path(), &words);
    let found = &best(&plan)["found"];
    let cost = |key: &str| found[key].as_f64().unwrap();
    let hour = cost("cost_per_hour");
    assert_eq!(hour, 3.0 * cost("gpus"));
    assert_eq!(cost("cost_per_month"), hour * 730.0);
    // 24 requests a second with 60 tokens each.
    let output = hour / (24.0 * 60.0 * 3600.0) * 1e6;
    assert!((cost("cost_per_million_output_tokens") / output - 1.0).abs() < 1e-9, "{found}");
    let all = hour / (24.0 * 3060.0 * 3600.0) * 1e6;
    assert!((cost("cost_per_million_tokens") / all - 1.0).abs() < 1e-9, "{found}");
    // Half the rate at twice the speed is the same traffic.
    let slow = words.replace("--request-rate 24", "--request-rate 12 --arrival-speedup-ratio 2");
    let slow = json(dir.path(), &slow);
    let found = &best(&slow)["found"];
    let cost = |key: &str| found[key].as_f64().unwrap();
    let output = cost("cost_per_hour") / (24.0 * 60.0 * 3600.0) * 1e6;
    assert!((cost("cost_per_million_output_tokens") / output - 1.0).abs() < 1e-9, "{found}");
    let text = printed(dir.path(), &words);
    let answer = text.lines().next().unwrap();
    assert_eq!(Some(answer), plan["answer"].as_str());
    assert!(answer.starts_with("Answer: ") && answer.contains(" H100 in "), "{answer}");
    assert!(answer.contains(" USD a month, ") && answer.contains("TTFT p99 "), "{answer}");
    assert!(text.contains("Output tokens/s per GPU (up)"), "{text}");
    for key in ["command", "version", "model", "gpu", "step_times"] {
        assert!(plan["run"][key].is_string(), "{key}: {}", plan["run"]);
    }
}

/// Returns the documents of a YAML file below its comments, which name the schema.
fn documents(file: &Path, schema: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.starts_with("# ") && text.contains(schema), "{text}");
    let parts = text.split("\n---\n");
    parts.map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string()).parse().unwrap()
}

#[test]
fn deployment_files_have_the_servers_of_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| dir.path().join("deploy").join(name);
    let words = format!("plan {DENSE} {WORK} -tp 2 --max-num-seqs 128 --deploy-dir deploy");
    let plan = json(dir.path(), &words);
    let found = &best(&plan)["found"];
    let servers = found["workers"].as_u64().unwrap();
    let model = "meta-llama/Llama-3.1-8B-Instruct";

    let plain = documents(&out("kubernetes.yaml"), "apps/v1");
    let kinds: Vec<&str> = plain.iter().filter_map(|it| it["kind"].as_str()).collect();
    assert_eq!(kinds, ["Deployment", "Service"]);
    let container = &plain[0]["spec"]["template"]["spec"]["containers"][0];
    let arguments =
        serde_json::json!([model, "--port=8000", "--tensor-parallel-size=2", "--max-num-seqs=128"]);
    assert_eq!(container["args"], arguments);
    assert_eq!(number(&container["resources"]["limits"]["nvidia.com/gpu"]), 2);
    assert_eq!(plain[0]["spec"]["replicas"], servers);

    let stack = documents(&out("production-stack.values.yaml"), "vllm-stack 0.1.12");
    let engine = &stack[0]["servingEngineSpec"]["modelSpec"][0];
    assert_eq!(engine["replicaCount"], servers);
    assert_eq!((&engine["requestGPU"], &engine["modelURL"]), (&2.into(), &model.into()));
    assert_eq!(engine["vllmConfig"]["tensorParallelSize"], 2);
    assert_eq!(engine["vllmConfig"]["extraArgs"][0], "--max-num-seqs=128");

    let llmd = documents(&out("llm-d.values.yaml"), "llm-d-modelservice v0.4.12");
    assert_eq!(llmd[0]["decode"]["replicas"], servers);
    assert_eq!(llmd[0]["decode"]["parallelism"]["tensor"], 2);
    assert_eq!(llmd[0]["prefill"]["create"], false);

    let kserve = documents(&out("kserve.yaml"), "v1alpha2");
    assert_eq!(kserve[0]["kind"], "LLMInferenceService");
    assert_eq!(kserve[0]["spec"]["replicas"], servers);
    assert_eq!(kserve[0]["spec"]["parallelism"]["tensor"], 2);
    let readme = std::fs::read_to_string(out("DEPLOY.md")).unwrap();
    assert!(readme.contains("kubectl apply -f kserve.yaml"), "{readme}");
}

#[test]
fn split_servers_are_written_for_what_can_split_them() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!(
        "plan {DENSE} {WORK} -tp 1 --num-prefill-workers 2 --num-decode-workers 1 --deploy-dir out"
    );
    let plan = json(dir.path(), &words);
    let groups = best(&plan)["found"]["workers"].as_u64().unwrap();
    let words = format!("{} prefill workers and {groups} decode worker", 2 * groups);
    let answer = plan["answer"].as_str().unwrap();
    assert!(answer.contains(&words), "{answer}");
    let out = |name: &str| dir.path().join("out").join(name);
    let llmd = documents(&out("llm-d.values.yaml"), "v0.4.12");
    assert_eq!(llmd[0]["prefill"]["replicas"], 2 * groups);
    assert_eq!(llmd[0]["decode"]["replicas"], groups);
    assert_eq!(llmd[0]["routing"]["proxy"]["enabled"], true);
    let kserve = documents(&out("kserve.yaml"), "v1alpha2");
    assert_eq!(kserve[0]["spec"]["prefill"]["replicas"], 2 * groups);
    let plain = documents(&out("kubernetes.yaml"), "a proxy that sends a prompt to -prefill");
    assert_eq!(plain.len(), 4);
    assert!(!out("production-stack.values.yaml").exists());
    let readme = std::fs::read_to_string(out("DEPLOY.md")).unwrap();
    assert!(readme.contains("No `production-stack.values.yaml`"), "{readme}");
}
