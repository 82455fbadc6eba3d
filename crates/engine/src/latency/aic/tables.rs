//! Selects and reads AIConfigurator's table files of a system (GPU type), backend and version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::AiConfiguratorError;
use super::lookup::{AttentionTimeTable, GemmTable, LatencyCurve};
use super::parquet::ParquetTable;

/// Phase of a forward pass: with prompts, or with decodes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForwardPassPhase {
    /// The forward pass computes prompts, possibly together with decodes.
    Prefill,
    /// The forward pass computes only decodes.
    Decode,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct AiConfiguratorSystemSpec {
    data_dir: String,
    pub(super) gpu: SystemSpecGpu,
    pub(super) node: SystemSpecNode,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct SystemSpecGpu {
    /// Bandwidth of GPU memory, in B/s.
    pub(super) mem_bw: f64,
    pub(super) mem_bw_empirical_scaling_factor: f64,
    /// Launch latency of a memory-bound kernel, in s.
    pub(super) mem_empirical_constant_latency: f64,
    pub(super) bfloat16_tc_flops: f64,
    pub(super) fp8_tc_flops: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct SystemSpecNode {
    /// Bandwidth between the GPUs of a node, in B/s.
    pub(super) intra_node_bw: f64,
}

#[derive(Deserialize)]
struct BackendVersionsFile {
    defaults: BTreeMap<String, VersionSlots>,
    #[serde(default)]
    overrides: BTreeMap<String, BTreeMap<String, VersionSlots>>,
}

#[derive(Deserialize)]
struct VersionSlots {
    current: String,
    previous: Option<String>,
}

#[derive(Deserialize)]
struct TableReuseRule {
    #[serde(default)]
    reuse: Vec<TableDonorVersion>,
}

#[derive(Deserialize)]
struct TableDonorVersion {
    table: String,
    from_version: String,
}

pub(super) struct KernelTableFolder {
    data: PathBuf,
    pub(super) backend: String,
    pub(super) version: String,
    pub(super) sheet: AiConfiguratorSystemSpec,
}

impl KernelTableFolder {
    /// Opens the kernel tables under `root`, which is the folder with `query_versions.yaml` or a
    /// Python package that contains this folder.
    pub(super) fn open_kernel_tables(
        root: &Path,
        system: &str,
        backend: &str,
        version: Option<&str>,
    ) -> Result<Self, AiConfiguratorError> {
        let inner = ["", "systems", "aiconfigurator_core/systems", "aisimulate_core/systems"];
        let systems = inner
            .iter()
            .map(|inner| root.join(inner))
            .find(|folder| folder.join("query_versions.yaml").is_file());
        let systems = systems.ok_or_else(|| AiConfiguratorError::NoTables(root.to_owned()))?;
        let file = systems.join(format!("{system}.yaml"));
        let plain = system.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain || !file.is_file() {
            return Err(AiConfiguratorError::System {
                system: system.to_owned(),
                known: folder_entry_names(&systems.join("data")),
            });
        }
        let sheet: AiConfiguratorSystemSpec = read_yaml(&file)?;
        let versions: BackendVersionsFile = read_yaml(&systems.join("query_versions.yaml"))?;
        let slots = versions
            .overrides
            .get(system)
            .and_then(|of| of.get(backend))
            .or_else(|| versions.defaults.get(backend));
        let slots = slots.ok_or_else(|| AiConfiguratorError::Backend {
            backend: backend.to_owned(),
            known: versions.defaults.keys().cloned().collect::<Vec<_>>().join(", "),
        })?;
        let previous = slots.previous.as_deref();
        let version = match version {
            None | Some("current") => slots.current.clone(),
            Some("previous") if previous.is_some() => previous.unwrap_or_default().to_owned(),
            Some(v) if v == slots.current || Some(v) == previous => v.to_owned(),
            Some(v) => {
                let known = [Some(slots.current.as_str()), previous];
                return Err(AiConfiguratorError::Version {
                    version: v.to_owned(),
                    backend: backend.to_owned(),
                    system: system.to_owned(),
                    known: known.into_iter().flatten().collect::<Vec<_>>().join(", "),
                });
            }
        };
        Ok(Self {
            data: systems.join(&sheet.data_dir),
            backend: backend.to_owned(),
            version,
            sheet,
        })
    }

    /// Reads the kernel table `name`: of this backend version, of the versions whose tables this
    /// version reuses, and of earlier versions, the newest first.
    fn read_tables(
        &self,
        family: &str,
        name: &'static str,
    ) -> Result<Vec<ParquetTable>, AiConfiguratorError> {
        let folder = self.data.join(family).join(&self.backend);
        let own = folder.join(&self.version);
        let mut order = vec![self.version.clone()];
        let reuse = own.join("reuse.yaml");
        if reuse.is_file() {
            let reuse: TableReuseRule = read_yaml(&reuse)?;
            let donors = reuse.reuse.into_iter().filter(|donor| donor.table == name);
            order.extend(donors.map(|donor| donor.from_version));
        }
        let asked = parse_backend_version(&self.version);
        let mut earlier: Vec<(BackendVersion, String)> = folder_entries(&folder)
            .into_iter()
            .filter_map(|version| Some((parse_backend_version(&version)?, version)))
            .filter(|(number, _)| asked.as_ref().is_some_and(|asked| number < asked))
            .collect();
        earlier.sort();
        order.extend(earlier.into_iter().rev().map(|(_, version)| version));
        let mut tables = Vec::new();
        for version in order {
            let file = folder.join(version).join(format!("{name}.parquet"));
            if !file.is_file() {
                continue;
            }
            let bytes = std::fs::read(&file).map_err(|error| AiConfiguratorError::File {
                file: file.clone(),
                problem: error.to_string(),
            })?;
            let table = ParquetTable::parse_parquet_file(&bytes).map_err(|problem| {
                AiConfiguratorError::File { file: file.clone(), problem: problem.to_owned() }
            })?;
            tables.push(table);
        }
        match tables.is_empty() {
            true => Err(self.missing_table_error(name, "any row")),
            false => Ok(tables),
        }
    }

    pub(super) fn missing_table_error(
        &self,
        table: &'static str,
        what: &str,
    ) -> AiConfiguratorError {
        AiConfiguratorError::Missing {
            table,
            what: what.to_owned(),
            of: format!("{} of {} {}", self.data.display(), self.backend, self.version),
        }
    }

    /// Reads the times of matrix products of one data type; times below the hardware minimum `sol`
    /// are raised to that minimum.
    pub(super) fn read_gemm_table(
        &self,
        dtype: &str,
        sol: &dyn Fn(u64, u64, u64) -> f64,
    ) -> Result<GemmTable, AiConfiguratorError> {
        // Keeps the nesting in order of appearance: rows of the product, outputs, inputs.
        let mut order: Vec<(u64, InputsByOutputs)> = Vec::new();
        let mut times: BTreeMap<(u64, u64), LatencyCurve> = BTreeMap::new();
        let tables = self.read_tables("gemm", "gemm_perf")?;
        for row in kernel_rows(&tables).filter(|row| row.text("gemm_dtype") == Some(dtype)) {
            let ([Some(m), Some(n), Some(k)], Some(time)) =
                (["m", "n", "k"].map(|column| row.count(column)), row.latency_ms())
            else {
                continue;
            };
            let outer = entry_or_default(&mut order, m);
            let inner = entry_or_default(outer, n);
            if !inner.contains(&k) {
                inner.push(k);
            }
            times.entry((n, k)).or_default().add_measured_point(m, time.max(sol(m, n, k)));
        }
        let mut shapes = Vec::new();
        for (n, k) in order
            .into_iter()
            .flat_map(|(_, inner)| inner)
            .flat_map(|(n, ks)| ks.into_iter().map(move |k| (n, k)))
        {
            if let Some(curve) = times.remove(&(n, k)) {
                shapes.push(((n, k), curve));
            }
        }
        match shapes.is_empty() {
            true => Err(self.missing_table_error("gemm_perf", &format!("gemm_dtype {dtype}"))),
            false => Ok(GemmTable::from_gemm_curves(shapes)),
        }
    }

    /// Reads attention times with `kv_heads` key/value heads (0: as many as query heads): of
    /// prefill in the data type `prompts_in`, or of decode if that is `None`.
    pub(super) fn read_attention_table(
        &self,
        prompts_in: Option<&str>,
        (kv_dtype, kv_heads, head_dim, window): (&str, u64, u64, u64),
    ) -> Result<AttentionTimeTable, AiConfiguratorError> {
        let (name, phase) = match prompts_in {
            None => ("generation_attention_perf", ForwardPassPhase::Decode),
            Some(_) => ("context_attention_perf", ForwardPassPhase::Prefill),
        };
        let tables = self.read_tables("attention", name)?;
        let rows = kernel_rows(&tables).filter(|row| {
            let kv = row.count("num_key_value_heads");
            row.text("kv_cache_dtype") == Some(kv_dtype)
                && kv.filter(|_| kv != row.count("num_heads")).unwrap_or(0) == kv_heads
                && row.count("head_dim").unwrap_or(128) == head_dim
                && row.count("window_size").unwrap_or(0) == window
                && prompts_in
                    .is_none_or(|dtype| row.text("attn_dtype").unwrap_or("bfloat16") == dtype)
        });
        attention_times(rows, phase).ok_or_else(|| {
            let key = format!(
                "kv_cache_dtype {kv_dtype}, num_key_value_heads {kv_heads} (0: num_heads), \
                 head_dim {head_dim}, window_size {window}"
            );
            self.missing_table_error(name, &key)
        })
    }

    /// Reads times of multi-head latent attention (MLA) from the rows with the given column values.
    pub(super) fn read_latent_attention_table(
        &self,
        (name, phase): (&'static str, ForwardPassPhase),
        key: &[(&str, &str)],
    ) -> Result<AttentionTimeTable, AiConfiguratorError> {
        let tables = self.read_tables("mla", name)?;
        let times = attention_times(kernel_rows(&tables).filter(|row| row.has_texts(key)), phase);
        times.ok_or_else(|| self.missing_table_error(name, &columns_text(key)))
    }

    /// Reads the times of the matrix products that multi-head latent attention (MLA) computes per
    /// head.
    pub(super) fn read_mla_bmm_curve(
        &self,
        name: &str,
        dtype: &str,
        heads: u64,
    ) -> Result<LatencyCurve, AiConfiguratorError> {
        let key = [("op_name", name), ("bmm_dtype", dtype)];
        let tables = self.read_tables("mla_bmm", "mla_bmm_perf")?;
        let rows = kernel_rows(&tables)
            .filter(|row| row.has_texts(&key) && row.count("num_heads") == Some(heads));
        latency_curve(rows, "num_tokens", 1).ok_or_else(|| {
            let key = format!("{}, num_heads {heads}", columns_text(&key));
            self.missing_table_error("mla_bmm_perf", &key)
        })
    }

    pub(super) fn read_all_reduce_curve(
        &self,
        gpus: u64,
    ) -> Result<LatencyCurve, AiConfiguratorError> {
        let tables = self.read_tables("comm", "custom_allreduce_perf")?;
        let rows = kernel_rows(&tables).filter(|row| {
            let source = row.text("kernel_source").unwrap_or_default();
            !source.contains("eager") && row.count("num_gpus") == Some(gpus)
        });
        latency_curve(rows, "message_size", 1).ok_or_else(|| {
            self.missing_table_error("custom_allreduce_perf", &format!("num_gpus {gpus}"))
        })
    }

    pub(super) fn read_expert_kernel_curve(
        &self,
        (dtype, usual): (&str, &'static str),
        shape: [(&'static str, u64); 6],
    ) -> Result<LatencyCurve, AiConfiguratorError> {
        let tables = self.read_tables("moe", "moe_perf")?;
        let rows_of = |distribution: &'static str| {
            let key = [("moe_dtype", dtype), ("distribution", distribution)];
            kernel_rows(&tables).filter(move |row| row.has_texts(&key))
        };
        let distribution = if rows_of(usual).next().is_some() { usual } else { "uniform" };
        let rows = rows_of(distribution)
            .filter(|row| shape.iter().all(|(column, value)| row.count(column) == Some(*value)));
        latency_curve(rows, "num_tokens", 2).ok_or_else(|| {
            let key = shape.map(|(column, value)| format!("{column} {value}")).join(", ");
            let key = format!("moe_dtype {dtype}, {distribution}, {key}");
            self.missing_table_error("moe_perf", &key)
        })
    }
}

/// One row of a kernel table: a measured kernel.
struct KernelRow<'t> {
    table: &'t ParquetTable,
    row: usize,
}

impl<'t> KernelRow<'t> {
    fn text(&self, column: &str) -> Option<&'t str> {
        self.table.text_cell(column, self.row)
    }

    fn count(&self, column: &str) -> Option<u64> {
        self.table.integer_cell(column, self.row).and_then(|value| u64::try_from(value).ok())
    }

    fn latency_ms(&self) -> Option<f64> {
        self.table.float_cell("latency", self.row)
    }

    fn has_texts(&self, key: &[(&str, &str)]) -> bool {
        key.iter().all(|(column, value)| self.text(column) == Some(*value))
    }
}

fn kernel_rows(tables: &[ParquetTable]) -> impl Iterator<Item = KernelRow<'_>> {
    tables.iter().flat_map(|table| (0..table.rows).map(move |row| KernelRow { table, row }))
}

/// Returns the kernel times of `rows` along the column `axis`; `None` for fewer than `least`.
fn latency_curve<'t>(
    rows: impl Iterator<Item = KernelRow<'t>>,
    axis: &str,
    least: usize,
) -> Option<LatencyCurve> {
    let mut curve = LatencyCurve::default();
    for row in rows {
        if let (Some(at), Some(time)) = (row.count(axis), row.latency_ms()) {
            curve.add_measured_point(at, time);
        }
    }
    (curve.len() >= least).then_some(curve)
}

/// Returns the attention times of `rows`; `None` if there are none.
fn attention_times<'t>(
    rows: impl Iterator<Item = KernelRow<'t>>,
    phase: ForwardPassPhase,
) -> Option<AttentionTimeTable> {
    let root_axis = (phase == ForwardPassPhase::Prefill).then_some(1);
    let mut grid = AttentionTimeTable::with_square_root_axis(root_axis);
    let mut any = false;
    for row in rows {
        let [heads, batch, isl] = ["num_heads", "batch_size", "isl"].map(|c| row.count(c));
        let (Some(heads), Some(batch), Some(isl), Some(time)) =
            (heads, batch, isl, row.latency_ms())
        else {
            continue;
        };
        let point = match phase {
            ForwardPassPhase::Decode => [heads, batch, isl + row.count("step").unwrap_or(0)],
            ForwardPassPhase::Prefill => [heads, isl, batch],
        };
        grid.add_measured_point(point, time);
        any = true;
    }
    any.then_some(grid)
}

fn columns_text(key: &[(&str, &str)]) -> String {
    let parts: Vec<_> = key.iter().map(|(column, value)| format!("{column} {value}")).collect();
    parts.join(", ")
}

fn entry_or_default<V: Default>(list: &mut Vec<(u64, V)>, key: u64) -> &mut V {
    let at = list.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[at].1
}

fn read_yaml<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<T, AiConfiguratorError> {
    let wrong = |problem: String| AiConfiguratorError::File { file: file.to_owned(), problem };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))
}

fn folder_entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn folder_entry_names(folder: &Path) -> String {
    folder_entries(folder).join(", ")
}

type InputsByOutputs = Vec<(u64, Vec<u64>)>;

/// Backend version in PEP 440 order: release numbers, pre-release, post-release.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct BackendVersion(Vec<u64>, (i8, u64), u64);

fn parse_backend_version(text: &str) -> Option<BackendVersion> {
    let (text, post) = match text.split_once(".post") {
        Some((text, post)) => (text, post.parse::<u64>().ok()? + 1),
        None => (text, 0),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let numbers: Option<Vec<u64>> = numbers.split('.').map(|n| n.parse().ok()).collect();
    let mut numbers = numbers?;
    // 1.0 equals 1.0.0.
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    let before = ["a", "b", "rc"]
        .iter()
        .zip([-3, -2, -1])
        .find_map(|(word, rank)| Some((rank, rest.strip_prefix(word)?.parse().ok()?)));
    let before = match rest {
        "" => (0, 0),
        _ => before?,
    };
    Some(BackendVersion(numbers, before, post))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_in_python() {
        let ordered = ["0.5.6", "0.5.6.post2", "0.5.9", "0.5.10rc1", "0.5.10", "1.0.0", "1.0.1"];
        let releases = ordered.map(|version| parse_backend_version(version).expect("is a version"));
        assert!(releases.is_sorted(), "{releases:?}");
        assert!(parse_backend_version("1.0") == parse_backend_version("1.0.0"));
        assert_eq!(
            [parse_backend_version("nightly"), parse_backend_version("0.1-x")],
            [None, None]
        );
    }
}
