//! Fetching a file from a server of this test, which behaves as badly as it is told to.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use vllm_sim_dataset::{
    DEFAULT_TABLE_NAME, Dataset, DatasetRowStorage, download_dataset_if_missing,
};

use crate::dataset::tokens;

/// What the server does with one request.
#[derive(Clone, Copy)]
enum Does {
    /// Sends the file, or the range asked for, if its tag is still this one.
    Sends(&'static str),
    /// Names the whole length and sends so many bytes.
    Breaks(usize),
    /// Sends a status and a page.
    Says(&'static str),
}

/// A server that answers one request after the other and ends.
struct Site {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    serving: thread::JoinHandle<()>,
}

impl Site {
    fn start(file: Vec<u8>, plan: &[Does]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://me:pw@{}/d.sqlite3?key=1", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, plan) = (asked.clone(), plan.to_vec());
        let serving = thread::spawn(move || {
            for does in plan {
                let (mut socket, _) = listener.accept().unwrap();
                let mut head = String::new();
                for line in BufReader::new(&socket).lines() {
                    match line.unwrap() {
                        line if line.is_empty() => break,
                        line => head.push_str(&(line.to_lowercase() + "\n")),
                    }
                }
                socket.write_all(&answer(does, &head, &file)).unwrap();
                seen.lock().unwrap().push(head);
            }
        });
        Self { url, asked, serving }
    }

    /// The `Range` headers of all requests.
    fn ranges(self) -> Vec<Option<String>> {
        self.serving.join().unwrap();
        let asked = self.asked.lock().unwrap();
        let range = |head: &String| {
            let found = head.lines().find_map(|line| line.strip_prefix("range: "));
            found.map(str::to_owned)
        };
        asked.iter().map(range).collect()
    }

    fn error(&self, path: &Path, sha256: Option<&str>) -> String {
        let error = download_dataset_if_missing(path, &self.url, sha256).unwrap_err().to_string();
        let (start, why) = error.split_once("/d.sqlite3: ").unwrap();
        assert!(start.starts_with("cannot download the dataset from http://127.0.0.1:"), "{start}");
        why.to_owned()
    }
}

fn answer(does: Does, head: &str, file: &[u8]) -> Vec<u8> {
    let (head, body) = match does {
        Does::Says(status) => (format!("{status}\r\ncontent-length: 4"), &b"page"[..]),
        Does::Breaks(bytes) => {
            (format!("200 OK\r\netag: \"1\"\r\ncontent-length: {}", file.len()), &file[..bytes])
        }
        Does::Sends(tag) => {
            let range = head.lines().find_map(|line| line.strip_prefix("range: bytes="));
            let fresh = head.contains(&format!("if-range: {tag}\n"));
            match range.filter(|_| fresh) {
                Some(range) => {
                    let from: usize = range.trim_end_matches('-').parse().unwrap();
                    let (last, all) = (file.len() - 1, file.len());
                    let range = format!("content-range: bytes {from}-{last}/{all}");
                    let rest = &file[from..];
                    let length = rest.len();
                    let head = format!(
                        "206 Partial\r\n{range}\r\netag: {tag}\r\ncontent-length: {length}"
                    );
                    (head, rest)
                }
                None => {
                    let length = file.len();
                    (format!("200 OK\r\netag: {tag}\r\ncontent-length: {length}"), file)
                }
            }
        }
    };
    let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The bytes of a dataset, their hash, and a folder that lacks it.
fn wanted() -> (Vec<u8>, String, TempDir, PathBuf) {
    let rows: Vec<(&[u32], u32, u32)> = (0..300).map(|i| (&[1, 2][..], i, 40)).collect();
    let bytes = fs::read(&tokens(&rows).path).unwrap();
    let hash = Sha256::digest(&bytes);
    let hash = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/d.sqlite3");
    (bytes, hash, folder, path)
}

fn files(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path.parent().unwrap()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn dataset_is_downloaded_once() {
    let (bytes, hash, _folder, path) = wanted();
    let site = Site::start(bytes.clone(), &[Does::Sends("\"1\"")]);
    assert!(download_dataset_if_missing(&path, &site.url, Some(&hash)).unwrap());
    assert!(!download_dataset_if_missing(&path, &site.url, Some(&hash)).unwrap());
    assert_eq!(site.ranges(), [None]);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(files(&path), ["d.sqlite3"]);
    assert_eq!(
        Dataset::open(&path, DEFAULT_TABLE_NAME, DatasetRowStorage::OnDisk).unwrap().len(),
        300
    );
}

#[test]
fn an_interrupted_download_resumes() {
    let (bytes, hash, _folder, path) = wanted();
    let plan = [Does::Breaks(5000), Does::Sends("\"1\"")];
    let site = Site::start(bytes.clone(), &plan);
    assert!(download_dataset_if_missing(&path, &site.url, Some(&hash)).unwrap());
    assert_eq!(site.ranges(), [None, Some("bytes=5000-".to_owned())]);
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn later_run_resumes_unless_file_changed() {
    let (bytes, hash, _folder, path) = wanted();
    for (tag, again) in [("\"1\"", "goes on"), ("\"2\"", "starts again")] {
        let plan = [Does::Breaks(5000), Does::Says("500 Oops"), Does::Sends(tag)];
        let site = Site::start(bytes.clone(), &plan);
        assert_eq!(site.error(&path, None), "the server returned 500 Oops");
        assert_eq!(files(&path), ["d.sqlite3.part", "d.sqlite3.part.from"]);
        assert!(download_dataset_if_missing(&path, &site.url, Some(&hash)).unwrap(), "{again}");
        let range = Some("bytes=5000-".to_owned());
        assert_eq!(site.ranges(), [None, range.clone(), range], "{again}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "{again}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn download_errors_name_the_reason() {
    let (bytes, _, _folder, path) = wanted();
    let site = Site::start(bytes.clone(), &[Does::Says("404 Not Found")]);
    assert_eq!(site.error(&path, None), "the server returned 404 Not Found");
    let site = Site::start(bytes.clone(), &[Does::Breaks(10); 5]);
    let why = site.error(&path, None);
    assert!(why.ends_with(&format!("after 10 of {} bytes", bytes.len())), "{why}");
    let site = Site::start(bytes.clone(), &[Does::Says("200 OK")]);
    let why = "it is not an SQLite database: it begins with \"page\"";
    assert_eq!(site.error(&path, None), why);
    assert!(files(&path).is_empty(), "what is whole and wrong is gone");
    let site = Site::start(bytes, &[Does::Sends("\"1\"")]);
    let why = site.error(&path, Some("00"));
    assert!(why.starts_with("its SHA-256 is ") && why.ends_with(", expected 00"), "{why}");
    let error = download_dataset_if_missing(&path, "ftp://host.example/x", None).unwrap_err();
    assert!(error.to_string().ends_with("the address must begin with http:// or https://"));
}

#[test]
fn concurrent_processes_download_once() {
    let (bytes, hash, _folder, path) = wanted();
    let site = Site::start(bytes.clone(), &[Does::Sends("\"1\"")]);
    let both: Vec<bool> = thread::scope(|scope| {
        let fetching = [0, 1].map(|_| {
            scope.spawn(|| download_dataset_if_missing(&path, &site.url, Some(&hash)).unwrap())
        });
        fetching.map(|one| one.join().unwrap()).to_vec()
    });
    assert_eq!(both.iter().filter(|fetched| **fetched).count(), 1);
    assert_eq!(site.ranges(), [None]);
    assert_eq!(fs::read(&path).unwrap(), bytes);
}
