//! Writes server commands and Helm values for the deployment that a plan found.

use serde_json::{Map, Value, json};

use super::search::SimulatedDeploymentTrial;
use vllm_sim_command_line::shell_quote;
use vllm_sim_config::{FlagKind, all_effective_flags, is_vllm_serve_flag};
use vllm_sim_replay_cli::WorkerPools;

/// Names of flags that the server commands omit: `--config`, because the other flags contain its
/// content, and flags that are written elsewhere.
const OMITTED_SERVER_FLAGS: [&str; 3] = ["config", "replicas", "model"];

/// Default `--kv-transfer-config` of disaggregated deployments.
const NIXL_CONNECTOR_JSON: &str = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#;

/// Returns a flag of `vllm serve` as one word; vLLM takes switches without a value.
fn flag_argument(name: &str, value: &str) -> String {
    let mut all = all_effective_flags();
    let is_switch = all.any(|flag| flag.name == name && flag.kind == FlagKind::Switch);
    match (is_switch, value) {
        (true, "true") => format!("--{name}"),
        (true, "false") => format!("--no-{name}"),
        _ => format!("--{name}={value}"),
    }
}

pub(super) struct DeploymentCommands<'a> {
    /// Flags of `serve` that the command line and `--config` files set.
    flags: &'a [(String, String)],
    /// Names of the LoRA adapters of the workload.
    adapters: &'a [String],
    pub(super) model: &'a str,
    /// Number of prefill servers in the deployment, and number of all other servers.
    pub(super) servers: (u32, u32),
    ranks: u32,
    /// Name of the routing policy, and the router's settings from the command line.
    pub(super) router: &'a (String, Option<String>),
}

impl<'a> DeploymentCommands<'a> {
    /// Returns the deployment of a simulated run; `None` if no `--model` was given, or its workers
    /// have different settings.
    pub(super) fn new(
        pools: &'a WorkerPools,
        trial: &SimulatedDeploymentTrial,
        adapters: &'a [String],
    ) -> Option<Self> {
        let model = pools.about.iter().find(|(name, _)| name == "--model");
        let (_, model) = model.filter(|_| pools.has_one_worker_kind)?;
        Some(Self {
            flags: &pools.about,
            adapters,
            model,
            servers: trial.workers.prefill_and_other_workers(pools),
            ranks: pools.ranks.1,
            router: &pools.router,
        })
    }

    fn deployment_flags(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.flags.iter();
        let all = all.map(|(name, value)| (name.trim_start_matches("--"), value.as_str()));
        all.filter(|(name, _)| !OMITTED_SERVER_FLAGS.contains(name))
    }

    fn serve_flags(&self, wanted: impl Fn(&str) -> bool) -> String {
        let words = self.arguments(wanted).into_iter();
        words.map(|word| format!(" {}", shell_quote(&word))).collect()
    }

    fn arguments(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let flags = self.deployment_flags().filter(|(name, _)| wanted(name));
        let words = flags.map(|(name, value)| flag_argument(name, value));
        // Separate prefill and decode servers need a KV connector.
        let connector = self.default_kv_transfer_config();
        let connector = connector.map(|config| flag_argument("kv-transfer-config", config));
        let loras = self.lora_flags().into_iter();
        let loras = loras.map(|(name, value)| flag_argument(name, &value.to_string()));
        words.chain(connector).chain(loras).collect()
    }

    /// Returns the flags with which a server takes requests of all simulated LoRA adapters, and has
    /// all of them in one batch, as the simulation does.
    fn lora_flags(&self) -> Vec<(&'static str, Value)> {
        match self.adapters.len() {
            0 => Vec::new(),
            adapters => vec![("enable-lora", json!(true)), ("max-loras", json!(adapters))],
        }
    }

    /// Returns the `--kv-transfer-config` that separate prefill and decode servers need, if no flag
    /// sets it.
    fn default_kv_transfer_config(&self) -> Option<&'static str> {
        let is_set = self.deployment_flags().any(|(name, _)| name == "kv-transfer-config");
        (self.servers.0 > 0 && !is_set).then_some(NIXL_CONNECTOR_JSON)
    }

    /// Returns the arguments of `vllm serve`, without the model and without the flags named in
    /// `excluded_flags`.
    pub(super) fn vllm_serve_arguments(&self, excluded_flags: &[&str]) -> Vec<String> {
        self.arguments(|name| is_vllm_serve_flag(name) && !excluded_flags.contains(&name))
    }

    /// Returns the value of a flag, if the deployment sets it.
    pub(super) fn deployment_flag_value(&self, flag_name: &str) -> Option<&str> {
        self.deployment_flags().find(|(name, _)| *name == flag_name).map(|(_, value)| value)
    }

    /// Returns the `vllm serve` command of the deployment, with the number of servers.
    pub(super) fn vllm_serve_command(&self) -> String {
        let command = format!(
            "vllm serve {}{}",
            shell_quote(self.model),
            self.serve_flags(is_vllm_serve_flag)
        );
        let times = |n: u32| match n {
            1 => "once".to_owned(),
            n => format!("{n} times"),
        };
        match self.servers {
            (0, servers) => format!("{} {command}", times(servers)),
            (prefill, decode) => {
                format!("{} for prefill and {} for decode {command}", times(prefill), times(decode))
            }
        }
    }

    /// Returns the `vllm-sim serve` commands that simulate the deployment.
    pub(super) fn simulation_commands(&self) -> String {
        let command =
            format!("vllm-sim serve {}{}", shell_quote(self.model), self.serve_flags(|_| true));
        match self.servers {
            (0, servers) => format!("{command} --replicas={servers}"),
            (prefill, decode) => format!(
                "{command} --port=8100 --replicas={prefill} & {command} --port=8200 \
                 --replicas={decode}"
            ),
        }
    }

    /// Describes the router to install, or returns `None` for a single server.
    pub(super) fn router_description(&self) -> Option<String> {
        let (name, settings) = self.router;
        let (prefill, servers) = self.servers;
        if prefill == 0 && servers == 1 {
            return None;
        }
        let what = match name.as_str() {
            "round_robin" => "any round-robin load balancer, such as nginx's default",
            "random" => "a random choice, such as a Kubernetes Service",
            "session_hash" => "a hash of the session, such as nginx's `hash` or Envoy's RING_HASH",
            "least_loaded" => "the worker with the fewest requests, such as nginx's least_conn",
            "power_of_two" => {
                "the less loaded of two random workers, such as Envoy's LEAST_REQUEST"
            }
            "kv_router" => "Dynamo's KV router",
            _ => "llm-d's endpoint picker with these scorers",
        };
        let settings = settings.as_ref().map_or_else(String::new, |settings| {
            format!(" --router-config={}", shell_quote(settings))
        });
        let split = match prefill {
            0 => "",
            _ => "; it sends each prompt to one of the first kind, then to one of the second",
        };
        Some(format!("--router={name}{settings}: {what}{split}"))
    }

    /// Returns the flags whose values name files on this machine, which pods do not have.
    pub(super) fn local_file_flags(&self) -> Vec<&str> {
        let all = self.deployment_flags().chain([("model", self.model)]);
        let files = all.filter(|(_, value)| {
            let path = std::path::Path::new(value);
            (value.contains('/') || value.contains('.')) && path.exists()
        });
        files.map(|(name, _)| name).collect()
    }

    pub(super) fn simulator_chart_helm_values(&self) -> Option<String> {
        let mut config = Map::new();
        config.insert("cliMode".to_owned(), json!("vllm"));
        config.insert("model".to_owned(), json!(self.model));
        for (name, value) in self.deployment_flags() {
            if name != "data-parallel-size" {
                let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
                config.insert(name.to_owned(), value);
            }
        }
        for (name, value) in self.lora_flags() {
            config.insert(name.to_owned(), value);
        }
        if let Some(connector) = self.default_kv_transfer_config() {
            config.insert("kv-transfer-config".to_owned(), serde_json::from_str(connector).ok()?);
        }
        let (prefill, servers) = self.servers;
        let mut values = json!({ "replicaCount": servers, "config": config });
        if prefill > 0 {
            values["disaggregation"] =
                json!({ "enabled": true, "prefill": { "replicaCount": prefill } });
        }
        if self.ranks > 1 {
            values["dataParallel"] = json!({ "size": self.ranks, "mode": "onePort" });
        }
        let mut about = vec!["written by `vllm-sim plan`; JSON is valid YAML".to_owned()];
        about.extend(self.router_description().map(|router| format!("router: {router}")));
        let files = self.local_file_flags();
        if !files.is_empty() {
            about.push(format!("mount the files of these flags: {}", files.join(", ")));
        }
        let text = serde_json::to_string_pretty(&values).ok()?;
        Some(format!("# {}\n{text}\n", about.join("; ")))
    }
}
