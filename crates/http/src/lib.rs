#![doc = include_str!("../README.md")]
//!
//! # Structure
//!
//! `routes.rs` lists every route, `layers.rs` the middleware around them, `app.rs` the state of
//! handlers. Handlers of one API share a folder. Replies with tokens are written directly as text
//! (`*_render.rs`), and `stream.rs` sends them as server-sent events.

mod access_log;
mod admin;
mod admin_requests;
mod admin_state;
mod annotations;
mod anthropic;
mod api_key;
mod app;
mod applied_settings;
mod audio;
mod bearer;
mod body;
mod body_prefix_recorder;
mod dashboard;
mod dialect;
mod error;
mod fault;
mod generation;
mod html_page;
mod imitated;
mod invocations;
mod layers;
mod live_trace;
mod media;
mod metric_history;
mod middleware;
pub mod mooncake_bootstrap;
mod openai;
mod ops;
mod output_piece;
mod peers;
mod pooling;
mod query;
mod request_head;
mod request_history;
mod request_log;
mod routes;
mod same_origin;
mod server_controls;
pub mod settings;
pub mod sglang;
mod stream;
mod token_ids;
mod tokenize;
mod transfer;
mod vllm;

use vllm_sim_python::json;

pub use admin_state::AdminState;
pub use app::{App, AppConstructorArgs, RouteIndex};
pub use dashboard::history::sample_metrics_periodically;
pub use dialect::ApiRules;
pub use imitated::api_rules;
pub use layers::{HttpService, MiddlewareSettings, ResponseFuture};
pub use peers::{DashboardPeer, SUMMARY_PATH};
pub use routes::{build_routes, serves_admin_config};
pub use server_controls::ServerControls;
