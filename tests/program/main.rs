//! The program from outside: command lines, tools, files, and what is shipped around it.
//!
//! - `architecture`: length of files, circles of imports, tests that sleep, paths that must not be
//!   committed; with `imports` and `rust_tokens`, which read the sources
//! - `calibrate`, `engine_aisimulate`, `engine_dynamo`, `engine_validate`, `explain`, `online`, `plan`,
//!   `replay_command`: the tools that predict
//! - `compat`: command lines of other projects
//! - `config`: flags, files and environment to one configuration
//! - `dataset`, `record`: recorded replies
//! - `deployment_warnings`: what the tools say about deployments that vLLM or the simulation does not
//!   support
//! - `engine_core`: engines behind an API server of vLLM, played by the test
//! - `fuzz`: readers of what others wrote, on inputs near those of the tests
//! - `gateway`, `gateway_answers`: `gateway score` with gateways of the tests
//! - `log`: a log that cannot be written
//! - `ship`: dashboards, alerts, manifests
//! - `start`: what the program says when it starts, and where
//! - `tool_usage`: wrong usage of every command
//! - `wire`: recorded errors of vLLM
//! - `without_effect`: settings that have no effect with other settings

mod architecture;
mod calibrate;
mod compat;
mod config;
mod dataset;
mod deployment_warnings;
mod engine_aisimulate;
mod engine_core;
mod engine_dynamo;
mod engine_validate;
mod exit_codes;
mod explain;
mod file_checks;
mod fuzz;
mod gateway;
mod gateway_answers;
mod imports;
mod log;
mod model_files;
mod online;
mod outputs;
mod plan;
mod plan_files;
mod plan_layouts;
mod record;
mod replay_command;
mod replay_trace;
mod rust_tokens;
mod ship;
mod start;
mod tool_usage;
mod wire;
mod without_effect;
