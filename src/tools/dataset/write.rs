//! The files: a database for the simulator, JSON for people. Written under other names and
//! renamed when they are whole.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::dataset::{Generation, Hash};
use crate::tokenizer::Fragments;

/// One reply.
pub(super) struct Record<'r> {
    pub(super) hash: Hash,
    pub(super) reply: &'r Fragments,
    pub(super) generation: Generation,
    pub(super) input: &'r str,
    pub(super) output: &'r str,
}

impl Record<'_> {
    fn gen_tokens(&self) -> Value {
        let count = self.reply.ids.len();
        let texts: Vec<_> = (0..count).map(|index| self.reply.piece(index)).collect();
        match self.generation {
            Generation::Texts => json!(texts),
            Generation::Tokens => json!({"Tokens": self.reply.ids, "Strings": texts}),
        }
    }
}

/// A file that disappears unless it is finished.
struct Part {
    path: PathBuf,
    part: PathBuf,
}

impl Part {
    fn new(path: &Path) -> Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        // One of a run that was killed.
        let _ = std::fs::remove_file(&part);
        let path = path.to_owned();
        Ok(Self { path, part })
    }

    fn finish(&self) -> Result<()> {
        std::fs::rename(&self.part, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.part);
    }
}

/// Writes replies as they come.
pub(super) struct Writer {
    database: Connection,
    insert: String,
    finish: String,
    text: BufWriter<File>,
    records: usize,
    files: [Part; 2],
}

impl Writer {
    pub(super) fn new(database: &Path, text: &Path, table: &str) -> Result<Self> {
        if let Some(folder) = database
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        let files = [Part::new(database)?, Part::new(text)?];
        let cannot = |part: &Part| format!("cannot write {}", part.path.display());
        let quoted = format!("\"{}\"", table.replace('"', "\"\""));
        let database = Connection::open(&files[0].part).with_context(|| cannot(&files[0]))?;
        let start = format!(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
             CREATE TABLE {quoted} (
                 id INTEGER PRIMARY KEY AUTOINCREMENT,
                 prompt_hash BLOB NOT NULL,
                 gen_tokens JSON NOT NULL,
                 n_gen_tokens INTEGER NOT NULL
             );
             BEGIN"
        );
        database
            .execute_batch(&start)
            .with_context(|| cannot(&files[0]))?;
        let file = File::create(&files[1].part).with_context(|| cannot(&files[1]))?;
        let index = format!("\"{}_prompts\"", table.replace('"', "\"\""));
        Ok(Self {
            insert: format!(
                "INSERT INTO {quoted} (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?1, ?2, ?3)"
            ),
            finish: format!("CREATE INDEX {index} ON {quoted} (prompt_hash, n_gen_tokens); COMMIT"),
            database,
            text: BufWriter::new(file),
            records: 0,
            files,
        })
    }

    /// Replies written.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    pub(super) fn write(&mut self, record: &Record<'_>) -> Result<()> {
        let tokens = record.gen_tokens();
        let count = record.reply.ids.len();
        let mut insert = self.database.prepare_cached(&self.insert)?;
        insert.execute((record.hash, tokens.to_string(), count as i64))?;
        let shown = json!({
            "prompt_hash": STANDARD.encode(record.hash),
            "n_gen_tokens": count,
            "gen_tokens": tokens,
            "input_text": record.input,
            "generated": record.output,
        });
        self.text
            .write_all(if self.records == 0 { b"[\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.text, &shown)?;
        self.records += 1;
        Ok(())
    }

    /// Gives the files their names.
    pub(super) fn finish(self) -> Result<()> {
        let Self {
            database,
            finish,
            mut text,
            records,
            files,
            ..
        } = self;
        database
            .execute_batch(&finish)
            .context("cannot finish the database")?;
        database.close().map_err(|(_, error)| error)?;
        text.write_all(if records == 0 { b"[]\n" } else { b"\n]\n" })?;
        text.into_inner()
            .map_err(|error| error.into_error())?
            .sync_all()?;
        files[0].finish()?;
        if let Err(error) = files[1].finish() {
            let _ = std::fs::remove_file(&files[0].path);
            return Err(error);
        }
        Ok(())
    }
}
