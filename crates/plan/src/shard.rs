//! Splits a grid of flag combinations into shards that several machines run.
//!
//! `--merge` combines the files that `--shard` wrote; the result equals that of one process, byte
//! for byte.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use sha2::{Digest, Sha256};
use vllm_sim_command_line::progress::{JobProgress, is_job_stop_requested};
use vllm_sim_command_line::{format_command_line, map_in_parallel, output_files, refuse};

const SHARD_FILE_SCHEMA: &str = "vllm-sim/shard/1";

/// Distribution of a grid over several processes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Shards")]
pub(super) struct FlagGridShardArgs {
    /// Run only part K of N and write it to --report-json: K/N with K from 1, or job/N for the
    /// index of a Kubernetes Indexed Job.
    #[arg(long, value_name = "K/N", conflicts_with_all = ["merge", "html"])]
    shard: Option<String>,
    /// Combine the files of all parts that the same command wrote. Parts made with other contents of
    /// the files that the command names are refused.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    merge: Vec<PathBuf>,
}

/// Shard of a grid of flag combinations: every `of`-th point, beginning with the point of index
/// `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FlagGridShard {
    at: usize,
    of: usize,
}

#[derive(Serialize, Deserialize)]
struct ShardFile<R> {
    schema: String,
    /// Command line without the flags that differ between shards; the result files of all merged
    /// shards must contain the same command line.
    command: String,
    /// Hashes of the files that the command names, by name; those of all merged shards must be
    /// equal.
    inputs: BTreeMap<String, String>,
    at: usize,
    of: usize,
    results: Vec<R>,
}

impl FlagGridShardArgs {
    fn shard(&self) -> Result<Option<FlagGridShard>> {
        let Some(text) = &self.shard else {
            return Ok(None);
        };
        let read = || {
            let (at, of) = text.split_once('/')?;
            let of: usize = of.parse().ok()?;
            let at: usize = match at {
                "job" => std::env::var("JOB_COMPLETION_INDEX").ok()?.parse().ok()?,
                at => at.parse::<usize>().ok()?.checked_sub(1)?,
            };
            (at < of).then_some(FlagGridShard { at, of })
        };
        match read() {
            Some(shard) => Ok(Some(shard)),
            None => refuse!(
                "--shard {text:?} must be K/N with K from 1 to N, or job/N where \
                 JOB_COMPLETION_INDEX is set"
            ),
        }
    }
}

/// Run of this process's part of a flag grid.
pub(super) struct FlagGridRun<'a> {
    /// Name of the tool, such as `sweep`, and its word for the points of the grid.
    pub(super) tool: (&'static str, &'static str),
    /// Command line of the tool.
    pub(super) words: &'a [String],
    pub(super) shard: &'a FlagGridShardArgs,
    pub(super) threads: usize,
    pub(super) report_json: Option<&'a str>,
}

impl FlagGridRun<'_> {
    /// Returns the results of all grid points, which the process simulates or reads from the files
    /// of `--merge`; breaks with the text to print if it simulates only a shard.
    ///
    /// `interrupted` returns the result of a point during which the user stopped the tool.
    ///
    /// # Errors
    /// Returns a usage error for an invalid `--shard`, and the errors of files and of `simulate`.
    pub(super) fn run_grid_points<P: Sync, R: Serialize + DeserializeOwned + Send + Sync>(
        &self,
        points: &[P],
        simulate: impl Fn(&P) -> Result<R> + Sync,
        interrupted: impl Fn() -> R + Sync,
    ) -> Result<ControlFlow<String, Vec<R>>> {
        let (tool, unit) = self.tool;
        let common = command_common_to_shards(self.words);
        let command = format_command_line(tool, &common);
        if !self.shard.merge.is_empty() {
            let inputs = hash_input_files(&common)?;
            let merged = merge_shard_files((&command, &inputs), &self.shard.merge, points.len())?;
            return Ok(ControlFlow::Continue(merged));
        }
        let shard = self.shard.shard()?;
        // The files are hashed before the simulation, which may outlast a change of theirs.
        let inputs = shard.map(|_| hash_input_files(&common)).transpose()?.unwrap_or_default();
        let FlagGridShard { at, of } = shard.unwrap_or(FlagGridShard { at: 0, of: 1 });
        let mine: Vec<&P> = points.iter().skip(at).step_by(of).collect();
        let progress_bar = JobProgress::begin_job(tool, unit, Some(mine.len() as u64));
        let results = map_in_parallel(&mine, self.threads, |point| {
            let result = simulate(point);
            progress_bar.add_finished_work_units(1);
            // An interrupted run is not comparable with complete ones.
            if is_job_stop_requested() { Ok(interrupted()) } else { result }
        });
        let results: Vec<R> = results.into_iter().collect::<Result<_>>()?;
        drop(progress_bar);
        Ok(match shard {
            None => ControlFlow::Continue(results),
            Some(shard) => ControlFlow::Break(shard.write_shard_results(
                (&command, inputs),
                &results,
                self.report_json,
            )?),
        })
    }
}

impl FlagGridShard {
    /// Writes the shard's results to `file` and returns the text to print.
    ///
    /// # Errors
    /// Returns an error if no file is named or writing fails.
    fn write_shard_results<R: Serialize>(
        self,
        (command, inputs): (&str, BTreeMap<String, String>),
        results: &[R],
        file: Option<&str>,
    ) -> Result<String> {
        let Some(file) = file else {
            refuse!("--shard needs --report-json FILE for its part");
        };
        let part = ShardFile {
            schema: SHARD_FILE_SCHEMA.to_owned(),
            command: command.to_owned(),
            inputs,
            at: self.at,
            of: self.of,
            results: results.iter().collect(),
        };
        let text = serde_json::to_string(&part)?;
        if file == "-" {
            return Ok(text);
        }
        output_files::write_atomically(file.as_ref(), text)?;
        let (at, of, points) = (self.at + 1, self.of, results.len());
        Ok(format!("shard {at} of {of}: {points} points in {file}"))
    }
}

/// Returns the command line without the flags that may differ between the processes of the shards
/// and the process that merges them.
fn command_common_to_shards(words: &[String]) -> Vec<String> {
    let own = ["--shard", "--merge", "--report-json", "--threads", "--html"];
    without_flags(words, &own)
}

/// Returns the command line that simulates all grid points in one process.
pub(super) fn command_without_shard_flags(words: &[String]) -> Vec<String> {
    without_flags(words, &["--shard", "--merge"])
}

/// Returns a hash of every file that a command line names as input, by the name on the command
/// line. A folder stands for its `config.json`.
///
/// # Errors
/// Returns an error for a file that cannot be read.
fn hash_input_files(words: &[String]) -> Result<BTreeMap<String, String>> {
    let words = without_flags(words, &["--deploy-dir", "--helm-values"]);
    let names = words
        .iter()
        .flat_map(|word| std::iter::once(word.as_str()).chain(word.split(['=', ',', ':'])));
    let mut hashes = BTreeMap::new();
    for name in names {
        let path = Path::new(name);
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        if path.is_file() && !hashes.contains_key(name) {
            let mut hasher = Sha256::new();
            let copied = File::open(&path).and_then(|mut file| io::copy(&mut file, &mut hasher));
            copied.with_context(|| format!("cannot read {name}"))?;
            hashes.insert(name.to_owned(), format!("{:x}", hasher.finalize()));
        }
    }
    Ok(hashes)
}

fn without_flags(words: &[String], flags: &[&str]) -> Vec<String> {
    let mut all = words.iter();
    let mut kept = Vec::new();
    while let Some(word) = all.next() {
        let name = word.split('=').next().unwrap_or(word).replace('_', "-");
        if !flags.contains(&name.as_str()) {
            kept.push(word.clone());
        } else if !word.contains('=') {
            all.next();
        }
    }
    kept
}

/// Deserializes a float from JSON text with its exact bits.
pub(super) fn deserialize_exact_f64<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let raw = <&RawValue>::deserialize(from)?;
    raw.get().parse().map_err(D::Error::custom)
}

/// Deserializes a JSON object with the exact bits of its floats.
pub(super) fn deserialize_exact_map<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Map<String, Value>, D::Error> {
    from.deserialize_map(ExactMapVisitor)
}

struct ExactMapVisitor;

impl<'de> Visitor<'de> for ExactMapVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a summary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, raw)) = pairs.next_entry::<String, &RawValue>()? {
            let text = raw.get();
            let is_float = text.contains(['.', 'e']);
            let value = match text.parse::<f64>() {
                Ok(number) if is_float => number.into(),
                _ => serde_json::from_str(text).map_err(A::Error::custom)?,
            };
            map.insert(key, value);
        }
        Ok(map)
    }
}

/// Combines the result files of all shards, in the order of the grid's points.
///
/// # Errors
/// Returns an error for files that are unreadable, from another command or other inputs, or
/// incomplete.
fn merge_shard_files<R: DeserializeOwned>(
    (command, inputs): (&str, &BTreeMap<String, String>),
    files: &[PathBuf],
    points: usize,
) -> Result<Vec<R>> {
    let mut all: Vec<Option<R>> = (0..points).map(|_| None).collect();
    for file in files {
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("--merge: {shown}"))?;
        let part: ShardFile<R> =
            serde_json::from_str(&text).with_context(|| format!("--merge: {shown}"))?;
        if part.schema != SHARD_FILE_SCHEMA || part.command != command {
            bail!("--merge: {shown} was written by another command: {}", part.command);
        }
        let mut names = inputs.keys().chain(part.inputs.keys());
        if let Some(name) = names.find(|name| inputs.get(*name) != part.inputs.get(*name)) {
            bail!(
                "--merge: {shown} was made with another content of {name}; run its shard again with \
                 the present one"
            );
        }
        let places = (part.at..points).step_by(part.of.max(1));
        if places.len() != part.results.len() {
            bail!("--merge: {shown} does not fit this grid");
        }
        for (place, result) in places.zip(part.results) {
            all[place] = Some(result);
        }
    }
    let missing = all.iter().filter(|result| result.is_none()).count();
    if missing > 0 {
        bail!("--merge: {missing} of {points} points are in none of these files");
    }
    Ok(all.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_merge_have_a_common_command() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let part = "--grid a=1,2 --shard 1/2 --report-json=x --threads 3 --gpu H100";
        let merged = "--grid a=1,2 --gpu H100 --merge x,y";
        assert_eq!(
            command_common_to_shards(&words(part)),
            command_common_to_shards(&words(merged))
        );
        assert_eq!(command_without_shard_flags(&words(merged)), words("--grid a=1,2 --gpu H100"));
    }

    #[test]
    fn shard_file_floats_round_trip_exactly() {
        #[derive(Serialize, Deserialize)]
        struct Kept {
            #[serde(deserialize_with = "deserialize_exact_map")]
            map: Map<String, Value>,
        }
        let mut seed = 1_u64;
        let mut map = Map::new();
        for n in 0..2000 {
            seed = vllm_sim_random::mix_u64_pair(seed, n);
            let number = (seed >> 11) as f64 / 7.3e9;
            map.insert(n.to_string(), number.into());
        }
        map.insert("none".to_owned(), Value::Null);
        map.insert("whole".to_owned(), 7.into());
        let text = serde_json::to_string(&Kept { map: map.clone() }).expect("is JSON");
        let back: Kept = serde_json::from_str(&text).expect("is JSON");
        assert_eq!(back.map, map);
    }
}
