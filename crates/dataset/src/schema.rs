//! The tables of a file, in SQL: llm-d's, and beside it that of recordings.

/// The table beside `table` in which `vllm-sim record` keeps what llm-d's format has no column
/// for. A table of its own, because llm-d copies all columns of the first one into memory.
pub fn recording_table(table: &str) -> String {
    format!("{table}_recording")
}

/// A name as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Statements that make the tables, unless they are there.
pub fn create_tables(table: &str) -> String {
    let (replies, recording) = (quoted(table), quoted(&recording_table(table)));
    format!(
        "CREATE TABLE IF NOT EXISTS {replies} (
             id INTEGER PRIMARY KEY AUTOINCREMENT,
             prompt_hash BLOB NOT NULL,
             gen_tokens JSON NOT NULL,
             n_gen_tokens INTEGER NOT NULL
         );
         CREATE TABLE IF NOT EXISTS {recording} (
             id INTEGER PRIMARY KEY,
             api TEXT NOT NULL,
             model TEXT,
             request JSON NOT NULL,
             prompt_tokens JSON NOT NULL,
             output_text TEXT NOT NULL,
             reasoning_tokens INTEGER NOT NULL,
             finish_reason TEXT,
             streamed INTEGER NOT NULL,
             token_us JSON NOT NULL
         )"
    )
}

/// A statement that removes the table of recordings, for a file without any.
pub fn drop_recording(table: &str) -> String {
    format!("DROP TABLE {}", quoted(&recording_table(table)))
}

/// A statement that adds a reply: hash, `gen_tokens`, number of tokens.
pub fn insert_reply(table: &str) -> String {
    let table = quoted(table);
    format!("INSERT INTO {table} (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?1, ?2, ?3)")
}

/// A statement that adds a recording: the columns of its table, in their order.
pub fn insert_recording(table: &str) -> String {
    let table = quoted(&recording_table(table));
    format!("INSERT INTO {table} VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")
}

/// A statement that reads replies with their recordings, in the order they were written:
/// `gen_tokens`, then the columns of the second table without its id.
pub fn select_recordings(table: &str) -> String {
    let (replies, recording) = (quoted(table), quoted(&recording_table(table)));
    format!(
        "SELECT CAST(t.gen_tokens AS TEXT), r.api, r.model, r.request, r.prompt_tokens, \
         r.reasoning_tokens, r.finish_reason, r.streamed, r.token_us \
         FROM {replies} t JOIN {recording} r ON r.id = t.rowid ORDER BY t.rowid"
    )
}

/// A statement that lets a file be opened without reading its replies.
pub fn create_index(table: &str) -> String {
    let (replies, index) = (quoted(table), quoted(&format!("{table}_prompts")));
    format!("CREATE INDEX IF NOT EXISTS {index} ON {replies} (prompt_hash, n_gen_tokens)")
}
