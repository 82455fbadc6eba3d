//! What the server says of itself: info, probes, reflection, faults on purpose.

use super::*;

#[tokio::test]
async fn the_server_reports_its_info() {
    let mut sim = start(&["--max-model-len", "2048"]).await;
    let client = &mut sim.client;
    let model = client.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((model.model_path.as_str(), model.max_context_length), ("m", 2048));
    assert_eq!((model.is_generation, model.supports_vision), (true, false));
    let health = client.health_check(HealthCheckRequest {}).await.unwrap().into_inner();
    assert_eq!((health.healthy, health.message.as_str()), (true, "Health"));
    let before = client.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((before.active_requests, before.is_paused), (0, false));
    assert_eq!((before.server_type.as_str(), before.last_receive_timestamp), ("vllm-grpc", 0.0));
    complete(client, request(1, false)).await;
    let after = client.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert!(after.last_receive_timestamp > 1.7e9 && after.uptime_seconds > before.uptime_seconds);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn compressed_messages_are_read() {
    let sim = start(&[]).await;
    let gzip = tonic::codec::CompressionEncoding::Gzip;
    let mut client = sim.client.clone().send_compressed(gzip);
    let reply = complete(&mut client, request(4, false)).await;
    assert_eq!(reply.output_ids.len(), 4);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_paused_server_reports_it() {
    let mut sim = start(&[]).await;
    let service = sim.server.app_state().service().clone();
    service.pause_generation(PauseMode::Abort).await;
    let info = sim.client.get_server_info(GetServerInfoRequest {}).await;
    assert!(info.unwrap().into_inner().is_paused);
    let text = "Generation is paused. Please retry after it resumes.".to_owned();
    let said = refusal(&mut sim.client, request(4, true)).await;
    assert_eq!(said, (Code::Unavailable, text));
    service.resume_generation();
    complete(&mut sim.client, request(4, false)).await;
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn grpc_health_check_follows_server_state() {
    let sim = start(&["--startup-duration", "300ms"]).await;
    let mut health = HealthClient::with_origin(sim.connection.clone(), origin());
    let probe = |service: &str| Probe { service: service.to_owned() };
    let watched = health.watch(probe("vllm.grpc.engine.VllmEngine")).await.unwrap();
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
    sim.server.app_state().begin_shutdown();
    let last = watched.next().await.unwrap().unwrap().status();
    assert_eq!(last, ServingStatus::NotServing);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let sim = start(&[]).await;
    let mut reflection = ServerReflectionClient::with_origin(sim.connection.clone(), origin());
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection.server_reflection_info(tokio_stream::once(asked)).await.unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("a list was expected, not {answer:?}");
    };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "vllm.grpc.engine.VllmEngine"
        ]
    );
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn unknown_method_is_unimplemented() {
    let sim = start(&[]).await;
    let mut client = tonic::client::Grpc::with_origin(sim.connection.clone(), origin());
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/vllm.grpc.engine.VllmEngine/Nothing");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
    let asked = tonic::Request::new(HealthCheckRequest {});
    let status = client.unary(asked, path, codec).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn http_and_grpc_share_a_server_and_pods_are_named() {
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
    let answer = sim.client.health_check(HealthCheckRequest {}).await.unwrap();
    let named = ["x-inference-pod", "server"].map(|name| answer.metadata().get(name));
    assert_eq!(named.map(|value| value.map(|v| v.to_str().unwrap())), [Some("pod-1"), None]);
    sim.server.shut_down_server().await;
}

/// Tokens that came, and how it ended.
async fn spoiled(client: &mut VllmEngineClient<Connection>, fault: &str) -> (usize, Option<Code>) {
    let mut asked = tonic::Request::new(request(8, true));
    asked.metadata_mut().insert("x-sim-fault", fault.parse().unwrap());
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
async fn fault_metadata_injects_grpc_failure() {
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
async fn failure_rate_applies_to_grpc() {
    let mut sim = start(&["--failure-injection-rate", "50"]).await;
    let mut failed = 0;
    for _ in 0..100 {
        failed += usize::from(sim.client.generate(request(1, false)).await.is_err());
    }
    assert!((30..70).contains(&failed), "{failed} of 100");
}

#[tokio::test]
async fn calls_to_the_model_need_the_key_that_http_asks_for() {
    let mut sim = start(&["--api-key", "k"]).await;
    let mut generate = async |key: Option<&str>| {
        let mut asked = tonic::Request::new(request(1, false));
        if let Some(key) = key {
            let value = format!("Bearer {key}").parse().unwrap();
            asked.metadata_mut().insert("authorization", value);
        }
        let answer = sim.client.generate(asked).await;
        answer.map(|_| ()).map_err(|status| status.code())
    };
    assert_eq!(generate(None).await, Err(Code::Unauthenticated));
    assert_eq!(generate(Some("other")).await, Err(Code::Unauthenticated));
    assert_eq!(generate(Some("k")).await, Ok(()));
    let probe = sim.client.health_check(HealthCheckRequest {}).await;
    assert_eq!(probe.map(|_| ()).map_err(|status| status.code()), Ok(()));
    sim.server.shut_down_server().await;
}
