//! Workloads over real HTTP against a server of our own.

use std::path::Path;
use std::time::Duration;

use tokio::runtime::Runtime;
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{CliMode, LoadedConfig};
use vllm_sim_engine::SimTime;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::pool::SlotSchedulerConfig;
use vllm_sim_http_client::CertificateVerification;
use vllm_sim_replay::load;
use vllm_sim_replay::online::{
    GenerationApi, OnlineReplayError, OnlineReplayOptions, OnlineReplaySummary, replay_over_http,
};
use vllm_sim_replay::outcome::{ReplaySink, RequestOutcome, RequestStatus};
use vllm_sim_replay::report::{self, ReplayReport, ReplayRunTotals, ReportCollector};
use vllm_sim_replay::synth::{ArrivalProcess, SyntheticWorkload, TokenLengthDistribution};
use vllm_sim_replay::workload::{
    ClientSession, PromptTokenRun, SessionTurn, TurnDependency, TurnLifecycleEvent, TurnPrompt,
    WorkloadError, WorkloadFacts, WorkloadSource,
};
use vllm_sim_replay::{PoolSpec, ReplaySettings, RouterConfig};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-llama");
const DELAYS: [&str; 4] = [
    "--time-to-first-token=60ms",
    "--inter-token-latency=8ms",
    "--scheduler=pool",
    "--max-num-seqs=64",
];

struct Sim {
    runtime: Runtime,
    server: Option<SimulatorServer>,
    loaded: LoadedConfig,
    url: String,
}

impl Sim {
    fn start(more: &[&str]) -> Self {
        let mut flags = vec![MODEL, "--port=0", "--host=127.0.0.1", "--served-model-name=tiny"];
        flags.extend(more);
        let loaded = LoadedConfig::from_flags(CliMode::Vllm, &flags).expect("good flags");
        let runtime = Runtime::new().expect("there are threads");
        let server =
            runtime.block_on(SimulatorServer::start_server(loaded.clone())).expect("it starts");
        let scheme = match more.iter().any(|flag| flag.starts_with("--ssl-certfile")) {
            true => "https",
            false => "http",
        };
        let url = format!("{scheme}://{}", server.address.expect("a TCP socket"));
        Self { runtime, server: Some(server), loaded, url }
    }

    fn options(&self) -> OnlineReplayOptions {
        OnlineReplayOptions {
            targets: vec![self.url.clone()],
            timeout: Duration::from_secs(20),
            limit: Some(Duration::from_secs(60)),
            ..OnlineReplayOptions::default()
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.shut_down_server());
        }
    }
}

fn workload() -> SyntheticWorkload {
    SyntheticWorkload {
        sessions: 40,
        input: TokenLengthDistribution::Uniform(20, 200),
        output: TokenLengthDistribution::Uniform(2, 20),
        arrivals: ArrivalProcess::Poisson(40.0),
        ..SyntheticWorkload::default()
    }
}

fn facts(requests: u64) -> ReplayRunTotals {
    ReplayRunTotals {
        requests,
        prefill_worker_seconds: 0.0,
        decode_worker_seconds: None,
        workers: 1,
        gpus: (0, 1),
        prefill_tokens: None,
    }
}

fn online(
    synthetic: SyntheticWorkload,
    options: &OnlineReplayOptions,
) -> (ReplayReport, OnlineReplaySummary) {
    let mut source = synthetic.into_source().expect("makes sense");
    let mut collector = ReportCollector::new(report::ReportOptions::default());
    let sent =
        replay_over_http(&mut source, options, &mut collector, &mut |_| {}).expect("is sent");
    (collector.into_report(&facts(sent.requests)), sent)
}

fn offline(synthetic: SyntheticWorkload, loaded: &LoadedConfig) -> ReplayReport {
    let engine = &loaded.config.engine;
    let pool = SlotSchedulerConfig {
        slots: engine.max_num_seqs as usize,
        queue: None,
        delays: engine.timing.delays.clone(),
        ..SlotSchedulerConfig::default()
    };
    let settings = ReplaySettings {
        seed: 0,
        ..ReplaySettings::new(PoolSpec::new(
            SchedulerSpec::Pool(Box::new(pool)),
            1,
            RouterConfig::RoundRobin,
        ))
    };
    let mut source = synthetic.into_source().expect("makes sense");
    let mut collector = ReportCollector::new(report::ReportOptions::default());
    let totals =
        vllm_sim_replay::run_replay(&settings, &mut source, &mut collector).expect("is played");
    collector.into_report(&facts(totals.requests))
}

/// A busy machine makes everything later, nothing earlier: the quickest requests tell.
#[test]
fn online_replay_agrees_with_offline() {
    let sim = Sim::start(&DELAYS);
    let (found, _) = online(workload(), &sim.options());
    let told = offline(workload(), &sim.loaded);
    for key in ["num_requests", "completed_requests", "total_input_tokens", "total_output_tokens"] {
        assert_eq!(found.summary_number(key), told.summary_number(key), "{key}");
    }
    for key in ["min_ttft_ms", "median_ttft_ms", "median_itl_ms"] {
        let (found, told) = (found.summary_number(key), told.summary_number(key));
        assert!((-1.0..15.0).contains(&(found - told)), "{key}: {found}, offline {told}");
    }
    let lengths = |report: &ReplayReport| {
        let mut lengths: Vec<_> =
            report.request_records().map(|r| (r.input_length, r.output_length)).collect();
        lengths.sort_unstable();
        lengths
    };
    assert_eq!(lengths(&found), lengths(&told), "prompts have the planned lengths");
}

#[test]
fn chats_have_the_planned_lengths_and_sessions_remember() {
    let sim = Sim::start(&["--scheduler=pool", "--enable-prefix-caching"]);
    let options =
        OnlineReplayOptions { api: GenerationApi::Chat, concurrency: Some(3), ..sim.options() };
    let sessions = SyntheticWorkload {
        sessions: 6,
        input: TokenLengthDistribution::Constant(150),
        output: TokenLengthDistribution::Constant(5),
        turns: TokenLengthDistribution::Constant(2),
        grows_by: Some(TokenLengthDistribution::Constant(40)),
        ..SyntheticWorkload::default()
    };
    for api in [GenerationApi::Chat, GenerationApi::Completions] {
        let (report, sent) =
            online(sessions.clone(), &OnlineReplayOptions { api, ..options.clone() });
        assert_eq!(sent.requests, 12);
        let turns: Vec<(Option<u32>, u32)> =
            report.request_records().map(|r| (r.turn_index, r.input_length)).collect();
        assert_eq!(turns.len(), 12);
        for (turn, input) in turns {
            let planned = if turn == Some(0) { 150 } else { 195 };
            // Text that a model made up may join up with what follows.
            let slack = if api == GenerationApi::Chat { 12 } else { 0 };
            assert!(input.abs_diff(planned) <= slack, "{api:?} {turn:?}: {input}");
        }
    }
}

/// Counts how requests ended.
#[derive(Default)]
struct Ends(Vec<(RequestStatus, Option<String>)>);

impl ReplaySink for Ends {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        self.0.push((outcome.status, outcome.error.map(str::to_owned)));
    }
    fn on_token_gaps(&mut self, _: u64, _: u64) {}
}

#[test]
fn the_session_of_a_trace_is_a_header_of_its_requests() {
    let dir = tempfile::tempdir().expect("there is room");
    let rules = dir.path().join("replies.yaml");
    let rule = "- {when: {header: {X-Session-ID: agent 1}}, fail: {error: 404}}";
    std::fs::write(&rules, rule).expect("it is written");
    let sim = Sim::start(&[&format!("--replies={}", rules.display())]);
    let mut workload = SyntheticWorkload { sessions: 3, ..SyntheticWorkload::default() }
        .into_source()
        .expect("makes sense");
    let mut sessions = Vec::new();
    for id in [Some("agent 1"), Some("agent 2"), None] {
        let session = workload.next_session().expect("is read").expect("there are three");
        sessions.push(ClientSession { id: id.map(Into::into), ..session });
    }
    let mut ends = Ends::default();
    let mut source = Dependents(sessions.into_iter());
    replay_over_http(&mut source, &sim.options(), &mut ends, &mut |_| {}).expect("is sent");
    let failed = ends.0.iter().filter(|(status, _)| *status == RequestStatus::Failed);
    assert_eq!((failed.count(), ends.0.len()), (1, 3), "{:?}", ends.0);
}

#[test]
fn failures_are_outcomes_in_the_servers_words() {
    let sim = Sim::start(&["--max-model-len=64"]);
    let mut source = SyntheticWorkload {
        sessions: 3,
        input: TokenLengthDistribution::Constant(100),
        ..SyntheticWorkload::default()
    }
    .into_source()
    .expect("makes sense");
    let mut ends = Ends::default();
    replay_over_http(&mut source, &sim.options(), &mut ends, &mut |_| {}).expect("is sent");
    assert_eq!(ends.0.len(), 3);
    for (status, error) in &ends.0 {
        assert_eq!(*status, RequestStatus::Failed);
        let error = error.as_deref().expect("has words");
        assert!(error.starts_with("status 400: ") && error.contains("64"), "{error}");
    }
}

/// A scripted reply ends where its text does.
#[test]
fn an_answer_with_too_few_tokens_is_a_failed_request() {
    let folder = tempfile::tempdir().expect("there is room");
    let script = folder.path().join("replies.yaml");
    std::fs::write(&script, "- say: Once.\n").expect("is written");
    let sim = Sim::start(&[&format!("--replies={}", script.display())]);
    for api in [GenerationApi::Completions, GenerationApi::Chat] {
        let workload = SyntheticWorkload {
            sessions: 3,
            input: TokenLengthDistribution::Constant(60),
            output: TokenLengthDistribution::Constant(20),
            ..SyntheticWorkload::default()
        };
        let options = OnlineReplayOptions { api, ..sim.options() };
        let (report, _) = online(workload, &options);
        let counts =
            ["completed_requests", "failed_requests"].map(|key| report.summary_number(key));
        assert_eq!(counts, [0.0, 3.0], "{api:?}");
        let table = report.render_report_table();
        let line = " of 20 tokens came (finish_reason stop)\n";
        assert!(table.contains(line), "{table}");
    }
}

#[test]
fn the_time_limit_leaves_requests_incomplete() {
    let sim = Sim::start(&["--time-to-first-token=30s", "--scheduler=pool"]);
    let options = OnlineReplayOptions { limit: Some(Duration::from_millis(300)), ..sim.options() };
    let (report, sent) = online(workload(), &options);
    assert!(sent.wall < Duration::from_secs(20), "{:?}", sent.wall);
    assert_eq!(report.summary_number("completed_requests"), 0.0);
    assert_eq!(report.summary_number("incomplete_requests"), sent.requests as f64);
    // Each request in flight has a record of its own.
    let statuses: Vec<_> = report.request_records().map(|r| r.terminal_status).collect();
    assert!(!statuses.is_empty());
    assert!(statuses.iter().all(|status| *status == "incomplete"), "{statuses:?}");
}

/// Source that is busy for some time before it reports its end.
struct LateSource {
    sources: Vec<Box<dyn WorkloadSource>>,
    busy: Duration,
    started: Option<tokio::time::Instant>,
}

impl WorkloadSource for LateSource {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        let started = *self.started.get_or_insert_with(tokio::time::Instant::now);
        for source in &mut self.sources {
            if let Some(session) = source.next_session()? {
                return Ok(Some(session));
            }
        }
        while started.elapsed() <= self.busy {
            std::thread::yield_now();
        }
        Ok(None)
    }
}

#[test]
fn requests_that_ended_before_the_time_limit_are_complete() {
    let sim = Sim::start(&["--scheduler=pool", "--inter-token-latency=10ms"]);
    let limit = Duration::from_secs(1);
    let options = OnlineReplayOptions { limit: Some(limit), ..sim.options() };
    let sessions = |sessions, output| -> Box<dyn WorkloadSource> {
        let made = SyntheticWorkload {
            sessions,
            input: TokenLengthDistribution::Constant(20),
            output: TokenLengthDistribution::Constant(output),
            ..SyntheticWorkload::default()
        };
        Box::new(made.into_source().expect("makes sense"))
    };
    // The results of 20 requests wait while the source is busy; one reply goes on for 5 s.
    let sources = vec![sessions(1, 500), sessions(20, 2)];
    let mut source = LateSource { sources, busy: limit + limit / 5, started: None };
    let mut ends = Ends::default();
    let sent = replay_over_http(&mut source, &options, &mut ends, &mut |_| {}).expect("is sent");
    assert_eq!(sent.requests, 21);
    let count = |wanted| ends.0.iter().filter(|(status, _)| *status == wanted).count();
    let counts = [RequestStatus::Completed, RequestStatus::Incomplete].map(count);
    assert_eq!(counts, [20, 1], "{:?}", ends.0);
}

#[test]
fn invalid_options_are_rejected_before_sending() {
    let refused = |options: &OnlineReplayOptions| -> OnlineReplayError {
        let mut source = workload().into_source().expect("makes sense");
        replay_over_http(&mut source, options, &mut Ends::default(), &mut |_| {})
            .expect_err("is refused")
    };
    let with = |target: &str| OnlineReplayOptions {
        targets: vec![target.to_owned()],
        timeout: Duration::from_secs(5),
        ..OnlineReplayOptions::default()
    };
    let error = refused(&OnlineReplayOptions::default()).to_string();
    assert_eq!(error, "no --target is given");
    let error = refused(&with("ftp://x")).to_string();
    assert!(error.starts_with("--target \"ftp://x\" has the scheme \"ftp\""), "{error}");
    // Nobody listens on the port of a socket that is gone.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = socket.local_addr().expect("it has one");
    drop(socket);
    let error = refused(&with(&format!("http://{address}/v1"))).to_string();
    assert!(error.contains("cannot connect"), "{error}");
}

#[test]
fn tokens_reused_by_the_server_are_in_the_report() {
    let sim = Sim::start(&[
        "--scheduler=vllm",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
    ]);
    let shared = SyntheticWorkload {
        sessions: 8,
        input: TokenLengthDistribution::Constant(160),
        output: TokenLengthDistribution::Constant(2),
        prefix_groups: 1,
        shared_prefix_ratio: 0.5,
        ..SyntheticWorkload::default()
    };
    let options = OnlineReplayOptions { concurrency: Some(1), ..sim.options() };
    let (report, _) = online(shared, &options);
    let reused: Vec<u32> = report.request_records().map(|r| r.reused_input_tokens).collect();
    assert_eq!(reused, [0, 80, 80, 80, 80, 80, 80, 80]);
    let ratio = report.summary_number("prefix_cache_reused_ratio");
    assert!((ratio - 7.0 / 16.0).abs() < 1e-9, "{ratio}");
}

/// One request at a time against a server that takes 60 ms for each: whoever waits at the sender
/// waits all the same.
#[test]
fn latency_starts_at_scheduled_send_time() {
    let sim = Sim::start(&DELAYS);
    let synthetic = SyntheticWorkload {
        sessions: 5,
        output: TokenLengthDistribution::Constant(1),
        input: TokenLengthDistribution::Constant(20),
        arrivals: ArrivalProcess::Interval(10.0),
        ..SyntheticWorkload::default()
    };
    let options = OnlineReplayOptions { max_in_flight: 1, ..sim.options() };
    let (report, sent) = online(synthetic, &options);
    assert_eq!(sent.held_up, 4);
    assert!(sent.latest >= Duration::from_millis(180), "{sent:?}");
    // The last was to be sent after 40 ms and got its turn after 240.
    assert!(report.summary_number("max_ttft_ms") >= 255.0);
    assert!(report.summary_number("max_schedule_lateness_ms") >= 195.0);
    assert!(
        report.summary_number("median_ttft_from_send_ms")
            < report.summary_number("median_ttft_ms") - 50.0
    );
    assert!(report.render_report_table().contains("Sent behind schedule (ms)"));
}

/// More prompts than there are letters, each of one block again and again.
#[test]
fn prompts_that_differ_in_the_trace_differ_on_the_server() {
    let sim = Sim::start(&[
        "--scheduler=vllm",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--num-gpu-blocks-override=4000",
    ]);
    let options = OnlineReplayOptions { concurrency: Some(8), ..sim.options() };
    for api in [GenerationApi::Completions, GenerationApi::Chat] {
        let distinct = SyntheticWorkload {
            sessions: 150,
            input: TokenLengthDistribution::Constant(if api == GenerationApi::Chat {
                90
            } else {
                40
            }),
            output: TokenLengthDistribution::Constant(1),
            // Blocks of one token each, as those of a Mooncake trace.
            think_ms: 1.0,
            ..SyntheticWorkload::default()
        };
        let options = OnlineReplayOptions { api, ..options.clone() };
        let (report, _) = online(distinct, &options);
        let reused = report.request_records().map(|r| r.reused_input_tokens);
        // The beginning of the chat template is everybody's.
        let most = reused.max().expect("there are requests");
        assert!(most <= if api == GenerationApi::Chat { 48 } else { 0 }, "{api:?}: {most}");
    }
}

#[test]
fn a_server_behind_tls_is_measured_if_it_is_trusted() {
    let folder = tempfile::tempdir().expect("there is room");
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("is made");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("crt"), made.cert.pem()).expect("is written");
    std::fs::write(path("key"), made.signing_key.serialize_pem()).expect("is written");
    let certificate = format!("--ssl-certfile={}", path("crt").display());
    let key = format!("--ssl-keyfile={}", path("key").display());
    let sim = Sim::start(&[&certificate, &key, "--scheduler=pool"]);
    for trust in
        [CertificateVerification::Disabled, CertificateVerification::Authorities(path("crt"))]
    {
        let options = OnlineReplayOptions { trust, ..sim.options() };
        let (report, _) = online(workload(), &options);
        assert_eq!(report.summary_number("completed_requests"), 40.0);
    }
    let mut source = workload().into_source().expect("makes sense");
    let error = replay_over_http(&mut source, &sim.options(), &mut Ends::default(), &mut |_| {});
    let error = error.expect_err("nobody vouches for it").to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    let options = OnlineReplayOptions {
        trust: CertificateVerification::Authorities(path("none")),
        ..sim.options()
    };
    let error = replay_over_http(&mut source, &options, &mut Ends::default(), &mut |_| {});
    let error = error.expect_err("there is no such file").to_string();
    assert!(error.starts_with("cannot read certificates from "), "{error}");
}

/// Sessions that wait for others.
struct Dependents(std::vec::IntoIter<ClientSession>);

impl WorkloadSource for Dependents {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        Ok(self.0.next())
    }

    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts { has_dependencies: true, ..WorkloadFacts::default() }
    }
}

/// By session: when its request was to be sent, and when its last token came.
#[derive(Default)]
struct Times(std::collections::BTreeMap<u64, (SimTime, SimTime)>);

impl ReplaySink for Times {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        assert_eq!(outcome.status, RequestStatus::Completed, "{:?}", outcome.error);
        let times = (outcome.arrival, outcome.ended);
        self.0.insert(outcome.session, times);
    }
    fn on_token_gaps(&mut self, _: u64, _: u64) {}
}

#[test]
fn session_waits_for_latest_dependency() {
    let sim = Sim::start(&DELAYS);
    let delay = Duration::from_millis(400);
    let session = |id, start_ms, waits: bool| {
        let dependency = |session| TurnDependency {
            session,
            turn: 0,
            trigger: TurnLifecycleEvent::Completion,
            delay_ns: delay.as_nanos() as u64,
        };
        let prompt = PromptTokenRun { id, len: 20, same: false };
        let mut turn = SessionTurn::new(TurnPrompt::Whole(vec![prompt]), 2);
        turn.after = (0..3).filter(|_| waits).map(dependency).collect();
        let start = SimTime::from_millis(start_ms);
        ClientSession { id: None, start, turns: vec![turn], play: None }
    };
    let mut sessions: Vec<ClientSession> = (0..3).map(|id| session(id, 0, false)).collect();
    sessions.extend([session(3, 0, true), session(4, 900, true)]);
    let mut source = Dependents(sessions.into_iter());
    let mut times = Times::default();
    replay_over_http(&mut source, &sim.options(), &mut times, &mut |_| {}).expect("is sent");
    let over = (0..3).map(|session| times.0[&session].1).max();
    let ready = over.expect("there are three") + delay;
    let (third, fourth) = (times.0[&3].0, times.0[&4].0);
    assert!(third >= ready && third < ready + delay, "{third:?}");
    let late = SimTime::from_millis(900);
    assert!(fourth >= late.max(ready) && fourth < late.max(ready + delay) + delay);
}

/// Arrival, session, turn and end of each request.
#[derive(Default)]
struct Turns(Vec<(SimTime, String, u32, SimTime)>);

impl ReplaySink for Turns {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        assert_eq!(outcome.status, RequestStatus::Completed, "{:?}", outcome.error);
        let session = outcome.session_id.map(ToString::to_string).unwrap_or_default();
        self.0.push((outcome.arrival, session, outcome.turn, outcome.ended));
    }
    fn on_token_gaps(&mut self, _: u64, _: u64) {}
}

#[test]
fn agent_runs_of_a_closed_loop_follow_one_another() {
    let sim = Sim::start(&["--scheduler=pool", "--max-model-len=4096"]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/agents/otel.jsonl");
    let options = load::WorkloadReadOptions::default();
    let mut source = load::open_workload_files(&[path], &options).expect("is a trace");
    let mut turns = Turns::default();
    let options = OnlineReplayOptions { concurrency: Some(1), speedup: 40.0, ..sim.options() };
    replay_over_http(source.as_mut(), &options, &mut turns, &mut |_| {}).expect("is sent");
    turns.0.sort();
    let [a, sub, b] = ["a".repeat(32), format!("{}::b0", "a".repeat(32)), "b".repeat(32)];
    let order: Vec<(&str, u32)> =
        turns.0.iter().map(|(_, session, turn, _)| (session.as_str(), *turn)).collect();
    let expected = [(&a, 0), (&a, 1), (&sub, 0), (&sub, 1), (&a, 2), (&b, 0), (&b, 1), (&b, 2)];
    assert_eq!(order, expected.map(|(session, turn)| (session.as_str(), turn)));
    for pair in turns.0.windows(2) {
        assert!(pair[1].0 >= pair[0].3, "each waits for the one before: {:?}", turns.0);
    }
}
