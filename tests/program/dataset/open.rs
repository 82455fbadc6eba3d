//! Files that cannot be used, and why.

use std::fs;

use vllm_sim_dataset::{
    DEFAULT_TABLE_NAME, Dataset, DatasetFormat, DatasetRowStorage, RequestedReplyLength,
};

use crate::dataset::{Made, SCHEMA, error, insert, tokens};

const COLUMNS: &str = "table 'llmd' of dataset FILE must have the columns \
                       prompt_hash BLOB, gen_tokens JSON, n_gen_tokens INTEGER: ";

/// A file made by these statements.
fn made(sql: &str) -> Made {
    let made = Made::at("x.db");
    made.connect().execute_batch(sql).unwrap();
    made
}

#[test]
fn missing_dataset_is_not_found() {
    let made = Made::at("none.db");
    assert_eq!(error(&made.path, DEFAULT_TABLE_NAME), "dataset FILE does not exist");
    assert!(!made.path.exists(), "looking must not make it");
}

#[test]
fn non_sqlite_file_is_rejected() {
    let text = Made::at("text.db");
    fs::write(&text.path, "id,prompt_hash\n".repeat(200)).unwrap();
    let why = "dataset FILE is not a readable SQLite database: file is not a database";
    assert_eq!(error(&text.path, DEFAULT_TABLE_NAME), why);
    let empty = Made::at("empty.db");
    fs::write(&empty.path, "").unwrap();
    assert_eq!(
        error(&empty.path, DEFAULT_TABLE_NAME),
        "dataset FILE has no table 'llmd'; it has: none"
    );
}

#[test]
fn truncated_dataset_is_detected() {
    let rows: Vec<(&[u32], u32, u32)> = (0..200).map(|i| (&[1, 2][..], i, 40)).collect();
    let made = tokens(&rows);
    let whole = fs::read(&made.path).unwrap();
    for part in [1, 2, 9] {
        fs::write(&made.path, &whole[..whole.len() * part / 10]).unwrap();
        let why = "dataset FILE is not a readable SQLite database: ";
        let said = error(&made.path, DEFAULT_TABLE_NAME);
        assert!(said.starts_with(why), "{part}/10: {said}");
    }
}

#[test]
fn damaged_dataset_fails_or_loses_one_row() {
    let rows: Vec<(&[u32], u32, u32)> = (0..400).map(|i| (&[1, 2][..], i, 40)).collect();
    let made = tokens(&rows);
    let whole = fs::read(&made.path).unwrap();
    for page in 1..whole.len() / 4096 {
        let mut damaged = whole.clone();
        damaged[page * 4096..page * 4096 + 4096].fill(0x5a);
        fs::write(&made.path, damaged).unwrap();
        // It may open, when only the end of a long reply is hit; it must not panic.
        if let Ok(dataset) =
            Dataset::open(&made.path, DEFAULT_TABLE_NAME, DatasetRowStorage::OnDisk)
        {
            let mut rng =
                vllm_sim_random::request_rng(1, 1, vllm_sim_random::RandomStreamPurpose::Content);
            dataset.find_reply(&[], RequestedReplyLength::AtMost(u32::MAX), &mut rng);
        } else {
            assert!(
                error(&made.path, DEFAULT_TABLE_NAME).contains("is not a readable SQLite database")
            );
        }
    }
}

#[test]
fn dataset_being_written_is_locked() {
    let made = tokens(&[(&[1], 1, 2)]);
    let writer = made.connect();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(error(&made.path, DEFAULT_TABLE_NAME), "dataset FILE is locked by another program");
    writer.execute_batch("ROLLBACK").unwrap();
    assert_eq!(made.open().len(), 1);
}

#[test]
fn dataset_is_opened_read_only_by_many() {
    let made = tokens(&[(&[1], 1, 2)]);
    let both = [made.open(), made.open()];
    let write = made.connect().execute("DELETE FROM llmd", []);
    assert!(write.is_err() && both.iter().all(|dataset| dataset.len() == 1));
}

#[test]
fn other_table_name_must_be_given() {
    let made = made(&format!("CREATE TABLE a {SCHEMA}; CREATE TABLE \"b \"\" c\" {SCHEMA}"));
    let why = "dataset FILE has no table 'llmd'; it has: a, b \" c";
    assert_eq!(error(&made.path, DEFAULT_TABLE_NAME), why);
    for table in ["a", "A", "b \" c"] {
        assert!(
            Dataset::open(&made.path, table, DatasetRowStorage::InMemory).unwrap().is_empty(),
            "{table}"
        );
    }
}

#[test]
fn dataset_columns_are_validated() {
    let wrong = [
        (
            "(id INTEGER PRIMARY KEY, prompt_hash BLOB, gen_tokens JSON)",
            "column n_gen_tokens is missing",
        ),
        (
            "(prompt_hash TEXT, gen_tokens JSON, n_gen_tokens INTEGER)",
            "prompt_hash has the type \"TEXT\"",
        ),
        (
            "(id INTEGER PRIMARY KEY, prompt_hash BLOB, gen_tokens JSON, n_gen_tokens INTEGER) WITHOUT ROWID",
            "it is a table WITHOUT ROWID",
        ),
    ];
    for (columns, why) in wrong {
        let made = made(&format!("CREATE TABLE llmd {columns}"));
        assert_eq!(error(&made.path, DEFAULT_TABLE_NAME), format!("{COLUMNS}{why}"));
    }
    let more =
        made("CREATE TABLE llmd (more, gen_tokens text, prompt_hash blob, n_gen_tokens integer)");
    assert!(more.open().is_empty());
}

#[test]
fn dataset_rows_are_validated() {
    let wrong: [(&[u8], &str, &str, &str); 4] = [
        (&[1; 31], "[]", "0", "prompt_hash is not a blob of 32 bytes"),
        (&[1; 32], "[]", "-1", "n_gen_tokens is not a number of tokens"),
        (&[1; 32], "[]", "'x'", "n_gen_tokens is not a number of tokens"),
        (
            &[1; 32],
            "7",
            "1",
            "gen_tokens is neither an array of strings nor {\"Tokens\": [ids], \"Strings\": [texts]}",
        ),
    ];
    for (hash, reply, n, why) in wrong {
        let made = made(&format!("CREATE TABLE llmd {SCHEMA}"));
        let sql = format!("INSERT INTO llmd VALUES (5, ?1, ?2, {n})");
        made.connect().execute(&sql, (hash, reply)).unwrap();
        assert_eq!(
            error(&made.path, DEFAULT_TABLE_NAME),
            format!("table 'llmd' of dataset FILE, row 5: {why}")
        );
    }
}

#[test]
fn first_row_selects_dataset_version() {
    let empty = made(&format!("CREATE TABLE llmd {SCHEMA}"));
    assert_eq!(empty.open().format_version(), DatasetFormat::Tokens);
    assert_eq!(tokens(&[(&[1], 1, 2)]).open().format_version(), DatasetFormat::Tokens);
    insert(&empty.connect(), &[0; 32], "[\"a\"]", 1);
    assert_eq!(empty.open().format_version(), DatasetFormat::Texts);
}

#[test]
fn write_ahead_log_is_accepted() {
    let made = tokens(&[(&[1], 1, 2)]);
    made.connect().pragma_update(None, "journal_mode", "WAL").unwrap();
    assert_eq!(made.open().len(), 1);
}
