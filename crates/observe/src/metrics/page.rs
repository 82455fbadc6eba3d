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
use prometheus::proto::{Metric, MetricType};

use super::family::Family;
use super::series::{MetricCellCollector, MetricCellVec};
use super::settings::ApiServerCount;
use super::text::PrometheusTextWriter;

pub(super) struct MetricsPage {
    registry: Registry,
    vecs: Vec<Arc<MetricCellVec>>,
    api_servers: ApiServerCount,
}

impl MetricsPage {
    /// Creates the page of the given families, in their order; registers a Prometheus collector for
    /// each topic, and one for vllm-sim's own families.
    pub(super) fn new(
        api_servers: ApiServerCount,
        vecs: Vec<Arc<MetricCellVec>>,
        own: impl Collector + 'static,
    ) -> Self {
        let registry = Registry::new();
        let register = |collector: Box<dyn Collector>| {
            registry.register(collector).expect("the names of families in the list differ");
        };
        let mut by_topic = vecs.clone();
        by_topic.retain(|vec| !vec.family.is_own());
        by_topic.sort_by_key(|vec| vec.family.topic);
        for of_topic in by_topic.chunk_by(|a, b| a.family.topic == b.family.topic) {
            register(Box::new(MetricCellCollector(of_topic.to_vec())));
        }
        register(Box::new(own));
        Self { registry, vecs, api_servers }
    }

    /// Appends the text of `/metrics` to `out`.
    pub(super) fn write_metrics_page(&self, out: &mut String) {
        let mut families = self.registry.gather();
        for family in &mut families {
            family.mut_metric().sort_by_key(Metric::timestamp_ms);
        }
        let mut writer = PrometheusTextWriter::new(out, self.api_servers);
        for vec in &self.vecs {
            let Family { name, kind, added, absent_when_empty, .. } = *vec.family;
            let found = families.binary_search_by(|family| family.name().cmp(name));
            let metrics = found.map_or(&[][..], |index| families[index].get_metric());
            let is_empty = metrics.is_empty();
            let several = self.api_servers == ApiServerCount::Several;
            if is_empty && (absent_when_empty || (added && several)) {
                continue;
            }
            let help = &vec.desc.help;
            writer.write_family(name, help, kind, metrics, &vec.le);
            if let Some(created) = vec.created.as_ref().filter(|_| !(is_empty && added)) {
                writer.write_family(created, help, MetricType::GAUGE, metrics, &[]);
            }
        }
    }
}
