//! Rooms of a decode server: requests wait until a prefill server has computed their prompts.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Response;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::message::BootstrapRoomMessage;
use super::{KvTransferResult, PrefillOrDecodeServerArgs, RoomRequest};
use vllm_sim_engine::driver::KvSourceServer;
use vllm_sim_http_client::get_on_new_connection;
use vllm_sim_service::KvTransfer;

/// Number of attempts to reach a bootstrap server.
///
/// Source of these three: SGLang 0.5.23 `srt/disaggregation/decode.py` (`_max_ensure_retries`,
/// `_ensure_retry_interval`) and `common/conn.py` (`timeout=5`, `timeout=(2, 3)`).
const MAX_ATTEMPTS: u32 = 15;
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests of a decode server that wait for their prompts, by bootstrap room.
pub(super) struct DecodeBootstrapRooms {
    parts: PrefillOrDecodeServerArgs,
    state: Mutex<DecodeState>,
}

#[derive(Default)]
struct DecodeState {
    /// Map from the address of a bootstrap server to the state of its prefill server.
    servers: HashMap<String, Arc<PrefillServer>>,
    /// Map from a bootstrap room to its waiting request, until a prefill server has computed the
    /// request's prompt.
    waiting: HashMap<u64, oneshot::Sender<Result<String, String>>>,
    /// Background tasks, one per prefill server, which end when this decode server is dropped.
    tasks: JoinSet<()>,
}

/// State of a prefill server, as its bootstrap server describes it.
struct PrefillServer {
    address: String,
    phase: watch::Sender<ServerPhase>,
    /// Known ZMQ endpoints of the prefill server's ranks.
    ranks: Mutex<HashMap<i64, String>>,
}

#[derive(Debug, Clone, PartialEq)]
enum ServerPhase {
    /// State before the bootstrap server has described its prefill server.
    Unknown,
    /// State after the bootstrap server has described its prefill server; the value is the prefill
    /// server's number of data-parallel ranks.
    Known(u64),
    /// State after the prefill server was lost, with the reason.
    Gone(String),
}

/// Reason why a decode server's request failed, before (handshake) or after (transfer) the
/// announcement of its bootstrap room.
enum RoomFailure {
    Handshake(String),
    Transfer(String),
}

/// Guard of an announced room: when dropped, reports to the prefill server that the request has
/// ended, unless its prompt has arrived.
struct AnnouncedRoom<'a> {
    rooms: &'a DecodeBootstrapRooms,
    room: u64,
    endpoint: String,
    has_come: bool,
}

impl Drop for AnnouncedRoom<'_> {
    fn drop(&mut self) {
        self.rooms.state.lock().waiting.remove(&self.room);
        if !self.has_come {
            let message = BootstrapRoomMessage::Aborted { room: self.room };
            (self.rooms.parts.send)(&self.endpoint, message.to_zmq_frames());
        }
    }
}

impl DecodeBootstrapRooms {
    pub(super) fn new(args: PrefillOrDecodeServerArgs) -> Self {
        Self { parts: args, state: Mutex::default() }
    }

    pub(super) fn on_message(&self, message: BootstrapRoomMessage) {
        let (room, result) = match message {
            BootstrapRoomMessage::Prefilled { room, request } => (room, Ok(request)),
            BootstrapRoomMessage::Failed { room, reason } => (room, Err(reason)),
            _ => return,
        };
        if let Some(waiting) = self.state.lock().waiting.remove(&room) {
            // The client of the request may have left.
            let _ = waiting.send(result);
        }
    }

    /// Waits until the prefill server at `address` has computed the prompt of the request's
    /// bootstrap room.
    pub(super) async fn wait_for_prefill_server(
        self: Arc<Self>,
        request: RoomRequest,
        address: String,
        rank: Option<i64>,
    ) -> KvTransferResult {
        let met = self.wait_for_prompt(request.room, &address, rank).await;
        met.map_err(|failure| match failure {
            RoomFailure::Handshake(reason) => {
                request.fault("Decode handshake", "decode_req.req", &reason)
            }
            RoomFailure::Transfer(reason) => {
                request.fault("Decode transfer", "decode_req.req", &reason)
            }
        })
    }

    async fn wait_for_prompt(
        self: &Arc<Self>,
        room: u64,
        address: &str,
        rank: Option<i64>,
    ) -> Result<KvTransfer, RoomFailure> {
        let server = self.prefill_server(address);
        let mut phase = server.phase.subscribe();
        let known = phase.wait_for(|phase| *phase != ServerPhase::Unknown).await;
        let known = known.map(|phase| phase.clone());
        let ranks = match known.unwrap_or(ServerPhase::Unknown) {
            ServerPhase::Known(ranks) => ranks,
            ServerPhase::Gone(reason) => return Err(RoomFailure::Handshake(reason)),
            // The server is stopping.
            ServerPhase::Unknown => {
                return Err(RoomFailure::Handshake("Aborted by AbortReq.".to_owned()));
            }
        };
        let followed = || i64::try_from(room % ranks.max(1)).unwrap_or(0);
        let rank = rank.unwrap_or_else(followed);
        let endpoint = self.rank_endpoint(&server, rank).await.map_err(RoomFailure::Handshake)?;
        let (sender, result) = oneshot::channel();
        self.state.lock().waiting.insert(room, sender);
        let announcement =
            BootstrapRoomMessage::Announced { room, endpoint: self.parts.endpoint.clone() };
        (self.parts.send)(&endpoint, announcement.to_zmq_frames());
        let mut announced = AnnouncedRoom { rooms: self, room, endpoint, has_come: false };
        let waiting_timeout = self.parts.config.waiting_timeout;
        let gone = async {
            let gone = |phase: &ServerPhase| matches!(phase, ServerPhase::Gone(_));
            match phase.wait_for(gone).await.map(|phase| phase.clone()) {
                Ok(ServerPhase::Gone(reason)) => reason,
                _ => "Aborted by AbortReq.".to_owned(),
            }
        };
        let came = tokio::select! {
            result = result => result.unwrap_or_else(|_| {
                Err("Failed due to an unknown reason from another rank".to_owned())
            }),
            reason = gone => Err(reason),
            () = sleep(waiting_timeout) => {
                // The addresses of its ranks may be those from before a restart.
                server.ranks.lock().clear();
                let seconds = waiting_timeout.as_secs_f64();
                Err(format!(
                    "Request {room} timed out after {seconds:.1}s in KVPoll.WaitingForInput"
                ))
            }
        };
        let request = came.map_err(RoomFailure::Transfer)?;
        announced.has_come = true;
        Ok(KvTransfer::FromRemote(Some(Arc::new(KvSourceServer {
            endpoint: std::mem::take(&mut announced.endpoint),
            request,
            engine_id: address.to_owned(),
        }))))
    }

    /// Returns the prefill server at an address; for a new one, starts a task that fetches the
    /// description of the server.
    fn prefill_server(self: &Arc<Self>, address: &str) -> Arc<PrefillServer> {
        let mut state = self.state.lock();
        if let Some(server) = state.servers.get(address) {
            return Arc::clone(server);
        }
        let server = Arc::new(PrefillServer {
            address: address.to_owned(),
            phase: watch::Sender::new(ServerPhase::Unknown),
            ranks: Mutex::default(),
        });
        state.servers.insert(address.to_owned(), Arc::clone(&server));
        while state.tasks.try_join_next().is_some() {}
        state.tasks.spawn(follow_server(Arc::downgrade(self), Arc::clone(&server)));
        server
    }

    fn forget_server(&self, server: &PrefillServer, reason: String) {
        self.state.lock().servers.remove(&server.address);
        tracing::error!("{reason}");
        server.phase.send_replace(ServerPhase::Gone(reason));
    }

    /// Returns the ZMQ endpoint of a data-parallel rank of a prefill server.
    async fn rank_endpoint(&self, server: &PrefillServer, rank: i64) -> Result<String, String> {
        if let Some(endpoint) = server.ranks.lock().get(&rank) {
            return Ok(endpoint.clone());
        }
        let path = format!(
            "/route?prefill_dp_rank={rank}&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"
        );
        let row = fetch(&server.address, &path).await;
        let endpoint = row.ok().and_then(|row| {
            let row: Value = serde_json::from_slice(&row).ok()?;
            let (ip, port) = (row.get("rank_ip")?.as_str()?, row.get("rank_port")?.as_u64()?);
            Some(match ip.contains(':') {
                true => format!("tcp://[{ip}]:{port}"),
                false => format!("tcp://{ip}:{port}"),
            })
        });
        let endpoint = endpoint.ok_or_else(|| {
            format!(
                "Could not fetch bootstrap info for: prefill_dp_rank: {rank} prefill_cp_rank: 0 \
                 target_tp_rank: 0 and target_pp_rank 0"
            )
        })?;
        server.ranks.lock().insert(rank, endpoint.clone());
        Ok(endpoint)
    }

    /// Checks a bootstrap server's description of its prefill server, and returns the prefill
    /// server's number of data-parallel ranks.
    ///
    /// # Errors
    /// SGLang's message if pages or types of the two servers differ.
    fn check_description(&self, info: &Value) -> Result<u64, String> {
        let (own, other) = (self.parts.page_size, &info["page_size"]);
        if !other.is_null() && *other != own {
            return Err(format!(
                "Page size mismatch: prefill server has page_size={other}, but decode server has \
                 page_size={own}. Both servers must use the same --page-size value."
            ));
        }
        let own = &self.parts.kv_cache_dtype;
        if let Some(other) = info["kv_cache_dtype"].as_str().filter(|other| other != own) {
            return Err(format!(
                "KV cache dtype mismatch: prefill server has kv_cache_dtype={other}, but decode \
                 server has kv_cache_dtype={own}. Both servers must use the same \
                 --kv-cache-dtype value."
            ));
        }
        Ok(info["dp_size"].as_u64().unwrap_or(1))
    }
}

/// Fetches the description of a prefill server from its bootstrap server, then checks that the
/// prefill server is alive.
async fn follow_server(rooms: Weak<DecodeBootstrapRooms>, server: Arc<PrefillServer>) {
    let mut attempts = 0;
    let info = loop {
        let path = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1\
                    &target_pp_rank=-1";
        match fetch(&server.address, path).await {
            Ok(info) => break serde_json::from_slice(&info).unwrap_or(Value::Null),
            Err(error) => {
                tracing::error!("Error fetching prefill server info from bootstrap: {error}");
            }
        }
        attempts += 1;
        if attempts == MAX_ATTEMPTS {
            tracing::error!(
                "Could not fetch prefill parallel info from {} after {attempts} attempts",
                server.address
            );
            if let Some(rooms) = rooms.upgrade() {
                rooms.forget_server(&server, "Aborted by AbortReq.".to_owned());
            }
            return;
        }
        sleep(ATTEMPT_INTERVAL).await;
    };
    let Some(alive) = rooms.upgrade() else {
        return;
    };
    match alive.check_description(&info) {
        Ok(ranks) => {
            server.phase.send_replace(ServerPhase::Known(ranks));
        }
        Err(reason) => return alive.forget_server(&server, reason),
    }
    let config = alive.parts.config.clone();
    drop(alive);
    let mut failures = 0;
    while failures < config.heartbeat_max_failures {
        sleep(config.heartbeat_interval).await;
        let is_alive = fetch(&server.address, "/health").await.is_ok();
        failures = if is_alive { 0 } else { failures + 1 };
    }
    if let Some(rooms) = rooms.upgrade() {
        let address = &server.address;
        let reason = format!("Lost connection with prefill instance (bootstrap_addr: {address})");
        rooms.forget_server(&server, reason);
    }
}

/// Returns the body of a successful response of a bootstrap server.
async fn fetch(address: &str, path: &str) -> Result<Bytes, String> {
    get_on_new_connection(address, path, REQUEST_TIMEOUT).await.map(Response::into_body)
}
