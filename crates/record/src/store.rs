//! Writes recorded responses to the dataset file, on a separate thread.
//!
//! The file has the table of llm-d-inference-sim, and a second table for values without a column in
//! the first one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode};
use serde_json::{Value, json};

use super::captured::CapturedHttpExchange;
use super::error::RecordError;
use super::exchange::{RecordedChoice, RecordedResponse, RecordedResponseDelivery};
use super::tokens::{self, RecordedReplyTokens};
use vllm_sim_dataset::{Dataset, DatasetFormat, DatasetRowStorage, hash_prompt_tokens, schema};
use vllm_sim_tokenizer::Tokenizer;

/// Maximum number of responses that wait for the writer thread; further ones are not recorded.
const MAX_QUEUED_RESPONSES: usize = 1024;
/// Maximum time between inserting a row and committing its SQLite transaction.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of rows per SQLite transaction.
const MAX_ROWS_PER_TRANSACTION: u32 = 256;

/// Numbers of recorded and of skipped responses in a run of the recording proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordingSummary {
    /// Number of replies in the dataset file.
    pub replies: u64,
    /// Number of responses that were not recorded, by reason.
    pub skipped: BTreeMap<String, u64>,
}

#[derive(Clone)]
pub(super) struct CapturedExchangeQueue {
    to: SyncSender<CapturedHttpExchange>,
    counts: Arc<Mutex<RecordingSummary>>,
}

impl CapturedExchangeQueue {
    /// Queues a response for the writer thread, or skips it if the queue is full; never blocks.
    pub(super) fn try_queue_exchange(&self, captured: CapturedHttpExchange) {
        match self.to.try_send(captured) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.count_skipped_response("the writer is too slow"),
            Err(TrySendError::Disconnected(_)) => {
                self.count_skipped_response("the file cannot be written")
            }
        }
    }

    pub(super) fn count_skipped_response(&self, why: &str) {
        let mut counts = self.counts.lock();
        let count = counts.skipped.entry(why.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            tracing::warn!(
                why,
                "response not recorded; further ones with this reason are only counted"
            );
        }
    }
}

pub(super) struct RecordingStore {
    pub(super) queue: CapturedExchangeQueue,
    writing: JoinHandle<rusqlite::Result<()>>,
    path: PathBuf,
}

impl RecordingStore {
    /// Creates the dataset file, or with `append` opens an existing one, and starts its writer
    /// thread.
    pub(super) fn open_recording_store(
        path: &Path,
        table: &str,
        append: bool,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<Self, RecordError> {
        let failed = |why: String| RecordError::File { path: path.into(), why };
        if path.exists() {
            if !append {
                return Err(failed("it already exists; use --append to add to it".to_owned()));
            }
            let dataset = Dataset::open(path, table, DatasetRowStorage::OnDisk)
                .map_err(|e| failed(e.to_string()))?;
            if dataset.format_version() == DatasetFormat::Texts {
                return Err(failed("version 0.6 wrote it, without token ids".to_owned()));
            }
        }
        let database = RecordingDatabase::open(path, table).map_err(|e| failed(e.to_string()))?;
        let (to, from) = sync_channel(MAX_QUEUED_RESPONSES);
        let counts = Arc::new(Mutex::new(RecordingSummary::default()));
        let queue = CapturedExchangeQueue { to, counts };
        // The thread must not hold a sender, which would keep it running.
        let counts = queue.counts.clone();
        let writing = std::thread::Builder::new()
            .name("record".to_owned())
            .spawn(move || write_queued_responses(database, &from, &counts, &tokenizer))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { queue, writing, path: path.into() })
    }

    /// Writes all queued responses and closes the dataset file. All other handles of the queue must
    /// be dropped.
    pub(super) fn close_recording_store(self) -> Result<RecordingSummary, RecordError> {
        let Self { queue, writing, path } = self;
        let counts = queue.counts.clone();
        drop(queue);
        let written = match writing.join() {
            Ok(written) => written.map_err(|error| match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    "another program, such as a server, has it open".to_owned()
                }
                _ => error.to_string(),
            }),
            Err(_) => Err("the writer panicked".to_owned()),
        };
        written.map_err(|why| RecordError::File { path, why })?;
        let summary = std::mem::take(&mut *counts.lock());
        Ok(summary)
    }
}

/// Writes queued responses to the database, as the body of the writer thread, until every queue
/// handle is dropped.
fn write_queued_responses(
    mut database: RecordingDatabase,
    from: &Receiver<CapturedHttpExchange>,
    counts: &Mutex<RecordingSummary>,
    tokenizer: &Tokenizer,
) -> rusqlite::Result<()> {
    loop {
        let captured = match from.recv_timeout(COMMIT_INTERVAL) {
            Ok(captured) => captured,
            Err(RecvTimeoutError::Timeout) => {
                database.commit()?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return database.commit_and_close(),
        };
        match insert_recorded_response(&mut database, &captured, tokenizer) {
            Ok(replies) => counts.lock().replies += replies,
            Err(NotRecordedReason::Database(error)) => {
                tracing::error!(%error, "cannot write the recording");
                return Err(error);
            }
            Err(NotRecordedReason::Because(why)) => {
                *counts.lock().skipped.entry(why).or_default() += 1;
            }
        }
    }
}

enum NotRecordedReason {
    Because(String),
    Database(rusqlite::Error),
}

impl From<String> for NotRecordedReason {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

impl From<rusqlite::Error> for NotRecordedReason {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

fn insert_recorded_response(
    database: &mut RecordingDatabase,
    captured: &CapturedHttpExchange,
    tokenizer: &Tokenizer,
) -> Result<u64, NotRecordedReason> {
    let answer = RecordedResponse::parse_response(captured.delivery, &captured.chunks)?;
    let given: Option<Vec<_>> = answer.choices.iter().map(|c| c.prompt.clone()).collect();
    let told = given.filter(|prompts| !prompts.is_empty());
    let prompts = match told {
        // The choices contain the ids of their prompts.
        Some(prompts) => prompts,
        None => {
            let prompts = tokens::prompt_token_ids(captured.api, &captured.request, tokenizer)?;
            let each = (answer.choices.len() / prompts.len().max(1)).max(1);
            let owner = |choice: usize| prompts.get(choice / each).cloned();
            let owners: Option<Vec<_>> = (0..answer.choices.len()).map(owner).collect();
            owners.ok_or_else(|| "the response has more choices than prompts".to_owned())?
        }
    };
    let choices = answer.choices.len();
    let counted = answer.tokens.filter(|_| answer.choices.len() == 1);
    for (index, (choice, prompt)) in answer.choices.iter().zip(&prompts).enumerate() {
        let tokens =
            RecordedReplyTokens::from_choice(choice, captured.delivery, counted, tokenizer);
        if tokens.ids.is_empty() {
            return Err("the response is empty".to_owned().into());
        }
        let request = request_json_of_choice(&captured.request, index, choices);
        let row = ReplyRow { captured, request, answer: &answer, choice, prompt, tokens };
        database.insert(&row)?;
    }
    Ok(answer.choices.len() as u64)
}

/// Returns the JSON of a request, reduced to the prompt of one of its choices.
fn request_json_of_choice(request: &Value, choice: usize, choices: usize) -> String {
    let prompts = request["prompt"].as_array();
    let prompts = prompts.filter(|list| list.iter().any(|one| one.is_string() || one.is_array()));
    let Some(prompts) = prompts else {
        return request.to_string();
    };
    let each = (choices / prompts.len()).max(1);
    let mut own = request.clone();
    own["prompt"] = prompts.get(choice / each).cloned().unwrap_or_default();
    own.to_string()
}

struct ReplyRow<'r> {
    captured: &'r CapturedHttpExchange,
    request: String,
    answer: &'r RecordedResponse,
    choice: &'r RecordedChoice,
    prompt: &'r [u32],
    tokens: RecordedReplyTokens,
}

struct RecordingDatabase {
    connection: Connection,
    table: String,
    waiting: u32,
    /// Id of the last stored recording without a reply; such ids are negative.
    least_id: i64,
}

impl RecordingDatabase {
    fn open(path: &Path, table: &str) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(&schema::create_dataset_tables_sql(table))?;
        // Opening the dataset then need not read the replies.
        connection.execute_batch(&schema::create_prompt_index_sql(table))?;
        let columns: Vec<String> = {
            let mut query = connection.prepare(&schema::recording_columns_sql(table))?;
            let names = query.query_map([], |row| row.get(0))?;
            names.collect::<rusqlite::Result<_>>()?
        };
        for column in schema::RECORDING_COLUMNS_ADDED_LATER {
            if !columns.iter().any(|name| name == column.0) {
                connection.execute_batch(&schema::add_recording_column_sql(table, column))?;
            }
        }
        let least = schema::smallest_recording_id_sql(table);
        let least_id = connection.query_row(&least, [], |row| row.get(0))?;
        Ok(Self { connection, table: table.to_owned(), waiting: 0, least_id })
    }

    fn insert(&mut self, row: &ReplyRow<'_>) -> rusqlite::Result<()> {
        let ReplyRow { captured, request, answer, choice, prompt, tokens } = row;
        if self.waiting == 0 {
            self.connection.execute_batch("BEGIN")?;
        }
        let id = if choice.calls {
            // A server could only repeat the call as a text.
            self.least_id -= 1;
            self.least_id
        } else {
            let insert = schema::insert_reply_sql(&self.table);
            let mut replies = self.connection.prepare_cached(&insert)?;
            let reply = json!({"Tokens": tokens.ids, "Strings": tokens.texts});
            let count = tokens.ids.len() as i64;
            replies.insert((hash_prompt_tokens(prompt), reply.to_string(), count))?
        };
        let insert = schema::insert_recording_sql(&self.table);
        let mut recordings = self.connection.prepare_cached(&insert)?;
        let micros: Vec<u128> = tokens.times.iter().map(Duration::as_micros).collect();
        recordings.execute((
            id,
            captured.api.recorded_api_name(),
            &answer.model,
            request,
            json!(prompt).to_string(),
            tokens.texts.concat(),
            tokens.reasoning,
            &choice.finish,
            captured.delivery == RecordedResponseDelivery::Streamed,
            json!(micros).to_string(),
            i64::try_from(captured.started_us).unwrap_or(i64::MAX),
            &captured.session,
        ))?;
        drop(recordings);
        self.waiting += 1;
        if self.waiting >= MAX_ROWS_PER_TRANSACTION {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> rusqlite::Result<()> {
        if std::mem::take(&mut self.waiting) > 0 {
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(())
    }

    fn commit_and_close(mut self) -> rusqlite::Result<()> {
        self.commit()?;
        self.connection.close().map_err(|(_, error)| error)
    }
}
