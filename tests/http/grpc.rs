//! The gRPC face, over real connections to a server started from flags.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be unwrapped is a failure"
)]

use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_stream::StreamExt;
use tonic::body::Body;
use tonic::{Code, Streaming};
use tonic_health::pb::HealthCheckRequest as Probe;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use vllm_sim::server::Server;
use vllm_sim_config::{Command, load};
use vllm_sim_grpc::proto::generate_request::Input;
use vllm_sim_grpc::proto::generate_response::Response;
use vllm_sim_grpc::proto::sampling_params::Constraint;
use vllm_sim_grpc::proto::vllm_engine_client::VllmEngineClient;
use vllm_sim_grpc::proto::{
    AbortRequest, ChoiceConstraint, EmbedRequest, GenerateComplete, GenerateRequest,
    GenerateResponse, GenerateStreamChunk, GetModelInfoRequest, GetServerInfoRequest,
    HealthCheckRequest, SamplingParams, TokenizedInput,
};
use vllm_sim_service::Halt;

/// One HTTP/2 connection with prior knowledge.
#[derive(Clone)]
struct Connection(SendRequest<Body>);

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let io = TokioIo::new(stream);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }
}

impl tower::Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

struct Running {
    server: Server,
    connection: Connection,
    client: VllmEngineClient<Connection>,
}

fn origin() -> http::Uri {
    http::Uri::from_static("http://localhost")
}

/// A server of these flags on a free port of this machine, and on another one for gRPC.
async fn start(words: &[&str]) -> Running {
    let all = [
        "vllm-sim",
        "--model",
        "m",
        "--seed",
        "7",
        "--host",
        "127.0.0.1",
    ];
    let args: Vec<_> = all
        .iter()
        .chain(words)
        .map(|word| (*word).to_owned())
        .collect();
    let env = |name: &str| (name == "POD_NAME").then(|| "pod-1".to_owned());
    let Ok(Command::Serve(loaded)) = load(&args, &env) else {
        panic!("cannot serve {args:?}");
    };
    let mut config = loaded.config;
    config.server.port = 0;
    config.server.grpc_port = config.server.grpc_port.map(|_| 0);
    let server = Server::start(config).await.unwrap();
    let connection = Connection::open(server.address.unwrap()).await;
    let client = VllmEngineClient::with_origin(connection.clone(), origin());
    Running {
        server,
        connection,
        client,
    }
}

fn ids(ids: &[u32]) -> Option<Input> {
    Some(Input::Tokenized(TokenizedInput {
        original_text: String::new(),
        input_ids: ids.to_vec(),
    }))
}

/// Exactly `max` tokens after a prompt of five.
fn request(max: u32, stream: bool) -> GenerateRequest {
    GenerateRequest {
        request_id: format!("r{max}"),
        input: ids(&[1, 2, 3, 4, 5]),
        sampling_params: Some(SamplingParams {
            max_tokens: Some(max),
            ignore_eos: true,
            ..SamplingParams::default()
        }),
        stream,
    }
}

fn with(change: impl FnOnce(&mut SamplingParams)) -> GenerateRequest {
    let mut request = request(4, false);
    change(request.sampling_params.as_mut().unwrap());
    request
}

async fn generate(client: &mut VllmEngineClient<Connection>, r: GenerateRequest) -> Vec<Response> {
    let mut stream = client.generate(r).await.unwrap().into_inner();
    let mut responses = Vec::new();
    while let Some(message) = stream.next().await {
        responses.extend(message.unwrap().response);
    }
    responses
}

async fn complete(
    client: &mut VllmEngineClient<Connection>,
    r: GenerateRequest,
) -> GenerateComplete {
    match generate(client, r).await.as_slice() {
        [Response::Complete(complete)] => complete.clone(),
        other => panic!("one complete was expected, not {other:?}"),
    }
}

async fn refusal(client: &mut VllmEngineClient<Connection>, r: GenerateRequest) -> (Code, String) {
    let status = client.generate(r).await.unwrap_err();
    (status.code(), status.message().to_owned())
}

async fn chunk(stream: &mut Streaming<GenerateResponse>) -> GenerateStreamChunk {
    match stream.next().await.unwrap().unwrap().response.unwrap() {
        Response::Chunk(chunk) => chunk,
        Response::Complete(complete) => panic!("a chunk was expected, not {complete:?}"),
    }
}

/// Asks until nothing is generated any more.
async fn until_idle(client: &mut VllmEngineClient<Connection>) {
    let idle = async {
        while client
            .get_server_info(GetServerInfoRequest {})
            .await
            .unwrap()
            .into_inner()
            .active_requests
            > 0
        {}
    };
    tokio::time::timeout(Duration::from_secs(5), idle)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_unary_generation_is_one_complete() {
    let mut sim = start(&[]).await;
    let whole = complete(&mut sim.client, request(8, false)).await;
    let shown = (
        whole.output_ids.len(),
        whole.completion_tokens,
        whole.prompt_tokens,
    );
    assert_eq!(shown, (8, 8, 5));
    assert_eq!(
        (whole.finish_reason.as_str(), whole.cached_tokens),
        ("length", 0)
    );
    let again = complete(&mut sim.client, request(8, false)).await;
    assert_eq!(
        again.output_ids, whole.output_ids,
        "the server's seed was chosen"
    );
    sim.server.shutdown().await;
}

#[tokio::test]
async fn a_stream_is_a_chunk_per_token_and_the_whole() {
    let mut sim = start(&[]).await;
    let whole = complete(&mut sim.client, request(8, false)).await;
    let mut streamed = generate(&mut sim.client, request(8, true)).await;
    assert_eq!(streamed.pop(), Some(Response::Complete(whole.clone())));
    let expected = whole.output_ids.iter().map(|id| {
        Response::Chunk(GenerateStreamChunk {
            token_ids: vec![*id],
            prompt_tokens: 5,
            completion_tokens: 1,
            cached_tokens: 0,
        })
    });
    assert_eq!(streamed, expected.collect::<Vec<_>>());
    sim.server.shutdown().await;
}

#[tokio::test]
async fn text_is_tokenised_and_echoed() {
    let mut sim = start(&["--mode", "echo"]).await;
    let text = |text: &str| GenerateRequest {
        input: Some(Input::Text(text.to_owned())),
        ..GenerateRequest::default()
    };
    let whole = complete(&mut sim.client, text("This is a test.")).await;
    let known = [
        3_157_421_587,
        1_477_013_615,
        186_949_092,
        2_949_673_445,
        722_245_873,
    ];
    assert_eq!(whole.output_ids[..5], known);
    assert_eq!(
        (whole.prompt_tokens, whole.finish_reason.as_str()),
        (5, "stop")
    );
    sim.server.shutdown().await;
}

#[tokio::test]
async fn a_second_look_at_a_prompt_is_cached() {
    let mut sim = start(&["--enable-kvcache", "--block-size", "8"]).await;
    let prompt: Vec<u32> = (0..40).collect();
    let asked = GenerateRequest {
        input: ids(&prompt),
        ..request(2, false)
    };
    let first = complete(&mut sim.client, asked.clone()).await.cached_tokens;
    let second = complete(&mut sim.client, asked).await.cached_tokens;
    // llm-d's cache: the last block counts as well.
    assert_eq!((first, second), (0, 40));
    sim.server.shutdown().await;
}

#[tokio::test]
async fn an_aborted_request_ends_with_what_it_has() {
    let mut sim = start(&["--inter-token-latency", "20ms"]).await;
    let mut stream = sim
        .client
        .generate(request(900, true))
        .await
        .unwrap()
        .into_inner();
    let first = chunk(&mut stream).await;
    let other = AbortRequest {
        request_ids: vec!["nobody".to_owned()],
    };
    sim.client.abort(other).await.unwrap();
    chunk(&mut stream).await;
    let abort = AbortRequest {
        request_ids: vec!["nobody".to_owned(), "r900".to_owned()],
    };
    sim.client.abort(abort).await.unwrap();
    let last = loop {
        match stream.next().await.unwrap().unwrap().response.unwrap() {
            Response::Chunk(_) => {}
            Response::Complete(complete) => break complete,
        }
    };
    assert_eq!(last.finish_reason, "abort");
    assert_eq!(last.output_ids[..1], first.token_ids);
    assert_eq!(last.output_ids.len(), last.completion_tokens as usize);
    assert!((2..100).contains(&last.completion_tokens), "{last:?}");
    drop(stream);
    until_idle(&mut sim.client).await;
    sim.server.shutdown().await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_request_up() {
    let mut sim = start(&["--inter-token-latency", "20ms"]).await;
    let mut stream = sim
        .client
        .generate(request(900, true))
        .await
        .unwrap()
        .into_inner();
    chunk(&mut stream).await;
    drop(stream);
    until_idle(&mut sim.client).await;
    sim.server.shutdown().await;
}

#[tokio::test]
async fn refusals_have_vllms_words_and_llm_ds_codes() {
    let mut sim = start(&["--max-model-len", "16"]).await;
    let client = &mut sim.client;
    let invalid = |text: &str| (Code::InvalidArgument, text.to_owned());
    let empty = GenerateRequest {
        input: ids(&[]),
        ..request(4, false)
    };
    assert_eq!(
        refusal(client, empty).await,
        invalid("The decoder prompt cannot be empty")
    );
    let hot = with(|params| params.temperature = Some(3.0));
    let said = refusal(client, hot).await;
    assert_eq!(said.0, Code::InvalidArgument);
    assert!(
        said.1.starts_with("temperature must be in [0, 2], got 3.0"),
        "{}",
        said.1
    );
    let long = GenerateRequest {
        input: ids(&[9; 20]),
        ..request(4, false)
    };
    let said = refusal(client, long).await;
    assert!(
        said.1
            .starts_with("This model's maximum context length is 16 tokens."),
        "{}",
        said.1
    );
    let cut = GenerateRequest {
        input: ids(&[9; 20]),
        ..with(|params| params.truncate_prompt_tokens = Some(6))
    };
    assert_eq!(complete(client, cut).await.prompt_tokens, 6);
    let schema = with(|p| p.constraint = Some(Constraint::JsonSchema("{".to_owned())));
    assert_eq!(
        refusal(client, schema).await,
        invalid("Invalid JSON grammar specification.")
    );
    sim.server.shutdown().await;
}

#[tokio::test]
async fn a_full_queue_is_resource_exhausted() {
    let flags = ["--max-num-seqs", "1", "--max-waiting-queue-length", "1"];
    let slow = ["--time-to-first-token", "10s"];
    let mut sim = start(&[&flags[..], &slow[..]].concat()).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(sim.client.generate(request(4, true)).await.unwrap());
    }
    let text = "Failed to enqueue request, waiting requests queue is full".to_owned();
    let said = refusal(&mut sim.client, request(4, true)).await;
    assert_eq!(said, (Code::ResourceExhausted, text));
    drop(open);
    until_idle(&mut sim.client).await;
    sim.server.shutdown().await;
}

#[tokio::test]
async fn a_choice_is_one_of_the_choices() {
    let mut sim = start(&[]).await;
    let choices = vec!["This ".to_owned()];
    let asked = with(|params| {
        params.ignore_eos = false;
        params.constraint = Some(Constraint::Choice(ChoiceConstraint { choices }));
    });
    let whole = complete(&mut sim.client, asked).await;
    assert_eq!(
        (whole.output_ids[0], whole.finish_reason.as_str()),
        (3_157_421_587, "stop")
    );
    sim.server.shutdown().await;
}

#[tokio::test]
async fn an_embedding_is_a_function_of_the_tokens() {
    let mut sim = start(&["--default-embedding-dimensions", "6"]).await;
    let embed = |text: &str| EmbedRequest {
        request_id: String::new(),
        tokenized: Some(TokenizedInput {
            original_text: text.to_owned(),
            input_ids: Vec::new(),
        }),
    };
    let made = sim
        .client
        .embed(embed("This is a test."))
        .await
        .unwrap()
        .into_inner();
    let known = [
        0.037_109_375,
        -0.783_203_1,
        -0.054_687_5,
        -0.052_734_375,
        -0.529_296_9,
        -0.851_562_5,
    ];
    assert_eq!(
        (
            made.embedding.as_slice(),
            made.prompt_tokens,
            made.embedding_dim
        ),
        (&known[..], 5, 6)
    );
    let status = sim.client.embed(embed("")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    sim.server.shutdown().await;
}

#[tokio::test]
async fn the_server_tells_about_itself() {
    let mut sim = start(&["--max-model-len", "2048"]).await;
    let client = &mut sim.client;
    let model = client
        .get_model_info(GetModelInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (model.model_path.as_str(), model.max_context_length),
        ("m", 2048)
    );
    assert_eq!((model.is_generation, model.supports_vision), (true, false));
    let health = client
        .health_check(HealthCheckRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((health.healthy, health.message.as_str()), (true, "Health"));
    let before = client
        .get_server_info(GetServerInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((before.active_requests, before.is_paused), (0, false));
    assert_eq!(
        (before.server_type.as_str(), before.last_receive_timestamp),
        ("vllm-grpc", 0.0)
    );
    complete(client, request(1, false)).await;
    let after = client
        .get_server_info(GetServerInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(after.last_receive_timestamp > 1.7e9 && after.uptime_seconds > before.uptime_seconds);
    sim.server.shutdown().await;
}

#[tokio::test]
async fn a_paused_server_says_so() {
    let mut sim = start(&[]).await;
    let service = sim.server.app().service().clone();
    service.pause(Halt::Abort, false).await;
    let info = sim.client.get_server_info(GetServerInfoRequest {}).await;
    assert!(info.unwrap().into_inner().is_paused);
    let text = "Generation is paused. Please retry after it resumes.".to_owned();
    let said = refusal(&mut sim.client, request(4, true)).await;
    assert_eq!(said, (Code::Unavailable, text));
    service.resume();
    complete(&mut sim.client, request(4, false)).await;
    sim.server.shutdown().await;
}

#[tokio::test]
async fn the_standard_probe_follows_the_server() {
    let sim = start(&["--startup-duration", "300ms"]).await;
    let mut health = HealthClient::with_origin(sim.connection.clone(), origin());
    let probe = |service: &str| Probe {
        service: service.to_owned(),
    };
    let watched = health
        .watch(probe("vllm.grpc.engine.VllmEngine"))
        .await
        .unwrap();
    let mut watched = watched.into_inner();
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(watched.next().await.unwrap().unwrap().status());
    }
    assert_eq!(seen, [ServingStatus::NotServing, ServingStatus::Serving]);
    let known = health.check(probe("")).await.unwrap().into_inner();
    assert_eq!(known.status(), ServingStatus::Serving);
    let unknown = health.check(probe("x")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    sim.server.app().stop();
    let last = watched.next().await.unwrap().unwrap().status();
    assert_eq!(last, ServingStatus::NotServing);
    sim.server.shutdown().await;
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let sim = start(&[]).await;
    let mut reflection = ServerReflectionClient::with_origin(sim.connection.clone(), origin());
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection
        .server_reflection_info(tokio_stream::once(asked))
        .await
        .unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("a list was expected, not {answer:?}");
    };
    let mut names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "vllm.grpc.engine.VllmEngine"
        ]
    );
    sim.server.shutdown().await;
}

#[tokio::test]
async fn an_unknown_call_is_unimplemented() {
    let sim = start(&[]).await;
    let mut client = tonic::client::Grpc::with_origin(sim.connection.clone(), origin());
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/vllm.grpc.engine.VllmEngine/Nothing");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
    let asked = tonic::Request::new(HealthCheckRequest {});
    let status = client.unary(asked, path, codec).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    sim.server.shutdown().await;
}

#[tokio::test]
async fn http_is_served_beside_it_and_pods_are_named() {
    let mut sim = start(&["--grpc-port", "1"]).await;
    let address = sim.server.address.unwrap();
    let mut plain = TcpStream::connect(address).await.unwrap();
    let get = b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    plain.write_all(get).await.unwrap();
    let mut text = String::new();
    plain.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    let alone = Connection::open(sim.server.grpc_address.unwrap()).await;
    let mut alone = VllmEngineClient::with_origin(alone, origin());
    let here = complete(&mut sim.client, request(3, false)).await;
    let there = complete(&mut alone, request(3, false)).await;
    assert_eq!(here, there);
    let answer = sim
        .client
        .health_check(HealthCheckRequest {})
        .await
        .unwrap();
    let named = ["x-inference-pod", "server"].map(|name| answer.metadata().get(name));
    assert_eq!(
        named.map(|value| value.map(|v| v.to_str().unwrap())),
        [Some("pod-1"), None]
    );
    sim.server.shutdown().await;
}

/// Tokens that came, and how it ended.
async fn spoiled(client: &mut VllmEngineClient<Connection>, fault: &str) -> (usize, Option<Code>) {
    let mut asked = tonic::Request::new(request(8, true));
    asked
        .metadata_mut()
        .insert("x-sim-fault", fault.parse().unwrap());
    let mut stream = match client.generate(asked).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return (0, Some(status.code())),
    };
    let mut tokens = 0;
    while let Some(message) = stream.next().await {
        match message {
            Ok(message) => {
                tokens += usize::from(matches!(message.response, Some(Response::Chunk(_))))
            }
            Err(status) => return (tokens, Some(status.code())),
        }
    }
    (tokens, None)
}

#[tokio::test]
async fn metadata_makes_a_call_go_wrong() {
    let mut sim = start(&[]).await;
    let cases = [
        ("stall=2:20ms;slow_first_byte=5ms", (8, None)),
        ("cut_after=3", (3, Some(Code::Unavailable))),
        ("cut_after=8", (8, Some(Code::Unavailable))),
        ("rate_limit", (0, Some(Code::ResourceExhausted))),
        ("invalid_api_key", (0, Some(Code::Unauthenticated))),
        ("model_not_found", (0, Some(Code::NotFound))),
        ("server_error", (0, Some(Code::Unavailable))),
        ("context_length", (0, Some(Code::InvalidArgument))),
        ("explode", (0, Some(Code::InvalidArgument))),
        ("", (0, Some(Code::InvalidArgument))),
    ];
    for (fault, expected) in cases {
        assert_eq!(spoiled(&mut sim.client, fault).await, expected, "{fault}");
    }
    // A reset takes the whole connection along.
    let (tokens, code) = spoiled(&mut sim.client, "reset_after=2").await;
    assert!(tokens <= 2 && code.is_some(), "{tokens} {code:?}");
    assert!(sim.client.generate(request(1, false)).await.is_err());
}

#[tokio::test]
async fn calls_fail_at_the_rate_that_is_set() {
    let mut sim = start(&["--failure-injection-rate", "50"]).await;
    let mut failed = 0;
    for _ in 0..100 {
        failed += usize::from(sim.client.generate(request(1, false)).await.is_err());
    }
    assert!((30..70).contains(&failed), "{failed} of 100");
}
