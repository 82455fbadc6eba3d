//! Opens dataset files and checks their schema.

use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::DatasetError;
use super::hash::PromptHash;
use super::index::{IndexedDatasetReply, ReplyIndex};
use super::reply::DatasetRowStorage;
use super::row::{self, DatasetFormat};
use super::schema::{quote_sql_name, recording_table_name};
use super::store::Dataset;

const SQLITE_BUSY_TIMEOUT: Duration = Duration::from_millis(500);

const REQUIRED_COLUMNS: [(&str, &[&str]); 3] =
    [("prompt_hash", &["BLOB"]), ("gen_tokens", &["JSON", "TEXT"]), ("n_gen_tokens", &["INTEGER"])];

impl Dataset {
    /// Opens a table of a dataset file read-only, and reads the prompt hash and reply length of
    /// every row.
    ///
    /// [`DatasetRowStorage::InMemory`] also copies the replies.
    ///
    /// # Errors
    /// Returns [`DatasetError`] for a missing, locked or invalid file.
    pub fn open(path: &Path, table: &str, rows: DatasetRowStorage) -> Result<Self, DatasetError> {
        let file = DatasetFile { path, table };
        if !path.exists() {
            return Err(DatasetError::Missing { path: path.into() });
        }
        let connection = file.connect_read_only()?;
        file.check_table(&connection)?;
        file.check_columns(&connection)?;
        let index = ReplyIndex::new(file.read_reply_index(&connection)?);
        let generation = file.detect_format_version(&connection)?;
        let recorded = file.has_recording_table(&connection)?;
        let select = match recorded {
            true => file.select_recorded_replies_sql(),
            false => file.select_replies_sql(),
        };
        let (rows, query) = match rows {
            DatasetRowStorage::InMemory => {
                let copy = file.copy_to_memory(&connection, &select)?;
                let query = "SELECT reply, times, reasoning FROM replies WHERE id = ?1";
                (copy, query.to_owned())
            }
            DatasetRowStorage::OnDisk => (connection, format!("{select} WHERE t.rowid = ?1")),
        };
        Ok(Self { rows: Mutex::new(rows), query, index, generation, recorded })
    }
}

struct DatasetFile<'p> {
    path: &'p Path,
    table: &'p str,
}

impl DatasetFile<'_> {
    /// Opens a SQLite connection that holds a read lock, so that the file cannot change while its
    /// index is in use.
    fn connect_read_only(&self) -> Result<Connection, DatasetError> {
        let open = |uri: &str| -> rusqlite::Result<Connection> {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
                | OpenFlags::SQLITE_OPEN_URI
                | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(uri, flags)?;
            connection.busy_timeout(SQLITE_BUSY_TIMEOUT)?;
            connection.execute_batch("BEGIN")?;
            let count = "SELECT count(*) FROM sqlite_master";
            connection.query_row(count, [], |row| row.get::<_, i64>(0))?;
            Ok(connection)
        };
        let uri = self.sqlite_uri();
        open(&uri)
            .or_else(|error| match error.sqlite_error_code() {
                // A write-ahead log needs a writable folder; without one, no other process can
                // write.
                Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
                    open(&format!("{uri}?immutable=1"))
                }
                _ => Err(error),
            })
            .map_err(|error| self.sqlite_failure(&error))
    }

    fn sqlite_uri(&self) -> String {
        let mut uri = String::from("file:");
        for byte in self.path.as_os_str().as_encoded_bytes() {
            match byte {
                b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
                byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
                byte => uri.push_str(&format!("%{byte:02X}")),
            }
        }
        uri
    }

    fn check_table(&self, connection: &Connection) -> Result<(), DatasetError> {
        let list = || {
            let sql = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name";
            let mut query = connection.prepare(sql)?;
            let names = query.query_map([], |row| row.get(0))?;
            names.collect::<rusqlite::Result<Vec<String>>>()
        };
        let found = list().map_err(|error| self.sqlite_failure(&error))?;
        // SQLite compares names without case.
        if found.iter().any(|name| name.eq_ignore_ascii_case(self.table)) {
            return Ok(());
        }
        Err(DatasetError::NoTable { path: self.path.into(), table: self.table.into(), found })
    }

    fn column_names_and_types(
        &self,
        connection: &Connection,
        table: &str,
    ) -> Result<Vec<(String, String)>, DatasetError> {
        let list = || {
            let mut query = connection.prepare("SELECT name, type FROM pragma_table_info(?1)")?;
            let columns = query.query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?;
            columns.collect::<rusqlite::Result<_>>()
        };
        list().map_err(|error| self.sqlite_failure(&error))
    }

    /// Returns whether the file has a table of recordings with the required columns.
    fn has_recording_table(&self, connection: &Connection) -> Result<bool, DatasetError> {
        let found = self.column_names_and_types(connection, &recording_table_name(self.table))?;
        let has = |column: &str| found.iter().any(|(name, _)| name == column);
        Ok(has("id") && has("token_us") && has("reasoning_tokens"))
    }

    fn select_replies_sql(&self) -> String {
        let table = quote_sql_name(self.table);
        format!("SELECT CAST(t.gen_tokens AS TEXT), NULL, NULL, t.rowid FROM {table} t")
    }

    fn select_recorded_replies_sql(&self) -> String {
        let (table, recording) =
            (quote_sql_name(self.table), quote_sql_name(&recording_table_name(self.table)));
        format!(
            "SELECT CAST(t.gen_tokens AS TEXT), r.token_us, r.reasoning_tokens, t.rowid \
             FROM {table} t LEFT JOIN {recording} r ON r.id = t.rowid"
        )
    }

    fn check_columns(&self, connection: &Connection) -> Result<(), DatasetError> {
        let found = self.column_names_and_types(connection, self.table)?;
        for (name, types) in REQUIRED_COLUMNS {
            let Some((_, kind)) = found.iter().find(|(column, _)| column == name) else {
                return Err(self.shape_error(format!("column {name} is missing")));
            };
            if !types.iter().any(|expected| kind.eq_ignore_ascii_case(expected)) {
                return Err(self.shape_error(format!("{name} has the type {kind:?}")));
            }
        }
        let rowid = format!("SELECT rowid FROM {} LIMIT 0", quote_sql_name(self.table));
        match connection.prepare(&rowid) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.shape_error("it is a table WITHOUT ROWID".to_owned())),
        }
    }

    /// Reads prompt hash and reply length of every row, from an index over both columns if the file
    /// has one.
    fn read_reply_index(
        &self,
        connection: &Connection,
    ) -> Result<Vec<IndexedDatasetReply>, DatasetError> {
        let table = quote_sql_name(self.table);
        let sql = format!("SELECT rowid, prompt_hash, n_gen_tokens FROM {table}");
        let failed = |error: rusqlite::Error| self.sqlite_failure(&error);
        let mut query = connection.prepare(&sql).map_err(failed)?;
        let mut rows = query.query([]).map_err(failed)?;
        let mut replies = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let id = row.get(0).map_err(failed)?;
            let hash = row.get_ref(1).map_err(failed)?;
            let hash = hash.as_blob().ok().and_then(|blob| PromptHash::try_from(blob).ok());
            let hash =
                hash.ok_or_else(|| self.row_error(id, "prompt_hash is not a blob of 32 bytes"))?;
            let n = row.get_ref(2).map_err(failed)?;
            let n = n.as_i64().ok().and_then(|n| u32::try_from(n).ok());
            let n =
                n.ok_or_else(|| self.row_error(id, "n_gen_tokens is not a number of tokens"))?;
            replies.push(IndexedDatasetReply::new(&hash, n, id));
        }
        Ok(replies)
    }

    fn detect_format_version(
        &self,
        connection: &Connection,
    ) -> Result<DatasetFormat, DatasetError> {
        let table = quote_sql_name(self.table);
        let sql =
            format!("SELECT rowid, CAST(gen_tokens AS TEXT) FROM {table} ORDER BY rowid LIMIT 1");
        let first = connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)));
        let (id, json): (i64, Option<String>) = match first {
            Ok(first) => first,
            Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(DatasetFormat::Tokens),
            Err(error) => return Err(self.sqlite_failure(&error)),
        };
        match row::parse_gen_tokens(json.as_deref().unwrap_or_default()) {
            Ok((generation, _)) => Ok(generation),
            Err(why) => Err(self.row_error(id, &why)),
        }
    }

    fn copy_to_memory(&self, from: &Connection, select: &str) -> Result<Connection, DatasetError> {
        let copy = || {
            let copy = Connection::open_in_memory()?;
            copy.execute_batch(
                "CREATE TABLE replies (id INTEGER PRIMARY KEY, reply TEXT, times TEXT, \
                 reasoning INTEGER); BEGIN",
            )?;
            let mut query = from.prepare(select)?;
            let mut rows = query.query([])?;
            {
                let mut insert = copy.prepare("INSERT INTO replies VALUES (?4, ?1, ?2, ?3)")?;
                while let Some(row) = rows.next()? {
                    let text = |column| row.get::<_, Option<String>>(column);
                    let number = |column| row.get::<_, Option<i64>>(column);
                    insert.execute((text(0)?, text(1)?, number(2)?, number(3)?))?;
                }
            }
            copy.execute_batch("COMMIT")?;
            Ok(copy)
        };
        copy().map_err(|error| self.sqlite_failure(&error))
    }

    fn shape_error(&self, why: String) -> DatasetError {
        DatasetError::Shape { path: self.path.into(), table: self.table.into(), why }
    }

    fn row_error(&self, row: i64, why: &str) -> DatasetError {
        DatasetError::Row { path: self.path.into(), table: self.table.into(), row, why: why.into() }
    }

    fn sqlite_failure(&self, error: &rusqlite::Error) -> DatasetError {
        let path = self.path.into();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                DatasetError::Locked { path }
            }
            _ => DatasetError::Broken { path, why: error.to_string() },
        }
    }
}
