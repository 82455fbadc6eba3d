//! Locates tokenizer files: in a folder, in the Hugging Face cache, or on the Hugging Face Hub.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[cfg(feature = "download")]
use crate::download::download_tokenizer_files;
use crate::error::TokenizerError;

/// Location of a model's tokenizer files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerLocation {
    /// No files: the tokenizer is [`SimulatedTokenizer`](crate::simulated::SimulatedTokenizer).
    Simulated,
    /// Folder with a `tokenizer.json`, or that file itself.
    Folder(PathBuf),
    /// Model on the Hugging Face Hub.
    Hub {
        /// Model name, `organization/name`.
        repo: String,
        /// Git branch, tag or commit of the model; `None` means `main`.
        revision: Option<String>,
        /// Whether missing tokenizer files may be downloaded.
        download: bool,
        /// Settings of the Hugging Face cache and Hub.
        hub: HuggingFaceHubSettings,
    },
}

/// Hugging Face cache and Hub settings from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HuggingFaceHubSettings {
    /// Folder of the Hugging Face cache, which contains `models--organization--name`.
    pub cache: PathBuf,
    /// URL of the Hugging Face Hub; `None` means the public one.
    pub endpoint: Option<String>,
    /// Access token for the Hugging Face Hub.
    pub token: Option<String>,
    /// Whether network access to the Hub is disabled (`HF_HUB_OFFLINE`).
    pub offline: bool,
}

impl HuggingFaceHubSettings {
    /// Reads the Hugging Face variables `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `HF_HOME`,
    /// `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE` and their fallbacks through
    /// `env`.
    ///
    /// **Source:** `huggingface_hub/constants.py`.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = set("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
                PathBuf::from(set("HOME").or_else(|| set("USERPROFILE")).unwrap_or_default())
                    .join(".cache")
            });
            cache.join("huggingface")
        });
        let cache = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
        let flag = |name: &str| {
            set(name).is_some_and(|value| {
                matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
            })
        };
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).or_else(|| {
            let path = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
            std::fs::read_to_string(path).ok()
        });
        Self {
            cache: cache.map_or_else(|| home.join("hub"), PathBuf::from),
            endpoint: set("HF_ENDPOINT").map(|url| url.trim_end_matches('/').to_owned()),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: flag("HF_HUB_OFFLINE") || flag("TRANSFORMERS_OFFLINE"),
        }
    }
}

pub(crate) const TOKENIZER_JSON: &str = "tokenizer.json";

/// Folder with a model's `tokenizer.json`, and a description of that folder for the log.
#[derive(Debug)]
pub(crate) struct ModelFolder {
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    pub(crate) local: bool,
    pub(crate) found: String,
}

pub(crate) fn locate_model_in_folder(path: &Path) -> Result<ModelFolder, TokenizerError> {
    let folder = if path.is_file() && path.file_name().is_some_and(|name| name == TOKENIZER_JSON) {
        path.parent().unwrap_or(Path::new(".")).to_owned()
    } else {
        path.to_owned()
    };
    let file = folder.join(TOKENIZER_JSON);
    let reason = match file.metadata() {
        Ok(found) if found.is_file() => None,
        Ok(_) => Some("it is not a file".to_owned()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Some(error.to_string()),
        Err(_) => return Err(TokenizerError::NoFile { folder }),
    };
    if let Some(reason) = reason {
        return Err(TokenizerError::Broken { file, reason });
    }
    let name = path.display().to_string();
    Ok(ModelFolder { found: format!("folder {name}"), folder, name, local: true })
}

/// Locates a Hugging Face model on disk and, if allowed, downloads it from the Hub.
pub(crate) fn locate_model_on_hub(
    repo: &str,
    revision: Option<&str>,
    download: bool,
    hub: &HuggingFaceHubSettings,
) -> Result<ModelFolder, TokenizerError> {
    let valid = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    if repo.split('/').count() > 2 || !repo.split('/').all(valid) {
        return Err(TokenizerError::BadName { repo: repo.to_owned() });
    }
    let revision = revision.unwrap_or("main");
    if let Some(folder) = cached_snapshot(&hub.cache, repo, revision) {
        let found = format!("{repo} in the cache at {}", folder.display());
        return Ok(ModelFolder { folder, name: repo.to_owned(), local: false, found });
    }
    if !download || hub.offline {
        return Err(TokenizerError::NotCached {
            repo: repo.to_owned(),
            cache: hub.cache.clone(),
            offline: download && hub.offline,
        });
    }
    let folder = download_tokenizer_files(repo, revision, hub)
        .map_err(|reason| TokenizerError::Download { repo: repo.to_owned(), reason })?;
    Ok(ModelFolder {
        folder,
        name: repo.to_owned(),
        local: false,
        found: format!("{repo} from the hub"),
    })
}

#[cfg(not(feature = "download"))]
fn download_tokenizer_files(
    _repo: &str,
    _revision: &str,
    _hub: &HuggingFaceHubSettings,
) -> Result<PathBuf, String> {
    Err("this build cannot download: it lacks the feature `download`".to_owned())
}

/// Returns the cached snapshot folder of a model's revision, or of its only snapshot.
fn cached_snapshot(cache: &Path, repo: &str, revision: &str) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", repo.replace('/', "--")));
    let snapshots = model.join("snapshots");
    // Revisions may contain slashes, but no `..`.
    let plain = !revision.split('/').any(|part| part.is_empty() || part.starts_with('.'));
    let named = plain.then(|| {
        let commit = std::fs::read_to_string(model.join("refs").join(revision));
        let commit = commit.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
        snapshots.join(commit)
    });
    if let Some(folder) = named.filter(|folder| folder.join(TOKENIZER_JSON).is_file()) {
        return Some(folder);
    }
    if revision != "main" || model.join("refs/main").exists() {
        return None;
    }
    let mut folders: Vec<PathBuf> = std::fs::read_dir(snapshots)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| folder.join(TOKENIZER_JSON).is_file())
        .collect();
    if folders.len() == 1 { folders.pop() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn env<'e>(pairs: &'e [(&'e str, &'e str)]) -> impl Fn(&str) -> Option<String> + 'e {
        |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn hub_environment_is_read_as_in_huggingface_hub() {
        let hub = HuggingFaceHubSettings::from_env(env(&[("HOME", "/h")]));
        assert_eq!(hub.cache, Path::new("/h/.cache/huggingface/hub"));
        assert!(!hub.offline && hub.endpoint.is_none() && hub.token.is_none());
        let hub = HuggingFaceHubSettings::from_env(env(&[
            ("HF_HOME", "/x"),
            ("HF_ENDPOINT", "http://hub/"),
            ("HF_TOKEN", " t\n"),
            ("HF_HUB_OFFLINE", "yes"),
        ]));
        let expected = HuggingFaceHubSettings {
            cache: "/x/hub".into(),
            endpoint: Some("http://hub".into()),
            token: Some("t".into()),
            offline: true,
        };
        assert_eq!(hub, expected);
        let hub = HuggingFaceHubSettings::from_env(env(&[
            ("HF_HOME", "/x"),
            ("HUGGINGFACE_HUB_CACHE", "/y"),
        ]));
        assert_eq!(hub.cache, Path::new("/y"));
    }

    fn cache_with(snapshots: &[&str], main: Option<&str>) -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--org--name");
        for snapshot in snapshots {
            let folder = model.join("snapshots").join(snapshot);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(TOKENIZER_JSON), "{}").unwrap();
        }
        if let Some(main) = main {
            fs::create_dir_all(model.join("refs")).unwrap();
            fs::write(model.join("refs/main"), main).unwrap();
        }
        cache
    }

    #[test]
    fn cached_snapshots_are_found_by_revision() {
        let find = |snapshots: &[&str], main, revision: &str| {
            let cache = cache_with(snapshots, main);
            let folder = cached_snapshot(cache.path(), "org/name", revision)?;
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
}
