//! Renders values of the model service chart of llm-d.

use serde_json::{Value, json};

use super::servers::{AMD_GPU_RESOURCE, DeployedServers, DeploymentTarget, format_yaml_file};

pub(super) const TARGET: DeploymentTarget = DeploymentTarget {
    file: "llm-d.values.yaml",
    apply: "helm install vllm llm-d-modelservice/llm-d-modelservice \
            --version v0.4.12 -f llm-d.values.yaml",
    render: render_helm_values_file,
};

/// Port of the routing side-car, and of a server without one.
const SERVICE_PORT: u16 = 8000;
/// Port of a server behind the routing side-car.
const TARGET_PORT: u16 = 8200;
/// Port of NIXL's side channel, vLLM's default.
const SIDE_CHANNEL_PORT: u16 = 5600;

/// Renders the Helm values for llm-d's model service chart.
///
/// Source: `charts/llm-d-modelservice/values.yaml`, its `values.schema.json` and `templates` of
/// llm-d-incubation/llm-d-modelservice, v0.4.12.
fn render_helm_values_file(servers: &DeployedServers<'_>) -> Result<String, &'static str> {
    if servers.gpus != servers.tensor.saturating_mul(servers.data) {
        return Err(
            "the chart counts GPUs of tensor and data parallelism only, and a server takes others",
        );
    }
    let is_split = servers.prefill > 0;
    let (port, prefill) = match is_split {
        true => (TARGET_PORT, role(servers, servers.prefill, SERVICE_PORT)),
        false => (SERVICE_PORT, json!({"create": false})),
    };
    let mut values = json!({
        "modelArtifacts": {
            "name": servers.model,
            "uri": format!("hf://{}", servers.model),
            "labels": {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": servers.name},
        },
        "routing": {"servicePort": SERVICE_PORT, "proxy": {"enabled": is_split}},
        "decode": role(servers, servers.serving, port),
        "prefill": prefill,
    });
    if servers.is_amd {
        // The chart's default is NVIDIA's resource.
        values["accelerator"] = json!({"type": "amd", "resources": {"amd": AMD_GPU_RESOURCE}});
    }
    let made_with = format!("The plan was made with --router={}.", servers.policy);
    let comments = [
        "Values of the chart llm-d-modelservice v0.4.12 (llm-d-incubation/llm-d-modelservice).",
        "Requests reach the pods through an InferencePool with the labels below and llm-d's picker.",
        made_with.as_str(),
    ];
    Ok(format_yaml_file(&comments, &[values]))
}

fn role(servers: &DeployedServers<'_>, replicas: u32, port: u16) -> Value {
    let mut ports = vec![json!({"containerPort": port, "protocol": "TCP"})];
    if servers.prefill > 0 {
        ports.push(json!({"containerPort": SIDE_CHANNEL_PORT, "protocol": "TCP"}));
    }
    json!({
        "create": true,
        "replicas": replicas,
        // The chart adds the flags of the sizes and the GPUs.
        "parallelism": {
            "tensor": servers.tensor,
            "data": servers.data,
            "dataLocal": servers.data,
            "workers": 1,
        },
        "containers": [{
            "name": "vllm",
            "image": servers.image(),
            "modelCommand": "vllmServe",
            "args": servers.arguments,
            "env": servers.container_environment(),
            "ports": ports,
        }],
    })
}
