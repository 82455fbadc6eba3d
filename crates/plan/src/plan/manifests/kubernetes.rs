//! Renders Deployments and Services of plain Kubernetes.

use serde_json::{Value, json};

use super::servers::{
    DATA_PARALLEL_FLAG, DeployedServers, DeploymentTarget, TENSOR_PARALLEL_FLAG, format_yaml_file,
};

pub(super) const TARGET: DeploymentTarget = DeploymentTarget {
    file: "kubernetes.yaml",
    apply: "kubectl apply -f kubernetes.yaml",
    render: render_manifest_file,
};

/// Renders the YAML file of Kubernetes Deployments and Services, which need no operator.
fn render_manifest_file(servers: &DeployedServers<'_>) -> Result<String, &'static str> {
    let mut documents = Vec::new();
    let name = &servers.name;
    match servers.prefill {
        0 => documents.extend(deployment_and_service(servers, name, servers.serving)),
        prefill => {
            documents.extend(deployment_and_service(servers, &format!("{name}-prefill"), prefill));
            documents.extend(deployment_and_service(
                servers,
                &format!("{name}-decode"),
                servers.serving,
            ));
        }
    }
    let policy = format!("The plan was made with --router={}.", servers.policy);
    let proxy = match servers.prefill {
        0 => "A Service spreads connections at random; put a router in front for another policy.",
        _ => {
            "Needed in front: a proxy that sends a prompt to -prefill and then to -decode, such as \
             vLLM's examples for disaggregated prefill. llm-d and KServe bring one."
        }
    };
    let comments = ["Kubernetes apps/v1 and v1 (1.28 and newer).", policy.as_str(), proxy];
    Ok(format_yaml_file(&comments, &documents))
}

fn deployment_and_service(servers: &DeployedServers<'_>, name: &str, replicas: u32) -> [Value; 2] {
    let labels = json!({"app.kubernetes.io/name": name});
    let probe = json!({"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10});
    let mut startup = probe.clone();
    // Weights are loaded for up to an hour.
    startup["failureThreshold"] = json!(360);
    let mut arguments = vec![servers.model.to_owned(), "--port=8000".to_owned()];
    arguments
        .extend(servers.arguments_with_parallel_sizes(&[TENSOR_PARALLEL_FLAG, DATA_PARALLEL_FLAG]));
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{
                        "name": "vllm",
                        "image": servers.image(),
                        "command": ["vllm", "serve"],
                        "args": arguments,
                        "env": servers.container_environment(),
                        "ports": [{"name": "http", "containerPort": 8000}],
                        "resources": servers.gpu_resources(),
                        "startupProbe": startup,
                        "readinessProbe": probe,
                        "livenessProbe": probe,
                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    }],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": labels,
            "ports": [{"name": "http", "port": 8000, "targetPort": "http"}],
        },
    });
    [deployment, service]
}
