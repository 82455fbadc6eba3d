//! How it looks over HTTP: one endpoint, one file: parse, call, render.

mod admin;
mod anthropic;
mod app;
mod audio;
mod body;
pub mod bootstrap;
mod dashboard;
mod desk;
mod edge;
mod error;
mod fault;
mod faulty;
mod invocations;
mod journal;
mod json;
mod link;
mod media;
mod omni;
mod openai;
mod ops;
mod overheard;
mod pooling;
mod query;
mod routes;
mod stream;
mod tokenize;
mod transfer;
mod vllm;

pub use app::{App, Parts};
pub use desk::Desk;
pub use edge::Edge;
pub use link::Link;
pub use routes::routes;
