//! The house rules that a compiler does not check: who may import whom, how long a file may
//! grow, and that nothing of a developer's machine is committed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which modules a top-level module may name besides itself: rows above it, and only these.
/// `main.rs` and `lib.rs` may name all.
const MAY_NAME: &[(&str, &str)] = &[
    ("sim", ""),
    ("wire", ""),
    ("job", "sim"),
    ("engine", "sim"),
    ("tokenizer", "job"),
    ("dataset", ""),
    ("net", ""),
    ("fault", "sim"),
    ("scenario", "sim"),
    ("generate", "dataset job sim tokenizer"),
    ("driver", "engine sim"),
    // Virtual time needs the engine only; its online mode is an HTTP client.
    ("replay", "dataset driver engine net sim"),
    ("metrics", "driver engine sim"),
    ("kv_events", "driver engine sim wire"),
    ("kv_transfer", "driver engine sim"),
    ("otel", "driver engine sim"),
    (
        "service",
        "driver engine fault generate job scenario sim tokenizer",
    ),
    // It fills the `Config` of any module above; none of them may name `config`.
    ("config", ALL_ABOVE),
    // The edges read the words of what they render (how a sequence ended, how far it is, the text
    // of a token) without a copy of each in `service`; they never drive an engine.
    (
        "http",
        "config driver engine fault generate job metrics scenario service sim tokenizer wire",
    ),
    (
        "grpc",
        "config driver engine fault generate job metrics service sim tokenizer wire",
    ),
    ("tls", "config generate job metrics service wire"),
    ("server", ALL_ABOVE),
    (
        "tools",
        "config dataset driver engine net replay sim tokenizer wire",
    ),
    ("cli", ALL_ABOVE),
];

/// Every row above the one it stands in.
const ALL_ABOVE: &str = "*";

/// Lines that a source file may have. A file this long holds a second idea.
const MAX_LINES: usize = 900;

/// Folders of the machines we develop on; split here, or this file would break its own rule.
const OUR_FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

#[test]
fn modules_name_only_modules_below_them() {
    let mut violations = Vec::new();
    for file in sources().iter().filter(|file| file.level > 0) {
        let allowed = allowed(&file.module).unwrap_or_default();
        for (name, line) in crate_paths(&file.text, file.level) {
            if name != file.module && !allowed.contains(&name.as_str()) {
                let (path, module) = (&file.path, &file.module);
                violations.push(format!("{path}:{line}: `{module}` may not name `{name}`"));
            }
        }
    }
    assert!(
        violations.is_empty(),
        "imports against the table:\n{}",
        violations.join("\n")
    );
}

#[test]
fn every_top_level_module_is_in_the_table() {
    let mut missing: Vec<String> = sources().into_iter().map(|file| file.module).collect();
    missing.retain(|module| !module.is_empty() && allowed(module).is_none());
    missing.dedup();
    assert!(
        missing.is_empty(),
        "add to the table, with what they may name: {missing:?}"
    );
}

#[test]
fn rows_of_the_table_name_only_rows_above() {
    let mut wrong = Vec::new();
    for (row, (module, names)) in MAY_NAME.iter().enumerate() {
        let above: Vec<_> = MAY_NAME[..row].iter().map(|(name, _)| *name).collect();
        let names = names.split_whitespace().filter(|name| *name != ALL_ABOVE);
        wrong.extend(
            names
                .filter(|name| !above.contains(name))
                .map(|name| (*module, name)),
        );
    }
    assert_eq!(wrong, []);
}

#[test]
fn no_source_file_is_too_long() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|file| {
            !file
                .text
                .lines()
                .take(5)
                .any(|line| line.contains("@generated"))
        })
        .map(|file| (&file.path, file.text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert!(
        long.is_empty(),
        "split what has over {MAX_LINES} lines:\n{}",
        long.join("\n")
    );
}

#[test]
fn no_committed_file_names_a_folder_of_our_machines() {
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
    assert!(
        found.is_empty(),
        "paths of a developer's machine:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_scanner_finds_paths_in_code_and_nowhere_else() {
    let text = r##"
        //! crate::comment
        use crate::{alpha, beta::{Inner, crate_thing}, gamma::Deep as Other};
        use super::super::delta::Thing; /* crate::block /* crate::nested */ */
        pub(crate) fn f<'a>(x: &'a str) -> vllm_sim::epsilon::Out { "crate::string"; r#"crate::raw "quoted""#; }
        const C: [char; 2] = ['"', '\'']; // crate::later
        mod tests { use super::super::zeta; use super::super::super::eta; use super::near; }
        fn g() { crate::theta::call(super::here()) }
    "##;
    let names: Vec<_> = crate_paths(text, 2)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let expected = ["alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta"];
    assert_eq!(names, expected);
}

#[test]
fn our_folders_count_only_at_the_start_of_a_path() {
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

fn allowed(module: &str) -> Option<Vec<&'static str>> {
    let row = MAY_NAME.iter().position(|(name, _)| *name == module)?;
    match MAY_NAME[row].1 {
        ALL_ABOVE => Some(MAY_NAME[..row].iter().map(|(name, _)| *name).collect()),
        names => Some(names.split_whitespace().collect()),
    }
}

/// A Rust file of `src`.
struct Source {
    /// From the top of the repository, with `/`.
    path: String,
    /// Its top-level module; of no meaning at level 0.
    module: String,
    /// How many `super` lead from it to the crate's root.
    level: usize,
    text: String,
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    walk(&root().join("src"), &mut paths);
    assert!(
        !paths.is_empty(),
        "no sources found under {}",
        root().display()
    );
    paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .map(|path| {
            let inside = path
                .strip_prefix(root().join("src"))
                .expect("walked from src");
            let mut module: Vec<String> = inside
                .with_extension("")
                .iter()
                .map(|p| p.to_string_lossy().into())
                .collect();
            let is_root = module == ["main"] || module == ["lib"];
            if is_root || module.last().is_some_and(|name| name == "mod") {
                module.pop();
            }
            Source {
                path: format!("src/{}", inside.display()),
                module: module.first().cloned().unwrap_or_default(),
                level: module.len(),
                text: fs::read_to_string(&path).expect("sources are readable UTF-8"),
            }
        })
        .collect()
}

/// The files git knows; without git (an unpacked archive), all files but build products.
fn committed() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output();
    match listed {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            let names = String::from_utf8_lossy(&output.stdout).into_owned();
            names
                .split('\0')
                .filter(|name| !name.is_empty())
                .map(PathBuf::from)
                .collect()
        }
        _ => {
            let mut paths = Vec::new();
            walk(root(), &mut paths);
            paths
                .iter()
                .filter_map(|p| Some(p.strip_prefix(root()).ok()?.into()))
                .collect()
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for path in entries {
        let is_product = path
            .file_name()
            .is_some_and(|name| name == "target" || name == ".git");
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

/// Names that a file takes from the crate's root, with their lines.
///
/// `level` is the number of `super` from the file's module to the root; inline modules add one.
fn crate_paths(text: &str, level: usize) -> Vec<Token> {
    let tokens = tokens(text);
    let is = |at: usize, what: &str| tokens.get(at).is_some_and(|(token, _)| token == what);
    let (mut found, mut braces, mut inline) = (Vec::new(), 0usize, Vec::new());
    for (at, (token, _)) in tokens.iter().enumerate() {
        let here = level + inline.len();
        match token.as_str() {
            "{" => {
                braces += 1;
                if at >= 2 && is(at - 2, "mod") {
                    inline.push(braces);
                }
            }
            "}" => {
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
                braces = braces.saturating_sub(1);
            }
            "crate" | "vllm_sim" | "super" | "self" if at == 0 || !is(at - 1, "::") => {
                follow(&tokens, at, here, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// Follows one path or group from a module `level` below the root; says where it ends.
fn follow(tokens: &[Token], at: usize, level: usize, found: &mut Vec<Token>) -> usize {
    let Some((token, line)) = tokens.get(at) else {
        return at;
    };
    let level = match token.as_str() {
        "crate" | "vllm_sim" => 0,
        "super" => level.saturating_sub(1),
        "self" => level,
        "{" => return follow_group(tokens, at, level, found),
        _ => {
            if level == 0 {
                found.push((token.clone(), *line));
            }
            return at + 1;
        }
    };
    match tokens.get(at + 1) {
        Some((next, _)) if next == "::" => follow(tokens, at + 2, level, found),
        _ => at + 1,
    }
}

/// Follows each path of `{a, b::{c, d}, super::e}`; what stands deeper is below a name.
fn follow_group(tokens: &[Token], open: usize, level: usize, found: &mut Vec<Token>) -> usize {
    let (mut at, mut depth, mut starts) = (open + 1, 1, true);
    while let Some((token, _)) = tokens.get(at) {
        match token.as_str() {
            "}" if depth == 1 => return at + 1,
            "}" => depth -= 1,
            "," if depth == 1 => starts = true,
            _ if starts => {
                starts = false;
                at = follow(tokens, at, level, found);
                continue;
            }
            "{" => depth += 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// A word or sign of the code, and its line.
type Token = (String, usize);

/// Identifiers, `::` and single other characters, with their lines; no comments, no literals.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut tokens, mut i, mut line) = (Vec::new(), 0, 1);
    while i < chars.len() {
        let start = i;
        let (c, next) = (at(i), at(i + 1));
        if c == '/' && (next == '/' || next == '*') {
            i = comment_end(&chars, i);
        } else if c == '"' {
            i = string_end(&chars, i + 1);
        } else if c == '\'' && next == '\\' {
            i = (i + 3..chars.len())
                .find(|j| at(*j) == '\'')
                .map_or(chars.len(), |j| j + 1);
        } else if c == '\'' && at(i + 2) == '\'' {
            i += 3;
        } else if c.is_alphanumeric() || c == '_' {
            i += chars[i..]
                .iter()
                .take_while(|c| c.is_alphanumeric() || **c == '_')
                .count();
            let word: String = chars[start..i].iter().collect();
            let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
            if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                i = raw_string_end(&chars, i + hashes + 1, hashes);
            } else {
                tokens.push((word, line));
            }
        } else if c == ':' && next == ':' {
            tokens.push(("::".into(), line));
            i += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push((c.into(), line));
            }
            i += 1;
        }
        line += chars[start..i.min(chars.len())]
            .iter()
            .filter(|c| **c == '\n')
            .count();
    }
    tokens
}

fn comment_end(chars: &[char], start: usize) -> usize {
    if chars[start + 1] == '/' {
        return start + chars[start..].iter().take_while(|c| **c != '\n').count();
    }
    let (mut depth, mut i) = (0, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn raw_string_end(chars: &[char], start: usize, hashes: usize) -> usize {
    (start..chars.len())
        .find(|i| {
            let tail = chars[*i + 1..].iter().take(hashes);
            chars[*i] == '"' && tail.clone().count() == hashes && tail.clone().all(|c| *c == '#')
        })
        .map_or(chars.len(), |i| i + 1 + hashes)
}
