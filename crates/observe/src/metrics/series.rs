//! Series of a metric family as cells, and the collectors that read them.

use std::ops::{Deref, Index};
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Summary,
};

use super::cell::MetricCell;
use super::family::{Family, MetricLabels};
use super::settings::{ApiServerCount, MetricsSettings};

/// Value cells of the metric series of one engine and of the server, for every family of a list.
/// Clones share the cells.
#[derive(Debug, Clone)]
pub(crate) struct MetricCells(Box<[Arc<[MetricCell]>]>);

impl MetricCells {
    /// Returns the value cells of the engine with the index `engine`, and those of the server.
    pub(crate) fn of_engine(vecs: &[Arc<MetricCellVec>], engine: usize) -> Self {
        let owners = vecs.iter().map(|vec| vec.owners.get(engine).or(vec.owners.first()));
        Self(owners.map(|cells| cells.cloned().unwrap_or_default()).collect())
    }

    /// Returns the value cells of a metric family's series, ordered by the values of the labels.
    pub(crate) fn series_cells(&self, id: impl Into<usize>) -> &[MetricCell] {
        &self.0[id.into()]
    }

    /// Sets the gauges of a family, and shows them if they were hidden until then.
    pub(super) fn set_and_show_gauges(&self, id: impl Into<usize>, values: &[f64]) {
        for (cell, value) in self.series_cells(id).iter().zip(values) {
            cell.set(*value);
            cell.expose_metric_series(1.0);
        }
    }
}

impl<I: Into<usize>> Index<I> for MetricCells {
    type Output = MetricCell;

    fn index(&self, id: I) -> &MetricCell {
        &self.series_cells(id)[0]
    }
}

/// One metric series: its labels, and the cell with its value.
#[derive(Debug)]
pub(crate) struct MetricSeries {
    /// Position of the series on the page, within its family.
    pub(super) position: i64,
    /// Names and values of the labels, sorted by name.
    labels: Vec<LabelPair>,
    /// Value cells of all series that the metric family has for the same engine or for the server,
    /// and the index of this series' cell.
    cells: (Arc<[MetricCell]>, usize),
    /// Value cells of another metric series, whose value divides the value of this series; `None`
    /// if the value is not divided.
    divisors: Option<Arc<[MetricCell]>>,
}

impl MetricSeries {
    pub(super) fn label_values(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(LabelPair::value)
    }
}

impl Deref for MetricSeries {
    type Target = MetricCell;

    fn deref(&self) -> &MetricCell {
        let (cells, index) = &self.cells;
        &cells[*index]
    }
}

fn label_pairs(mut labels: MetricLabels) -> Vec<LabelPair> {
    labels.sort_unstable();
    let pairs = labels.into_iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name);
        pair.set_value(value);
        pair
    });
    pairs.collect()
}

/// Series of one metric family, like a metric vector of the crate `prometheus`. A scrape takes no
/// lock.
pub(crate) struct MetricCellVec {
    pub(super) family: &'static Family,
    pub(super) desc: Desc,
    /// Name of the family of creation times, if it is exposed.
    pub(super) created: Option<String>,
    /// Labels `le` of the histogram buckets.
    pub(super) le: Vec<String>,
    bounds: Arc<[f64]>,
    /// Value cells of the series that exist from the start: one list per engine, or one list for
    /// the server.
    owners: Vec<Arc<[MetricCell]>>,
    /// Current series, sorted by the values of their labels, as [`prometheus::Registry`] does.
    pub(super) series: ArcSwap<Vec<Arc<MetricSeries>>>,
}

impl MetricCellVec {
    /// Creates the metric families of a list, each with the series that exist from the start.
    pub(crate) fn from_family_list(
        families: &'static [Family],
        settings: &MetricsSettings,
    ) -> Vec<Arc<Self>> {
        let (now, mut vecs) = ((settings.clock.0)(), Vec::with_capacity(families.len()));
        for family in families {
            vecs.push(Arc::new(Self::new(family, settings, now, &vecs)));
        }
        vecs
    }

    /// Creates a metric family. An alias shares the cells of the family in `others` whose values it
    /// exposes.
    fn new(
        family: &'static Family,
        settings: &MetricsSettings,
        now_unix: f64,
        others: &[Arc<Self>],
    ) -> Self {
        let bounds = family.bucket_bounds(settings);
        let awaits_step = family.hidden_until_step
            && settings.api_servers == ApiServerCount::Several
            && settings.fake.is_none();
        let new_cell = |index: usize| {
            let cell = MetricCell::new(family.kind, &bounds);
            cell.set(f64::from(u8::from(family.info.is_some())));
            if index < family.hidden_from && !awaits_step {
                cell.expose_metric_series(now_unix);
            }
            cell
        };
        let count = if family.added { 0 } else { family.owner_count(settings) };
        let (mut owners, mut series) = (Vec::<Arc<[MetricCell]>>::new(), Vec::new());
        for owner in 0..count {
            let labels = family.labels_of_owner(settings, owner);
            let mut shared =
                family.alias.iter().map(|id| others[*id as usize].owners[owner].clone());
            let cells = shared.next().unwrap_or_else(|| (0..labels.len()).map(new_cell).collect());
            let divisors = shared.next();
            for (index, labels) in labels.into_iter().enumerate() {
                let position = match family.by_engine {
                    true => owner * cells.len() + index,
                    false => index * count + owner,
                };
                series.push(Arc::new(MetricSeries {
                    position: position as i64,
                    labels: label_pairs(labels),
                    cells: (cells.clone(), index),
                    divisors: divisors.clone(),
                }));
            }
            owners.push(cells);
        }
        series.sort_by(|a, b| a.label_values().cmp(b.label_values()));
        let (name, help) = (family.name.to_owned(), family.help_text(settings).to_owned());
        let labels = family.labels.iter().map(|label| (*label).to_owned());
        let desc = Desc::new(name, help, labels.collect(), Default::default());
        Self {
            family,
            desc: desc.expect("names, labels and HELP texts in the list are valid"),
            created: family.creation_time_family_name(settings),
            le: family.bucket_labels(settings),
            bounds,
            owners,
            series: ArcSwap::from_pointee(series),
        }
    }

    /// Returns the metric series with the given label values, which are sorted by label name; adds
    /// the series if there is none.
    ///
    /// It is shown as created at this Unix time if it was hidden; zero leaves it as it is. A series
    /// that is added is always shown.
    pub(super) fn with_label_values(&self, values: &[&str], created: f64) -> Arc<MetricSeries> {
        let all = self.series.load();
        let found = all.binary_search_by(|one| one.label_values().cmp(values.iter().copied()));
        let (Ok(index) | Err(index)) = found;
        if found.is_ok() {
            all[index].expose_metric_series(created);
            return all[index].clone();
        }
        let last = all.iter().map(|one| one.position).max();
        let labels = self.family.labels.iter().zip(values);
        let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let added = MetricSeries {
            position: last.map_or(0, |last| last + 1),
            labels: label_pairs(labels.collect()),
            cells: (Arc::new([MetricCell::new(self.family.kind, &self.bounds)]), 0),
            divisors: None,
        };
        added.expose_metric_series(created.max(1.0));
        let mut with_added = Vec::clone(&all);
        with_added.insert(index, Arc::new(added));
        // Another thread may have changed the list since it was loaded; it is then left as it is.
        self.series.compare_and_swap(&all, Arc::new(with_added));
        self.with_label_values(values, created)
    }

    /// Removes the metric series for which `keeps` returns false; code that holds a removed series
    /// may still use it.
    pub(super) fn retain_series(&self, keeps: impl Fn(&MetricSeries) -> bool) {
        self.series.rcu(|all| all.iter().filter(|one| keeps(one)).cloned().collect::<Vec<_>>());
    }

    /// Resets the series as a process restart at the given Unix time does: zeroes counters,
    /// histograms and summaries, and hides series that appear at first use. Series are kept,
    /// because concurrent calls may hold their cells.
    pub(crate) fn reset_for_restart(&self, now_unix: f64) {
        let is_gauge = self.family.kind == MetricType::GAUGE;
        for series in self.series.load().iter() {
            let is_hidden = series.cells.1 >= self.family.hidden_from;
            if !is_gauge {
                series.replace_bucket_counts(&[]);
            }
            if !is_gauge || is_hidden {
                series.set_creation_time(if is_hidden { 0.0 } else { now_unix });
            }
        }
    }

    /// Converts an exposed metric series for the [page](super::page). The timestamp holds the series'
    /// position in the family; the gauge of a counter, histogram or summary holds the creation
    /// time.
    fn metric(&self, series: &MetricSeries) -> Option<Metric> {
        let (kind, created) = (self.family.kind, series.created_unix_seconds()?);
        let divisor = series.divisors.as_ref().map_or(1.0, |cells| cells[0].get().max(1.0));
        let value = series.get() / divisor;
        let mut metric = Metric::from_label(series.labels.clone());
        metric.set_timestamp_ms(series.position);
        let (mut gauge, mut counter) = (Gauge::default(), Counter::default());
        gauge.set_value(if kind == MetricType::GAUGE { value } else { created });
        counter.set_value(value);
        metric.set_gauge(gauge);
        metric.set_counter(counter);
        match kind {
            MetricType::HISTOGRAM => metric.set_histogram(self.histogram(series)),
            MetricType::SUMMARY => {
                let mut summary = Summary::default();
                summary.set_sample_count(series.bucket_counts().sum());
                summary.set_sample_sum(value);
                metric.set_summary(summary);
            }
            _ => {}
        }
        Some(metric)
    }

    fn histogram(&self, cell: &MetricCell) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.set_sample_sum(cell.get());
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(cell.bucket_counts()).map(|(bound, n)| {
            histogram.set_sample_count(histogram.get_sample_count() + n);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(histogram.get_sample_count());
            bucket
        });
        let buckets = buckets.collect();
        histogram.set_bucket(buckets);
        histogram
    }
}

/// Prometheus collector of the metric families of one topic.
pub(super) struct MetricCellCollector(pub(super) Vec<Arc<MetricCellVec>>);

impl Collector for MetricCellCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().map(|vec| &vec.desc).collect()
    }

    /// Returns the families with their exposed series, without HELP texts; the [page](super::page)
    /// adds those texts.
    fn collect(&self) -> Vec<MetricFamily> {
        let families = self.0.iter().map(|vec| {
            let mut family = MetricFamily::default();
            family.set_name(vec.family.name.to_owned());
            family.set_field_type(vec.family.kind);
            family.set_metric(vec.series.load().iter().filter_map(|one| vec.metric(one)).collect());
            family
        });
        families.collect()
    }
}
