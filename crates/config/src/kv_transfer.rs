use std::time::Duration;

use serde_json::{Map, Value};

use super::cli_mode::CliMode;
use super::did_you_mean::spelling_hint;
use super::error::{ConfigError, bail};
use super::flags::kv;
use super::kv_transfer_fields::check_transfer_fields;
use super::parallel::ParallelConfig;
use super::values::FlagValues;
use vllm_sim_engine::KvLoadFailurePolicy;

/// Settings of disaggregated prefill (`--kv-transfer-config`).
#[derive(Debug, Clone, PartialEq)]
pub struct KvTransferConfig {
    /// Simulated KV connector; `None`: the connector has no visible effect on requests.
    pub connector: Option<KvConnector>,
    /// Whether this server prefills prompts for other servers (KV producer).
    pub producer: bool,
    /// Whether this server loads the KV cache of prompts from other servers (KV consumer).
    pub consumer: bool,
    /// vLLM's `engine_id`, the name by which other servers identify the engine.
    pub engine_id: Option<String>,
    /// Host and port at which data-parallel rank 0 is notified that a decode server has read its KV
    /// blocks; rank r adds r to the port.
    pub side_channel: KvReadNotificationAddress,
    /// Time until a prefill server frees a prompt's KV blocks if no decode server has read them
    /// (default 30 s; MoRI-IO 60 s).
    pub lease: Duration,
    /// Port of Mooncake's registry of prefill engines; `None`: this server does not start a
    /// registry.
    pub bootstrap_port: Option<u16>,
    /// Handling of requests whose KV cache cannot be loaded from the prefill server (default: the
    /// request fails).
    pub load_failure_policy: KvLoadFailurePolicy,
    /// Whether a KV consumer does handshakes with prefill servers (default no; yes with `serve`).
    pub does_handshakes: bool,
    /// Maximum time for which Mooncake's prefill servers keep a request (default 480 s).
    pub mooncake_abort_timeout: Duration,
    /// `kv_connector_extra_config` of the simulated KV connector; for `MultiConnector`, that of the
    /// child.
    pub connector_settings: Map<String, Value>,
    /// JSON object of `--kv-transfer-config`, as typed.
    pub raw: Value,
}

/// Simulated KV connectors of vLLM, which transfer KV caches between servers.
///
/// **Source:** vLLM `vllm/distributed/kv_transfer/kv_connector/factory.py`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvConnector {
    /// NIXL connector: the decode server reads the KV blocks (`NixlConnector`,
    /// `NixlPullConnector`).
    Nixl,
    /// NIXL connector: the prefill server writes the KV blocks (`NixlPushConnector`).
    NixlPush,
    /// AMD's MoRI-IO connector: either server may transfer the KV blocks.
    MoriIo,
    /// Mooncake connector: the router pairs prefill and decode servers; the prefill response has no
    /// transfer parameters.
    Mooncake,
    /// LMCache connector: on request, the prefill response contains the first token.
    LmCache,
    /// LMCache connector in a separate process: the prefill response has empty transfer parameters.
    LmCacheMp,
}

/// Host and port at which a prefill server is notified that a decode server has read its KV blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvReadNotificationAddress {
    /// Host name of the prefill server for notifications of read KV blocks.
    pub host: String,
    /// Port of data-parallel rank 0 of the prefill server for notifications of read KV blocks.
    pub port: u16,
}

impl KvConnector {
    /// Returns the simulated KV connector in `config` and the part of `config` with its settings;
    /// for `MultiConnector`, those of its first simulated child.
    ///
    /// **Source:** vLLM 0.33 `kv_connector/v1/multi_connector.py`,
    /// `_get_connector_classes_and_configs`.
    fn find_simulated_connector(
        config: &Map<String, Value>,
    ) -> Option<(Self, &Map<String, Value>)> {
        let name = config.get("kv_connector")?.as_str()?;
        if name == "MultiConnector" {
            let children =
                config.get("kv_connector_extra_config")?.get("connectors")?.as_array()?;
            let mut children = children.iter().filter_map(Value::as_object);
            return children.find_map(Self::find_simulated_connector);
        }
        Some((Self::from_connector_name(name)?, config))
    }

    fn from_connector_name(name: &str) -> Option<Self> {
        SIMULATED_CONNECTORS.iter().find(|(known, _)| *known == name)?.1
    }

    /// Returns whether a decode server asks a prefill server for metadata before it reads the KV
    /// blocks of a prompt.
    const fn has_handshake(self) -> bool {
        matches!(self, Self::Nixl | Self::NixlPush | Self::MoriIo | Self::Mooncake)
    }

    /// Returns whether a prefill server keeps a prompt's KV blocks until the decode server has read
    /// them.
    pub const fn prefill_holds_blocks_until_read(self) -> bool {
        matches!(self, Self::Nixl | Self::NixlPush | Self::MoriIo)
    }
}

impl KvTransferConfig {
    pub(super) fn from_flag_values(
        v: &FlagValues,
        parallel: &ParallelConfig,
    ) -> Result<Option<Self>, ConfigError> {
        let bootstrap_port = v.get(&kv::MOONCAKE_BOOTSTRAP_PORT)?;
        let side_channel_port = v.get(&kv::KV_SIDE_CHANNEL_PORT)?;
        let abort_timeout: u32 = v.get(&kv::MOONCAKE_ABORT_REQUEST_TIMEOUT)?;
        let Some(config) = v.get(&kv::KV_TRANSFER_CONFIG)? else {
            return Ok(None);
        };
        let text = |key: &str| config.get(key).and_then(Value::as_str);
        let (connector, own) = KvConnector::find_simulated_connector(&config)
            .map_or((None, &config), |(connector, own)| (Some(connector), own));
        let extra = match own.get("kv_connector_extra_config") {
            Some(Value::Object(extra)) => extra.clone(),
            _ => Map::new(),
        };
        let role = read_kv_role(v, text("kv_role"), text("kv_connector"))?;
        let (producer, consumer) = match own.get("kv_role").and_then(Value::as_str) {
            Some(own) => read_kv_role(v, Some(own), None)?,
            None => role,
        };
        check_connector(v, &config)?;
        let load_failure_policy = failure_policy(v, text("kv_load_failure_policy"))?;
        let given = |key: &str| extra.get(key).and_then(Value::as_f64);
        let lease = match connector {
            Some(KvConnector::MoriIo) => given("defer_timeout").unwrap_or(60.0),
            _ => given("kv_lease_duration").unwrap_or(30.0),
        };
        let lease = Duration::try_from_secs_f64(lease).map_err(|_| {
            let key = "kv_connector_extra_config.kv_lease_duration";
            transfer_field_error(v, key, &lease.to_string(), "seconds of at least 0")
        })?;
        let does_handshakes = does_handshakes(v, &extra)?
            && consumer
            && connector.is_some_and(KvConnector::has_handshake);
        let mut side_channel = KvReadNotificationAddress {
            host: v.get(&kv::KV_SIDE_CHANNEL_HOST)?.unwrap_or_default(),
            port: side_channel_port,
        };
        if connector == Some(KvConnector::MoriIo) {
            // **Source:** `moriio_common.py`, DEFAULT_NOTIFY_PORT.
            let chosen = extra.get("notify_port").and_then(Value::as_u64);
            side_channel.port = chosen.and_then(|p| u16::try_from(p).ok()).unwrap_or(61_005);
        }
        // **Source:** `should_launch_bootstrap_server` of `mooncake_connector.py`.
        let elsewhere = extra.contains_key("bootstrap_server_address");
        let starts = connector == Some(KvConnector::Mooncake)
            && producer
            && !elsewhere
            && parallel.local_ranks.0 == 0;
        Ok(Some(Self {
            connector,
            producer,
            consumer,
            engine_id: text("engine_id").map(str::to_owned),
            side_channel,
            lease,
            bootstrap_port: starts.then_some(bootstrap_port),
            load_failure_policy,
            does_handshakes,
            mooncake_abort_timeout: Duration::from_secs(abort_timeout.into()),
            connector_settings: extra,
            raw: Value::Object(config),
        }))
    }

    /// Returns the time for which the engine keeps KV blocks of finished requests for other
    /// servers; `None`: the engine frees these blocks immediately.
    pub fn kv_block_lease_duration(&self) -> Option<Duration> {
        let connector = self.connector.filter(|_| self.producer)?;
        connector.prefill_holds_blocks_until_read().then_some(self.lease)
    }
}

/// Reads this project's key `sim_handshake` in `kv_connector_extra_config`: whether decode servers
/// ask prefill servers for their metadata.
fn does_handshakes(v: &FlagValues, extra: &Map<String, Value>) -> Result<bool, ConfigError> {
    match extra.get("sim_handshake") {
        None => Ok(v.cli_mode == CliMode::Vllm),
        Some(Value::Bool(asked)) => Ok(*asked),
        Some(other) => {
            let key = "kv_connector_extra_config.sim_handshake";
            Err(transfer_field_error(v, key, &other.to_string(), "true or false"))
        }
    }
}

/// Names of the simulated KV connectors, also as children of `MultiConnector`; `None` for those
/// that transfer no KV cache between servers.
const SIMULATED_CONNECTORS: [(&str, Option<KvConnector>); 11] = [
    ("LMCacheConnector", Some(KvConnector::LmCache)),
    ("LMCacheConnectorV1", Some(KvConnector::LmCache)),
    ("LMCacheMPConnector", Some(KvConnector::LmCacheMp)),
    ("MoRIIOConnector", Some(KvConnector::MoriIo)),
    ("MooncakeConnector", Some(KvConnector::Mooncake)),
    ("MultiConnector", None),
    ("NixlConnector", Some(KvConnector::Nixl)),
    ("NixlPullConnector", Some(KvConnector::Nixl)),
    ("NixlPushConnector", Some(KvConnector::NixlPush)),
    ("OffloadingConnector", None),
    ("SimpleCPUOffloadConnector", None),
];

const CONNECTORS_WITHOUT_EFFECT: [&str; 9] = [
    "DecodeBenchConnector",
    "ExampleConnector",
    "ExampleHiddenStatesConnector",
    "FlexKVConnectorV1",
    "HF3FSKVConnector",
    "HiSparseConnector",
    "MooncakeStoreConnector",
    "P2pNcclConnector",
    "SharedStorageConnector",
];

/// Warns of KV connectors without effect and rejects names that vLLM does not have.
///
/// **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/factory.py`.
fn check_connector(v: &FlagValues, config: &Map<String, Value>) -> Result<(), ConfigError> {
    check_transfer_fields(v, config)?;
    let Some(name) = config.get("kv_connector").and_then(Value::as_str) else {
        return Ok(());
    };
    let extra = config.get("kv_connector_extra_config");
    if name == "MultiConnector" {
        let children = extra.and_then(|extra| extra.get("connectors")?.as_array());
        for child in children.into_iter().flatten().filter_map(Value::as_object) {
            check_connector(v, child)?;
        }
        return Ok(());
    }
    let is_foreign = config.get("kv_connector_module_path").is_some_and(Value::is_string);
    if is_foreign || CONNECTORS_WITHOUT_EFFECT.contains(&name) {
        v.add_warning(format!("kv_connector {name} has no effect: it is not simulated"));
        return Ok(());
    }
    let simulated = SIMULATED_CONNECTORS.map(|(known, _)| known);
    if simulated.contains(&name) {
        return Ok(());
    }
    let hint = spelling_hint(name, simulated.into_iter().chain(CONNECTORS_WITHOUT_EFFECT));
    let text = format!("Unsupported connector type: {name}{hint}");
    match v.cli_mode {
        CliMode::Vllm => Err(ConfigError::Invalid(text)),
        CliMode::Llmd => {
            v.add_warning(text);
            Ok(())
        }
    }
}

/// Returns the error for the value of a field of `--kv-transfer-config`.
pub(super) fn transfer_field_error(
    v: &FlagValues,
    key: &str,
    value: &str,
    expected: &str,
) -> ConfigError {
    v.unreadable_json_value_error(&kv::KV_TRANSFER_CONFIG, key, value, expected)
}

fn failure_policy(
    v: &FlagValues,
    policy: Option<&str>,
) -> Result<KvLoadFailurePolicy, ConfigError> {
    match policy {
        None | Some("fail") => Ok(KvLoadFailurePolicy::Fail),
        Some("recompute") => Ok(KvLoadFailurePolicy::Recompute),
        Some(other) => {
            Err(transfer_field_error(v, "kv_load_failure_policy", other, "fail or recompute"))
        }
    }
}

/// Returns whether the server is a KV producer and whether it is a KV consumer; a connector
/// requires a role.
fn read_kv_role(
    v: &FlagValues,
    role: Option<&str>,
    connector: Option<&str>,
) -> Result<(bool, bool), ConfigError> {
    let roles = "kv_producer, kv_consumer, kv_both";
    Ok(match role {
        Some("kv_producer") => (true, false),
        Some("kv_consumer") => (false, true),
        Some("kv_both") => (true, true),
        Some(other) => {
            return Err(transfer_field_error(v, "kv_role", other, &format!("one of {roles}")));
        }
        None if connector.is_some() && v.cli_mode == CliMode::Vllm => {
            bail!("Please specify kv_role when kv_connector is set, supported roles are {roles}");
        }
        None => (true, true),
    })
}
