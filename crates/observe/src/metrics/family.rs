//! Declaration of a metric family as data; [`families`](super::families) has the list.

use std::sync::Arc;

use prometheus::proto::MetricType;

use super::families::Id;
use super::number::push_prometheus_float;
use super::settings::{ApiServerCount, MetricsCompat, MetricsSettings};
use super::upstream::{OLDER_HELP, SINCE};
use crate::release::first_vllm_release_of;

/// Names and values of a metric series' labels.
pub(crate) type MetricLabels = Vec<(String, String)>;

/// Topic of a metric family; the families of a topic have one Prometheus collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Process,
    Engine,
    Requests,
    Cache,
    Adapters,
    Transfers,
    Speculation,
    Http,
    /// Metric families of vllm-sim itself.
    Own,
}

/// Upper bounds of a histogram family's buckets, without `+Inf`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buckets {
    Bounds(&'static [f64]),
    /// Bucket bounds of a histogram of token counts: 1, 2 and 5 times the powers of ten, up to the
    /// context length.
    Tokens,
}

/// Appearance on `/metrics` of a metric family that has no series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmptyFamilyRendering {
    /// A metric family without series has HELP and TYPE lines, also for its `_created` family.
    Header,
    /// A metric family without series has HELP and TYPE lines if there is one API server.
    HeaderOfOneServer,
    Absent,
}

/// Position of a metric family on `/metrics` if there are several API servers; families are sorted
/// by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MetricPageGroup {
    Counter,
    Gauge,
    Histogram,
    /// Group of the gauges that are summed over processes. Their files in Prometheus' multiprocess
    /// mode sort after those of histograms.
    SummedGauge,
    Summary,
}

/// Declaration of one metric family. Names of counters include `_total`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    pub(crate) topic: Topic,
    /// Condition on the settings under which the imitated server exposes the metric family.
    pub(crate) when: fn(&MetricsSettings) -> bool,
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricType,
    pub(crate) group: MetricPageGroup,
    /// Names of the metric family's labels, sorted. A family with the label `engine` or `tp_rank`
    /// has series of each engine, others have series of the server.
    pub(crate) labels: &'static [&'static str],
    pub(crate) buckets: Buckets,
    /// Values of the metric family's labels: each combination is a series, and the last label
    /// varies fastest. Values of other labels, such as `model_name`, come from the settings.
    pub(crate) values: &'static [&'static [&'static str]],
    /// Whether series are added to the metric family when they are first used.
    pub(crate) added: bool,
    /// Returns further labels of the series in a metric family whose value is always 1.
    pub(crate) info: Option<fn(&MetricsSettings) -> MetricLabels>,
    /// Whether the metric family's series of one engine are adjacent; else engines vary fastest, as
    /// in vLLM.
    pub(crate) by_engine: bool,
    /// Whether creation times of the series are exposed in a family `_created`, if there is one API
    /// server.
    pub(crate) created: bool,
    /// Index of the metric family's first hidden series; series from this index on appear at first
    /// use.
    pub(crate) hidden_from: usize,
    /// Whether all series of the metric family are hidden until the engine's first step, if there
    /// are several API servers.
    ///
    /// prometheus_client shows the most recent value among processes, and a gauge that was never
    /// set has none.
    pub(crate) hidden_until_step: bool,
    pub(crate) when_empty: EmptyFamilyRendering,
    /// Other metric family of the engine whose values this family exposes too, under the name of
    /// this family.
    pub(crate) alias: Option<Id>,
    /// Metric family with the divisors of this family's values; a divisor below 1 counts as 1.
    pub(crate) divisor: Option<Id>,
}

/// Returns a metric family whose series exist from the start.
pub(crate) const fn family(
    kind: MetricType,
    name: &'static str,
    labels: &'static [&'static str],
    buckets: Buckets,
    help: &'static str,
) -> Family {
    Family {
        topic: Topic::Own,
        when: |_| true,
        name,
        help,
        kind,
        group: match kind {
            MetricType::COUNTER => MetricPageGroup::Counter,
            MetricType::HISTOGRAM => MetricPageGroup::Histogram,
            MetricType::SUMMARY => MetricPageGroup::Summary,
            _ => MetricPageGroup::Gauge,
        },
        labels,
        buckets,
        values: &[],
        added: false,
        info: None,
        by_engine: false,
        created: !matches!(kind, MetricType::GAUGE),
        hidden_from: usize::MAX,
        hidden_until_step: false,
        when_empty: EmptyFamilyRendering::Header,
        alias: None,
        divisor: None,
    }
}

impl Family {
    /// Returns the metric family with the topic of a group, and the condition to expose the group.
    pub(crate) const fn in_group(self, topic: Topic, when: fn(&MetricsSettings) -> bool) -> Self {
        Self { topic, when, ..self }
    }

    /// Returns whether the imitated server exposes the metric family with these settings.
    pub(crate) fn is_exposed(&self, settings: &MetricsSettings) -> bool {
        first_vllm_release_of(SINCE, self.name) <= settings.version && (self.when)(settings)
    }

    /// Returns the HELP text of the metric family in the imitated release.
    pub(crate) fn help_text(&self, settings: &MetricsSettings) -> &'static str {
        let mut older = OLDER_HELP.iter();
        let text = older.find(|(name, until, _)| *name == self.name && settings.version <= *until);
        text.map_or(self.help, |(_, _, text)| text)
    }

    /// Returns the histogram bucket bounds of the metric family.
    ///
    /// **Source:** vLLM `vllm/v1/metrics/buckets.py`.
    pub(crate) fn bucket_bounds(&self, settings: &MetricsSettings) -> Arc<[f64]> {
        let Buckets::Bounds(bounds) = self.buckets else {
            let decades = std::iter::successors(Some(1u64), |decade| Some(decade * 10));
            let bounds = decades.flat_map(|decade| [decade, 2 * decade, 5 * decade]);
            let fits = |bound: &u64| *bound <= u64::from(settings.max_model_len);
            return bounds.take_while(fits).map(|bound| bound as f64).collect();
        };
        bounds.into()
    }

    /// Returns the number of owners of the family's series: the engines, or only the server.
    pub(crate) fn owner_count(&self, settings: &MetricsSettings) -> usize {
        match self.labels.iter().any(|label| matches!(*label, "engine" | "tp_rank")) {
            true => settings.engines.len(),
            false => 1,
        }
    }

    /// Returns the name of the family with the series' creation times, `_created`; a counter's name
    /// loses its `_total`.
    pub(crate) fn creation_time_family_name(&self, settings: &MetricsSettings) -> Option<String> {
        let is_counter = self.kind == MetricType::COUNTER;
        let base = self.name.strip_suffix("_total").filter(|_| is_counter).unwrap_or(self.name);
        let has_times = self.created && settings.api_servers == ApiServerCount::One;
        has_times.then(|| format!("{base}_created"))
    }

    /// Returns names and values of the labels of the series of an engine or of the server.
    pub(crate) fn labels_of_owner(
        &self,
        settings: &MetricsSettings,
        owner: usize,
    ) -> Vec<MetricLabels> {
        let mut series = vec![self.info.map_or_else(Vec::new, |info| info(settings))];
        let mut further = self.values.iter();
        for name in self.labels {
            let values = match *name {
                "model_name" => vec![settings.model_name.clone()],
                "engine" => vec![settings.engines[owner].clone()],
                "position" => (0..settings.spec_positions).map(|index| index.to_string()).collect(),
                "engine_type" => vec!["unified".to_owned()],
                "tp_rank" | "pp_rank" | "moe_ep_rank" => vec!["0".to_owned()],
                "dp_rank" if settings.engines.len() > 1 => vec![settings.engines[owner].clone()],
                _ => match further.next() {
                    Some(values) => values.iter().map(|value| (*value).to_owned()).collect(),
                    None => continue,
                },
            };
            let with_value = |value: &String, labels: &MetricLabels| {
                let mut labels = labels.clone();
                if *name == "finished_reason" && settings.compat == MetricsCompat::Llmd {
                    labels.push(("finish_reason".to_owned(), value.clone()));
                }
                labels.push(((*name).to_owned(), value.clone()));
                labels
            };
            let of_labels = |labels| values.iter().map(move |value| with_value(value, labels));
            series = series.iter().flat_map(of_labels).collect();
        }
        series
    }

    /// Returns the labels `le` of the metric family's histogram buckets.
    ///
    /// Whole-number bounds are formatted as in Python (`1.0`); with llm-d's rules as in Go (`1`), in
    /// families that exist from the start.
    pub(crate) fn bucket_labels(&self, settings: &MetricsSettings) -> Vec<String> {
        let whole = settings.compat == MetricsCompat::Llmd
            && self.when_empty == EmptyFamilyRendering::Header;
        let bounds = self.bucket_bounds(settings);
        let texts = bounds.iter().map(|bound| {
            let mut text = String::new();
            push_prometheus_float(&mut text, *bound);
            let bound = text.strip_suffix(".0").filter(|_| whole).unwrap_or(&text);
            format!("le=\"{bound}\"")
        });
        texts.chain(["le=\"+Inf\"".to_owned()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bounds_end_at_the_context_length() {
        let bounds = |max_model_len| {
            let settings = MetricsSettings { max_model_len, ..MetricsSettings::default() };
            Id::RequestPromptTokens.family().bucket_bounds(&settings).to_vec()
        };
        assert_eq!(bounds(10), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(bounds(1024).last(), Some(&1000.0));
        assert_eq!(bounds(u32::MAX).last(), Some(&2e9));
        assert!(bounds(0).is_empty());
    }
}
