//! Renders an LLMInferenceService of KServe.

use serde_json::{Value, json};

use super::servers::{DATA_PARALLEL_FLAG, DeployedServers, DeploymentTarget, format_yaml_file};
use vllm_sim_command_line::shell_quote;

pub(super) const TARGET: DeploymentTarget = DeploymentTarget {
    file: "kserve.yaml",
    apply: "kubectl apply -f kserve.yaml",
    render: render_manifest_file,
};

/// Renders the YAML file of an LLMInferenceService of KServe.
///
/// Source: `pkg/apis/serving/v1alpha2/llm_inference_service_types.go` and
/// `config/llmisvcconfig/config-llm-template.yaml` of kserve/kserve, v0.20.0.
fn render_manifest_file(servers: &DeployedServers<'_>) -> Result<String, &'static str> {
    if servers.is_amd {
        return Err("the image that KServe chooses is one for NVIDIA's GPUs");
    }
    let mut spec = workload(servers, servers.serving);
    spec["model"] = json!({"uri": format!("hf://{}", servers.model), "name": servers.model});
    spec["router"] = json!({"gateway": {}, "route": {}, "scheduler": {}});
    if servers.prefill > 0 {
        spec["prefill"] = workload(servers, servers.prefill);
    }
    let service = json!({
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": servers.name},
        "spec": spec,
    });
    let made_with = format!(
        "The plan was made with --router={} for vLLM {}; KServe chooses the image.",
        servers.policy, servers.version
    );
    let comments =
        ["LLMInferenceService serving.kserve.io/v1alpha2 of KServe 0.20.", made_with.as_str()];
    Ok(format_yaml_file(&comments, &[service]))
}

fn workload(servers: &DeployedServers<'_>, replicas: u32) -> Value {
    // KServe's field for data parallelism makes one pod per group of ranks.
    let arguments = servers.arguments_with_parallel_sizes(&[DATA_PARALLEL_FLAG]);
    let mut environment = servers.container_environment();
    if !arguments.is_empty() {
        // A shell splits the value into words.
        let words: Vec<String> = arguments.iter().map(|word| shell_quote(word)).collect();
        environment.push(json!({"name": "VLLM_ADDITIONAL_ARGS", "value": words.join(" ")}));
    }
    json!({
        "replicas": replicas,
        "parallelism": {"tensor": servers.tensor},
        "template": {
            "containers": [{
                "name": "main",
                "env": environment,
                "resources": servers.gpu_resources(),
            }],
        },
    })
}
