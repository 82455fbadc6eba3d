//! Page of `/metrics`: the registry of a server's collectors, and the order of the families.
//!
//! [`Registry::gather`] sorts families by name and series by label values, and leaves out families
//! without series. The page restores the order of the list of families, and the order of the
//! series, whose position collectors store as timestamp: the text has no timestamps.
//!
//! **Source:** prometheus_client 0.26, `exposition.py` (single process, with `_created` families)
//! and `multiprocess.py` (several API servers: no `_created`, families grouped by type, the sum of
//! a histogram first, no family without series).

use std::sync::Arc;

use prometheus::Registry;
use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricType};

use super::families::FAMILIES;
use super::family::{Family, Group, Topic, WhenEmpty};
use super::number::float;
use super::series::{CellCollector, CellVec};
use super::settings::{ApiServers, Compat, Settings};
use super::text::{TextWriter, header};

pub(super) struct Page {
    registry: Registry,
    entries: Vec<Entry>,
    api_servers: ApiServers,
}

/// Place of a family on the page.
struct Entry {
    name: String,
    group: Group,
    /// HELP and TYPE lines.
    header: String,
    /// Labels `le` of the buckets.
    le: Vec<String>,
    /// Whether the family is written without series, too.
    when_empty: bool,
}

impl Page {
    /// Registers a collector for each topic, and one of vllm-sim's own families.
    pub(super) fn new(
        settings: &Settings,
        vecs: &[Arc<CellVec>],
        own: impl Collector + 'static,
    ) -> Self {
        let registry = Registry::new();
        let register = |collector: Box<dyn Collector>| {
            let registered = registry.register(collector);
            registered.expect("the names of families in the list differ");
        };
        for topic in Topic::ALL {
            let of_topic = vecs.iter().filter(|vec| vec.family.topic == topic);
            let collector = CellCollector(of_topic.cloned().collect());
            if !collector.desc().is_empty() {
                register(Box::new(collector));
            }
        }
        register(Box::new(own));
        let shown = FAMILIES.iter().filter(|family| (family.when)(settings));
        let mut entries: Vec<_> = shown.flat_map(|family| entries(family, settings)).collect();
        if settings.api_servers == ApiServers::Several {
            entries.sort_by_key(|entry| entry.group);
        }
        Self { registry, entries, api_servers: settings.api_servers }
    }

    /// Appends the text of the page.
    pub(super) fn write(&self, out: &mut String) {
        let mut families = self.registry.gather();
        for family in &mut families {
            family.mut_metric().sort_by_key(Metric::timestamp_ms);
        }
        let mut writer = TextWriter::new(out, self.api_servers);
        for entry in &self.entries {
            let found = families.binary_search_by(|family| family.name().cmp(&entry.name));
            if found.is_ok() || entry.when_empty {
                writer.out.push_str(&entry.header);
            }
            if let Ok(found) = found {
                writer.samples(&families[found], &entry.le);
            }
        }
    }
}

/// Returns the entry of a family and that of its creation times, if one API server has them.
fn entries(family: &Family, settings: &Settings) -> impl Iterator<Item = Entry> {
    let one = settings.api_servers == ApiServers::One;
    let entry = |name: &str, kind, when_empty| Entry {
        name: name.to_owned(),
        group: family.group,
        header: header(name, family.help, kind),
        le: le_labels(family, settings),
        when_empty,
    };
    let always = family.when_empty == WhenEmpty::Header;
    let shown = always || (one && family.when_empty == WhenEmpty::HeaderOfOneServer);
    let created = family.created_name().filter(|_| one);
    [entry(family.name, family.kind, shown)]
        .into_iter()
        .chain(created.map(|name| entry(&name, MetricType::GAUGE, always)))
}

/// Returns the labels `le` of a family's buckets.
///
/// Whole-number bounds are formatted as in Python (`1.0`); with llm-d's rules as in Go (`1`), in
/// families that exist from the start.
fn le_labels(family: &Family, settings: &Settings) -> Vec<String> {
    let whole = settings.compat == Compat::Llmd && family.when_empty == WhenEmpty::Header;
    let bounds = family.bounds(settings);
    let texts = bounds.iter().map(|bound| {
        let text = float(*bound);
        let bound = text.strip_suffix(".0").filter(|_| whole).unwrap_or(&text);
        format!("le=\"{bound}\"")
    });
    texts.chain(["le=\"+Inf\"".to_owned()]).collect()
}
