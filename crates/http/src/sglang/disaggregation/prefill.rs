//! Rooms of a prefill server: requests wait for their decode server, and are then computed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::message::BootstrapRoomMessage;
use super::{KvTransferResult, PrefillOrDecodeServerArgs, RoomRequest, SendZmqFramesToServer};
use vllm_sim_engine::SimTime;
use vllm_sim_service::{InferenceService, KvTransfer, PrefillHandoff};

/// Maximum number of announced bootstrap rooms without a request; beyond it, all are dropped.
const MAX_UNMATCHED_ROOMS: usize = 65_536;

/// Requests of a prefill server that wait for their decode servers, by bootstrap room.
pub(super) struct PrefillBootstrapRooms {
    state: Mutex<RoomTable>,
    send: SendZmqFramesToServer,
    service: Weak<InferenceService>,
    /// Maximum waiting time of a request until a decode server announces its bootstrap room.
    bootstrap_timeout: Duration,
    /// Maximum time until a decode server has read the KV pages of a computed prompt.
    waiting_timeout: Duration,
}

#[derive(Default)]
struct RoomTable {
    /// Map from a bootstrap room to the endpoint of the decode server that announced the room. An
    /// entry is removed when the room's request arrives.
    announced: HashMap<u64, String>,
    /// Map from a bootstrap room to its waiting request, until a decode server announces the room.
    waiting: HashMap<u64, oneshot::Sender<Result<String, String>>>,
    /// Map from a request to the bootstrap room and the end time of its prefill. An entry is kept
    /// until a decode server has read the prompt's KV pages.
    kept: HashMap<String, (u64, SimTime)>,
}

impl PrefillBootstrapRooms {
    pub(super) fn new(args: PrefillOrDecodeServerArgs) -> Self {
        Self {
            state: Mutex::default(),
            send: args.send,
            service: args.service,
            bootstrap_timeout: args.config.bootstrap_timeout,
            waiting_timeout: args.config.waiting_timeout,
        }
    }

    pub(super) fn on_message(&self, message: BootstrapRoomMessage) {
        match message {
            BootstrapRoomMessage::Announced { room, endpoint } => {
                self.release_unread_prompts();
                let mut state = self.state.lock();
                if let Some(waiting) = state.waiting.remove(&room) {
                    // The client of the request may have left.
                    let _ = waiting.send(Ok(endpoint));
                    return;
                }
                if state.announced.len() >= MAX_UNMATCHED_ROOMS {
                    state.announced.clear();
                }
                state.announced.insert(room, endpoint);
            }
            BootstrapRoomMessage::Aborted { room } => self.abort_room(room),
            BootstrapRoomMessage::Read { request } => {
                self.state.lock().kept.remove(&request);
                self.release_pages(&request);
            }
            BootstrapRoomMessage::Prefilled { .. } | BootstrapRoomMessage::Failed { .. } => {}
        }
    }

    fn abort_room(&self, room: u64) {
        let mut state = self.state.lock();
        state.announced.remove(&room);
        if let Some(waiting) = state.waiting.remove(&room) {
            let reason = "Failed due to an unknown reason from another rank";
            let _ = waiting.send(Err(reason.to_owned()));
        }
        let kept = state.kept.iter().find(|(_, (kept, _))| *kept == room);
        let Some(request) = kept.map(|(request, _)| request.clone()) else {
            return;
        };
        state.kept.remove(&request);
        drop(state);
        self.release_pages(&request);
    }

    fn release_pages(&self, request: &str) {
        if let Some(service) = self.service.upgrade() {
            service.release_prefill_blocks(request);
        }
    }

    /// Frees the pages (KV blocks) of prompts whose decode server did not read them in time.
    fn release_unread_prompts(&self) {
        let Some(service) = self.service.upgrade() else {
            return;
        };
        let now = service.now();
        let late = |since: &SimTime| now - *since >= self.waiting_timeout;
        let mut state = self.state.lock();
        let unread = state.kept.extract_if(|_, (_, since)| late(since));
        let unread: Vec<String> = unread.map(|(request, _)| request).collect();
        drop(state);
        for request in unread {
            service.release_prefill_blocks(&request);
        }
    }

    /// Waits until the decode server of a request's bootstrap room has announced the room.
    pub(super) async fn wait_for_decode_server(
        self: Arc<Self>,
        request: RoomRequest,
    ) -> KvTransferResult {
        self.release_unread_prompts();
        let room = request.room;
        let failed = |reason: &str| request.fault("Prefill bootstrap", "req", reason);
        let (sender, announced) = oneshot::channel();
        {
            let mut state = self.state.lock();
            match state.announced.remove(&room) {
                Some(endpoint) => {
                    let _ = sender.send(Ok(endpoint));
                }
                None => {
                    state.waiting.insert(room, sender);
                }
            }
        }
        let waited = timeout(self.bootstrap_timeout, announced).await;
        let endpoint = match waited {
            Ok(Ok(Ok(endpoint))) => endpoint,
            Ok(Ok(Err(reason))) => return Err(failed(&reason)),
            // Another request has taken the room.
            Ok(Err(_)) => {
                return Err(failed("Failed due to an unknown reason from another rank"));
            }
            Err(_) => {
                self.state.lock().waiting.remove(&room);
                let seconds = self.bootstrap_timeout.as_secs_f64();
                return Err(failed(&format!(
                    "Request {room} timed out after {seconds:.1}s in KVPoll.Bootstrapping"
                )));
            }
        };
        // A later request of the same room has other pages.
        let name = format!("{room}-{}", uuid::Uuid::new_v4().simple());
        let (rooms, kept) = (Arc::clone(&self), name.clone());
        let report = move |is_prefilled| {
            let message = match is_prefilled {
                true => rooms.keep_pages(room, &kept),
                false => {
                    BootstrapRoomMessage::Failed { room, reason: "Aborted by AbortReq.".to_owned() }
                }
            };
            (rooms.send)(&endpoint, message.to_zmq_frames());
        };
        let handoff = PrefillHandoff::with_end_callback(name, report);
        Ok(KvTransfer::ForRemote(Arc::new(handoff)))
    }

    /// Keeps the KV pages of a finished prefill, and returns the message for its decode server.
    fn keep_pages(&self, room: u64, request: &str) -> BootstrapRoomMessage {
        if let Some(service) = self.service.upgrade() {
            let now = service.now();
            self.state.lock().kept.insert(request.to_owned(), (room, now));
        }
        BootstrapRoomMessage::Prefilled { room, request: request.to_owned() }
    }
}
