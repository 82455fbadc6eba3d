//! The tables of flags themselves.

use std::collections::BTreeSet;
use std::path::Path;

use vllm_sim_config::{
    CliMode, FlagHelpGroup, FlagKind, IgnoredFlagArity, LoadedConfig, ParsedCommand, TOOL_COMMANDS,
    all_effective_flags, all_ignored_flags, flags_markdown, load_config,
};

use super::try_words;

fn all_names() -> Vec<&'static str> {
    let ours = all_effective_flags()
        .flat_map(|flag| std::iter::once(flag.name).chain(flag.aliases.iter().copied()));
    ours.chain(all_ignored_flags().map(|(name, _)| name)).collect()
}

#[test]
fn names_are_unique_and_well_formed() {
    let names = all_names();
    let mut seen = BTreeSet::new();
    for name in &names {
        assert!(seen.insert(*name), "{name} stands twice");
        let letters =
            name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        assert!(letters, "{name}");
    }
    let shorts: Vec<_> = all_effective_flags().flat_map(|flag| flag.shorts).collect();
    assert_eq!(shorts.len(), shorts.iter().collect::<BTreeSet<_>>().len());
}

#[test]
fn every_flag_has_help_and_a_default_that_can_be_read() {
    for flag in all_effective_flags() {
        assert!(flag.help.ends_with(['.', ']']) || flag.help.len() > 10, "{}", flag.name);
        assert!(flag.help.len() < 200, "{} says too much", flag.name);
        // In llm-d's command line these say nothing unless they are typed.
        let open = ["enable-prefix-caching", "enforce-eager"];
        if flag.kind == FlagKind::Switch && !open.contains(&flag.name) {
            assert!(flag.default_for_mode(CliMode::Llmd).is_some(), "{}", flag.name);
        }
    }
    assert!(
        FlagHelpGroup::ALL_FLAG_GROUPS
            .iter()
            .all(|group| all_effective_flags().any(|flag| flag.group == *group))
    );
}

#[test]
fn no_flag_name_starts_with_no() {
    for name in all_names() {
        assert!(!name.starts_with("no-"), "{name}");
    }
}

/// `vllm serve`'s flags, each with what it takes: used or ignored on purpose.
#[test]
fn every_flag_of_vllm_serve_is_accepted() {
    let golden = include_str!("../../../crates/config/src/vllm_serve_flags.txt");
    let mut missing = Vec::new();
    for line in golden.lines().filter(|line| !line.starts_with('#') && !line.contains("inverse=")) {
        let (name, rest) = line.split_once(' ').unwrap();
        let takes = rest.split(' ').next().unwrap();
        let ours =
            all_effective_flags().find(|flag| flag.name == name || flag.aliases.contains(&name));
        let known = match (ours.map(|flag| flag.kind), takes) {
            (Some(FlagKind::Switch), "switch") => true,
            (Some(FlagKind::List), "list" | "value") => true,
            (Some(kind), "value") => kind != FlagKind::Switch,
            (Some(_), _) => false,
            (None, takes) => all_ignored_flags().any(|(known, arity)| {
                known == name
                    && takes
                        == match arity {
                            IgnoredFlagArity::Switch => "switch",
                            IgnoredFlagArity::Value => "value",
                            IgnoredFlagArity::List => "list",
                        }
            }),
        };
        if !known {
            missing.push(line);
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Reads a `vllm serve` command line that imitates a release.
fn read_as(version: &str, words: &[&str]) -> Result<LoadedConfig, String> {
    let line = [&["vllm", "serve", "m", "--vllm-version", version], words].concat();
    try_words(&line, &[]).map_err(|error| error.to_string())
}

#[test]
fn flags_of_other_releases_are_refused_as_vllm_refuses_them() {
    assert_eq!(
        read_as("0.33.0", &["--use-v2-block-manager", "--num-scheduler-steps", "8"]).unwrap_err(),
        "unrecognized arguments: --num-scheduler-steps (vLLM 0.33.0 has no such flag; the last \
         release with it is 0.9)"
    );
    assert_eq!(
        read_as("0.31", &["--custom-histogram-buckets", "{}"]).unwrap_err(),
        "unrecognized arguments: --custom-histogram-buckets (vLLM 0.31.0 has no such flag; it \
         came in 0.32)"
    );
    let llmd = ["vllm-sim", "--model", "m", "--num-scheduler-steps", "8"];
    assert_eq!(try_words(&llmd, &[]).unwrap().ignored, ["--num-scheduler-steps"]);
}

/// Flags, each with the first and the last imitated release that has it.
#[test]
fn each_release_takes_its_own_flags() {
    let releases = ["0.26", "0.31", "0.32", "0.33"];
    for (words, first, last) in [
        (&["--max-num-partial-prefills", "1"][..], "0.26", "0.26"),
        (&["--max-num-queued-reqs", "1"], "0.31", "0.33"),
        (&["--log-level", "info"], "0.31", "0.33"),
        (&["--enable-hc-sp"], "0.32", "0.33"),
        (&["--monokernel"], "0.33", "0.33"),
        (&["--disable-lora"], "0.33", "0.33"),
        (&["--enable-cascade-attn"], "0.33", "0.33"),
        (&["--no-enable-lora"], "0.26", "0.33"),
    ] {
        for release in releases {
            let taken = (first..=last).contains(&release);
            assert_eq!(read_as(release, words).is_ok(), taken, "{words:?} {release}");
        }
    }
}

#[test]
fn a_disable_flag_turns_its_switch_off() {
    let caches = |words: &[&str]| {
        read_as("0.33", words).unwrap().config.engine.prefix_cache.enable_prefix_caching
    };
    assert!(caches(&[]) && !caches(&["--disable-prefix-caching"]));
    assert!(caches(&["--disable-prefix-caching", "--enable-prefix-caching"]));
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), "disable-prefix-caching: true\n").unwrap();
    assert!(!caches(&["--config", file.path().to_str().unwrap()]));
    let refused = read_as("0.33", &["--disable-lora=1"]).unwrap_err();
    assert!(refused.contains("takes no value"), "{refused}");
}

#[test]
fn defaults_are_those_of_the_release() {
    let origins = |version, words: &[&str]| {
        read_as(version, words).unwrap().config.server.cors.origins.clone()
    };
    for (version, expected) in [("0.26", &["*"][..]), ("0.31.0", &["*"]), ("0.32", &[])] {
        assert_eq!(origins(version, &[]), expected, "{version}");
    }
    assert_eq!(origins("0.31", &["--allowed-origins", "[\"http://a\"]"]), ["http://a"]);
}

#[test]
fn other_releases_are_refused_with_the_list() {
    for version in ["0.30", "0.33.1", "0.34", "v0.33.0", "dev"] {
        let error = read_as(version, &[]).unwrap_err();
        assert!(
            error.contains("0.33.0, 0.33, 0.32.0, 0.32, 0.31.0, 0.31, 0.26.0, 0.26"),
            "{error}"
        );
    }
}

#[test]
fn ignored_flags_with_an_effect_in_vllm_are_marked() {
    let words = ["vllm", "serve", "m", "--enable-eplb", "--trust-remote-code"];
    let loaded = try_words(&words, &[]).unwrap();
    assert_eq!(loaded.ignored, ["--enable-eplb", "--trust-remote-code"]);
    assert_eq!(loaded.ignored_with_effect, ["--enable-eplb"]);
}

#[test]
fn ignored_flags_are_reported_once() {
    for (name, arity) in all_ignored_flags() {
        let flag = format!("--{name}");
        let value = match arity {
            IgnoredFlagArity::Switch => &[][..],
            IgnoredFlagArity::Value => &["1"],
            IgnoredFlagArity::List => &["1", "2"],
        };
        let old = ["vllm-sim", "--model", "m"];
        let words = [&old[..], &[&flag], value, &["--port", "7"]].concat();
        let loaded = try_words(&words, &[]).unwrap();
        assert_eq!(loaded.ignored, [flag.as_str()], "{name}");
        assert_eq!(loaded.config.server.port, 7, "{name}");
        if arity == IgnoredFlagArity::Switch {
            let off = format!("--no-{name}");
            let words = [&old[..], &[&off]].concat();
            let loaded = try_words(&words, &[]).unwrap();
            assert_eq!(loaded.ignored, [flag.as_str()]);
        }
    }
}

#[test]
fn every_flag_can_be_set_by_its_variable() {
    for flag in all_effective_flags() {
        let good = match flag.kind {
            FlagKind::Duration | FlagKind::Seconds => "soon",
            FlagKind::Int | FlagKind::Count | FlagKind::Float | FlagKind::Json => "?",
            FlagKind::Switch | FlagKind::Choice(_) => "??",
            _ => continue,
        };
        let name = flag.env_variable_name();
        let error =
            try_words(&["vllm-sim", "--model", "m", "--fake-metrics", "{}"], &[(&name, good)]);
        // A value that cannot be right is refused, so the variable was read.
        if flag.name != "fake-metrics" {
            assert!(error.is_err(), "{name}");
        }
    }
}

#[test]
fn previews_are_read_by_name() {
    let events = r#"{"enable_kv_cache_events": true}"#;
    let read = |names| read_as("0.33", &["--kv-events-config", events, "--preview", names]);
    let config = read("removal-after-last-copy,remaining-copy-counts").unwrap().config;
    let numbers: Vec<_> = config.model.previews.iter().map(|one| one.pull_request).collect();
    assert_eq!(numbers, [55_092, 48_933]);
    assert!(config.kv_events.encoding.preview.removal_after_last_copy);
    assert_eq!(
        read("ready").unwrap_err(),
        "--preview: \"ready\" is not one of remaining-copy-counts (#48933), \
         removal-after-last-copy (#55092), kv-cache-token-usage (#57336), \
         lora-adapter-loaded (#54830), readiness (#43122)"
    );
}

#[test]
fn a_preview_without_effect_is_named() {
    let warned = |words: &[&str]| {
        let read = read_as("0.33", words).unwrap();
        read.without_effect.first().cloned().unwrap_or_default()
    };
    for (name, why) in [
        ("removal-after-last-copy", "KV events of vLLM's form are not published"),
        ("lora-adapter-loaded", "LoRA is not enabled"),
    ] {
        let warning = warned(&["--preview", name]);
        let start = format!("--preview {name}: no effect because {why}");
        assert!(warning.starts_with(&start), "{warning}");
    }
    assert_eq!(warned(&["--preview", "readiness,kv-cache-token-usage"]), "");
    assert_eq!(warned(&["--preview", "lora-adapter-loaded", "--enable-lora"]), "");
}

#[test]
fn gaps_of_kv_events_are_a_number_and_an_interval() {
    let read = |typed| read_as("0.33", &["--kv-event-gaps", typed]);
    let gaps = read("3/10s").unwrap().config.faults.kv_event_gaps.unwrap();
    assert_eq!((gaps.messages, gaps.every.as_secs()), (3, 10));
    for (typed, why) in [
        ("3", "there is no '/'"),
        ("0/10s", "the number of messages is at least 1"),
        ("3/0s", "the interval is more than 0"),
        ("3/soon", "soon"),
    ] {
        let error = read(typed).unwrap_err();
        let start =
            format!("kv-event-gaps is {typed:?}, must be MESSAGES/INTERVAL such as 3/10s: ");
        assert!(error.starts_with(&start) && error.contains(why), "{error}");
    }
}

/// Returns the help page that a command line prints.
fn page(line: &str) -> String {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    match load_config(&words, &|_| None) {
        Ok(ParsedCommand::Help(page)) => page,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_programs_page_fits_a_screen_and_names_every_command() {
    let text = page("vllm-sim --help");
    assert!(text.lines().count() <= 60, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for command in TOOL_COMMANDS.into_iter().chain(["serve", "launch", "config", "version"]) {
        let named =
            text.contains(&format!("\n  {command} ")) || text.contains(&format!(" {command}"));
        assert!(named, "{command}");
    }
    for group in FlagHelpGroup::ALL_FLAG_GROUPS {
        let word = group.help_text_heading().to_lowercase().replace(' ', "-");
        let named = text.contains(&format!(" {word},")) || text.contains(&format!(" {word}."));
        assert!(named, "{word}");
        let flags = page(&format!("vllm-sim --help={word}"));
        assert!(flags.contains("  --"), "{word}");
    }
    assert_eq!([page("vllm-sim -h"), page("vllm-sim help")], [text.clone(), text]);
}

#[test]
fn the_servers_page_is_grouped_and_knows_the_mode() {
    let text = page("vllm-sim serve --help");
    assert!(text.contains("--time-to-first-token <DURATION>"), "{text}");
    assert!(text.contains("Scheduler and queue:") && text.contains("[default: 256]"));
    assert!(!text.contains("--hf-endpoint") && text.lines().count() < 100);
    assert!(page("vllm-sim serve -h").lines().count() < text.lines().count());
    assert!(page("llm-d-inference-sim --help").contains("[default: 5]"));
    assert!(page("vllm-sim --help=kv-events").contains("--kv-events-config"));
    assert!(page("vllm-sim serve --help=all").contains("--hf-endpoint"));
    let some = page("vllm-sim serve --help=max-num");
    assert!(some.contains("--max-num-seqs") && !some.contains("--port"));
    assert!(page("vllm-sim --help=lora").contains("--max-cpu-loras"));
}

#[test]
fn the_flags_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/flags.md");
    let text = flags_markdown();
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == text, "docs/flags.md is old: run BLESS=1 cargo test");
}
