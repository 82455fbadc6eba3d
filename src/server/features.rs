//! Checks that the program was built with the Cargo features that a configuration needs.

use super::error::StartError;
use vllm_sim_config::Config;

struct OptionalFeature {
    feature: &'static str,
    built: bool,
    flags: &'static str,
    is_wanted: fn(&Config) -> bool,
}

const OPTIONAL_FEATURES: [OptionalFeature; 9] = [
    OptionalFeature {
        feature: "download",
        built: cfg!(feature = "download"),
        flags: "--dataset-url",
        is_wanted: |config| config.content.dataset.as_ref().is_some_and(|d| d.url.is_some()),
    },
    OptionalFeature {
        feature: "download",
        built: cfg!(feature = "download"),
        flags: "--download-tokenizer",
        is_wanted: |config| config.model.tokenizer.download,
    },
    OptionalFeature {
        feature: "grpc",
        built: cfg!(feature = "grpc"),
        flags: "--grpc-port",
        is_wanted: |config| config.server.grpc_port.is_some(),
    },
    OptionalFeature {
        feature: "otel",
        built: cfg!(feature = "otel"),
        flags: "--otlp-traces-endpoint",
        is_wanted: |config| config.server.otlp.traces_endpoint.is_some(),
    },
    OptionalFeature {
        feature: "sqlite",
        built: cfg!(feature = "sqlite"),
        flags: "--dataset-path",
        is_wanted: |config| config.content.dataset.is_some(),
    },
    OptionalFeature {
        feature: "zmq",
        built: cfg!(feature = "zmq"),
        flags: "KV events (--kv-events-config, --zmq-endpoint, --enable-kvcache)",
        is_wanted: |config| config.kv_events.enabled && config.engine.has_prefix_cache(),
    },
    OptionalFeature {
        feature: "zmq",
        built: cfg!(feature = "zmq"),
        flags: "--kv-transfer-config",
        is_wanted: |config| config.kv_transfer.is_some(),
    },
    OptionalFeature {
        feature: "zmq",
        built: cfg!(feature = "zmq"),
        flags: "--disaggregation-mode",
        is_wanted: |config| config.disaggregation.is_some(),
    },
    OptionalFeature {
        feature: "zmq",
        built: cfg!(feature = "zmq"),
        flags: "--headless",
        is_wanted: |config| config.server.headless,
    },
];

pub(super) fn check_required_features(config: &Config) -> Result<(), StartError> {
    let missing = |part: &&OptionalFeature| !part.built && (part.is_wanted)(config);
    match OPTIONAL_FEATURES.iter().find(missing) {
        Some(part) => Err(StartError::MissingFeature { flags: part.flags, feature: part.feature }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_config::{CliMode, LoadedConfig};

    #[test]
    fn flags_require_cargo_feature() {
        let asks = |args: &[&str]| -> Vec<&str> {
            let args = [&["--model", "m"], args].concat();
            let loaded =
                LoadedConfig::from_flags(CliMode::Vllm, &args).expect("flags that are right");
            let parts = OPTIONAL_FEATURES.iter().filter(|part| (part.is_wanted)(&loaded.config));
            parts.map(|part| part.flags).collect()
        };
        assert!(asks(&[]).is_empty());
        assert_eq!(asks(&["--download-tokenizer"]), ["--download-tokenizer"]);
        assert_eq!(asks(&["--grpc-port", "50051"]), ["--grpc-port"]);
    }
}
