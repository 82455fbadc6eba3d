//! Datasets: files made here, and what is read from them.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod download;
mod open;
mod select;
mod serve;
mod tool;

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::TempDir;
use vllm_sim_dataset::{DEFAULT_TABLE_NAME, Dataset, DatasetRowStorage, hash_prompt_tokens};

const SCHEMA: &str =
    "(id INTEGER PRIMARY KEY, prompt_hash BLOB, gen_tokens JSON, n_gen_tokens INTEGER)";

/// A folder with a file in it.
struct Made {
    _folder: TempDir,
    path: PathBuf,
}

impl Made {
    fn at(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        Self { _folder: folder, path }
    }

    fn connect(&self) -> Connection {
        let connection = Connection::open(&self.path).unwrap();
        connection.pragma_update(None, "synchronous", "off").unwrap();
        connection
    }

    fn open(&self) -> Dataset {
        Dataset::open(&self.path, DEFAULT_TABLE_NAME, DatasetRowStorage::OnDisk).unwrap()
    }
}

/// A file of the newer form: prompt ids, and the first id and number of tokens of the reply.
fn tokens(rows: &[(&[u32], u32, u32)]) -> Made {
    let made = Made::at("a file.sqlite3");
    let file = made.connect();
    file.execute_batch(&format!("CREATE TABLE llmd {SCHEMA}")).unwrap();
    for (prompt, first, n) in rows {
        let ids: Vec<u32> = (*first..*first + *n).collect();
        let texts: Vec<String> = ids.iter().map(|id| format!("t{id} ")).collect();
        let reply = serde_json::json!({"Tokens": ids, "Strings": texts}).to_string();
        insert(&file, &hash_prompt_tokens(prompt), &reply, *n);
    }
    made
}

fn insert(file: &Connection, hash: &[u8], reply: &str, n: u32) {
    let sql = "INSERT INTO llmd (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?1, ?2, ?3)";
    file.execute(sql, (hash, reply, n)).unwrap();
}

fn error(path: &Path, table: &str) -> String {
    let shown = Dataset::open(path, table, DatasetRowStorage::OnDisk).unwrap_err().to_string();
    shown.replace(&path.display().to_string(), "FILE")
}
