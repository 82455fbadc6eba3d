//! vLLM's gRPC API: `vllm.grpc.engine.VllmEngine`, health checks and reflection.
//!
//! Prompts and replies are token ids. When a client cancels a running call, the request is aborted.
//!
//! Source: `vllm/entrypoints/grpc_server.py`; the messages follow
//! `pkg/communication/grpc/engine.proto` of llm-d-inference-sim.

mod engine;
mod fault;
mod generate;
mod health;
mod parts;
mod read;
mod status;

#[rustfmt::skip]
#[expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated; the comments are in proto/vllm_engine.proto"
)]
pub mod proto;

use axum::Router;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;

use engine::VllmEngineService;
use health::HealthService;
pub use parts::{GrpcSettings, GrpcState};
use proto::vllm_engine_server::VllmEngineServer;

/// Protobuf descriptor set of [`proto`], served by gRPC reflection.
const PROTO_DESCRIPTOR_SET: &[u8] = include_bytes!("descriptor.bin");

/// Returns the axum router that serves all gRPC services over HTTP/2.
pub fn grpc_router(parts: GrpcState) -> Router {
    let largest = parts.settings.max_message_bytes;
    let engine = VllmEngineServer::new(VllmEngineService::new(parts.clone()))
        .max_decoding_message_size(largest)
        .accept_compressed(CompressionEncoding::Gzip);
    let routes = Routes::new(engine).add_service(HealthServer::new(HealthService::new(parts)));
    let described = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(PROTO_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = described().build_v1().expect("the descriptor is part of the program");
    let v1alpha = described().build_v1alpha().expect("the descriptor is part of the program");
    routes.add_service(v1).add_service(v1alpha).prepare().into_axum_router()
}
