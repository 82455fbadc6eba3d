//! What to type and to install for a deployment.

use serde_json::{Map, json};

use super::search::Trial;
use vllm_sim_command_line::quoted;
use vllm_sim_config::is_vllm_serve_flag;
use vllm_sim_replay_cli::Pools;

/// Flags whose words are none of a server's: what `--config` names has been read, and is here flag
/// by flag.
const READ: [&str; 3] = ["config", "replicas", "model"];

/// How a prompt comes from one vLLM to another, unless it was typed.
const CONNECTOR: &str = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#;

/// A deployment as it is started.
pub(super) struct Deployed<'a> {
    /// Flags of `serve` that were typed or stand in a file.
    flags: &'a [(String, String)],
    model: &'a str,
    /// Servers for prompts, and the others.
    servers: (u32, u32),
    /// Data-parallel ranks of a server.
    ranks: u32,
    router: &'a (String, Option<String>),
}

impl<'a> Deployed<'a> {
    /// `None`: the model was not named, or the engine is not described by flags.
    pub(super) fn new(pools: &'a Pools, trial: &Trial) -> Option<Self> {
        let model = pools.about.iter().find(|(name, _)| name == "--model");
        let (prefill_ranks, ranks) = pools.ranks;
        let of = |engines: usize, ranks: u32| engines as u32 / ranks.max(1) * trial.workers;
        let prefills = pools.prefill.as_ref().map_or(0, |pool| pool.engines.len());
        Some(Self {
            flags: &pools.about,
            model: &model?.1,
            servers: (
                of(prefills, prefill_ranks),
                of(pools.serving.engines.len(), ranks),
            ),
            ranks,
            router: &pools.router,
        })
    }

    fn flags(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.flags.iter();
        let all = all.map(|(name, value)| (name.trim_start_matches("--"), value.as_str()));
        all.filter(|(name, _)| !READ.contains(name))
    }

    fn serve_flags(&self, wanted: impl Fn(&str) -> bool) -> String {
        let flags = self.flags().filter(|(name, _)| wanted(name));
        let mut words: String = flags
            .map(|(name, value)| format!(" --{name}={}", quoted(value)))
            .collect();
        if self.servers.0 > 0 && !self.flags().any(|(name, _)| name == "kv-transfer-config") {
            words.push_str(&format!(" --kv-transfer-config={}", quoted(CONNECTOR)));
        }
        words
    }

    /// The command line of vLLM, and how often it is run.
    pub(super) fn vllm(&self) -> String {
        let command = format!(
            "vllm serve {}{}",
            quoted(self.model),
            self.serve_flags(is_vllm_serve_flag)
        );
        let times = |n: u32| match n {
            1 => "once".to_owned(),
            n => format!("{n} times"),
        };
        match self.servers {
            (0, servers) => format!("{} {command}", times(servers)),
            (prefill, decode) => format!(
                "{} for prompts and {} for output {command}",
                times(prefill),
                times(decode)
            ),
        }
    }

    /// The command lines of this program.
    pub(super) fn rehearsal(&self) -> String {
        let command = format!(
            "vllm-sim serve {}{}",
            quoted(self.model),
            self.serve_flags(|_| true)
        );
        match self.servers {
            (0, servers) => format!("{command} --replicas={servers}"),
            (prefill, decode) => format!(
                "{command} --port=8100 --replicas={prefill} & {command} --port=8200 \
                 --replicas={decode}"
            ),
        }
    }

    /// What stands in front; `None`: a single server needs nothing.
    pub(super) fn router(&self) -> Option<String> {
        let (name, settings) = self.router;
        let (prefill, servers) = self.servers;
        if prefill == 0 && servers == 1 {
            return None;
        }
        let what = match name.as_str() {
            "round_robin" => "any round robin, such as nginx's default",
            "random" => "a choice by chance, such as a Kubernetes Service",
            "session_hash" => "a hash of the session, such as nginx's `hash` or Envoy's RING_HASH",
            "least_loaded" => "the fewest requests, such as nginx's least_conn",
            "power_of_two" => "the better of two, such as Envoy's LEAST_REQUEST",
            "kv_router" => "Dynamo's KV router",
            _ => "llm-d's endpoint picker with these scorers",
        };
        let settings = settings.as_ref().map_or_else(String::new, |settings| {
            format!(" --router-config={}", quoted(settings))
        });
        let split = match prefill {
            0 => "",
            _ => "; it sends each prompt to one of the first kind, then to one of the second",
        };
        Some(format!("--router={name}{settings}: {what}{split}"))
    }

    /// Flags that name files of this machine, which a pod has not.
    pub(super) fn files(&self) -> Vec<&str> {
        let all = self.flags().chain([("model", self.model)]);
        let files = all.filter(|(_, value)| {
            let path = std::path::Path::new(value);
            (value.contains('/') || value.contains('.')) && path.exists()
        });
        files.map(|(name, _)| name).collect()
    }

    /// Values of this program's chart.
    pub(super) fn helm_values(&self) -> Option<String> {
        let mut config = Map::new();
        config.insert("cliMode".to_owned(), json!("vllm"));
        config.insert("model".to_owned(), json!(self.model));
        for (name, value) in self.flags() {
            if name != "data-parallel-size" {
                let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
                config.insert(name.to_owned(), value);
            }
        }
        let (prefill, servers) = self.servers;
        if prefill > 0 && !config.contains_key("kv-transfer-config") {
            config.insert(
                "kv-transfer-config".to_owned(),
                serde_json::from_str(CONNECTOR).ok()?,
            );
        }
        let mut values = json!({ "replicaCount": servers, "config": config });
        if prefill > 0 {
            values["disaggregation"] =
                json!({ "enabled": true, "prefill": { "replicaCount": prefill } });
        }
        if self.ranks > 1 {
            values["dataParallel"] = json!({ "size": self.ranks, "mode": "onePort" });
        }
        let mut about = vec!["made by `vllm-sim plan`: a JSON document is YAML too".to_owned()];
        about.extend(self.router().map(|router| format!("in front: {router}")));
        let files = self.files();
        if !files.is_empty() {
            about.push(format!(
                "to be mounted, as they name files: {}",
                files.join(", ")
            ));
        }
        let text = serde_json::to_string_pretty(&values).ok()?;
        Some(format!("# {}\n{text}\n", about.join("; ")))
    }
}
