//! Collects the search results of a plan, and renders them as table, notes and JSON.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::answer::DeploymentCost;
use super::context::context_notes;
use super::deploy::DeploymentCommands;
use super::prices::{GpuPrices, HourlyGpuPrices};
use super::search::{
    CandidateSearchResult, DeploymentCandidate, PlanRequirements, SimulatedDeploymentTrial,
    TrialRunner,
};
use super::worker_count::WorkerCountByKind;
use crate::grid::flag_combination_label;
use vllm_sim_command_line::render_text_table;
use vllm_sim_explain::{KnownPredictionErrors, PromptCacheUse};
use vllm_sim_replay_cli::{ResultProvenance, WorkerPools};

/// Factors of the requested traffic for which the cheapest deployment is recomputed.
const TRAFFIC_FACTORS: [f64; 2] = [0.8, 1.2];

/// Maximum factor of the requested traffic for which the cheapest deployment is simulated
/// unchanged.
const MAX_ROOM_FACTOR: f64 = 32.0;

pub(super) struct PlanReport {
    names: Vec<String>,
    pub(super) question: PlanRequirements,
    pub(super) prices: Option<GpuPrices>,
    pub(super) rows: Vec<DeploymentCandidateRow>,
    /// Indices of the candidates for which the search found a deployment, ordered by the ratio of
    /// cost per hour to traffic.
    pub(super) order: Vec<usize>,
    outlook: Option<TrafficSensitivity>,
    /// Notes about deployments that were not tried.
    untried_notes: Vec<String>,
    pub(super) origin: ResultProvenance,
    pub(super) command: String,
}

pub(super) struct DeploymentCandidateRow {
    pub(super) label: String,
    values: Vec<String>,
    prices: HourlyGpuPrices,
    /// Whether the search chose separate workers for prefill and decode.
    pub(super) split: bool,
    /// Engines of one worker, or of one group of prefill and decode workers.
    pub(super) pools: Option<WorkerPools>,
    pub(super) answer: CandidateSearchResult,
    /// Names of the LoRA adapters of the workload.
    pub(super) adapters: Vec<String>,
}

impl DeploymentCandidateRow {
    fn new(
        names: &[String],
        candidate: &DeploymentCandidate,
        answer: CandidateSearchResult,
    ) -> Self {
        let split = candidate.layout.is_some_and(|layout| layout.split);
        let mut label = flag_combination_label(names, &candidate.values);
        if split {
            label.push_str(" prefill and decode apart");
        }
        Self {
            label: label.trim_start().to_owned(),
            values: candidate.values.clone(),
            prices: candidate.prices,
            split,
            pools: candidate.pools.as_ref().ok().cloned(),
            answer,
            adapters: candidate.workload.adapters.lora.clone(),
        }
    }

    /// Returns the known prediction errors of a run, for its ratio of cached prompt tokens, or the
    /// reason why none are known.
    pub(super) fn prediction_accuracy(
        &self,
        trial: &SimulatedDeploymentTrial,
    ) -> Result<&KnownPredictionErrors, &'static str> {
        let pools = self.pools.as_ref().ok_or("the model does not fit")?;
        let known = pools.evidence.as_ref().map_err(|why| *why)?;
        Ok(known.known_errors_for_prompts(PromptCacheUse::from_reused_prompt_ratio(
            trial.report_summary_number("prefix_cache_reused_ratio"),
        )))
    }

    /// Returns the cost per hour of a run's deployment, in the currency of the prices.
    pub(super) fn cost_per_hour(&self, trial: &SimulatedDeploymentTrial) -> f64 {
        let pools = self.pools.as_ref();
        pools.map_or(0.0, |pools| self.prices.cost_per_hour(pools, trial.workers))
    }

    pub(super) fn cost_of_trial(&self, trial: &SimulatedDeploymentTrial) -> DeploymentCost {
        DeploymentCost::new(self.cost_per_hour(trial), trial)
    }
}

/// Effect of more or less traffic on the cheapest deployment.
struct TrafficSensitivity {
    /// Number of workers of the cheapest deployment for each traffic factor in [`TRAFFIC_FACTORS`];
    /// `None` if the GPU or cost budget is too small.
    swings: [Option<WorkerCountByKind>; 2],
    /// Highest sustainable traffic on the cheapest deployment, as a factor of the requested
    /// traffic; [`MAX_ROOM_FACTOR`] stands for any higher one.
    room: Option<f64>,
}

impl PlanReport {
    /// Sorts the search results by cost, and finds out how other traffic changes the cheapest
    /// deployment. `command` is the command line for reports.
    ///
    /// # Errors
    /// Returns the errors of the simulated runs.
    pub(super) fn new<'c>(
        names: Vec<String>,
        question: PlanRequirements,
        prices: Option<GpuPrices>,
        answers: impl Iterator<Item = (&'c DeploymentCandidate, CandidateSearchResult)>,
        untried_notes: Vec<String>,
        command: String,
    ) -> Result<Self> {
        let row = |(candidate, answer)| {
            (candidate, DeploymentCandidateRow::new(&names, candidate, answer))
        };
        let (candidates, rows): (Vec<&DeploymentCandidate>, Vec<DeploymentCandidateRow>) =
            answers.map(row).unzip();
        let origin = ResultProvenance::combine_provenances(candidates.iter().map(|candidate| {
            candidate.pools.as_ref().map_or_else(|misfit| &misfit.provenance, |it| &it.provenance)
        }));
        let costs = |at: &usize| {
            let row = &rows[*at];
            let found = row.answer.found.as_ref();
            found.map_or(f64::INFINITY, |trial| row.cost_per_hour(trial) / trial.traffic)
        };
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.retain(|at| rows[*at].answer.found.is_some());
        // The sort is stable: of equal costs, the first combination wins.
        order.sort_by(|a, b| costs(a).total_cmp(&costs(b)));
        let cheapest = order
            .first()
            .and_then(|&at| Some((candidates[at], rows[at].answer.found.as_ref()?.workers)));
        let outlook = match cheapest {
            Some((candidate, workers))
                if question.fixed_workers.is_none()
                    && candidate.workload.replay_concurrency.is_none() =>
            {
                let mut runner = TrialRunner::new(candidate, &question).map_err(Clone::clone)?;
                let [less, more] = TRAFFIC_FACTORS.map(|traffic| runner.fewest(traffic));
                let room = runner.bisect_most_traffic(workers, MAX_ROOM_FACTOR)?;
                Some(TrafficSensitivity {
                    swings: [less?, more?].map(|trial| trial.map(|trial| trial.workers)),
                    room: room.map(|trial| trial.traffic),
                })
            }
            _ => None,
        };
        Ok(Self { names, question, prices, rows, order, outlook, untried_notes, origin, command })
    }

    /// Returns a note that the tensor-parallel size was not varied, as another one might give a
    /// result.
    fn unvaried_tensor_parallel_note(&self) -> Option<String> {
        let varied = self.names.iter().any(|name| name == "tensor-parallel-size");
        let fits = self.rows.iter().any(|row| row.pools.is_some());
        (!varied).then(|| {
            let size = match fits {
                true => "one tensor-parallel size",
                false => "a tensor-parallel size for which the model does not fit",
            };
            format!("only {size} was tried; see --vary tensor-parallel-size=1,2,4,8")
        })
    }

    pub(super) fn best_candidate_and_trial(
        &self,
    ) -> Option<(&DeploymentCandidateRow, &SimulatedDeploymentTrial)> {
        let row = &self.rows[*self.order.first()?];
        Some((row, row.answer.found.as_ref()?))
    }

    pub(super) fn cost_unit(&self) -> String {
        match &self.prices {
            Some(prices) => format!("{}/h", prices.currency),
            None => "GPUs".to_owned(),
        }
    }

    /// Returns title and summary key of each latency column: the default columns and the bounded
    /// percentiles.
    fn latency_columns(&self) -> Vec<(String, String)> {
        let usual = [
            ("TTFT p50 ms", "median_ttft_ms"),
            ("TTFT p99 ms", "p99_ttft_ms"),
            ("ITL p99 ms", "p99_tpot_ms"),
            ("E2E p99 ms", "p99_e2e_latency_ms"),
        ];
        let mut all: Vec<_> = usual.map(|(title, key)| (title.to_owned(), key.to_owned())).into();
        for bound in &self.question.bounds {
            if all.iter().all(|(title, _)| *title != bound.latency_bound_column_title()) {
                all.push((bound.latency_bound_column_title(), bound.report_summary_key()));
            }
        }
        all
    }

    /// Returns the latencies of a run that the answer shows: the bounded percentiles, or without
    /// bounds the 99th percentiles of TTFT and inter-token latency.
    pub(super) fn displayed_latencies(&self, trial: &SimulatedDeploymentTrial) -> Vec<String> {
        let bounds = self.question.bounds.iter();
        let mut wanted: Vec<(String, String)> = bounds
            .map(|bound| (bound.latency_bound_column_title(), bound.report_summary_key()))
            .collect();
        if wanted.is_empty() {
            wanted = self.latency_columns();
            wanted.retain(|(title, _)| title.starts_with("TTFT p99") || title.starts_with("ITL"));
        }
        let shown = |(title, key): (String, String)| {
            let name = title.trim_end_matches(" ms").to_owned();
            format!("{name} {:.1} ms", trial.report_summary_number(&key))
        };
        wanted.into_iter().map(shown).collect()
    }

    /// Returns a description of the goal that a successful deployment reaches.
    fn goal_description(&self) -> String {
        let mut trials = self.rows.iter().flat_map(|row| &row.answer.trials);
        match trials.any(|trial| !trial.has_latency_bounds()) {
            true => "every --bound kept".to_owned(),
            false => format!("{} % of the requests good", 100.0 * self.question.attainment),
        }
    }

    /// Returns the column headings and the rows of the plan's table: cheapest deployment first,
    /// combinations without a result last.
    pub(super) fn candidate_table_cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut head = self.names.clone();
        head.extend(["workers", "GPUs"].map(str::to_owned));
        if let Some(prices) = &self.prices {
            let currency = &prices.currency;
            head.push(self.cost_unit());
            head.extend([format!("{currency}/month"), format!("{currency}/1M out")]);
        }
        if self.question.fixed_workers.is_some() {
            head.push("traffic".to_owned());
        }
        head.extend(["req/s", "good %"].map(str::to_owned));
        let latencies = self.latency_columns();
        head.extend(latencies.iter().map(|(title, _)| title.clone()));
        head.extend(["tok/s/user", "tok/s/GPU", "known error"].map(str::to_owned));
        let without_result = (0..self.rows.len()).filter(|at| !self.order.contains(at));
        let all = self.order.iter().copied().chain(without_result);
        let rows = all.map(|at| {
            let row = &self.rows[at];
            let mut cells = row.values.clone();
            let Some(trial) = &row.answer.found else {
                cells.push(if row.split { "–+–" } else { "–" }.to_owned());
                cells.resize(head.len(), "–".to_owned());
                return cells;
            };
            let workers = row
                .pools
                .as_ref()
                .map_or(trial.workers, |group| trial.workers.split_groups_into_workers(group));
            cells.push(workers.worker_count_table_cell());
            cells.push(trial.gpus.to_string());
            if self.prices.is_some() {
                let cost = row.cost_of_trial(trial);
                cells.push(format!("{:.2}", cost.per_hour));
                cells.push(format!("{:.0}", cost.per_month));
                let per_million = cost.per_million_output;
                cells.push(per_million.map_or_else(|| "–".to_owned(), |it| format!("{it:.3}")));
            }
            if self.question.fixed_workers.is_some() {
                cells.push(format!("{:.3} x", trial.traffic));
            }
            cells.push(format!("{:.2}", trial.report_summary_number("request_throughput_rps")));
            cells.push(match trial.has_latency_bounds() {
                true => format!("{:.1}", 100.0 * trial.attainment),
                false => "–".to_owned(),
            });
            for (_, key) in &latencies {
                cells.push(format!("{:.1}", trial.report_summary_number(key)));
            }
            cells.push(format!("{:.1}", tokens_per_second_per_user(trial)));
            cells.push(format!("{:.1}", tokens_per_second_per_gpu(trial)));
            let evidence = row.prediction_accuracy(trial);
            cells.push(evidence.map_or_else(|_| "none".to_owned(), |known| known.short.clone()));
            cells
        });
        let rows = rows.collect();
        (head, rows)
    }

    pub(super) fn candidate_table_notes(&self) -> Vec<String> {
        let goal = self.goal_description();
        let mut notes = Vec::new();
        if let Some(prices) = &self.prices {
            notes.push(format!("prices of {}, in {}", prices.date, prices.currency));
        }
        match self.best_candidate_and_trial() {
            None => notes.extend(self.unvaried_tensor_parallel_note()),
            Some(_) if self.prices.is_none() && self.names.iter().any(|name| name == "gpu") => {
                notes.push(
                    "no prices were given (--prices): a GPU of any kind counts as one".to_owned(),
                );
            }
            Some(_) if self.prices.is_none() => {
                notes.push("no prices were given (--prices): GPUs are counted".to_owned());
            }
            Some(_) => {}
        }
        match self.best_candidate_and_trial() {
            None => notes.push(format!(
                "no deployment of {} {}",
                self.search_limits(),
                match goal.strip_suffix(" good") {
                    Some(share) => format!("makes {share} good"),
                    None => "keeps every --bound".to_owned(),
                }
            )),
            Some(_) if self.question.fixed_workers.is_some() => {
                notes.push(format!("* most traffic for its cost with {goal}"))
            }
            Some((row, best)) => {
                let least = match self.prices {
                    Some(_) => "cheapest",
                    None => "fewest GPUs",
                };
                notes.push(format!("* {least} with {goal}"));
                notes.extend(self.next_best_note(row.cost_per_hour(best)));
            }
        }
        notes.extend(self.outlook_note());
        notes.extend(self.deployment_warnings().into_iter().map(|text| format!("warning: {text}")));
        for row in &self.rows {
            if let Some(why) = &row.answer.why {
                let place = match row.label.as_str() {
                    "" => "this deployment",
                    label => label,
                };
                notes.push(format!("{place}: {why}"));
            }
        }
        notes.extend(self.untried_notes.iter().cloned());
        notes.extend(self.transfer_note());
        notes.extend(self.best_context_notes());
        if let Some(deployed) = self.best_deployment_commands() {
            notes.push(match deployed.vllm_serve_command() {
                Some(command) => format!("to deploy: {command}"),
                None => "to deploy: with SGLang, whose flags have other names; plan writes \
                         commands and files for vLLM"
                    .to_owned(),
            });
            notes.extend(deployed.router_description().map(|router| format!("router: {router}")));
            notes.push(format!("to rehearse: {}", deployed.simulation_commands()));
            let files = deployed.local_file_flags();
            if !files.is_empty() {
                let files = files.join(", ");
                notes.push(format!("these flags name files on this machine: {files}"));
            }
        }
        notes.extend(self.reliability_notes());
        notes
    }

    /// Describes the deployments that the search may use, such as `up to 64 GPUs`.
    fn search_limits(&self) -> String {
        if let Some(workers) = self.question.fixed_workers {
            return WorkerCountByKind::Groups(workers).worker_count_in_words();
        }
        let cost = |cost| format!(" and {cost} {}", self.cost_unit());
        let cost = self.question.max_cost.map_or_else(String::new, cost);
        format!("up to {} GPUs{cost}", self.question.max_gpus)
    }

    fn next_best_note(&self, cheapest: f64) -> Option<String> {
        let row = &self.rows[*self.order.get(1)?];
        let found = row.answer.found.as_ref()?;
        let more = 100.0 * (row.cost_per_hour(found) / cheapest - 1.0);
        Some(format!(
            "next best: {}, {}, {:.2} {} (+{more:.1} %)",
            row.label,
            found.workers.split_groups_into_workers(row.pools.as_ref()?).worker_count_in_words(),
            row.cost_per_hour(found),
            self.cost_unit()
        ))
    }

    fn outlook_note(&self) -> Option<String> {
        let outlook = self.outlook.as_ref()?;
        let group = self.best_candidate_and_trial()?.0.pools.as_ref()?;
        let most = self.question.max_gpus;
        let workers = |workers: Option<WorkerCountByKind>| match workers {
            Some(workers) => workers.split_groups_into_workers(group).worker_count_in_words(),
            None => format!("more than {most} GPUs"),
        };
        let [less, more] = outlook.swings.map(workers);
        let room = outlook.room.map_or_else(String::new, |room| {
            let bound = if room >= MAX_ROOM_FACTOR { "at least " } else { "" };
            format!("; unchanged, it serves {bound}{room:.2} times the traffic")
        });
        Some(format!("traffic -20 %: {less}, +20 %: {more}{room}"))
    }

    /// Returns notes about the context length of the cheapest deployment.
    fn best_context_notes(&self) -> Vec<String> {
        let Some((row, best)) = self.best_candidate_and_trial() else {
            return Vec::new();
        };
        let requests = ["rejected_requests", "num_requests"];
        let requests = requests.map(|key| best.report_summary_number(key));
        row.pools.as_ref().map_or_else(Vec::new, |pools| context_notes(pools, requests))
    }

    /// Returns a note about the duration of KV transfers between prefill and decode workers.
    fn transfer_note(&self) -> Option<String> {
        let time = self.origin.kv_transfers.as_ref()?;
        Some(format!("prefill and decode apart: KV transfers take {time}"))
    }

    /// Returns the commands that start the servers of the cheapest deployment.
    pub(super) fn best_deployment_commands(&self) -> Option<DeploymentCommands<'_>> {
        let (row, best) = self.best_candidate_and_trial()?;
        DeploymentCommands::new(row.pools.as_ref()?, best, &row.adapters)
    }

    pub(super) fn simulator_chart_helm_values(&self) -> Option<String> {
        self.best_deployment_commands()?.simulator_chart_helm_values()
    }

    pub(super) fn render_plan_table(&self) -> String {
        let (head, rows) = self.candidate_table_cells();
        let mut lines: Vec<String> = self.best_deployment_summary_line().into_iter().collect();
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let mut table = render_text_table(&head, &rows, self.names.len());
        if !self.order.is_empty() {
            table[1].push_str("  *");
        }
        lines.extend(table);
        lines.extend(self.candidate_table_notes());
        lines.join("\n")
    }

    pub(super) fn plan_report_json(&self) -> Value {
        let trial = |row: &DeploymentCandidateRow, trial: &SimulatedDeploymentTrial| {
            let cost = self.prices.as_ref().map(|_| row.cost_of_trial(trial));
            let (prefill, decode) = trial.workers.worker_pool_repeat_counts();
            json!({
                "workers": trial.workers.total_workers(),
                "prefill_workers": row.split.then_some(prefill),
                "decode_workers": row.split.then_some(decode),
                "gpus": trial.gpus,
                "cost_per_hour": cost.as_ref().map(|cost| cost.per_hour),
                "cost_per_month": cost.as_ref().map(|cost| cost.per_month),
                "cost_per_million_output_tokens": cost.as_ref().map(|cost| cost.per_million_output),
                "cost_per_million_tokens": cost.as_ref().map(|cost| cost.per_million),
                "traffic": trial.traffic,
                "missed": trial.missed,
                "untested_queue": trial.untested_queue,
                "stopped": trial.stopped,
                "attainment": (!trial.stopped).then_some(trial.attainment),
                "output_tokens_per_s_per_user": tokens_per_second_per_user(trial),
                "output_tokens_per_s_per_gpu": tokens_per_second_per_gpu(trial),
                "summary": trial.summary,
            })
        };
        let points = self.rows.iter().map(|row| {
            let flags = self.names.iter().zip(&row.values);
            let flags: Map<String, Value> = flags
                .map(|(name, value)| (name.clone(), json!(value)))
                .collect();
            let trials = row.answer.trials.iter().map(|run| trial(row, run));
            json!({
                "flags": flags,
                "disaggregated": row.split,
                "found": row.answer.found.as_ref().map(|found| trial(row, found)),
                "error": row.answer.why,
                "evidence": row.answer.found.as_ref().and_then(|found| row.prediction_accuracy(found).ok()).map(
                    |known| json!({"recorded": known.recorded, "errors": known.errors}),
                ),
                "trials": trials.collect::<Vec<_>>(),
            })
        });
        let deployed = self.best_deployment_commands();
        json!({
            "schema": "vllm-sim/plan/1",
            "run": self.origin.provenance_json(&self.command),
            "answer": self.best_deployment_summary_line(),
            "warnings": self.deployment_warnings(),
            "command": self.command,
            "attainment": self.question.attainment,
            "max_gpus": self.question.max_gpus,
            "fixed_workers": self.question.fixed_workers,
            "prices": self.prices.as_ref().map(|prices| json!({
                "date": prices.date,
                "currency": prices.currency,
            })),
            "order": self.order,
            "points": points.collect::<Vec<_>>(),
            "outlook": self.outlook.as_ref().map(|outlook| json!({
                "traffic": TRAFFIC_FACTORS,
                "workers": outlook.swings.map(|workers| workers.map(WorkerCountByKind::total_workers)),
                "most_traffic": outlook.room,
                "most_traffic_is_lower_bound": outlook.room >= Some(MAX_ROOM_FACTOR),
            })),
            "deploy": deployed.as_ref().and_then(DeploymentCommands::vllm_serve_command),
            "router": deployed.as_ref().and_then(DeploymentCommands::router_description),
            "rehearse": deployed.as_ref().map(DeploymentCommands::simulation_commands),
        })
    }
}

pub(super) fn tokens_per_second_per_user(trial: &SimulatedDeploymentTrial) -> f64 {
    let gap = trial.report_summary_number("mean_tpot_ms");
    if gap > 0.0 { 1e3 / gap } else { 0.0 }
}

pub(super) fn tokens_per_second_per_gpu(trial: &SimulatedDeploymentTrial) -> f64 {
    trial.report_summary_number("output_throughput_tok_s") / f64::from(trial.gpus.max(1))
}
