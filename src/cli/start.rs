//! Start-up log lines of a server, and the file of `--ready-file`.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::server::{ServerFleet, SimulatorServer};
use vllm_sim_command_line::output_files;
use vllm_sim_config::{CliMode, Config, LoadedConfig};
use vllm_sim_http::api_rules;

/// Logs one line with the imitated release and the command-line mode.
pub(super) fn log_start_of_server(loaded: &LoadedConfig) {
    let model = &loaded.config.model;
    let api = api_rules(model.compat);
    let (project, release) = api.release(model.vllm_version);
    let command_line = api.launch_command().unwrap_or(match model.cli_mode {
        CliMode::Llmd => "llm-d-inference-sim",
        CliMode::Vllm => "`vllm serve`",
    });
    tracing::info!(
        "vllm-sim {} imitates {project} {release}, with the flags of {command_line}",
        env!("CARGO_PKG_VERSION"),
    );
    for preview in &model.previews {
        tracing::info!(
            "preview: {} of the open pull request vllm-project/vllm#{}",
            preview.name,
            preview.pull_request
        );
    }
    // The `Debug` output of the configuration would contain keys.
    let configuration = Value::Object(loaded.to_admin_json());
    tracing::debug!(%configuration, "all arguments");
}

/// Logs the addresses of the pages, and last the address of the server.
pub(super) fn log_listen_addresses(fleet: &ServerFleet) {
    let Some(first) = fleet.running_servers().first() else {
        return;
    };
    let config = first.config();
    let model = config.model.served_names.first();
    let model = model.map(String::as_str).unwrap_or_default();
    let seed = first.app_state().service().settings().seed;
    let url = client_url(first);
    if let Some(url) = &url {
        tracing::info!("API {url}/v1");
        let serves = |path: &str| first.app_state().serves_path(path);
        if serves("/docs") {
            tracing::info!("docs {url}/docs");
        }
        tracing::info!("dashboard {url}/dashboard");
        if serves("/metrics") {
            tracing::info!("metrics {url}/metrics");
        }
        if let Some(address) = first.grpc_address {
            tracing::info!("gRPC {}", loopback_if_unspecified(address));
        }
    }
    let place = match (url, &config.server.uds) {
        (Some(url), _) => url,
        (None, Some(path)) => format!("unix:{}", path.display()),
        (None, None) => "a socket".to_owned(),
    };
    let more = match fleet.running_servers().len() {
        1 => String::new(),
        servers => format!(" and {} more", servers - 1),
    };
    tracing::info!("listening on {place}{more}: model {model}, seed {seed}");
}

/// Returns the URL of a server for clients on this machine; `None` for a Unix socket.
fn client_url(server: &SimulatorServer) -> Option<String> {
    let address = server.address?;
    let scheme = match server.config().server.tls {
        Some(_) => "https",
        None => "http",
    };
    Some(format!("{scheme}://{}", loopback_if_unspecified(address)))
}

/// Replaces an unspecified IP address such as `0.0.0.0` by loopback, because some clients cannot
/// connect to it.
fn loopback_if_unspecified(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, address.port())
}

/// Maximum number of bytes read to recognize a ready file.
const MAX_READY_FILE_BYTES: u64 = 1 << 20;

/// The file of `--ready-file`, which exists while the server listens or its engines are connected
/// to an API server.
pub(super) struct ReadyFile(PathBuf);

impl ReadyFile {
    /// Removes the ready file of an earlier run.
    ///
    /// # Errors
    /// A message that names the file, if it is neither empty nor a ready file.
    pub(super) fn remove_stale_ready_file(path: &Path) -> Result<(), String> {
        let Ok(found) = path.symlink_metadata() else {
            return Ok(());
        };
        let ours = found.is_file() && (found.len() == 0 || pid_in_ready_file(path).is_some());
        if !ours {
            let shown = path.display();
            return Err(format!(
                "--ready-file {shown}: exists and is not a ready file of an earlier run; it would \
                 be overwritten"
            ));
        }
        let _ = std::fs::remove_file(path);
        Ok(())
    }

    /// Writes the ready file atomically, by renaming a temporary file.
    ///
    /// # Errors
    /// A message that names the file.
    pub(super) fn write_ready_file(path: &Path, description: &Value) -> Result<Self, String> {
        let written = output_files::write_new_file(path, format!("{description}\n"));
        written.map_err(|error| format!("--ready-file {}: {error}", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        // Another server may have replaced the file.
        if pid_in_ready_file(&self.0) == Some(std::process::id()) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Returns the process id in a ready file; `None` if the file is not a ready file.
fn pid_in_ready_file(path: &Path) -> Option<u32> {
    let file = std::fs::File::open(path).ok()?;
    let ready: Value = serde_json::from_reader(file.take(MAX_READY_FILE_BYTES)).ok()?;
    let known = ready.get("servers").or_else(|| ready.get("ranks"));
    known.filter(|list| list.is_array())?;
    u32::try_from(ready.get("pid")?.as_u64()?).ok()
}

/// Returns the contents of the ready file of servers: `{"pid": …, "model": …, "servers": [{"url":
/// …, "grpc": …}]}`.
///
/// A server on a Unix socket is `{"uds": …}`.
pub(super) fn describe_servers(fleet: &ServerFleet) -> Value {
    let servers: Vec<Value> = fleet
        .running_servers()
        .iter()
        .map(|server| {
            let config = server.config();
            match (client_url(server), server.address) {
                (Some(url), Some(address)) => {
                    let grpc = server.grpc_address.unwrap_or(address);
                    json!({"url": url, "grpc": loopback_if_unspecified(grpc).to_string()})
                }
                _ => json!({"uds": config.server.uds}),
            }
        })
        .collect();
    let first = fleet.running_servers().first();
    let model = first.and_then(|server| server.config().model.served_names.first().cloned());
    json!({"pid": std::process::id(), "model": model, "servers": servers})
}

/// Returns the contents of the ready file of headless engines: `{"pid": …, "model": …, "front_end":
/// …, "ranks": […]}`.
pub(super) fn describe_headless_engines(config: &Config) -> Value {
    let parallel = &config.engine.parallel;
    let (first, count) = parallel.local_ranks;
    json!({
        "pid": std::process::id(),
        "model": config.model.served_names.first(),
        "front_end": format!("{}:{}", parallel.address, parallel.rpc_port),
        "ranks": (first..first + count).collect::<Vec<_>>(),
    })
}
