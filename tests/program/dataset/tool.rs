//! `vllm-sim dataset`: from conversations to a dataset and back to replies.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use vllm_sim_dataset::{
    DEFAULT_TABLE_NAME, Dataset, DatasetRowStorage, RecordedReply, RequestedReplyLength,
    hash_completion_prompt, hash_conversation, hash_prompt_tokens,
};
use vllm_sim_random::{RandomStreamPurpose, request_rng};
use vllm_sim_record::dataset::run_dataset_command;
use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer};

const INPUT: &str = r#"[
    {"id": "a", "conversations": [
        {"from": "human", "value": "This is a test."}, {"from": "gpt", "value": "So it is."},
        {"from": "human", "value": "More?"}, {"from": "gpt", "value": "No."}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "Nobody asked."}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
]"#;

fn tool(folder: &Path, words: &str) -> Result<String, String> {
    let place = folder.display().to_string();
    let words: Vec<String> = words.split(' ').map(|w| w.replace("HERE", &place)).collect();
    run_dataset_command(&words, &|_| None)
        .map_err(|error| format!("{error:#}").replace(&place, "HERE"))
}

/// A folder with the input, and what the tool said.
fn built(more: &str) -> (TempDir, Result<String, String>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.json"), INPUT).unwrap();
    let words = format!(
        "build --local-path HERE --input-file in.json --output-path HERE/out --output-file d \
         --model m --force-dummy-tokenizer{more}"
    );
    let said = tool(folder.path(), &words);
    (folder, said)
}

fn reply(folder: &Path, hash: [u8; 32]) -> Option<RecordedReply> {
    let dataset =
        Dataset::open(&folder.join("out/d.sqlite3"), DEFAULT_TABLE_NAME, DatasetRowStorage::OnDisk)
            .unwrap();
    let found = dataset.find_reply(
        &[hash],
        RequestedReplyLength::AtMost(u32::MAX),
        &mut request_rng(1, 1, RandomStreamPurpose::Content),
    );
    found.filter(|found| found.matched)
}

#[test]
fn answers_are_found_by_the_tokens_of_completion_and_chat() {
    let (folder, said) = built("");
    assert!(said.unwrap().starts_with("6 replies from 2 of 3 conversations\n"));
    let tokenizer = Tokenizer::new_simulated();
    let text = |text: &str| {
        let hash = hash_prompt_tokens(&tokenizer.encode(text, SpecialTokenHandling::With));
        reply(folder.path(), hash).map(|found| found.texts.concat())
    };
    assert_eq!(text("This is a test."), Some("So it is.".to_owned()));
    assert_eq!(text("### user: This is a test.\n"), Some("So it is.".to_owned()));
    let chat = "### user: This is a test.\n### assistant: So it is.\n### user: More?\n";
    assert_eq!(text(chat), Some("No.".to_owned()));
    assert_eq!(text("Nobody asked."), None);
    let found = reply(
        folder.path(),
        hash_prompt_tokens(&tokenizer.encode("Hi", SpecialTokenHandling::With)),
    )
    .unwrap();
    assert_eq!(found.tokens, tokenizer.encode("Hello!", SpecialTokenHandling::Without));
}

#[test]
fn summary_json_matches_dataset_card() {
    let (folder, _) = built("");
    let text = fs::read_to_string(folder.path().join("out/d.json")).unwrap();
    let records: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(records.len(), 6);
    let hello = json!({
        "prompt_hash": records[4]["prompt_hash"],
        "n_gen_tokens": 2,
        "gen_tokens": {"Tokens": Tokenizer::new_simulated().encode("Hello!", SpecialTokenHandling::Without), "Strings": ["Hello", "!"]},
        "input_text": "Hi",
        "generated": "Hello!",
    });
    assert_eq!(records[4], hello);
    let card = fs::read_to_string(folder.path().join("out/d.md")).unwrap();
    assert!(card.contains("- **Conversations:** 3 read, 2 used\n- **Replies:** 6;"), "{card}");
}

#[test]
fn version_0_6_has_its_own_format() {
    let (folder, said) = built(" --legacy");
    assert!(said.is_ok(), "{said:?}");
    let completion = reply(folder.path(), hash_completion_prompt("Hi")).unwrap();
    assert_eq!((completion.tokens.len(), completion.texts.concat()), (0, "Hello!".to_owned()));
    let chat = [("user", "This is a test."), ("assistant", "So it is."), ("user", "More?")];
    let chat = reply(folder.path(), hash_conversation(chat)).unwrap();
    assert_eq!(chat.texts.concat(), "No.");
}

#[test]
fn built_dataset_can_be_inspected() {
    let (folder, _) = built("");
    let said = tool(folder.path(), "inspect HERE/out/d.sqlite3").unwrap();
    let expected = "format   current (prompts hashed as token ids)\nreplies  6\nprompts  6\n\
                    tokens   16 (shortest 2, median 2, longest 4)";
    assert_eq!(said, expected);
}

#[test]
fn sample_dataset_matches_its_source_text() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
    let folder = tempfile::tempdir().unwrap();
    let words = format!(
        "build --local-path {}/sample.jsonl --output-path HERE --output-file sample --model demo \
         --force-dummy-tokenizer",
        samples.display()
    );
    let said = tool(folder.path(), &words).unwrap();
    assert!(said.starts_with("56 replies from 24 of 24 conversations\n"), "{said}");
    for name in ["sample.json", "sample.md"] {
        let made = fs::read_to_string(folder.path().join(name)).unwrap();
        let kept = fs::read_to_string(samples.join(name)).unwrap();
        assert!(made == kept, "{name} is old: datasets/README.md says how to make it");
    }
    let sample = tool(&samples, "inspect HERE/sample.sqlite3");
    assert_eq!(sample, tool(folder.path(), "inspect HERE/sample.sqlite3"));
}

#[test]
fn inspect_reports_wrong_token_count() {
    let (folder, _) = built("");
    let file = rusqlite::Connection::open(folder.path().join("out/d.sqlite3")).unwrap();
    file.execute("UPDATE llmd SET n_gen_tokens = 7 WHERE id = 3", []).unwrap();
    drop(file);
    let said = tool(folder.path(), "inspect HERE/out/d.sqlite3").unwrap_err();
    let why =
        "table 'llmd' of dataset HERE/out/d.sqlite3, row 3: n_gen_tokens is 7, gen_tokens has 2";
    assert_eq!(said, why);
}

#[test]
fn failed_build_leaves_no_files() {
    let (folder, _) = built("");
    let again = "--local-path HERE/in.json --output-path HERE/out --output-file d --model m \
                 --force-dummy-tokenizer";
    assert_eq!(tool(folder.path(), again), Err("HERE/out/d.sqlite3 already exists".to_owned()));
    fs::write(folder.path().join("in.json"), &INPUT[..INPUT.len() - 40]).unwrap();
    let other = again.replace("file d", "file e");
    let said = tool(folder.path(), &other).unwrap_err();
    assert!(said.starts_with("HERE/in.json, conversation 3: neither ShareGPT"), "{said}");
    let mut names: Vec<_> = fs::read_dir(folder.path().join("out")).unwrap().collect();
    names.retain(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with('e'));
    assert!(names.is_empty(), "{names:?}");
}

/// A file of another format has JSON objects, too, but no replies.
#[test]
fn a_build_without_replies_is_an_error_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 2, \"hash_ids\": [1]}\n";
    fs::write(folder.path().join("trace.jsonl"), rows.repeat(3)).unwrap();
    let words = "build --local-path HERE/trace.jsonl --output-path HERE/out --output-file x \
                 --model m --force-dummy-tokenizer";
    let said = tool(folder.path(), words).unwrap_err();
    assert!(said.starts_with("HERE/trace.jsonl: no reply in 3 conversations; a dataset"), "{said}");
    assert_eq!(fs::read_dir(folder.path().join("out")).unwrap().count(), 0);
}

#[test]
fn conversations_beyond_the_limit_are_not_read() {
    let (_folder, said) = built(" --max-records 1");
    assert!(said.unwrap().starts_with("4 replies from 1 of 1 conversations\n"));
}

#[test]
fn build_arguments_are_validated() {
    let folder = tempfile::tempdir().unwrap();
    let both = tool(folder.path(), "--local-path x --hf-repo y --model m").unwrap_err();
    assert!(both.contains("cannot be used with"), "{both}");
    let neither = tool(folder.path(), "--model m").unwrap_err();
    assert!(neither.contains("Give --local-path FILE, or --hf-repo NAME"), "{neither}");
    assert!(tool(folder.path(), "build --help").unwrap().contains("--max-records"));
}
