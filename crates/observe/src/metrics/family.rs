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

/// Upper bounds of a histogram family's buckets, without `+Inf`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buckets {
    Bounds(&'static [f64]),
    /// Bucket bounds of a histogram of token counts: 1, 2 and 5 times the powers of ten, up to the
    /// context length.
    Tokens,
}

/// Declaration of one metric family. Names of counters include `_total`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    /// Name of the family's group in the list. Families of the same topic have one Prometheus collector.
    pub(crate) topic: &'static str,
    /// Condition on the settings under which the imitated server exposes the metric family.
    pub(crate) when: fn(&MetricsSettings) -> bool,
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: MetricType,
    /// Whether vLLM adds up the values of a gauge over its processes.
    pub(crate) summed: bool,
    /// Names of the metric family's labels, sorted. A family with the label `engine` or `tp_rank`
    /// has series of each engine, others have series of the server.
    pub(crate) labels: &'static [&'static str],
    pub(crate) buckets: Buckets,
    /// Values of the metric family's labels: each combination is a series, and the last label
    /// varies fastest. Values of other labels, such as `model_name`, come from the settings.
    pub(crate) values: &'static [&'static [&'static str]],
    /// Whether series are added to the metric family when they are first used. Without series, such a
    /// family has HELP and TYPE lines only if there is one API server, and its `_created` has none.
    pub(crate) added: bool,
    /// Returns further labels of the series in a metric family whose value is always 1.
    pub(crate) info: Option<fn(&MetricsSettings) -> MetricLabels>,
    /// Whether the metric family's series of one engine are adjacent; else engines vary fastest, as
    /// in vLLM.
    pub(crate) by_engine: bool,
    /// Index of the metric family's first hidden series; series from this index on appear at first
    /// use.
    pub(crate) hidden_from: usize,
    /// Whether all series of the metric family are hidden until the engine's first step, if there
    /// are several API servers.
    ///
    /// prometheus_client shows the most recent value among processes, and a gauge that was never
    /// set has none.
    pub(crate) hidden_until_step: bool,
    /// Whether the metric family has no HELP and TYPE lines while it has no series.
    pub(crate) absent_when_empty: bool,
    /// Other metric family of the engine whose values this family exposes too, under the name of
    /// this family. Values of a second one divide them; a divisor below 1 counts as 1.
    pub(crate) alias: &'static [Id],
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
        topic: "",
        when: |_| true,
        name,
        help,
        kind,
        summed: false,
        labels,
        buckets,
        values: &[],
        added: false,
        info: None,
        by_engine: false,
        hidden_from: usize::MAX,
        hidden_until_step: false,
        absent_when_empty: false,
        alias: &[],
    }
}

impl Family {
    /// Returns whether the imitated server exposes the metric family with these settings.
    pub(crate) fn is_exposed(&self, settings: &MetricsSettings) -> bool {
        first_vllm_release_of(SINCE, self.name) <= settings.version && (self.when)(settings)
    }

    /// Returns whether the metric family is one of vllm-sim itself.
    pub(crate) fn is_own(&self) -> bool {
        self.topic == "Own"
    }

    /// Returns the position of the metric family's type on `/metrics` if there are several API servers.
    pub(crate) fn type_position(&self) -> u8 {
        match self.kind {
            // The scenario phase is next to the injected faults.
            _ if self.is_own() => 0,
            MetricType::COUNTER => 0,
            MetricType::HISTOGRAM => 2,
            // Files of summed gauges sort after those of histograms in Prometheus' multiprocess mode.
            MetricType::GAUGE if self.summed => 3,
            MetricType::GAUGE => 1,
            _ => 4,
        }
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

    /// Returns the name of the family with the series' creation times, `_created`, if there is one API
    /// server; a counter's name loses its `_total`. Gauges have no such family. Neither have deprecated
    /// names, and counters that describe the process or the simulator itself.
    pub(crate) fn creation_time_family_name(&self, settings: &MetricsSettings) -> Option<String> {
        let is_counter = self.kind == MetricType::COUNTER;
        let base = self.name.strip_suffix("_total").filter(|_| is_counter).unwrap_or(self.name);
        let has_times = settings.api_servers == ApiServerCount::One
            && self.kind != MetricType::GAUGE
            && self.alias.is_empty()
            && self.topic != "Process"
            && !self.is_own();
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
        let whole = settings.compat == MetricsCompat::Llmd && !self.added;
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
