//! The house rules that a compiler does not check: how long a file may grow, and that nothing of a
//! developer's machine is committed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines that a source file may have. A file this long holds a second idea.
const MAX_LINES: usize = 900;

/// Folders of the machines we develop on; split here, or this file would break its own rule.
const OUR_FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

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

/// A Rust file of the program or a crate: its path from the top of the repository, and its text.
struct Source {
    path: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    walk(&root().join("src"), &mut paths);
    walk(&root().join("crates"), &mut paths);
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "rs"));
    assert!(paths.len() > 100, "too few sources: {}", paths.len());
    let source = |path: PathBuf| Source {
        path: path
            .strip_prefix(root())
            .expect("walked")
            .display()
            .to_string(),
        text: fs::read_to_string(&path).expect("sources are readable UTF-8"),
    };
    paths.into_iter().map(source).collect()
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
