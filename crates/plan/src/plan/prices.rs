//! Reads the GPU prices of `--prices`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use vllm_sim_command_line::refuse;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GpuPrices {
    pub(super) date: String,
    pub(super) currency: String,
    /// Price of a GPU hour, by the GPU name that `--gpu` accepts.
    gpu_hour: BTreeMap<String, f64>,
}

impl GpuPrices {
    /// Reads a YAML file of GPU prices.
    ///
    /// # Errors
    /// Returns an error for an unreadable file or a price that is not above 0.
    pub(super) fn read_gpu_prices_file(file: &Path) -> Result<Self> {
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("--prices: {shown}"))?;
        let prices: Self =
            serde_saphyr::from_str(&text).with_context(|| format!("--prices: {shown}"))?;
        if !is_date(&prices.date) {
            refuse!("--prices: {shown}: date is {:?}, must be like 2026-11-01", prices.date);
        }
        for (gpu, price) in &prices.gpu_hour {
            if vllm_sim_engine::latency::find_gpu(gpu).is_none() {
                refuse!(
                    "--prices: {shown}: gpu_hour has {gpu:?}, which is no GPU that --gpu knows; \
                     `vllm-sim explain --list` has their names"
                );
            }
            if !(price.is_finite() && *price > 0.0) {
                refuse!("--prices: {shown}: gpu_hour of {gpu} is {price}, must be above 0");
            }
        }
        Ok(prices)
    }

    /// Returns the price of an hour of the GPU `gpu`.
    ///
    /// # Errors
    /// Returns a usage error with the known GPUs if the file has no price for this one.
    pub(super) fn hourly_price_of(&self, gpu: Option<&str>) -> Result<f64> {
        let Some(gpu) = gpu else {
            refuse!("--prices needs --gpu");
        };
        let mut known = self.gpu_hour.iter();
        match known.find(|(name, _)| name.eq_ignore_ascii_case(gpu)) {
            Some((_, price)) => Ok(*price),
            None => {
                let names: Vec<&str> = self.gpu_hour.keys().map(String::as_str).collect();
                refuse!("--prices: no gpu_hour for {gpu:?}, only for {}", names.join(", "))
            }
        }
    }
}

/// Returns whether a text is a date such as `2026-11-01`.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else {
        return false;
    };
    let is_number = |text: &str, digits: usize, range: RangeInclusive<u32>| {
        let is_plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        is_plain && text.parse().is_ok_and(|number| range.contains(&number))
    };
    is_number(year, 4, 0..=9999) && is_number(month, 2, 1..=12) && is_number(day, 2, 1..=31)
}
