//! Readers of what others wrote, each fed with inputs made of the corpora of the tests: no panic, no
//! input that takes for ever, and no memory beyond what the process is given.
//!
//! `FUZZ_CASES` is the number of inputs of a target, `FUZZ_FROM` the number of the first. CI runs it
//! within 1 GiB of address space (`.ci/run`).
//!
//! - `bodies`: JSON as Python reads it, request classes, the chats and completions that are read straight
//! - `constraints`: schemas, patterns, grammars, structural tags
//! - `engine_core`: messages of a front end to the engine behind it
//! - `files`: YAML, traces, results, tables of a profiler and of kernels, recordings, scripted replies
//! - `served`: forms and media, through a server
//! - `texts`: chat templates, tokenizers and their files

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod bodies;
mod constraints;
mod engine_core;
mod files;
mod mutate;
mod run;
mod served;
mod texts;

use std::fs;
use std::path::{Path, PathBuf};

/// A path below the repository's root.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// All files below a folder whose name ends so.
fn files_below(folder: &str, ending: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{folder} has no {ending}");
    found
}

/// The texts in quotes of Rust sources below a folder.
fn literals(folder: &str) -> Vec<Vec<u8>> {
    let sources = files_below(folder, ".rs").into_iter();
    let texts = sources.flat_map(|path| mutate::literals(&fs::read_to_string(path).unwrap()));
    texts.collect()
}

/// The lines of files.
fn lines(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let files = files_below(folder, ending).into_iter();
    let texts: Vec<String> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.map(|line| line.as_bytes().to_vec()).collect()
}
