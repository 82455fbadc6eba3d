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
use super::number::format_float;
use super::series::{MetricCellCollector, MetricCellVec};
use super::settings::{ApiServerCount, MetricsCompat, MetricsSettings};
use super::text::{PrometheusTextWriter, help_and_type_lines};

pub(super) struct MetricsPage {
    registry: Registry,
    entries: Vec<Entry>,
    api_servers: ApiServerCount,
}

/// Metric family on the page of `/metrics`, with the text around its samples.
struct Entry {
    family: &'static Family,
    /// HELP and TYPE lines of the metric family.
    header: String,
    /// Name of the family of creation times, and its HELP and TYPE lines.
    created: Option<(String, String)>,
    /// Labels `le` of the metric family's histogram buckets.
    le: Vec<String>,
    when_empty: EmptyFamilyRendering,
}

impl MetricsPage {
    /// Registers a Prometheus collector for each topic, and one for vllm-sim's own families.
    pub(super) fn new(
        settings: &MetricsSettings,
        families: &[&'static Family],
        vecs: &[Arc<MetricCellVec>],
        own: impl Collector + 'static,
    ) -> Self {
        let registry = Registry::new();
        let register = |collector: Box<dyn Collector>| {
            let registered = registry.register(collector);
            registered.expect("the names of families in the list differ");
        };
        let shown =
            vecs.iter().filter(|vec| families.iter().any(|one| one.name == vec.family.name));
        let mut vecs: Vec<_> =
            shown.filter(|vec| vec.family.topic != Topic::Own).cloned().collect();
        vecs.sort_by_key(|vec| vec.family.topic);
        for of_topic in vecs.chunk_by(|a, b| a.family.topic == b.family.topic) {
            register(Box::new(MetricCellCollector(of_topic.to_vec())));
        }
        register(Box::new(own));
        let entries = families.iter().map(|family| Entry::new(family, settings));
        Self { registry, entries: entries.collect(), api_servers: settings.api_servers }
    }

    /// Appends the text of `/metrics` to `out`.
    pub(super) fn write(&self, out: &mut String) {
        let families = self.registry.gather();
        let mut writer = PrometheusTextWriter::new(out, self.api_servers);
        for entry in &self.entries {
            let name = entry.family.name;
            let found = families.binary_search_by(|family| family.name().cmp(name)).ok();
            let found = found.map(|index| &families[index]);
            if found.is_some() || entry.when_empty != EmptyFamilyRendering::Absent {
                writer.out.push_str(&entry.header);
            }
            if let Some(family) = found {
                writer.write_samples(family, &entry.le);
            }
            if let Some((name, header)) = &entry.created {
                if found.is_some() || entry.when_empty == EmptyFamilyRendering::Header {
                    writer.out.push_str(header);
                }
                if let Some(family) = found {
                    writer.write_creation_times(family, name);
                }
            }
        }
    }
}

impl Entry {
    fn new(family: &'static Family, settings: &MetricsSettings) -> Self {
        let one = settings.api_servers == ApiServerCount::One;
        let created = family.creation_time_family_name().filter(|_| one);
        Self {
            family,
            header: help_and_type_lines(family.name, family.help_text(settings), family.kind),
            created: created.map(|name| {
                let header =
                    help_and_type_lines(&name, family.help_text(settings), MetricType::GAUGE);
                (name, header)
            }),
            le: le_labels(family, settings),
            when_empty: match family.when_empty {
                EmptyFamilyRendering::HeaderOfOneServer if !one => EmptyFamilyRendering::Absent,
                when_empty => when_empty,
            },
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
        let text = format_float(*bound);
        let bound = text.strip_suffix(".0").filter(|_| whole).unwrap_or(&text);
        format!("le=\"{bound}\"")
    });
    texts.chain(["le=\"+Inf\"".to_owned()]).collect()
}
