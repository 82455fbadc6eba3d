//! Where a tokenizer's files are: a folder, the Hugging Face cache on disk, or the hub.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::TokenizerError;

/// Where a tokenizer comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// No files: words and signs, see [`super::Simulated`].
    Simulated,
    /// A folder with a `tokenizer.json`, or that file itself.
    Folder(PathBuf),
    /// A model of the hub.
    Hub {
        /// `organisation/name`.
        repo: String,
        /// A branch, tag or commit; `main` if absent.
        revision: Option<String>,
        /// Whether the hub may be asked for files that are not on disk.
        download: bool,
        /// Where the cache and the hub are.
        hub: Hub,
    },
}

/// The Hugging Face settings of an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hub {
    /// The folder that holds `models--organisation--name`.
    pub cache: PathBuf,
    /// The hub's address; the public one if absent.
    pub endpoint: Option<String>,
    /// The access token.
    pub token: Option<String>,
    /// Forbids the network whatever else is set.
    pub offline: bool,
}

impl Hub {
    /// Reads `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE` and their fallbacks through `env`.
    ///
    /// Source: `huggingface_hub/constants.py`.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = set("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
                PathBuf::from(
                    set("HOME")
                        .or_else(|| set("USERPROFILE"))
                        .unwrap_or_default(),
                )
                .join(".cache")
            });
            cache.join("huggingface")
        });
        let cache = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
        let flag = |name: &str| {
            set(name).is_some_and(|value| {
                matches!(
                    value.to_ascii_uppercase().as_str(),
                    "1" | "ON" | "YES" | "TRUE"
                )
            })
        };
        let token = set("HF_TOKEN")
            .or_else(|| set("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| {
                let path = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
                std::fs::read_to_string(path).ok()
            });
        Self {
            cache: cache.map_or_else(|| home.join("hub"), PathBuf::from),
            endpoint: set("HF_ENDPOINT").map(|url| url.trim_end_matches('/').to_owned()),
            token: token
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: flag("HF_HUB_OFFLINE") || flag("TRANSFORMERS_OFFLINE"),
        }
    }
}

/// The file without which there is no tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// The files that are read if they are there.
const OPTIONAL: [&str; 5] = [
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
];

/// A folder with a `tokenizer.json`, and what to say about it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: PathBuf,
    /// The name that the user gave.
    pub(super) name: String,
    /// Whether that name is a folder.
    pub(super) local: bool,
    /// For the log.
    pub(super) found: String,
}

/// Checks that a folder has what is needed.
pub(super) fn in_folder(path: &Path) -> Result<Place, TokenizerError> {
    let folder = if path.is_file() && path.file_name().is_some_and(|name| name == TOKENIZER) {
        path.parent().unwrap_or(Path::new(".")).to_owned()
    } else {
        path.to_owned()
    };
    if !folder.join(TOKENIZER).is_file() {
        return Err(TokenizerError::NoFile { folder });
    }
    let name = path.display().to_string();
    Ok(Place {
        found: format!("folder {name}"),
        folder,
        name,
        local: true,
    })
}

/// Looks a model up on disk and, if that is allowed, on the hub.
pub(super) fn on_hub(
    repo: &str,
    revision: Option<&str>,
    download: bool,
    hub: &Hub,
) -> Result<Place, TokenizerError> {
    let valid = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    if repo.split('/').count() > 2 || !repo.split('/').all(valid) {
        return Err(TokenizerError::BadName {
            repo: repo.to_owned(),
        });
    }
    let revision = revision.unwrap_or("main");
    if let Some(folder) = cached(&hub.cache, repo, revision) {
        let found = format!("{repo} in the cache at {}", folder.display());
        return Ok(Place {
            folder,
            name: repo.to_owned(),
            local: false,
            found,
        });
    }
    if !download || hub.offline {
        return Err(TokenizerError::NotCached {
            repo: repo.to_owned(),
            cache: hub.cache.clone(),
            offline: download && hub.offline,
        });
    }
    let folder = fetch(repo, revision, hub).map_err(|error| TokenizerError::Download {
        repo: repo.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Place {
        folder,
        name: repo.to_owned(),
        local: false,
        found: format!("{repo} from the hub"),
    })
}

/// The snapshot of a model on disk: that of the revision, or the only one there is.
fn cached(cache: &Path, repo: &str, revision: &str) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", repo.replace('/', "--")));
    let snapshots = model.join("snapshots");
    // Revisions may hold slashes, but never climb.
    let plain = !revision
        .split('/')
        .any(|part| part.is_empty() || part.starts_with('.'));
    let named = plain.then(|| {
        let commit = std::fs::read_to_string(model.join("refs").join(revision));
        let commit = commit.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
        snapshots.join(commit)
    });
    if let Some(folder) = named.filter(|folder| folder.join(TOKENIZER).is_file()) {
        return Some(folder);
    }
    if revision != "main" || model.join("refs/main").exists() {
        return None;
    }
    let mut folders: Vec<PathBuf> = std::fs::read_dir(snapshots)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| folder.join(TOKENIZER).is_file())
        .collect();
    if folders.len() == 1 {
        folders.pop()
    } else {
        None
    }
}

/// Downloads the files into the cache and gives their folder. Blocks.
fn fetch(repo: &str, revision: &str, hub: &Hub) -> Result<PathBuf, ApiError> {
    let mut builder = ApiBuilder::from_cache(Cache::new(hub.cache.clone()))
        .with_token(hub.token.clone())
        .with_progress(false);
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let repo = Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned());
    let repo = builder.build()?.repo(repo);
    let file = repo.get(TOKENIZER)?;
    for name in OPTIONAL {
        match repo.get(name) {
            Ok(_) => {}
            // A model need not have it; any other trouble would leave out, say, its chat template.
            Err(ApiError::RequestError(error)) if error.to_string().contains("404") => {}
            Err(error) => return Err(error),
        }
    }
    Ok(file.parent().unwrap_or(Path::new(".")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn env<'e>(pairs: &'e [(&'e str, &'e str)]) -> impl Fn(&str) -> Option<String> + 'e {
        |name| {
            pairs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn the_environment_is_read_as_the_python_library_reads_it() {
        let hub = Hub::from_env(env(&[("HOME", "/h")]));
        assert_eq!(hub.cache, Path::new("/h/.cache/huggingface/hub"));
        assert!(!hub.offline && hub.endpoint.is_none() && hub.token.is_none());
        let hub = Hub::from_env(env(&[
            ("HF_HOME", "/x"),
            ("HF_ENDPOINT", "http://hub/"),
            ("HF_TOKEN", " t\n"),
            ("HF_HUB_OFFLINE", "yes"),
        ]));
        let expected = Hub {
            cache: "/x/hub".into(),
            endpoint: Some("http://hub".into()),
            token: Some("t".into()),
            offline: true,
        };
        assert_eq!(hub, expected);
        let hub = Hub::from_env(env(&[("HF_HOME", "/x"), ("HUGGINGFACE_HUB_CACHE", "/y")]));
        assert_eq!(hub.cache, Path::new("/y"));
    }

    fn cache_with(snapshots: &[&str], main: Option<&str>) -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--org--name");
        for snapshot in snapshots {
            let folder = model.join("snapshots").join(snapshot);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(TOKENIZER), "{}").unwrap();
        }
        if let Some(main) = main {
            fs::create_dir_all(model.join("refs")).unwrap();
            fs::write(model.join("refs/main"), main).unwrap();
        }
        cache
    }

    #[test]
    fn snapshots_are_found_by_revision() {
        let find = |snapshots: &[&str], main, revision: &str| {
            let cache = cache_with(snapshots, main);
            let folder = cached(cache.path(), "org/name", revision)?;
            Some(folder.file_name().unwrap().to_str().unwrap().to_owned())
        };
        assert_eq!(find(&["a", "b"], Some("b\n"), "main").as_deref(), Some("b"));
        assert_eq!(find(&["a", "b"], Some("b"), "a").as_deref(), Some("a"));
        assert_eq!(find(&["a"], None, "main").as_deref(), Some("a"));
        assert_eq!(find(&["a", "b"], None, "main"), None);
        assert_eq!(find(&["a"], Some("gone"), "main"), None);
        assert_eq!(find(&["a"], None, "v1"), None);
        assert_eq!(find(&["a"], None, "../snapshots/a"), None);
    }

    /// A hub that has these files of `org/name`; gives its address and, when dropped by the test's
    /// end, the requests it saw.
    fn fake_hub(
        files: &'static [(&'static str, &'static str)],
    ) -> (String, std::sync::Arc<parking_lot::Mutex<Vec<String>>>) {
        use std::io::{BufRead, BufReader, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let seen = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let log = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().unwrap().unwrap();
                let headers: Vec<String> = lines
                    .map(|line| line.unwrap())
                    .take_while(|line| !line.is_empty())
                    .collect();
                let token = headers
                    .iter()
                    .any(|line| line.eq_ignore_ascii_case("authorization: Bearer t"));
                let path = request.split(' ').nth(1).unwrap();
                let file = path.strip_prefix("/org/name/resolve/main/");
                let body = files
                    .iter()
                    .find(|(name, _)| Some(*name) == file)
                    .map(|(_, body)| *body);
                let range = headers
                    .iter()
                    .any(|line| line.eq_ignore_ascii_case("range: bytes=0-0"));
                log.lock().push(format!("{path} {token}"));
                let answer = match body {
                    None => {
                        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                            .to_owned()
                    }
                    Some(body) => {
                        let (status, sent) = if range {
                            ("206 Partial Content", &body[..1])
                        } else {
                            ("200 OK", body)
                        };
                        format!(
                            "HTTP/1.1 {status}\r\nx-repo-commit: c0ffee\r\netag: \"{}\"\r\ncontent-length: {}\r\n\
                             content-range: bytes 0-{}/{}\r\nconnection: close\r\n\r\n{sent}",
                            body.len(),
                            sent.len(),
                            sent.len() - 1,
                            body.len()
                        )
                    }
                };
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (endpoint, seen)
    }

    #[test]
    fn a_download_fills_the_cache() {
        let (endpoint, seen) = fake_hub(&[(TOKENIZER, "{\"a\": 1}"), ("chat_template.jinja", "T")]);
        let cache = tempfile::tempdir().unwrap();
        let hub = Hub {
            cache: cache.path().into(),
            endpoint: Some(endpoint),
            token: Some("t".into()),
            offline: false,
        };
        let place = on_hub("org/name", None, true, &hub).unwrap();
        assert_eq!(place.found, "org/name from the hub");
        assert!(place.folder.ends_with("models--org--name/snapshots/c0ffee"));
        assert_eq!(
            fs::read_to_string(place.folder.join("chat_template.jinja")).unwrap(),
            "T"
        );
        assert!(!place.folder.join("config.json").exists());
        let requests = seen.lock().len();
        assert!(
            seen.lock().iter().all(|line| line.ends_with(" true")),
            "{:?}",
            seen.lock()
        );
        let again = on_hub("org/name", None, true, &hub).unwrap();
        assert!(again.found.starts_with("org/name in the cache at "));
        assert_eq!(seen.lock().len(), requests);
    }

    #[test]
    fn the_hub_is_left_alone_unless_asked() {
        let cache = tempfile::tempdir().unwrap();
        let hub = |offline| Hub {
            cache: cache.path().into(),
            // Nothing listens there: a request would show as a Download error.
            endpoint: Some("http://127.0.0.1:9".into()),
            token: None,
            offline,
        };
        for (download, offline) in [(false, false), (true, true)] {
            let error = on_hub("org/name", None, download, &hub(offline)).unwrap_err();
            assert!(matches!(error, TokenizerError::NotCached { .. }), "{error}");
        }
        let error = on_hub("org/name", None, true, &hub(false)).unwrap_err();
        assert!(matches!(error, TokenizerError::Download { .. }), "{error}");
        for name in ["", "a/b/c", "../x", "a b", "a/", "http://x"] {
            let error = on_hub(name, None, true, &hub(false)).unwrap_err();
            assert!(
                matches!(error, TokenizerError::BadName { .. }),
                "{name}: {error}"
            );
        }
    }
}
