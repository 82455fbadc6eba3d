//! The HTTP server, from outside: a real server on a free port, raw requests, raw answers.
//!
//! - `shapes_*`: every response shape against a golden file
//! - `transport`: headers, CORS, keys, methods, protocols, limits of the connection
//! - `life`: disconnects, full queues, shutdown
//! - `adapters`: which adapters `/metrics` shows
//! - `audio`: speech to text
//! - `bounds`: what multiplies the cost of a request
//! - `content`: what decides of the text: forced tools, budgets, seeds, stop rules within parts
//! - `custom_tools`: tools that take free text
//! - `dashboard`: what the page asks for beside `/metrics`
//! - `derender`: replies from tokens
//! - `endpoints`: the page of endpoints against the routes
//! - `faults`: replies that go wrong on purpose
//! - `hostile`: input that is wrong, huge or malicious
//! - `live_trace`: the trace that the dashboard downloads
//! - `llmd`, `llmd_lenient`, `llmd_peer`: what llm-d says, and what it takes, with `--compat llm-d`
//! - `llmd_events`: KV-cache events in llm-d's form
//! - `layer_groups`: models whose layers do not all see everything
//! - `load_failures`: prompts that cannot be loaded
//! - `log`: the log of a server that runs on the thread of its test
//! - `logprobs`: values of log probabilities, and of embeddings
//! - `media`: images, audio and video in prompts and replies
//! - `metering`: tokens of requests, also of those that are cut
//! - `previews`: what open pull requests of vLLM add
//! - `realtime`: speech over WebSockets
//! - `refusals`: status, type, parameter and message of errors
//! - `replies`: scripted replies, and the history of requests
//! - `sglang`, `sglang_control`, `sglang_shapes`, `sglang_pair`, `sglang_consumers`: errors, metrics, responses, KV events
//!   and prefill/decode pairs of `vllm-sim sglang`
//! - `scenarios`: settings changed while requests run, and failures over time
//! - `rules`: stop rules, usage, repeatability
//! - `events`, `event_drills`: KV-cache events on the wire, late and lost ones too
//! - `flags`: what single flags of vLLM change
//! - `fleet`: several servers in one process
//! - `host_tier`: a prefix cache in the memory of the host
//! - `pd`: prefill and decode behind a sidecar
//! - `peers`, `peer_failures`: prefill servers that are gone, restarted or of another kind
//! - `tls`: certificates
//! - `grpc`: the gRPC server
//! - `pooling_parameters`: truncation, padding, limits and encodings of pooling requests
//! - `protocols`, `compat_protocols`: responses, messages, batches, invocations
//! - `ops`: operators' routes
//! - `origins`: pages of other origins
//! - `otel`: spans
//! - `engine_settings`: flags of the engine, seen from outside
//! - `tools`: calls of tools
//! - `tuning`: bounds and delays changed at runtime, and what a restart forgets
//! - `transfer`: disaggregated prefill and cache thresholds
//! - `upstream`: where several routes of vLLM agree with each other
//! - `versions`: the answers of each imitated vLLM release

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod adapters;
mod audio;
mod bounds;
mod compat_protocols;
mod content;
mod custom_tools;
mod dashboard;
mod derender;
mod endpoints;
mod engine_settings;
mod event_drills;
mod events;
mod faults;
mod flags;
mod fleet;
mod golden;
mod grpc;
mod host_tier;
mod hostile;
mod layer_groups;
mod life;
mod live_trace;
mod llmd;
mod llmd_events;
mod llmd_lenient;
mod llmd_peer;
mod load_failures;
mod log;
mod logprobs;
mod media;
mod metering;
mod ops;
mod origins;
mod otel;
mod pausing;
mod pd;
mod peer_failures;
mod peers;
mod pooling_parameters;
mod previews;
mod protocols;
mod realtime;
mod refusals;
mod replies;
mod reply_rules;
mod restarts;
mod rules;
mod scenarios;
mod sglang;
mod sglang_consumers;
mod sglang_control;
mod sglang_pair;
mod sglang_refusals;
mod sglang_routes;
mod sglang_shapes;
mod shapes_audio;
mod shapes_chat;
mod shapes_completions;
mod shapes_messages;
mod shapes_ops;
mod shapes_pooling;
mod shapes_responses;
mod shapes_tokens;
mod shapes_tools;
mod sim;
// Draft tokens.
mod speculation;
mod tls;
mod tools;
mod transfer;
mod transport;
mod tuning;
mod upstream;
mod versions;
mod wire;
