//! Renders a gateway's score as a table and as JSON.

use serde_json::{Map, Value, json};

use super::LiveRunResult;
use super::gateway_run::GatewayRun;
use super::measure::{
    SCORE_MEASURE_COUNT, SCORE_MEASURES, SCORED_MEASURE_NAMES, ScoreMeasureValues,
    best_measure_values, gateway_score, score_measure_ratios_to_ideal, score_measures_of_run,
    ttft_and_e2e_samples,
};
use super::offline::RouterCandidate;
use super::require::measured_value_for_requirement;
use super::workload::LoadedWorkload;
use vllm_sim_command_line::metric_requirement::{self, MetricRequirement};
use vllm_sim_command_line::render_text_table;

/// Version of the report's JSON; it changes when a key is removed or changes its meaning.
const REPORT_FORMAT_VERSION: u32 = 1;

const CURVE_POINTS: usize = 201;

/// Ratio of a measure to the ideal above which a note in the report names the measure.
const CLEARLY_ABOVE: f64 = 1.05;

pub(super) type LatencyCurves<'a> = Vec<(&'a str, Vec<f64>)>;

pub(super) struct ScoreReport {
    pub(super) command: String,
    pub(super) score: Option<f64>,
    pub(super) policies: Vec<RouterCandidate>,
    pub(super) live: LiveRunResult,
    /// Measures of the live run without the gateway, in which requests were sent directly to the
    /// pods that the best simulated policy chose.
    live_ideal: Option<ScoreMeasureValues>,
    values: ScoreMeasureValues,
    ideal: ScoreMeasureValues,
    /// Ratio of each measure to the ideal, at most 1.
    shares: ScoreMeasureValues,
    /// Indices of the scored measures that are more than 5 % better than the ideal, with their
    /// ratios to the ideal.
    above_ideal: Vec<(usize, f64)>,
    requirements: Vec<MetricRequirement>,
    requests: usize,
    sessions: usize,
}

impl ScoreReport {
    pub(super) fn new(
        live: LiveRunResult,
        policies: Vec<RouterCandidate>,
        workload: &LoadedWorkload,
        requirements: Vec<MetricRequirement>,
        command: String,
    ) -> Self {
        let values = score_measures_of_run(&live.play, workload);
        let offline: Vec<ScoreMeasureValues> =
            policies.iter().map(|policy| policy.values).collect();
        let live_ideal = live.ideal.as_ref();
        let live_ideal = live_ideal.map(|(_, play)| score_measures_of_run(play, workload));
        let ideal = best_measure_values(&offline, live_ideal.as_ref());
        // Otherwise a gateway that sends no request to a pod would get the best score.
        let ratios = match live.routing.unseen {
            0 => score_measure_ratios_to_ideal(&values, &ideal),
            _ => [None; SCORE_MEASURE_COUNT],
        };
        let above_ideal = ratios.iter().enumerate().filter_map(|(at, ratio)| {
            let ratio = (*ratio)?;
            let is_scored = SCORED_MEASURE_NAMES.contains(&SCORE_MEASURES[at].name);
            (is_scored && ratio > CLEARLY_ABOVE).then_some((at, ratio))
        });
        let shares = ratios.map(|ratio| Some(ratio?.min(1.0)));
        Self {
            command,
            score: gateway_score(&shares),
            above_ideal: above_ideal.collect(),
            policies,
            live,
            live_ideal,
            values,
            ideal,
            shares,
            requirements,
            requests: workload.workload_request_count(),
            sessions: workload.sessions.len(),
        }
    }

    pub(super) fn score_table_cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let policies = self.policies.iter().map(|policy| policy.name);
        let direct = self.live_ideal.as_ref();
        let head = ["", "gateway", "ideal", "share"]
            .into_iter()
            .chain(direct.map(|_| "direct"))
            .chain(policies);
        let rows = SCORE_MEASURES.iter().enumerate().map(|(at, measure)| {
            let shown = |value: Option<f64>| match (value, measure.is_time) {
                (None, _) => "-".to_owned(),
                (Some(ms), true) => format!("{ms:.1}"),
                (Some(share), false) => format!("{:.1} %", share * 100.0),
            };
            let share = self.shares[at].map_or_else(|| "-".to_owned(), |s| format!("{s:.3}"));
            let own =
                [measure.label.to_owned(), shown(self.values[at]), shown(self.ideal[at]), share];
            let others = self.policies.iter().map(|policy| shown(policy.values[at]));
            let direct = direct.map(|values| shown(values[at]));
            own.into_iter().chain(direct).chain(others).collect()
        });
        (head.map(str::to_owned).collect(), rows.collect())
    }

    pub(super) fn score_summary_lines(&self) -> Vec<String> {
        let routing = &self.live.routing;
        let score = self
            .score
            .map_or_else(|| "unknown".to_owned(), |score| format!("{:.1} of 100", score * 100.0));
        let mut lines = vec![
            format!("Score: {score}"),
            format!(
                "Misroutes: {}, retries: {}, of {} requests in {} sessions",
                routing.misroutes.total_misroutes(),
                routing.retries.map_or("unknown".to_owned(), |n| n.to_string()),
                self.requests,
                self.sessions,
            ),
        ];
        let misroutes = routing.misroutes;
        if misroutes.total_misroutes() > 0 {
            lines.push(format!(
                "Misroutes by kind: {} refused, {} to pods that were not ready, {} unanswered, {} \
                 without a pod",
                misroutes.refused, misroutes.not_ready, misroutes.unanswered, misroutes.unrouted
            ));
        }
        if let Some((policy, _)) = &self.live.ideal {
            lines.push(format!(
                "Times of the ideal router: the placements of {policy}, sent directly to the pods"
            ));
        }
        let counts = self.live.pods.iter().zip(&routing.requests);
        let counts = counts.map(|((url, _), requests)| format!("{url} {requests}"));
        if let Some(known_by) = routing.known_by {
            let counts: Vec<String> = counts.collect();
            lines.push(format!(
                "Requests by pod ({}): {}",
                known_by.pod_identity_source_name(),
                counts.join(", ")
            ));
        }
        lines.extend(self.notes().map(|note| format!("Note: {note}")));
        for requirement in &self.requirements {
            let value = self.required_value(requirement);
            let shown = value.map_or_else(|| "unknown".to_owned(), |value| format!("{value:.3}"));
            let verdict = match requirement.is_requirement_met_by(value) {
                true => "met",
                false => "missed",
            };
            lines.push(format!("Required {requirement}: {verdict}, it is {shown}"));
        }
        lines
    }

    /// Returns the value of the measure `name` in the run through the gateway.
    fn value(&self, name: &str) -> Option<f64> {
        let at = SCORE_MEASURES.iter().position(|measure| measure.name == name)?;
        self.values[at]
    }

    fn notes(&self) -> impl Iterator<Item = String> {
        let failed = self.live.play.turns.iter().find_map(|turn| turn.error.as_ref());
        let failed = failed.map(|error| {
            let hint = match error.starts_with("status 422") {
                true => {
                    "; for a gateway that does not accept prompts of token ids, use --target-api \
                     chat"
                }
                false => "",
            };
            format!("first failure: {error}{hint}; a failed turn ends its session")
        });
        let both = self.live.notes.iter().chain(&self.live.routing.notes);
        let above = |name: &str| {
            let ratio = self.above_ideal.iter().find(|(at, _)| SCORE_MEASURES[*at].name == name);
            ratio.map_or(1.0, |(_, ratio)| *ratio)
        };
        let is_too_fast = self.live_ideal.is_none() && above("ttft") > 1.25;
        let fast = is_too_fast.then(|| {
            "first tokens arrive earlier than an engine with these flags can send them: the pods \
             have other flags"
                .to_owned()
        });
        let unknown = self.value("served").is_some_and(|served| served > 0.0)
            && self.value("reuse").is_none();
        let unknown = unknown.then(|| {
            "prefix reuse is unknown: start the pods with --enable-prompt-tokens-details".to_owned()
        });
        let above = self.above_ideal_note();
        both.cloned().chain(failed).chain(above).chain(fast).chain(unknown)
    }

    /// Returns a note about the measures that are better than the ideal, for which the report has a
    /// ratio of 1.
    fn above_ideal_note(&self) -> Option<String> {
        let all = self.above_ideal.iter();
        let all = all.map(|(at, ratio)| format!("{} {ratio:.3}", SCORE_MEASURES[*at].label));
        let all: Vec<String> = all.collect();
        let missing = match self.value("served").is_some_and(|served| served < 1.0) {
            true => "; the means lack the requests of failed sessions",
            false => "",
        };
        let fewer = match self.live.is_disturbed {
            true => "; the reference does without disturbed pods, whose answers count here",
            false => "",
        };
        (!all.is_empty()).then(|| {
            let all = all.join(", ");
            format!("better than the reference, which counts as 1: {all}{missing}{fewer}")
        })
    }

    pub(super) fn render_score_table(&self) -> String {
        let (head, rows) = self.score_table_cells();
        let table = render_text_table(&head, &rows, 1).into_iter();
        table.chain(self.score_summary_lines()).collect::<Vec<_>>().join("\n")
    }

    fn required_value(&self, requirement: &MetricRequirement) -> Option<f64> {
        let routing = &self.live.routing;
        let count = |n: u64| n as f64;
        let others = [
            self.score,
            Some(count(routing.misroutes.total_misroutes())),
            routing.retries.map(count),
        ];
        measured_value_for_requirement(requirement, &self.shares, others)
    }

    /// Describes the missed requirements of `--require`, if any.
    pub(super) fn describe_missed_score_requirements(&self) -> Option<String> {
        metric_requirement::describe_missed_metric_requirements(&self.requirements, |requirement| {
            self.required_value(requirement)
        })
    }

    /// Returns the distributions of TTFT and E2E latency in the runs through the gateway and behind
    /// some simulated routers.
    pub(super) fn latency_curves(&self) -> [(&'static str, LatencyCurves<'_>); 2] {
        let shown = ["oracle", "round-robin"];
        let others = self.policies.iter().filter(|p| shown.contains(&p.name));
        let direct = self.live.ideal.as_ref().map(|(_, play)| ("direct", play));
        let plays = [("gateway", &self.live.play)].into_iter().chain(direct);
        let plays: Vec<(&str, &GatewayRun)> =
            plays.chain(others.map(|p| (p.name, &p.play))).collect();
        [("Time to first token", 0), ("Request latency", 1)].map(|(title, which)| {
            let curves = plays.iter().filter_map(|(name, play)| {
                let curve = ttft_and_e2e_samples(play)[which].quantile_curve::<CURVE_POINTS>();
                (!curve.is_empty()).then_some((*name, curve))
            });
            (title, curves.collect())
        })
    }

    pub(super) fn score_report_json(&self) -> Value {
        let routing = &self.live.routing;
        let named = |values: &ScoreMeasureValues| {
            let pairs = SCORE_MEASURES.iter().zip(values);
            let pairs = pairs.map(|(measure, value)| (measure.name.to_owned(), json!(value)));
            Value::Object(pairs.collect::<Map<_, _>>())
        };
        let policies = self.policies.iter();
        let policies = policies.map(|policy| (policy.name.to_owned(), named(&policy.values)));
        let pods = self.live.pods.iter().zip(&routing.requests);
        let pods = pods.map(|((url, state), requests)| {
            let requests = routing.known_by.map(|_| requests);
            json!({"url": url, "state": state, "requests": requests})
        });
        let requirements = self.requirements.iter().map(|requirement| {
            let value = self.required_value(requirement);
            let is_met = requirement.is_requirement_met_by(value);
            json!({"bound": requirement.to_string(), "value": value, "met": is_met})
        });
        json!({
            "version": REPORT_FORMAT_VERSION,
            "command": self.command,
            "requests": self.requests,
            "sessions": self.sessions,
            "score": self.score,
            "gateway": named(&self.values),
            "ideal": named(&self.ideal),
            "share_of_ideal": named(&self.shares),
            "policies": Value::Object(policies.collect::<Map<_, _>>()),
            "direct": self.live_ideal.as_ref().map(named),
            "direct_placements": self.live.ideal.as_ref().map(|(policy, _)| policy),
            "misroutes": routing.misroutes.total_misroutes(),
            "misroutes_by_kind": {
                "refused": routing.misroutes.refused,
                "not_ready": routing.misroutes.not_ready,
                "unanswered": routing.misroutes.unanswered,
                "unrouted": routing.misroutes.unrouted,
            },
            "retries": routing.retries,
            "pods": pods.collect::<Vec<_>>(),
            "pods_known_by": routing.known_by.map(super::fleet::PodIdentitySource::pod_identity_source_name),
            "requirements": requirements.collect::<Vec<_>>(),
            "notes": self.notes().collect::<Vec<_>>(),
        })
    }
}
