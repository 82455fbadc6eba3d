//! Files that cannot be used, and why.

use std::fs;

use vllm_sim_dataset::{Dataset, Generation, ReplyLength, RowStorage, TABLE};

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
fn a_missing_file_is_missing() {
    let made = Made::at("none.db");
    assert_eq!(error(&made.path, TABLE), "dataset FILE does not exist");
    assert!(!made.path.exists(), "looking must not make it");
}

#[test]
fn a_file_that_is_no_database_is_an_error() {
    let text = Made::at("text.db");
    fs::write(&text.path, "id,prompt_hash\n".repeat(200)).unwrap();
    let why = "dataset FILE is not a readable SQLite database: file is not a database";
    assert_eq!(error(&text.path, TABLE), why);
    let empty = Made::at("empty.db");
    fs::write(&empty.path, "").unwrap();
    assert_eq!(
        error(&empty.path, TABLE),
        "dataset FILE has no table 'llmd'; it has: none"
    );
}

#[test]
fn a_truncated_file_is_broken_wherever_it_was_cut() {
    let rows: Vec<(&[u32], u32, u32)> = (0..200).map(|i| (&[1, 2][..], i, 40)).collect();
    let made = tokens(&rows);
    let whole = fs::read(&made.path).unwrap();
    for part in [1, 2, 9] {
        fs::write(&made.path, &whole[..whole.len() * part / 10]).unwrap();
        let why = "dataset FILE is not a readable SQLite database: ";
        let said = error(&made.path, TABLE);
        assert!(said.starts_with(why), "{part}/10: {said}");
    }
}

#[test]
fn damage_in_the_middle_is_found_at_start_or_costs_one_row() {
    let rows: Vec<(&[u32], u32, u32)> = (0..400).map(|i| (&[1, 2][..], i, 40)).collect();
    let made = tokens(&rows);
    let whole = fs::read(&made.path).unwrap();
    for page in 1..whole.len() / 4096 {
        let mut damaged = whole.clone();
        damaged[page * 4096..page * 4096 + 4096].fill(0x5a);
        fs::write(&made.path, damaged).unwrap();
        // It may open, when only the end of a long reply is hit; it must not panic.
        if let Ok(dataset) = Dataset::open(&made.path, TABLE, RowStorage::OnDisk) {
            let mut rng = vllm_sim_random::stream(1, 1, vllm_sim_random::Purpose::Content);
            dataset.reply(&[], ReplyLength::UNBOUNDED, &mut rng);
        } else {
            assert!(error(&made.path, TABLE).contains("is not a readable SQLite database"));
        }
    }
}

#[test]
fn a_file_that_is_written_to_is_locked() {
    let made = tokens(&[(&[1], 1, 2)]);
    let writer = made.connect();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(
        error(&made.path, TABLE),
        "dataset FILE is locked by another program"
    );
    writer.execute_batch("ROLLBACK").unwrap();
    assert_eq!(made.open().len(), 1);
}

#[test]
fn two_processes_may_read_and_none_may_write() {
    let made = tokens(&[(&[1], 1, 2)]);
    let both = [made.open(), made.open()];
    let write = made.connect().execute("DELETE FROM llmd", []);
    assert!(write.is_err() && both.iter().all(|dataset| dataset.len() == 1));
}

#[test]
fn another_table_has_to_be_named() {
    let made = made(&format!(
        "CREATE TABLE a {SCHEMA}; CREATE TABLE \"b \"\" c\" {SCHEMA}"
    ));
    let why = "dataset FILE has no table 'llmd'; it has: a, b \" c";
    assert_eq!(error(&made.path, TABLE), why);
    for table in ["a", "A", "b \" c"] {
        assert!(
            Dataset::open(&made.path, table, RowStorage::InMemory)
                .unwrap()
                .is_empty(),
            "{table}"
        );
    }
}

#[test]
fn columns_are_checked() {
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
        assert_eq!(error(&made.path, TABLE), format!("{COLUMNS}{why}"));
    }
    let more =
        made("CREATE TABLE llmd (more, gen_tokens text, prompt_hash blob, n_gen_tokens integer)");
    assert!(more.open().is_empty());
}

#[test]
fn rows_are_checked() {
    let wrong: [(&[u8], &str, &str, &str); 4] = [
        (&[1; 31], "[]", "0", "prompt_hash is not a blob of 32 bytes"),
        (
            &[1; 32],
            "[]",
            "-1",
            "n_gen_tokens is not a number of tokens",
        ),
        (
            &[1; 32],
            "[]",
            "'x'",
            "n_gen_tokens is not a number of tokens",
        ),
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
            error(&made.path, TABLE),
            format!("table 'llmd' of dataset FILE, row 5: {why}")
        );
    }
}

#[test]
fn the_first_row_determines_the_generation() {
    let empty = made(&format!("CREATE TABLE llmd {SCHEMA}"));
    assert_eq!(empty.open().generation(), Generation::Tokens);
    assert_eq!(
        tokens(&[(&[1], 1, 2)]).open().generation(),
        Generation::Tokens
    );
    insert(&empty.connect(), &[0; 32], "[\"a\"]", 1);
    assert_eq!(empty.open().generation(), Generation::Texts);
}

#[test]
fn a_write_ahead_log_does_not_matter() {
    let made = tokens(&[(&[1], 1, 2)]);
    made.connect()
        .pragma_update(None, "journal_mode", "WAL")
        .unwrap();
    assert_eq!(made.open().len(), 1);
}
