//! How it looks over HTTP: one endpoint, one file: parse, call, render.

mod admin;
mod admin_state;
mod anthropic;
mod app;
mod audio;
mod availability;
mod body;
mod body_tap;
pub mod bootstrap;
mod dashboard;
mod edge;
mod error;
mod fault;
mod faulty;
mod image_output;
mod invocations;
mod json;
mod media;
mod openai;
mod ops;
mod pooling;
mod query;
mod request_log;
mod routes;
mod stream;
mod tokenize;
mod transfer;
mod vllm;

pub use admin_state::AdminState;
pub use app::{App, Parts};
pub use availability::Availability;
pub use edge::Edge;
pub use routes::routes;
