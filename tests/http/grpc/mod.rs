//! The gRPC server, over real connections to a server started from flags.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod generation;
mod server;

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
use vllm_sim::server::SimulatorServer;
use vllm_sim_config::{ParsedCommand, load_config};
use vllm_sim_grpc::proto::generate_request::Input;
use vllm_sim_grpc::proto::generate_response::Response;
use vllm_sim_grpc::proto::sampling_params::Constraint;
use vllm_sim_grpc::proto::vllm_engine_client::VllmEngineClient;
use vllm_sim_grpc::proto::{
    AbortRequest, ChoiceConstraint, EmbedRequest, GenerateComplete, GenerateRequest,
    GenerateResponse, GenerateStreamChunk, GetModelInfoRequest, GetServerInfoRequest,
    HealthCheckRequest, SamplingParams, TokenizedInput,
};
use vllm_sim_service::PauseMode;

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
    server: SimulatorServer,
    connection: Connection,
    client: VllmEngineClient<Connection>,
}

fn origin() -> http::Uri {
    http::Uri::from_static("http://localhost")
}

/// A server of these flags on a free port of this machine, and on another one for gRPC.
async fn start(words: &[&str]) -> Running {
    let all = ["vllm-sim", "--model", "m", "--seed", "7", "--host", "127.0.0.1"];
    let args: Vec<_> = all.iter().chain(words).map(|word| (*word).to_owned()).collect();
    let env = |name: &str| (name == "POD_NAME").then(|| "pod-1".to_owned());
    let Ok(ParsedCommand::Serve(mut loaded)) = load_config(&args, &env) else {
        panic!("cannot serve {args:?}");
    };
    loaded.config.server.port = 0;
    loaded.config.server.grpc_port = loaded.config.server.grpc_port.map(|_| 0);
    let server = SimulatorServer::start_server(*loaded).await.unwrap();
    let connection = Connection::open(server.address.unwrap()).await;
    let client = VllmEngineClient::with_origin(connection.clone(), origin());
    Running { server, connection, client }
}

fn ids(ids: &[u32]) -> Option<Input> {
    Some(Input::Tokenized(TokenizedInput { original_text: String::new(), input_ids: ids.to_vec() }))
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
    tokio::time::timeout(Duration::from_secs(5), idle).await.unwrap();
}
