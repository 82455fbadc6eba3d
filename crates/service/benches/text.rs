//! Benchmarks prompt encoding and script generation.
//!
//! `cargo bench --bench text` prints nanoseconds; `cargo test --benches` runs it small.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use vllm_sim_service::dialect::VllmDialect;
use vllm_sim_service::generate::request::{ReplyContentKind, TokenizedPrompt};
use vllm_sim_service::generate::{ReplyGenerator, ReplyTextMode, ScriptBuilder};
use vllm_sim_service::{AllowedToolSchemas, GenerationJob, RequestRules};
use vllm_sim_tokenizer::{ChatTemplateInput, SpecialTokenHandling, Tokenizer, TokenizerLocation};
use vllm_sim_wire::openai::sampling_fields::StopStrings;
use vllm_sim_wire::{SamplingDefaults, SamplingParams, ServerLimits};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny-llama");

#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn time(name: &str, rounds: u32, mut f: impl FnMut(u32)) {
    let start = Instant::now();
    for i in 0..rounds {
        f(i);
    }
    let each = start.elapsed().as_nanos() / u128::from(rounds);
    println!("{name:<28} {each:>9} ns");
}

/// Returns a job whose replies have at most the output limit as their end.
fn endless_job(stop_strings: &[&str]) -> GenerationJob {
    let rules = RequestRules {
        limits: ServerLimits::default(),
        defaults: SamplingDefaults::default(),
        max_bad_words: 0,
        tool_schemas: AllowedToolSchemas::Any,
        dialect: &VllmDialect,
    };
    let strings = stop_strings.iter().map(|text| (*text).to_owned()).collect();
    let params = SamplingParams {
        ignore_eos: true,
        stop: Some(StopStrings(strings)),
        ..SamplingParams::default()
    };
    let prompts = vec![TokenizedPrompt::default()];
    GenerationJob::new(&rules, Box::default(), None, prompts, Box::new(params), Vec::new())
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let rounds = if full { 2_000 } else { 3 };
    let (tokenizer, _) =
        Tokenizer::open(&TokenizerLocation::Folder(MODEL.into())).expect("the fixture");
    let simulated = Arc::new(Tokenizer::new_simulated());
    let tokenizer = Arc::new(tokenizer);
    let words = |n: usize| "The quick brown fox jumps over the lazy dog. ".repeat(n / 9);
    for size in [90, 900] {
        let texts: Vec<String> = (0..64).map(|i| format!("{i} {}", words(size))).collect();
        for (kind, tokenizer) in [("model", &tokenizer), ("simulated", &simulated)] {
            time(&format!("encode {size} words, {kind}"), rounds, |i| {
                black_box(tokenizer.encode(&texts[i as usize % 64], SpecialTokenHandling::With));
            });
        }
    }
    let messages = [
        serde_json::json!({"role": "system", "content": "Be brief."}).into(),
        serde_json::json!({"role": "user", "content": words(90)}).into(),
    ];
    time("render a conversation", rounds, |_| {
        let chat = ChatTemplateInput {
            messages: &messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            chat_template: None,
            kwargs: None,
            content_format: None,
        };
        black_box(tokenizer.render_chat(&chat).expect("the fixture's template"));
    });
    let generator = ReplyGenerator::new(ReplyTextMode::Random, 7, tokenizer);
    let write = |job: &GenerationJob, key: u32, limit| {
        let builder = ScriptBuilder::new(&generator, job, &job.prompts[0], key.into(), limit);
        assert_eq!(builder.build_script(&ReplyContentKind::Text).len(), limit);
    };
    let endless = endless_job(&[]);
    for limit in [100, 2_000] {
        time(&format!("script of {limit} tokens"), rounds, |i| write(&endless, i, limit));
    }
    let stopped = endless_job(&["nobody says this", "or that"]);
    time("script with stop strings", rounds, |i| write(&stopped, i, 2_000));
}
