use std::time::Duration;

use bytes::Bytes;
use http::uri::Authority;
use http::{Request, Response, header};
use http_body_util::Empty;
use tokio::time::timeout;

use super::CertificateVerification;
use super::client::PooledHttpClient;
use super::connect::{HttpConnector, HttpServerEndpoint};

/// Maximum size of the response to a GET request, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Sends `GET path` to a server at `address` (host and port) on a new connection, and returns its
/// whole response.
///
/// # Errors
/// A message about the address, the connection, a status that is no success, or the time limit.
pub async fn get_on_new_connection(
    address: &str,
    path: &str,
    limit: Duration,
) -> Result<Response<Bytes>, String> {
    let authority: Authority = address.parse().map_err(|_| format!("{address:?} is no address"))?;
    let endpoint = HttpServerEndpoint::new(false, &authority).ok_or("no host")?;
    let connector = HttpConnector::new(endpoint, &CertificateVerification::Disabled);
    let client = PooledHttpClient::new(connector.map_err(|error| error.to_string())?);
    let request = Request::get(path).header(header::HOST, address);
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let answer = timeout(limit, client.fetch_response_body(request, MAX_RESPONSE_BYTES)).await;
    let answer = answer.map_err(|_| format!("no answer within {limit:?}"))??;
    match answer.status().is_success() {
        true => Ok(answer),
        false => {
            let text = String::from_utf8_lossy(answer.body());
            Err(format!("{}, {text}", answer.status().as_u16()))
        }
    }
}
