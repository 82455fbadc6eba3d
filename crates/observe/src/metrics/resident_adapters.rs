//! Families of LoRA adapters that an engine holds in memory, with or without requests.
//!
//! GPU and CPU memory are two LRU caches. Every adapter on the GPU is also in CPU memory. Unloading
//! an adapter from the API server leaves it in both until another one evicts it.
//!
//! **Source:** vllm-project/vllm#54830, `tests/v1/metrics` and `rust/src/vllm-engine`; caches: vLLM 0.33
//! `vllm/lora/{worker_manager,model_manager}.py`.

use std::sync::Arc;

use super::engine::EngineMetrics;
use super::families::Id;
use super::series::MetricCellVec;

/// Maximum numbers of LoRA adapters in the GPU and CPU memory of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraSlotCounts {
    /// Number of slots for LoRA adapters on the GPU, `--max-loras`.
    pub gpu: usize,
    /// Maximum number of LoRA adapters in CPU memory, `--max-cpu-loras`; at least [`Self::gpu`].
    pub cpu: usize,
}

/// LoRA adapters in the GPU and CPU memory of one engine, the least recently used first, with their
/// metric series.
pub(super) struct ResidentLoraAdapters {
    slots: LoraSlotCounts,
    gpu: Vec<Arc<str>>,
    cpu: Vec<Arc<str>>,
    /// Metric series of the LoRA adapters of all engines.
    cell_vec: Arc<MetricCellVec>,
    engine: Arc<EngineMetrics>,
}

impl ResidentLoraAdapters {
    pub(super) fn new(
        slots: LoraSlotCounts,
        vec: Arc<MetricCellVec>,
        engine: Arc<EngineMetrics>,
    ) -> Self {
        let adapters = Self { slots, gpu: Vec::new(), cpu: Vec::new(), cell_vec: vec, engine };
        adapters.show();
        adapters
    }

    /// Loads an adapter, or marks it as used; running adapters are never evicted.
    ///
    /// vLLM uses the adapters of all running requests again in every step.
    pub(super) fn use_lora_adapter(&mut self, name: &Arc<str>, is_running: impl Fn(&str) -> bool) {
        if let Some(evicted) = touch(&mut self.cpu, name, self.slots.cpu, &is_running) {
            self.gpu.retain(|adapter| *adapter != evicted);
        }
        if self.cpu.contains(name) {
            touch(&mut self.gpu, name, self.slots.gpu, &is_running);
        }
        self.show();
    }

    pub(super) fn clear_resident_adapters(&mut self) {
        self.gpu.clear();
        self.cpu.clear();
        self.show();
    }

    /// Exposes the LoRA adapters of the engine in place of the previously exposed ones.
    fn show(&self) {
        let EngineMetrics { cells, settings, rank, .. } = &*self.engine;
        let (engine, model_name) = (&*settings.engines[*rank], &*settings.model_name);
        cells[Id::GpuLoras].set(self.gpu.len() as f64);
        cells[Id::CpuLoras].set(self.cpu.len() as f64);
        cells[Id::MaxGpuLoras].set(self.slots.gpu as f64);
        let rows = self.cpu.iter().map(|name| {
            let level = if self.gpu.contains(name) { "gpu" } else { "cpu" };
            // No route pins an adapter.
            [&**name, engine, level, model_name, "false"]
        });
        let rows: Vec<[&str; 5]> = rows.collect();
        self.cell_vec.retain_series(|one| {
            one.label_values[1] != engine || rows.iter().any(|row| one.label_values == *row)
        });
        for row in &rows {
            self.cell_vec.with_label_values(row, 1.0).set(1.0);
        }
    }
}

/// Moves a LoRA adapter to the end of a list of at most `most` adapters; returns the adapter
/// evicted for it.
fn touch(
    list: &mut Vec<Arc<str>>,
    name: &Arc<str>,
    most: usize,
    is_running: impl Fn(&str) -> bool,
) -> Option<Arc<str>> {
    if let Some(at) = list.iter().position(|adapter| adapter == name) {
        let adapter = list.remove(at);
        list.push(adapter);
        return None;
    }
    let mut evicted = None;
    if list.len() >= most {
        let idle = list.iter().position(|adapter| !is_running(adapter))?;
        evicted = Some(list.remove(idle));
    }
    list.push(name.clone());
    evicted
}

#[cfg(test)]
mod tests {
    use super::super::families::FAMILIES;
    use super::super::settings::MetricsSettings;
    use super::*;

    /// Returns the adapters on the GPU and in CPU memory after these uses; `running` cannot be
    /// evicted.
    fn after(uses: &[&str], running: &str) -> (String, String) {
        let settings = MetricsSettings { engines: vec!["0".to_owned()], ..Default::default() };
        let vecs = MetricCellVec::from_family_list(FAMILIES, &settings);
        let engine = Arc::new(EngineMetrics::new(&vecs, Arc::new(settings), 0));
        let loaded = vecs[Id::LoraLoaded as usize].clone();
        let slots = LoraSlotCounts { gpu: 2, cpu: 3 };
        let mut cache = ResidentLoraAdapters::new(slots, loaded, engine);
        for name in uses {
            cache.use_lora_adapter(&Arc::from(*name), |adapter| adapter == running);
        }
        let list = |names: &[Arc<str>]| names.iter().map(|name| &**name).collect::<String>();
        (list(&cache.gpu), list(&cache.cpu))
    }

    fn pair(gpu: &str, cpu: &str) -> (String, String) {
        (gpu.to_owned(), cpu.to_owned())
    }

    #[test]
    fn the_least_recently_used_adapter_leaves_each_memory() {
        assert_eq!(after(&["a", "b"], ""), pair("ab", "ab"));
        assert_eq!(after(&["a", "b", "c"], ""), pair("bc", "abc"));
        assert_eq!(after(&["a", "b", "c", "a"], ""), pair("ca", "bca"));
        assert_eq!(after(&["a", "b", "c", "d"], ""), pair("cd", "bcd"));
    }

    #[test]
    fn a_running_adapter_stays() {
        assert_eq!(after(&["a", "b", "c", "d"], "a"), pair("ad", "acd"));
    }
}
