//! The standard gRPC health check, `grpc.health.v1.Health`.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::parts::GrpcState;

const HEALTH_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Service names known to the gRPC health check; the empty name means the whole server.
const KNOWN_SERVICES: [&str; 5] = [
    "",
    "vllm.grpc.engine.VllmEngine",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

pub(super) struct HealthService {
    parts: GrpcState,
}

impl HealthService {
    pub(super) fn new(grpc_state: GrpcState) -> Self {
        Self { parts: grpc_state }
    }
}

fn serving_status(parts: &GrpcState, service: &str) -> ServingStatus {
    if !KNOWN_SERVICES.contains(&service) {
        ServingStatus::ServiceUnknown
    } else if parts.check_health().is_ok() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match serving_status(&self.parts, &request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("service not registered")),
            known => Ok(Response::new(health_response(known))),
        }
    }

    /// Streams the current health status of a service, and each change of this status.
    ///
    /// An unknown service gets a status instead of an error, because it may be registered later.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let parts = self.parts.clone();
        let changes = stream::unfold(None, move |last| {
            let (parts, service) = (parts.clone(), service.clone());
            async move {
                loop {
                    let now = serving_status(&parts, &service);
                    if last != Some(now) {
                        return Some((Ok(health_response(now)), Some(now)));
                    }
                    tokio::time::sleep(HEALTH_POLL_INTERVAL).await;
                }
            }
        });
        Ok(Response::new(changes.boxed()))
    }
}
