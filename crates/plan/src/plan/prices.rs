use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use vllm_sim_command_line::refuse;

/// What GPUs cost, as the user's table has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prices {
    /// When the prices were those.
    pub(super) date: String,
    /// What they are counted in.
    pub(super) currency: String,
    /// Of an hour, by the name that `--gpu` takes.
    gpu_hour: BTreeMap<String, f64>,
}

impl Prices {
    /// Reads a table.
    ///
    /// # Errors
    /// What cannot be read, and a price that is none.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("--prices: {shown}"))?;
        let prices: Self =
            serde_saphyr::from_str(&text).with_context(|| format!("--prices: {shown}"))?;
        for (gpu, price) in &prices.gpu_hour {
            if !(price.is_finite() && *price > 0.0) {
                refuse!("--prices: {shown}: gpu_hour of {gpu} is {price}, must be above 0");
            }
        }
        Ok(prices)
    }

    /// The price of an hour of this GPU.
    ///
    /// # Errors
    /// That the table does not have it, and what it has.
    pub(super) fn of(&self, gpu: Option<&str>) -> Result<f64> {
        let Some(gpu) = gpu else {
            refuse!("--prices needs --gpu");
        };
        let mut known = self.gpu_hour.iter();
        match known.find(|(name, _)| name.eq_ignore_ascii_case(gpu)) {
            Some((_, price)) => Ok(*price),
            None => {
                let names: Vec<&str> = self.gpu_hour.keys().map(String::as_str).collect();
                refuse!(
                    "--prices: there is no gpu_hour of {gpu:?}, only of {}",
                    names.join(", ")
                )
            }
        }
    }
}
