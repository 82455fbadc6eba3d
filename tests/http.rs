//! The HTTP face, from outside: a real server on a free port, raw requests, raw answers.
//!
//! - `shapes_*`: every response shape against a golden file
//! - `transport`: headers, CORS, keys, methods, protocols, limits of the connection
//! - `life`: disconnects, full queues, shutdown
//! - `audio`: speech to text
//! - `custom_tools`: tools that take free text
//! - `derender`: replies from tokens
//! - `drills`: settings changed while requests run, and failures over time
//! - `faults`: replies that go wrong on purpose
//! - `hostile`: input that is wrong, huge or malicious
//! - `llmd`: llm-d's words with `--compat llm-d`
//! - `media`: pictures, sounds and films in prompts and replies
//! - `realtime`: speech over WebSockets
//! - `refusals`: status, type, parameter and words of errors
//! - `rules`: stop rules, usage, repeatability
//! - `events`: KV-cache events on the wire
//! - `flags`: what single flags of vLLM change
//! - `fleet`: several servers in one process
//! - `pd`: prefill and decode behind a sidecar
//! - `tls`: certificates
//! - `tools`: calls of tools
//! - `tuning`: bounds and delays changed at runtime, and what a restart forgets
//! - `transfer`: disaggregated prefill and cache thresholds
//! - `upstream`: where several routes of vLLM agree with each other

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: what cannot be unwrapped is a failure"
)]

#[path = "http/audio.rs"]
mod audio;
#[path = "http/custom_tools.rs"]
mod custom_tools;
#[path = "http/derender.rs"]
mod derender;
#[path = "http/drills.rs"]
mod drills;
#[path = "http/events.rs"]
mod events;
#[path = "http/faults.rs"]
mod faults;
#[path = "http/flags.rs"]
mod flags;
#[path = "http/fleet.rs"]
mod fleet;
#[path = "http/golden.rs"]
mod golden;
#[path = "http/hostile.rs"]
mod hostile;
#[path = "http/life.rs"]
mod life;
#[path = "http/llmd.rs"]
mod llmd;
#[path = "http/media.rs"]
mod media;
#[path = "http/pd.rs"]
mod pd;
#[path = "http/realtime.rs"]
mod realtime;
#[path = "http/refusals.rs"]
mod refusals;
#[path = "http/rules.rs"]
mod rules;
#[path = "http/shapes_chat.rs"]
mod shapes_chat;
#[path = "http/shapes_completions.rs"]
mod shapes_completions;
#[path = "http/shapes_ops.rs"]
mod shapes_ops;
#[path = "http/sim.rs"]
mod sim;
#[path = "http/tls.rs"]
mod tls;
#[path = "http/tools.rs"]
mod tools;
#[path = "http/transfer.rs"]
mod transfer;
#[path = "http/transport.rs"]
mod transport;
#[path = "http/tuning.rs"]
mod tuning;
#[path = "http/upstream.rs"]
mod upstream;
#[path = "http/wire.rs"]
mod wire;
