//! The two command lines, and the programs they are called by.

use std::time::Duration;

use vllm_sim_config::{
    CliMode, DataParallelLoadBalancing, LoadedConfig, MetricsCompat, ModelTask, ParsedCommand,
    SchedulerKind, StepLatencySource, load_config, load_config_and_unknown_args,
};
use vllm_sim_engine::kv::BlockHashAlgorithm;

use super::{env, serve, sim, try_words};

fn command(line: &str) -> ParsedCommand {
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    load_config(&args, &env(&[])).unwrap()
}

#[test]
fn each_mode_has_its_own_defaults() {
    let (sim, serve) = (sim(&[]), serve(&[]));
    assert_eq!((sim.engine.max_num_seqs, serve.engine.max_num_seqs), (5, 256));
    assert_eq!((sim.model.max_model_len, serve.model.max_model_len), (1024, 32768));
    assert_eq!(sim.engine.queue.max_waiting_queue_length, Some(1000));
    assert_eq!(serve.engine.queue.max_waiting_queue_length, None);
    assert_eq!(sim.engine.scheduler, SchedulerKind::Pool);
    assert_eq!(serve.engine.scheduler, SchedulerKind::Vllm);
    assert_eq!((sim.lora.runtime_updating, serve.lora.runtime_updating), (true, false));
    assert_eq!(
        (sim.api.scale_out.enable_scale_out, serve.api.scale_out.enable_scale_out),
        (true, false)
    );
    assert_eq!((sim.api.task, serve.api.task), (ModelTask::All, ModelTask::Generate));
    assert_eq!((sim.metrics.legacy, serve.metrics.legacy), (true, false));
    assert_eq!(sim.server.timeouts.shutdown, Duration::from_secs(30));
    assert_eq!(serve.server.timeouts.shutdown, Duration::ZERO);
    assert_eq!((sim.content.seed, serve.content.seed), (None, Some(0)));
    assert_eq!((sim.engine.memory.num_blocks, serve.engine.memory.num_blocks), (Some(1024), None));
    assert_eq!(sim.engine.parallel.balance, DataParallelLoadBalancing::PortPerRank);
    assert_eq!(serve.engine.parallel.balance, DataParallelLoadBalancing::Internal);
    assert_eq!(
        (
            sim.engine.prefix_cache.enable_prefix_caching,
            serve.engine.prefix_cache.enable_prefix_caching
        ),
        (false, true)
    );
    assert_eq!((sim.model.cli_mode, serve.model.cli_mode), (CliMode::Llmd, CliMode::Vllm));
}

#[test]
fn each_mode_takes_the_flags_of_the_other() {
    let config = sim(&["-tp", "2", "--enable-server-load-tracking", "--no-enable-chunked-prefill"]);
    assert_eq!(config.engine.parallel.tensor, 2);
    assert!(config.server.routes.load_tracking && !config.engine.prefill.enable_chunked_prefill);
    let config = serve(&[
        "--time-to-first-token",
        "20ms",
        "--mode",
        "echo",
        "--max-waiting-queue-length",
        "3",
    ]);
    assert_eq!(config.engine.timing.delays.ttft.0, Duration::from_millis(20));
    assert_eq!(config.engine.queue.max_waiting_queue_length, Some(3));
}

#[test]
fn the_model_of_serve_may_be_a_flag_a_word_or_vllms_default() {
    let model = |words: &[&str]| try_words(words, &[]).unwrap().config.model.name;
    assert_eq!(model(&["vllm", "serve", "a", "--port", "1"]), "a");
    assert_eq!(model(&["vllm", "serve", "--port", "1", "a"]), "a");
    assert_eq!(model(&["vllm", "serve", "--model", "a"]), "a");
    assert_eq!(model(&["vllm", "serve", "b", "--model", "a"]), "b");
    assert_eq!(model(&["vllm", "serve"]), "Qwen/Qwen3-0.6B");
    assert_eq!(model(&["vllm", "--model", "a"]), "a");
}

#[test]
fn program_name_selects_cli_mode() {
    let compat = |words: &[&str]| try_words(words, &[]).unwrap().config.model.compat;
    assert_eq!(compat(&["/app/llm-d-inference-sim", "--model", "m"]), MetricsCompat::Llmd);
    assert_eq!(
        compat(&["llm-d-inference-sim", "--model", "m", "--compat", "vllm"]),
        MetricsCompat::Vllm
    );
    assert_eq!(compat(&["vllm-sim", "--model", "m"]), MetricsCompat::Vllm);
    assert_eq!(compat(&["vllm-sim", "--model", "m", "--compat=llm-d"]), MetricsCompat::Llmd);
}

#[test]
fn a_variable_names_the_program_where_a_manifest_sets_no_command() {
    let load = |words: &[&str], name: &str| {
        let args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let environment = [("VLLM_SIM_PROGRAM", name)];
        match load_config(&args, &env(&environment)) {
            Ok(ParsedCommand::Serve(loaded)) => Ok((loaded.config.model.compat, loaded.warnings)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    };
    // The arguments of llm-d's manifests/deployment.yaml and disaggregation/vllm-sim-pd.yaml.
    for words in [
        &[
            "vllm-sim",
            "--model",
            "Qwen/Qwen3.5-397B-A17B",
            "--port",
            "8000",
            "--render-url",
            "http://localhost:8082",
        ][..],
        &[
            "vllm-sim",
            "--v=4",
            "--port=8000",
            "--model=Qwen/Qwen2.5-0.5B-Instruct",
            "--data-parallel-size=1",
            "--prefill-time-per-token=200ms",
            "--prefill-time-std-dev=3ms",
            "--render-url=http://localhost:8082",
        ],
        &["/usr/local/bin/vllm-sim", "stray", "--model", "m"],
    ] {
        let (compat, _) = load(words, "llm-d-inference-sim").unwrap();
        assert_eq!(compat, MetricsCompat::Llmd, "{words:?}");
    }
    let plain = load(&["vllm-sim", "--model", "m"], "").unwrap();
    assert_eq!(plain.0, MetricsCompat::Vllm);
    // A name that a manifest does call is stronger.
    let called = load(&["vllm", "serve", "m"], "llm-d-inference-sim").unwrap();
    assert_eq!(called.0, MetricsCompat::Vllm);
    assert_eq!(
        load(&["vllm-sim", "--model", "m"], "llm-d").unwrap_err(),
        "VLLM_SIM_PROGRAM: \"llm-d\" is not one of vllm-sim, vllm, llm-d-inference-sim, \
         dataset-tool (from environment)"
    );
}

#[test]
fn positional_args_are_ignored_as_in_llmd() {
    let loaded = try_words(&["llm-d-inference-sim", "--model", "m", "left", "over"], &[]).unwrap();
    assert_eq!(loaded.warnings, ["arguments that belong to no flag are ignored: left over"]);
}

#[test]
fn version_output_names_imitated_release() {
    assert_eq!(command("vllm --version"), ParsedCommand::Version("0.33.0".to_owned()));
    assert_eq!(command("vllm -v"), ParsedCommand::Version("0.33.0".to_owned()));
    let ParsedCommand::Version(line) = command("vllm-sim --version --vllm-version 0.31") else {
        panic!("a version was expected");
    };
    assert!(line.starts_with("vllm-sim ") && line.ends_with(" 0.31.0"), "{line}");
    let args = ["vllm".to_owned(), "--version".to_owned()];
    let version = load_config(&args, &env(&[("VLLM_SIM_VLLM_VERSION", "0.26")]));
    assert_eq!(version, Ok(ParsedCommand::Version("0.26.0".to_owned())));
}

#[test]
fn launch_render_is_like_serve() {
    let config = try_words(&["vllm", "launch", "render", "m"], &[]).unwrap().config;
    assert!(config.api.scale_out.render_only && config.api.scale_out.enable_scale_out);
}

#[test]
fn tools_get_their_arguments_unchanged() {
    let tool = command("vllm-sim replay trace.jsonl --scheduler vllm --help");
    let args = ["trace.jsonl", "--scheduler", "vllm", "--help"].map(str::to_owned);
    let name = "replay";
    assert_eq!(tool, ParsedCommand::Tool { name, args: args.to_vec() });
}

#[test]
fn tools_can_read_the_flags_they_share_and_keep_the_rest() {
    let words = ["a.jsonl", "--scheduler", "sglang", "--report", "out.html", "-tp", "2", "--fast"];
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let (loaded, rest) = load_config_and_unknown_args(&words, CliMode::Vllm, &env(&[])).unwrap();
    assert_eq!(loaded.config.engine.scheduler, SchedulerKind::Sglang);
    assert_eq!(loaded.config.engine.parallel.tensor, 2);
    assert_eq!(rest, ["a.jsonl", "--report", "out.html", "--fast"]);
}

#[test]
fn the_context_behind_serve_is_that_of_config_json() {
    let dir = tempfile::tempdir().unwrap();
    let length = |config: &str, words: &[&str]| {
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let path = dir.path().to_str().unwrap();
        let words = [&["vllm-sim", "serve", path], words].concat();
        try_words(&words, &[]).unwrap().config.model.max_model_len
    };
    assert_eq!(length(r#"{"max_position_embeddings":2048}"#, &[]), 2048);
    assert_eq!(length(r#"{"text_config":{"max_position_embeddings":4096}}"#, &[]), 4096);
    let linear =
        r#"{"max_position_embeddings":2048,"rope_scaling":{"rope_type":"linear","factor":4}}"#;
    assert_eq!(length(linear, &[]), 8192);
    let yarn = r#"{"max_position_embeddings":40960,"rope_scaling":
        {"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}"#;
    assert_eq!(length(yarn, &[]), 131_072);
    let llama =
        r#"{"max_position_embeddings":131072,"rope_scaling":{"rope_type":"llama3","factor":8}}"#;
    assert_eq!(length(llama, &[]), 131_072);
    let by_layer_type = r#"{"max_position_embeddings":65536,"rope_parameters":{
        "sliding_attention":{"rope_type":"default"},
        "full_attention":{"rope_type":"yarn","factor":8.0,"original_max_position_embeddings":8192}}}"#;
    assert_eq!(length(by_layer_type, &[]), 65_536);
    let gemma = r#"{"text_config":{"model_type":"gemma3_text",
        "rope_scaling":{"rope_type":"linear","factor":8.0}}}"#;
    assert_eq!(length(gemma, &[]), 131_072);
    assert_eq!(length("{}", &[]), 2048);
    assert_eq!(length("{}", &["--max-model-len", "4k"]), 4000);
    assert_eq!(length("{}", &["--max-model-len", "-1"]), 2048);
    let overrides = r#"{"max_position_embeddings":77}"#;
    assert_eq!(length("{}", &["--hf-overrides", overrides]), 77);
}

#[test]
fn the_context_behind_serve_is_that_of_a_built_in_model() {
    let load = |words: &[&str]| try_words(&[&["vllm-sim"], words].concat(), &[]).unwrap();
    let length = |words: &[&str]| load(words).config.model.max_model_len;
    for (name, tokens) in [
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
        ("meta-llama/Llama-2-7b-chat-hf", 4096),
        ("Qwen/Qwen3-0.6B", 40_960),
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),
        ("microsoft/Phi-3.5-mini-instruct", 4096),
        ("somebody/else", 32_768),
    ] {
        assert_eq!(length(&["serve", name]), tokens, "{name}");
        assert_eq!(length(&["--model", name]), 1024, "{name}");
    }
    let short = ["serve", "meta-llama/Llama-2-7b-chat-hf", "--max-model-len", "8k"];
    let told = "max-model-len 8000 is more than the 4096 of the built-in model";
    assert!(load(&short).warnings.iter().any(|text| text.contains(told)));
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"max_position_embeddings":131072,"original_max_position_embeddings":4096,
        "rope_scaling":{"type":"longrope"}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let path = dir.path().to_str().unwrap();
    assert_eq!(length(&["serve", path]), 4096);
    assert_eq!(length(&["serve", path, "--max-model-len", "100k"]), 100_000);
}

#[test]
fn a_gpu_asks_for_a_scheduler_with_steps() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let path = dir.path().to_str().unwrap();
    let loaded = try_words(&["vllm-sim", "--model", path, "--gpu", "h100"], &[]).unwrap();
    assert_eq!(loaded.config.engine.scheduler, SchedulerKind::Vllm);
    let roofline = StepLatencySource::Roofline { coefficients: None };
    assert_eq!(loaded.config.engine.timing.latency_source, roofline);
}

#[test]
fn events_take_the_form_of_the_flag_that_switches_them_on() {
    use vllm_sim_observe::kv_events::KvEventFormat::{LlmdArray, LlmdMap, Vllm};
    use vllm_sim_observe::kv_events::is_bind_endpoint;
    let on = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://*:6000","topic":"kv@x"}"#;
    let config = sim(&["--kv-events-config", on, "--enable-kvcache"]);
    assert_eq!((config.kv_events.enabled, config.kv_events.encoding.format), (true, Vllm));
    assert_eq!(
        (is_bind_endpoint(&config.kv_events.endpoint), config.kv_events.topic.as_str()),
        (true, "kv@x")
    );
    assert_eq!(config.engine.prefix_cache.hash_algo, BlockHashAlgorithm::Sha256);
    assert!(sim(&["--kv-events-config", on]).engine.prefix_cache.enable_prefix_caching);
    let config = sim(&["--enable-kvcache"]);
    assert_eq!((config.kv_events.enabled, config.kv_events.encoding.format), (true, LlmdArray));
    assert_eq!(config.engine.prefix_cache.hash_algo, BlockHashAlgorithm::LlmdFnv);
    assert!(
        !is_bind_endpoint(&config.kv_events.endpoint)
            && config.engine.prefix_cache.enable_prefix_caching
    );
    let config = serve(&["--zmq-endpoint", "tcp://h:1", "--use-vllm-map-event-format"]);
    assert_eq!((config.kv_events.enabled, config.kv_events.encoding.format), (true, LlmdMap));
    assert!(!sim(&["--zmq-endpoint", "tcp://h:1"]).kv_events.enabled);
    assert!(!serve(&[]).kv_events.enabled && !sim(&[]).kv_events.enabled);
}

#[test]
fn ranks_are_where_the_flags_put_them() {
    let parallel = |words: &[&str]| serve(words).engine.parallel;
    assert_eq!(parallel(&["-dp", "4"]).local_ranks, (0, 4));
    assert_eq!(parallel(&["-dp", "4"]).api_servers, 4);
    let external = parallel(&["-dp", "4", "-dpn", "2"]);
    assert_eq!(
        (external.local_ranks, external.balance),
        ((2, 1), DataParallelLoadBalancing::External)
    );
    let hybrid = parallel(&["-dp=4", "-dph", "-dpr", "2", "-dpl", "2"]);
    assert_eq!((hybrid.local_ranks, hybrid.balance), ((2, 2), DataParallelLoadBalancing::Hybrid));
    let ports = parallel(&["-dp", "2", "-dpm"]);
    assert_eq!(
        (ports.supervisor_port, ports.balance),
        (Some(9256), DataParallelLoadBalancing::PortPerRank)
    );
    let llmd = sim(&["--data-parallel-rank", "5"]).engine.parallel;
    assert_eq!((llmd.local_ranks, llmd.balance), ((5, 1), DataParallelLoadBalancing::External));
}

#[test]
fn flags_alone_make_a_configuration_for_tests_and_tools() {
    let loaded = LoadedConfig::from_flags(CliMode::Vllm, &["--model", "m", "-dp", "2"]).unwrap();
    assert_eq!(loaded.config.engine.parallel.data, 2);
    assert!(LoadedConfig::from_flags(CliMode::Llmd, &["--port", "1"]).is_err());
}
