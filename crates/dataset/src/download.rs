//! Downloads a dataset file over HTTP, unless it exists.
//!
//! Writes to a `.part` file that is renamed when it is complete. An interrupted download resumes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use ureq::{Agent, Response};

use super::SQLITE_MAGIC;
use super::error::DatasetError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const RESPONSE_READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of consecutive failed attempts without new data after which the download fails.
const MAX_FRUITLESS_ATTEMPTS: u32 = 3;

/// Downloads `url` to `path` unless that file exists; returns whether it was downloaded. Blocks the
/// calling thread.
///
/// `sha256` is the expected hash in lower-case hex. If several processes download the same file,
/// one does and the others wait for it.
///
/// # Errors
/// Returns [`DatasetError::Download`]. The partial file stays for the next attempt, unless it is
/// complete and invalid.
pub fn download_dataset_if_missing(
    path: &Path,
    url: &str,
    sha256: Option<&str>,
) -> Result<bool, DatasetError> {
    let download = Download {
        path,
        url,
        part: sibling_path(path, ".part"),
        from: sibling_path(path, ".part.from"),
    };
    download
        .download_with_retries(sha256)
        .map_err(|why| DatasetError::Download { url: url_without_secrets(url), why })
}

/// Removes user info, query and fragment from a URL, which may hold secrets.
fn url_without_secrets(url: &str) -> String {
    let open = url.split(['?', '#']).next().unwrap_or_default();
    match open.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, place) = rest.split_once('/').unwrap_or((rest, ""));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/{place}")
        }
        None => open.to_owned(),
    }
}

fn sibling_path(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

struct Download<'a> {
    path: &'a Path,
    url: &'a str,
    part: PathBuf,
    /// Path of the file with the URL and the server's version (ETag or date) of the partial
    /// download `part`.
    from: PathBuf,
}

enum AttemptError {
    /// The download attempt failed; another attempt may resume the download.
    Broken(String),
    /// The download attempt failed, and another attempt would fail the same way.
    Refused(String),
}

impl From<io::Error> for AttemptError {
    fn from(error: io::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl Download<'_> {
    fn download_with_retries(&self, sha256: Option<&str>) -> Result<bool, String> {
        if self.path.exists() {
            return Ok(false);
        }
        if !["http://", "https://"].iter().any(|scheme| self.url.starts_with(scheme)) {
            return Err("the address must begin with http:// or https://".to_owned());
        }
        let mut part = self.lock_partial_file()?;
        if self.path.exists() {
            // Another process downloaded it in the meantime.
            let _ = std::fs::remove_file(&self.part);
            return Ok(false);
        }
        let path = self.path.display();
        tracing::info!(url = url_without_secrets(self.url), %path, "downloading the dataset");
        self.download_to_end(&mut part)?;
        if let Err(why) = check_file_and_sha256(&mut part, sha256) {
            self.discard_partial_file();
            return Err(why);
        }
        let finish = || {
            part.sync_all()?;
            std::fs::rename(&self.part, self.path)
        };
        finish().map_err(|error| format!("cannot write {}: {error}", self.path.display()))?;
        let _ = std::fs::remove_file(&self.from);
        Ok(true)
    }

    fn discard_partial_file(&self) {
        let _ = std::fs::remove_file(&self.part);
        let _ = std::fs::remove_file(&self.from);
    }

    fn lock_partial_file(&self) -> Result<File, String> {
        let cannot = |error: io::Error| format!("cannot write {}: {error}", self.part.display());
        if let Some(folder) = self.path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| {
                format!("cannot create the folder {}: {error}", folder.display())
            })?;
        }
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let part = options.open(&self.part).map_err(cannot)?;
            match part.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    tracing::info!("another process is downloading the dataset: waiting for it");
                    part.lock().map_err(cannot)?;
                }
                // A file system without locks: the first rename wins.
                Err(TryLockError::Error(_)) => return Ok(part),
            }
            // The locked file may have been renamed or removed during the wait.
            if is_same_file(&part, &self.part) || self.path.exists() {
                return Ok(part);
            }
        }
    }

    fn download_to_end(&self, part: &mut File) -> Result<(), String> {
        let agent = ureq::AgentBuilder::new()
            .timeout_connect(CONNECT_TIMEOUT)
            .timeout_read(RESPONSE_READ_TIMEOUT)
            .try_proxy_from_env(true)
            .user_agent(concat!("vllm-sim/", env!("CARGO_PKG_VERSION")))
            .build();
        let mut fruitless = 0;
        loop {
            let before = file_length_bytes(part).map_err(|error| error.to_string())?;
            let why = match self.try_download(&agent, part) {
                Ok(()) => return Ok(()),
                Err(AttemptError::Refused(why)) => return Err(why),
                Err(AttemptError::Broken(why)) => why,
            };
            let after = file_length_bytes(part).map_err(|error| error.to_string())?;
            fruitless = if after > before { 0 } else { fruitless + 1 };
            if fruitless == MAX_FRUITLESS_ATTEMPTS {
                return Err(why);
            }
            tracing::warn!(why, bytes = after, "the download was interrupted, trying again");
        }
    }

    fn try_download(&self, agent: &Agent, part: &mut File) -> Result<(), AttemptError> {
        let mut have = file_length_bytes(part)?;
        let version = self.recorded_server_version().filter(|_| have > 0);
        // A compressed response cannot be resumed.
        let mut request = agent.get(self.url).set("Accept-Encoding", "identity");
        if let Some(version) = &version {
            request = request.set("Range", &format!("bytes={have}-")).set("If-Range", version);
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::Status(416, _)) if version.is_some() => {
                // The file on the server is no longer than the part: start again.
                part.set_len(0)?;
                return Err(AttemptError::Broken("the server does not have this range".to_owned()));
            }
            Err(ureq::Error::Status(status, response)) => {
                let words = response.status_text();
                return Err(AttemptError::Refused(format!("the server returned {status} {words}")));
            }
            Err(ureq::Error::Transport(error)) => {
                return Err(AttemptError::Refused(error.to_string()));
            }
        };
        if response.status() != 206 || content_range_start(&response) != Some(have) {
            if response.status() == 206 {
                part.set_len(0)?;
                let _ = std::fs::remove_file(&self.from);
                return Err(AttemptError::Broken("the server sent a different range".to_owned()));
            }
            part.set_len(0)?;
            have = 0;
        }
        part.seek(SeekFrom::Start(have))?;
        let rest: Option<u64> = response.header("content-length").and_then(|n| n.parse().ok());
        let total = rest.map(|rest| have + rest);
        self.record_server_version(&response)?;
        append_response_body(response, part, have, total)
    }

    /// Returns the version of the dataset file on the server (ETag or modification date) to which
    /// the partial file belongs, if recorded.
    fn recorded_server_version(&self) -> Option<String> {
        let noted = std::fs::read_to_string(&self.from).ok()?;
        let (url, version) = noted.split_once('\n')?;
        (url == self.url && !version.is_empty()).then(|| version.to_owned())
    }

    /// Records the URL and the server's version (ETag or date) of the file being downloaded, so
    /// that the download can be resumed. Weak ETags are ignored, because they do not identify the
    /// bytes of a file.
    fn record_server_version(&self, response: &Response) -> io::Result<()> {
        let tag = response.header("etag").filter(|tag| !tag.starts_with("W/"));
        let version = tag.or(response.header("last-modified")).unwrap_or_default();
        std::fs::write(&self.from, format!("{}\n{version}", self.url))
    }
}

/// Appends a response body to the partial file, which has `have` of `total` bytes.
fn append_response_body(
    response: Response,
    part: &mut File,
    have: u64,
    total: Option<u64>,
) -> Result<(), AttemptError> {
    let bar = match total {
        Some(total) => ProgressBar::new(total).with_style(progress_bar_style()),
        None => ProgressBar::new_spinner(),
    };
    let mut body = response.into_reader();
    let mut buffer = vec![0; 64 * 1024];
    let (mut got, mut tenth) = (have, total.map_or(0, |total| have * 10 / total.max(1)));
    loop {
        let n = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                part.flush()?;
                return Err(AttemptError::Broken(short_download_message(
                    got,
                    total,
                    &error.to_string(),
                )));
            }
        };
        part.write_all(&buffer[..n])?;
        got += n as u64;
        bar.set_position(got);
        // Ten log lines, for output without a progress bar.
        if let Some(total) = total
            && got * 10 / total.max(1) > tenth
        {
            tenth = got * 10 / total.max(1);
            tracing::info!(bytes = got, of = total, "downloading the dataset");
        }
    }
    bar.finish_and_clear();
    match total {
        Some(total) if got < total => Err(AttemptError::Broken(short_download_message(
            got,
            Some(total),
            "the connection was closed",
        ))),
        _ => Ok(()),
    }
}

fn short_download_message(got: u64, total: Option<u64>, why: &str) -> String {
    match total {
        Some(total) => format!("{why} after {got} of {total} bytes"),
        None => format!("{why} after {got} bytes"),
    }
}

fn progress_bar_style() -> ProgressStyle {
    let template = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} (eta {eta})";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn file_length_bytes(part: &File) -> io::Result<u64> {
    Ok(part.metadata()?.len())
}

/// Returns the offset of the first byte in a `Content-Range` header: 100 for `bytes 100-199/200`.
fn content_range_start(response: &Response) -> Option<u64> {
    let range = response.header("content-range")?.strip_prefix("bytes ")?;
    range.split_once('-')?.0.parse().ok()
}

fn is_same_file(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let named = std::fs::metadata(path).map(|about| (about.dev(), about.ino()));
    let ours = open.metadata().map(|about| (about.dev(), about.ino()));
    matches!((named, ours), (Ok(named), Ok(ours)) if named == ours)
}

fn check_file_and_sha256(part: &mut File, sha256: Option<&str>) -> Result<(), String> {
    let read = |part: &mut File| {
        part.seek(SeekFrom::Start(0))?;
        let mut start = Vec::new();
        Read::by_ref(part).take(SQLITE_MAGIC.len() as u64).read_to_end(&mut start)?;
        part.seek(SeekFrom::Start(0))?;
        let mut hasher = Sha256::new();
        if sha256.is_some() {
            io::copy(part, &mut hasher)?;
        }
        Ok::<_, io::Error>((start, hasher.finalize()))
    };
    let (start, hash) = read(part).map_err(|error| error.to_string())?;
    if let Some(expected) = sha256 {
        let found: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        if found != expected {
            return Err(format!("its SHA-256 is {found}, expected {expected}"));
        }
    }
    if start != SQLITE_MAGIC {
        let shown = String::from_utf8_lossy(&start).into_owned();
        return Err(format!("it is not an SQLite database: it begins with {shown:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::url_without_secrets;

    #[test]
    fn url_secrets_are_not_shown() {
        let url = "https://me:secret@host.example:8443/a/b.sqlite3?token=secret#secret";
        assert_eq!(url_without_secrets(url), "https://host.example:8443/a/b.sqlite3");
        assert_eq!(url_without_secrets("nonsense?x"), "nonsense");
    }
}
