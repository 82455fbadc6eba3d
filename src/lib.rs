//! vllm-sim: a vLLM deployment seen from outside, with no GPU and no model.
//!
//! The generator decides what is said, the engine decides when, the API decides how it
//! looks. `ARCHITECTURE.md` has the map.

pub mod cli;
pub mod config;
pub mod dataset;
pub mod driver;
pub mod engine;
pub mod fault;
pub mod generate;
pub mod grpc;
pub mod http;
pub mod job;
pub mod kv_events;
pub mod kv_transfer;
pub mod metrics;
pub mod net;
pub mod otel;
pub mod replay;
pub mod scenario;
pub mod server;
pub mod service;
pub mod sim;
pub mod tls;
pub mod tokenizer;
pub mod tools;
pub mod wire;
