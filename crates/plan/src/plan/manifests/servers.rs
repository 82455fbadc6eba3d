//! Describes the servers of a plan's answer, for the files that deploy them.

use serde_json::{Map, Value, json};

use crate::plan::deploy::DeploymentCommands;
use vllm_sim_engine::latency::{Gpu, find_gpu};

/// Servers of a plan's answer, with the values that the files of all deployment targets need.
pub(super) struct DeployedServers<'a> {
    /// Name of the model, as vLLM takes it.
    pub(super) model: &'a str,
    /// Name of the deployed servers as a DNS label.
    pub(super) name: String,
    /// Arguments of `vllm serve`, without the model and the parallel sizes that deployment files
    /// set in fields of their own.
    pub(super) arguments: Vec<String>,
    pub(super) tensor: u32,
    pub(super) data: u32,
    /// Number of GPUs of one deployed server.
    pub(super) gpus: u32,
    /// Number of prefill servers; 0 if every server does both prefill and decode.
    pub(super) prefill: u32,
    /// Number of servers that decode, or that do both prefill and decode.
    pub(super) serving: u32,
    /// Version of vLLM that the plan simulated.
    pub(super) version: &'a str,
    pub(super) policy: &'a str,
    /// Whether the GPUs are AMD's, which need vLLM's image for ROCm.
    pub(super) is_amd: bool,
}

/// Deployment target, such as Kubernetes or KServe, with its file.
pub(super) struct DeploymentTarget {
    pub(super) file: &'static str,
    /// Shell command to apply the target's file.
    pub(super) apply: &'static str,
    /// Renders the target's file, or returns the reason why the target has none.
    pub(super) render: fn(&DeployedServers<'_>) -> Result<String, &'static str>,
}

/// Text in the first line of every deployment file; a later plan may replace only files with this
/// line.
pub(super) const WRITTEN_BY_PLAN_COMMENT: &str = "Written by `vllm-sim plan`.";
/// Name of AMD's GPUs as a Kubernetes resource.
pub(super) const AMD_GPU_RESOURCE: &str = "amd.com/gpu";
/// Name of the flag that sets the tensor-parallel size.
pub(super) const TENSOR_PARALLEL_FLAG: &str = "tensor-parallel-size";
/// Name of the flag that sets the data-parallel size.
pub(super) const DATA_PARALLEL_FLAG: &str = "data-parallel-size";
/// Flags of `vllm serve` that the deployment files set in fields of their own.
const FIELDS: [&str; 3] = [TENSOR_PARALLEL_FLAG, DATA_PARALLEL_FLAG, "port"];

impl<'a> DeployedServers<'a> {
    pub(super) fn servers_from_deployment_commands(
        commands: &DeploymentCommands<'a>,
        gpus: u32,
        version: Option<&'a str>,
    ) -> Self {
        let size = |name: &str| {
            let value = commands.deployment_flag_value(name);
            value.and_then(|text| text.parse().ok()).unwrap_or(1)
        };
        let (prefill, serving) = commands.servers;
        Self {
            model: commands.model,
            name: dns_label(commands.model),
            arguments: commands.vllm_serve_arguments(&FIELDS),
            tensor: size(TENSOR_PARALLEL_FLAG),
            data: size(DATA_PARALLEL_FLAG),
            gpus: gpus / (prefill + serving).max(1),
            prefill,
            serving,
            version: version.unwrap_or("latest"),
            policy: &commands.router.0,
            is_amd: commands
                .deployment_flag_value("gpu")
                .and_then(find_gpu)
                .is_some_and(Gpu::is_amd),
        }
    }

    /// Returns the arguments of `vllm serve` after the model: first the parallel sizes named in
    /// `sizes` that are above 1, then all others.
    pub(super) fn arguments_with_parallel_sizes(&self, sizes: &[&str]) -> Vec<String> {
        let known =
            [(TENSOR_PARALLEL_FLAG, self.tensor), (DATA_PARALLEL_FLAG, self.data)].into_iter();
        let sizes = known.filter(|(name, size)| *size > 1 && sizes.contains(name));
        let sizes = sizes.map(|(name, size)| format!("--{name}={size}"));
        sizes.chain(self.arguments.iter().cloned()).collect()
    }

    /// Returns the repository of vLLM's image for the GPUs.
    pub(super) fn image_repository(&self) -> &'static str {
        if self.is_amd { "vllm/vllm-openai-rocm" } else { "vllm/vllm-openai" }
    }

    /// Returns vLLM's image for the GPUs and the simulated version.
    pub(super) fn image(&self) -> String {
        format!("{}:{}", self.image_repository(), self.image_tag())
    }

    /// Returns the tag of vLLM's image for the simulated version.
    pub(super) fn image_tag(&self) -> String {
        match self.version.split('.').count() {
            1 => self.version.to_owned(),
            2 => format!("v{}.0", self.version),
            _ => format!("v{}", self.version),
        }
    }

    /// Returns the environment of vLLM's container: the token of gated models, and the address of
    /// the side channel over which separate decode servers fetch KV blocks.
    pub(super) fn container_environment(&self) -> Vec<Value> {
        let mut all = vec![json!({
            "name": "HF_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": true}},
        })];
        if self.prefill > 0 {
            all.push(json!({
                "name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
                "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
            }));
        }
        all
    }

    /// Returns the name of the GPUs as a Kubernetes resource, which the device plugin of their
    /// maker offers.
    pub(super) fn gpu_resource_name(&self) -> &'static str {
        if self.is_amd { AMD_GPU_RESOURCE } else { "nvidia.com/gpu" }
    }

    /// Returns the GPUs of one server as a Kubernetes resource.
    pub(super) fn gpu_resources(&self) -> Value {
        let count = json!(self.gpus.to_string());
        let gpus = Map::from_iter([(self.gpu_resource_name().to_owned(), count)]);
        json!({"limits": gpus, "requests": gpus})
    }
}

/// Returns a name for Kubernetes from the last part of a model's name.
fn dns_label(model: &str) -> String {
    let last = model.trim_end_matches('/').rsplit('/').next().unwrap_or(model);
    let plain = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    let name: String = last.chars().map(plain).take(40).collect();
    format!("vllm-{}", name.trim_matches('-'))
}

/// Formats the documents of a YAML file below comment lines, the first of which is
/// [`WRITTEN_BY_PLAN_COMMENT`].
pub(super) fn format_yaml_file(comments: &[&str], documents: &[Value]) -> String {
    let comments = [WRITTEN_BY_PLAN_COMMENT].iter().chain(comments);
    let mut text: String = comments.map(|line| format!("# {line}\n")).collect();
    for (index, document) in documents.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        // A JSON value has nothing that YAML lacks.
        text.push_str(&serde_saphyr::to_string(document).unwrap_or_default());
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::dns_label;

    #[test]
    fn names_are_dns_labels() {
        let names = ["meta-llama/Llama-3.1-8B-Instruct", "demo", "./models/x_y/"].map(dns_label);
        assert_eq!(names, ["vllm-llama-3-1-8b-instruct", "vllm-demo", "vllm-x-y"]);
    }
}
