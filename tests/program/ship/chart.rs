//! What the chart refuses, and what it says. Needs helm, which `.ci/tools` installs; without it these
//! tests fail, or are left out where `VLLM_SIM_WITHOUT_HELM` is set.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// Folder of the gate's own helm, below the home.
const GATE: &str = ".cache/vllm-sim-gate/bin";

/// Variable of who has no helm and wants none.
const WITHOUT_HELM: &str = "VLLM_SIM_WITHOUT_HELM";

/// helm; `None`: there is none, and none is wanted.
fn helm() -> Option<PathBuf> {
    let gate = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(GATE));
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places)
        .chain(gate)
        .map(|folder| folder.join("helm"))
        .find(|path| path.is_file());
    if found.is_none() {
        let unwanted = std::env::var_os(WITHOUT_HELM).is_some();
        assert!(unwanted, "no helm: run .ci/tools, or set {WITHOUT_HELM}=1");
        // Unlike `eprintln!` it is seen of a test that passes.
        let _ = writeln!(std::io::stderr(), "SKIP: a test of the chart, {WITHOUT_HELM} is set");
    }
    found
}

/// The rendered chart, or what helm says against it; `None` where helm is not wanted.
fn template(values: &str) -> Option<Result<String, String>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values).unwrap();
    let output = Command::new(helm()?)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["template", "check", "helm/vllm-sim", "-f"])
        .arg(file.path())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Some(match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    })
}

#[test]
fn invalid_helm_values_are_rejected() {
    for (values, told) in [
        ("config: {replicas: 3}", "config.replicas starts servers on ports that no Service"),
        ("config: {maxNumSeqs: 0}", "maxNumSeqs"),
        ("config: {failure-injection-rate: 101}", "100"),
        ("dataset: {enabled: true}", "dataset.enabled needs a source"),
        ("dataset: {existingClaim: c}", "have no effect without dataset.enabled"),
        (
            "tls: {selfSigned: true, existingSecret: s}",
            "tls.selfSigned and tls.existingSecret cannot be used together",
        ),
        ("tls: {clientCertificates: 2}", "tls.clientCertificates needs tls.existingSecret"),
        (
            "{kserve: {enabled: true}, gateway: {httpRoute: {enabled: true}}}",
            "gateway.httpRoute.enabled has no effect with kserve.enabled",
        ),
        ("{kserve: {enabled: true}, extraArgs: [--a]}", "extraArgs has no effect"),
        ("gateway: {httpRoute: {enabled: true}}", "which needs gateway.inferencePool.enabled"),
        (
            "gateway: {inferencePool: {enabled: true}}",
            "gateway.inferencePool.enabled needs an endpoint picker",
        ),
        (
            "gateway: {inferencePool: {enabled: true, endpointPicker: {name: a, deploy: true}}}",
            "cannot be used together",
        ),
        (
            "gateway: {inferencePool: {endpointPicker: {deploy: true}}}",
            "endpointPicker.deploy has no effect",
        ),
        (
            "gateway: {inferencePool: {enabled: true, endpointPicker: {name: a, extraArgs: [--v=4]}}}",
            "have no effect without endpointPicker.deploy",
        ),
        ("preStopSleepSeconds: 45", "killed during the sleep"),
        ("config: {gpu: H1000}", "config.gpu \"H1000\" is not known"),
        ("config: {gpu: h100, model: demo}", "sizes of config.model \"demo\""),
        ("config: {admin-api-key: k}", "adminApiKey.existingSecret"),
        ("config: {apiKey: [k]}", "config.api-key would be readable in a ConfigMap"),
        ("config: {hfToken: k}", "huggingFace.existingSecret"),
        (
            "disaggregation: {prefill: {config: {api-key: k}}}",
            "disaggregation.prefill.config.api-key",
        ),
        (
            "{networkPolicy: {enabled: true}, kvEvents: {enabled: true, connectTo: 'tcp://l:1'}}",
            "kvEvents.connectTo cannot be reached",
        ),
        ("{command: [vllm], extraArgs: [--a]}", "extraArgs has no effect with command"),
        ("service: {nodePort: 30000}", "service.nodePort has no effect"),
    ] {
        let Some(rendered) = template(values) else {
            return;
        };
        let error = rendered.expect_err(values);
        assert!(error.contains(told), "{values}: {error}");
    }
    for values in [
        "config: {gpu: h100, model: meta-llama/Llama-3.1-8B-Instruct}",
        "config: {gpu: h100_sxm, model: Qwen/Qwen3-0.6B}",
        "config: {gpu: NVIDIA L40S, model: /models/own}",
        "config: {gpu: L4, model: own, latency-model: polynomial}",
    ] {
        let rendered = template(values).expect("helm was there");
        assert!(rendered.is_ok(), "{values}: {rendered:?}");
    }
}

/// The part of llm-d-inference-sim's `helm/llm-d-inference-sim/values.yaml` that names things.
const LLMD_VALUES: &str = "\
image: {repository: ghcr.io/llm-d/llm-d-inference-sim, pullPolicy: IfNotPresent, tag: dev}
securityContext: {}
podSecurityContext: {}
service: {type: ClusterIP, port: 8001}
vllmRender: {image: 'vllm/vllm-openai-cpu:v0.21.0', imagePullPolicy: IfNotPresent, port: 8082}
config:
  port: 8001
  model: Qwen/Qwen2-0.5B
  servedModelName: [model1, model2]
  maxLoras: 2
  loraModules: ['{\"name\":\"lora1\",\"path\":\"/path/to/lora1\"}']
  mode: echo
  timeToFirstToken: 500
  seed: 100100100
";

#[test]
fn llmd_helm_values_deploy_the_simulator() {
    let notes = "extraObjects: [{kind: Notes, apiVersion: v1, text: '{{ include \"vllm-sim.notes\" . | b64enc }}'}]";
    let Some(rendered) = template(&format!("{LLMD_VALUES}{notes}")) else {
        return;
    };
    let rendered = rendered.unwrap();
    let images: Vec<&str> =
        rendered.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    assert_eq!(images[0], "ghcr.io/vllm-sim/vllm-sim:0.1.0");
    assert!(images.iter().all(|image| !image.contains("llm-d")), "{images:?}");
    assert!(rendered.contains("    compat: \"llm-d\"\n"), "{rendered}");
    let said = rendered.lines().find_map(|line| line.strip_prefix("text: "));
    let said = base64(said.unwrap().trim_matches(['\'', '"']));
    for part in [
        "vllmRender has no effect",
        "image.repository names llm-d's image. The pods get ghcr.io/vllm-sim/vllm-sim:0.1.0",
        "nameOverride: llm-d-inference-sim keeps the label",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let kept = template(&format!("{LLMD_VALUES}nameOverride: llm-d-inference-sim\n{notes}"));
    let kept = kept.expect("helm was there").unwrap();
    assert!(kept.contains("      app.kubernetes.io/name: llm-d-inference-sim\n"));
}

fn base64(text: &str) -> String {
    use base64::Engine;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text);
    String::from_utf8(bytes.unwrap()).unwrap()
}

#[test]
fn network_policy_admits_scraper_and_router() {
    let values = "\
networkPolicy: {enabled: true, gateways: [{namespaceSelector: {matchLabels: {team: proxies}}}]}
monitoring: {serviceMonitor: {enabled: true}}
gateway: {httpRoute: {enabled: true, backend: service, parentRefs: [{name: g, namespace: edge}]}}
";
    let Some(rendered) = template(values) else {
        return;
    };
    let rendered = rendered.unwrap();
    let policy = rendered.split("---").find(|part| part.contains("kind: NetworkPolicy"));
    let policy = policy.unwrap();
    for part in [
        "kubernetes.io/metadata.name: monitoring",
        "kubernetes.io/metadata.name: edge",
        "team: proxies",
    ] {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    let secret = template("adminApiKey: {existingSecret: s}").unwrap().unwrap();
    assert!(secret.contains("name: VLLM_SIM_ADMIN_API_KEY"), "{secret}");
}

#[test]
fn inference_pool_names_existing_picker() {
    let deployed = "gateway: {inferencePool: {enabled: true, endpointPicker: {deploy: true}}}";
    let Some(rendered) = template(deployed) else {
        return;
    };
    let rendered = rendered.unwrap();
    let parts: Vec<&str> = rendered.split("---\n").collect();
    let named = |kind: &str| {
        let kind = format!("kind: {kind}\n");
        let part = parts
            .iter()
            .find(|part| part.contains(&kind) && part.contains("name: check-vllm-sim-epp"));
        *part.unwrap_or_else(|| panic!("no {kind}: {rendered}"))
    };
    let picker = named("Deployment");
    assert!(picker.contains("--pool-name=check-vllm-sim\n"), "{picker}");
    // The pool's own selector does not find it.
    assert!(picker.contains("app.kubernetes.io/name: vllm-sim-epp\n"));
    for kind in ["Service", "ConfigMap", "Role", "RoleBinding", "InferencePool"] {
        named(kind);
    }
    let own =
        template("gateway: {inferencePool: {enabled: true, endpointPicker: {name: own, port: 7}}}");
    let own = own.expect("helm was there").unwrap();
    assert!(own.contains("    name: own\n    port:\n      number: 7\n"), "{own}");
    assert!(!own.contains("-epp"), "{own}");
}

#[test]
fn pods_are_taken_out_before_they_end_and_their_streams_may_finish() {
    for (values, sleep, drain) in [
        ("config: {cliMode: vllm, model: demo}", Some(5), 35),
        ("{preStopSleepSeconds: 0, terminationGracePeriodSeconds: 300}", None, 295),
        ("config: {shutdownTimeout: 7}", Some(5), 7),
    ] {
        let Some(rendered) = template(values) else {
            return;
        };
        let rendered = rendered.unwrap();
        assert!(rendered.contains(&format!("    shutdown-timeout: {drain}\n")), "{rendered}");
        match sleep {
            Some(sleep) => assert!(rendered.contains(&format!("seconds: {sleep}\n"))),
            None => assert!(!rendered.contains("preStop")),
        }
    }
}

#[test]
fn llmd_label_names_are_current_by_default() {
    let pair = "disaggregation: {enabled: true}\n";
    let Some(rendered) = template(pair) else {
        return;
    };
    let rendered = rendered.unwrap();
    assert!(rendered.contains("llm-d.ai/inference-serving: \"true\"\n"));
    assert!(rendered.contains("ghcr.io/llm-d/llm-d-router-disagg-sidecar:"));
    let old = template(&format!("{pair}llmd: {{legacyNames: true}}")).unwrap();
    let old = old.unwrap();
    assert!(old.contains("llm-d.ai/inferenceServing: \"true\"\n"));
    assert!(old.contains("ghcr.io/llm-d/llm-d-routing-sidecar:"));
    assert!(!old.contains("inference-serving"), "{old}");
}
