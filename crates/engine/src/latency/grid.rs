use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::BatchWork;
use super::float_array::FloatArray;
#[cfg(feature = "npz")]
use super::npz;
use super::polynomial::prompt_tokens_from_rounded_means;

/// Step times measured on a grid: prefill time by number of tokens, decode time by (tokens in the
/// KV cache, context length). Values are interpolated, and extrapolated linearly.
///
/// **Source:** dynamo-mocker 1.6.1 `src/common/perf_model.rs`.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimeGrid {
    prefill_tokens: Vec<f64>,
    prefill_ms: Vec<f64>,
    kv_tokens: Vec<f64>,
    context: Vec<f64>,
    /// Decode times in ms, row-major over `kv_tokens` and `context`.
    decode_ms: Vec<f64>,
}

/// Reports a problem with a file of measured step times.
#[derive(Debug, thiserror::Error)]
pub enum StepTimeGridError {
    /// The file of measured step times cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file of step times that cannot be read.
        path: PathBuf,
        /// Error of the operating system while reading the file of step times.
        error: std::io::Error,
    },
    /// The content of a file of measured step times is not a valid table of step times.
    #[error("{path}: {problem}")]
    Content {
        /// Path of the invalid file of step times.
        path: PathBuf,
        /// Description of the problem with the file's content.
        problem: String,
    },
}

/// Number of points per axis of the grid interpolated from a profiler's samples.
const RESAMPLED_POINTS: usize = 100;

impl StepTimeGrid {
    /// Opens measured step times: an `.npz` file with five tables, or a folder written by Dynamo's
    /// profiler.
    ///
    /// # Errors
    /// [`StepTimeGridError`] names the file and the problem.
    pub fn open(path: &Path) -> Result<Self, StepTimeGridError> {
        let wrong = |problem| StepTimeGridError::Content { path: path.to_owned(), problem };
        if !path.is_dir() {
            return Self::from_arrays(load_npz(path)?).map_err(wrong);
        }
        let prefill = read_profiler_measurement(path, "prefill")?;
        let decode = read_profiler_measurement(path, "decode")?;
        from_profiler_samples(&prefill, &decode).map_err(wrong)
    }

    fn from_arrays(mut arrays: BTreeMap<String, FloatArray>) -> Result<Self, String> {
        let mut take =
            |key: &str| arrays.remove(key).ok_or_else(|| format!("array {key:?} is missing"));
        let grid = Self {
            prefill_tokens: take("prefill_isl")?.values,
            prefill_ms: take("prefill_ttft_ms")?.values,
            kv_tokens: take("decode_active_kv_tokens")?.values,
            context: take("decode_context_length")?.values,
            decode_ms: Vec::new(),
        };
        let decode = take("decode_itl")?;
        let shape = [grid.kv_tokens.len(), grid.context.len()];
        if decode.shape != shape {
            return Err(format!("decode_itl has shape {:?}, must be {shape:?}", decode.shape));
        }
        if grid.prefill_ms.len() != grid.prefill_tokens.len() {
            return Err("prefill_isl and prefill_ttft_ms have different lengths".to_owned());
        }
        for (key, axis) in [
            ("prefill_isl", &grid.prefill_tokens),
            ("decode_active_kv_tokens", &grid.kv_tokens),
            ("decode_context_length", &grid.context),
        ] {
            if axis.is_empty() || !axis.is_sorted_by(|a, b| a < b) {
                return Err(format!("{key} must increase and have at least one entry"));
            }
        }
        Ok(Self { decode_ms: decode.values, ..grid })
    }

    /// Returns the time of a batch's prefill work in ms, at least 0.
    pub fn prefill_ms(&self, batch: &BatchWork) -> f64 {
        let tokens = prompt_tokens_from_rounded_means(batch);
        if tokens == 0 {
            return 0.0;
        }
        let (i, t) = locate_on_axis(&self.prefill_tokens, tokens as f64);
        let ms = interpolate_values(&self.prefill_ms, i, t);
        if ms.is_finite() { ms.max(0.0) } else { 0.0 }
    }

    /// Returns the time of a batch's decode work in ms, at least 1; 0 without decodes.
    pub fn decode_ms(&self, batch: &BatchWork) -> f64 {
        if batch.decodes == 0 {
            return 0.0;
        }
        let mean = batch.context / u64::from(batch.decodes);
        let (row, t) = locate_on_axis(&self.kv_tokens, batch.context as f64);
        let (column, u) = locate_on_axis(&self.context, mean as f64);
        let width = self.context.len();
        let line = |row: usize| {
            let row = row.min(self.kv_tokens.len() - 1);
            interpolate_values(&self.decode_ms[row * width..(row + 1) * width], column, u)
        };
        let low = line(row);
        let ms = if t == 0.0 { low } else { low + (line(row + 1) - low) * t };
        if ms.is_finite() { ms.max(1.0) } else { 1.0 }
    }
}

/// Returns the index of the interval of `axis` for `x`, and the relative position of `x` in the
/// interval. The position is below 0 or above 1 beyond the ends of the axis.
fn locate_on_axis(axis: &[f64], x: f64) -> (usize, f64) {
    if axis.len() < 2 {
        return (0, 0.0);
    }
    let i = axis.partition_point(|&a| a <= x).clamp(1, axis.len() - 1) - 1;
    (i, (x - axis[i]) / (axis[i + 1] - axis[i]))
}

fn interpolate_values(values: &[f64], i: usize, t: f64) -> f64 {
    match values.get(i + 1) {
        Some(next) => values[i] + (next - values[i]) * t,
        None => values[i],
    }
}

#[cfg(not(feature = "npz"))]
fn load_npz(path: &Path) -> Result<BTreeMap<String, FloatArray>, StepTimeGridError> {
    Err(StepTimeGridError::Content {
        path: path.to_owned(),
        problem: "this build cannot read .npz (feature `npz`)".to_owned(),
    })
}

#[cfg(feature = "npz")]
fn load_npz(path: &Path) -> Result<BTreeMap<String, FloatArray>, StepTimeGridError> {
    let bytes = std::fs::read(path)
        .map_err(|error| StepTimeGridError::Io { path: path.to_owned(), error })?;
    npz::read_npz(&bytes)
        .map_err(|problem| StepTimeGridError::Content { path: path.to_owned(), problem })
}

/// Reads the measurements of a `phase` from a profiler's folder: from
/// `selected_<phase>_interpolation/raw_data.npz` if that exists, otherwise from
/// `<phase>_raw_data.json`.
fn read_profiler_measurement(
    folder: &Path,
    phase: &str,
) -> Result<BTreeMap<String, FloatArray>, StepTimeGridError> {
    let packed = folder.join(format!("selected_{phase}_interpolation/raw_data.npz"));
    if packed.exists() {
        return load_npz(&packed);
    }
    let path = folder.join(format!("{phase}_raw_data.json"));
    let text = std::fs::read_to_string(&path)
        .map_err(|error| StepTimeGridError::Io { path: path.clone(), error })?;
    let data: BTreeMap<String, Value> = serde_json::from_str(&text)
        .map_err(|error| StepTimeGridError::Content { path, problem: error.to_string() })?;
    let flat = |value: &Value| match value {
        Value::Array(list) => list.iter().filter_map(Value::as_f64).collect(),
        other => other.as_f64().into_iter().collect::<Vec<_>>(),
    };
    let array = |value: &Value| {
        let values = flat(value);
        FloatArray { shape: vec![values.len()], values }
    };
    Ok(data.iter().map(|(key, value)| (key.clone(), array(value))).collect())
}

/// Converts a profiler's samples to a regular grid by linear interpolation, as Dynamo does.
///
/// **Source:** `dynamo/mocker/utils/planner_profiler_perf_data_converter.py`.
fn from_profiler_samples(
    prefill: &BTreeMap<String, FloatArray>,
    decode: &BTreeMap<String, FloatArray>,
) -> Result<StepTimeGrid, String> {
    let take = |arrays: &BTreeMap<String, FloatArray>, key: &str| match arrays.get(key) {
        Some(array) if !array.values.is_empty() => Ok(array.values.clone()),
        _ => Err(format!("{key:?} has no numbers")),
    };
    let (isl, ttft) = (take(prefill, "prefill_isl")?, take(prefill, "prefill_ttft")?);
    let usage = take(decode, "x_kv_usage")?;
    let context = take(decode, "y_context_length")?;
    let itl = take(decode, "z_itl")?;
    let max_kv = take(decode, "max_kv_tokens")?[0];
    if isl.len() != ttft.len() || usage.len() != context.len() || usage.len() != itl.len() {
        return Err("the lists of one table have different lengths".to_owned());
    }
    let ttft_fit = fit_plane(&isl.iter().map(|&x| [x, 0.0]).collect::<Vec<_>>(), &ttft);
    let samples: Vec<[f64; 2]> = usage
        .iter()
        .zip(&context)
        .map(|(&usage, &context)| {
            let kv = (usage * max_kv).round();
            [(kv / context).round().max(1.0), kv]
        })
        .collect();
    let itl_fit = fit_plane(&samples, &itl);
    let line = |from: f64, to: f64| -> Vec<f64> {
        let step = (to - from) / (RESAMPLED_POINTS - 1) as f64;
        (0..RESAMPLED_POINTS).map(|i| from + step * i as f64).collect()
    };
    let least = isl.iter().copied().fold(f64::INFINITY, f64::min);
    let most = isl.iter().copied().fold(0.0, f64::max);
    let prefill_tokens = line(least, most);
    let kv_tokens = line(0.0, max_kv);
    let contexts = line(1.0, context.iter().copied().fold(1.0, f64::max));
    let decode_ms = kv_tokens
        .iter()
        .flat_map(|&kv| {
            contexts.iter().map(move |&context| {
                itl_fit[0] + itl_fit[1] * (kv / context).max(1.0) + itl_fit[2] * kv
            })
        })
        .collect();
    let grid = StepTimeGrid {
        prefill_ms: prefill_tokens.iter().map(|x| ttft_fit[0] + ttft_fit[1] * x).collect(),
        prefill_tokens,
        kv_tokens,
        context: contexts,
        decode_ms,
    };
    let increases = |axis: &[f64]| axis.is_sorted_by(|a, b| a < b);
    if [&grid.prefill_tokens, &grid.kv_tokens, &grid.context].into_iter().all(|a| increases(a)) {
        Ok(grid)
    } else {
        Err("the samples span no range".to_owned())
    }
}

/// Fits `y = b0 + b1 x1 + b2 x2` by least squares with centered normal equations. A direction
/// without variation gets a slope of 0.
fn fit_plane(x: &[[f64; 2]], y: &[f64]) -> [f64; 3] {
    let n = y.len() as f64;
    let mean = |f: &dyn Fn(usize) -> f64| (0..y.len()).map(f).sum::<f64>() / n;
    let (m1, m2, my) = (mean(&|i| x[i][0]), mean(&|i| x[i][1]), mean(&|i| y[i]));
    let [mut s11, mut s12, mut s22, mut s1y, mut s2y] = [0.0; 5];
    for (x, y) in x.iter().zip(y) {
        let (a, b, c) = (x[0] - m1, x[1] - m2, y - my);
        s11 += a * a;
        s12 += a * b;
        s22 += b * b;
        s1y += a * c;
        s2y += b * c;
    }
    let det = s11 * s22 - s12 * s12;
    let (b1, b2) = if det > 1e-9 * s11 * s22 {
        ((s1y * s22 - s2y * s12) / det, (s2y * s11 - s1y * s12) / det)
    } else if s11 > 0.0 {
        (s1y / s11, 0.0)
    } else if s22 > 0.0 {
        (0.0, s2y / s22)
    } else {
        (0.0, 0.0)
    };
    [my - b1 * m1 - b2 * m2, b1, b2]
}

#[cfg(feature = "npz")]
#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> StepTimeGrid {
        let file = npz::tests::write_npz(&[
            ("prefill_isl", &[3], &[100.0, 200.0, 400.0]),
            ("prefill_ttft_ms", &[3], &[10.0, 20.0, 60.0]),
            ("decode_active_kv_tokens", &[2], &[0.0, 1000.0]),
            ("decode_context_length", &[2], &[100.0, 200.0]),
            ("decode_itl", &[2, 2], &[2.0, 3.0, 6.0, 9.0]),
        ]);
        StepTimeGrid::from_arrays(npz::read_npz(&file).unwrap()).unwrap()
    }

    #[test]
    fn prefill_time_is_interpolated_and_extrapolated() {
        let ms = |tokens| {
            let mut batch = BatchWork::default();
            batch.add_prompt_chunk(tokens, 0, None);
            grid().prefill_ms(&batch)
        };
        assert_eq!([150, 300, 500, 50, 0].map(ms), [15.0, 40.0, 80.0, 5.0, 0.0]);
    }

    #[test]
    fn decode_time_is_bilinear_with_a_minimum() {
        let ms = |contexts: &[u32]| {
            let mut batch = BatchWork::default();
            for &context in contexts {
                batch.add_decoding_sequence(context, 1, None);
            }
            grid().decode_ms(&batch)
        };
        // 500 tokens of mean length 100: halfway between 2 and 6.
        assert_eq!(ms(&[100; 5]), 4.0);
        // 1000 tokens of mean length 142, rounded down.
        assert!((ms(&[150, 150, 100, 200, 150, 150, 100]) - 7.26).abs() < 1e-12);
        let low = StepTimeGrid { decode_ms: vec![0.1; 4], ..grid() };
        let mut batch = BatchWork::default();
        batch.add_decoding_sequence(100, 1, None);
        assert_eq!(low.decode_ms(&batch), 1.0);
    }

    #[test]
    fn profiler_samples_are_interpolated_linearly() {
        let list =
            |values: &[f64]| FloatArray { shape: vec![values.len()], values: values.to_vec() };
        let prefill = BTreeMap::from([
            ("prefill_isl".to_owned(), list(&[100.0, 300.0])),
            ("prefill_ttft".to_owned(), list(&[10.0, 30.0])),
        ]);
        let decode = BTreeMap::from([
            ("x_kv_usage".to_owned(), list(&[0.1, 0.5, 1.0])),
            ("y_context_length".to_owned(), list(&[100.0, 500.0, 250.0])),
            ("z_itl".to_owned(), list(&[3.0, 7.0, 14.0])),
            ("max_kv_tokens".to_owned(), list(&[1000.0])),
        ]);
        let grid = from_profiler_samples(&prefill, &decode).unwrap();
        let mut batch = BatchWork::default();
        batch.add_prompt_chunk(200, 0, None);
        assert!((grid.prefill_ms(&batch) - 20.0).abs() < 1e-9);
    }
}
