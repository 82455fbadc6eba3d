//! KV transfer parameters in the response of a prefill server, for the server that decodes the
//! prompt.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::settings::HttpSettings;
use vllm_sim_config::KvConnector;
use vllm_sim_service::PrefillHandoff;

/// The `kv_transfer_params` of a response, in the format of the KV connector.
#[derive(Debug)]
pub(crate) struct KvTransferParams {
    source: ParamsSource,
    prefill_handoff: Arc<PrefillHandoff>,
}

#[derive(Debug)]
enum ParamsSource {
    /// KV transfer parameters that do not depend on the generation, such as llm-d's placeholders.
    Fixed(String),
    Nixl(Box<SourceEngine>),
    MoriIo(Box<SourceEngine>, Value),
}

/// The prefill engine that holds the prompt's KV cache.
#[derive(Debug)]
struct SourceEngine {
    id: String,
    settings: Arc<HttpSettings>,
    prompt: u32,
    push: bool,
    /// Whether the parameters contain `remote_registration_generation` (vLLM 0.33).
    generation: bool,
}

impl KvTransferParams {
    pub(crate) fn llmd_placeholder_params(prefill_handoff: Arc<PrefillHandoff>) -> Self {
        let answer = json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "remote_block_ids": ["DUMMY_ID"],
            "remote_engine_id": "DUMMY_ID",
            "remote_host": "DUMMY",
            "remote_port": 1234,
            "tp_size": 1,
        });
        Self { source: ParamsSource::Fixed(answer.to_string()), prefill_handoff }
    }

    /// Returns the KV transfer parameters of a connector for a prompt of `prompt` tokens; `None` if
    /// the connector sends none.
    pub(super) fn new_for_connector(
        connector: KvConnector,
        engine: (String, Arc<HttpSettings>),
        prompt: u32,
        requested: &serde_json::Map<String, Value>,
        prefill_handoff: Arc<PrefillHandoff>,
        generation: bool,
    ) -> Option<Self> {
        let (id, settings) = engine;
        let engine = Box::new(SourceEngine {
            id,
            settings,
            prompt,
            push: connector == KvConnector::NixlPush,
            generation,
        });
        let source = match connector {
            KvConnector::Nixl | KvConnector::NixlPush => ParamsSource::Nixl(engine),
            // The two servers match their requests only by the router's id.
            KvConnector::MoriIo => {
                ParamsSource::MoriIo(engine, requested.get("transfer_id")?.clone())
            }
            KvConnector::LmCacheMp => ParamsSource::Fixed("{}".to_owned()),
            KvConnector::Mooncake | KvConnector::LmCache => return None,
        };
        Some(Self { source, prefill_handoff })
    }

    pub(crate) fn write_kv_transfer_params_json(&self, out: &mut String) {
        let params = match &self.source {
            ParamsSource::Fixed(params) => {
                out.push_str(params);
                return;
            }
            ParamsSource::Nixl(engine) => engine.nixl_params(&self.prefill_handoff),
            ParamsSource::MoriIo(engine, transfer) => {
                engine.mori_io_params(&self.prefill_handoff, transfer)
            }
        };
        // A request that did not finish has no blocks to read.
        let params = params.unwrap_or_default();
        let _ = write!(out, "{params}");
    }
}

/// Returns the engine id of a data-parallel rank for KV transfer; if there are several ranks, each
/// has a separate id.
pub(crate) fn engine_id_of_rank(id: &str, settings: &HttpSettings, rank: u32) -> String {
    match settings.parallel.data {
        1 => id.to_owned(),
        _ => format!("{id}_dp{rank}"),
    }
}

impl SourceEngine {
    fn prefill_rank(&self, prefill_handoff: &PrefillHandoff) -> u32 {
        let (first, _) = self.settings.parallel.local_ranks;
        first + prefill_handoff.prefill_rank().unwrap_or_default()
    }
    fn engine_id(&self, rank: u32) -> String {
        engine_id_of_rank(&self.id, &self.settings, rank)
    }

    fn host_and_port(&self, rank: u32) -> (&str, u32) {
        // llm-d allows transfers without a configured connector.
        let channel = self.settings.kv_transfer.as_ref().map(|t| &t.side_channel);
        channel.map_or(("localhost", 5600 + rank), |channel| {
            (channel.host.as_str(), u32::from(channel.port) + rank)
        })
    }

    /// Returns the KV transfer parameters of the NIXL connector.
    ///
    /// Source: `request_finished` of
    /// `vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py`, 0.33.
    fn nixl_params(&self, prefill_handoff: &PrefillHandoff) -> Option<Value> {
        let (blocks, output) = prefill_handoff.block_ids_and_output_tokens()?;
        let rank = self.prefill_rank(prefill_handoff);
        let (host, port) = self.host_and_port(rank);
        let parallel = &self.settings.parallel;
        let mut params = json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.engine_id(rank),
            "remote_request_id": prefill_handoff.request,
            "remote_host": host,
            "remote_port": port,
            "tp_size": parallel.tensor,
            "dcp_size": 1,
            "pp_size": parallel.pipeline,
            // The last output token is not computed.
            "remote_num_tokens": self.prompt + output.saturating_sub(1),
            // Only a decode server that keeps blocks for the next turn reports an expiry time.
            "remote_blocks_expiry_time": null,
        });
        if self.generation {
            params["remote_registration_generation"] = 0.into();
        }
        params["transfer_mode"] = if self.push { "push" } else { "pull" }.into();
        Some(params)
    }

    /// Returns the KV transfer parameters of the MoRI-IO connector.
    ///
    /// Source: `request_finished` of
    /// `vllm/distributed/kv_transfer/kv_connector/v1/moriio/moriio_connector.py`, 0.33.
    fn mori_io_params(&self, prefill_handoff: &PrefillHandoff, transfer: &Value) -> Option<Value> {
        let (blocks, _) = prefill_handoff.block_ids_and_output_tokens()?;
        let rank = self.prefill_rank(prefill_handoff);
        let (host, notify) = self.host_and_port(rank);
        let parallel = &self.settings.parallel;
        let transfer_config = self.settings.kv_transfer.as_ref();
        let handshake = transfer_config.and_then(|t| t.connector_settings.get("handshake_port"));
        let handshake = handshake.and_then(Value::as_u64);
        Some(json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.engine_id(rank),
            "remote_host": host,
            // Source: `moriio_common.py`, DEFAULT_HANDSHAKE_PORT.
            "remote_handshake_port": handshake.unwrap_or(6301),
            "remote_notify_port": notify,
            "remote_dp_rank": rank,
            "remote_dp_rank_override": true,
            "remote_dp_size": parallel.data,
            "remote_dp_size_local": parallel.local_ranks.1,
            "tp_size": parallel.tensor,
            "transfer_id": transfer,
        }))
    }
}
