//! Chooses the parallelism that plan tries where the command line describes none.

use anyhow::Result;

use super::search::DeploymentCandidate;
use crate::grid::FlagGridAxis;
use vllm_sim_command_line::UsageError;
use vllm_sim_config::ConfigError;
use vllm_sim_replay_cli::PoolArgs;

/// Parallelism of one deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ParallelLayout {
    /// Tensor-parallel size of the deployment's engines.
    pub(super) tensor: u32,
    /// Data-parallel size of the deployment; above 1 the data-parallel ranks share experts.
    pub(super) data: u32,
    /// Whether prefill and decode have workers of their own.
    pub(super) split: bool,
}

impl ParallelLayout {
    fn world(self) -> u32 {
        self.tensor * self.data
    }

    /// Returns the values of the flags that set this parallel layout, in the order of
    /// [`LAYOUT_FLAG_NAMES`].
    pub(super) fn layout_flag_values(self) -> [String; 3] {
        [self.tensor.to_string(), self.data.to_string(), (self.data > 1).to_string()]
    }

    /// Returns the parallelism of the deployment as flags of `vllm-sim`.
    fn flags(self) -> Vec<String> {
        let mut flags = vec![format!("--{}={}", LAYOUT_FLAG_NAMES[0], self.tensor)];
        if self.data > 1 {
            flags.push(format!("--{}={}", LAYOUT_FLAG_NAMES[1], self.data));
            flags.push(format!("--{}", LAYOUT_FLAG_NAMES[2]));
        }
        if self.split {
            flags.push("--num-prefill-workers=1".to_owned());
            flags.push("--num-decode-workers=1".to_owned());
        }
        flags
    }
}

/// Names of the flags that set a parallel layout.
pub(super) const LAYOUT_FLAG_NAMES: [&str; 3] =
    ["tensor-parallel-size", "data-parallel-size", "enable-expert-parallel"];

/// Bandwidth of KV transfers between the prefill and decode workers of a search, in GB/s. KV caches
/// of gpt-oss-120b that NIXL pulls between H200 servers arrive at this rate over links of 400 Gb/s.
///
/// **Source:** llm-d `guides/p2p-kv-cache-sharing/benchmark-results/gpt-oss-120b-h200.md`: 2,048
/// tokens take 49 ms, 49,152 take 550 ms, of which the front end has 3.2 us a token.
pub(super) const DEFAULT_KV_TRANSFER_GB_PER_S: u32 = 10;

/// Sizes of tensor and data parallelism that the layout search tries.
const SIZES: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Maximum tensor-parallel size: the GPUs of a node that NVLink connects.
const MAX_TENSOR: u32 = 8;
/// Candidate numbers of GPUs per worker; the search uses the first on which the model fits.
const WORLDS: [u32; 3] = [8, 16, 32];

/// Flags of parallelism; where one is typed, plan tries only what the command line describes.
const PARALLELISM: [&str; 6] = [
    LAYOUT_FLAG_NAMES[0],
    LAYOUT_FLAG_NAMES[1],
    LAYOUT_FLAG_NAMES[2],
    "pipeline-parallel-size",
    "prefill-context-parallel-size",
    "decode-context-parallel-size",
];
/// Names of flags that exclude a search for separate prefill and decode workers.
const NOT_SPLIT: [&str; 4] =
    ["scheduler", "speculative-config", "kv-transfer-config", "kv-offloading-size"];
/// Names of the flags for the duration of KV transfers.
const TRANSFERS: [&str; 3] =
    ["kv-transfer-bandwidth", "kv-cache-transfer-latency", "kv-cache-transfer-time-per-token"];

/// Search over the parallelism of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParallelLayoutSearch {
    splits: bool,
    is_transfer_typed: bool,
    max_gpus: u32,
    /// Whether the model has experts, which data-parallel ranks share.
    pub(super) has_experts: bool,
}

/// Candidate deployments of a search over parallel layouts, and notes about refused layouts.
pub(super) struct ParallelLayoutCandidates {
    pub(super) candidates: Vec<DeploymentCandidate>,
    pub(super) notes: Vec<String>,
}

impl ParallelLayoutSearch {
    /// Returns the search over parallel layouts; `None` unless the flags name a GPU and set no
    /// parallelism.
    ///
    /// `typed` has the flags of `serve` that the command line, files and variables set.
    pub(super) fn new(
        pools: &PoolArgs,
        max_gpus: u32,
        axes: &[FlagGridAxis],
        typed: &[(String, String)],
    ) -> Option<Self> {
        let is_typed = |name: &str| {
            let mut typed = typed.iter();
            typed.any(|(flag, _)| flag.trim_start_matches('-') == name)
                || axes.iter().any(|axis| axis.name == name)
        };
        let is_described = PARALLELISM.into_iter().any(is_typed)
            || !pools.has_one_worker_kind()
            || pools.num_prefill_workers.is_some()
            || pools.num_decode_workers.is_some()
            || ["num-prefill-workers", "num-decode-workers", "pool-flags"]
                .into_iter()
                .any(is_typed);
        let is_searched = is_typed("gpu") && !is_described;
        is_searched.then(|| Self {
            splits: !NOT_SPLIT.into_iter().any(is_typed),
            is_transfer_typed: TRANSFERS.into_iter().any(is_typed),
            max_gpus,
            has_experts: false,
        })
    }

    /// Builds the candidate deployments for one combination of varied flags.
    ///
    /// The workers take up to 8 GPUs, or more if the model fits on no 8.
    ///
    /// # Errors
    /// The error of the smallest layout if all are refused.
    pub(super) fn build_layout_candidates(
        self,
        build: &dyn Fn(ParallelLayout, &[String]) -> Result<DeploymentCandidate>,
    ) -> Result<ParallelLayoutCandidates> {
        // Ranks of a model without experts are servers of their own.
        let datas = if self.has_experts { &SIZES[..] } else { &SIZES[..1] };
        let mut all = ParallelLayoutCandidates { candidates: Vec::new(), notes: Vec::new() };
        let mut refused = None;
        for (index, world) in WORLDS.into_iter().enumerate() {
            let least = if index == 0 { 1 } else { world };
            for layout in layouts(datas).filter(|it| (least..=world).contains(&it.world())) {
                // The smallest is always tried, so that the answer says that it takes too many
                // GPUs.
                if layout.world() > self.max_gpus && layout.world() > 1 {
                    continue;
                }
                match build(layout, &layout.flags()) {
                    Ok(candidate) => all.candidates.push(candidate),
                    Err(error) if is_usage(&error) => {
                        if !divides_no_heads(&error) {
                            all.notes.push(format!("not tried: {error:#}"));
                        }
                        refused.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let mut candidates = all.candidates.iter();
            if candidates.any(|candidate| candidate.pools.is_ok()) || datas.len() == 1 {
                break;
            }
        }
        match refused {
            Some(error) if all.candidates.is_empty() => return Err(error),
            _ => {}
        }
        if self.splits {
            self.add_splits(&mut all, build)?;
        }
        Ok(all)
    }

    /// Adds a parallel layout with separate prefill and decode workers for each candidate that
    /// fits; refused layouts become notes.
    fn add_splits(
        self,
        all: &mut ParallelLayoutCandidates,
        build: &dyn Fn(ParallelLayout, &[String]) -> Result<DeploymentCandidate>,
    ) -> Result<()> {
        let fitting = all.candidates.iter().filter(|it| it.pools.is_ok());
        let layouts: Vec<ParallelLayout> = fitting.filter_map(|it| it.layout).collect();
        for layout in layouts {
            let layout = ParallelLayout { split: true, ..layout };
            if 2 * layout.world() > self.max_gpus {
                continue;
            }
            let mut flags = layout.flags();
            if !self.is_transfer_typed {
                flags.push(format!("--kv-transfer-bandwidth={DEFAULT_KV_TRANSFER_GB_PER_S}"));
            }
            match build(layout, &flags) {
                Ok(candidate) => all.candidates.push(candidate),
                Err(error) if is_usage(&error) => {
                    let note = format!("prefill and decode apart were not tried: {error:#}");
                    all.notes.push(note);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the parallel layouts that one worker may have: combinations of tensor parallelism with
/// data-parallel ranks that share experts.
fn layouts(datas: &[u32]) -> impl Iterator<Item = ParallelLayout> + '_ {
    let tensors = SIZES.into_iter().filter(|tensor| *tensor <= MAX_TENSOR);
    datas.iter().flat_map(move |&data| {
        tensors.clone().map(move |tensor| ParallelLayout { tensor, data, split: false })
    })
}

fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<ConfigError>() || error.is::<UsageError>() || divides_no_heads(error)
}

/// Returns whether a tensor-parallel size is refused because it does not divide the attention
/// heads.
fn divides_no_heads(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<ConfigError>();
    error.is_some_and(|error| {
        matches!(error.error_without_warnings(), ConfigError::UndividedHeads { .. })
    })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use clap::Parser;

    use super::*;
    use crate::plan::Args;
    use vllm_sim_engine::sched::SchedulerSpec;
    use vllm_sim_replay::{PoolSpec, RouterConfig};
    use vllm_sim_replay_cli::{ResultProvenance, StepTimeSettingSource, WorkerPools};

    fn candidate(layout: ParallelLayout) -> DeploymentCandidate {
        let args = Args::parse_from(["--slo-ttft-ms", "9"]);
        let engine = SchedulerSpec::Pool(Box::default());
        DeploymentCandidate {
            values: Vec::new(),
            layout: Some(layout),
            workload: args.workload,
            report: args.report,
            pools: Ok(WorkerPools {
                prefill: None,
                serving: PoolSpec::new(engine, 1, RouterConfig::RoundRobin),
                gpus: (1, 1),
                ranks: (1, 1),
                evidence: None,
                router: (String::new(), None),
                seed: 0,
                step_times: StepTimeSettingSource::Configured,
                about: Vec::new(),
                warnings: Vec::new(),
                has_one_worker_kind: true,
                provenance: ResultProvenance::default(),
            }),
            price: 1.0,
        }
    }

    /// Searches layouts of up to 8 GPUs; the split of tensor-parallel size 2 has an error.
    fn search(error: impl Fn() -> anyhow::Error) -> Result<ParallelLayoutCandidates> {
        let search = ParallelLayoutSearch {
            splits: true,
            is_transfer_typed: false,
            max_gpus: 8,
            has_experts: false,
        };
        search.build_layout_candidates(&|layout, _| match layout {
            ParallelLayout { tensor: 2, split: true, .. } => Err(error()),
            layout => Ok(candidate(layout)),
        })
    }

    #[test]
    fn a_refused_split_is_a_note_and_the_next_one_is_tried() {
        let found = search(|| UsageError("no such split".to_owned()).into()).expect("has layouts");
        let splits = found.candidates.iter().filter_map(|it| it.layout).filter(|it| it.split);
        assert_eq!(splits.map(|layout| layout.tensor).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(found.notes, ["prefill and decode apart were not tried: no such split"]);
        // Any other error is one of the plan.
        let error = search(|| anyhow!("the file is gone")).err().expect("fails");
        assert_eq!(error.to_string(), "the file is gone");
    }
}
