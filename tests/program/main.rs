//! The program from outside: command lines, tools, files, and what is shipped around it.
//!
//! - `architecture`: length of files, circles of imports, tests that sleep, paths that must not be
//!   committed; with `imports` and `rust_tokens`, which read the sources
//! - `calibrate`, `engine_validate`, `engine_dynamo`, `replay_command`, `online`: the tools that
//!   predict
//! - `compat`: command lines of other projects
//! - `config`: flags, files and environment to one configuration
//! - `dataset`, `record`: recorded replies
//! - `fuzz`: readers of what others wrote, on inputs near those of the tests
//! - `log`: a log that cannot be written
//! - `ship`: dashboards, alerts, manifests
//! - `tool_usage`: wrong usage of every command
//! - `wire`: recorded errors of vLLM

mod architecture;
mod calibrate;
mod compat;
mod config;
mod dataset;
mod engine_dynamo;
mod engine_validate;
mod fuzz;
mod imports;
mod log;
mod online;
mod record;
mod replay_command;
mod rust_tokens;
mod ship;
mod tool_usage;
mod wire;
