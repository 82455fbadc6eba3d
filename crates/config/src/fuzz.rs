//! Mutated configuration files: settings or words, never a panic.

use super::yaml;

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

const FILES: &[&str] = &[
    "model: m\nport: 8001\nserved-model-name: [a, b]\ntime-to-first-token: 20ms\n",
    "fake-metrics:\n  running-requests: 3\n  loras:\n    - '{\"running\": \"a\"}'\n",
    "lora-modules:\n  - '{\"name\": \"a\", \"path\": \"/p\"}'\n# note\nmax_num_seqs: !!int \"5\"\n",
    "a: &a {b: [1, 2.5, null, ~]}\nkv-events-config: *a\nno-enable-prefix-caching: true\n",
];

#[test]
fn files() {
    mutate::each(FILES, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for strict in [false, true] {
            if let Err(error) = yaml::parse(&text, "file.yaml", strict) {
                let words = error.to_string();
                assert!(
                    words.contains("file.yaml") || words.contains("key"),
                    "{words}"
                );
                assert!(words.len() < 4096 + 8 * bytes.len());
            }
        }
    });
}
