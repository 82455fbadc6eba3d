//! Every flag of the registry from every source: the command line, a YAML file under each of its
//! names, its environment variable. The same values are taken, and refused in the same words: the
//! flag, what was given, what is allowed, and where it came from.

use proptest::prelude::*;
use vllm_sim::config::{Door, Flag, Kind, flags};

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
fn set(flag: &Flag, name: &str, value: &str, from: From) -> Result<String, String> {
    let mut words = vec!["vllm-sim".to_owned()];
    // A file names the model where the flag does not: a list would grow.
    if flag.name != "model" {
        words.extend(["--model".to_owned(), "m".to_owned()]);
    }
    if flag.name != "force-dummy-tokenizer" {
        words.push("--force-dummy-tokenizer".to_owned());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let variable = flag.env_name();
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
    let shown = loaded
        .effective
        .iter()
        .find(|known| known.name == flag.name);
    Ok(shown
        .map(|known| known.values.join(" "))
        .unwrap_or_default())
}

/// A value that a flag takes when nothing else is set; `None`: it needs companions.
fn good(flag: &Flag) -> Option<String> {
    // Their defaults mean "none" or "as the other says", or they need a file or another flag.
    const COMPANIONS: &[&str] = &["config", "door", "extra-engine-args", "gpu", "scenario"];
    if COMPANIONS.contains(&flag.name) {
        return None;
    }
    if let Some(default) = flag.default(Door::Llmd) {
        return Some(default.to_owned());
    }
    match flag.kind {
        Kind::Switch => Some("true".to_owned()),
        Kind::Choice(words) => words.first().map(|word| (*word).to_owned()),
        _ => None,
    }
}

#[test]
fn every_flag_takes_its_default_from_every_source() {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for flag in flags() {
        let Some(value) = good(flag) else { continue };
        for name in [flag.name].iter().chain(flag.aliases) {
            let answers = FROM.map(|from| set(flag, name, &value, from));
            tried += 1;
            let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
            wrong.extend(refused.map(|why| format!("{name}: {value}: {why}")));
            if answers
                .windows(2)
                .any(|two| two[0].is_ok() && two[0] != two[1])
            {
                wrong.push(format!("{name}: {value}: {answers:?}"));
            }
        }
    }
    assert!(tried > 150, "only {tried} names tried");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Values that no flag of a kind takes, whatever else is set.
fn bad(kind: Kind) -> Option<BoxedStrategy<String>> {
    let words = "[a-z]{3,9}[!?]";
    Some(match kind {
        Kind::Switch | Kind::Choice(_) | Kind::Duration | Kind::Seconds => words.boxed(),
        Kind::Int | Kind::Count | Kind::Float => {
            prop_oneof![words, "[0-9]{1,3}[!?]", "0x[0-9]{2}", "--[0-9]{2}"].boxed()
        }
        Kind::Json => "[{][a-z]{2,5}".boxed(),
        Kind::Text | Kind::Path | Kind::List | Kind::Repeat => return None,
    })
}

fn flag_and_nonsense() -> impl Strategy<Value = (&'static Flag, String)> {
    let strict: Vec<&'static Flag> = flags().filter(|flag| bad(flag.kind).is_some()).collect();
    let pick = proptest::sample::select(strict);
    pick.prop_flat_map(|flag| {
        let nonsense = bad(flag.kind).expect("only such flags are picked");
        (Just(flag), nonsense)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nonsense_is_refused_with_flag_value_and_what_is_allowed(
        (flag, value) in flag_and_nonsense()
    ) {
        for from in FROM {
            let why = set(flag, flag.name, &value, from);
            prop_assert!(why.is_err(), "{from:?} {} {value} is taken", flag.name);
            let why = why.unwrap_err();
            let origin = match from {
                From::Words => "command line",
                From::Yaml => "",
                From::Env => "VLLM_SIM_",
            };
            prop_assert!(why.contains(flag.name), "{from:?} {} {value}: {why}", flag.name);
            prop_assert!(why.contains(value.trim_matches('-')), "{} {value}: {why}", flag.name);
            prop_assert!(why.contains(origin), "{from:?} {} {value}: {why}", flag.name);
        }
    }
}
