//! Builds the SQL statements for llm-d's table of replies and for this project's table of
//! recordings.

/// Returns the name of the table that holds token times for the replies in `table`.
///
/// A separate table, because llm-d loads all columns of its own table into memory.
pub fn recording_table_name(table: &str) -> String {
    format!("{table}_recording")
}

/// Returns `name` as SQL writes the name of a table or column.
pub fn quote_sql_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns SQL that creates the tables of replies and recordings if they do not exist.
pub fn create_dataset_tables_sql(table: &str) -> String {
    let (replies, recording) =
        (quote_sql_name(table), quote_sql_name(&recording_table_name(table)));
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
             token_us JSON NOT NULL,
             started_us INTEGER,
             session_id TEXT
         )"
    )
}

/// Columns of the table of recordings that files of earlier builds lack, with their types.
pub const RECORDING_COLUMNS_ADDED_LATER: [(&str, &str); 2] =
    [("started_us", "INTEGER"), ("session_id", "TEXT")];

/// Returns a SQL statement that adds a column to the table of recordings.
pub fn add_recording_column_sql(table: &str, (name, kind): (&str, &str)) -> String {
    let recording = quote_sql_name(&recording_table_name(table));
    format!("ALTER TABLE {recording} ADD COLUMN {name} {kind}")
}

/// Returns a SQL query of the column names of the table of recordings.
pub fn recording_columns_sql(table: &str) -> String {
    let name = recording_table_name(table).replace('\'', "''");
    format!("SELECT name FROM pragma_table_info('{name}')")
}

/// Returns a SQL query of the smallest id of a recording, or of 0 if that is smaller.
pub fn smallest_recording_id_sql(table: &str) -> String {
    let recording = quote_sql_name(&recording_table_name(table));
    format!("SELECT min(0, coalesce(min(id), 0)) FROM {recording}")
}

/// Returns a SQL statement that drops the table of recordings.
pub fn drop_recording_table_sql(table: &str) -> String {
    format!("DROP TABLE {}", quote_sql_name(&recording_table_name(table)))
}

/// Returns a SQL statement that inserts a reply, with parameters prompt hash, `gen_tokens` and
/// number of tokens.
pub fn insert_reply_sql(table: &str) -> String {
    let table = quote_sql_name(table);
    format!("INSERT INTO {table} (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?1, ?2, ?3)")
}

/// Returns a SQL statement that inserts a recording, with its table's columns in order as
/// parameters.
pub fn insert_recording_sql(table: &str) -> String {
    let table = quote_sql_name(&recording_table_name(table));
    format!("INSERT INTO {table} VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)")
}

/// Returns a SQL query of all replies that have recordings, in insertion order.
///
/// The columns are `gen_tokens`, then those of the recording without id.
pub fn select_recordings_sql(table: &str) -> String {
    let (replies, recording) =
        (quote_sql_name(table), quote_sql_name(&recording_table_name(table)));
    format!(
        "SELECT CAST(t.gen_tokens AS TEXT), r.api, r.model, r.request, r.prompt_tokens, \
         r.reasoning_tokens, r.finish_reason, r.streamed, r.token_us \
         FROM {replies} t JOIN {recording} r ON r.id = t.rowid ORDER BY t.rowid"
    )
}

/// Returns a SQL statement that creates an index over prompt hash and reply length, so that opening
/// the file need not read the replies.
pub fn create_prompt_index_sql(table: &str) -> String {
    let (replies, index) = (quote_sql_name(table), quote_sql_name(&format!("{table}_prompts")));
    format!("CREATE INDEX IF NOT EXISTS {index} ON {replies} (prompt_hash, n_gen_tokens)")
}
