//! Links between the pages of the documentation lead somewhere, and files that they name exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::ship::{files, repository};

fn pages() -> Vec<PathBuf> {
    let mut pages = files("docs", "md");
    pages.extend(files(".", "md"));
    pages.extend(files("datasets", "md"));
    pages
}

/// The lines of a page that are no code.
fn prose(text: &str) -> Vec<&str> {
    let mut code = false;
    let mut prose = text.lines().collect::<Vec<_>>();
    prose.retain(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    prose
}

/// Targets of `[words](target)`.
fn targets(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in prose(text) {
        let after = line.split("](").skip(1);
        found.extend(after.filter_map(|rest| Some(rest.split_once(')')?.0)));
    }
    found
}

/// What a heading is called in a link, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().map(|c| if c == ' ' { '-' } else { c });
    kept.filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let heading = |line: &&str| line.starts_with('#');
    let headings = prose(&text).into_iter().filter(heading);
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn documentation_links_resolve() {
    let mut dead = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in targets(&text) {
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (path, place) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => page.clone(),
                _ => page.parent().unwrap().join(path),
            };
            let found = file.exists() && (place.is_empty() || anchors(&file).contains(place));
            if !found {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(seen > 60, "{seen} links");
    assert_eq!(dead, Vec::<String>::new());
}

#[test]
fn every_page_is_named_in_the_readme() {
    let readme = std::fs::read_to_string(repository("README.md")).unwrap();
    let linked: BTreeSet<_> = targets(&readme)
        .into_iter()
        .map(|target| target.split('#').next().unwrap_or_default().to_owned())
        .collect();
    let pages = files("docs", "md").into_iter().map(|page| {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        format!("docs/{name}")
    });
    let missing: Vec<_> = pages.filter(|page| !linked.contains(page)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// Words in backquotes that name something in the repository, without the parts behind a
/// placeholder.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let spans = line.split('`').skip(1).step_by(2);
        for word in spans.flat_map(str::split_whitespace) {
            let folder = word.split('/').next().unwrap_or_default();
            if word.contains('/') && FOLDERS.contains(&folder) {
                let end = word.find(['*', '<', '…', '{']).unwrap_or(word.len());
                let known = &word[..end];
                let whole = known.rfind('/').filter(|_| end < word.len());
                let known = whole.map_or(known, |at| &known[..at]);
                found.push(known.trim_end_matches([',', '.', ':']).to_owned());
            }
        }
    }
    found
}

/// Folders at the top of the repository.
const FOLDERS: &[&str] = &[
    ".ci",
    "benches",
    "crates",
    "dashboards",
    "datasets",
    "docs",
    "examples",
    "helm",
    "manifests",
    "proto",
    "src",
    "tests",
];

#[test]
fn documented_files_exist() {
    let (mut missing, mut seen) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for path in paths(&text) {
            seen += 1;
            if !repository(&path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(seen > 60, "{seen} paths");
    assert_eq!(missing, Vec::<String>::new());
}

/// Actions whose newest commit is not known here, with their versions.
const NOT_PINNED: [&str; 2] = ["azure/setup-helm@v4", "pypa/gh-action-pypi-publish@release/v1"];

/// A tag can be moved to other code, a commit cannot.
#[test]
fn workflows_name_actions_by_commit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    let mut named = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let actions = text.lines().filter_map(|line| line.trim().split_once("uses: "));
        for (_, action) in actions.filter(|(_, action)| !action.starts_with("./")) {
            let action = action.split(' ').next().unwrap_or_default();
            let commit = action.split('@').nth(1).unwrap_or_default();
            let is_commit = commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(is_commit || NOT_PINNED.contains(&action), "{action}");
            named += 1;
        }
    }
    assert!(named > 30, "{named} actions");
}
