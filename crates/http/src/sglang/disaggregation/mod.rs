//! Prefill/decode disaggregation of SGLang (`--disaggregation-mode`): a router sends each request
//! to a prefill and a decode server, with the same `bootstrap_room`.
//!
//! The decode server finds the prefill server by its bootstrap server ([`bootstrap`]), and
//! announces the room to it ([`decode`]). The prefill server then computes the prompt, and reports
//! that it has ([`prefill`]). Until then, neither request reaches an engine that it cannot use.
//!
//! Source: SGLang 0.5.23 `srt/disaggregation/{prefill,decode}.py`, `common/conn.py`.

pub mod bootstrap;
mod decode;
mod message;
mod prefill;

use std::sync::{Arc, Weak};

use axum::http::HeaderMap;
use serde_json::Value;
use vllm_sim_python::python_repr;

use decode::DecodeBootstrapRooms;
use message::BootstrapRoomMessage;
use prefill::PrefillBootstrapRooms;
use vllm_sim_config::DisaggregationConfig;
use vllm_sim_service::{InferenceService, KvTransfer, KvTransferNegotiation, ServingRole};
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Bootstrap host of requests without a negotiated KV transfer, such as SGLang's warm-up.
///
/// Source: SGLang 0.5.23 `srt/disaggregation/utils.py`, `FAKE_BOOTSTRAP_HOST`.
const FAKE_BOOTSTRAP_HOST: &str = "2.2.2.2";

/// Function for sending a message's frames to another server, at the endpoint of its listener.
pub type SendZmqFramesToServer = Box<dyn Fn(&str, Vec<Vec<u8>>) + Send + Sync>;

/// Values for the creation of a [`PrefillOrDecodeServer`].
pub struct PrefillOrDecodeServerArgs {
    /// Settings of the prefill/decode pair.
    pub config: DisaggregationConfig,
    /// Role of this server: prefill or decode.
    pub role: ServingRole,
    /// Number of tokens per page (KV block), which must be equal on both servers of the pair.
    pub page_size: u32,
    /// Type of the KV cache, which must be equal on both servers of the pair.
    pub kv_cache_dtype: String,
    /// Endpoint of this server's listener.
    pub endpoint: String,
    /// Function for sending messages to the other server of the prefill/decode pair.
    pub send: SendZmqFramesToServer,
    /// Service of this server, which releases the KV blocks of handed-over prompts.
    pub service: Weak<InferenceService>,
}

/// One server of a prefill/decode pair.
pub struct PrefillOrDecodeServer {
    config: DisaggregationConfig,
    side: Side,
}

enum Side {
    Prefill(Arc<PrefillBootstrapRooms>),
    Decode(Arc<DecodeBootstrapRooms>),
}

impl PrefillOrDecodeServer {
    /// Creates this server's side of a prefill/decode pair.
    pub fn new(args: PrefillOrDecodeServerArgs) -> Self {
        let config = args.config.clone();
        let side = match args.role {
            ServingRole::Prefill => Side::Prefill(Arc::new(PrefillBootstrapRooms::new(args))),
            ServingRole::Whole | ServingRole::Decode => {
                Side::Decode(Arc::new(DecodeBootstrapRooms::new(args)))
            }
        };
        Self { config, side }
    }

    /// Handles the frames of a message from the other server of the prefill/decode pair.
    pub fn on_zmq_message(&self, frames: &[Vec<u8>]) {
        let Some(message) = BootstrapRoomMessage::from_zmq_frames(frames) else {
            return;
        };
        match &self.side {
            Side::Prefill(rooms) => rooms.on_message(message),
            Side::Decode(rooms) => rooms.on_message(message),
        }
    }

    /// Returns whether this server computes prompts for decode servers.
    pub(crate) fn is_prefill_server(&self) -> bool {
        matches!(self.side, Side::Prefill(_))
    }

    /// Returns the port of the bootstrap server.
    pub(crate) fn bootstrap_port(&self) -> u16 {
        self.config.bootstrap_port
    }

    /// Returns the kind of KV transfer for the prompt, which the servers of the prefill/decode pair
    /// negotiate; `Local` for a fake transfer.
    ///
    /// # Errors
    /// SGLang's 400 for a request without room.
    pub(super) fn kv_transfer_of_request(
        &self,
        rid: &str,
        pair: &PrefillBootstrapTarget,
    ) -> Result<KvTransfer, Fault> {
        if pair.host.as_deref() == Some(FAKE_BOOTSTRAP_HOST) || self.config.is_fake {
            return Ok(KvTransfer::Local);
        }
        let Some(room) = pair.room else {
            // Source: SGLang 0.5.23 `srt/managers/scheduler.py`, `_handle_generate_request`.
            return Err(Fault::bad_request(format!(
                "Invalid request: Disaggregated request received without bootstrap room id. \
                 req.rid={}",
                python_repr(&rid.into())
            )));
        };
        let request = RoomRequest { room, rid: python_repr(&rid.into()) };
        Ok(KvTransfer::Negotiated(match &self.side {
            Side::Prefill(rooms) => {
                let rooms = Arc::clone(rooms);
                KvTransferNegotiation::new(move || {
                    Box::pin(Arc::clone(&rooms).wait_for_decode_server(request.clone()))
                })
            }
            Side::Decode(rooms) => {
                let rooms = Arc::clone(rooms);
                let port = pair.port.unwrap_or(self.config.bootstrap_port);
                let host = pair.host.as_deref().unwrap_or("None");
                let host = match host.contains(':') && !host.starts_with('[') {
                    true => format!("[{host}]"),
                    false => host.to_owned(),
                };
                let (address, rank) = (format!("{host}:{port}"), pair.prefill_rank);
                KvTransferNegotiation::new(move || {
                    let (request, address) = (request.clone(), address.clone());
                    Box::pin(Arc::clone(&rooms).wait_for_prefill_server(request, address, rank))
                })
            }
        }))
    }

    /// Returns the data-parallel rank of a prefill server that computes the prompt of a bootstrap
    /// room, if the request names no rank.
    ///
    /// Source: SGLang 0.5.23 `srt/managers/data_parallel_controller.py`,
    /// `follow_bootstrap_room_scheduler`.
    pub(super) fn rank_of_bootstrap_room(&self, room: Option<u64>, ranks: u32) -> Option<i64> {
        let room = room.filter(|_| self.is_prefill_server() && ranks > 1)?;
        i64::try_from(room % u64::from(ranks)).ok()
    }
}

/// A request that waits for the other server of its prefill/decode pair.
#[derive(Clone)]
struct RoomRequest {
    room: u64,
    /// Id of the waiting request, in Python's notation.
    rid: String,
}

impl RoomRequest {
    /// Returns the error of a request whose prompt the prefill/decode pair failed to transfer.
    ///
    /// Source: SGLang 0.5.23 `srt/disaggregation/{prefill,decode}.py` (`error_message`), and
    /// `KVTransferError` of `common/conn.py`.
    fn fault(&self, stage: &str, request: &str, reason: &str) -> Fault {
        let Self { room, rid } = self;
        let message = format!(
            "{stage} failed for request rank=0 {request}.rid={rid} {request}.bootstrap_room={room} \
             with exception KVTransferError(bootstrap_room={room}): {reason}"
        );
        tracing::error!("{message}");
        Fault::new(500, ErrorType::InternalServerPhrase, message)
    }
}

/// Result of the negotiation of a prefill/decode pair about one request.
type KvTransferResult = Result<KvTransfer, Fault>;

/// Prefill server and bootstrap room of a request, as its body or headers name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PrefillBootstrapTarget {
    host: Option<String>,
    port: Option<u16>,
    pub(super) room: Option<u64>,
    prefill_rank: Option<i64>,
}

impl PrefillBootstrapTarget {
    /// Reads the members of a request body that name the other server of the prefill/decode pair;
    /// `index` is the index of the prompt.
    ///
    /// A single room is that of the first prompt; the others follow.
    ///
    /// # Errors
    /// A 400 for a number out of range, and for a header that is none.
    pub(super) fn from_request_body(
        [host, port, room]: [&Option<Value>; 3],
        prefill_rank: Option<i64>,
        headers: &HeaderMap,
        index: usize,
    ) -> Result<Self, Fault> {
        let host = overridden(headers, "host", item(host, index))?;
        let port = overridden(headers, "port", item(port, index))?;
        let is_list = room.as_ref().is_some_and(Value::is_array);
        let room = overridden(headers, "room", item(room, index))?;
        let offset = if is_list { 0 } else { index as u64 };
        Ok(Self {
            host: host.as_ref().and_then(Value::as_str).map(str::to_owned),
            port: number(port.as_ref(), "bootstrap_port")?,
            room: number(room.as_ref(), "bootstrap_room")?
                .map(|room: u64| room.wrapping_add(offset)),
            prefill_rank,
        })
    }
}

/// Returns the value of a request member for one prompt: an element of a list, or a single value
/// for all prompts.
fn item(value: &Option<Value>, index: usize) -> Option<&Value> {
    let value = match value.as_ref()? {
        Value::Array(items) => items.get(index)?,
        value => value,
    };
    (!value.is_null()).then_some(value)
}

fn number<N: TryFrom<u64>>(value: Option<&Value>, field: &str) -> Result<Option<N>, Fault> {
    let Some(value) = value else {
        return Ok(None);
    };
    let fits = value.as_u64().and_then(|number| N::try_from(number).ok());
    let bits = 8 * size_of::<N>();
    let refused =
        || Fault::bad_request(format!("{field}={value} is not simulated: 0 to 2**{bits} - 1 are"));
    fits.map(Some).ok_or_else(refused)
}

/// Returns the value of the header `x-override-bootstrap-NAME`, else that of the body member that
/// this header overrides.
///
/// Source: SGLang 0.5.23 `srt/entrypoints/request_headers.py`.
fn overridden(
    headers: &HeaderMap,
    name: &str,
    member: Option<&Value>,
) -> Result<Option<Value>, Fault> {
    let header = format!("x-override-bootstrap-{name}");
    let Some(value) = headers.get(&header) else {
        return Ok(member.cloned());
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    if name == "host" {
        return Ok(Some(text.into()));
    }
    let number: Result<u64, _> = text.trim().parse();
    number.map(|number| Some(number.into())).map_err(|_| {
        let text = python_repr(&text.as_ref().into());
        let why = format!("invalid literal for int() with base 10: {text}");
        Fault::bad_request(format!("invalid {header} header {text}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value, index: usize) -> Result<PrefillBootstrapTarget, String> {
        let members = ["host", "port", "room"].map(|name| body.get(name).cloned());
        let (members, headers) = (members.each_ref(), HeaderMap::new());
        let read = PrefillBootstrapTarget::from_request_body(members, None, &headers, index);
        read.map_err(|fault| fault.message.to_string())
    }

    #[test]
    fn each_prompt_of_a_batch_has_a_room() {
        let one = json!({"host": "h", "port": 9, "room": 5});
        let list = json!({"host": ["g", "h"], "port": [null, 9], "room": [7, 5]});
        let target = |host: &str, port, room| PrefillBootstrapTarget {
            host: Some(host.to_owned()),
            port,
            room: Some(room),
            prefill_rank: None,
        };
        assert_eq!(read(&one, 0), Ok(target("h", Some(9), 5)));
        assert_eq!(read(&one, 2), Ok(target("h", Some(9), 7)));
        assert_eq!(read(&list, 0), Ok(target("g", None, 7)));
        assert_eq!(read(&list, 1), Ok(target("h", Some(9), 5)));
        assert_eq!(read(&json!({"host": null}), 0), Ok(PrefillBootstrapTarget::default()));
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let port = read(&json!({"port": 65_536}), 0).unwrap_err();
        assert_eq!(port, "bootstrap_port=65536 is not simulated: 0 to 2**16 - 1 are");
        assert!(read(&json!({"room": -1}), 0).is_err());
    }

    #[test]
    fn headers_override_the_body() {
        let mut headers = HeaderMap::new();
        headers.insert("x-override-bootstrap-room", "3".parse().unwrap());
        headers.insert("x-override-bootstrap-host", "h".parse().unwrap());
        let room = Some(json!(9));
        let read = |headers: &HeaderMap| {
            PrefillBootstrapTarget::from_request_body([&None, &None, &room], None, headers, 0)
        };
        let target = read(&headers).unwrap();
        assert_eq!((target.host.as_deref(), target.room), (Some("h"), Some(3)));
        headers.insert("x-override-bootstrap-port", "x".parse().unwrap());
        let refused = read(&headers).unwrap_err().message.to_string();
        assert!(refused.starts_with("invalid x-override-bootstrap-port header 'x': invalid"));
    }
}
