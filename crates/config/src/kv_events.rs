use serde_json::{Map, Value};

use super::did_you_mean::closest_known_name;
use super::engine::EngineConfig;
use super::error::{ConfigError, invalid};
use super::flags::{kv, model};
use super::imitated_engine::imitated_engine_command_line;
use super::preview;
use super::values::FlagValues;
use vllm_sim_engine::kv::SparseLayerKind;
use vllm_sim_observe::kv_events::{
    AttentionKind, HostKvEventDetail, KvEventEncoding, KvEventFormat, KvEventHashFormat,
    KvEventLayerGroups, KvEventPreviewFeatures, LLMD_TOPIC_TEMPLATE, kv_event_endpoint_of_rank,
};

/// Settings of the KV event publisher.
#[derive(Debug, Clone, PartialEq)]
pub struct KvEventsConfig {
    /// Whether KV events are published.
    pub enabled: bool,
    /// Encoding of KV events: that of vLLM if `--kv-events-config` enables the events, otherwise
    /// that of llm-d.
    pub encoding: KvEventEncoding,
    /// ZMQ endpoint at which data-parallel rank 0 publishes KV events; rank r adds r to the port.
    pub endpoint: String,
    /// ZMQ endpoint at which data-parallel rank 0 resends old KV events; `None`: no replay.
    pub replay_endpoint: Option<String>,
    /// Number of KV event batches kept for replay. Default: 10000; with llm-d's flags, 1024.
    pub buffer_steps: usize,
    /// High-water mark of the ZMQ socket for KV events, in messages (default 100000).
    pub hwm: u32,
    /// Maximum number of KV event batches queued for the publisher thread (default 100000).
    pub max_queue_size: usize,
    /// ZMQ topic of KV events, the first frame of a message; `{pod_ip}`, `{host}`, `{port}`,
    /// `{rank}` and `{model}` are replaced. Default: empty; with llm-d's flags,
    /// `kv@{pod_ip}:{port}@{model}`.
    pub topic: String,
    /// Maximum number of KV events per batch (default 16); vLLM's format sends one batch per step
    /// instead.
    pub batch_size: usize,
}

/// Allowed keys in the JSON object of `--kv-events-config`.
///
/// **Source:** vLLM `vllm/config/kv_events.py`.
const CONFIG_KEYS: [&str; 8] = [
    "enable_kv_cache_events",
    "publisher",
    "endpoint",
    "replay_endpoint",
    "buffer_steps",
    "hwm",
    "max_queue_size",
    "topic",
];

fn host_event_detail(engine: &EngineConfig) -> HostKvEventDetail {
    let offload = engine.kv_offload.as_ref();
    offload.map_or(HostKvEventDetail::Names, |offload| offload.detail)
}

impl KvEventsConfig {
    /// Returns the ZMQ endpoints at which a data-parallel rank publishes and resends KV events,
    /// with ports numbered as in vLLM.
    ///
    /// An endpoint without a port is returned unchanged.
    pub fn kv_event_endpoints_of_rank(&self, rank: u32) -> (String, Option<String>) {
        let moved = |endpoint: &String| {
            kv_event_endpoint_of_rank(endpoint, rank).unwrap_or_else(|_| endpoint.clone())
        };
        (moved(&self.endpoint), self.replay_endpoint.as_ref().map(moved))
    }

    pub(super) fn from_flag_values(
        v: &FlagValues,
        engine: &EngineConfig,
    ) -> Result<Self, ConfigError> {
        let own = Self::from_llmd_flags(v, engine)?;
        let Some(config) = v.get(&kv::KV_EVENTS_CONFIG)? else {
            return Ok(own);
        };
        let mut events = Self::from_vllm_config(v, &config, &own)?;
        events.encoding.host = host_event_detail(engine);
        events.encoding.preview =
            preview::kv_event_preview(&preview::read_previewed_pull_requests(v)?);
        events.encoding.groups = cache_groups(engine);
        if events.enabled && v.is_flag_set(&kv::ZMQ_ENDPOINT) {
            v.add_warning(
                "--kv-events-config and --zmq-endpoint are both set: KV events use the format \
                 and the endpoint of --kv-events-config",
            );
        }
        let caches =
            engine.prefix_cache.enable_prefix_caching || engine.prefix_cache.enable_kvcache;
        // **Source:** vLLM 0.33 `vllm/config/vllm.py`, `__post_init__`.
        if events.enabled && !caches {
            let compat = v.get_choice(&model::COMPAT)?;
            let text = match imitated_engine_command_line(compat) {
                None => {
                    "KV cache events are on, but prefix caching is not enabled. Use \
                     --enable-prefix-caching to enable."
                }
                Some(_) => "--kv-events-config: no effect because the radix cache is disabled",
            };
            v.add_no_effect_warning(text.to_owned());
        }
        if !events.enabled && !own.enabled && config.get("publisher").is_some_and(|p| p == "zmq") {
            v.add_no_effect_warning(
                "KV cache events are disabled, but the scheduler is configured to publish them. \
                 Modify KVEventsConfig.enable_kv_cache_events to True to enable."
                    .to_owned(),
            );
        }
        if events.enabled { Ok(events) } else { Ok(own) }
    }

    /// Reads the KV event settings from llm-d's flags; `--enable-kvcache` enables events.
    fn from_llmd_flags(v: &FlagValues, engine: &EngineConfig) -> Result<Self, ConfigError> {
        let endpoint = v.get_text(&kv::ZMQ_ENDPOINT).unwrap_or_default().to_owned();
        let replay_endpoint = v.get(&kv::KV_EVENTS_REPLAY_ENDPOINT)?;
        let map = v.get(&kv::USE_VLLM_MAP_EVENT_FORMAT)?;
        let queue = &kv::KV_EVENTS_REPLAY_QUEUE_SIZE;
        let words = "kv-events-replay-queue-size cannot be less than 1";
        let enabled = engine.prefix_cache.enable_kvcache
            || engine.prefix_cache.enable_prefix_caching && v.is_flag_set(&kv::ZMQ_ENDPOINT);
        for (flag, endpoint) in [
            (&kv::ZMQ_ENDPOINT.spec, Some(&endpoint)),
            (&kv::KV_EVENTS_REPLAY_ENDPOINT.spec, replay_endpoint.as_ref()),
        ] {
            if endpoint.and_then(|text| port_of(text)).is_some_and(|port| port > u16::MAX.into()) {
                let most = "the port must be at most 65535";
                return Err(v.unsupported_value_error(most, flag));
            }
        }
        if let Some(replay) = &replay_endpoint {
            check_ports_disjoint(&endpoint, replay, engine.parallel.data)?;
        }
        Ok(Self {
            enabled,
            encoding: KvEventEncoding {
                format: if map { KvEventFormat::LlmdMap } else { KvEventFormat::LlmdArray },
                hashes: KvEventHashFormat::Int,
                host: host_event_detail(engine),
                groups: cache_groups(engine),
                version: v.vllm_version()?,
                preview: KvEventPreviewFeatures::default(),
            },
            buffer_steps: match (v.get(queue)?, &replay_endpoint) {
                (size, Some(_)) => {
                    v.check_integer_range(queue, size, 1..=i64::from(u32::MAX), words)?
                }
                (_, None) => 0,
            },
            endpoint,
            replay_endpoint,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: v.get_text(&kv::KV_EVENT_TOPIC).unwrap_or(LLMD_TOPIC_TEMPLATE).to_owned(),
            batch_size: v.get(&kv::EVENT_BATCH_SIZE)?,
        })
    }

    fn from_vllm_config(
        v: &FlagValues,
        config: &Map<String, Value>,
        own: &Self,
    ) -> Result<Self, ConfigError> {
        let config: Map<String, Value> =
            config.iter().map(|(key, value)| (key.replace('-', "_"), value.clone())).collect();
        for key in config.keys() {
            if !CONFIG_KEYS.contains(&key.as_str()) {
                return Err(ConfigError::Unknown {
                    what: "key in --kv-events-config:".to_owned(),
                    name: key.clone(),
                    nearest: closest_known_name(key, CONFIG_KEYS.into_iter()).map(str::to_owned),
                });
            }
        }
        let field = KvEventsConfigFields { v, config: &config };
        let enabled = field.get_bool("enable_kv_cache_events")?;
        let publisher = field.get_text("publisher")?.unwrap_or_else(|| "zmq".to_owned());
        if !matches!(publisher.as_str(), "zmq" | "null") {
            return Err(field.wrong_value_error("publisher", "zmq or null"));
        }
        let endpoint = field.get_endpoint("endpoint")?.unwrap_or_else(|| "tcp://*:5557".to_owned());
        let topic = field.get_text("topic")?;
        Ok(Self {
            enabled: enabled && publisher == "zmq",
            encoding: KvEventEncoding { version: v.vllm_version()?, ..KvEventEncoding::default() },
            endpoint,
            replay_endpoint: field.get_endpoint("replay_endpoint")?,
            buffer_steps: field.get_count("buffer_steps", 10_000)?,
            hwm: u32::try_from(field.get_count("hwm", 100_000)?).unwrap_or(u32::MAX),
            max_queue_size: field.get_count("max_queue_size", 100_000)?,
            topic: topic.or(v.get(&kv::KV_EVENT_TOPIC)?).unwrap_or_default(),
            batch_size: own.batch_size,
        })
    }
}

/// Returns the KV cache groups of the model in vLLM's order: sparse groups come first.
fn cache_groups(engine: &EngineConfig) -> KvEventLayerGroups {
    let Some(plan) = engine.kv_cache.as_ref().map(|cache| cache.plan) else {
        return KvEventLayerGroups::default();
    };
    let sparse_kind = match plan.sparse {
        SparseLayerKind::Window(tokens) => AttentionKind::Window(tokens),
        SparseLayerKind::State(_) => AttentionKind::Mamba,
    };
    let full_kind = match plan.is_mla {
        true => AttentionKind::Mla,
        false => AttentionKind::Full,
    };
    match plan.full_groups {
        0 => KvEventLayerGroups { main: 0, main_kind: sparse_kind, sparse_kind },
        _ => KvEventLayerGroups { main: plan.sparse_groups, main_kind: full_kind, sparse_kind },
    }
}

struct KvEventsConfigFields<'a> {
    v: &'a FlagValues,
    config: &'a Map<String, Value>,
}

impl KvEventsConfigFields<'_> {
    fn wrong_value_error(&self, key: &str, expected: &str) -> ConfigError {
        let value = self.config.get(key).map_or_else(String::new, Value::to_string);
        self.v.unreadable_json_value_error(&kv::KV_EVENTS_CONFIG, key, &value, expected)
    }

    fn get_text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        match self.config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.wrong_value_error(key, "a text")),
        }
    }

    /// Reads an endpoint; ZeroMQ takes a port above 65535 modulo 65536.
    fn get_endpoint(&self, key: &str) -> Result<Option<String>, ConfigError> {
        let endpoint = self.get_text(key)?;
        match endpoint.as_deref().and_then(port_of).is_some_and(|port| port > u16::MAX.into()) {
            true => Err(self.wrong_value_error(key, "an endpoint with a port of at most 65535")),
            false => Ok(endpoint),
        }
    }

    fn get_bool(&self, key: &str) -> Result<bool, ConfigError> {
        match self.config.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(_) => Err(self.wrong_value_error(key, "true or false")),
        }
    }

    fn get_count(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        match self.config.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| *n <= 1 << 30)
                .ok_or_else(|| self.wrong_value_error(key, "a whole number of at least 0")),
        }
    }
}

fn port_of(endpoint: &str) -> Option<u32> {
    endpoint.strip_prefix("tcp://")?.rsplit_once(':')?.1.parse().ok()
}

/// Checks that the ports of the publisher and replay endpoints do not overlap; rank r adds r to
/// each.
fn check_ports_disjoint(events: &str, replay: &str, ranks: u32) -> Result<(), ConfigError> {
    match (port_of(events), port_of(replay)) {
        (Some(a), Some(b)) if a.abs_diff(b) < ranks => Err(invalid!(
            "zmq-endpoint ({events}) and kv-events-replay-endpoint ({replay}) ports collide"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_and_replay_ports_of_different_ranks_may_not_collide() {
        let (a, b) = ("tcp://127.0.0.1:5557", "tcp://*:5559");
        assert!(check_ports_disjoint(a, b, 2).is_ok());
        assert!(check_ports_disjoint(a, b, 3).is_err());
        assert!(check_ports_disjoint("ipc:///tmp/a", b, 8).is_ok());
    }
}
