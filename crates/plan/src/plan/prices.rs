//! Reads the GPU prices of `--prices`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::worker_count::{WorkerCountByKind, gpus_by_pool};
use vllm_sim_command_line::refuse;
use vllm_sim_replay_cli::WorkerPools;

/// Prices of an hour of a GPU of the prefill workers, and of a GPU of all other workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HourlyGpuPrices {
    prefill: f64,
    serving: f64,
}

impl HourlyGpuPrices {
    /// A price of 1 for each GPU, so that the cost of a deployment is its number of GPUs.
    pub(super) const COUNTED: Self = Self { prefill: 1.0, serving: 1.0 };

    /// Returns the cost of an hour of the workers; `group` has the engines of one worker or of one
    /// prefill/decode group.
    pub(super) fn cost_per_hour(self, group: &WorkerPools, workers: WorkerCountByKind) -> f64 {
        let (prefill, serving) = gpus_by_pool(group, workers);
        self.prefill * f64::from(prefill) + self.serving * f64::from(serving)
    }
}

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

    /// Returns the prices of the GPUs of a deployment.
    ///
    /// # Errors
    /// Returns a usage error for workers without `--gpu`, and one with the known GPUs if the file
    /// has no price for one.
    pub(super) fn hourly_prices_of(&self, pools: &WorkerPools) -> Result<HourlyGpuPrices> {
        let (prefill, serving) = &pools.gpu_names;
        let serving = self.hourly_price_of(serving.as_deref())?;
        let prefill = match pools.prefill {
            Some(_) => self.hourly_price_of(prefill.as_deref())?,
            None => serving,
        };
        Ok(HourlyGpuPrices { prefill, serving })
    }

    fn hourly_price_of(&self, gpu: Option<&str>) -> Result<f64> {
        let Some(gpu) = gpu else {
            refuse!("--prices needs --gpu for all workers");
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
