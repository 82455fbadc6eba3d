//! Declaration of a metric family as data; [`families`](super::families) has the list.

use std::sync::Arc;

use prometheus::proto::MetricType;

use super::families::Id;
use super::releases::OLDER_HELP;
use super::settings::{Compat, Settings};
use vllm_sim_wire::VllmVersion;

/// Names and values of the labels of a metric series.
pub(super) type Labels = Vec<(String, String)>;

/// Topic of a metric family; the families of a topic have one Prometheus collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Process,
    Engine,
    Requests,
    Cache,
    Adapters,
    Transfers,
    Speculation,
    Http,
    /// Metric families of SGLang, which replace all others but those of vllm-sim itself.
    Sglang,
    /// Metric families of vllm-sim itself.
    Own,
}

/// Owner of a metric family's series: each engine, or the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Engine,
    Server,
}

/// Upper bounds of histogram buckets, without `+Inf`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Buckets {
    Bounds(&'static [f64]),
    /// Bucket bounds of 1, 2 and 5 times the powers of ten, up to the context length.
    Tokens,
}

/// Series of a metric family that are hidden at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    /// Every series is exposed from the start.
    None,
    /// Series from this index on are hidden until they are first used.
    From(usize),
    /// All series are hidden until the engine's first step, if there are several API servers.
    ///
    /// prometheus_client shows the most recent value among processes, and a gauge that was never
    /// set has none.
    UntilStep,
}

/// Output on `/metrics` for a metric family without series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenEmpty {
    /// HELP and TYPE are written, also those of `_created`.
    Header,
    /// HELP and TYPE are written if there is one API server.
    HeaderOfOneServer,
    Absent,
}

/// Source of the values of a metric family's series.
#[derive(Debug, Clone, Copy)]
pub(super) enum CellSource {
    Own,
    /// The values are those of another family of the same engine.
    Alias(Id),
    /// The values are the ratio of the first family's value to the second one's; zero if the second
    /// is zero.
    Ratio(Id, Id),
}

/// Relation of a metric family to fake metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Faked {
    /// Fake metrics keep the values of the family.
    Never,
    /// Fake metrics replace the values of the family.
    Always,
    /// Fake metrics replace the values; with llm-d's rules, requests are still counted in the family.
    UnlessLlmd,
}

/// Place of a metric family on `/metrics` with several API servers, where families are sorted by
/// group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Counter,
    Gauge,
    Histogram,
    /// Gauges summed over processes; Prometheus' multiprocess files of them sort after those of
    /// histograms.
    SummedGauge,
    Summary,
}

/// Declaration of one metric family. Names of counters include `_total`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    pub(super) id: Id,
    pub(super) topic: Topic,
    /// The condition under which upstream exposes the family.
    pub(super) when: fn(&Settings) -> bool,
    /// First imitated vLLM release with the metric family.
    pub(super) since: VllmVersion,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    pub(super) group: Group,
    /// Names of the labels, sorted. A family with the label `engine` or `tp_rank` has series of each
    /// engine, others have series of the server.
    pub(super) labels: &'static [&'static str],
    pub(super) buckets: Buckets,
    /// Values of the family's own labels: each combination is a series, and the last label varies
    /// fastest. Values of other labels, such as `model_name`, come from the settings.
    pub(super) values: &'static [&'static [&'static str]],
    /// Whether series are added when they are first used.
    pub(super) added: bool,
    /// Further labels of an engine's series in a family whose value is always 1; `None`: the engine
    /// has no series.
    pub(super) info: Option<fn(&Settings, usize) -> Option<Labels>>,
    /// Whether the series of one engine are adjacent; else engines vary fastest, as in vLLM.
    pub(super) by_engine: bool,
    /// Whether the series are ordered by their creation time.
    pub(super) by_creation: bool,
    /// Whether one API server exposes creation times in a family `_created`.
    pub(super) created: bool,
    pub(super) hidden: Hidden,
    pub(super) when_empty: WhenEmpty,
    pub(super) cells: CellSource,
    pub(super) faked: Faked,
}

/// Returns a metric family whose series exist from the start.
pub(super) const fn family(
    kind: MetricType,
    name: &'static str,
    labels: &'static [&'static str],
    buckets: Buckets,
    help: &'static str,
) -> Family {
    Family {
        id: Id::Flops,
        topic: Topic::Own,
        when: |_| true,
        since: VllmVersion::ALL[0],
        name,
        help,
        kind,
        group: match kind {
            MetricType::COUNTER => Group::Counter,
            MetricType::HISTOGRAM => Group::Histogram,
            MetricType::SUMMARY => Group::Summary,
            _ => Group::Gauge,
        },
        labels,
        buckets,
        values: &[],
        added: false,
        info: None,
        by_engine: false,
        by_creation: false,
        created: !matches!(kind, MetricType::GAUGE),
        hidden: Hidden::None,
        when_empty: WhenEmpty::Header,
        cells: CellSource::Own,
        faked: Faked::Never,
    }
}

impl Family {
    /// Returns whether the imitated server exposes the family with these settings.
    pub(super) fn is_exposed(&self, settings: &Settings) -> bool {
        let sglang = (self.topic == Topic::Sglang) == (settings.compat == Compat::Sglang);
        let shown = sglang || self.topic == Topic::Own;
        shown && self.since <= settings.version && (self.when)(settings)
    }

    /// Returns the HELP text of the family in the imitated release.
    pub(super) fn help_text(&self, settings: &Settings) -> &'static str {
        let older = OLDER_HELP
            .iter()
            .find(|(name, until, _)| *name == self.name && settings.version <= *until);
        older.map_or(self.help, |(_, _, text)| text)
    }

    /// Returns the histogram bucket bounds of the metric family.
    ///
    /// **Source:** vLLM `vllm/v1/metrics/buckets.py`.
    pub(super) fn bounds(&self, settings: &Settings) -> Arc<[f64]> {
        let Buckets::Bounds(bounds) = self.buckets else {
            let decades = std::iter::successors(Some(1u64), |decade| Some(decade * 10));
            let bounds = decades.flat_map(|decade| [decade, 2 * decade, 5 * decade]);
            let fits = |bound: &u64| *bound <= u64::from(settings.max_model_len);
            return bounds.take_while(fits).map(|bound| bound as f64).collect();
        };
        bounds.into()
    }

    /// Returns the number of series that each owner (an engine or the server) has in the metric
    /// family.
    pub(super) fn series_per_owner(&self, settings: &Settings) -> usize {
        match self.labels.contains(&"position") {
            true => settings.spec_positions as usize,
            false => self.values.iter().map(|values| values.len()).product(),
        }
    }

    pub(super) fn owner(&self) -> Owner {
        match self.labels.iter().any(|label| matches!(*label, "engine" | "tp_rank")) {
            true => Owner::Engine,
            false => Owner::Server,
        }
    }

    /// Returns whether fake metrics have cells of their own for the family.
    pub(super) fn is_faked(&self, compat: Compat) -> bool {
        self.faked == Faked::Always || self.faked == Faked::UnlessLlmd && compat == Compat::Vllm
    }

    /// Returns the index of the first series that is hidden until its first use.
    pub(super) fn hidden_from(&self) -> usize {
        match self.hidden {
            Hidden::From(index) => index,
            _ => usize::MAX,
        }
    }

    /// Returns the name of the metric family of creation times: a counter loses its `_total`.
    pub(super) fn created_name(&self) -> Option<String> {
        let base = match self.kind {
            MetricType::COUNTER => self.name.strip_suffix("_total"),
            _ => None,
        };
        self.created.then(|| format!("{}_created", base.unwrap_or(self.name)))
    }

    /// Returns names and values of the labels of an owner's series `index`; `None` if the owner has
    /// no series.
    pub(super) fn label_values(
        &self,
        settings: &Settings,
        owner: usize,
        mut index: usize,
    ) -> Option<Labels> {
        let mut labels = match self.info {
            Some(info) => info(settings, owner)?,
            None => Vec::new(),
        };
        let mut values = self.values.iter().rev();
        for name in self.labels.iter().rev() {
            let value = match *name {
                "model_name" => settings.model_name.clone(),
                "engine" => settings.engines[owner].clone(),
                "position" => index.to_string(),
                "engine_type" => "unified".to_owned(),
                "tp_rank" | "pp_rank" | "moe_ep_rank" => "0".to_owned(),
                "dp_rank" if settings.engines.len() > 1 => settings.engines[owner].clone(),
                _ => match values.next() {
                    Some(values) => {
                        let value = values[index % values.len()];
                        index /= values.len();
                        value.to_owned()
                    }
                    None => continue,
                },
            };
            if *name == "finished_reason" && settings.finish_reason_label {
                labels.push(("finish_reason".to_owned(), value.clone()));
            }
            labels.push(((*name).to_owned(), value));
        }
        Some(labels)
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::FAMILIES;
    use super::*;

    #[test]
    fn token_bounds_end_at_the_context_length() {
        let bounds = |max_model_len| {
            let settings = Settings { max_model_len, ..Settings::default() };
            FAMILIES[Id::RequestPromptTokens as usize].bounds(&settings).to_vec()
        };
        assert_eq!(bounds(10), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(bounds(1024).last(), Some(&1000.0));
        assert_eq!(bounds(u32::MAX).last(), Some(&2e9));
        assert!(bounds(0).is_empty());
    }
}
