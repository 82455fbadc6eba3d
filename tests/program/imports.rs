//! Which file of a crate imports which, read from its text.
//!
//! A file imports another if code that is not under `#[cfg(test)]` names something of it: by a path
//! from `crate`, `super` or `self`, from a module that it declares, or from a module that it brought
//! in with `use`. A path counts for the file that defines what it names: re-exports are followed,
//! and a file that only declares modules and re-exports imports nothing. Left out are what no path
//! names (methods, fields), names in strings, and the items behind a glob.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::rust_tokens::tokens;

/// Re-exports of re-exports that are followed, so that a circle of them ends.
const MAX_HOPS: usize = 16;

/// The files of a crate and what each names.
pub(crate) struct Imports {
    files: Vec<SourceFile>,
    /// Module path to file.
    modules: HashMap<ModulePath, usize>,
}

/// A module's names from the crate's root.
type ModulePath = Vec<String>;

struct SourceFile {
    /// From the crate's `src`.
    name: String,
    uses: Vec<UseLeaf>,
    /// Paths in code, from the crate's root.
    paths: Vec<ModulePath>,
    /// Items that stand at the top of the file.
    items: HashSet<String>,
    /// Macros that stand at the root of the crate, wherever they are written.
    macros: HashSet<String>,
    /// All words outside of `use`.
    words: HashSet<String>,
}

/// One name that a `use` brings in.
struct UseLeaf {
    /// The name it has here; `*` for all.
    name: String,
    /// From the crate's root; none for other crates.
    path: Option<ModulePath>,
    re_export: bool,
    /// At the top of the file and not in an inline module.
    at_top: bool,
}

/// What a path leads to.
enum Target {
    Item(usize),
    Module(usize),
}

impl Imports {
    /// Reads a crate's `src`; a `main.rs` beside a `lib.rs` is a crate of its own and left out.
    pub(crate) fn read(src: &Path, paths: &[PathBuf]) -> Self {
        let mut sources = Vec::new();
        for path in paths {
            let inside = path.strip_prefix(src).expect("a file of the crate");
            if inside != Path::new("main.rs") {
                let text = fs::read_to_string(path).expect("sources are readable UTF-8");
                sources.push((inside.display().to_string(), text));
            }
        }
        Self::of(&sources)
    }

    /// Files by their names below `src`, and their texts.
    fn of(sources: &[(String, String)]) -> Self {
        let module = |name: &str| -> ModulePath {
            let path = name.trim_end_matches(".rs").trim_end_matches("/mod");
            let names = path.split('/').filter(|name| *name != "lib");
            names.map(str::to_owned).collect()
        };
        let modules = sources.iter().map(|(name, _)| module(name));
        let modules: HashMap<_, _> = modules.zip(0..).collect();
        let files = sources.iter().map(|(name, text)| {
            let module = module(name);
            Reader::new(&module, &modules).read(name, text)
        });
        let files = files.collect();
        Self { files, modules }
    }

    /// The files that import each other, directly or through others; largest circle first.
    pub(crate) fn circles(&self) -> Vec<Vec<&str>> {
        let imports: Vec<_> = (0..self.files.len()).map(|at| self.imports(at)).collect();
        let reach: Vec<_> = (0..imports.len()).map(|at| reach(&imports, at)).collect();
        let mut circles: Vec<Vec<&str>> = Vec::new();
        let mut placed: HashSet<usize> = HashSet::new();
        for (at, seen) in reach.iter().enumerate() {
            if !seen.contains(&at) || placed.contains(&at) {
                continue;
            }
            let circle: Vec<_> = seen.iter().filter(|b| reach[**b].contains(&at)).collect();
            placed.extend(circle.iter().copied());
            circles.push(circle.iter().map(|b| self.files[**b].name.as_str()).collect());
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    /// The files that one names, by name.
    #[cfg(test)]
    fn named_by(&self, name: &str) -> Vec<&str> {
        let at = self.files.iter().position(|file| file.name == name).expect("a file");
        self.imports(at).into_iter().map(|b| self.files[b].name.as_str()).collect()
    }

    fn imports(&self, at: usize) -> BTreeSet<usize> {
        let file = &self.files[at];
        let mut found = BTreeSet::new();
        for leaf in &file.uses {
            let Some(path) = &leaf.path else { continue };
            if leaf.re_export && !file.words.contains(&leaf.name) {
                continue;
            }
            match self.resolve(path, 0) {
                Some(Target::Item(target)) => found.insert(target),
                // What is used of a module stands where it is used.
                Some(Target::Module(target)) if leaf.name == "*" => found.insert(target),
                _ => continue,
            };
        }
        for path in &file.paths {
            if let Some(Target::Item(target)) = self.resolve(path, 0) {
                found.insert(target);
            }
        }
        found.remove(&at);
        found
    }

    /// What a path from the crate's root leads to; none outside the crate.
    fn resolve(&self, path: &[String], hops: usize) -> Option<Target> {
        let depth = (0..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]))?;
        let at = self.modules[&path[..depth]];
        let Some((name, rest)) = path[depth..].split_first() else {
            return Some(Target::Module(at));
        };
        let file = &self.files[at];
        if file.items.contains(name) || hops == MAX_HOPS {
            return Some(Target::Item(at));
        }
        let follow = |leaf: &UseLeaf, rest: &[String]| {
            let path = leaf.path.as_ref()?;
            self.resolve(&[path.as_slice(), rest].concat(), hops + 1)
        };
        if let Some(leaf) = file.uses.iter().find(|leaf| leaf.at_top && leaf.name == *name) {
            return follow(leaf, rest);
        }
        if depth == 0
            && let Some(at) = self.files.iter().position(|f| f.macros.contains(name))
        {
            return Some(Target::Item(at));
        }
        for glob in file.uses.iter().filter(|leaf| leaf.at_top && leaf.name == "*") {
            if let Some(Target::Item(found)) = follow(glob, &path[depth..])
                && self.files[found].items.contains(name)
            {
                return Some(Target::Item(found));
            }
        }
        Some(Target::Item(at))
    }
}

/// Every file that can be reached from one; itself only if a circle leads back.
fn reach(imports: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        next.extend(imports[at].iter().filter(|b| seen.insert(**b)));
    }
    seen
}

/// Reads one file.
struct Reader<'a> {
    module: &'a ModulePath,
    modules: &'a HashMap<ModulePath, usize>,
    tokens: Vec<String>,
    /// Inline modules around the present token, each with the braces open outside it.
    inline: Vec<(String, usize)>,
    braces: usize,
    file: SourceFile,
}

impl<'a> Reader<'a> {
    fn new(module: &'a ModulePath, modules: &'a HashMap<ModulePath, usize>) -> Self {
        let file = SourceFile {
            name: String::new(),
            uses: Vec::new(),
            paths: Vec::new(),
            items: HashSet::new(),
            macros: HashSet::new(),
            words: HashSet::new(),
        };
        Self { module, modules, tokens: Vec::new(), inline: Vec::new(), braces: 0, file }
    }

    fn read(mut self, name: &str, text: &str) -> SourceFile {
        name.clone_into(&mut self.file.name);
        self.tokens = without_tests(tokens(text));
        // First what `use` brings in: code may stand above it.
        self.walk(true);
        self.walk(false);
        self.file
    }

    fn walk(&mut self, uses: bool) {
        (self.braces, self.inline) = (0, Vec::new());
        let mut at = 0;
        while at < self.tokens.len() {
            let token = self.token(at).to_owned();
            match token.as_str() {
                "{" => {
                    if at >= 2 && self.token(at - 2) == "mod" {
                        self.inline.push((self.token(at - 1).to_owned(), self.braces));
                    }
                    self.braces += 1;
                }
                "}" => {
                    self.braces = self.braces.saturating_sub(1);
                    self.inline.pop_if(|(_, outside)| *outside == self.braces);
                }
                "use" => {
                    let re_export = at > 0 && matches!(self.token(at - 1), "pub" | ")");
                    let end = (at..self.tokens.len()).find(|b| self.token(*b) == ";");
                    let end = end.unwrap_or(self.tokens.len());
                    if uses {
                        self.use_tree(at + 1, &mut Vec::new(), re_export);
                    }
                    at = end;
                }
                _ if !uses => self.word(at),
                _ => {}
            }
            at += 1;
        }
    }

    fn token(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", String::as_str)
    }

    /// A word of the code: the name of an item, the start of a path, or neither.
    fn word(&mut self, at: usize) {
        let token = self.token(at).to_owned();
        self.file.words.insert(token.clone());
        let before = if at > 0 { self.token(at - 1) } else { "" };
        let defines = matches!(
            before,
            "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "mod" | "union"
        );
        if self.braces == 0 && defines && self.token(at + 1) != ";" {
            self.file.items.insert(token);
        } else if before == "!" && at >= 2 && self.token(at - 2) == "macro_rules" {
            self.file.macros.insert(token);
        } else if before != "::" && self.token(at + 1) == "::" {
            let mut names = vec![token];
            let mut next = at + 1;
            while self.token(next) == "::" && is_word(self.token(next + 1)) {
                names.push(self.token(next + 1).to_owned());
                next += 2;
            }
            if let Some(path) = self.absolute(&names) {
                self.file.paths.push(path);
            }
        }
    }

    /// Reads a tree of `use` below a prefix; says where it ends.
    fn use_tree(&mut self, mut at: usize, prefix: &mut Vec<String>, re_export: bool) -> usize {
        let length = prefix.len();
        loop {
            match self.token(at) {
                "{" => {
                    at += 1;
                    while !matches!(self.token(at), "}" | "") {
                        at = self.use_tree(at, prefix, re_export);
                        at += usize::from(self.token(at) == ",");
                    }
                    prefix.truncate(length);
                    return at + 1;
                }
                "*" => {
                    self.leaf("*".to_owned(), prefix, re_export);
                    prefix.truncate(length);
                    return at + 1;
                }
                "::" => at += 1,
                word => {
                    prefix.push(word.to_owned());
                    at += 1;
                    if self.token(at) == "::" {
                        continue;
                    }
                    let itself = prefix.len() > 1 && prefix.last().is_some_and(|n| n == "self");
                    if itself {
                        prefix.pop();
                    }
                    let mut name = prefix.last().cloned().unwrap_or_default();
                    if self.token(at) == "as" {
                        self.token(at + 1).clone_into(&mut name);
                        at += 2;
                    }
                    self.leaf(name, prefix, re_export);
                    prefix.truncate(length);
                    return at;
                }
            }
        }
    }

    fn leaf(&mut self, name: String, path: &[String], re_export: bool) {
        let path = self.absolute(path);
        let at_top = self.inline.is_empty();
        self.file.uses.push(UseLeaf { name, path, re_export, at_top });
    }

    /// A path from the crate's root; none if it leads to another crate or to a local name.
    fn absolute(&self, names: &[String]) -> Option<ModulePath> {
        let inline = self.inline.iter().map(|(name, _)| name.clone());
        let mut module: ModulePath = self.module.iter().cloned().chain(inline).collect();
        let mut names = names;
        let mut relative = false;
        while let Some((first, rest)) = names.split_first() {
            match first.as_str() {
                "crate" => module.clear(),
                "super" => {
                    module.pop();
                }
                "self" => {}
                _ => break,
            }
            (names, relative) = (rest, true);
        }
        if relative {
            return Some([module.as_slice(), names].concat());
        }
        let (first, rest) = names.split_first()?;
        let child = [module.as_slice(), std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return Some([module.as_slice(), names].concat());
        }
        let leaf = self.file.uses.iter().find(|leaf| leaf.name == *first)?;
        Some([leaf.path.as_deref()?, rest].concat())
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Leaves out what stands under `#[cfg(test)]`.
pub(crate) fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].iter().take(MARK.len()).eq(MARK) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let mut depth = 0;
        at += MARK.len();
        while at < tokens.len() {
            match tokens[at].as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            let ends = matches!(tokens[at].as_str(), "}" | ";") && depth == 0;
            at += 1;
            if ends {
                break;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::Imports;

    fn crate_of(files: &[(&str, &str)]) -> Imports {
        let owned = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Imports::of(&owned.collect::<Vec<_>>())
    }

    #[test]
    fn import_resolves_to_defining_file() {
        let imports = crate_of(&[
            ("lib.rs", "mod alpha; mod beta; pub use alpha::{Alpha, gamma::Gamma as Third};"),
            (
                "alpha/mod.rs",
                "pub mod gamma; pub use self::gamma::*; pub struct Alpha; use crate::beta::Hidden;",
            ),
            (
                "alpha/gamma.rs",
                "pub struct Gamma; pub fn make() {} #[cfg(test)] mod tests { use crate::beta::Beta; }",
            ),
            ("beta.rs", "pub struct Beta; pub struct Hidden;"),
            ("one.rs", "use crate::{Alpha, Third};"),
            ("two.rs", "use super::alpha; fn f() { alpha::make(); alpha::Hidden; other::Beta }"),
            (
                "three.rs",
                r##"//! crate::beta::Beta
                const A: &str = "crate::beta::Beta"; const B: &str = r#"crate::beta::Beta "quoted""#;
                mod inner { use super::super::beta::Beta; }"##,
            ),
            (
                "four.rs",
                "use crate::alpha::{self as a, gamma::{self}}; fn f<'a>(x: &'a u8) { a::Alpha; ['\"', '\\'']; gamma::Gamma }",
            ),
        ]);
        for (file, named) in [
            ("lib.rs", &[][..]),
            ("alpha/mod.rs", &["beta.rs"]),
            ("alpha/gamma.rs", &[]),
            ("one.rs", &["alpha/mod.rs", "alpha/gamma.rs"]),
            ("two.rs", &["alpha/gamma.rs", "beta.rs"]),
            ("three.rs", &["beta.rs"]),
            ("four.rs", &["alpha/mod.rs", "alpha/gamma.rs"]),
        ] {
            assert_eq!(imports.named_by(file), named, "{file}");
        }
    }

    #[test]
    fn import_cycles_are_found_transitively() {
        let imports = crate_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d; mod e; pub use d::D;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use super::c; pub struct B(c::C);"),
            ("c.rs", "pub struct C; fn f() { crate::a::A }"),
            ("d.rs", "use crate::a::A; pub struct D; use crate::e::E;"),
            ("e.rs", "pub struct E; use crate::D;"),
        ]);
        assert_eq!(imports.circles(), [vec!["a.rs", "b.rs", "c.rs"], vec!["d.rs", "e.rs"]]);
    }
}
