//! Checks that the program was built with the Cargo features that a configuration needs.

use super::error::StartError;
use vllm_sim_config::Config;

/// Name of a Cargo feature, and whether the program was built with it.
type CargoFeature = (&'static str, bool);

const DOWNLOAD: CargoFeature = ("download", cfg!(feature = "download"));
const GRPC: CargoFeature = ("grpc", cfg!(feature = "grpc"));
const OTEL: CargoFeature = ("otel", cfg!(feature = "otel"));
const SQLITE: CargoFeature = ("sqlite", cfg!(feature = "sqlite"));
const ZMQ: CargoFeature = ("zmq", cfg!(feature = "zmq"));

/// Cargo feature, the flags in need of it, and a check whether a configuration sets them.
type FlagsOfFeature = (CargoFeature, &'static str, fn(&Config) -> bool);

const FLAGS_OF_FEATURES: [FlagsOfFeature; 9] = [
    (DOWNLOAD, "--dataset-url", |config| {
        config.content.dataset.as_ref().is_some_and(|dataset| dataset.url.is_some())
    }),
    (DOWNLOAD, "--download-tokenizer", |config| config.model.tokenizer.download),
    (GRPC, "--grpc-port", |config| config.server.grpc_port.is_some()),
    (OTEL, "--otlp-traces-endpoint", |config| config.server.otlp.traces_endpoint.is_some()),
    (SQLITE, "--dataset-path", |config| config.content.dataset.is_some()),
    (ZMQ, "KV events (--kv-events-config, --zmq-endpoint, --enable-kvcache)", |config| {
        config.kv_events.enabled && config.engine.has_prefix_cache()
    }),
    (ZMQ, "--kv-transfer-config", |config| config.kv_transfer.is_some()),
    (ZMQ, "--disaggregation-mode", |config| config.disaggregation.is_some()),
    (ZMQ, "--headless", |config| config.server.headless),
];

pub(super) fn check_required_features(config: &Config) -> Result<(), StartError> {
    for ((feature, is_built), flags, are_set) in FLAGS_OF_FEATURES {
        if !is_built && are_set(config) {
            return Err(StartError::MissingFeature { flags, feature });
        }
    }
    Ok(())
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
            let set = FLAGS_OF_FEATURES.iter().filter(|(_, _, are_set)| are_set(&loaded.config));
            set.map(|(_, flags, _)| *flags).collect()
        };
        assert!(asks(&[]).is_empty());
        assert_eq!(asks(&["--download-tokenizer"]), ["--download-tokenizer"]);
        assert_eq!(asks(&["--grpc-port", "50051"]), ["--grpc-port"]);
    }
}
