//! The Helm chart knows every flag: `config:` in its values is checked before anything is installed.

use std::path::Path;

use serde_json::{Map, Value, json};
use vllm_sim_config::{
    FlagKind, FlagSpec, FlagValueBounds, all_effective_flags, all_ignored_flags,
};
use vllm_sim_engine::latency::{KNOWN_GPUS, known_model_names};

/// What a YAML value of this kind looks like.
fn shape(kind: FlagKind) -> Value {
    let number = "^(auto|none|-?[0-9]+(\\.[0-9]+)?[kKmMgGtT]?)$";
    let duration = "^([0-9]*\\.?[0-9]+(ns|us|µs|μs|ms|s|m|h)?)+$";
    match kind {
        FlagKind::Switch => json!({ "enum": [true, false, "true", "false"] }),
        FlagKind::Int | FlagKind::Count => {
            json!({ "type": ["integer", "string"], "pattern": number })
        }
        FlagKind::Float => json!({ "type": ["number", "string"], "pattern": number }),
        FlagKind::Duration | FlagKind::Seconds => {
            json!({ "type": ["number", "string"], "minimum": 0, "pattern": duration })
        }
        FlagKind::Text | FlagKind::Path => json!({ "type": ["string", "number"] }),
        FlagKind::Choice(words) => json!({ "enum": words }),
        FlagKind::List | FlagKind::Repeat => json!({ "type": ["array", "string", "number"] }),
        FlagKind::Json => json!({ "type": ["object", "array", "string"] }),
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1);
        text.push_str(&first.to_uppercase());
        text.push_str(rest);
    }
    text
}

fn described(flag: &FlagSpec) -> Value {
    let mut shape = shape(flag.kind);
    shape["description"] = flag.help.into();
    if let Some((least, most)) = bounds(flag) {
        shape["minimum"] = least;
        shape["maximum"] = most;
    }
    shape
}

/// The bounds of a flag on either command line, for values that are numbers.
fn bounds(flag: &FlagSpec) -> Option<(Value, Value)> {
    match flag.ranges? {
        (FlagValueBounds::Whole(least, most), FlagValueBounds::Whole(other_least, other_most)) => {
            Some((least.min(other_least).into(), most.max(other_most).into()))
        }
        (
            FlagValueBounds::Number(least, most),
            FlagValueBounds::Number(other_least, other_most),
        ) => Some((least.min(other_least).into(), most.max(other_most).into())),
        _ => None,
    }
}

/// The schema of `config:`, with every spelling that the chart turns into a flag.
fn definition() -> Value {
    let mut keys = Map::new();
    for flag in all_effective_flags() {
        keys.insert(flag.name.to_owned(), described(flag));
    }
    for flag in all_effective_flags() {
        let reference = json!({ "$ref": format!("#/definitions/flags/properties/{}", flag.name) });
        for name in std::iter::once(&flag.name).chain(flag.aliases) {
            let mut spellings = vec![(*name).to_owned(), camel_case(name)];
            if flag.kind == FlagKind::Switch {
                spellings.push(format!("no-{name}"));
            }
            for spelling in spellings {
                keys.entry(spelling).or_insert(reference.clone());
            }
        }
    }
    for (name, _) in all_ignored_flags() {
        keys.entry(name).or_insert(json!({}));
        keys.entry(camel_case(name)).or_insert(json!({}));
    }
    json!({ "type": "object", "additionalProperties": false, "properties": keys })
}

#[test]
fn the_charts_schema_has_every_flag() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/vllm-sim/values.schema.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    schema["definitions"]["flags"] = definition();
    let new = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &new).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page == new, "helm/vllm-sim/values.schema.json is old: run BLESS=1 cargo test");
}

/// Letters and digits only, without the makers' names, as `--gpu` compares.
fn plain(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    lower.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[test]
fn the_chart_has_every_gpu_and_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/vllm-sim/files/known.yaml");
    let mut text =
        "# GPUs and models whose sizes the program knows; made by `cargo test`.\n".to_owned();
    let gpus = KNOWN_GPUS.iter();
    let gpus = gpus.flat_map(|gpu| std::iter::once(&gpu.name).chain(gpu.aliases));
    let mut gpus: Vec<String> = gpus.map(|name| plain(name)).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let mut models: Vec<String> = known_model_names().map(str::to_owned).collect();
    models.sort_unstable();
    for (key, names) in [("gpus", gpus), ("models", models)] {
        text.push_str(&format!("{key}:\n"));
        // Quoted: 4090 is a name.
        names.iter().for_each(|name| text.push_str(&format!("  - \"{name}\"\n")));
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == text,
        "helm/vllm-sim/files/known.yaml is old: run BLESS=1 cargo test"
    );
}
