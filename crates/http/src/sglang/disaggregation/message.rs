//! Messages between the prefill and the decode server of a pair about a room.
//!
//! SGLang's servers send such messages over ZeroMQ, too, in forms that depend on the transfer
//! backend. These are forms of their own: only servers of vllm-sim understand each other.

/// Message between a prefill and a decode server about a bootstrap room, which is the number of one
/// request on both servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BootstrapRoomMessage {
    /// Message: a decode server, whose listener is at `endpoint`, waits for the prompt of a
    /// bootstrap room.
    Announced { room: u64, endpoint: String },
    /// Message: a decode server no longer waits for the prompt of a bootstrap room.
    Aborted { room: u64 },
    /// Message: a prefill server has computed the prompt of a bootstrap room, and keeps the
    /// prompt's KV pages under the id `request`.
    Prefilled { room: u64, request: String },
    /// Message: a prefill server cannot compute the prompt of a bootstrap room.
    Failed { room: u64, reason: String },
    /// Message: a decode server has read the KV pages that a prefill server keeps under the id
    /// `request`.
    Read { request: String },
}

impl BootstrapRoomMessage {
    pub(super) fn to_zmq_frames(&self) -> Vec<Vec<u8>> {
        let numbered = |word: &str, room: u64, text: &str| {
            vec![word.into(), room.to_string().into_bytes(), text.into()]
        };
        match self {
            Self::Announced { room, endpoint } => numbered("room", *room, endpoint),
            Self::Aborted { room } => numbered("abort", *room, ""),
            Self::Prefilled { room, request } => numbered("prefilled", *room, request),
            Self::Failed { room, reason } => numbered("failed", *room, reason),
            Self::Read { request } => vec![b"read".to_vec(), request.clone().into_bytes()],
        }
    }

    /// Parses the frames of a message between servers; `None` if they are of another form.
    pub(super) fn from_zmq_frames(frames: &[Vec<u8>]) -> Option<Self> {
        let text = |frame: &[u8]| std::str::from_utf8(frame).ok().map(str::to_owned);
        if let [word, request] = frames {
            return (word == b"read").then(|| Some(Self::Read { request: text(request)? }))?;
        }
        let [word, room, detail] = frames else {
            return None;
        };
        let (room, detail) = (text(room)?.parse().ok()?, text(detail)?);
        Some(match word.as_slice() {
            b"room" => Self::Announced { room, endpoint: detail },
            b"abort" => Self::Aborted { room },
            b"prefilled" => Self::Prefilled { room, request: detail },
            b"failed" => Self::Failed { room, reason: detail },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let (room, text) = (u64::MAX, || "tcp://[::1]:9".to_owned());
        for message in [
            BootstrapRoomMessage::Announced { room, endpoint: text() },
            BootstrapRoomMessage::Aborted { room },
            BootstrapRoomMessage::Prefilled { room, request: text() },
            BootstrapRoomMessage::Failed { room, reason: text() },
            BootstrapRoomMessage::Read { request: text() },
        ] {
            assert_eq!(
                BootstrapRoomMessage::from_zmq_frames(&message.to_zmq_frames()),
                Some(message)
            );
        }
        for frames in [&[][..], &[vec![1]], &[b"room".to_vec(), b"-1".to_vec(), Vec::new()]] {
            assert_eq!(BootstrapRoomMessage::from_zmq_frames(frames), None);
        }
    }
}
