//! Sessions of an SGLang server: requests of `/generate` that continue earlier ones.
//!
//! A session is a tree of finished requests. A request that names one continues its tokens.
//!
//! Source: SGLang 0.5.23 `srt/session/session_controller.py`, `managers/scheduler.py`
//! (`handle_generate_request`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use vllm_sim_engine::SimTime;
use vllm_sim_python::python_repr;
use vllm_sim_service::Reply;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::unhandled_exception_fault;

/// Maximum number of open sessions (SGLang has no limit).
const MAX_SESSIONS: usize = 65_536;

/// Open sessions of a server, by id.
#[derive(Default)]
pub(crate) struct SglangSessions(Mutex<HashMap<String, Session>>);

/// State of a server that only `vllm-sim sglang` has.
#[derive(Default)]
pub(crate) struct SglangServerState {
    pub(crate) sessions: Arc<SglangSessions>,
    /// Whether the last health check failed.
    pub(crate) failed_health_check: AtomicBool,
}

struct Session {
    /// Finished requests of this session, by request id.
    requests: HashMap<String, FinishedRequest>,
    /// Idle time after which this session is closed; `None` without a limit.
    timeout: Option<Duration>,
    last_used: SimTime,
}

struct FinishedRequest {
    /// Id of the session's earlier request that this finished request continued.
    parent: Option<String>,
    prompt: Vec<u32>,
    output: Vec<u32>,
}

/// Parameters of a request that continues a session (`session_params`).
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SessionParams {
    pub(crate) id: Option<String>,
    rid: Option<String>,
    offset: Option<i64>,
    replace: Option<bool>,
    drop_previous_output: Option<bool>,
}

impl SessionParams {
    /// Reads the member `session_params` of a request.
    ///
    /// # Errors
    /// SGLang's 500 for a member that does not exist; a 400 for one of another type.
    pub(crate) fn read_session_params(value: &Value) -> Result<Self, Fault> {
        const MEMBERS: [&str; 5] = ["id", "rid", "offset", "replace", "drop_previous_output"];
        let members = value.as_object().into_iter().flatten();
        if members.into_iter().any(|(name, _)| !MEMBERS.contains(&name.as_str())) {
            return Err(unhandled_exception_fault());
        }
        if let Some(id) = value.get("id").filter(|id| !id.is_string() && !id.is_null()) {
            let id = python_repr(id);
            return Err(Fault::bad_request(format!(
                "Invalid request: session id {id} does not exist"
            )));
        }
        let read = Self::deserialize(value);
        read.map_err(|error| Fault::bad_request(format!("session_params: {error}")))
    }
}

/// A running request of a session, which the session keeps once it has finished.
#[derive(Clone)]
pub(crate) struct SessionTurn {
    sessions: Arc<SglangSessions>,
    session: String,
    rid: Arc<str>,
    parent: Option<String>,
    prompt: Vec<u32>,
}

impl SessionTurn {
    /// Returns the token ids of the session request's whole prompt, which begins with the tokens of
    /// the requests that it continues.
    pub(crate) fn prompt_token_ids(&self) -> impl Iterator<Item = i64> + '_ {
        self.prompt.iter().map(|id| i64::from(*id))
    }

    /// Stores the output tokens of a session request's ended reply in the session.
    pub(crate) fn store_reply(&self, reply: &Reply) {
        let Some(choice) = reply.choices.first() else {
            return;
        };
        let tokens = choice.script.output_tokens().take(choice.released_tokens() as usize);
        let finished = FinishedRequest {
            parent: self.parent.clone(),
            prompt: self.prompt.clone(),
            output: tokens.map(|token| token.id).collect(),
        };
        if let Some(session) = self.sessions.0.lock().get_mut(&self.session) {
            session.requests.insert(self.rid.to_string(), finished);
        }
    }
}

impl SglangSessions {
    /// Opens a session; returns `None` if a session with this id is already open.
    pub(crate) fn open_session(
        &self,
        id: Option<String>,
        timeout: Option<f64>,
        now: SimTime,
    ) -> Option<String> {
        let mut sessions = self.0.lock();
        close_idle(&mut sessions, now);
        let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        if sessions.contains_key(&id) || sessions.len() >= MAX_SESSIONS {
            return None;
        }
        let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let session = Session { requests: HashMap::new(), timeout, last_used: now };
        sessions.insert(id.clone(), session);
        Some(id)
    }

    /// Closes the session with this id, if it is open.
    pub(crate) fn close_session(&self, id: &str) {
        self.0.lock().remove(id);
    }

    /// Adds a request to a session, with the tokens of the requests that it continues; `begin` is
    /// the token at the start of every text (BOS).
    ///
    /// # Errors
    /// SGLang's 400 for a session or request that does not exist, and for an empty prompt.
    pub(crate) fn add_request_to_session(
        self: &Arc<Self>,
        params: SessionParams,
        rid: &Arc<str>,
        mut tokens: Vec<u32>,
        (begin, now): (Option<u32>, SimTime),
    ) -> Result<SessionTurn, Fault> {
        let fail = |text: String| Err(Fault::bad_request(text));
        let mut sessions = self.0.lock();
        close_idle(&mut sessions, now);
        let id = params.id.unwrap_or_default();
        let Some(session) = sessions.get_mut(&id) else {
            return fail(format!("Invalid request: session id {id} does not exist"));
        };
        let replaces = params.replace == Some(true);
        let parent = params.rid;
        let last = match &parent {
            None if replaces => {
                session.requests.clear();
                None
            }
            None => None,
            Some(parent) => match session.requests.contains_key(parent) {
                true => Some(parent),
                false => return fail("Invalid request session id".to_owned()),
            },
        };
        if let Some(parent) = last {
            if replaces {
                remove_descendants(&mut session.requests, parent);
            }
            if begin.is_some() && tokens.first().copied() == begin {
                tokens.remove(0);
            }
            let last = &session.requests[parent];
            let mut history = last.prompt.clone();
            if params.drop_previous_output != Some(true) {
                history.extend(&last.output);
            }
            if let Some(offset) = params.offset.filter(|offset| *offset != 0) {
                history.truncate(python_end(history.len(), offset));
            }
            history.append(&mut tokens);
            tokens = history;
        }
        if tokens.is_empty() {
            return fail(
                "A session request must contain input tokens after restoring history.".to_owned(),
            );
        }
        session.last_used = now;
        let (sessions, rid) = (self.clone(), rid.clone());
        Ok(SessionTurn { sessions, session: id, rid, parent, prompt: tokens })
    }
}

/// Returns the end index of Python's slice `[:offset]` of a list with `length` elements.
fn python_end(length: usize, offset: i64) -> usize {
    let size = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    if offset < 0 { length.saturating_sub(size) } else { size.min(length) }
}

fn remove_descendants(requests: &mut HashMap<String, FinishedRequest>, parent: &str) {
    let mut parents = vec![parent.to_owned()];
    while let Some(parent) = parents.pop() {
        let is_child = |request: &FinishedRequest| request.parent.as_deref() == Some(&*parent);
        let children = requests.iter().filter(|(_, request)| is_child(request));
        let children: Vec<String> = children.map(|(id, _)| id.clone()).collect();
        for child in children {
            requests.remove(&child);
            parents.push(child);
        }
    }
}

fn close_idle(sessions: &mut HashMap<String, Session>, now: SimTime) {
    sessions.retain(|_, session| {
        session.timeout.is_none_or(|timeout| now - session.last_used <= timeout)
    });
}
