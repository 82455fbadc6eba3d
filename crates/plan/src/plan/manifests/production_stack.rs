//! Renders values of the chart of the vLLM production stack.

use serde_json::json;

use super::servers::{
    AMD_GPU_RESOURCE, DATA_PARALLEL_FLAG, DeployedServers, DeploymentTarget, format_yaml_file,
};

pub(super) const TARGET: DeploymentTarget = DeploymentTarget {
    file: "production-stack.values.yaml",
    apply: "helm install vllm vllm/vllm-stack --version 0.1.12 \
            -f production-stack.values.yaml",
    render: render_helm_values_file,
};

/// Renders the Helm values for the vLLM production stack's chart.
///
/// Source: `helm/values.yaml`, `helm/values.schema.json` and
/// `helm/templates/deployment-vllm-multi.yaml` of vllm-project/production-stack, chart 0.1.12.
fn render_helm_values_file(servers: &DeployedServers<'_>) -> Result<String, &'static str> {
    if servers.prefill > 0 {
        return Err(
            "the chart splits prefill and decode only with LMCache and one fixed decode server",
        );
    }
    let (policy, note) = policy(servers.policy);
    // The chart turns prefix caching off unless it is asked for, and `extraArgs` come later.
    let mut engine = json!({"enablePrefixCaching": true, "tensorParallelSize": servers.tensor});
    let extra = servers.arguments_with_parallel_sizes(&[DATA_PARALLEL_FLAG]);
    if !extra.is_empty() {
        engine["extraArgs"] = json!(extra);
    }
    let mut router = json!({"routingLogic": policy});
    if policy == "session" {
        router["sessionKey"] = json!("x-session-id");
    }
    let mut values = json!({
        "servingEngineSpec": {
            "runtimeClassName": "",
            "modelSpec": [{
                "name": servers.name,
                "repository": servers.image_repository(),
                "tag": servers.image_tag(),
                "modelURL": servers.model,
                "replicaCount": servers.serving,
                "requestCPU": 8,
                "requestMemory": "64Gi",
                "requestGPU": servers.gpus,
                "vllmConfig": engine,
                "env": servers.container_environment(),
            }],
        },
        "routerSpec": router,
    });
    if servers.is_amd {
        // The chart's default is NVIDIA's resource.
        values["servingEngineSpec"]["modelSpec"][0]["requestGPUType"] = json!(AMD_GPU_RESOURCE);
    }
    let made_with = format!("The plan was made with --router={}. {note}", servers.policy);
    let made_with = made_with.trim_end();
    let comments = [
        "Values of the chart vllm-stack 0.1.12 (vllm-project/production-stack).",
        "requestCPU and requestMemory are not planned: adapt them.",
        made_with,
    ];
    Ok(format_yaml_file(&comments, &[values]))
}

/// Returns the chart's routing policy that is most similar to the policy of the plan, and a note if
/// the two differ.
fn policy(name: &str) -> (&'static str, &'static str) {
    match name {
        "round_robin" => ("roundrobin", ""),
        "session_hash" => ("session", "Clients send the header x-session-id."),
        "kv_router" | "llm-d" => ("prefixaware", "The chart's nearest policy is prefixaware."),
        _ => ("roundrobin", "The chart has no such policy, so it takes turns."),
    }
}
