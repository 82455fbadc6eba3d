//! `vllm-sim healthcheck`: asks a server whether it is healthy, for container images that have no
//! HTTP client.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use clap::Parser;
use http::uri::{PathAndQuery, Scheme};
use http::{Request, Uri, header};
use http_body_util::Full;

use vllm_sim_command_line::{self as command_line, refuse};
use vllm_sim_config::ParsedCommand;
use vllm_sim_http_client::{
    CertificateVerification, HttpConnector, HttpServerEndpoint, PooledHttpClient,
};

/// Maximum size of the server's response, in bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Ask a server whether it is healthy: exit with 0 if it is, else with 1.
///
/// Certificates are not checked.
#[derive(Debug, Parser)]
#[command(name = "vllm-sim healthcheck", no_binary_name = true)]
pub(super) struct HealthcheckArgs {
    /// Server, such as http://127.0.0.1:8000, with /health as its path unless one is given. Without it the server
    /// that is process 1 of the container, else the port of $VLLM_SIM_PORT, else 8000.
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Seconds to wait for the response.
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    timeout: f64,
}

/// Asks the server for its health, and returns a line for standard output.
///
/// # Errors
/// A wrong URL; a server that does not answer in time, or with another status than 200.
pub(super) fn run_healthcheck(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<String> {
    let args = match command_line::parse_tool_args::<HealthcheckArgs>(words)? {
        Ok(args) => args,
        Err(help) => return Ok(help),
    };
    let url = args.url.or_else(|| server_url_of_container(env)).unwrap_or_else(|| {
        let port = env("VLLM_SIM_PORT").unwrap_or_else(|| "8000".to_owned());
        format!("http://127.0.0.1:{port}")
    });
    let Ok(timeout) = Duration::try_from_secs_f64(args.timeout) else {
        refuse!("--timeout: {} is not a number of seconds", args.timeout);
    };
    let parsed = url.parse::<Uri>().ok();
    let Some((uri, endpoint)) =
        parsed.and_then(|uri| health_endpoint(&uri).map(|found| (uri, found)))
    else {
        refuse!("{url:?} is not a URL such as http://127.0.0.1:8000");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = runtime.block_on(async {
        tokio::time::timeout(timeout, request_health_status(&uri, endpoint)).await
    });
    match asked {
        Ok(Ok(200)) => Ok(format!("{url}: healthy")),
        Ok(Ok(status)) => bail!("{url}: returned {status}"),
        Ok(Err(error)) => Err(error.context(url)),
        Err(_) => bail!("{url}: no response within {} s", args.timeout),
    }
}

/// Returns the URL of the vllm-sim server that is process 1 of this container, from its command
/// line.
fn server_url_of_container(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let program = std::fs::read_link("/proc/1/exe").ok()?;
    if program != std::env::current_exe().ok()? {
        return None;
    }
    let line = String::from_utf8(std::fs::read("/proc/1/cmdline").ok()?).ok()?;
    let words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
    server_url_of_command_line(&words, env)
}

/// Returns the URL of the vllm-sim server that a command line starts.
fn server_url_of_command_line(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    match vllm_sim_config::load_config(words, env).ok()? {
        ParsedCommand::Serve(loaded) => {
            let server = &loaded.config.server;
            let scheme = if server.tls.is_some() { "https" } else { "http" };
            Some(format!("{scheme}://127.0.0.1:{}", server.port))
        }
        _ => None,
    }
}

fn health_endpoint(uri: &Uri) -> Option<HttpServerEndpoint> {
    let scheme = uri.scheme()?;
    let secure = *scheme == Scheme::HTTPS;
    if !secure && *scheme != Scheme::HTTP {
        return None;
    }
    HttpServerEndpoint::new(secure, uri.authority()?)
}

/// Returns the HTTP status of the server's response to a health check.
async fn request_health_status(uri: &Uri, endpoint: HttpServerEndpoint) -> Result<u16> {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let path = if path == "/" { "/health" } else { path };
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(path).header(header::HOST, host);
    let request = request.body(Full::<Bytes>::default())?;
    let connector = HttpConnector::new(endpoint, &CertificateVerification::Disabled)?;
    let client = PooledHttpClient::new(connector);
    let response = client.fetch_response_body(request, MAX_RESPONSE_BYTES).await;
    let response = response.map_err(|why| anyhow!("{why}"))?;
    Ok(response.status().as_u16())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_url_follows_server_flags() {
        let url = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let env = |name: &str| (name == "VLLM_SIM_PORT").then(|| "8100".to_owned());
            server_url_of_command_line(&words, &env)
        };
        let found = |port: &str| Some(format!("http://127.0.0.1:{port}"));
        assert_eq!(url("vllm-sim --model m --port 9000"), found("9000"));
        assert_eq!(url("vllm-sim serve m"), found("8100"));
        let tls = url("vllm-sim --model m --self-signed-certs");
        assert_eq!(tls.as_deref(), Some("https://127.0.0.1:8100"));
        assert_eq!(url("vllm-sim replay x.jsonl"), None);
    }
}
