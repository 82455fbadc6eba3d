use std::collections::BTreeMap;

use super::request::RouteRequest;
use super::scorers::{EndpointPickerConfig, EndpointScorer};

#[derive(Debug, Default)]
pub(super) struct RoutingAffinityState {
    sessions: BTreeMap<u64, u32>,
    running: Vec<BTreeMap<u64, u32>>,
    slots: BTreeMap<u32, u64>,
}

impl RoutingAffinityState {
    /// Returns the session-affinity score of a worker: 1 if the worker served the session's last
    /// request, otherwise 0.
    pub(super) fn session_affinity_score(&self, ask: &RouteRequest, worker: u32) -> f64 {
        match self.sessions.get(&ask.session) {
            Some(last) if *last == worker => 1.0,
            _ => 0.0,
        }
    }

    /// Returns a worker's LoRA-affinity score: 1 if the adapter is active there, 0.8 if one more
    /// adapter fits, otherwise 0.
    pub(super) fn lora_affinity_score(
        &self,
        ask: &RouteRequest,
        worker: u32,
        max_adapters: usize,
    ) -> f64 {
        let Some(adapter) = ask.adapter else {
            return 0.0;
        };
        let running = self.running.get(worker as usize);
        match running {
            Some(running) if running.contains_key(&adapter) => 1.0,
            Some(running) if running.len() >= max_adapters => 0.0,
            _ => 0.8,
        }
    }

    pub(super) fn record_sent_request(
        &mut self,
        config: &EndpointPickerConfig,
        ask: &RouteRequest,
        worker: u32,
    ) {
        if config.weight_of(EndpointScorer::Session) > 0.0 {
            self.sessions.insert(ask.session, worker);
        }
        if let Some(adapter) = ask.adapter.filter(|_| config.weight_of(EndpointScorer::Lora) > 0.0)
        {
            let at = worker as usize;
            if self.running.len() <= at {
                self.running.resize(at + 1, BTreeMap::new());
            }
            *self.running[at].entry(adapter).or_default() += 1;
            self.slots.insert(ask.slot, adapter);
        }
    }

    pub(super) fn record_request_end(&mut self, request_slot: u32, worker: u32) {
        let Some(adapter) = self.slots.remove(&request_slot) else {
            return;
        };
        let Some(running) = self.running.get_mut(worker as usize) else {
            return;
        };
        if let Some(count) = running.get_mut(&adapter) {
            *count -= 1;
            if *count == 0 {
                running.remove(&adapter);
            }
        }
    }
}
