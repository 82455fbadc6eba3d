//! `vllm-sim record`: what passes is untouched, what was said is in the file, and the file says it
//! again at the same pace.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::Instant;
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig};
use vllm_sim_dataset::{DEFAULT_TABLE_NAME, hash_prompt_tokens};
use vllm_sim_record::{Recorder, RecorderConfig, RecordingSummary, first_model_of_upstream};
use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer};

/// A server with llm-d's command line on any port.
async fn server(flags: &[&str]) -> (SimulatorServer, String) {
    let mut all = vec!["--model", "demo", "--host", "127.0.0.1", "--seed", "1"];
    all.extend(flags);
    let mut loaded = LoadedConfig::from_flags(CliMode::Llmd, &all).unwrap();
    loaded.config.server.port = 0;
    let server = SimulatorServer::start_server(loaded).await.unwrap();
    let base = format!("http://{}", server.address.unwrap());
    (server, base)
}

/// A proxy that writes into a folder of its own.
struct Proxy {
    recorder: Recorder,
    base: String,
    folder: TempDir,
}

impl Proxy {
    async fn start(upstream: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recorder =
            Recorder::start(record(upstream, &folder.path().join("r.sqlite3"))).await.unwrap();
        let base = format!("http://{}", recorder.address);
        Self { recorder, base, folder }
    }

    async fn stop(self) -> (RecordingSummary, PathBuf, TempDir) {
        let path = self.folder.path().join("r.sqlite3");
        (self.recorder.stop().await.unwrap(), path, self.folder)
    }
}

fn record(upstream: &str, out: &Path) -> RecorderConfig {
    RecorderConfig {
        upstream: upstream.to_owned(),
        out: out.into(),
        table: DEFAULT_TABLE_NAME.to_owned(),
        append: false,
        listen: ("127.0.0.1".to_owned(), 0),
        authority: None,
        tokenizer: Arc::new(Tokenizer::new_simulated()),
    }
}

fn client() -> reqwest::Client {
    // The client wants one even without TLS; a second call finds the first one's.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// Texts of a streamed answer and when each came, or of a whole one.
async fn ask(base: &str, path: &str, body: &Value) -> Vec<(Duration, String)> {
    let sent = Instant::now();
    let request = client().post(format!("{base}{path}")).json(body);
    let mut answer = request.send().await.unwrap();
    let (mut said, mut buffer) = (Vec::new(), String::new());
    while let Some(piece) = answer.chunk().await.unwrap() {
        let at = sent.elapsed();
        buffer.push_str(std::str::from_utf8(&piece).unwrap());
        while let Some(end) = buffer.find("\n\n") {
            let event: String = buffer.drain(..end + 2).collect();
            let event = event.trim().trim_start_matches("data: ");
            if event != "[DONE]" {
                said.extend(texts(event).into_iter().map(|text| (at, text)));
            }
        }
    }
    let at = sent.elapsed();
    if body["stream"] != true {
        said.extend(texts(&buffer).into_iter().map(|text| (at, text)));
    }
    said
}

/// The texts of all choices of a body or event.
fn texts(json: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(json).unwrap();
    let choices = body["choices"].as_array().unwrap_or_else(|| panic!("{json}"));
    let text = |choice: &Value| {
        let found = [&choice["text"], &choice["delta"]["content"], &choice["message"]["content"]];
        let found = found.into_iter().find_map(Value::as_str);
        found.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    choices.iter().filter_map(text).collect()
}

fn said(answer: &[(Duration, String)]) -> String {
    answer.iter().map(|(_, text)| text.as_str()).collect()
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Requests of each kind, with replies of some length.
fn requests() -> Vec<(&'static str, Value)> {
    let chat = |text: &str| {
        json!({
            "model": "demo", "max_tokens": 25, "ignore_eos": true,
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": text}],
        })
    };
    let text =
        |text: &str| json!({"model": "demo", "max_tokens": 25, "ignore_eos": true, "prompt": text});
    let streamed = |mut body: Value| {
        body["stream"] = true.into();
        body
    };
    vec![
        (CHAT, streamed(chat("Who are you?"))),
        (CHAT, chat("What is that?")),
        (TEXT, streamed(text("Once upon a time"))),
        (TEXT, text("There was")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn recording_replays_same_text_and_pace() {
    let slow = [
        "--time-to-first-token",
        "30ms",
        "--inter-token-latency",
        "8ms",
        "--inter-token-latency-std-dev",
        "2ms",
    ];
    let (upstream, url) = server(&slow).await;
    let proxy = Proxy::start(&url).await;
    let mut recorded = Vec::new();
    for (path, body) in requests() {
        recorded.push(ask(&proxy.base, path, &body).await);
    }
    let (summary, path, _folder) = proxy.stop().await;
    upstream.shut_down_server().await;
    assert_eq!((summary.replies, summary.skipped.len()), (4, 0), "{summary:?}");

    let last = "SELECT json_extract(token_us, '$[#-1]') FROM llmd_recording ORDER BY id";
    let mut ends: Vec<u32> = {
        let file = Connection::open(&path).unwrap();
        let mut rows = file.prepare(last).unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let path = path.display().to_string();
    let (again, url) = server(&["--dataset-path", &path, "--replay-timing"]).await;
    let mut off = Vec::new();
    for ((route, body), before) in requests().iter().zip(&recorded) {
        let after = ask(&url, route, body).await;
        assert_eq!(said(&after), said(before));
        if body["stream"] == true {
            assert_eq!(after.len(), before.len());
            let gaps = |answer: &[(Duration, String)]| -> Vec<Duration> {
                answer.windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
            };
            let pairs = gaps(before).into_iter().zip(gaps(&after));
            off.extend(pairs.map(|(before, after)| before.abs_diff(after)));
        }
        // Never early; how late is the machine's business.
        let least = Duration::from_micros(ends.remove(0).into()) - Duration::from_millis(1);
        assert!(after.last().unwrap().0 >= least, "{after:?} {least:?}");
    }
    again.shut_down_server().await;
    off.sort();
    let median = off[off.len() / 2];
    println!("gaps are off by {median:?} in the median, {:?} at most", off[off.len() - 1]);
    // Loose, for a busy machine.
    assert!(median < Duration::from_millis(4), "{median:?}");
}

#[tokio::test]
async fn recording_has_llmd_table_and_extra_table() {
    let (upstream, url) = server(&[]).await;
    let proxy = Proxy::start(&format!("{url}/v1/")).await;
    let body =
        json!({"model": "demo", "prompt": ["a", "b c"], "n": 2, "max_tokens": 4, "stream": true});
    ask(&proxy.base, TEXT, &body).await;
    let ids = json!({"model": "demo", "prompt": [7, 8, 9], "max_tokens": 3});
    ask(&proxy.base, TEXT, &ids).await;
    let (summary, path, _folder) = proxy.stop().await;
    upstream.shut_down_server().await;
    assert_eq!(summary.replies, 5, "{summary:?}");
    let file = Connection::open(path).unwrap();
    let columns = "SELECT group_concat(name || ' ' || type) FROM pragma_table_info('llmd')";
    let columns: String = file.query_row(columns, [], |row| row.get(0)).unwrap();
    // llm-d copies them all into four columns of its own.
    assert_eq!(columns, "id INTEGER,prompt_hash BLOB,gen_tokens JSON,n_gen_tokens INTEGER");
    let tokenizer = Tokenizer::new_simulated();
    let hashes = ["a", "a", "b c", "b c"]
        .map(|p| hash_prompt_tokens(&tokenizer.encode(p, SpecialTokenHandling::With)));
    let mut rows = file.prepare("SELECT prompt_hash FROM llmd ORDER BY id").unwrap();
    let found: Vec<[u8; 32]> =
        rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(found[..4], hashes);
    assert_eq!(found[4], hash_prompt_tokens(&[7, 8, 9]));
    let all = "SELECT count(*) FROM llmd_recording r JOIN llmd USING (id) WHERE api = 'completions' \
               AND json_array_length(token_us) = n_gen_tokens AND model = 'demo' AND streamed = (r.id < 5)";
    let all: i64 = file.query_row(all, [], |row| row.get(0)).unwrap();
    assert_eq!(all, 5);
}

/// An upstream that sends these pieces, each when it is told to, and says what it was asked.
async fn scripted(
    pieces: Vec<&'static str>,
) -> (String, Vec<oneshot::Sender<()>>, oneshot::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go, wait): (Vec<_>, Vec<_>) = pieces.iter().map(|_| oneshot::channel()).unzip();
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; 4096];
        let n = socket.read(&mut asked).await.unwrap();
        let _ = tell.send(String::from_utf8_lossy(&asked[..n]).into_owned());
        for (piece, wait) in pieces.into_iter().zip(wait) {
            let _ = wait.await;
            socket.write_all(piece.as_bytes()).await.unwrap();
        }
    });
    (url, go, told)
}

#[tokio::test]
async fn chunks_are_forwarded_unchanged() {
    let pieces = vec![
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-own: 1\r\nconnection: close\r\n\r\n",
        "data:  {\"choices\" :[{\"index\":0,\"text\":\"A\"}]}\r\n\r\n: odd\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"B\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\nrest",
    ];
    let (url, go, told) = scripted(pieces.clone()).await;
    let proxy = Proxy::start(&url).await;
    let asked = client()
        .post(format!("{}{TEXT}?x=1", proxy.base))
        .header("x-mine", "2")
        .body(" {\"prompt\": \"p\", \"stream\":true} ");
    let mut go = go.into_iter();
    go.next().unwrap().send(()).unwrap();
    let mut answer = asked.send().await.unwrap();
    assert_eq!(answer.headers()["x-own"], "1");
    for piece in &pieces[1..] {
        // The next piece is not sent before this one is here.
        go.next().unwrap().send(()).unwrap();
        let mut got = Vec::new();
        while got.len() < piece.len() {
            got.extend(answer.chunk().await.unwrap().unwrap());
        }
        assert_eq!(String::from_utf8(got).unwrap(), **piece);
    }
    assert_eq!(answer.chunk().await.unwrap(), None);
    let asked = told.await.unwrap();
    assert!(asked.starts_with("POST /v1/completions?x=1 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("x-mine: 2\r\n"), "{asked}");
    assert!(asked.ends_with("\r\n\r\n {\"prompt\": \"p\", \"stream\":true} "), "{asked}");
    let (summary, path, _folder) = proxy.stop().await;
    assert_eq!(summary.replies, 1, "{summary:?}");
    let file = Connection::open(path).unwrap();
    let reply = "SELECT gen_tokens FROM llmd";
    let reply: String = file.query_row(reply, [], |row| row.get(0)).unwrap();
    assert!(reply.ends_with("\"Strings\":[\"A\",\"B\"]}"), "{reply}");
}

#[tokio::test]
async fn other_paths_are_forwarded_unrecorded() {
    let (upstream, url) = server(&[]).await;
    let proxy = Proxy::start(&url).await;
    let client = client();
    let get = async |base: &str| {
        let answer = client.get(format!("{base}/v1/models")).send().await.unwrap();
        let mut body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        body["data"][0]["created"] = 0.into();
        body["data"][0]["permission"] = Value::Null;
        body
    };
    assert_eq!(get(&proxy.base).await, get(&url).await);
    let missing = client.get(format!("{}/none", proxy.base)).send().await.unwrap();
    assert_eq!(missing.status(), 404);
    let wrong = json!({"model": "nobody", "prompt": "x"});
    let refused = client.post(format!("{}{TEXT}", proxy.base)).json(&wrong).send().await.unwrap();
    assert_eq!(refused.status(), 404);
    upstream.shut_down_server().await;
    let body = json!({"model": "demo", "prompt": "x"});
    let gone = client.post(format!("{}{TEXT}", proxy.base)).json(&body).send().await.unwrap();
    assert_eq!(gone.status(), 502);
    assert!(gone.text().await.unwrap().contains("the upstream cannot be reached"));
    let (summary, ..) = proxy.stop().await;
    assert_eq!(summary.replies, 0);
    assert_eq!(summary.skipped.get("the response is an HTTP error"), Some(&1), "{summary:?}");
}

#[tokio::test]
async fn a_disconnected_client_leaves_no_partial_reply() {
    let (upstream, url) = server(&["--inter-token-latency", "30ms"]).await;
    let proxy = Proxy::start(&url).await;
    let body = json!({"model": "demo", "prompt": "x", "max_tokens": 100, "ignore_eos": true, "stream": true});
    let mut answer =
        client().post(format!("{}{TEXT}", proxy.base)).json(&body).send().await.unwrap();
    answer.chunk().await.unwrap();
    drop(answer);
    // The proxy hears of it with its next write, and then the upstream.
    let idle = async {
        while upstream.app_state().service().in_flight_sequences() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let idle = tokio::time::timeout(Duration::from_secs(20), idle).await;
    assert!(idle.is_ok(), "the upstream goes on");
    let (summary, ..) = proxy.stop().await;
    upstream.shut_down_server().await;
    assert_eq!((summary.replies, summary.skipped.len()), (0, 1), "{summary:?}");
}

#[tokio::test]
async fn invalid_recorder_config_fails_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("r.sqlite3");
    let error = async |record: RecorderConfig| {
        let error = Recorder::start(record).await.err().unwrap().to_string();
        error.replace(&folder.path().display().to_string(), "HERE")
    };
    for (url, why) in [
        ("localhost:8000/x", "it is not a valid address"),
        ("ftp://host", "the scheme is neither http nor https"),
        ("/v1", "it has no scheme"),
    ] {
        let said = error(record(url, &out)).await;
        assert!(said.starts_with("--upstream ") && said.ends_with(why), "{said}");
    }
    std::fs::write(&out, "x".repeat(4096)).unwrap();
    let mut twice = record("http://127.0.0.1:1", &out);
    let why = "cannot record into HERE/r.sqlite3: it already exists; use --append to add to it";
    assert_eq!(error(twice.clone()).await, why);
    twice.append = true;
    assert!(error(twice).await.contains("is not a readable SQLite database"));
    let error = first_model_of_upstream("http://127.0.0.1:1", None).await.unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read the model name from http://127.0.0.1:1/v1/models: "),
        "{error}"
    );
}

#[tokio::test]
async fn a_dataset_is_built_of_a_recording_in_the_tokens_of_another_model() {
    let (upstream, url) = server(&["--inter-token-latency", "1ms"]).await;
    let proxy = Proxy::start(&url).await;
    let body = json!({"model": "demo", "prompt": ["Un", "deux"], "max_tokens": 9, "stream": true});
    let both = said(&ask(&proxy.base, TEXT, &body).await);
    let chat = json!({"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Trois"}]});
    ask(&proxy.base, CHAT, &chat).await;
    let (summary, path, folder) = proxy.stop().await;
    upstream.shut_down_server().await;
    assert_eq!(summary.replies, 3, "{summary:?}");
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-llama");
    for (model, name) in [("demo", "same"), (tiny, "other")] {
        let words = format!(
            "build --local-path {} --output-path {} --output-file {name} --model {model}{}",
            path.display(),
            folder.path().display(),
            if name == "same" { " --force-dummy-tokenizer" } else { "" },
        );
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let done = vllm_sim_record::dataset::run_dataset_command(&words, &|_| None).unwrap();
        assert!(done.starts_with("3 replies from 3 of 3 recordings\n"), "{done}");
        let rows = |file: &Path| -> Vec<(Vec<u8>, String, String)> {
            let file = Connection::open(file).unwrap();
            let sql = "SELECT prompt_hash, gen_tokens, token_us FROM llmd JOIN llmd_recording USING (id) ORDER BY id";
            let mut rows = file.prepare(sql).unwrap();
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            rows.unwrap().map(Result::unwrap).collect()
        };
        let built = rows(&folder.path().join(format!("{name}.sqlite3")));
        if name == "same" {
            assert_eq!(built, rows(&path));
            continue;
        }
        let (tokenizer, _) =
            Tokenizer::open(&vllm_sim_tokenizer::TokenizerLocation::Folder(tiny.into())).unwrap();
        assert_eq!(
            built[1].0,
            hash_prompt_tokens(&tokenizer.encode("deux", SpecialTokenHandling::With))
        );
        let mut text = String::new();
        for (_, reply, micros) in &built[..2] {
            let reply: Value = serde_json::from_str(reply).unwrap();
            let micros: Vec<u64> = serde_json::from_str(micros).unwrap();
            let texts = reply["Strings"].as_array().unwrap();
            assert_eq!(texts.len(), micros.len());
            assert!(micros.is_sorted());
            text.extend(texts.iter().map(|text| text.as_str().unwrap()));
        }
        // The two streams were mixed.
        let sorted = |text: &str| {
            let mut all: Vec<char> = text.chars().collect();
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(&text), sorted(&both));
    }
}

#[tokio::test]
async fn an_upstream_behind_tls_is_recorded_if_it_is_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("crt"), made.cert.pem()).unwrap();
    std::fs::write(path("key"), made.signing_key.serialize_pem()).unwrap();
    let [crt, key] = ["crt", "key"].map(|name| path(name).display().to_string());
    let (upstream, url) = server(&["--ssl-certfile", &crt, "--ssl-keyfile", &key]).await;
    let url = url.replace("http://", "https://");
    let authority = path("crt");
    assert_eq!(first_model_of_upstream(&url, Some(&authority)).await.unwrap(), "demo");
    let untrusted = first_model_of_upstream(&url, None).await.unwrap_err().to_string();
    assert!(untrusted.contains("invalid peer certificate"), "{untrusted}");
    let mut record = record(&url, &path("r.sqlite3"));
    record.authority = Some(authority);
    let recorder = Recorder::start(record).await.unwrap();
    let base = format!("http://{}", recorder.address);
    let body = json!({"model": "demo", "prompt": "x", "max_tokens": 4, "stream": true});
    // The second one goes over the connection of the first.
    for _ in 0..2 {
        assert!(!said(&ask(&base, TEXT, &body).await).is_empty());
    }
    assert_eq!(recorder.stop().await.unwrap().replies, 2);
    upstream.shut_down_server().await;
}

#[tokio::test]
async fn append_adds_to_existing_recording() {
    let (upstream, url) = server(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("r.sqlite3");
    for run in 0..2 {
        let mut record = record(&url, &out);
        record.append = run > 0;
        let recorder = Recorder::start(record).await.unwrap();
        let body = json!({"model": "demo", "prompt": format!("run {run}"), "max_tokens": 4});
        ask(&format!("http://{}", recorder.address), TEXT, &body).await;
        assert_eq!(recorder.stop().await.unwrap().replies, 1);
    }
    assert_eq!(first_model_of_upstream(&url, None).await.unwrap(), "demo");
    upstream.shut_down_server().await;
    let count = "SELECT count(*) FROM llmd";
    let count: i64 = Connection::open(out).unwrap().query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 2);
}

/// Sends the turns of an agent's session, each after the tool call of the one before.
async fn send_agent_session(base: &str, session: &str) {
    let tool = json!({"type": "function", "function": {
        "name": "read_file",
        "parameters": {"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]},
    }});
    let mut messages = vec![json!({"role": "user", "content": format!("Fix {session}.")})];
    for turn in 0..3 {
        let mut body = json!({"model": "demo", "messages": messages, "max_tokens": 20});
        if turn < 2 {
            body["tools"] = json!([tool]);
            body["tool_choice"] = "required".into();
        }
        let sent = client().post(format!("{base}{CHAT}")).header("x-session-id", session);
        let answer: Value = sent.json(&body).send().await.unwrap().json().await.unwrap();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["tool_calls"].is_array(), turn < 2, "{answer}");
        messages.push(message.clone());
        let id = &message["tool_calls"][0]["id"];
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "fn f() {}"}));
    }
}

/// Sets the starts of the recorded requests to one per second, and returns the waits between those
/// of a session, in ms.
fn space_out_recording(path: &Path) -> Vec<f64> {
    let file = Connection::open(path).unwrap();
    let mut rows =
        file.prepare("SELECT id, token_us FROM llmd_recording ORDER BY started_us").unwrap();
    let rows: Vec<(i64, String)> = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut waits = Vec::new();
    for (second, (id, times)) in rows.into_iter().enumerate() {
        let update = "UPDATE llmd_recording SET started_us = ?1 WHERE id = ?2";
        assert_eq!(file.execute(update, (second as i64 * 1_000_000, id)).unwrap(), 1);
        let times: Vec<u64> = serde_json::from_str(&times).unwrap();
        waits.push(1000.0 - *times.last().unwrap() as f64 / 1e3);
    }
    waits
}

fn replay_report(path: &Path, more: &[&str]) -> Value {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
    command.arg("replay").arg(path).args(["--report-json", "-"]).args(more);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Session, turn, prompt and output tokens, and the wait since the session's turn before, in ms.
fn replayed_turns(report: &Value) -> Vec<(String, u64, u64, u64, f64)> {
    let mut records: Vec<&Value> = report["per_request"].as_array().unwrap().iter().collect();
    let number = |record: &Value, key: &str| record[key].as_u64().unwrap();
    records.sort_by_key(|r| (r["session_id"].to_string(), number(r, "turn_index")));
    let mut last: Option<(String, f64)> = None;
    let mut turns = Vec::new();
    for record in records {
        let session = record["session_id"].as_str().unwrap().to_owned();
        let [start, end] =
            ["arrival_time_ms", "terminal_time_ms"].map(|key| record[key].as_f64().unwrap());
        let before = last.filter(|(id, _)| *id == session);
        let wait = before.map_or(0.0, |(_, ended)| start - ended);
        last = Some((session.clone(), end));
        let [input, output] = ["input_length", "output_length"].map(|key| number(record, key));
        turns.push((session, number(record, "turn_index"), input, output, wait));
    }
    turns
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_agent_is_replayed_in_virtual_time_and_over_http() {
    let (upstream, url) = server(&["--max-model-len", "4096"]).await;
    let proxy = Proxy::start(&url).await;
    send_agent_session(&proxy.base, "parser").await;
    let (summary, path, _folder) = proxy.stop().await;
    assert_eq!((summary.replies, &summary.skipped), (3, &Default::default()));
    let waits = space_out_recording(&path);
    let target = url.clone();
    let reports = tokio::task::spawn_blocking(move || {
        let offline = replay_report(&path, &["--model", "demo", "--max-model-len", "4096"]);
        (offline, replay_report(&path, &["--target", &target]))
    });
    let (offline, online) = reports.await.unwrap();
    upstream.shut_down_server().await;
    let (offline, online) = (replayed_turns(&offline), replayed_turns(&online));
    assert_eq!(offline.len(), 3);
    for (turn, (ours, theirs)) in offline.iter().zip(&online).enumerate() {
        assert_eq!((ours.0.as_str(), ours.1), ("parser", turn as u64));
        assert_eq!((&ours.0, ours.1, ours.2, ours.3), (&theirs.0, theirs.1, theirs.2, theirs.3));
        if turn > 0 {
            assert!((ours.4 - waits[turn - 1]).abs() < 1e-3, "{offline:?} {waits:?}");
            assert!(theirs.4 >= waits[turn - 1] - 1.0, "{online:?} {waits:?}");
        }
    }
    assert!(offline.is_sorted_by_key(|turn| turn.2), "prompts grow: {offline:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_session_continue_the_prompt_that_they_extend() {
    let (upstream, url) = server(&[]).await;
    let proxy = Proxy::start(&url).await;
    // Token ids, so that prompts extend one another exactly.
    for prompt in [vec![1, 2, 3], vec![9, 8], vec![1, 2, 3, 4, 5], vec![9, 8, 7], vec![1, 2]] {
        let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 2, "ignore_eos": true});
        ask(&proxy.base, TEXT, &body).await;
    }
    let (_, path, _folder) = proxy.stop().await;
    upstream.shut_down_server().await;
    let report =
        tokio::task::spawn_blocking(move || replay_report(&path, &["--model", "demo"])).await;
    let report = report.unwrap();
    let turns: Vec<(Value, u64)> = report["per_request"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| (record["session_id"].clone(), record["input_length"].as_u64().unwrap()))
        .collect();
    let named = |name: &str| {
        let own = turns.iter().filter(|(id, _)| id == name);
        own.map(|(_, tokens)| *tokens).collect::<Vec<_>>()
    };
    assert_eq!((named("session_0"), named("session_1")), (vec![3, 5], vec![2, 3]), "{turns:?}");
    assert_eq!(turns.iter().filter(|(id, _)| id.is_null()).count(), 1, "{turns:?}");
}
