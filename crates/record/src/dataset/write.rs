//! Writes a dataset's SQLite database and a JSON file with the same rows.
//!
//! Both files have temporary names until they are complete.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::recording::RecordedRequest;
use vllm_sim_dataset::{DatasetFormat, PromptHash, schema};

pub(super) struct DatasetRow<'r> {
    pub(super) hash: PromptHash,
    pub(super) ids: &'r [u32],
    pub(super) texts: &'r [String],
    pub(super) generation: DatasetFormat,
    pub(super) input: &'r str,
    pub(super) output: &'r str,
    /// Recording of the reply, if the input is a recording.
    pub(super) recording: Option<&'r RecordedRequest>,
}

impl DatasetRow<'_> {
    fn gen_tokens(&self) -> Value {
        match self.generation {
            DatasetFormat::Texts => json!(self.texts),
            DatasetFormat::Tokens => json!({"Tokens": self.ids, "Strings": self.texts}),
        }
    }
}

struct TemporaryOutputFile {
    path: PathBuf,
    part: PathBuf,
}

impl TemporaryOutputFile {
    fn new(path: &Path) -> Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        // Removes the file of a killed run.
        let _ = std::fs::remove_file(&part);
        let path = path.to_owned();
        Ok(Self { path, part })
    }

    fn rename_to_target(&self) -> Result<()> {
        std::fs::rename(&self.part, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for TemporaryOutputFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.part);
    }
}

pub(super) struct DatasetWriter {
    database: Connection,
    insert: [String; 2],
    finish: String,
    drop_recording: String,
    recordings: usize,
    text: BufWriter<File>,
    records: usize,
    files: [TemporaryOutputFile; 2],
}

impl DatasetWriter {
    pub(super) fn new(database_file: &Path, text_file: &Path, table: &str) -> Result<Self> {
        if let Some(folder) = database_file.parent().filter(|folder| !folder.as_os_str().is_empty())
        {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        }
        let files =
            [TemporaryOutputFile::new(database_file)?, TemporaryOutputFile::new(text_file)?];
        let cannot = |part: &TemporaryOutputFile| format!("cannot write {}", part.path.display());
        let database = Connection::open(&files[0].part).with_context(|| cannot(&files[0]))?;
        let tables = schema::create_dataset_tables_sql(table);
        let start = format!("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {tables}; BEGIN");
        database.execute_batch(&start).with_context(|| cannot(&files[0]))?;
        let file = File::create(&files[1].part).with_context(|| cannot(&files[1]))?;
        Ok(Self {
            insert: [schema::insert_reply_sql(table), schema::insert_recording_sql(table)],
            finish: format!("{}; COMMIT", schema::create_prompt_index_sql(table)),
            drop_recording: schema::drop_recording_table_sql(table),
            recordings: 0,
            database,
            text: BufWriter::new(file),
            records: 0,
            files,
        })
    }

    pub(super) fn written_row_count(&self) -> usize {
        self.records
    }

    pub(super) fn write_row(&mut self, record: &DatasetRow<'_>) -> Result<()> {
        let tokens = record.gen_tokens();
        let count = record.ids.len();
        let mut insert = self.database.prepare_cached(&self.insert[0])?;
        let id = insert.insert((record.hash, tokens.to_string(), count as i64))?;
        if let Some(recording) = record.recording {
            let mut insert = self.database.prepare_cached(&self.insert[1])?;
            insert.execute((
                id,
                &recording.api,
                &recording.model,
                recording.request.to_string(),
                json!(recording.prompt).to_string(),
                record.output,
                recording.reasoning,
                &recording.finish,
                recording.streamed,
                json!(recording.micros).to_string(),
                None::<i64>,
                None::<String>,
            ))?;
            self.recordings += 1;
        }
        let mut shown = json!({
            "prompt_hash": STANDARD.encode(record.hash),
            "n_gen_tokens": count,
            "gen_tokens": tokens,
            "input_text": record.input,
            "generated": record.output,
        });
        if let Some(recording) = record.recording {
            shown["token_us"] = json!(recording.micros);
        }
        self.text.write_all(if self.records == 0 { b"[\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.text, &shown)?;
        self.records += 1;
        Ok(())
    }

    /// Completes the output files and renames them from their temporary names.
    pub(super) fn finish_and_rename(self) -> Result<()> {
        let Self { database, finish, drop_recording, recordings, mut text, records, files, .. } =
            self;
        if recordings == 0 {
            database.execute_batch(&drop_recording)?;
        }
        database.execute_batch(&finish).context("cannot finish the database")?;
        database.close().map_err(|(_, error)| error)?;
        text.write_all(if records == 0 { b"[]\n" } else { b"\n]\n" })?;
        text.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        files[0].rename_to_target()?;
        if let Err(error) = files[1].rename_to_target() {
            let _ = std::fs::remove_file(&files[0].path);
            return Err(error);
        }
        Ok(())
    }
}
