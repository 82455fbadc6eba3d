use super::cli_mode::CliMode;
use super::error::{ConfigError, bail, invalid};
use super::flags::{engine, server};
use super::values::FlagValues;
use vllm_sim_engine::latency::{All2AllBackend, WeightShardingRanks};

/// Settings of parallel sizes and data-parallel ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParallelConfig {
    /// Tensor-parallel size of an engine, in GPUs (default 1).
    pub tensor: u32,
    /// Pipeline-parallel size of an engine, in stages (default 1).
    pub pipeline: u32,
    /// Decode context parallel size: GPUs of a tensor-parallel group that share a context's KV
    /// cache (default 1).
    pub context: u32,
    /// Prefill context parallel size: tensor-parallel groups that share the tokens of a prompt
    /// (default 1).
    pub prefill_context: u32,
    /// Data-parallel size, in engines (default 1).
    pub data: u32,
    /// First data-parallel rank of this process, and number of its ranks (default all).
    pub local_ranks: (u32, u32),
    /// Load balancing between data-parallel ranks.
    pub balance: DataParallelLoadBalancing,
    /// HTTP port of the supervisor in multi-port mode (default 9256); `None` in other modes.
    pub supervisor_port: Option<u16>,
    /// Host of the API server that headless engines join (default 127.0.0.1).
    pub address: String,
    /// RPC port of the API server that headless engines join (default 29550).
    pub rpc_port: u16,
    /// Number of imitated API server processes, which affects metrics and profiling. Default: the
    /// data-parallel size.
    pub api_servers: u32,
    /// Whether the model's experts are spread over data-parallel ranks (expert parallelism).
    pub expert: bool,
    /// Backend of the all-to-all exchange of tokens between expert-parallel ranks.
    pub all2all: All2AllBackend,
}

/// Load balancing between data-parallel ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataParallelLoadBalancing {
    /// One server and port for all ranks; requests go to the least loaded rank (vLLM's default).
    Internal,
    /// One port per data-parallel rank, `port + rank` (llm-d; vLLM's multi-port mode).
    #[default]
    PortPerRank,
    /// One data-parallel rank per process; an external load balancer distributes requests.
    External,
    /// One port for the ranks of a host; an external load balancer distributes requests between
    /// hosts.
    Hybrid,
}

impl ParallelConfig {
    /// Returns how many GPUs share the weights of each layer of a pipeline stage, and how many
    /// share those of the experts.
    pub fn weight_sharding_ranks(&self) -> WeightShardingRanks {
        WeightShardingRanks::new(self.tensor, self.data.saturating_mul(self.prefill_context))
    }

    /// Returns the number of GPUs of one engine.
    pub fn world_size(&self) -> u32 {
        let stage = self.tensor.saturating_mul(self.prefill_context);
        stage.saturating_mul(self.pipeline)
    }

    pub(super) fn from_flag_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let data = v.get(&engine::DATA_PARALLEL_SIZE)?;
        let rank = read_data_parallel_rank(v, data)?;
        let balance = read_load_balancing(v, rank)?;
        let local_ranks = local_ranks(v, data, rank, balance)?;
        let multi_port = v.get(&engine::DATA_PARALLEL_MULTI_PORT_EXTERNAL_LB)?;
        let supervisor_port = v.get(&engine::DATA_PARALLEL_SUPERVISOR_PORT)?;
        if multi_port {
            check_supervisor_port(v, supervisor_port, local_ranks.1)?;
        }
        if v.get(&server::HEADLESS)?
            && let Some(servers) = v.get(&engine::API_SERVER_COUNT)?.filter(|n| *n > 0)
        {
            bail!(
                "--api-server-count={servers} cannot be used with --headless (no API servers are \
                 started in headless mode)."
            );
        }
        Ok(Self {
            tensor: v.get(&engine::TENSOR_PARALLEL_SIZE)?,
            pipeline: v.get(&engine::PIPELINE_PARALLEL_SIZE)?,
            context: read_decode_context_parallel_size(v)?,
            prefill_context: v.get(&engine::PREFILL_CONTEXT_PARALLEL_SIZE)?,
            data,
            local_ranks,
            balance,
            supervisor_port: multi_port.then_some(supervisor_port),
            address: v.get(&engine::DATA_PARALLEL_ADDRESS)?,
            rpc_port: v.get(&engine::DATA_PARALLEL_RPC_PORT)?,
            api_servers: api_servers(v, data, local_ranks.1, balance)?,
            expert: v.get(&engine::ENABLE_EXPERT_PARALLEL)?,
            all2all: v.get(&engine::ALL2ALL_BACKEND)?.map_or(All2AllBackend::default(), |name| {
                All2AllBackend::from_all2all_backend_flag(&name)
            }),
        })
    }
}

/// Checks and returns the decode context parallel size, in GPUs.
///
/// **Source:** vLLM 0.33 `vllm/config/parallel.py`, `_validate_parallel_config`.
fn read_decode_context_parallel_size(v: &FlagValues) -> Result<u32, ConfigError> {
    let context = v.get(&engine::DECODE_CONTEXT_PARALLEL_SIZE)?;
    let tensor = v.get(&engine::TENSOR_PARALLEL_SIZE)?;
    let prefill = v.get(&engine::PREFILL_CONTEXT_PARALLEL_SIZE)?;
    let mut valid = [1, prefill, tensor.saturating_mul(prefill)];
    match prefill {
        1 if tensor.is_multiple_of(context) => Ok(context),
        1 => Err(invalid!("tp_size={tensor} must be divisible by dcp_size={context}.")),
        _ if valid.contains(&context) => Ok(context),
        _ => {
            valid.sort_unstable();
            let valid = match tensor {
                1 => format!("{:?}", &valid[..2]),
                _ => format!("{valid:?}"),
            };
            Err(invalid!(
                "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full \
                 TP x PCP axis. Got TP={tensor}, PCP={prefill}, DCP={context}; valid DCP sizes are \
                 {valid}."
            ))
        }
    }
}

fn check_supervisor_port(v: &FlagValues, supervisor: u16, ranks: u32) -> Result<(), ConfigError> {
    let first = v.get(&server::PORT)?;
    let last = u32::from(first) + ranks - 1;
    if first != 0 && (u32::from(first)..=last).contains(&u32::from(supervisor)) {
        bail!(
            "--data-parallel-supervisor-port {supervisor} overlaps with child rank ports \
             {first}-{last}"
        );
    }
    Ok(())
}

fn read_data_parallel_rank(v: &FlagValues, data: u32) -> Result<Option<u32>, ConfigError> {
    let flag = &engine::DATA_PARALLEL_RANK;
    let rank = v.get(flag)?;
    if rank == -1 {
        return Ok(None);
    }
    match v.cli_mode {
        // llm-d ignores the size if a rank is set.
        CliMode::Llmd => {
            v.check_integer_range(flag, rank, 0..=7, "data parallel rank must be between 0 and 7")
        }
        CliMode::Vllm => {
            let last = i64::from(data) - 1;
            let words = format!("data parallel rank must be between 0 and {last}");
            v.check_integer_range(flag, rank, 0..=last, &words)
        }
    }
    .map(Some)
}

fn read_load_balancing(
    v: &FlagValues,
    rank: Option<u32>,
) -> Result<DataParallelLoadBalancing, ConfigError> {
    let external = v.get(&engine::DATA_PARALLEL_EXTERNAL_LB)? || rank.is_some();
    let hybrid = v.get(&engine::DATA_PARALLEL_HYBRID_LB)?;
    let multi_port = v.get(&engine::DATA_PARALLEL_MULTI_PORT_EXTERNAL_LB)?;
    match (external, hybrid, multi_port) {
        (true, false, false) => Ok(DataParallelLoadBalancing::External),
        (false, true, false) => Ok(DataParallelLoadBalancing::Hybrid),
        (false, false, true) => Ok(DataParallelLoadBalancing::PortPerRank),
        (false, false, false) => Ok(match v.cli_mode {
            CliMode::Llmd => DataParallelLoadBalancing::PortPerRank,
            CliMode::Vllm => DataParallelLoadBalancing::Internal,
        }),
        _ => Err(invalid!(
            "data-parallel-external-lb (or data-parallel-rank), data-parallel-hybrid-lb and \
             data-parallel-multi-port-external-lb cannot be used together"
        )),
    }
}

fn local_ranks(
    v: &FlagValues,
    data: u32,
    rank: Option<u32>,
    balance: DataParallelLoadBalancing,
) -> Result<(u32, u32), ConfigError> {
    if let Some(rank) = rank {
        return Ok((rank, 1));
    }
    let last = i64::from(data) - 1;
    let words = format!("data-parallel-start-rank must be between 0 and {last}");
    let flag = &engine::DATA_PARALLEL_START_RANK;
    let first: u32 = v.check_integer_range(flag, v.get(flag)?.unwrap_or(0), 0..=last, &words)?;
    let left = data - first;
    let words = format!("data-parallel-size-local must be between 1 and {left}");
    let flag = &engine::DATA_PARALLEL_SIZE_LOCAL;
    let count = v.get(flag)?.unwrap_or(i64::from(left));
    let count = v.check_integer_range(flag, count, 1..=i64::from(left), &words)?;
    Ok(match balance {
        DataParallelLoadBalancing::External => (first, 1),
        _ => (first, count),
    })
}

/// Returns the number of API server processes; the default is vLLM's.
fn api_servers(
    v: &FlagValues,
    data: u32,
    local: u32,
    balance: DataParallelLoadBalancing,
) -> Result<u32, ConfigError> {
    let typed = v.get(&engine::API_SERVER_COUNT)?;
    Ok(match (typed, balance) {
        (Some(count), _) => count,
        (None, DataParallelLoadBalancing::Internal) => data,
        (None, DataParallelLoadBalancing::Hybrid) => local,
        (None, DataParallelLoadBalancing::External | DataParallelLoadBalancing::PortPerRank) => 1,
    })
}
