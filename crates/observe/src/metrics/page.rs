//! Page of `/metrics`: the order of the families, and which of them appear.
//!
//! **Source:** prometheus_client 0.26, `exposition.py` (single process, with `_created` families)
//! and `multiprocess.py` (several API servers: no `_created`, families grouped by type, the sum of
//! a histogram first, no family without series).

use std::sync::Arc;

use prometheus::proto::MetricType;

use super::family::Family;
use super::own::SimulatorMetrics;
use super::series::{MetricCellVec, MetricSeries};
use super::settings::ApiServerCount;
use super::text::PrometheusTextWriter;

pub(super) struct MetricsPage {
    /// Families in the order of the page. Those of vllm-sim itself have no values here.
    pub(super) vecs: Vec<Arc<MetricCellVec>>,
    pub(super) own: SimulatorMetrics,
    pub(super) api_servers: ApiServerCount,
}

impl MetricsPage {
    /// Appends the text of `/metrics` to `out`.
    pub(super) fn write_metrics_page(&self, out: &mut String) {
        let mut writer = PrometheusTextWriter::new(out, self.api_servers);
        for vec in &self.vecs {
            let Family { name, added, absent_when_empty, .. } = *vec.family;
            if vec.family.is_own() {
                self.own.write_family(vec.family, &mut writer);
                continue;
            }
            let series = vec.series();
            let shown = series.iter().filter_map(|one| Some((one, one.created_unix_seconds()?)));
            let mut shown: Vec<_> = shown.collect();
            shown.sort_unstable_by_key(|(one, _)| one.position);
            let is_one = self.api_servers == ApiServerCount::One;
            if shown.is_empty() && (absent_when_empty || (added && !is_one)) {
                continue;
            }
            writer.write_header(name, vec.help, vec.family.kind);
            shown.iter().for_each(|(one, _)| write_series(vec, one, &mut writer));
            if let Some(created) = vec.created.as_ref().filter(|_| !shown.is_empty() || !added) {
                writer.write_header(created, vec.help, MetricType::GAUGE);
                for (one, at) in shown {
                    writer.write_sample(created, "", &one.labels, at);
                }
            }
        }
    }
}

/// Writes the samples of a metric series.
fn write_series(vec: &MetricCellVec, series: &MetricSeries, writer: &mut PrometheusTextWriter<'_>) {
    let Family { name, kind, .. } = *vec.family;
    let (labels, value) = (&series.labels, series.value());
    match kind {
        MetricType::HISTOGRAM => {
            let buckets = vec.le.iter().zip(series.bucket_counts());
            writer.write_histogram(name, labels, buckets, value);
        }
        MetricType::SUMMARY => {
            let count = series.bucket_counts().sum::<u64>();
            writer.write_sample(name, "_count", labels, count as f64);
            writer.write_sample(name, "_sum", labels, value);
        }
        _ => writer.write_sample(name, "", labels, value),
    }
}
