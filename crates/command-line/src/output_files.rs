//! Writes output files atomically, and checks that they overwrite neither inputs nor each other.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::refuse;
use vllm_sim_config::all_effective_flags;

const OUTPUT_FLAGS: [&str; 9] = [
    "--report-json",
    "--json",
    "--per-request",
    "--step-log",
    "--trace-out",
    "--html",
    "--helm-values",
    "--deploy-dir",
    "--out",
];

/// Names of the files that tools read from an input folder.
const INPUT_FILE_NAMES: [&str; 7] = [
    "args.json",
    "trace.jsonl",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Rejects output files of a tool that would overwrite an input or each other.
///
/// Inputs are all words of the command line, elements of lists included, and all environment
/// variables of flags that name a file. Called before any work.
///
/// # Errors
/// [`UsageError`](crate::UsageError) with the flags of both files, or for a missing folder of an
/// output.
pub fn check_output_file_conflicts(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<()> {
    let (outputs, mut inputs) = split_outputs_from_inputs(words);
    if outputs.is_empty() {
        return Ok(());
    }
    for flag in all_effective_flags() {
        let name = flag.env_variable_name();
        inputs.extend(env(&name).map(|value| (name, value)));
    }
    let mut seen: Vec<(&str, FileId)> = Vec::new();
    for (flag, path) in &outputs {
        let Some(id) = FileId::of_output(flag, Path::new(path))? else {
            continue;
        };
        if let Some((other, _)) = seen.iter().find(|(_, other)| *other == id) {
            refuse!("{flag} {path}: {other} writes the same file; name different files");
        }
        for (input, value) in &inputs {
            if let Some(lost) =
                candidate_files(value).find(|file| FileId::of_path(file).as_ref() == Some(&id))
            {
                let lost = lost.display();
                refuse!("{flag} {path}: would overwrite the input file {lost} ({input})");
            }
        }
        seen.push((flag, id));
    }
    Ok(())
}

type FlagAndPath = (String, String);

/// Splits a command line's words into output files and other values, each with the name of its
/// flag. If a flag for an output file is repeated, only its last value counts.
fn split_outputs_from_inputs(words: &[String]) -> (Vec<FlagAndPath>, Vec<FlagAndPath>) {
    let (mut outputs, mut inputs) = (Vec::<FlagAndPath>::new(), Vec::new());
    let mut last = String::from("an argument");
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, joined) = match word.split_once('=') {
            Some((name, value)) if word.starts_with("--") => (name, Some(value)),
            _ => (word.as_str(), None),
        };
        let name = match name.starts_with("--") {
            true => name.replace('_', "-"),
            false => name.to_owned(),
        };
        if OUTPUT_FLAGS.contains(&name.as_str()) {
            let value = joined.map(str::to_owned).or_else(|| words.next().cloned());
            outputs.retain(|(flag, _)| *flag != name);
            outputs.extend(value.filter(|value| value != "-").map(|value| (name, value)));
        } else if word.starts_with("--") {
            inputs.extend(joined.map(|value| (name.clone(), value.to_owned())));
            last = name;
        } else {
            inputs.push((last.clone(), word.clone()));
        }
    }
    (outputs, inputs)
}

/// Returns the files that a flag's value may name: the value itself, the elements of a list, and
/// the input files in a folder.
fn candidate_files(value: &str) -> impl Iterator<Item = PathBuf> + '_ {
    let parts = value.split([',', '=', ':']).chain([value]);
    parts.flat_map(|part| {
        let path = PathBuf::from(part);
        match path.is_dir() {
            true => {
                let inside = INPUT_FILE_NAMES.iter().map(|name| path.join(name));
                inside.chain([path.clone()]).collect()
            }
            false => vec![path],
        }
    })
}

/// Identity of a file: the inode of an existing file, or folder and name of a file that does not
/// exist yet.
#[derive(Debug, PartialEq, Eq)]
enum FileId {
    There { device: u64, inode: u64 },
    Free { device: u64, folder: u64, name: OsString },
}

impl FileId {
    fn of_path(path: &Path) -> Option<Self> {
        Some(Self::of_metadata(&path.metadata().ok()?))
    }

    fn of_metadata(file: &Metadata) -> Self {
        Self::There { device: file.dev(), inode: file.ino() }
    }

    /// Returns the identity of an output file; `None` for a device or pipe, whose content cannot be
    /// overwritten.
    fn of_output(flag: &str, path: &Path) -> Result<Option<Self>> {
        let shown = path.display();
        if let Ok(file) = path.metadata() {
            if has_no_stored_content(&file) {
                return Ok(None);
            }
            // A tool may write into a folder.
            if !file.is_file() && !file.is_dir() {
                refuse!("{flag} {shown}: not a regular file");
            }
            return Ok(Some(Self::of_metadata(&file)));
        }
        if path.is_symlink() {
            refuse!("{flag} {shown}: a link to a file that does not exist");
        }
        let Some(name) = path.file_name() else {
            refuse!("{flag} {shown}: not the name of a file");
        };
        let folder = parent_folder(path).metadata();
        let folder = folder.with_context(|| format!("cannot write {shown}"))?;
        Ok(Some(Self::Free { device: folder.dev(), folder: folder.ino(), name: name.to_owned() }))
    }
}

/// Returns whether a file is a device or a pipe without stored content, such as `/dev/null` or a
/// terminal.
fn has_no_stored_content(file: &Metadata) -> bool {
    let kind = file.file_type();
    kind.is_char_device() || kind.is_fifo()
}

fn parent_folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes a file atomically: it is replaced as a whole or unchanged.
///
/// # Errors
/// An error with the file's name, if it cannot be written.
pub fn write_atomically(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    let written = AtomicFile::open_for_atomic_write(path).and_then(|mut draft| {
        draft.file.write_all(text.as_ref())?;
        draft.rename_temporary_to_target()
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file atomically and never replaces an existing one.
///
/// # Errors
/// An I/O error, also if the file exists.
pub fn write_new_file(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut draft = AtomicFile::open_for_atomic_write(path)?;
    draft.file.write_all(text.as_ref())?;
    draft.rename_temporary_to_target()
}

/// Temporary file for the atomic replacement of a target file.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    /// Path of the temporary file; empty after the file has replaced the target, or if the target
    /// is a stream.
    path: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates a temporary file in the folder of `path`; if `path` is a symbolic link, in the
    /// folder of its target.
    ///
    /// # Errors
    /// An I/O error if the file cannot be created.
    pub fn open_for_atomic_write(path: &Path) -> io::Result<Self> {
        if path.metadata().is_ok_and(|file| has_no_stored_content(&file)) {
            return Ok(Self {
                file: File::options().write(true).open(path)?,
                path: PathBuf::new(),
                target: PathBuf::new(),
            });
        }
        let target = match path.is_symlink() {
            true => path.canonicalize()?,
            false => path.to_owned(),
        };
        let name = target.file_name().unwrap_or_default();
        let mut draft = OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}.part", std::process::id()));
        let path = parent_folder(&target).join(draft);
        let file = File::create_new(&path)?;
        if let Ok(old) = target.metadata() {
            file.set_permissions(old.permissions())?;
        }
        Ok(Self { file, path, target })
    }

    /// Returns another handle for writing to the temporary file.
    ///
    /// # Errors
    /// An I/O error if no more file descriptors are available.
    pub fn clone_temporary_file_handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Replaces the target file by the temporary file.
    ///
    /// # Errors
    /// An I/O error if the rename fails; the target is unchanged.
    pub fn rename_temporary_to_target(mut self) -> io::Result<()> {
        if !self.path.as_os_str().is_empty() {
            std::fs::rename(&self.path, &self.target)?;
        }
        self.path = PathBuf::new();
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
