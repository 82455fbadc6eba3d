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

/// LoRA adapters in the memory of one engine, with their metric series.
pub(super) struct ResidentLoraAdapters {
    slots: LoraSlotCounts,
    /// LoRA adapters in CPU memory, the least recently used first, and whether each is on the GPU too.
    adapters: Vec<(Arc<str>, bool)>,
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
        let adapters = Self { slots, adapters: Vec::new(), cell_vec: vec, engine };
        adapters.show();
        adapters
    }

    /// Loads an adapter, or marks it as used; running adapters are never evicted.
    ///
    /// vLLM uses the adapters of all running requests again in every step.
    pub(super) fn use_lora_adapter(&mut self, name: &Arc<str>, is_running: impl Fn(&str) -> bool) {
        let adapters = &mut self.adapters;
        let mut used = (name.clone(), false);
        if let Some(known) = adapters.iter().position(|(adapter, _)| adapter == name) {
            used = adapters.remove(known);
        } else if adapters.len() >= self.slots.cpu {
            let idle = adapters.iter().position(|(adapter, _)| !is_running(adapter));
            let Some(idle) = idle else { return };
            adapters.remove(idle);
        }
        if self.count_on_gpu() < self.slots.gpu {
            used.1 = true;
        } else if let Some((_, evicted)) =
            self.adapters.iter_mut().find(|(adapter, on_gpu)| *on_gpu && !is_running(adapter))
        {
            (*evicted, used.1) = (false, true);
        }
        self.adapters.push(used);
        self.show();
    }

    pub(super) fn clear_resident_adapters(&mut self) {
        self.adapters.clear();
        self.show();
    }

    fn count_on_gpu(&self) -> usize {
        self.adapters.iter().filter(|(_, on_gpu)| *on_gpu).count()
    }

    /// Exposes the LoRA adapters of the engine in place of the previously exposed ones.
    fn show(&self) {
        let EngineMetrics { cells, settings, rank, .. } = &*self.engine;
        let (engine, model_name) = (&*settings.engines[*rank], &*settings.model_name);
        cells[Id::GpuLoras].set(self.count_on_gpu() as f64);
        cells[Id::CpuLoras].set(self.adapters.len() as f64);
        cells[Id::MaxGpuLoras].set(self.slots.gpu as f64);
        let rows = self.adapters.iter().map(|(name, on_gpu)| {
            let level = if *on_gpu { "gpu" } else { "cpu" };
            // No route pins an adapter.
            [&**name, engine, level, model_name, "false"]
        });
        let rows: Vec<[&str; 5]> = rows.collect();
        self.cell_vec.retain_series(|one| {
            let shows = |row: &[&str; 5]| one.label_values().eq(row.iter().copied());
            one.label_values().nth(1) != Some(engine) || rows.iter().any(shows)
        });
        for row in &rows {
            self.cell_vec.with_label_values(row, 1.0).set(1.0);
        }
    }
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
        let names = |least: bool| {
            let those = cache.adapters.iter().filter(|(_, on_gpu)| *on_gpu >= least);
            those.map(|(name, _)| &**name).collect::<String>()
        };
        (names(true), names(false))
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
