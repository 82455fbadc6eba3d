//! Mutated scenarios: one that can be played or words, never a panic.

use super::scenario::Scenario;

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

const DRILLS: &[&str] = &[
    include_str!("../../../manifests/drills/brownout.yaml"),
    include_str!("../../../manifests/drills/cut-streams.yaml"),
    include_str!("../../../manifests/drills/lora-churn.yaml"),
    include_str!("../../../manifests/drills/restart.yaml"),
];

#[test]
fn scenarios() {
    mutate::each(DRILLS, |bytes| {
        if let Err(error) = Scenario::from_yaml(&String::from_utf8_lossy(bytes)) {
            let words = error.to_string();
            assert!(!words.is_empty() && words.len() < 4096 + 4 * bytes.len());
        }
    });
}
