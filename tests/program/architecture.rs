//! The house rules that a compiler does not check: how long a file may grow, how many files may
//! import each other, that no test sleeps, and that nothing of a developer's machine is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::imports::{Imports, without_tests};
use super::rust_tokens::tokens;

/// Lines that a source file may have. A file this long holds a second idea.
const MAX_LINES: usize = 600;

/// Files of one crate that may import each other in a circle.
const MAX_CIRCLE: usize = 3;

/// Helpers that look until a condition holds, with a bound and a pause between two looks.
const PAUSE_BETWEEN_LOOKS: &[&str] = &["tests/http/sim.rs", "tests/program/compat/mod.rs"];

/// Folders of the machines we develop on; split here, or this file would break its own rule.
const OUR_FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

#[test]
fn no_source_file_is_too_long() {
    let mut long = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(root().join(&path)).expect("sources are readable UTF-8");
        let lines = text.lines().count();
        let generated = text.lines().take(5).any(|line| line.contains("@generated"));
        if !generated && lines > MAX_LINES {
            long.push(format!("{path}: {lines} lines"));
        }
    }
    assert!(long.is_empty(), "split what has over {MAX_LINES} lines:\n{}", long.join("\n"));
}

#[test]
fn no_import_cycle_is_too_large() {
    let mut large = Vec::new();
    for folder in crates() {
        let src = root().join(&folder).join("src");
        let imports = Imports::read(&src, &rust_files(&src));
        let circles = imports.circles().into_iter();
        large.extend(circles.filter(|circle| circle.len() > MAX_CIRCLE).map(|circle| {
            let (files, names) = (circle.len(), circle.join(", "));
            format!("{folder}: {files} files, at most {MAX_CIRCLE}: {names}")
        }));
    }
    assert!(
        large.is_empty(),
        "give what several of these files need a file of its own:\n{}",
        large.join("\n")
    );
}

#[test]
fn architecture_diagram_matches_cargo() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let drawing = page.split("```mermaid").nth(1).expect("a drawing");
    let drawing = drawing.split("```").next().expect("its end");
    let mut drawn = Arrows::new();
    for (from, to) in drawing.lines().filter_map(|line| line.split_once(" --> ")) {
        let from = from.trim().split('[').next().expect("a name");
        let to = to.split(" & ").map(|name| name.trim().to_owned());
        drawn.entry(from.to_owned()).or_default().extend(to);
    }
    let mut built = Arrows::new();
    for folder in crates() {
        let manifest = root().join(&folder).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("a manifest");
        let sections = manifest.split("\n[");
        let needed = sections.filter(|section| section.starts_with("dependencies]"));
        let lines = needed.flat_map(str::lines);
        let names = lines.filter_map(|line| line.strip_prefix("vllm-sim-"));
        let names = names.map(|name| name.split(['.', ' ']).next().unwrap_or(name).to_owned());
        let crate_name = folder.strip_prefix("crates/").unwrap_or("program");
        built.insert(crate_name.to_owned(), names.collect());
    }
    for name in built.keys() {
        let [drawn, built] = [&drawn, &built].map(|arrows| reached(arrows, name));
        assert_eq!(drawn, built, "what `{name}` names, in ARCHITECTURE.md and by Cargo");
    }
}

/// Names to the names that they name.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// All that a name leads to.
fn reached(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(name) = next.pop() {
        let names = arrows.get(&name).into_iter().flatten();
        next.extend(names.filter(|name| found.insert((*name).clone())).cloned());
    }
    found
}

/// A number that ARCHITECTURE.md quotes, and the line of the source that has it.
const QUOTED: [(&str, &str, &str); 8] = [
    ("(200 µs,", "crates/engine/src/driver/live.rs", "quantum: Duration::from_micros(200),"),
    // Twenty events in 200 µs, on a grid of twice that.
    ("400 µs from 100,000 tokens a second", "crates/engine/src/driver/live.rs", "crowded: 20 }"),
    ("frames of\n16 KiB", "crates/http/src/stream.rs", "MAX_FRAME_BYTES: usize = 16 * 1024;"),
    ("the first 24 events", "crates/http/src/stream.rs", "SINGLE_EVENT_FRAMES: u32 = 24;"),
    ("56 KiB at most", "src/server/accept.rs", "CONNECTION_BUFFER_BYTES: usize = 40 * 1024;"),
    (
        "texts of\n16 KiB and more",
        "crates/service/src/blocking_pool.rs",
        "LARGE_TEXT_BYTES: usize = 16 * 1024;",
    ),
    (
        "A request of 64 KiB and more",
        "crates/http/src/layers.rs",
        "LARGE_BODY_BYTES: u64 = 64 * 1024;",
    ),
    ("eleven are listed in `crates/engine/src/lib.rs`", "crates/engine/src/lib.rs", "//! 11. "),
];

#[test]
fn architecture_numbers_match_code() {
    let text = |path: &str| fs::read_to_string(root().join(path)).expect("it is readable");
    let page = text("ARCHITECTURE.md");
    for (quoted, path, line) in QUOTED {
        assert!(
            page.contains(quoted),
            "ARCHITECTURE.md has no {quoted:?}: change this test with it"
        );
        assert!(
            text(path).contains(line),
            "{path} has no {line:?}: ARCHITECTURE.md says {quoted:?}"
        );
    }
}

/// Types that one streamed chat passes through.
const MAX_TYPES_OF_A_CHAT: usize = 20;

#[test]
fn architecture_types_of_a_chat_exist() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there");
    let list = page.split("The request passes through these values").nth(1).expect("a list");
    let list = list.split("\n\n").nth(1).expect("its lines");
    let names = list.split('`').skip(1).step_by(2);
    let names: Vec<_> = names.filter(|name| name.starts_with(char::is_uppercase)).collect();
    assert!(names.len() <= MAX_TYPES_OF_A_CHAT, "{} types: {names:?}", names.len());
    let texts = sources().into_iter().filter(|path| path.contains("src/"));
    let defined: BTreeSet<_> = texts
        .flat_map(|path| {
            let text = fs::read_to_string(root().join(path)).expect("sources are readable UTF-8");
            let tokens = tokens(&text);
            let types = tokens.windows(2).filter(|pair| pair[0] == "struct" || pair[0] == "enum");
            types.map(|pair| pair[1].clone()).collect::<Vec<_>>()
        })
        .collect();
    let missing: Vec<_> = names.iter().filter(|name| !defined.contains(**name)).collect();
    assert!(missing.is_empty(), "no such types: {missing:?}");
}

#[test]
fn no_test_sleeps() {
    let mut sleepers = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(root().join(&path)).expect("sources are readable UTF-8");
        let sleeps = |tokens: &[String]| {
            let calls = tokens.windows(3).filter(|t| t[2] == "(" && t[0] != "." && t[0] != "fn");
            calls.filter(|t| t[1] == "sleep" || t[1] == "sleep_until").count()
        };
        let all = tokens(&text);
        let product = match path.starts_with("tests/") || path.contains("/tests/") {
            true => 0,
            false => sleeps(&without_tests(all.clone())),
        };
        if sleeps(&all) > product && !PAUSE_BETWEEN_LOOKS.contains(&path.as_str()) {
            sleepers.push(path);
        }
    }
    assert!(
        sleepers.is_empty(),
        "wait for an event, or look until a condition holds (`eventually`):\n{}",
        sleepers.join("\n")
    );
}

#[test]
fn no_committed_file_has_machine_path() {
    let mut found = Vec::new();
    for path in committed() {
        // A file that was deleted but not yet committed is still listed.
        let Ok(bytes) = fs::read(root().join(&path)) else {
            continue;
        };
        for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if names_our_folder(line) {
                found.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "paths of a developer's machine:\n{}", found.join("\n"));
}

#[test]
fn machine_path_counts_only_as_prefix() {
    let [ours, other] = [OUR_FOLDERS[0], OUR_FOLDERS[1]];
    let found = [
        format!("cd {ours}x"),
        format!("\"{other}y\""),
        format!("https://host.example{ours}x"),
        format!("frame{ours}x"),
    ]
    .map(|line| names_our_folder(line.as_bytes()));
    assert_eq!(found, [true, true, false, false]);
}

/// The folders of all crates, from the top of the repository; the program's own is empty.
fn crates() -> Vec<String> {
    let folders = fs::read_dir(root().join("crates")).expect("there are crates");
    let names = folders.map(|folder| folder.expect("a readable folder").file_name());
    let mut folders: Vec<_> =
        names.map(|name| format!("crates/{}", name.to_string_lossy())).collect();
    folders.push(String::new());
    folders.sort();
    folders
}

/// All Rust files, from the top of the repository.
fn sources() -> Vec<String> {
    let paths = ["benches", "crates", "examples", "src", "tests"]
        .map(|folder| rust_files(&root().join(folder)));
    let paths = paths.concat().into_iter().map(|path| {
        let inside = path.strip_prefix(root()).expect("walked from there");
        inside.display().to_string()
    });
    let paths: Vec<_> = paths.collect();
    assert!(paths.len() > 100, "too few sources: {}", paths.len());
    paths
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    walk(folder, &mut paths);
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "rs"));
    paths
}

/// The files git knows; without git (an unpacked archive), all files but build products.
fn committed() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    match listed {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            let names = String::from_utf8_lossy(&output.stdout).into_owned();
            names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect()
        }
        _ => {
            let mut paths = Vec::new();
            walk(root(), &mut paths);
            paths.iter().filter_map(|p| Some(p.strip_prefix(root()).ok()?.into())).collect()
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let is_product = path.file_name().is_some_and(|name| name == "target" || name == ".git");
        if path.is_dir() && !path.is_symlink() && !is_product {
            walk(&path, into);
        } else if path.is_file() {
            into.push(path);
        }
    }
}

fn names_our_folder(line: &[u8]) -> bool {
    OUR_FOLDERS.iter().any(|folder| {
        line.windows(folder.len()).enumerate().any(|(at, window)| {
            let before = at.checked_sub(1).map(|at| line[at]);
            window == folder.as_bytes()
                && !before.is_some_and(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        })
    })
}
