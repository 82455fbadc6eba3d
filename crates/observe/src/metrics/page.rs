//! Page of `/metrics`: the registry of a server's collectors, and the order of the families.
//!
//! [`Registry::gather`] sorts families by name and series by label values, and leaves out families
//! without series. The page restores the order of the list of families, and the order of the
//! series, whose position collectors store as timestamp: the text has no timestamps. The types of
//! `prometheus` have no creation times; counters, histograms and summaries carry theirs as gauge.
//!
//! **Source:** prometheus_client 0.26, `exposition.py` (single process, with `_created` families)
//! and `multiprocess.py` (several API servers: no `_created`, families grouped by type, the sum of
//! a histogram first, no family without series).

use std::sync::Arc;

use prometheus::Registry;
use prometheus::core::Collector;
use prometheus::proto::MetricType;

use super::family::{EmptyFamilyRendering, Family, Topic};
use super::number::format_prometheus_float;
use super::series::{MetricCellCollector, MetricCellVec};
use super::settings::{ApiServerCount, MetricsCompat, MetricsSettings};
use super::text::PrometheusTextWriter;

pub(super) struct MetricsPage {
    registry: Registry,
    entries: Vec<Entry>,
    /// Indices of the page's entries (metric families), sorted by family name.
    by_name: Vec<usize>,
    api_servers: ApiServerCount,
}

/// Metric family on the page of `/metrics`.
struct Entry {
    vec: Arc<MetricCellVec>,
    /// Name of the `_created` family, which exposes the creation times of the metric family's
    /// series.
    created: Option<String>,
    /// Labels `le` of the metric family's histogram buckets.
    le: Vec<String>,
}

impl MetricsPage {
    /// Creates the page of the given families, in their order; registers a Prometheus collector for
    /// each topic, and one for vllm-sim's own families.
    pub(super) fn new(
        settings: &MetricsSettings,
        mut vecs: Vec<Arc<MetricCellVec>>,
        own: impl Collector + 'static,
    ) -> Self {
        let api_servers = settings.api_servers;
        let entries = vecs.iter().map(|vec| {
            let created = vec.family.creation_time_family_name();
            let created = created.filter(|_| api_servers == ApiServerCount::One);
            Entry { created, le: le_labels(vec.family, settings), vec: vec.clone() }
        });
        let entries: Vec<_> = entries.collect();
        let mut by_name: Vec<_> = (0..entries.len()).collect();
        by_name.sort_by_key(|index| vecs[*index].family.name);
        let registry = Registry::new();
        let register = |collector: Box<dyn Collector>| {
            let registered = registry.register(collector);
            registered.expect("the names of families in the list differ");
        };
        vecs.retain(|vec| vec.family.topic != Topic::Own);
        vecs.sort_by_key(|vec| vec.family.topic);
        for of_topic in vecs.chunk_by(|a, b| a.family.topic == b.family.topic) {
            register(Box::new(MetricCellCollector(of_topic.to_vec())));
        }
        register(Box::new(own));
        Self { registry, entries, by_name, api_servers }
    }

    /// Appends the text of `/metrics` to `out`.
    pub(super) fn write_metrics_page(&self, out: &mut String) {
        let families = self.registry.gather();
        let mut gathered = families.iter().peekable();
        let mut in_order = vec![None; self.entries.len()];
        for index in &self.by_name {
            let name = self.entries[*index].vec.family.name;
            in_order[*index] = gathered.next_if(|family| family.name() == name);
        }
        let mut writer = PrometheusTextWriter::new(out, self.api_servers);
        for (Entry { vec, created, le }, found) in self.entries.iter().zip(in_order) {
            let Family { name, kind, when_empty, .. } = *vec.family;
            let (header, created_header) = match (found, when_empty) {
                (Some(_), _) | (None, EmptyFamilyRendering::Header) => (true, true),
                (None, EmptyFamilyRendering::Absent) => (false, false),
                (None, EmptyFamilyRendering::HeaderOfOneServer) => {
                    (self.api_servers == ApiServerCount::One, false)
                }
            };
            if header {
                writer.write_header(name, &vec.desc.help, kind);
            }
            if let Some(family) = found {
                writer.write_samples(family, le, created.as_deref());
            }
            let Some(created) = created.as_ref().filter(|_| created_header) else {
                continue;
            };
            writer.write_header(created, &vec.desc.help, MetricType::GAUGE);
            writer.write_creation_times();
        }
    }
}

/// Returns the labels `le` of the buckets of a metric family.
///
/// Whole-number bounds are formatted as in Python (`1.0`); with llm-d's rules as in Go (`1`), in
/// families that exist from the start.
fn le_labels(family: &Family, settings: &MetricsSettings) -> Vec<String> {
    let whole =
        settings.compat == MetricsCompat::Llmd && family.when_empty == EmptyFamilyRendering::Header;
    let bounds = family.bucket_bounds(settings);
    let texts = bounds.iter().map(|bound| {
        let text = format_prometheus_float(*bound);
        let bound = text.strip_suffix(".0").filter(|_| whole).unwrap_or(&text);
        format!("le=\"{bound}\"")
    });
    texts.chain(["le=\"+Inf\"".to_owned()]).collect()
}
