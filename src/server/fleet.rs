//! Several servers in one process: one port per data-parallel rank, and independent replicas.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::error::StartError;
use super::shared_assets::SharedServerAssets;
use super::supervisor::HealthSupervisor;
use super::{SimulatorServer, engines, features, replies, scenario};
use vllm_sim_config::{Config, DataParallelLoadBalancing, EngineConfig, LoadedConfig};
use vllm_sim_observe::kv_events;
use vllm_sim_service::ServingRole;

/// Servers of one process on consecutive ports: the data-parallel ranks of the first replica, then
/// those of the next.
///
/// Each server has its own engines, queues, metrics and settings. All share the tokenizer and the
/// dataset.
pub struct ServerFleet {
    servers: Vec<SimulatorServer>,
    supervisor: Option<HealthSupervisor>,
}

impl ServerFleet {
    /// Starts the configured servers: one, or several for replicas or for a port per data-parallel
    /// rank.
    ///
    /// # Errors
    /// [`StartError`] of the first server that fails; the others are stopped.
    pub async fn start_all_servers(loaded: LoadedConfig) -> Result<Self, StartError> {
        let mut fleet = Self { servers: Vec::new(), supervisor: None };
        match fleet.start_members(&loaded).await {
            Ok(()) => {
                // Scripts take these lines for the start of the whole deployment.
                fleet.servers.iter().for_each(SimulatorServer::log_accepting_requests);
                Ok(fleet)
            }
            Err(error) => {
                fleet.shut_down_all_servers().await;
                Err(error)
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the engines' clock may start here")]
    async fn start_members(&mut self, loaded: &LoadedConfig) -> Result<(), StartError> {
        features::check_required_features(&loaded.config)?;
        let texts = SharedServerAssets::open_shared_assets(&loaded.config).await?;
        let scenario = scenario::read_fault_scenario(&loaded.config)?;
        let members = config_per_server(&loaded.config)?;
        // Ranks of a replica share one admin state; replicas are independent.
        let ranks = members.len() / loaded.config.engine.replicas.count.max(1) as usize;
        let mut in_step = None;
        for (index, config) in members.into_iter().enumerate() {
            if index % ranks == 0 {
                tokio::time::sleep(replica_start_delay(&config.engine, index / ranks)).await;
                // With a port per rank, the engines of several servers may run in lockstep.
                in_step = engines::lockstep_rank_group(&config, ranks as u32, Instant::now())?;
            }
            let admin_state = match self.servers.last() {
                Some(last) if index % ranks != 0 => last.app_state().admin_state().clone(),
                _ => Arc::default(),
            };
            let shared = (admin_state, in_step.clone());
            let mut member = loaded.clone();
            member.config = config;
            match SimulatorServer::start_with_assets(member, shared, texts.clone()).await {
                Ok(server) => self.servers.push(server),
                Err(error) => {
                    if let Some(in_step) = in_step {
                        in_step.stop_accepting_engines();
                    }
                    return Err(error);
                }
            }
        }
        let apps: Vec<_> = self.servers.iter().map(|server| server.app_state().clone()).collect();
        for app in &apps {
            app.set_dashboard_fleet(apps.iter().map(Arc::downgrade).collect());
        }
        for server in self.servers.iter().step_by(ranks) {
            let (state, config) = (server.app_state().admin_state(), server.config());
            scenario::start_fault_scenario(state, config, scenario.clone())?;
        }
        if let Some(port) = loaded.config.engine.parallel.supervisor_port {
            let host = loaded.config.server.host.as_deref();
            let supervisor = HealthSupervisor::start_health_endpoint(host, port, &apps).await?;
            self.supervisor = Some(supervisor);
        }
        Ok(())
    }

    /// Returns the address of the health endpoint for all servers, which vLLM's multi-port mode
    /// has.
    pub fn supervisor_address(&self) -> Option<SocketAddr> {
        self.supervisor.as_ref().map(|s| s.address)
    }

    /// Returns the running servers, in the order of their ports.
    pub fn running_servers(&self) -> &[SimulatorServer] {
        &self.servers
    }

    /// Shuts down all servers at the same time, as [`SimulatorServer::shut_down_server`] does for each.
    pub async fn shut_down_all_servers(self) {
        let services = self.servers.iter().map(|server| server.inference_service());
        replies::log_unused_scripted_replies(services);
        let mut ending = JoinSet::new();
        for server in self.servers {
            ending.spawn(server.shut_down_server());
        }
        ending.join_all().await;
    }
}

/// Returns the delay before the start of a replica; zero for the first replica.
///
/// Source: dynamo-mocker 1.6.1 `dynamo/mocker/main.py`.
fn replica_start_delay(engine: &EngineConfig, replica: usize) -> Duration {
    if replica == 0 || engine.replicas.stagger_delay.is_zero() {
        return Duration::ZERO;
    }
    let batch = match replica % 32 {
        0 => Duration::from_secs(2),
        _ => Duration::ZERO,
    };
    engine.replicas.stagger_delay + batch
}

fn config_per_server(config: &Config) -> Result<Vec<Config>, StartError> {
    let (first, count) = config.engine.parallel.local_ranks;
    let apart =
        config.engine.parallel.balance == DataParallelLoadBalancing::PortPerRank && count > 1;
    let ranks = if apart { count } else { 1 };
    let mut members = Vec::new();
    for replica in 0..config.engine.replicas.count {
        for rank in 0..ranks {
            let mut member = config.clone();
            member.engine.replicas.index = replica;
            if apart {
                member.engine.parallel.local_ranks = (first + rank, 1);
            }
            offset_ports(&mut member, replica * ranks + rank)?;
            offset_kv_event_ports(&mut member, replica * count)?;
            set_transfer_ports(&mut member, replica, rank)?;
            if replica > 0
                && let Some(name) = &mut member.server.pod.name
            {
                name.push_str(&format!("-{replica}"));
            }
            members.push(member);
        }
    }
    Ok(members)
}

/// Adds `by` to the ports of a server's sockets; port 0 stays 0, and a Unix path gets a suffix.
fn offset_ports(config: &mut Config, by: u32) -> Result<(), StartError> {
    let server = &mut config.server;
    for port in [Some(&mut server.port), server.grpc_port.as_mut()]
        .into_iter()
        .flatten()
        .filter(|port| **port != 0)
    {
        *port = offset_port(*port, by)?;
    }
    if by > 0
        && let Some(path) = &mut server.uds
    {
        path.as_mut_os_string().push(format!(".{by}"));
    }
    Ok(())
}

fn offset_port(port: u16, by: u32) -> Result<u16, StartError> {
    let moved = u32::from(port) + by;
    u16::try_from(moved).map_err(|_| StartError::Engine(format!("port {moved} is above 65535")))
}

/// Sets ports and engine id for KV transfer in the configuration of one data-parallel rank.
///
/// Ranks listen on consecutive ports, the first rank runs Mooncake's registry, and engine ids are
/// unique.
fn set_transfer_ports(config: &mut Config, replica: u32, rank: u32) -> Result<(), StartError> {
    let of_each = config.engine.parallel.data;
    if let Some(pair) = &mut config.disaggregation
        && config.engine.role == ServingRole::Prefill
    {
        pair.bootstrap_port = offset_port(pair.bootstrap_port, replica)?;
    }
    let Some(transfer) = &mut config.kv_transfer else {
        return Ok(());
    };
    transfer.bootstrap_port = match transfer.bootstrap_port {
        Some(port) if rank == 0 => Some(offset_port(port, replica)?),
        _ => None,
    };
    let channel = &mut transfer.side_channel;
    channel.port = offset_port(channel.port, replica * of_each)?;
    if replica > 0
        && let Some(name) = &mut transfer.engine_id
    {
        name.push_str(&format!("-{replica}"));
    }
    Ok(())
}

/// Adds `by` to the ports of a replica's KV event sockets; its data-parallel ranks add their own
/// offset.
fn offset_kv_event_ports(config: &mut Config, by: u32) -> Result<(), StartError> {
    let events = &mut config.kv_events;
    if !events.enabled || by == 0 {
        return Ok(());
    }
    let moved = |endpoint: &str| {
        kv_events::kv_event_endpoint_of_rank(endpoint, by)
            .map_err(|error| StartError::Engine(error.to_string()))
    };
    if kv_events::is_bind_endpoint(&events.endpoint) {
        events.endpoint = moved(&events.endpoint)?;
    }
    if let Some(endpoint) = &mut events.replay_endpoint {
        *endpoint = moved(endpoint)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_config::ParsedCommand;

    fn loaded(line: &str) -> LoadedConfig {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match vllm_sim_config::load_config(&args, &|name| {
            (name == "POD_NAME").then(|| "pod".to_owned())
        }) {
            Ok(ParsedCommand::Serve(loaded)) => *loaded,
            other => panic!("{other:?}"),
        }
    }

    fn shapes(line: &str) -> Vec<(u16, (u32, u32), String)> {
        let members = config_per_server(&loaded(line).config).unwrap();
        let shape = |c: Config| {
            let ranks = c.engine.parallel.local_ranks;
            (c.server.port, ranks, c.server.pod.name.unwrap_or_default())
        };
        members.into_iter().map(shape).collect()
    }

    #[test]
    fn llmd_ranks_have_separate_ports_and_vllm_ranks_share_one() {
        let pod = || "pod".to_owned();
        assert_eq!(
            shapes("vllm-sim --model m --port 9000 --data-parallel-size 3"),
            [(9000, (0, 1), pod()), (9001, (1, 1), pod()), (9002, (2, 1), pod())]
        );
        assert_eq!(
            shapes("vllm-sim serve m --port 9000 --data-parallel-size 3"),
            [(9000, (0, 3), pod())]
        );
        assert_eq!(
            shapes("vllm-sim --model m --port 9000 --data-parallel-size 3 --data-parallel-rank 2"),
            [(9000, (2, 1), pod())]
        );
    }

    #[test]
    fn replica_starts_are_staggered() {
        let pauses = |line: &str| {
            let engine = loaded(line).config.engine;
            [0, 1, 31, 32, 33, 64].map(|replica| replica_start_delay(&engine, replica).as_millis())
        };
        let line = |flags: &str| format!("vllm-sim --model m --port 9000 {flags}");
        assert_eq!(pauses(&line("--replicas 100")), [0; 6]);
        let told = line("--num-workers 100 --stagger-delay 0.5");
        assert_eq!(pauses(&told), [0, 500, 500, 2500, 500, 2500]);
        let own = line("--num-workers 100 --stagger-delay -1");
        assert_eq!(pauses(&own), [0, 100, 100, 2100, 100, 2100]);
        let few = line("--num-workers 32 --stagger-delay -1");
        assert_eq!(pauses(&few), [0; 6]);
    }

    #[test]
    fn replicas_use_consecutive_ports_for_all_their_ranks() {
        let line = "vllm-sim --model m --port 9000 --data-parallel-size 2 --replicas 2";
        let named = |name: &str| name.to_owned();
        assert_eq!(
            shapes(line),
            [
                (9000, (0, 1), named("pod")),
                (9001, (1, 1), named("pod")),
                (9002, (0, 1), named("pod-1")),
                (9003, (1, 1), named("pod-1")),
            ]
        );
    }

    #[test]
    fn replicas_share_no_port_of_a_transfer() {
        let line = |connector: &str, data: u32| {
            format!(
                "vllm-sim --model m --port 9000 --replicas 2 --data-parallel-size {data} \
                 --kv-transfer-config {{\"kv_connector\":\"{connector}\",\
                 \"kv_role\":\"kv_producer\",\"engine_id\":\"e\"}}"
            )
        };
        let seen = |connector: &str, data: u32| -> Vec<_> {
            let members = config_per_server(&loaded(&line(connector, data)).config).unwrap();
            let transfers = members.into_iter().map(|c| c.kv_transfer.unwrap());
            transfers
                .map(|t| (t.side_channel.port, t.bootstrap_port, t.engine_id.unwrap()))
                .collect()
        };
        let named = |name: &str| name.to_owned();
        assert_eq!(
            seen("NixlConnector", 1),
            [(5600, None, named("e")), (5601, None, named("e-1"))]
        );
        // Rank n of a replica listens on port + n: 5600 and 5601, 5602 and 5603.
        assert_eq!(
            seen("MooncakeConnector", 2),
            [
                (5600, Some(8998), named("e")),
                (5600, None, named("e")),
                (5602, Some(8999), named("e-1")),
                (5602, None, named("e-1")),
            ]
        );
    }
}
