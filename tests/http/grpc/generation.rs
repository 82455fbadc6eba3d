//! Calls that generate or embed, and how they are refused.

use super::*;

#[tokio::test]
async fn unary_generate_returns_one_complete_message() {
    let mut sim = start(&[]).await;
    let whole = complete(&mut sim.client, request(8, false)).await;
    let shown = (whole.output_ids.len(), whole.completion_tokens, whole.prompt_tokens);
    assert_eq!(shown, (8, 8, 5));
    assert_eq!((whole.finish_reason.as_str(), whole.cached_tokens), ("length", 0));
    let again = complete(&mut sim.client, request(8, false)).await;
    assert_eq!(again.output_ids, whole.output_ids, "the server's seed was chosen");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_stream_is_a_chunk_per_token_and_ends_with_the_last_one_again() {
    let mut sim = start(&[]).await;
    let whole = complete(&mut sim.client, request(8, false)).await;
    let mut streamed = generate(&mut sim.client, request(8, true)).await;
    let last = GenerateComplete {
        output_ids: whole.output_ids[7..].to_vec(),
        completion_tokens: 1,
        ..whole.clone()
    };
    assert_eq!(streamed.pop(), Some(Response::Complete(last)));
    let expected = whole.output_ids.iter().map(|id| {
        Response::Chunk(GenerateStreamChunk {
            token_ids: vec![*id],
            prompt_tokens: 5,
            completion_tokens: 1,
            cached_tokens: 0,
        })
    });
    assert_eq!(streamed, expected.collect::<Vec<_>>());
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn text_is_tokenised_and_echoed() {
    let mut sim = start(&["--mode", "echo"]).await;
    let text = |text: &str| GenerateRequest {
        input: Some(Input::Text(text.to_owned())),
        ..GenerateRequest::default()
    };
    let whole = complete(&mut sim.client, text("This is a test.")).await;
    let known = [3_157_421_587, 1_477_013_615, 186_949_092, 2_949_673_445, 722_245_873];
    assert_eq!(whole.output_ids[..5], known);
    assert_eq!((whole.prompt_tokens, whole.finish_reason.as_str()), (5, "stop"));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_repeated_prompt_is_cached() {
    let mut sim = start(&["--enable-kvcache", "--block-size", "8"]).await;
    let prompt: Vec<u32> = (0..40).collect();
    let asked = GenerateRequest { input: ids(&prompt), ..request(2, false) };
    let first = complete(&mut sim.client, asked.clone()).await.cached_tokens;
    let second = complete(&mut sim.client, asked).await.cached_tokens;
    // llm-d's cache: the last block counts as well.
    assert_eq!((first, second), (0, 40));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn an_aborted_request_ends_with_what_it_has() {
    let mut sim = start(&["--inter-token-latency", "20ms"]).await;
    let mut stream = sim.client.generate(request(900, true)).await.unwrap().into_inner();
    let first = chunk(&mut stream).await;
    let other = AbortRequest { request_ids: vec!["nobody".to_owned()] };
    sim.client.abort(other).await.unwrap();
    chunk(&mut stream).await;
    let abort = AbortRequest { request_ids: vec!["nobody".to_owned(), "r900".to_owned()] };
    sim.client.abort(abort).await.unwrap();
    let mut chunks = vec![first];
    let last = loop {
        match stream.next().await.unwrap().unwrap().response.unwrap() {
            Response::Chunk(chunk) => chunks.push(chunk),
            Response::Complete(complete) => break complete,
        }
    };
    assert_eq!(last.finish_reason, "abort");
    // The end of an abort brings no token, neither as a chunk nor in the last message.
    assert_eq!(last.completion_tokens, 0, "{last:?}");
    let tokens: Vec<_> = chunks.iter().map(|chunk| chunk.token_ids.len()).collect();
    let (end, before) = tokens.split_last().unwrap();
    assert_eq!(*end, 0);
    assert!(before.iter().all(|n| *n == 1) && before.len() < 100, "{tokens:?}");
    drop(stream);
    until_idle(&mut sim.client).await;
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_disconnected_client_aborts_its_request() {
    let mut sim = start(&["--inter-token-latency", "20ms"]).await;
    let mut stream = sim.client.generate(request(900, true)).await.unwrap().into_inner();
    chunk(&mut stream).await;
    drop(stream);
    until_idle(&mut sim.client).await;
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn grpc_errors_have_vllm_text_and_llmd_codes() {
    let mut sim = start(&["--max-model-len", "16"]).await;
    let client = &mut sim.client;
    let invalid = |text: &str| (Code::InvalidArgument, text.to_owned());
    let empty = GenerateRequest { input: ids(&[]), ..request(4, false) };
    assert_eq!(refusal(client, empty).await, invalid("The decoder prompt cannot be empty"));
    let hot = with(|params| params.temperature = Some(3.0));
    let said = refusal(client, hot).await;
    assert_eq!(said.0, Code::InvalidArgument);
    assert!(said.1.starts_with("temperature must be in [0, 2], got 3.0"), "{}", said.1);
    let long = GenerateRequest { input: ids(&[9; 20]), ..request(4, false) };
    let said = refusal(client, long).await;
    assert!(said.1.starts_with("This model's maximum context length is 16 tokens."), "{}", said.1);
    let cut = GenerateRequest {
        input: ids(&[9; 20]),
        ..with(|params| params.truncate_prompt_tokens = Some(6))
    };
    assert_eq!(complete(client, cut).await.prompt_tokens, 6);
    let schema = with(|p| p.constraint = Some(Constraint::JsonSchema("{".to_owned())));
    assert_eq!(refusal(client, schema).await, invalid("Invalid JSON grammar specification."));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn full_queue_is_resource_exhausted() {
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
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn choice_constraint_returns_listed_choice() {
    let mut sim = start(&[]).await;
    let choices = vec!["This ".to_owned()];
    let asked = with(|params| {
        params.ignore_eos = false;
        params.constraint = Some(Constraint::Choice(ChoiceConstraint { choices }));
    });
    let whole = complete(&mut sim.client, asked).await;
    assert_eq!((whole.output_ids[0], whole.finish_reason.as_str()), (3_157_421_587, "stop"));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn embedding_is_deterministic_per_tokens() {
    let mut sim = start(&["--default-embedding-dimensions", "6"]).await;
    let embed = |text: &str| EmbedRequest {
        request_id: String::new(),
        tokenized: Some(TokenizedInput { original_text: text.to_owned(), input_ids: Vec::new() }),
    };
    let made = sim.client.embed(embed("This is a test.")).await.unwrap().into_inner();
    let known =
        [0.037_109_375, -0.783_203_1, -0.054_687_5, -0.052_734_375, -0.529_296_9, -0.851_562_5];
    assert_eq!(
        (made.embedding.as_slice(), made.prompt_tokens, made.embedding_dim),
        (&known[..], 5, 6)
    );
    let status = sim.client.embed(embed("")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    sim.server.shut_down_server().await;
}

/// A whole exchange over HTTP/1 with the server of a gRPC test.
async fn ask(sim: &Running, request: &[u8]) -> serde_json::Value {
    let stream = TcpStream::connect(sim.server.address.unwrap()).await;
    let mut wire = crate::wire::Wire::new(stream.unwrap());
    wire.send(request).await;
    wire.answer().await.json()
}

fn retry_after(status: &tonic::Status) -> &str {
    status.metadata().get("retry-after").unwrap().to_str().unwrap()
}

#[tokio::test]
async fn scripted_replies_and_failures_work_over_grpc_and_are_recorded() {
    let flags = ["--request-history", "10", "--retry-after", "9"];
    let mut sim = start(&[&flags[..], &["--enable-request-id-headers"]].concat()).await;
    let rule = b"- {when: {contains: weather}, say: It is warm., fail: {times: 1, error: rate_limit, retry_after: 3}}";
    ask(&sim, &crate::sim::post("/admin/replies", &[], rule)).await;
    let asked = |text: &str| {
        let mut request = tonic::Request::new(GenerateRequest {
            input: Some(Input::Text(text.to_owned())),
            ..GenerateRequest::default()
        });
        request.metadata_mut().insert("x-request-id", "a".parse().unwrap());
        request
    };
    let weather = "How is the weather?";
    let refused = sim.client.generate(asked(weather)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(retry_after(&refused), "3");
    assert_eq!(refused.metadata().get("x-request-id").unwrap(), "a");
    let whole = complete(&mut sim.client, asked(weather).into_inner()).await;
    let mut echo = start(&["--mode", "echo"]).await;
    let said = complete(&mut echo.client, asked("It is warm.").into_inner()).await;
    assert_eq!(whole.output_ids, said.output_ids);
    let mut stream = sim.client.generate(asked(weather)).await.unwrap().into_inner();
    while stream.next().await.is_some() {}
    let shown = ask(&sim, b"GET /admin/requests?wait=3 HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let requests = shown["requests"].as_array().unwrap();
    let column = |name: &str| -> Vec<_> { requests.iter().map(|r| r[name].clone()).collect() };
    assert_eq!(column("outcome"), ["refused", "finished", "finished"], "{shown}");
    assert_eq!(column("grpc_status"), [8, 0, 0]);
    assert_eq!(column("path")[0], "/vllm.grpc.engine.VllmEngine/Generate");
    assert_eq!(requests[2]["attempt"], 2);
    assert_eq!(requests[1]["completion_tokens"], whole.completion_tokens);
    echo.server.shut_down_server().await;
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn scripted_replies_match_metadata_as_headers() {
    let mut sim = start(&[]).await;
    let rules = b"- {when: {header: {X-Tenant: acme}}, fail: {error: 404}}";
    ask(&sim, &crate::sim::post("/admin/replies", &[], rules)).await;
    let mut call = tonic::Request::new(request(4, false));
    call.metadata_mut().insert("x-tenant", "acme".parse().unwrap());
    let refused = sim.client.generate(call).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    complete(&mut sim.client, request(4, false)).await;
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn an_injected_failure_has_a_retry_time_over_grpc() {
    let flags = ["--failure-injection-rate", "100", "--failure-types", "rate_limit"];
    let mut sim = start(&[&flags[..], &["--retry-after", "9"]].concat()).await;
    let refused = sim.client.generate(request(4, false)).await.unwrap_err();
    assert_eq!(retry_after(&refused), "9");
    sim.server.shut_down_server().await;
}
