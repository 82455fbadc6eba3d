//! A server that answers from a dataset.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig};
use vllm_sim_dataset::{hash_completion_prompt, hash_conversation, hash_prompt_tokens};
use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer};

use crate::dataset::{Made, SCHEMA, insert, tokens};

/// A server with llm-d's command line whose tokens are the simulated tokenizer's.
struct Sim {
    server: SimulatorServer,
    base: String,
    client: reqwest::Client,
}

impl Sim {
    async fn start(flags: &[&str]) -> Result<Self, String> {
        let mut all = vec!["--model", "demo", "--host", "127.0.0.1", "--seed", "1"];
        all.extend(flags);
        let mut loaded =
            LoadedConfig::from_flags(CliMode::Llmd, &all).map_err(|e| e.to_string())?;
        loaded.config.server.port = 0;
        let server = SimulatorServer::start_server(loaded).await.map_err(|e| e.to_string())?;
        // The client wants one even without TLS; a second call finds the first one's.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let base = format!("http://{}", server.address.unwrap());
        let client = reqwest::Client::new();
        Ok(Self { server, base, client })
    }

    async fn on(made: &Made, flags: &[&str]) -> Self {
        let path = made.path.display().to_string();
        let mut all = vec!["--dataset-path", &path];
        all.extend(flags);
        Self::start(&all).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let url = format!("{}{path}", self.base);
        let sent = self.client.post(url).json(&body).send().await.unwrap();
        serde_json::from_str(&sent.text().await.unwrap()).unwrap()
    }

    /// Text, finish reason and number of tokens of a completion.
    async fn complete(&self, mut body: Value) -> (String, String, u64) {
        body["model"] = "demo".into();
        let answer = self.post("/v1/completions", body).await;
        let choice = &answer["choices"][0];
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
        (word(&choice["text"]), word(&choice["finish_reason"]), tokens)
    }
}

/// Rows of the newer form: the text of a prompt, and of each token of its reply.
fn texts(rows: &[(&str, &[&str])]) -> Made {
    let made = tokens(&[]);
    let tokenizer = Tokenizer::new_simulated();
    let file = made.connect();
    for (prompt, reply) in rows {
        let ids: Vec<u32> = (1..=reply.len() as u32).collect();
        let json = json!({"Tokens": ids, "Strings": reply}).to_string();
        let hash = hash_prompt_tokens(&tokenizer.encode(prompt, SpecialTokenHandling::With));
        insert(&file, &hash, &json, ids.len() as u32);
    }
    made
}

const TEST: &str = "This is a test.";

#[tokio::test]
async fn completions_and_chats_answer_what_was_recorded() {
    let made = texts(&[
        (TEST, &["So ", "it ", "is."]),
        (&format!("### user: {TEST}\n"), &["A ", "chat."]),
    ]);
    for flags in [&[][..], &["--dataset-in-memory"]] {
        let sim = Sim::on(&made, flags).await;
        let said = sim.complete(json!({"prompt": TEST})).await;
        assert_eq!(said, ("So it is.".into(), "stop".into(), 3));
        // The ids of the prompt are its name, however they arrive.
        let ids = Tokenizer::new_simulated().encode(TEST, SpecialTokenHandling::With);
        let said = sim.complete(json!({"prompt": ids})).await;
        assert_eq!(said.0, "So it is.");

        let user = json!([{"role": "user", "content": TEST}]);
        let chat = json!({"model": "demo", "messages": user});
        let said = sim.post("/v1/chat/completions", chat).await;
        assert_eq!(said["choices"][0]["message"]["content"], "A chat.");
        let response = json!({"model": "demo", "input": TEST});
        let said = sim.post("/v1/responses", response).await;
        assert_eq!(said["output"][0]["content"][0]["text"], "A chat.", "{said}");
        let message = json!({"model": "demo", "max_tokens": 20, "messages": user});
        let said = sim.post("/v1/messages", message).await;
        assert_eq!(said["content"][0]["text"], "A chat.", "{said}");
        sim.server.shut_down_server().await;
    }
}

#[tokio::test]
async fn max_tokens_truncates_and_ignore_eos_extends() {
    let made = texts(&[(TEST, &["So ", "it ", "is."])]);
    let sim = Sim::on(&made, &[]).await;
    let said = sim.complete(json!({"prompt": TEST, "max_tokens": 2})).await;
    assert_eq!(said, ("So it ".into(), "length".into(), 2));
    let said = sim.complete(json!({"prompt": TEST, "max_tokens": 3})).await;
    assert_eq!(said, ("So it is.".into(), "length".into(), 3));
    let body = json!({"prompt": TEST, "max_tokens": 9, "ignore_eos": true});
    let (text, reason, tokens) = sim.complete(body).await;
    assert!(text.starts_with("So it is.") && text.len() > 9, "{text}");
    assert_eq!((reason.as_str(), tokens), ("length", 9));
    let body = json!({"prompt": TEST, "max_tokens": 9, "stop": ["is"]});
    assert_eq!(sim.complete(body).await, ("So it ".into(), "stop".into(), 3));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn unrecorded_prompt_gets_other_reply() {
    let made = texts(&[(TEST, &["So ", "it ", "is."]), ("Hi", &["Ho"])]);
    let sim = Sim::on(&made, &[]).await;
    for number in 0..5 {
        let said = sim.complete(json!({"prompt": format!("Question {number}")})).await;
        assert!(["So it is.", "Ho"].contains(&said.0.as_str()), "{said:?}");
    }
    let said = sim.complete(json!({"prompt": "Question", "max_tokens": 2})).await;
    assert_eq!(said.0, "Ho", "the one that fits");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn lookup_ignores_fields_that_llmd_drops() {
    // Its tokens of `Café? Já` are those of `Caf? J`.
    let made = texts(&[("Caf? J", &["Oui"])]);
    let sim = Sim::on(&made, &[]).await;
    let said = sim.complete(json!({"prompt": "Café? Já"})).await;
    assert_eq!(said.0, "Oui");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn version_0_6_is_looked_up_by_text() {
    let made = Made::at("old.sqlite3");
    let file = made.connect();
    file.execute_batch(&format!("CREATE TABLE llmd {SCHEMA}")).unwrap();
    insert(&file, &hash_completion_prompt(TEST), r#"["It ","was."]"#, 2);
    let chat = [("system", "Be  brief."), ("user", "Hi"), ("assistant", "Yes?"), ("user", TEST)];
    insert(&file, &hash_conversation(chat), r#"["Brief","ly","."]"#, 3);
    let sim = Sim::on(&made, &[]).await;
    let said = sim.complete(json!({"prompt": TEST})).await;
    assert_eq!(said, ("It was.".into(), "stop".into(), 2));
    let messages: Vec<Value> =
        chat.map(|(role, content)| json!({"role": role, "content": content})).to_vec();
    let chat = json!({"model": "demo", "messages": messages});
    let said = sim.post("/v1/chat/completions", chat).await;
    assert_eq!(said["choices"][0]["message"]["content"], "Briefly.");
    assert_eq!(said["usage"]["completion_tokens"], 3);
    // That version's reply to the rest is built in.
    let (text, ..) = sim.complete(json!({"prompt": "Who?", "max_tokens": 5})).await;
    assert!(!text.is_empty() && !text.contains("was"), "{text}");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn recorded_reasoning_is_separate_with_a_reasoning_parser() {
    let chat = format!("### user: {TEST}\n");
    let made = texts(&[(&chat, &["Hm ", "well. ", "It ", "is."])]);
    let recording = "CREATE TABLE llmd_recording (id INTEGER PRIMARY KEY, token_us JSON, \
                     reasoning_tokens INTEGER); \
                     INSERT INTO llmd_recording VALUES (1, '[1,2,3,4]', 2)";
    made.connect().execute_batch(recording).unwrap();
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": TEST}]});
    for in_memory in [&[][..], &["--dataset-in-memory"]] {
        let sim = Sim::on(&made, in_memory).await;
        let said = sim.post("/v1/chat/completions", body.clone()).await;
        assert_eq!(said["choices"][0]["message"]["content"], "Hm well. It is.");
        sim.server.shut_down_server().await;
        let parsed = [in_memory, &["--replay-timing", "--reasoning-parser", "qwen3"]].concat();
        let sim = Sim::on(&made, &parsed).await;
        let said = sim.post("/v1/chat/completions", body.clone()).await;
        let message = &said["choices"][0]["message"];
        assert_eq!(message["reasoning"], "Hm well. ");
        assert_eq!(message["content"], "It is.");
        assert_eq!(said["usage"]["completion_tokens"], 4);
        sim.server.shut_down_server().await;
    }
}

#[tokio::test]
async fn a_stream_has_an_event_per_recorded_token() {
    let made = texts(&[(TEST, &["So it", " ", "is."])]);
    let sim = Sim::on(&made, &[]).await;
    let body = json!({"model": "demo", "prompt": TEST, "stream": true});
    let url = format!("{}/v1/completions", sim.base);
    let answer = sim.client.post(url).json(&body).send().await.unwrap();
    let answer = answer.text().await.unwrap();
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: {"));
    let texts: Vec<String> = events
        .map(|event| serde_json::from_str::<Value>(&format!("{{{event}")).unwrap())
        .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
        .filter(|text| !text.is_empty())
        .collect();
    assert_eq!(texts, ["So it", " ", "is."]);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn unusable_dataset_stops_start_without_fallback() {
    let path = Path::new("none/such.sqlite3").display().to_string();
    let flags = ["--dataset-path", &path];
    let error = Sim::start(&flags).await.err();
    assert_eq!(error.unwrap(), "dataset none/such.sqlite3 does not exist");
    let flags = [flags[0], flags[1], "--dataset-fallback"];
    let sim = Sim::start(&flags).await.unwrap();
    let said = sim.complete(json!({"prompt": TEST, "max_tokens": 4})).await;
    assert!(!said.0.is_empty());
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn two_servers_read_one_file() {
    let made = texts(&[(TEST, &["So ", "it ", "is."])]);
    let both = [Sim::on(&made, &[]).await, Sim::on(&made, &[]).await];
    for sim in &both {
        assert_eq!(sim.complete(json!({"prompt": TEST})).await.0, "So it is.");
    }
    for sim in both {
        sim.server.shut_down_server().await;
    }
}

/// Prints the latency that 100,000 rows add; the bound is loose, for a busy machine.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
async fn lookup_in_100_000_rows_is_under_1_ms() {
    let made = texts(&[(TEST, &["So ", "it ", "is."])]);
    let mut file = made.connect();
    let transaction = file.transaction().unwrap();
    for row in 0..100_000u32 {
        let reply = json!({"Tokens": [row], "Strings": ["no"]}).to_string();
        insert(&transaction, &hash_prompt_tokens(&[row]), &reply, 1);
    }
    transaction.commit().unwrap();
    let mut medians = Vec::new();
    for sim in [Sim::on(&made, &[]).await, Sim::start(&[]).await.unwrap()] {
        let mut took = Vec::new();
        for _ in 0..40 {
            let start = Instant::now();
            sim.complete(json!({"prompt": TEST, "max_tokens": 3})).await;
            took.push(start.elapsed());
        }
        took.sort();
        medians.push(took[20]);
        sim.server.shut_down_server().await;
    }
    let added = medians[0].saturating_sub(medians[1]);
    println!("median {:?} with the dataset, {:?} without", medians[0], medians[1]);
    assert!(added.as_micros() < 1000, "{medians:?}");
}
