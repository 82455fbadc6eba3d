//! Files of operators.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;
use vllm_sim_config::{CliMode, LoadedConfig, load_single_engine_config};
use vllm_sim_dataset::{
    DEFAULT_TABLE_NAME, Dataset, DatasetRowStorage, RequestedReplyLength, hash_completion_prompt,
};
use vllm_sim_engine::latency::{
    AiConfiguratorSetup, AiConfiguratorStepTimes, BatchWork, MixedStepTiming, ModelShape,
    StepOverhead, StepTimeGrid,
};
use vllm_sim_random::{RandomStreamPurpose, request_rng};
use vllm_sim_replay::load::{self, WorkloadFormat, WorkloadReadOptions};
use vllm_sim_service::scenario::FaultScenario;
use vllm_sim_service::scripted::{MatchedRequest, ReplyRules, ScriptedReplies};

use super::mutate::Corpus;
use super::run::fuzz;
use super::{files_below, literals, root};

/// Most sessions that are taken out of a trace.
const SESSIONS: usize = 100_000;

/// A file that every input is written to.
struct Scratch {
    _folder: TempDir,
    path: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { path: folder.path().join(name), _folder: folder }
    }

    fn write(&self, input: &[u8]) -> &Path {
        fs::write(&self.path, input).unwrap();
        &self.path
    }
}

fn contents(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let files = files_below(folder, ending).into_iter();
    files.map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn yaml_of_flags() {
    let profiles = contents("manifests/latency-profiles", ".yaml");
    let tests = literals("tests/program/config").into_iter();
    let tests = tests.filter(|text| text.windows(2).any(|two| two == b": " || two == b":\n"));
    let corpus = Corpus {
        seeds: profiles.into_iter().chain(tests).collect(),
        tokens: &[
            "model: m\n",
            "&a ",
            "*a",
            "<<: *a\n",
            "? ",
            "- ",
            "|\n",
            ">-\n",
            "!!binary ",
            "!!int ",
            "---\n",
            "...\n",
            "# x\n",
            "{",
            "}",
            "[",
            "]",
            ": ",
            "max-num-seqs: ",
            "port: ",
            "~",
            ".inf",
            ".nan",
            "0x10",
            "1_000",
            "2024-01-01",
            "\"",
            "'",
            "\\u0000",
            "time-to-first-token: ",
            "1h",
            "-5ms",
            "lora-modules: ",
            "fake-metrics: ",
            "served-model-name: ",
            "no-enable-prefix-caching: true\n",
        ],
    };
    let scratch = Scratch::new("config.yaml");
    fuzz("YAML of flags", 2, corpus, move |input| {
        let path = scratch.write(input).to_str().unwrap();
        for mode in [CliMode::Vllm, CliMode::Llmd] {
            let _ = LoadedConfig::from_flags(mode, &["--model", "m", "--config", path]);
        }
    });
}

#[test]
fn fuzz_command_line() {
    let corpus = Corpus {
        seeds: literals("tests/program/config"),
        tokens: &[
            "--",
            "-",
            "=",
            " ",
            "--model",
            "--max-num-seqs",
            "--port",
            "--kv-events-config",
            "{",
            "}",
            ":",
            ",",
            "1h",
            "5ms",
            "-1",
            "1e9",
            "0.5",
            "[",
            "]",
            "\"",
            ".",
            "--no-",
            "--lora-modules",
            "a=b",
            "--speculative-config",
            "--kv-transfer-config",
            "--rope-scaling",
            "--hf-overrides",
            "--cors",
        ],
    };
    fuzz("command lines", 2, corpus, |input| {
        let text = String::from_utf8_lossy(input);
        let words: Vec<&str> = ["--model", "m"].into_iter().chain(text.split(' ')).collect();
        for mode in [CliMode::Vllm, CliMode::Llmd] {
            if let Ok(loaded) = LoadedConfig::from_flags(mode, &words) {
                let _ = loaded.to_config_yaml();
            }
        }
    });
}

#[test]
fn fuzz_scenario_files() {
    let corpus = Corpus {
        seeds: contents("manifests/scenarios", ".yaml"),
        tokens: &[
            "name: ",
            "phases:\n",
            "- ",
            "for: ",
            "requests: ",
            "set: ",
            "do: ",
            "repeat: ",
            "seed: ",
            "by: ",
            "restart: ",
            "load-lora: ",
            "&a ",
            "*a",
            "{",
            "}",
            "[",
            "]",
            "1h",
            "0",
            "-1",
            "request-id",
            "~",
        ],
    };
    fuzz("scenarios", 1, corpus, |input| {
        let _ = FaultScenario::from_yaml(&String::from_utf8_lossy(input));
    });
}

#[test]
fn fuzz_scripted_replies() {
    let page = fs::read_to_string(root("docs/replies.md")).unwrap();
    let mut blocks = page.split("```yaml\n").skip(1);
    let example = blocks.next().unwrap().split("```").next().unwrap();
    ReplyRules::from_yaml(example).unwrap();
    let json =
        r#"[{"when": {"model": "m", "contains": "x"}, "call": [{"name": "f", "arguments": "{"}]}]"#;
    let corpus = Corpus {
        seeds: vec![example.into(), json.into()],
        tokens: &[
            "- ",
            "when: ",
            "contains: ",
            "matches: ",
            "model: ",
            "say: ",
            "call: ",
            "arguments: ",
            "reasoning: ",
            "pace: ",
            "first_token: ",
            "times: ",
            "fail: ",
            "error: ",
            "retry_after: ",
            "(a+)+$",
            "[[:alpha:]{1,1000}",
            "{999999}",
            "1h",
            "-1",
            "18446744073709551616",
            "&a ",
            "*a",
            "{",
            "}",
            "~",
        ],
    };
    fuzz("scripted replies", 1, corpus, |input| {
        let Ok(rules) = ReplyRules::from_yaml(&String::from_utf8_lossy(input)) else {
            return;
        };
        let replies = ScriptedReplies::default();
        replies.replace_rules(Some(Arc::new(rules)));
        let request = MatchedRequest { model: "m", ..MatchedRequest::default() };
        for text in ["How is the weather?", "21 degrees", "retry"] {
            let _ = replies.reserve_replies(std::iter::once(text), &request);
        }
        let _ = replies
            .current_reply_rules()
            .map(|rules| rules.reply_rules_with_usage_json().to_string());
    });
}

/// Kernel tables in Parquet, beside others that are whole.
#[test]
fn fuzz_kernel_tables() {
    let fixture = root("crates/engine/tests/fixtures/aic");
    let copy = tempfile::tempdir().unwrap();
    let own = "systems/data/h100_sxm/gemm/vllm/0.2.0/gemm_perf.parquet";
    for path in files_below("crates/engine/tests/fixtures/aic", "") {
        let to = copy.path().join(path.strip_prefix(&fixture).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(&path, to).unwrap();
    }
    let config = serde_json::json!({"hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 128, "vocab_size": 128});
    let setup = AiConfiguratorSetup {
        shape: ModelShape::from_hf_config(&config).unwrap(),
        system: "h100_sxm".to_owned(),
        backend: "vllm".to_owned(),
        version: None,
        tp: 1,
        moe_ep: 1,
        kv_bytes: 2,
        qk_norm: false,
        mixed: MixedStepTiming::Sum,
        overhead: StepOverhead::default(),
    };
    assert!(AiConfiguratorStepTimes::load_kernel_times(copy.path(), &setup).is_ok());
    let corpus = Corpus {
        seeds: contents("crates/engine/tests/fixtures/aic", ".parquet"),
        tokens: &[
            "PAR1",
            "gemm_dtype",
            "latency",
            "\x15\x00",
            "\x19\x2c",
            "\x1c",
            "\x7f",
            "\x7f\x7f\x7f\x7f\x0f",
            "\0\0\0\0",
            "\x01\x01\x01\x01",
        ],
    };
    fuzz("kernel tables", 1, corpus, move |input| {
        fs::write(copy.path().join(own), input).unwrap();
        if let Ok(aic) = AiConfiguratorStepTimes::load_kernel_times(copy.path(), &setup) {
            let _ = aic.decode_ms(2, 2, 10);
        }
    });
}

/// The arguments of Dynamo's mocker.
#[test]
fn fuzz_mocker_engine_args() {
    let corpus = Corpus {
        seeds: contents("tests/fixtures/dynamo", ".json"),
        tokens: &[
            "\"block_size\":",
            "\"num_gpu_blocks\":",
            "\"sglang\":{",
            "\"speedup_ratio\":",
            "\"engine_type\":",
            "\"max_num_seqs\":",
            "{",
            "}",
            "[",
            "]",
            ",",
            "null",
            "true",
            "\"vllm\"",
            "\"\"",
        ],
    };
    let scratch = Scratch::new("engine.json");
    fuzz("engine arguments", 1, corpus, move |input| {
        let path = scratch.write(input).to_str().unwrap().to_owned();
        let _ = LoadedConfig::from_flags(
            CliMode::Llmd,
            &["--model", "m", "--extra-engine-args", &path],
        );
        let words = ["--extra-engine-args".to_owned(), path];
        let _ = load_single_engine_config(&words, CliMode::Llmd, &|_| None);
    });
}

#[test]
fn fuzz_traces_and_results() {
    let mut seeds = contents("tests/fixtures/dynamo", ".jsonl");
    seeds.extend(contents("tests/fixtures/results", ".json"));
    seeds.extend(contents("tests/fixtures/agents", ".jsonl"));
    seeds.extend(contents("tests/fixtures/aisimulate", ".jsonl"));
    seeds.extend(literals("crates/replay/tests/replay/load"));
    let corpus = Corpus {
        seeds,
        tokens: &[
            "\"timestamp\":",
            "\"input_length\":",
            "\"output_length\":",
            "\"hash_ids\":",
            "\"session_id\":",
            "\"delay\":",
            "\"conversations\":",
            "\"messages\":",
            "\"benchmarks\":",
            "\"successes\":",
            "\"request_throughput\":",
            "\"per_request\":",
            "\"after\":",
            "\"turns\":",
            "\"prompt_tokens\":",
            "\"requests\":[",
            "\"type\":\"subagent\",",
            "\"t\":",
            "\"block_size\":",
            "\"resourceSpans\":[",
            "\"scopeSpans\":[",
            "\"spans\":[",
            "\"parent_span_id\":",
            "\"gen_ai.usage.input_tokens\":",
            "\"gen_ai.operation.name\":\"invoke_agent\"",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            "Timestamp,Model,Request tokens,Response tokens\n",
            "2023-11-16 18:17:03.9799600",
            "\n",
            ",",
            "\"\"",
            "null",
            "{",
            "}",
            "[",
            "]",
        ],
    };
    let scratch = Scratch::new("trace");
    let mut number = 0;
    fuzz("traces", 2, corpus, move |input| {
        scratch.write(input);
        number += 1;
        let named = WorkloadFormat::NAMED_WORKLOAD_FORMATS
            [number % WorkloadFormat::NAMED_WORKLOAD_FORMATS.len()]
        .0;
        for format in [WorkloadFormat::Auto, WorkloadFormat::from_str(named).unwrap()] {
            let options = WorkloadReadOptions { format, ..WorkloadReadOptions::default() };
            if let Ok(mut source) =
                load::open_workload_files(std::slice::from_ref(&scratch.path), &options)
            {
                let sessions = std::iter::from_fn(|| source.next_session().ok().flatten());
                let _ = sessions.take(SESSIONS).count();
            }
            let _ = load::read_bench_runs(&scratch.path, format);
        }
    });
}

/// An archive of five tables, as `numpy.savez` writes it, checksums left out.
fn tables() -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    let arrays: [(&str, &str, &[f64]); 5] = [
        ("prefill_isl", "2,", &[1.0, 100.0]),
        ("prefill_ttft_ms", "2,", &[3.0, 40.0]),
        ("decode_active_kv_tokens", "2,", &[1.0, 1000.0]),
        ("decode_context_length", "2,", &[1.0, 1000.0]),
        ("decode_itl", "2, 2", &[1.0, 2.0, 3.0, 4.0]),
    ];
    for (name, shape, values) in arrays {
        let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({shape})}}\n");
        let mut npy = b"\x93NUMPY\x01\x00".to_vec();
        npy.extend((header.len() as u16).to_le_bytes());
        npy.extend(header.as_bytes());
        npy.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let (at, size) = ((file.len() as u32).to_le_bytes(), (npy.len() as u32).to_le_bytes());
        let sizes = [size, size].concat();
        let length = (name.len() as u16).to_le_bytes();
        for part in [b"PK\x03\x04", &[0; 14][..], &sizes, &length, &[0; 2], name.as_bytes(), &npy] {
            file.extend(part);
        }
        for part in [b"PK\x01\x02", &[0; 16][..], &sizes, &length, &[0; 12], &at, name.as_bytes()] {
            directory.extend(part);
        }
    }
    let at = (file.len() as u32).to_le_bytes();
    let size = (directory.len() as u32).to_le_bytes();
    let end = [b"PK\x05\x06", &[0; 6][..], &[5, 0], &size, &at, &[0; 2]].concat();
    [file, directory, end].concat()
}

#[test]
fn fuzz_profiler_tables() {
    let scratch = Scratch::new("tables.npz");
    assert!(StepTimeGrid::open(scratch.write(&tables())).is_ok());
    let corpus = Corpus {
        seeds: vec![tables()],
        tokens: &[
            "PK\x01\x02",
            "PK\x03\x04",
            "PK\x05\x06",
            "'shape': (",
            "2, 2",
            "'<f4'",
            "'<i8'",
            "True",
            ")",
            ",",
            "4294967295",
            "\x08\x00",
        ],
    };
    fuzz("tables", 1, corpus, move |input| {
        if let Ok(grid) = StepTimeGrid::open(scratch.write(input)) {
            let mut batch = BatchWork::default();
            batch.add_decoding_sequence(500, 1, None);
            batch.add_prompt_chunk(50, 0, None);
            assert!(grid.prefill_ms(&batch).is_finite() && grid.decode_ms(&batch).is_finite());
        }
    });
}

#[test]
fn fuzz_recordings() {
    let scratch = Scratch::new("replies.sqlite3");
    let sample = fs::read(root("datasets/sample.sqlite3")).unwrap();
    let file = Connection::open(scratch.write(&sample)).unwrap();
    // A smaller one, so that changes hit what is read.
    let fewer = format!("DELETE FROM {DEFAULT_TABLE_NAME} WHERE rowid > 3; VACUUM");
    file.execute_batch(&fewer).unwrap();
    drop(file);
    let small = fs::read(&scratch.path).unwrap();
    let corpus = Corpus {
        seeds: vec![small, sample],
        tokens: &[
            "SQLite format 3\0",
            "CREATE TABLE",
            "INTEGER",
            "JSON",
            "BLOB",
            "[",
            "]",
            "{\"Tokens\":",
            "\"Strings\":",
            "\"",
            ",",
            "4294967296",
            "-1",
            "\0\0\0\0",
        ],
    };
    fuzz("recordings", 4, corpus, move |input| {
        scratch.write(input);
        for rows in [DatasetRowStorage::OnDisk, DatasetRowStorage::InMemory] {
            if let Ok(dataset) = Dataset::open(&scratch.path, DEFAULT_TABLE_NAME, rows) {
                let mut rng = request_rng(1, 1, RandomStreamPurpose::Content);
                let _ = dataset.find_reply(
                    &[hash_completion_prompt("x")],
                    RequestedReplyLength::AtMost(7),
                    &mut rng,
                );
                let _ = dataset.first_invalid_dataset_row();
            }
        }
        let recording = WorkloadReadOptions {
            format: WorkloadFormat::Recording,
            ..WorkloadReadOptions::default()
        };
        if let Ok(mut source) =
            load::open_workload_files(std::slice::from_ref(&scratch.path), &recording)
        {
            let sessions = std::iter::from_fn(|| source.next_session().ok().flatten());
            let _ = sessions.take(SESSIONS).count();
        }
    });
}
