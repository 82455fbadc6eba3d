//! Requests of the routes that vLLM has in addition to the OpenAI API.

pub mod derender;
pub mod generate;
pub mod lora;
pub mod pooling;
mod pooling_schema;
pub mod scoring;
pub mod server_control;
pub mod tokenize;

pub use generate::GenerateRequest;
pub use lora::{LoadLoraRequest, UnloadLoraRequest};
pub use pooling::PoolingRequest;
pub use scoring::GenerativeScoringRequest;
pub use tokenize::{DetokenizeRequest, TokenizeRequest};
