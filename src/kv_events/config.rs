use serde::{Deserialize, Serialize};

use super::endpoint::{EndpointError, for_rank};

/// vLLM's `--kv-events-config`, also as `GET /kv_event_sources` shows it.
///
/// Source: `vllm/config/kv_events.py`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvEventsConfig {
    /// Whether there are events at all.
    pub enable_kv_cache_events: bool,
    /// `zmq` or `null`; without a value `zmq` when events are enabled.
    #[serde(deserialize_with = "publisher")]
    pub publisher: Option<String>,
    /// Of the PUB socket.
    pub endpoint: String,
    /// Of the ROUTER socket that repeats batches.
    pub replay_endpoint: Option<String>,
    /// How many batches it keeps.
    pub buffer_steps: usize,
    /// How many messages libzmq keeps for a slow subscriber.
    pub hwm: i32,
    /// How many batches wait for the publishing thread.
    pub max_queue_size: usize,
    /// First frame of each message.
    pub topic: String,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            enable_kv_cache_events: false,
            publisher: None,
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

/// Why a `--kv-events-config` was not taken.
#[derive(Debug, thiserror::Error)]
pub enum KvEventsError {
    /// It is not the JSON object it should be.
    #[error("kv-events-config: {0}")]
    Json(#[from] serde_json::Error),
    /// A rank has no place for its sockets.
    #[error("kv-events-config: {0}")]
    Endpoint(#[from] EndpointError),
}

impl KvEventsConfig {
    /// What was typed, with `publisher` decided.
    ///
    /// # Errors
    /// [`KvEventsError::Json`] for anything but an object with the fields above.
    pub fn parse(json: &str) -> Result<Self, KvEventsError> {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json)?;
        let mut config: Self = serde_json::from_value(object.into())?;
        config.publisher.get_or_insert_with(|| {
            let publisher = if config.enable_kv_cache_events {
                "zmq"
            } else {
                "null"
            };
            publisher.to_owned()
        });
        Ok(config)
    }

    /// Whether a publisher is wanted.
    pub fn publishes(&self) -> bool {
        self.enable_kv_cache_events && self.publisher.as_deref() != Some("null")
    }

    /// The configuration of one data-parallel rank.
    ///
    /// # Errors
    /// [`KvEventsError::Endpoint`] when a port cannot be moved by the rank.
    pub fn for_rank(&self, rank: u32) -> Result<Self, KvEventsError> {
        let replay = self.replay_endpoint.as_deref();
        Ok(Self {
            endpoint: for_rank(&self.endpoint, rank)?,
            replay_endpoint: replay
                .map(|endpoint| for_rank(endpoint, rank))
                .transpose()?,
            ..self.clone()
        })
    }
}

fn publisher<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(from)?;
    match name.as_deref() {
        None | Some("zmq" | "null") => Ok(name),
        Some(other) => {
            let message = format!("publisher: {other:?} is not one of zmq, null");
            Err(serde::de::Error::custom(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_listed_with_all_fields_in_order() {
        let config = KvEventsConfig::parse(
            r#"{"enable_kv_cache_events":true,"replay_endpoint":"tcp://*:5600","topic":"t"}"#,
        );
        let shown = serde_json::to_string(&config.unwrap().for_rank(1).unwrap()).unwrap();
        assert_eq!(
            shown,
            r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:5601","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"t"}"#
        );
    }

    #[test]
    fn nothing_is_published_unless_enabled() {
        let publishes = |json| KvEventsConfig::parse(json).unwrap().publishes();
        assert!(!publishes("{}"));
        assert!(!publishes(
            r#"{"enable_kv_cache_events":true,"publisher":"null"}"#
        ));
        assert!(publishes(r#"{"enable_kv_cache_events":true}"#));
    }

    #[test]
    fn errors_name_the_field_and_what_is_allowed() {
        let message = |json| KvEventsConfig::parse(json).unwrap_err().to_string();
        assert!(message(r#"{"publisher":"kafka"}"#).contains("\"kafka\" is not one of zmq, null"));
        assert!(message(r#"{"port":1}"#).contains("unknown field `port`, expected one of"));
        assert!(message("[]").starts_with("kv-events-config: "));
    }
}
