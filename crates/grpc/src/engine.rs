//! The gRPC methods of `vllm.grpc.engine.VllmEngine`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::{Code, Request, Response, Status};

use super::generate::GenerateMessageStream;
use super::parts::GrpcState;
use super::proto::vllm_engine_server::VllmEngine;
use super::proto::{
    AbortRequest, AbortResponse, EmbedRequest, EmbedResponse, GenerateRequest, GetModelInfoRequest,
    GetModelInfoResponse, GetServerInfoRequest, GetServerInfoResponse, HealthCheckRequest,
    HealthCheckResponse,
};
use super::read::GrpcCallMetadata;
use super::{fault, read, status};
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::RequestContext;
use vllm_sim_service::pooling::llmd_embedding;

/// Implements the gRPC methods of `vllm.grpc.engine.VllmEngine`.
pub(super) struct VllmEngineService {
    parts: GrpcState,
    /// Time of the latest `Generate` call, in seconds since the Unix epoch, as the bits of an
    /// `f64`.
    last_receive: AtomicU64,
}

impl VllmEngineService {
    pub(super) fn new(grpc_state: GrpcState) -> Self {
        Self { parts: grpc_state, last_receive: AtomicU64::new(0f64.to_bits()) }
    }

    /// Adds the metadata `retry-after` to a retryable gRPC status that lacks it, like the header of
    /// HTTP error responses.
    fn with_retry_after(&self, status: Status) -> Status {
        let settings = self.parts.service.faults.settings();
        match settings.retry_after_seconds {
            Some(seconds)
                if matches!(status.code(), Code::ResourceExhausted | Code::Unavailable) =>
            {
                status::add_retry_after(status, seconds)
            }
            _ => status,
        }
    }
}

#[tonic::async_trait]
impl VllmEngine for VllmEngineService {
    type GenerateStream = GenerateMessageStream;

    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<GenerateMessageStream>, Status> {
        self.last_receive.store(unix_now_secs().to_bits(), Ordering::Relaxed);
        let health = self.parts.check_health();
        health.map_err(|why| self.with_retry_after(Status::unavailable(why)))?;
        let rank = request.metadata().get("x-data-parallel-rank");
        let rank = rank.and_then(|rank| rank.to_str().ok()?.trim().parse().ok());
        let text = |name: &str| request.metadata().get(name)?.to_str().ok();
        let trace =
            text("traceparent").map(|parent| (parent.into(), text("tracestate").map(Into::into)));
        let headers = self.parts.service.replies.headers_read_by_reply_rules(text);
        let mut faults = fault::decide_call_faults(&self.parts, &request)?;
        faults.wait_first_byte_delay(&self.parts.service).await;
        let failed = fault::fail_if_error_injected(&self.parts, &faults);
        failed.map_err(|status| self.with_retry_after(status))?;
        fault::remove_http_only_faults(&mut faults);
        let context = request.extensions().get::<RequestContext>().cloned().unwrap_or_default();
        let request = request.into_inner();
        if self.parts.settings.logs_messages {
            tracing::info!(message = ?request, "gRPC Generate");
        }
        let stream = request.stream;
        let injector = faults.reply_fault_injector(&self.parts.service);
        let context = RequestContext { faults: Some(Arc::new(faults)), ..context };
        let metadata = GrpcCallMetadata { rank, trace, headers, context };
        let request = read::to_generation_request(
            &self.parts,
            &self.parts.settings.rules.limits,
            request,
            metadata,
        );
        let refused = |refusal| self.with_retry_after(status::rejection_status(refusal));
        let service = &self.parts.service;
        let resolved = service.resolve_model(&self.parts.settings.rules, None).map_err(refused)?;
        let generated =
            service.generate_reply(&self.parts.settings.rules, resolved, Box::new(request)).await;
        let (reply, _) = generated.map_err(|refusal| refused(refusal.error))?;
        Ok(Response::new(GenerateMessageStream::new(reply, stream, injector)))
    }

    async fn embed(
        &self,
        request: Request<EmbedRequest>,
    ) -> Result<Response<EmbedResponse>, Status> {
        let input = request.into_inner().tokenized.unwrap_or_default();
        let tokens = read::read_prompt_token_ids(&self.parts, input).await;
        if tokens.is_empty() {
            return Err(Status::invalid_argument(
                "input is required and must be a non-empty string or array",
            ));
        }
        let embedding_dim = self.parts.settings.embedding_dim;
        Ok(Response::new(EmbedResponse {
            embedding: llmd_embedding(&tokens, embedding_dim as usize),
            prompt_tokens: tokens.len() as u32,
            embedding_dim,
        }))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let health = self.parts.check_health();
        Ok(Response::new(HealthCheckResponse {
            healthy: health.is_ok(),
            message: health.err().unwrap_or("Health").to_owned(),
        }))
    }

    async fn abort(
        &self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        // An empty list aborts no request; `None` would abort all.
        self.parts.service.abort_requests(Some(&request.into_inner().request_ids));
        Ok(Response::new(AbortResponse {}))
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        let settings = &self.parts.settings;
        Ok(Response::new(GetModelInfoResponse {
            model_path: settings.model.clone(),
            is_generation: true,
            max_context_length: settings.rules.limits.max_model_len,
            vocab_size: self.parts.service.generator.tokenizer().vocab_size(),
            supports_vision: settings.supports_vision,
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        Ok(Response::new(GetServerInfoResponse {
            active_requests: self.parts.service.in_flight_sequences(),
            is_paused: self.parts.service.control.is_paused(),
            last_receive_timestamp: f64::from_bits(self.last_receive.load(Ordering::Relaxed)),
            uptime_seconds: self.parts.uptime_seconds(),
            server_type: "vllm-grpc".to_owned(),
        }))
    }
}
