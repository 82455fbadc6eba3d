//! Mean, median and percentiles of measured values.

/// Returns the mean of values; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    let n = values.len();
    (n > 0).then(|| values.iter().sum::<f64>() / n as f64)
}

/// Returns the quantile `fraction` (0 to 1) of sorted values, interpolated linearly between the two
/// nearest as in numpy; `None` without values.
pub fn percentile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = fraction * last as f64;
    let low = sorted[at as usize];
    let high = sorted[(at as usize + 1).min(last)];
    Some(low + (high - low) * at.fract())
}

/// Returns the median of values in any order; `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.5)
}
