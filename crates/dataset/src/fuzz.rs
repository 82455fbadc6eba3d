//! Mutated SQLite files: replies or words, never a panic.

use std::fs;

use rusqlite::Connection;
use tempfile::TempDir;

use super::{Dataset, schema};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

/// A file as `vllm-sim record` and llm-d write it.
fn seed(dir: &TempDir, recorded: bool) -> Vec<u8> {
    let path = dir.path().join(format!("{recorded}.sqlite3"));
    let file = Connection::open(&path).unwrap();
    // Small pages: a mutation meets something.
    file.execute_batch("PRAGMA page_size = 512").unwrap();
    file.execute_batch(&schema::create_tables("t")).unwrap();
    for n in 0..3_u8 {
        let tokens = r#"{"tokens":[1,2],"strings":["a ","b"]}"#;
        let row = (vec![n; 32], tokens, 2);
        file.execute(&schema::insert_reply("t"), row).unwrap();
        if recorded {
            let row = (
                n + 1,
                "chat",
                "m",
                "{}",
                "[1]",
                "a b",
                0,
                "stop",
                false,
                "[5,9]",
            );
            file.execute(&schema::insert_recording("t"), row).unwrap();
        }
    }
    if !recorded {
        file.execute_batch(&schema::drop_recording("t")).unwrap();
    }
    file.execute_batch(&schema::create_index("t")).unwrap();
    file.close().unwrap();
    fs::read(path).unwrap()
}

#[test]
fn sqlite() {
    let dir = TempDir::new().unwrap();
    let seeds = [seed(&dir, false), seed(&dir, true)];
    let path = dir.path().join("mutated.sqlite3");
    mutate::each(&seeds, |bytes| {
        fs::write(&path, bytes).unwrap();
        for in_memory in [false, true] {
            let words = match Dataset::open(&path, "t", in_memory) {
                Ok(dataset) => dataset.first_bad_row().map(|(_, why)| why),
                Err(error) => Some(error.to_string()),
            };
            let sane = |words: &String| !words.is_empty() && words.len() < 4096 + 4 * bytes.len();
            assert!(words.as_ref().is_none_or(sane), "{words:?}");
        }
    });
}
