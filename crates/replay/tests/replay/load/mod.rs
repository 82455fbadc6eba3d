//! Tests workload files of every format, their error messages, and synthetic workloads.

mod agents;
mod results;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use tempfile::TempDir;
use vllm_sim_engine::SimTime;
use vllm_sim_replay::load::{self, SessionOrder, WorkloadFormat, WorkloadReadOptions};
use vllm_sim_replay::synth::{
    ArrivalProcess, RescheduledSource, SyntheticWorkload, TokenLengthDistribution,
};
use vllm_sim_replay::workload::{ClientSession, TurnLifecycleEvent, TurnPrompt, WorkloadSource};

fn file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join(name);
    fs::write(&path, text).expect("is written");
    (dir, path)
}

fn all(mut source: impl WorkloadSource) -> Vec<ClientSession> {
    let mut sessions = Vec::new();
    while let Some(session) = source.next_session().expect("is a session") {
        sessions.push(session);
    }
    sessions
}

fn read(text: &str, options: &WorkloadReadOptions) -> Result<Vec<ClientSession>, String> {
    let (_dir, path) = file("trace", text);
    let source = load::open_workload_files(&[path], options).map_err(|error| error.to_string())?;
    Ok(all(source))
}

fn auto(text: &str) -> Vec<ClientSession> {
    read(text, &WorkloadReadOptions::default()).expect("is a trace")
}

/// Returns the error message of a rejected text, without the path of its folder.
fn load_error_message(text: &str, options: &WorkloadReadOptions) -> String {
    let error = read(text, options).expect_err("is refused");
    error[error.find("trace").unwrap_or(0)..].to_owned()
}

/// Start in ms, and per turn: prompt tokens, output tokens, delay in ms, and whether the prompt
/// grows.
type Shown = (f64, Vec<(u32, u32, f64, bool)>);

fn shown(sessions: &[ClientSession]) -> Vec<Shown> {
    let turn = |turn: &vllm_sim_replay::workload::SessionTurn| {
        let (runs, grown) = match &turn.prompt {
            TurnPrompt::Whole(runs) => (runs, false),
            TurnPrompt::Grown(runs) => (runs, true),
        };
        let tokens = runs.iter().map(|run| run.len).sum();
        (tokens, turn.output, turn.delay_ns as f64 / 1e6, grown)
    };
    let session = |session: &ClientSession| {
        let turns = session.turns.iter().map(turn).collect();
        (session.start.as_nanos() as f64 / 1e6, turns)
    };
    sessions.iter().map(session).collect()
}

#[test]
fn bailian_rows_have_seconds_and_blocks_of_16_tokens() {
    let text = r#"
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 5, "type": "text", "turn": 1, "hash_ids": [7, 8, 9]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 61.0, "input_length": 60, "output_length": 6, "type": "text", "turn": 2, "hash_ids": [7, 8, 9, 10]}
"#;
    let sessions = auto(text);
    let expected: Vec<Shown> =
        vec![(0.0, vec![(40, 5, 0.0, false)]), (60_500.0, vec![(60, 6, 0.0, false)])];
    assert_eq!(shown(&sessions), expected);
    let blocks = |session: &ClientSession| match &session.turns[0].prompt {
        TurnPrompt::Whole(runs) | TurnPrompt::Grown(runs) => runs.clone(),
    };
    assert_eq!(blocks(&sessions[0])[..2], blocks(&sessions[1])[..2]);
    let (_dir, path) = file("trace", text);
    assert_eq!(load::detect_workload_format(&path).expect("is detected"), WorkloadFormat::Bailian);
    let far = text.replace("61.0", "1e10");
    let error = load_error_message(&far, &WorkloadReadOptions::default());
    assert!(error.starts_with("trace:3: timestamp"), "{error}");
}

#[test]
fn mooncake_rows_are_requests_and_sessions() {
    let text = r#"
{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}

{"created_time": 1500.5, "output_tokens": 6, "hash_ids": [7, 9], "session_id": "s", "priority": -2}
{"timestamp": 1250, "input_tokens": 512, "output_length": 7, "hash_ids": [7]}
{"timestamp": 2500.5, "input_length": 1000, "output_length": 8, "hash_ids": [7, 9], "session_id": "s"}
{"delay_ms": 3, "input_length": 10, "output_length": 9, "hash_ids": [1], "session_id": "s"}
"#;
    let sessions = auto(text);
    let expected: Vec<Shown> = vec![
        (0.0, vec![(600, 5, 0.0, false)]),
        (250.0, vec![(512, 7, 0.0, false)]),
        (500.5, vec![(1024, 6, 0.0, false), (1000, 8, 1000.0, false), (10, 9, 3.0, false)]),
    ];
    assert_eq!(shown(&sessions), expected);
    assert_eq!(sessions[2].turns[0].priority, -2);
    let first = |session: &ClientSession| match &session.turns[0].prompt {
        TurnPrompt::Whole(runs) => runs[0].id,
        TurnPrompt::Grown(_) => unreachable!("first turns are whole"),
    };
    assert_eq!(first(&sessions[0]), first(&sessions[1]), "equal ids, equal content");
    let in_file_order = WorkloadReadOptions {
        session_order: SessionOrder::AsListed,
        ..WorkloadReadOptions::default()
    };
    let starts: Vec<f64> = shown(&read(text, &in_file_order).expect("is a trace"))
        .iter()
        .map(|(start, _)| *start)
        .collect();
    assert_eq!(starts, [0.0, 500.5, 250.0]);
}

#[test]
fn delta_rows_grow_prompt_and_gzip_is_detected() {
    let text = "{\"timestamp\":0,\"output_length\":5,\"hash_ids\":[1],\"session_id\":\"a\"}\n\
                {\"delay\":2,\"input_length\":4,\"output_length\":5,\"hash_ids\":[2],\"session_id\":\"a\"}\n";
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("trace.jsonl");
    let packed = fs::File::create(&path).expect("is made");
    let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    packed.write_all(text.as_bytes()).expect("is written");
    packed.finish().expect("is written");
    let options = WorkloadReadOptions {
        format: "mooncake_delta".parse().expect("is known"),
        trace_block_size: 16,
        ..WorkloadReadOptions::default()
    };
    let sessions = all(load::open_workload_files(&[path], &options).expect("is a trace"));
    let expected: Vec<Shown> = vec![(0.0, vec![(16, 5, 0.0, false), (4, 5, 2.0, true)])];
    assert_eq!(shown(&sessions), expected);
}

#[test]
fn limited_sessions_have_at_least_the_reported_requests() {
    let row = |s: u32| {
        format!("{{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1],\"session_id\":\"{s}\"}}\n")
    };
    let text: String = [1, 1, 1, 2].map(row).concat();
    let (_dir, path) = file("t", &text);
    let options = WorkloadReadOptions { limit: Some(1), ..WorkloadReadOptions::default() };
    let source = load::open_workload_files(&[path], &options).expect("is a trace");
    let told = source.facts().max_requests.expect("is known");
    let turns: usize = all(source).iter().map(|session| session.turns.len()).sum();
    assert_eq!(turns, 3);
    assert!(told >= 3, "{told}");
}

#[test]
fn sorted_rows_are_streamed_and_counted() {
    let row = |i: u32| format!("{{\"timestamp\":{i},\"output_length\":1,\"hash_ids\":[{i}]}}\n");
    let text: String = (10..1010).map(row).collect();
    let (_dir, path) = file("t", &text);
    let mut source =
        load::open_workload_files(&[path], &WorkloadReadOptions::default()).expect("is a trace");
    assert_eq!(source.facts().max_requests, Some(1000));
    let mut last = SimTime::ZERO;
    while let Some(session) = source.next_session().expect("is a session") {
        last = session.start;
    }
    assert_eq!(last, SimTime::from_millis(999));
}

#[test]
fn invalid_line_error_names_field_and_value() {
    let good = "{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1]}\n";
    let with = |bad: &str| format!("{good}\n{good}{bad}\n{good}");
    let mooncake =
        WorkloadReadOptions { format: WorkloadFormat::Mooncake, ..WorkloadReadOptions::default() };
    for (bad, problem) in [
        ("{\"timestamp\":0,", "is not JSON: EOF"),
        ("[1]", "is [1], must be an object"),
        ("{\"hash_ids\":[1]}", "output_length is missing"),
        ("{\"output_length\":1}", "hash_ids is missing"),
        (
            "{\"output_length\":\"x\",\"hash_ids\":[1]}",
            "output_length is \"x\", must be a whole number from 0 to 67108864",
        ),
        (
            "{\"output_length\":1,\"hash_ids\":[1,-2]}",
            "hash_ids[1] is -2, must be a whole number of 0 or more",
        ),
        (
            "{\"output_length\":1,\"hash_ids\":[1],\"input_length\":513}",
            "input_length is 513, must be from 1 to 512 (1 hash_ids of 512 tokens)",
        ),
        (
            "{\"output_length\":1,\"hash_ids\":[1],\"delay\":5,\"session_id\":\"a\"}",
            "delay is not 0, which it must be in the first row of a session",
        ),
        (
            "{\"output_length\":2,\"hash_ids\":[1],\"output_token_ids\":[1]}",
            "output_token_ids has 1 entries, must have output_length = 2",
        ),
    ] {
        let found = load_error_message(&with(bad), &mooncake);
        assert!(found.starts_with(&format!("trace:4: {problem}")), "{found}");
    }
}

#[test]
fn out_of_range_times_are_rejected() {
    let row = |field: &str, ms: &str| {
        format!("{{\"{field}\":{ms},\"session_id\":\"a\",\"output_length\":1,\"hash_ids\":[1]}}\n")
    };
    let first = row("timestamp", "0");
    let allowed = "milliseconds, from 0 to 9200000000000 of them (292 years)";
    for (field, ms, shown) in [
        ("timestamp", "1e300", "1e+300"),
        ("timestamp", "-5", "-5"),
        ("timestamp", "1732660000000000", "1732660000000000"),
        ("delay", "9.3e12", "9300000000000.0"),
    ] {
        let found =
            load_error_message(&(first.clone() + &row(field, ms)), &WorkloadReadOptions::default());
        let expected = format!("trace:2: {field} is {shown}, must be {allowed}");
        assert!(found.starts_with(&expected), "{found}");
    }
    for ms in ["null", "1732660000000"] {
        assert_eq!(auto(&(first.clone() + &row("timestamp", ms))).len(), 1);
    }
    let burst = "Timestamp,Model,Request tokens,Response tokens\n5,m,1,1\n1e300,m,1,1\n";
    let found = load_error_message(burst, &WorkloadReadOptions::default());
    let expected = "trace:3: Timestamp is \"1e300\", must be seconds, from 0 to 9200000000 of them";
    assert!(found.starts_with(expected), "{found}");
}

#[test]
fn byte_order_mark_is_skipped() {
    let row = r#"{"timestamp":1,"input_length":10,"output_length":5,"hash_ids":[1]}"#;
    assert_eq!(auto(&format!("\u{feff}{row}\n")).len(), 1);
}

#[test]
fn null_prompt_length_is_rejected() {
    let row = r#"{"timestamp":1,"input_length":null,"output_length":5,"hash_ids":[1]}"#;
    let found = load_error_message(row, &WorkloadReadOptions::default());
    let expected = "trace:1: input_length is null, must be a whole number of tokens, or absent";
    assert_eq!(found, expected);
}

#[test]
fn surplus_fields_of_a_csv_row_are_rejected() {
    let header = "timestamp,prompt_tokens,output_tokens\n0,10,5\n";
    let surplus = ",x".repeat(1_000_000);
    for (text, fields, most) in [
        (format!("{header}1,5,5{surplus}\n"), 1_000_003, 3),
        (
            format!("Timestamp,Model,Request tokens,Response tokens\n5,m,1,1\n6,m,1,1{surplus}\n"),
            1_000_004,
            4,
        ),
    ] {
        let found = load_error_message(&text, &WorkloadReadOptions::default());
        let expected =
            format!("trace:3: has {fields} fields, must have at most {most} as the header has");
        assert_eq!(found, expected);
    }
}

#[test]
fn csv_columns_that_contradict_each_other_are_rejected() {
    for (text, expected) in [
        (
            "arrival_s,prompt_tokens,output_tokens,cached_tokens\n0,10,5,10\n1,10,5,11\n",
            "trace:3: cached_tokens is 11, must be at most the 10 tokens of the prompt",
        ),
        (
            "arrival_s,arrival_time_ms,prompt_tokens,output_tokens\n0,0,10,5\n",
            "trace:1: has the columns arrival_time_ms and arrival_s, must have one",
        ),
    ] {
        assert_eq!(load_error_message(text, &WorkloadReadOptions::default()), expected);
    }
    // A time of another kind may stand beside the arrival.
    assert_eq!(auto("arrival_s,sent_s,prompt_tokens,output_tokens\n0,9,10,5\n").len(), 1);
}

#[test]
fn csv_columns_that_the_workload_lacks_are_facts() {
    let unused = |text: &str| {
        let (_dir, path) = file("trace", text);
        let source = load::open_workload_files(&[path], &WorkloadReadOptions::default());
        let names = source.expect("is a workload").facts().unused_columns;
        names.names().collect::<Vec<_>>().join(" ")
    };
    let table = |rows: &str| {
        format!(
            "arrival_s,prompt_tokens,output_tokens,session_id,turn,priority,cached_tokens\n{rows}"
        )
    };
    assert_eq!(unused(&table("0,9,5,a,0,0,0\n1,9,5,b,0,,\n")), "");
    assert_eq!(unused(&table("0,9,5,a,0,0,0\n1,9,5,a,1,0,0\n")), "session_id turn");
    assert_eq!(unused(&table("0,9,5,,,2,0\n1,9,5,,,0,4\n")), "priority cached_tokens");
    let shared = "arrival_s,prompt_tokens,output_tokens,prefix_id,cached_tokens\n0,9,5,p,8\n";
    assert_eq!(unused(shared), "");
}

#[test]
fn agent_requests_wait_for_dependencies() {
    let text = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":64,"hash_id_scope":"local","source":{"format":"t","digest":"d"}}
{"request_id":"late","play_id":"p","session_id":"x","input_length":64,"output_length":2,"hash_ids":[1],"not_before_ms":0,"dependencies":[{"request_id":"root","trigger":"completion","delay_ms":5,"relation":"join"},{"request_id":"child","trigger":"dispatch"}]}
{"request_id":"root","play_id":"p","session_id":"r","input_length":64,"output_length":2,"hash_ids":[1],"not_before_ms":10}
{"request_id":"child","play_id":"p","session_id":"c","input_length":60,"output_length":2,"hash_ids":[1],"not_before_ms":30,"dependencies":[{"request_id":"root","trigger":"dispatch","delay_ms":1,"relation":"spawn"}]}
{"request_id":"other","play_id":"q","session_id":"c","input_length":64,"output_length":2,"hash_ids":[1],"not_before_ms":10}
"#;
    let sessions = auto(text);
    let names: Vec<&str> =
        sessions.iter().map(|s| s.turns[0].request_id.as_deref().expect("has a name")).collect();
    assert_eq!(names, ["root", "other", "child", "late"]);
    use TurnLifecycleEvent::{Completion, Dispatch};
    let after: Vec<Vec<(u64, TurnLifecycleEvent, u64)>> = sessions
        .iter()
        .map(|s| s.turns[0].after.iter().map(|d| (d.session, d.trigger, d.delay_ns)).collect())
        .collect();
    assert_eq!(after[2], [(0, Dispatch, 1_000_000)]);
    assert_eq!(after[3], [(0, Completion, 5_000_000), (2, Dispatch, 0)]);
    let run = |i: usize| match &sessions[i].turns[0].prompt {
        TurnPrompt::Whole(runs) => runs[0].id,
        TurnPrompt::Grown(_) => unreachable!("they are whole"),
    };
    assert_eq!(run(0), run(2), "one play");
    assert_ne!(run(0), run(1), "two plays");
    let ring = r#"{"request_id":"a","output_length":1,"hash_ids":[1],"wait_for":["b"],"tool_wait_ms":4}
{"request_id":"b","output_length":1,"hash_ids":[1],"wait_for":["a"]}"#;
    assert_eq!(
        load_error_message(ring, &WorkloadReadOptions::default()),
        "trace:1: waits for itself through others"
    );
    let unknown = r#"{"request_id":"a","output_length":1,"hash_ids":[1],"wait_for":["b"]}"#;
    assert_eq!(
        load_error_message(unknown, &WorkloadReadOptions::default()),
        "trace:1: waits for \"b\", which does not exist"
    );
}

#[test]
fn applied_compute_rows_become_growing_sessions() {
    let text = r#"{"num_turns":2,"input_prompt_length":100,"assistant_response_length":[10,20],"tool_call_output_length":[30,40],"tool_call_latency":[0.5,1.25],"final_assistant_response_length":50}"#;
    let (_dir, path) = file("t", text);
    let source =
        load::open_workload_files(&[path], &WorkloadReadOptions::default()).expect("is a trace");
    assert!(source.facts().has_no_start_times);
    let expected: Vec<Shown> =
        vec![(0.0, vec![(100, 10, 0.0, false), (140, 20, 500.0, false), (200, 50, 1250.0, false)])];
    assert_eq!(shown(&all(source)), expected);
    let short = text.replace("[10,20]", "[10]");
    assert_eq!(
        load_error_message(&short, &WorkloadReadOptions::default()),
        "trace:1: assistant_response_length has 1 entries, must have num_turns = 2"
    );
}

#[test]
fn dynamo_request_traces_become_requests_or_sessions() {
    let row = |id: &str, at: u64, context: &str| {
        format!(
            "{{\"schema\":\"dynamo.request.trace.v1\",\"event_type\":\"request_end\",{context}\
             \"request\":{{\"request_id\":\"{id}\",\"request_received_ms\":{at},\"total_time_ms\":100,\
             \"output_tokens\":3,\"replay\":{{\"trace_block_size\":64,\"input_length\":70,\
             \"input_sequence_hashes\":[1,18446744073709551615]}}}}}}\n"
        )
    };
    let plain = row("b", 2000, "") + &row("a", 1000, "");
    let expected: Vec<Shown> =
        vec![(0.0, vec![(70, 3, 0.0, false)]), (1000.0, vec![(70, 3, 0.0, false)])];
    assert_eq!(shown(&auto(&plain)), expected);
    let context = "\"agent_context\":{\"session_id\":\"s\"},";
    let agents = row("a", 1000, context) + &row("b", 1700, context);
    let expected: Vec<Shown> = vec![(0.0, vec![(70, 3, 0.0, false), (70, 3, 600.0, false)])];
    assert_eq!(shown(&auto(&agents)), expected);
    assert_eq!(
        load_error_message(&(plain + &agents), &WorkloadReadOptions::default()),
        "trace:3: agent_context must be in every record or in none"
    );
}

#[test]
fn tables_of_public_traces_are_read() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                 2023-11-16 18:17:03.9799600,4808,10\n\
                 2023-11-16 18:17:04.0319600,3180,8\n";
    let expected: Vec<Shown> =
        vec![(0.0, vec![(4808, 10, 0.0, false)]), (52.0, vec![(3180, 8, 0.0, false)])];
    assert_eq!(shown(&auto(azure)), expected);
    let burst = "\u{feff}Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5,ChatGPT,472,18,490,Conversation log\n\
                 45,ChatGPT,1087,0,1087,Conversation log\n\
                 118,\"GPT-4, new\",417,276,693,API log\n";
    let expected: Vec<Shown> =
        vec![(0.0, vec![(472, 18, 0.0, false)]), (113_000.0, vec![(417, 276, 0.0, false)])];
    assert_eq!(shown(&auto(burst)), expected);
    for (bad, problem) in [
        (
            azure.replace("3180", "-3"),
            "trace:3: ContextTokens is \"-3\", must be a whole number from 0 to 67108864",
        ),
        (
            azure.replace("2023-11-16 18:17:04.0319600", "noon"),
            "trace:3: TIMESTAMP is \"noon\", must be a time such as 2023-11-16 18:15:46.6805900",
        ),
    ] {
        assert_eq!(load_error_message(&bad, &WorkloadReadOptions::default()), problem);
    }
    let headless =
        WorkloadReadOptions { format: WorkloadFormat::Azure, ..WorkloadReadOptions::default() };
    assert_eq!(load_error_message("a,b\n1,2\n", &headless), "trace:1: has no column \"Timestamp\"");
}

#[test]
fn conversations_are_sessions_that_grow() {
    let text = r#"[{"id":"x","conversations":[{"from":"human","value":"12345678"},{"from":"gpt","value":"1234"},
        {"from":"human","value":"1234"},{"from":"gpt","value":"12345"}]},
        {"messages":[{"role":"user","content":"no answer"}]}]"#;
    let sessions = auto(text);
    let expected: Vec<Shown> = vec![(0.0, vec![(2, 1, 0.0, false), (1, 2, 0.0, true)])];
    assert_eq!(shown(&sessions), expected);
    assert_eq!(sessions[0].turns[1].text.as_deref(), Some("1234"));
    let (_dir, path) = file("t", text);
    let source =
        load::open_workload_files(&[path], &WorkloadReadOptions::default()).expect("is a trace");
    assert!(source.facts().has_no_start_times);
    let timed = all(RescheduledSource::new(source, ArrivalProcess::Interval(20.0), 1));
    assert_eq!(timed[0].start, SimTime::ZERO);
}

#[test]
fn an_unknown_format_is_an_error() {
    for text in ["", "hello", "{\"a\":1}", "[3]", "a,b\n"] {
        let error = load_error_message(text, &WorkloadReadOptions::default());
        assert!(error.contains("has none of the formats") || error.contains("is empty"), "{error}");
    }
    let error =
        load::open_workload_files(&[PathBuf::from("nowhere")], &WorkloadReadOptions::default())
            .err()
            .expect("there is none");
    assert!(error.to_string().starts_with("nowhere: "), "{error}");
    let error = "zip".parse::<WorkloadFormat>().expect_err("is unknown");
    assert!(error.contains("mooncake-delta"), "{error}");
}

#[test]
fn synthetic_workloads_match_dynamo() {
    let synthetic = SyntheticWorkload {
        sessions: 3,
        input: TokenLengthDistribution::Constant(100),
        output: TokenLengthDistribution::Constant(10),
        arrivals: ArrivalProcess::Poisson(12.0),
        shared_prefix_ratio: 0.5,
        prefix_groups: 8,
        block: 16,
        ..SyntheticWorkload::default()
    };
    let sessions = all(synthetic.clone().into_source().expect("makes sense"));
    let starts: Vec<u64> = sessions.iter().map(|s| s.start.as_nanos()).collect();
    assert_eq!(starts, [0, 62_310_385, 127_516_283]);
    let runs = |i: usize| match &sessions[i].turns[0].prompt {
        TurnPrompt::Whole(runs) => runs.iter().map(|run| (run.id, run.len)).collect::<Vec<_>>(),
        TurnPrompt::Grown(_) => unreachable!("they are whole"),
    };
    // Groups 1, 4, 1: seven blocks, round(3.5) = 4 of them shared; the other ids are consecutive.
    let shared = |group: u64, b: u64| (0xD00D << 48 | group << 32 | b, 16);
    let expected: Vec<(u64, u32)> =
        (0..4).map(|b| shared(1, b)).chain([(1, 16), (2, 16), (3, 4)]).collect();
    assert_eq!(runs(0), expected);
    assert_eq!(runs(1)[..4], (0..4).map(|b| shared(4, b)).collect::<Vec<_>>());
    assert_eq!(runs(2)[3..5], [shared(1, 3), (7, 16)]);
    let error = SyntheticWorkload { shared_prefix_ratio: 1.5, ..synthetic };
    let error = error.into_source().expect_err("makes no sense");
    assert_eq!(error.to_string(), "shared prefix ratio: 1.5, must be from 0 to 1");
}

#[test]
fn synthetic_sessions_grow_and_have_think_time() {
    let synthetic = SyntheticWorkload {
        sessions: 2,
        input: "normal:200:20".parse().expect("is known"),
        turns: TokenLengthDistribution::Constant(3),
        grows_by: Some(TokenLengthDistribution::Uniform(10, 20)),
        think_ms: 50.0,
        think_varies: true,
        ..SyntheticWorkload::default()
    };
    let sessions = all(synthetic.clone().into_source().expect("makes sense"));
    let again = all(synthetic.into_source().expect("makes sense"));
    assert_eq!(sessions, again, "one seed, one workload");
    for (_, turns) in shown(&sessions) {
        assert!(!turns[0].3 && turns[0].2 == 0.0);
        for turn in &turns[1..] {
            assert!(turn.3 && (10..=20).contains(&turn.0) && turn.2 > 0.0, "{turn:?}");
        }
    }
}
