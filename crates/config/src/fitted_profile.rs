//! Warnings about fitted step times that are used for another deployment.

use super::flags::engine::{GPU, LATENCY_COEFFICIENTS};
use super::flags::model::MODEL;
use super::layers::{ConfigLayer, FlagValueSource};
use vllm_sim_engine::latency::find_gpu;

/// Model and GPU for which `vllm-sim calibrate` fitted the step times in a file.
pub(super) struct FittedProfile {
    file: String,
    model: Option<String>,
    gpu: Option<String>,
}

impl FittedProfile {
    /// Returns the profile in a file of settings; `None` for a file without fitted step times.
    pub(super) fn from_config_file(file: &str, settings: &ConfigLayer) -> Option<Self> {
        settings.settings.get(LATENCY_COEFFICIENTS.name)?;
        let value = |name: &str| settings.settings.get(name)?.values.last().cloned();
        Some(Self { file: file.to_owned(), model: value(MODEL.name), gpu: value(GPU.name) })
    }

    /// Returns a warning if the step times of the profile, which `merged` has, are used for another
    /// model or GPU.
    pub(super) fn other_deployment_warning(
        &self,
        merged: &ConfigLayer,
        (model, gpu): (&str, Option<&str>),
    ) -> Option<String> {
        let source = FlagValueSource::File(self.file.clone());
        let used = merged.settings.get(LATENCY_COEFFICIENTS.name);
        used.filter(|used| used.source == source)?;
        let gpu_name =
            |gpu: &str| find_gpu(gpu).map_or_else(|| gpu.to_owned(), |it| it.name.into());
        let [fitted_gpu, used_gpu] = [self.gpu.as_deref(), gpu].map(|gpu| gpu.map(gpu_name));
        let differs =
            [(self.model.as_deref(), Some(model)), (fitted_gpu.as_deref(), used_gpu.as_deref())];
        let differs =
            differs.into_iter().filter(|(fitted, used)| fitted.is_some() && fitted != used);
        let (fitted, used): (Vec<_>, Vec<_>) = differs.unzip();
        let list = |names: Vec<Option<&str>>| {
            names.into_iter().map(|name| name.unwrap_or("no GPU")).collect::<Vec<_>>().join(", ")
        };
        (!fitted.is_empty()).then(|| {
            format!(
                "{}: its step times were fitted for {}, and are used for {}",
                self.file,
                list(fitted),
                list(used)
            )
        })
    }
}
