//! Benchmarks prompt encoding and script generation.
//!
//! `cargo bench --bench text` prints nanoseconds; `cargo test --benches` runs it small.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use vllm_sim_engine::SimTime;
use vllm_sim_service::generate::request::{
    OutputTokenConstraints, ReplyGeneratorInput, StopConditions, StopString, TokenizedPrompt,
};
use vllm_sim_service::generate::{ReplyGenerator, ReplyTextMode};
use vllm_sim_tokenizer::{ChatTemplateInput, SpecialTokenHandling, Tokenizer, TokenizerLocation};

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

fn generate_request<'a>(
    key: u64,
    limit: u32,
    stops: &'a StopConditions,
    bias: &'a OutputTokenConstraints,
    prompt: &'a TokenizedPrompt,
) -> ReplyGeneratorInput<'a> {
    ReplyGeneratorInput {
        key,
        limit,
        limited: true,
        prompt,
        stops,
        bias,
        form: Default::default(),
        reasoning: None,
        thinking_budget: None,
        special_tokens: SpecialTokenHandling::Without,
        arrived: SimTime::default(),
    }
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
    let endless = |strings: &[&str]| {
        let strings = strings.iter().map(|text| (*text).to_owned());
        StopConditions {
            strings: strings.filter_map(StopString::new).collect(),
            ignore_eos: true,
            ..StopConditions::default()
        }
    };
    let bias = OutputTokenConstraints::default();
    let prompt = TokenizedPrompt::default();
    for limit in [100, 2_000] {
        let stops = endless(&[]);
        time(&format!("script of {limit} tokens"), rounds, |i| {
            let script = generator.generate_script(&generate_request(
                i.into(),
                limit,
                &stops,
                &bias,
                &prompt,
            ));
            assert_eq!(script.len(), limit);
        });
    }
    time("script with stop strings", rounds, |i| {
        let stops = endless(&["nobody says this", "or that"]);
        assert_eq!(
            generator
                .generate_script(&generate_request(i.into(), 2_000, &stops, &bias, &prompt))
                .len(),
            2_000
        );
    });
}
