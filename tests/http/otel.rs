//! Spans as a collector receives them.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use serde_json::json;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::sim::Sim;

const COMPLETIONS: &str = "/v1/completions";

struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let _ = self.0.send(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector on a free port, and what reaches it.
async fn collector() -> (String, mpsc::UnboundedReceiver<ExportTraceServiceRequest>) {
    let (sender, received) = mpsc::unbounded_channel();
    let routes = tonic::service::Routes::new(TraceServiceServer::new(Collector(sender)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        use hyper_util::rt::{TokioExecutor, TokioIo};
        while let Ok((socket, _)) = listener.accept().await {
            let service =
                hyper_util::service::TowerToHyperService::new(routes.clone().into_axum_router());
            tokio::spawn(async move {
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    (address.to_string(), received)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_leaves_one_span_below_its_caller() {
    let (endpoint, mut received) = collector().await;
    let sim = Sim::serve(&["--otlp-traces-endpoint", &endpoint]).await;
    let body = json!({"prompt": "Hi", "max_tokens": 5, "ignore_eos": true, "temperature": 0.5});
    let headers = [
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-request-id: mine",
    ];
    let answer = sim.post_with(COMPLETIONS, &headers, &body).await;
    assert_eq!(answer.status, 200);
    // What is queued is sent when the server ends.
    sim.server.shut_down_server().await;
    let request = received.try_recv().expect("an export");
    let resource = &request.resource_spans[0];
    let keys: Vec<_> = resource
        .resource
        .iter()
        .flat_map(|r| r.attributes.iter().map(|a| a.key.as_str()))
        .collect();
    assert!(keys.contains(&"service.name"), "{keys:?}");
    let [span] = resource.scope_spans[0].spans.as_slice() else {
        panic!("one span: {request:?}");
    };
    assert_eq!(span.name, "llm_request");
    assert_eq!(span.kind, SpanKind::Server as i32);
    assert_eq!(span.trace_id[..2], [0x0a, 0xf7]);
    assert_eq!(span.parent_span_id[..2], [0xb7, 0xad]);
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    let value = |key: &str| {
        let attribute = span.attributes.iter().find(|a| a.key == key);
        attribute.and_then(|a| a.value.clone()?.value)
    };
    let id = value("gen_ai.request.id");
    assert!(matches!(&id, Some(Any::StringValue(id)) if id.starts_with("cmpl-mine")), "{id:?}");
    for (key, wanted) in [
        ("gen_ai.usage.completion_tokens", 5),
        ("gen_ai.request.max_tokens", 5),
        ("gen_ai.request.n", 1),
    ] {
        assert_eq!(value(key), Some(Any::IntValue(wanted)), "{key}");
    }
    assert_eq!(value("gen_ai.request.temperature"), Some(Any::DoubleValue(0.5)));
    for key in [
        "time_to_first_token",
        "e2e",
        "time_in_queue",
        "time_in_model_prefill",
        "time_in_model_decode",
        "time_in_model_inference",
    ] {
        let seconds = value(&format!("gen_ai.latency.{key}"));
        assert!(
            matches!(seconds, Some(Any::DoubleValue(s)) if (0.0..5.0).contains(&s)),
            "{key}: {seconds:?}"
        );
    }
}

/// A collector that takes protobuf over HTTP on a free port, and what reaches it: the line of each
/// request, its type, and its body.
async fn http_collector()
-> (String, mpsc::UnboundedReceiver<(String, String, ExportTraceServiceRequest)>) {
    let (sender, received) = mpsc::unbounded_channel();
    let take = move |request: axum::extract::Request| {
        let sender = sender.clone();
        async move {
            let line = format!("{} {}", request.method(), request.uri());
            let kind = request.headers()["content-type"].to_str();
            let kind = kind.expect("text").to_owned();
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
            let body = ExportTraceServiceRequest::decode(body.expect("a body"));
            let _ = sender.send((line, kind, body.expect("protobuf")));
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let router = axum::Router::new().fallback(take.clone());
            let service = hyper_util::service::TowerToHyperService::new(router);
            let socket = hyper_util::rt::TokioIo::new(socket);
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(socket, service),
            );
        }
    });
    (address.to_string(), received)
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_can_be_sent_as_protobuf_over_http() {
    let (address, mut received) = http_collector().await;
    let endpoint = format!("http://{address}/v1/traces");
    let flags = ["--otlp-traces-endpoint", &endpoint];
    let protocol = ["--otlp-traces-protocol", "http/protobuf"];
    let sim = Sim::serve(&[flags, protocol].concat()).await;
    let body = json!({"prompt": "Hi", "max_tokens": 2, "n": 2});
    assert_eq!(sim.post(COMPLETIONS, &body).await.status, 200);
    sim.server.shut_down_server().await;
    let (line, kind, request) = received.try_recv().expect("an export");
    assert_eq!((line.as_str(), kind.as_str()), ("POST /v1/traces", "application/x-protobuf"));
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["llm_request"; 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_collector_delays_no_request() {
    absent("grpc").await;
    absent("http/protobuf").await;
}

async fn absent(protocol: &str) {
    let flags = ["--otlp-traces-endpoint", "127.0.0.1:9"];
    let sim = Sim::serve(&[flags, ["--otlp-traces-protocol", protocol]].concat()).await;
    let body = json!({"prompt": "Hi", "max_tokens": 2});
    let all = async {
        for _ in 0..50 {
            assert_eq!(sim.post(COMPLETIONS, &body).await.status, 200);
        }
        sim.server.shut_down_server().await;
    };
    let ended = tokio::time::timeout(Duration::from_secs(10), all).await;
    assert!(ended.is_ok(), "requests and the end wait for no collector");
}
