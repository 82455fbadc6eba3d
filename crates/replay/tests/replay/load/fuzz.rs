//! Mutated traces and results: sessions of a bounded number or words, never a panic.

use vllm_sim_replay::load::{self, Format, LoadOptions};

use super::file;

#[path = "../../../../../fuzz/mutate.rs"]
mod mutate;

const SEEDS: &[&str] = &[
    "{\"timestamp\": 1000, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [7, 8]}\n\
     {\"delay_ms\": 3, \"input_length\": 10, \"output_length\": 9, \"hash_ids\": [1], \"session_id\": \"s\"}\n",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n\
     2023-11-16 18:15:50.9951690,396,109\n",
    "\u{feff}Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
     5,ChatGPT,472,18,490,Conversation log\n",
    "arrival_s,prompt_tokens,cached_tokens,output_tokens,ttft_ms,e2e_ms,prefix_id\n\
     0.5,100,50,10,20.5,100,\"a, \"\"b\"\"\"\n",
    "[{\"id\": \"a\", \"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, \
     {\"from\": \"gpt\", \"value\": \"Ho ho\"}]}]",
    "{\"date\":\"x\",\"request_rate\":4.0,\"burstiness\":0.5,\"max_concurrency\":null,\"num_prompts\":2,\
     \"completed\":2,\"input_lens\":[10,20],\"output_lens\":[3,4],\"ttfts\":[0.1,0.2],\"itls\":[[0.1],[0.2]]}",
];

/// Most sessions that an input of a few kilobytes may stand for.
const LIMIT: u64 = 2_000;

#[test]
fn traces() {
    let formats = [
        Format::Auto,
        Format::Mooncake,
        Format::MooncakeDelta,
        Format::AgenticMooncake,
        Format::AppliedComputeAgentic,
        Format::Dynamo,
        Format::ShareGpt,
        Format::BurstGpt,
        Format::Azure,
        Format::VllmBench,
        Format::Csv,
    ];
    let mut next = 0;
    mutate::each(SEEDS, |bytes| {
        let (_dir, path) = file("trace", &String::from_utf8_lossy(bytes));
        for format in [Format::Auto, formats[next % formats.len()]] {
            let options = LoadOptions {
                format,
                limit: Some(LIMIT),
                ..LoadOptions::default()
            };
            if let Err(words) = sessions(&path, &options) {
                assert!(
                    !words.is_empty() && words.len() < 4096 + 4 * bytes.len(),
                    "{words:.200}"
                );
            }
        }
        next += 1;
    });
}

fn sessions(path: &std::path::Path, options: &LoadOptions) -> Result<(), String> {
    let text = |error: vllm_sim_replay::workload::WorkloadError| error.to_string();
    let mut source = load::open(&[path.to_owned()], options).map_err(text)?;
    let mut count = 0;
    while source.next().map_err(text)?.is_some() {
        count += 1;
        assert!(count <= LIMIT);
    }
    Ok(())
}
