//! Downloads the tokenizer files of a model from the Hugging Face Hub.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use crate::source::{HuggingFaceHubSettings, TOKENIZER_JSON};

const OPTIONAL_FILES: [&str; 5] = [
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
];

/// Downloads a model's tokenizer files into the cache and returns their folder. Blocks the thread.
pub(crate) fn download_tokenizer_files(
    repo: &str,
    revision: &str,
    hub: &HuggingFaceHubSettings,
) -> Result<PathBuf, String> {
    download_from_hub(repo, revision, hub).map_err(|error| error.to_string())
}

fn download_from_hub(
    repo: &str,
    revision: &str,
    hub: &HuggingFaceHubSettings,
) -> Result<PathBuf, ApiError> {
    let mut builder = ApiBuilder::from_cache(Cache::new(hub.cache.clone()))
        .with_token(hub.token.clone())
        .with_progress(false);
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let repo = Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned());
    let repo = builder.build()?.repo(repo);
    let file = repo.get(TOKENIZER_JSON)?;
    for name in OPTIONAL_FILES {
        match repo.get(name) {
            Ok(_) => {}
            // These files are optional; ignoring other errors would, for example, lose the chat
            // template.
            Err(ApiError::RequestError(error)) if error.to_string().contains("404") => {}
            Err(error) => return Err(error),
        }
    }
    Ok(file.parent().unwrap_or(Path::new(".")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TokenizerError;
    use crate::source::locate_model_on_hub;
    use std::fs;

    /// Starts a hub with these files of `org/name`; returns its address and the requests that it
    /// receives.
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
                let headers: Vec<String> =
                    lines.map(|line| line.unwrap()).take_while(|line| !line.is_empty()).collect();
                let token =
                    headers.iter().any(|line| line.eq_ignore_ascii_case("authorization: Bearer t"));
                let path = request.split(' ').nth(1).unwrap();
                let file = path.strip_prefix("/org/name/resolve/main/");
                let body =
                    files.iter().find(|(name, _)| Some(*name) == file).map(|(_, body)| *body);
                let range =
                    headers.iter().any(|line| line.eq_ignore_ascii_case("range: bytes=0-0"));
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
    fn hub_download_fills_the_hugging_face_cache() {
        let (endpoint, seen) =
            fake_hub(&[(TOKENIZER_JSON, "{\"a\": 1}"), ("chat_template.jinja", "T")]);
        let cache = tempfile::tempdir().unwrap();
        let hub = HuggingFaceHubSettings {
            cache: cache.path().into(),
            endpoint: Some(endpoint),
            token: Some("t".into()),
            offline: false,
        };
        let model = locate_model_on_hub("org/name", None, true, &hub).unwrap();
        assert_eq!(model.found, "org/name from the hub");
        assert!(model.folder.ends_with("models--org--name/snapshots/c0ffee"));
        assert_eq!(fs::read_to_string(model.folder.join("chat_template.jinja")).unwrap(), "T");
        assert!(!model.folder.join("config.json").exists());
        let requests = seen.lock().len();
        assert!(seen.lock().iter().all(|line| line.ends_with(" true")), "{:?}", seen.lock());
        let again = locate_model_on_hub("org/name", None, true, &hub).unwrap();
        assert!(again.found.starts_with("org/name in the cache at "));
        assert_eq!(seen.lock().len(), requests);
    }

    #[test]
    fn the_hub_is_not_contacted_unless_requested() {
        let cache = tempfile::tempdir().unwrap();
        let hub = |offline| HuggingFaceHubSettings {
            cache: cache.path().into(),
            // No server listens there: a request would result in a Download error.
            endpoint: Some("http://127.0.0.1:9".into()),
            token: None,
            offline,
        };
        for (download, offline) in [(false, false), (true, true)] {
            let error = locate_model_on_hub("org/name", None, download, &hub(offline)).unwrap_err();
            assert!(matches!(error, TokenizerError::NotCached { .. }), "{error}");
        }
        let error = locate_model_on_hub("org/name", None, true, &hub(false)).unwrap_err();
        assert!(matches!(error, TokenizerError::Download { .. }), "{error}");
        for name in ["", "a/b/c", "../x", "a b", "a/", "http://x"] {
            let error = locate_model_on_hub(name, None, true, &hub(false)).unwrap_err();
            assert!(matches!(error, TokenizerError::BadName { .. }), "{name}: {error}");
        }
    }
}
