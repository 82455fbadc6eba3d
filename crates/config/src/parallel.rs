use super::CliMode;
use super::error::ConfigError;
use super::values::Values;

/// Ranks and how they are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parallel {
    /// Tensor parallel size [1].
    pub tensor: u32,
    /// Pipeline parallel size [1].
    pub pipeline: u32,
    /// Data parallel size [1].
    pub data: u32,
    /// Ranks in this process, first and count: all of them unless the flags say otherwise.
    pub local_ranks: (u32, u32),
    /// How ranks are reached.
    pub balance: Balance,
    /// Port of the supervisor (multi-port mode) [9256].
    pub supervisor_port: Option<u16>,
    /// API server processes to report [data parallel size].
    pub api_servers: u32,
    /// Experts spread over ranks.
    pub expert: bool,
}

/// How data-parallel ranks are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// One port, one server, the least loaded rank gets the request (vLLM's default).
    Internal,
    /// Each rank on its own port, `port + rank` (llm-d; vLLM's multi-port mode).
    #[default]
    PortPerRank,
    /// One rank only, somebody else balances.
    External,
    /// Some ranks behind one port, somebody else balances between hosts.
    Hybrid,
}

impl Parallel {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let many = i64::from(u16::MAX);
        let size = |name: &str, what: &str| {
            v.ranged::<u32>(name, 1..=many, &format!("{what} cannot be less than 1"))
        };
        let (greatest, words) = match v.cli_mode {
            CliMode::Llmd => (8, "data parallel size must be between 1 and 8"),
            CliMode::Vllm => (1024, "data parallel size must be between 1 and 1024"),
        };
        let data: u32 = v.ranged("data-parallel-size", 1..=greatest, words)?;
        let rank = rank(v, data)?;
        let balance = balance(v, rank)?;
        let local_ranks = local_ranks(v, data, rank, balance)?;
        let multi_port = v.switch("data-parallel-multi-port-external-lb")?;
        let supervisor_port: u16 = v.ranged(
            "data-parallel-supervisor-port",
            1..=65535,
            "invalid data-parallel-supervisor-port: 1 to 65535 are allowed",
        )?;
        if multi_port {
            apart(v, supervisor_port, local_ranks.1)?;
        }
        if v.switch("headless")?
            && let Some(servers) = v.opt_int("api-server-count")?.filter(|n| *n > 0)
        {
            return Err(ConfigError::Invalid(format!(
                "--api-server-count={servers} cannot be used with --headless (no API servers are \
                 started in headless mode)."
            )));
        }
        Ok(Self {
            tensor: size("tensor-parallel-size", "tensor parallel size")?,
            pipeline: size("pipeline-parallel-size", "pipeline parallel size")?,
            data,
            local_ranks,
            balance,
            supervisor_port: multi_port.then_some(supervisor_port),
            api_servers: api_servers(v, data, local_ranks.1, balance)?,
            expert: v.switch("enable-expert-parallel")?,
        })
    }
}

/// Whether the supervisor has a port of its own.
fn apart(v: &Values, supervisor: u16, ranks: u32) -> Result<(), ConfigError> {
    let first: u16 = v.ranged("port", 0..=65535, "invalid port: 1 to 65535 are allowed")?;
    let last = u32::from(first) + ranks - 1;
    if first != 0 && (u32::from(first)..=last).contains(&u32::from(supervisor)) {
        return Err(ConfigError::Invalid(format!(
            "--data-parallel-supervisor-port {supervisor} overlaps with child rank ports \
             {first}-{last}"
        )));
    }
    Ok(())
}

/// The one rank to run, if only one is.
fn rank(v: &Values, data: u32) -> Result<Option<u32>, ConfigError> {
    let name = "data-parallel-rank";
    let rank = v.int(name)?;
    if rank == -1 {
        return Ok(None);
    }
    match v.cli_mode {
        // llm-d ignores the size once the rank is named.
        CliMode::Llmd => v.ranged(name, 0..=7, "data parallel rank must be between 0 and 7"),
        CliMode::Vllm => {
            let last = i64::from(data) - 1;
            let words = format!("data parallel rank must be between 0 and {last}");
            v.ranged(name, 0..=last, &words)
        }
    }
    .map(Some)
}

fn balance(v: &Values, rank: Option<u32>) -> Result<Balance, ConfigError> {
    let external = v.switch("data-parallel-external-lb")? || rank.is_some();
    let hybrid = v.switch("data-parallel-hybrid-lb")?;
    let multi_port = v.switch("data-parallel-multi-port-external-lb")?;
    match (external, hybrid, multi_port) {
        (true, false, false) => Ok(Balance::External),
        (false, true, false) => Ok(Balance::Hybrid),
        (false, false, true) => Ok(Balance::PortPerRank),
        (false, false, false) => Ok(match v.cli_mode {
            CliMode::Llmd => Balance::PortPerRank,
            CliMode::Vllm => Balance::Internal,
        }),
        _ => Err(ConfigError::Invalid(
            "data-parallel-external-lb (or data-parallel-rank), data-parallel-hybrid-lb and \
             data-parallel-multi-port-external-lb exclude each other"
                .to_owned(),
        )),
    }
}

/// First rank of this process, and how many.
fn local_ranks(
    v: &Values,
    data: u32,
    rank: Option<u32>,
    balance: Balance,
) -> Result<(u32, u32), ConfigError> {
    if let Some(rank) = rank {
        return Ok((rank, 1));
    }
    let last = i64::from(data) - 1;
    let words = format!("data-parallel-start-rank must be between 0 and {last}");
    let first: u32 = v
        .opt_ranged("data-parallel-start-rank", 0..=last, &words)?
        .unwrap_or(0);
    let left = data - first;
    let words = format!("data-parallel-size-local must be between 1 and {left}");
    let count = v.opt_ranged("data-parallel-size-local", 1..=i64::from(left), &words)?;
    Ok(match balance {
        Balance::External => (first, 1),
        _ => (first, count.unwrap_or(left)),
    })
}

/// vLLM's default count of API server processes.
fn api_servers(v: &Values, data: u32, local: u32, balance: Balance) -> Result<u32, ConfigError> {
    let words = "api-server-count cannot be negative";
    let typed = v.opt_ranged("api-server-count", 0..=1024, words)?;
    Ok(match (typed, balance) {
        (Some(count), _) => count,
        (None, Balance::Internal) => data,
        (None, Balance::Hybrid) => local,
        (None, Balance::External | Balance::PortPerRank) => 1,
    })
}
