//! Every flag of the registry from every source: the command line, a YAML file under each of its
//! names, its environment variable. The same values are taken, and refused in the same words: the
//! flag, what was given, what is allowed, and where it came from.

use vllm_sim_config::{CliMode, FlagKind, FlagSpec, all_effective_flags};

use super::try_words;

/// Where a value may come from.
#[derive(Debug, Clone, Copy)]
enum From {
    Words,
    Yaml,
    Env,
}

const FROM: [From; 3] = [From::Words, From::Yaml, From::Env];

/// What a configuration with this value says, or why it is refused.
fn set(flag: &FlagSpec, name: &str, value: &str, from: From) -> Result<String, String> {
    let mut words = vec!["vllm-sim".to_owned()];
    // A file names the model where the flag does not: a list would grow.
    if flag.name != "model" {
        words.extend(["--model".to_owned(), "m".to_owned()]);
    }
    if flag.name != "force-dummy-tokenizer" {
        words.push("--force-dummy-tokenizer".to_owned());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let variable = flag.env_variable_name();
    let mut vars = vec![("POD_IP", "10.0.0.1")];
    match from {
        From::Words => words.push(format!("--{name}={value}")),
        From::Yaml => {
            let quoted = serde_json::to_string(value).unwrap();
            std::fs::write(file.path(), format!("{name}: {quoted}\n")).unwrap();
            words.extend(["--config".to_owned(), file.path().display().to_string()]);
        }
        From::Env => vars.push((&variable, value)),
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let loaded = try_words(&words, &vars).map_err(|error| error.to_string())?;
    let unknown = |warning: &&String| warning.contains("unknown");
    if let Some(warning) = loaded.warnings.iter().find(unknown) {
        return Err(warning.clone());
    }
    let shown = loaded.resolved_flags.iter().find(|known| known.name == flag.name);
    Ok(shown.map(|known| known.values.join(" ")).unwrap_or_default())
}

/// A value that a flag takes when nothing else is set; `None`: it needs companions.
fn good(flag: &FlagSpec) -> Option<String> {
    // Their defaults mean "none" or "as the other says", or they need a file or another flag.
    const COMPANIONS: &[&str] = &["config", "cli-mode", "extra-engine-args", "gpu", "scenario"];
    if COMPANIONS.contains(&flag.name) {
        return None;
    }
    if let Some(default) = flag.default_for_mode(CliMode::Llmd) {
        return Some(default.to_owned());
    }
    match flag.kind {
        FlagKind::Switch => Some("true".to_owned()),
        FlagKind::Choice(words) => words.first().map(|word| (*word).to_owned()),
        _ => None,
    }
}

#[test]
fn every_flag_takes_its_default_from_every_source() {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for flag in all_effective_flags() {
        let Some(value) = good(flag) else { continue };
        for name in [flag.name].iter().chain(flag.aliases) {
            let answers = FROM.map(|from| set(flag, name, &value, from));
            tried += 1;
            let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
            wrong.extend(refused.map(|why| format!("{name}: {value}: {why}")));
            if answers.windows(2).any(|two| two[0].is_ok() && two[0] != two[1]) {
                wrong.push(format!("{name}: {value}: {answers:?}"));
            }
        }
    }
    assert!(tried > 150, "only {tried} names tried");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Values that no flag of a kind takes, whatever else is set.
fn bad(kind: FlagKind) -> &'static [&'static str] {
    match kind {
        FlagKind::Switch | FlagKind::Choice(_) => &["perhaps!", "2"],
        FlagKind::Duration | FlagKind::Seconds => &["soon!", "1 day", "1.2.3s"],
        FlagKind::Int | FlagKind::Count => &["many!", "1.2.3", "0x10", "1e"],
        FlagKind::Float => &["many!", "1.2.3", "0x10", "nan"],
        FlagKind::Json => &["{many", "[1"],
        FlagKind::Text | FlagKind::Path | FlagKind::List | FlagKind::Repeat => &[],
    }
}

#[test]
fn invalid_value_error_names_flag_and_source() {
    let mut wrong = Vec::new();
    for flag in all_effective_flags() {
        for value in bad(flag.kind) {
            for from in FROM {
                let Err(why) = set(flag, flag.name, value, from) else {
                    wrong.push(format!("{from:?} {}: {value:?} is taken", flag.name));
                    continue;
                };
                let origin = match from {
                    From::Words => "command line".to_owned(),
                    // The file's name differs from run to run.
                    From::Yaml => "/".to_owned(),
                    From::Env => flag.env_variable_name(),
                };
                if ![flag.name, value, &origin].iter().all(|part| why.contains(*part)) {
                    wrong.push(format!("{from:?} {} {value:?}: {why}", flag.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn config_file_may_set_strict_mode() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    for (strict, taken) in [("true", false), ("false", true)] {
        let text = format!("model: m\nstrict-config: {strict}\nmax-nun-seqs: 3\n");
        std::fs::write(file.path(), text).unwrap();
        let loaded = try_words(&["vllm-sim", "--config", &path], &[]);
        assert_eq!(loaded.is_ok(), taken, "{loaded:?}");
    }
}
