//! Tests agent traces with sub-agents: Weka's, and OpenTelemetry spans.

use vllm_sim_replay::workload::TurnDependency;

use super::*;

/// Index of the session, index of its turn, whether it waits for the end, and the delay in ms.
type Wait = (u64, u32, bool, f64);

fn waits(after: &[TurnDependency]) -> Vec<Wait> {
    let wait = |on: &TurnDependency| {
        let at_end = on.trigger == TurnLifecycleEvent::Completion;
        (on.session, on.turn, at_end, on.delay_ns as f64 / 1e6)
    };
    after.iter().map(wait).collect()
}

fn runs_of(session: &ClientSession, turn: usize) -> Vec<u64> {
    match &session.turns[turn].prompt {
        TurnPrompt::Whole(runs) | TurnPrompt::Grown(runs) => {
            runs.iter().map(|run| run.id).collect()
        }
    }
}

fn ids(sessions: &[ClientSession]) -> Vec<&str> {
    sessions.iter().map(|session| session.id.as_deref().expect("has an id")).collect()
}

fn request(t: f64, took: f64, input: u32, output: u32, hash_ids: &str) -> String {
    format!(
        r#"{{"t":{t},"type":"s","model":"m","in":{input},"out":{output},"hash_ids":[{hash_ids}],"api_time":{took}}}"#
    )
}

/// A parent of four requests with a sub-agent in relative times, one in absolute times that ends
/// later, and one in the background.
fn weka_run() -> String {
    let sub = |t: f64, name: &str, rest: &str, requests: &[String]| {
        let requests = requests.join(",");
        format!(
            r#"{{"t":{t},"type":"subagent","agent_id":"{name}","subagent_type":"Explore",{rest},"models":["m"],"requests":[{requests}]}}"#
        )
    };
    let requests = [
        request(0.0, 2.0, 130, 5, "1,2"),
        sub(
            3.0,
            "a",
            r#""duration_ms":5000,"status":"completed""#,
            &[request(0.0, 1.0, 64, 3, "9"), request(2.5, 1.0, 128, 4, "9,10")],
        ),
        sub(
            1.0,
            "b",
            r#""duration_ms":null,"status":"completed""#,
            &[request(1.0, 8.5, 64, 1, "11")],
        ),
        sub(
            4.0,
            "c",
            r#""duration_ms":null,"status":"async_launched""#,
            &[request(4.5, 0.5, 64, 1, "1")],
        ),
        request(9.0, 1.0, 192, 7, "1,2,3"),
        request(9.5, 0.0, 0, 0, ""),
        request(12.0, 1.0, 200, 0, "1,2,3,4"),
    ];
    let requests = requests.join(",");
    format!(
        r#"{{"id":"run","models":["m"],"block_size":64,"hash_id_scope":"local","requests":[{requests}]}}"#
    )
}

#[test]
fn weka_sub_agents_wait_for_their_parent_and_are_awaited() {
    let (_dir, path) = file("trace", &weka_run());
    let source =
        load::open_workload_files(&[path], &WorkloadReadOptions::default()).expect("is a trace");
    assert!(source.facts().has_agent_runs && source.facts().has_dependencies);
    assert_eq!(source.facts().left_out_rows, 1, "the request without a prompt");
    let sessions = all(source);
    assert_eq!(ids(&sessions), ["run", "run::sa:a", "run::sa:b", "run::sa:c"]);
    let expected: Vec<Shown> = vec![
        (0.0, vec![(130, 5, 0.0, false), (192, 7, 7000.0, false), (200, 1, 2000.0, false)]),
        (0.0, vec![(64, 3, 0.0, false), (128, 4, 1500.0, false)]),
        (0.0, vec![(64, 1, 0.0, false)]),
        (0.0, vec![(64, 1, 0.0, false)]),
    ];
    assert_eq!(shown(&sessions), expected);
    let of = |session: usize, turn: usize| waits(&sessions[session].turns[turn].after);
    assert_eq!(of(0, 0), []);
    assert_eq!(of(1, 0), [(0, 0, true, 1000.0)], "3 s after the start, the parent took 2 s");
    assert_eq!(of(2, 0), [(0, 0, false, 1000.0)], "while the parent's request runs");
    assert_eq!(of(3, 0), [(0, 0, true, 2500.0)]);
    // The first sub-agent ends at 8 s, the second at 9.5 s; nothing waits for the third.
    assert_eq!(of(0, 1), [(1, 1, true, 2500.0)]);
    assert_eq!(of(0, 2), [(2, 0, true, 2500.0)]);
}

/// A run whose list has the requests of three agents and a compaction: a request for a title, the
/// agent (whose prompt shrinks at 20 s), one that forks from its prompt, and one on its own.
fn flat_weka_run() -> String {
    let requests = [
        request(0.0, 0.5, 64, 4, "90"),
        request(1.0, 1.0, 128, 100, "1,2"),
        request(3.0, 5.0, 128, 100, "1,9"),
        request(4.0, 1.0, 192, 100, "1,2,3"),
        request(5.0, 1.0, 64, 100, "50"),
        request(6.0, 1.0, 256, 100, "1,2,3,4"),
        request(9.0, 1.0, 192, 100, "1,9,10"),
        request(12.0, 1.0, 320, 100, "1,2,3,4,5"),
        request(20.0, 1.0, 192, 100, "1,2,70"),
        request(22.0, 1.0, 256, 100, "1,2,70,71"),
    ];
    let requests = requests.join(",");
    format!(r#"{{"id":"run","models":["m"],"block_size":64,"requests":[{requests}]}}"#)
}

#[test]
fn weka_lists_of_several_agents_are_split_on_request() {
    let split = WorkloadReadOptions { format: WorkloadFormat::WekaSplit, ..Default::default() };
    assert_eq!(ids(&auto(&flat_weka_run())), ["run"], "one after the other");
    let sessions = read(&flat_weka_run(), &split).expect("is a trace");
    assert_eq!(ids(&sessions), ["run", "run::fa:000", "run::fa:001"]);
    let inputs: Vec<Vec<u32>> = shown(&sessions)
        .iter()
        .map(|(_, turns)| turns.iter().map(|turn| turn.0).collect())
        .collect();
    let main = vec![64, 128, 192, 256, 320, 192, 256];
    assert_eq!(inputs, [main, vec![128, 192], vec![64]], "the compaction stays with its agent");
    let of = |session: usize, turn: usize| waits(&sessions[session].turns[turn].after);
    assert_eq!(of(1, 0), [(0, 1, true, 1000.0)], "3 s; the agent's request ended at 2 s");
    assert_eq!(of(2, 0), [(0, 2, true, 0.0)], "5 s; the agent's request ended then");
    // The forked agent ends at 10 s, the other at 6 s.
    assert_eq!(of(0, 3), [(2, 0, true, 0.0)]);
    assert_eq!(of(0, 4), [(1, 1, true, 2000.0)]);
}

#[test]
fn weka_requests_without_a_run_are_refused() {
    let row = request(0.0, 1.0, 64, 3, "9");
    let array = format!("[\n{row},\n{row}\n]");
    let told = "is a request of a Weka trace without its run";
    for text in [row.clone(), [row.as_str(), row.as_str()].join("\n"), array] {
        for format in [WorkloadFormat::Auto, WorkloadFormat::Weka, WorkloadFormat::WekaSplit] {
            let options = WorkloadReadOptions { format, ..Default::default() };
            let found = load_error_message(&text, &options);
            assert!(found.contains(told), "{found}");
        }
    }
}

#[test]
fn weka_hash_ids_are_blocks_of_their_run() {
    let text = [weka_run(), weka_run().replace("\"run\"", "\"other\"")].join("\n");
    let sessions = auto(&text);
    assert_eq!(sessions.len(), 8);
    let prompt = |session: usize, turn: usize| runs_of(&sessions[session], turn);
    assert_eq!(prompt(0, 0)[..2], prompt(0, 1)[..2], "the prompt grows");
    assert_eq!(prompt(3, 0)[0], prompt(0, 0)[0], "agents of a run share blocks");
    assert_ne!(prompt(4, 0)[0], prompt(0, 0)[0], "local ids of two runs");
    assert_eq!((prompt(0, 0).len(), prompt(0, 2).len()), (3, 4), "tokens that fill no block");
    let global = text.replace("\"local\"", "\"global\"");
    let sessions = auto(&global);
    assert_eq!(runs_of(&sessions[4], 0)[..2], runs_of(&sessions[0], 0)[..2]);
    assert_ne!(runs_of(&sessions[4], 0)[2], runs_of(&sessions[0], 0)[2]);
}

#[test]
fn weka_documents_may_span_lines_and_are_limited_by_runs() {
    let pretty = weka_run().replace("[{", "[\n {").replace("},{", "},\n {");
    assert_eq!(auto(&pretty), auto(&weka_run()));
    let (_dir, path) = file("trace", &pretty);
    assert_eq!(load::detect_workload_format(&path).expect("is detected"), WorkloadFormat::Weka);
    let two = [weka_run(), weka_run()].join("\n");
    let one = WorkloadReadOptions { limit: Some(1), ..WorkloadReadOptions::default() };
    assert_eq!(read(&two, &one).expect("is a trace").len(), 4);
}

#[test]
fn invalid_weka_traces_are_refused_by_field() {
    let weka = WorkloadReadOptions { format: WorkloadFormat::Weka, ..Default::default() };
    for (from, to, told) in [
        (r#""id":"run","#, "", "trace:1: id is missing"),
        (
            r#""local""#,
            r#""host""#,
            r#"trace:1: hash_id_scope is "host", must be "local" or "global""#,
        ),
        (r#""block_size":64"#, r#""block_size":0"#, "trace:1: block_size is 0, must be a whole"),
        (
            r#""t":9,"type":"s""#,
            r#""t":9,"type":"x""#,
            r#"trace:1: requests[4]: type is "x", must be "n", "s" or "subagent""#,
        ),
        (r#""t":12"#, r#""t":8"#, "trace:1: requests[6]: t is 8, must not be before the request"),
        (
            r#""hash_ids":[9]"#,
            r#""hash_ids":[9,9]"#,
            "trace:1: requests[1].requests[0]: hash_ids has 2 entries, must have at most 1",
        ),
        (r#""agent_id":"a","#, "", "trace:1: requests[1]: agent_id is missing"),
    ] {
        let text = weka_run().replacen(from, to, 1);
        assert_ne!(text, weka_run(), "{from}");
        let found = load_error_message(&text, &weka);
        assert!(found.starts_with(told), "{found}");
    }
}

fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("tests/fixtures/agents").join(name)
}

fn read_fixture(name: &str) -> Vec<ClientSession> {
    let source = load::open_workload_files(&[fixture(name)], &WorkloadReadOptions::default());
    all(source.expect("is a trace"))
}

#[test]
fn a_public_weka_run_has_its_totals() {
    let sessions = read_fixture("weka.json.gz");
    let turns: Vec<usize> = sessions.iter().map(|session| session.turns.len()).collect();
    assert_eq!(turns, [20, 5, 7]);
    let (mut input, mut output) = (0, 0);
    for turn in shown(&sessions).iter().flat_map(|(_, turns)| turns) {
        (input, output) = (input + turn.0, output + turn.1);
    }
    // As `totals` of the file says.
    assert_eq!((input, output), (2_254_119, 19_504));
}

#[test]
fn spans_of_agents_become_sessions() {
    let sessions = read_fixture("otel.jsonl");
    let [a, b] = ["a", "b"].map(|name| name.repeat(32));
    assert_eq!(ids(&sessions), [a.as_str(), &format!("{a}::b0"), &b]);
    let expected: Vec<Shown> = vec![
        (0.0, vec![(900, 40, 0.0, false), (40, 30, 750.0, true), (15, 60, 6500.0, true)]),
        (0.0, vec![(300, 20, 0.0, false), (25, 12, 2250.0, true)]),
        (29_750.0, vec![(120, 15, 0.0, false), (15, 25, 10_500.0, true), (15, 10, 18_000.0, true)]),
    ];
    assert_eq!(shown(&sessions), expected);
    assert_eq!(waits(&sessions[1].turns[0].after), [(0, 1, true, 750.0)]);
    assert_eq!(waits(&sessions[0].turns[2].after), [(1, 1, true, 1250.0)]);
}

/// Converts flat spans to an export request of OTLP in JSON.
fn otlp_of_flat_spans(text: &str) -> String {
    use serde_json::{Value, json};
    fn any(value: &Value) -> Value {
        match value {
            Value::Number(number) => json!({"intValue": number.to_string()}),
            Value::Array(list) => {
                json!({"arrayValue": {"values": list.iter().map(any).collect::<Vec<_>>()}})
            }
            other => json!({"stringValue": other}),
        }
    }
    let nanos = |text: &Value| {
        let (_, clock) = text.as_str().expect("is a time").split_once('T').expect("has a clock");
        let parts: Vec<f64> = clock
            .trim_end_matches('Z')
            .split(':')
            .map(|part| part.parse().expect("is a number"))
            .collect();
        let ms = ((parts[0] * 60.0 + parts[1]) * 60.0 + parts[2]) * 1e3;
        format!("{}000000", 1_793_491_200_000 + ms.round() as u64)
    };
    let spans: Vec<Value> = text
        .lines()
        .map(|line| {
            let span: Value = serde_json::from_str(line).expect("is JSON");
            let attributes = span["attributes"].as_object().expect("has attributes");
            let attributes: Vec<Value> = attributes
                .iter()
                .map(|(key, value)| json!({"key": key, "value": any(value)}))
                .collect();
            json!({
                "traceId": span["trace_id"], "spanId": span["span_id"],
                "parentSpanId": span["parent_span_id"], "name": span["name"], "kind": 3,
                "startTimeUnixNano": nanos(&span["start_time"]),
                "endTimeUnixNano": nanos(&span["end_time"]),
                "attributes": attributes, "status": span["status"],
            })
        })
        .collect();
    let (first, rest) = spans.split_at(4);
    let export = |spans: &[Value]| {
        json!({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]})
            .to_string()
    };
    [export(rest), export(first)].join("\n")
}

#[test]
fn otlp_in_json_is_read_as_flat_spans_are() {
    let flat = fs::read_to_string(fixture("otel.jsonl")).expect("is there");
    let otlp = otlp_of_flat_spans(&flat);
    let (_dir, path) = file("trace", &otlp);
    assert_eq!(load::detect_workload_format(&path).expect("is detected"), WorkloadFormat::Otel);
    let source =
        load::open_workload_files(&[path], &WorkloadReadOptions::default()).expect("is a trace");
    assert_eq!(source.facts().left_out_rows, 1, "the failed request");
    // Nanoseconds since 1970 are exact to a quarter of a microsecond as milliseconds.
    let rounded = |ms: f64| (ms * 1e2).round() / 1e2;
    let mut found = shown(&all(source));
    for (start, turns) in &mut found {
        *start = rounded(*start);
        turns.iter_mut().for_each(|turn| turn.2 = rounded(turn.2));
    }
    assert_eq!(found, shown(&auto(&flat)));
    // One run per line, with its spans.
    let spans = flat.lines().take(10).collect::<Vec<_>>().join(",");
    let session = format!(r#"{{"trace_id":"{}","spans":[{spans}]}}"#, "a".repeat(32));
    assert_eq!(shown(&auto(&session)), shown(&auto(&flat))[..2].to_vec());
}

#[test]
fn spans_without_content_grow_by_their_counts() {
    let span = |id: &str, at: u32, input: u32, output: u32| {
        format!(
            r#"{{"trace_id":"t","span_id":"{id}","start_time":"2026-11-01 10:00:0{at}","attributes":{{"gen_ai.usage.prompt_tokens":{input},"gen_ai.usage.completion_tokens":{output}}}}}"#
        )
    };
    let text = [span("1", 0, 100, 10), span("2", 2, 140, 5), span("3", 5, 60, 5)].join("\n");
    let expected: Vec<Shown> =
        vec![(0.0, vec![(100, 10, 0.0, false), (30, 5, 2000.0, true), (60, 5, 3000.0, false)])];
    assert_eq!(shown(&auto(&text)), expected);
}

/// inference-perf writes a run of spans over many lines.
#[test]
fn a_run_of_spans_over_several_lines_is_detected() {
    use serde_json::json;

    let span = |start: u32, end: u32| {
        json!({
            "trace_id": "t", "span_id": start.to_string(), "name": "chat",
            "start_time": format!("2026-02-26T10:00:0{start}.000000+00:00"),
            "end_time": format!("2026-02-26T10:00:0{end}.000000+00:00"),
            "attributes": {
                "gen_ai.operation.name": "chat", "gen_ai.usage.prompt_tokens": 50,
                "gen_ai.usage.completion_tokens": 20,
                "gen_ai.input.messages": [{"role": "user", "content": "start_time, successes"}],
            },
        })
    };
    let run = json!({"trace_id": "r", "span_count": 2, "spans": [span(0, 1), span(3, 4)]});
    let text = serde_json::to_string_pretty(&run).expect("is JSON");
    let (_dir, path) = file("trace", &text);
    assert_eq!(load::detect_workload_format(&path).expect("is detected"), WorkloadFormat::Otel);
    let expected = vec![(0.0, vec![(50, 20, 0.0, false), (50, 20, 2000.0, false)])];
    assert_eq!(shown(&auto(&text)), expected);
}

#[test]
fn equal_texts_of_spans_are_equal_tokens() {
    let flat = fs::read_to_string(fixture("otel.jsonl")).expect("is there");
    let sessions = auto(&flat);
    // Both begin with the same instructions.
    assert_eq!(runs_of(&sessions[0], 0)[0], runs_of(&sessions[2], 0)[0]);
    assert_ne!(runs_of(&sessions[0], 0)[1], runs_of(&sessions[2], 0)[1]);
    assert_ne!(runs_of(&sessions[0], 0)[0], runs_of(&sessions[1], 0)[0]);
}

#[test]
fn invalid_spans_are_refused_by_field() {
    let otel = WorkloadReadOptions { format: WorkloadFormat::Otel, ..Default::default() };
    let flat = fs::read_to_string(fixture("otel.jsonl")).expect("is there");
    for (from, to, told) in [
        (
            r#""start_time":"2026-11-01T10:00:00.250Z""#,
            r#""start_time":"now""#,
            r#"trace:2: start_time is "now", must be a time such as"#,
        ),
        (
            r#""gen_ai.usage.input_tokens":900"#,
            r#""gen_ai.usage.input_tokens":-1"#,
            "trace:2: gen_ai.usage.input_tokens is -1, must be a whole number from 0 to",
        ),
    ] {
        let text = flat.replacen(from, to, 1);
        assert_ne!(text, flat, "{from}");
        let found = load_error_message(&text, &otel);
        assert!(found.starts_with(told), "{found}");
    }
    let tools = flat.lines().filter(|line| line.contains("execute_tool")).collect::<Vec<_>>();
    let found = load_error_message(&tools.join("\n"), &otel);
    assert!(found.contains("has no gen_ai span with"), "{found}");
    let cut = "{\"resourceSpans\":[{\"scopeSpans\":[{\"spans\":[{\"traceId\":\"a\"";
    let found = load_error_message(cut, &otel);
    assert!(found.starts_with("trace:1: is not JSON"), "{found}");
}

/// Spans whose parents go in a circle: an agent with a request below two agents without one.
#[test]
fn circles_of_spans_end() {
    let span = |id: &str, parent: &str, operation: &str| {
        format!(
            r#"{{"trace_id":"t","span_id":"{id}","parent_span_id":"{parent}","start_time":"2026-11-01 10:00:00","attributes":{{"gen_ai.operation.name":"{operation}","gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":2}}}}"#
        )
    };
    let spans = [
        span("a", "b", "invoke_agent"),
        span("b", "c", "invoke_agent"),
        span("c", "b", "invoke_agent"),
        span("d", "a", "chat"),
        span("e", "e", "chat"),
    ];
    let sessions = auto(&spans.join("\n"));
    assert_eq!(sessions.iter().map(|session| session.turns.len()).sum::<usize>(), 2);
}
