//! Splits a list of requests of several agents into chains, one per agent, by their hash ids.
//!
//! A request belongs to the chain whose last prompt it continues. One that shares only a part of
//! that prompt begins a chain of its own, a fork. A fork is the same agent after a compaction of
//! its context, and is joined again, if no later request continues the longer prompt.
//!
//! **Source:** aiperf 0.13 `dataset/loader/weka_agent_chains.py` (`detect_agent_chains`) and
//! `weka_trace.py` (`_split_off_preamble`).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::agents::TIME_EPSILON_MS;

/// Maximum gap, in milliseconds, between a request chain and a fork that is joined to the chain. A
/// fork after a longer gap must share at least [`MIN_OVERLAP`] of the chain's last prompt.
///
/// **Source:** aiperf 0.13 `common/environment.py`, `WEKA_SEAM_MAX_GAP_SECONDS`.
const MAX_GAP_MS: f64 = 3_600_000.0;
/// Minimum fraction of a chain's last prompt that a fork must share, to be joined to the chain
/// after a gap above [`MAX_GAP_MS`].
///
/// **Source:** aiperf 0.13 `common/environment.py`, `WEKA_SEAM_MIN_OVERLAP_RATIO`.
const MIN_OVERLAP: f64 = 0.5;
/// Maximum output length, in tokens, up to which a trace's first request counts as a request for a
/// session title.
///
/// **Source:** aiperf 0.13 `weka_trace.py`, `_TITLE_GEN_MAX_OUTPUT_TOKENS`.
const TITLE_OUTPUT: u32 = 64;

/// Request in the list of a Weka trace, with its times in milliseconds.
pub(super) struct WekaTraceRequest<'a> {
    pub start_ms: f64,
    pub end_ms: f64,
    pub output: u32,
    pub model: Option<&'a str>,
    pub hash_ids: Vec<u64>,
}

/// Requests of one agent, by their indices in the list of the Weka trace.
#[derive(Default)]
struct Chain {
    requests: Vec<usize>,
    /// Number of leading hash ids that the chain's first prompt shares with the prompt from which
    /// the chain was forked.
    shared: usize,
    /// Index of the chain's last request with hash ids.
    tail: Option<usize>,
    joined: bool,
}

struct ChainBuilder<'a> {
    list: &'a [WekaTraceRequest<'a>],
    chains: Vec<Chain>,
    chain_of: BTreeMap<usize, usize>,
    /// Indices of the chains forked from each request, by the index of the request.
    forks: BTreeMap<usize, Vec<usize>>,
}

/// Splits requests that are sorted by their start into chains, one per agent; a chain has the
/// indices of its requests.
///
/// The first chain is that of the agent itself. The others are sorted by their first request.
pub(super) fn split_into_agent_chains(list: &[WekaTraceRequest<'_>]) -> Vec<Vec<usize>> {
    let skipped = usize::from(is_preamble(list));
    let mut builder = ChainBuilder {
        list,
        chains: Vec::new(),
        chain_of: BTreeMap::new(),
        forks: BTreeMap::new(),
    };
    for request in skipped..list.len() {
        builder.add(request);
    }
    builder.join_forks();
    let live = builder.chains.into_iter().filter(|chain| !chain.joined);
    let mut chains: Vec<Vec<usize>> = live.map(|chain| chain.requests).collect();
    if let Some(main) = chains.first_mut() {
        main.extend(0..skipped);
    }
    for chain in &mut chains {
        chain.sort_unstable();
    }
    if let Some(workers) = chains.get_mut(1..) {
        workers.sort_unstable();
    }
    chains
}

/// Returns whether the first request in the list of a Weka trace only asks for something like a
/// session title, and shares no prefix with the other requests.
fn is_preamble(list: &[WekaTraceRequest<'_>]) -> bool {
    let Some((first, rest)) = list.split_first() else {
        return false;
    };
    let Some(start) = first.hash_ids.first() else {
        return false;
    };
    if rest.is_empty() || rest.iter().any(|other| other.hash_ids.first() == Some(start)) {
        return false;
    }
    let others: HashSet<&u64> = rest.iter().flat_map(|other| &other.hash_ids).collect();
    first.output <= TITLE_OUTPUT || first.hash_ids.iter().all(|id| !others.contains(id))
}

fn shared_prefix(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl ChainBuilder<'_> {
    fn add(&mut self, request: usize) {
        let listed = &self.list[request];
        if listed.hash_ids.is_empty() {
            // Without hash ids there is no evidence of another agent.
            if self.chains.is_empty() {
                self.chains.push(Chain::default());
            }
            self.chains[0].requests.push(request);
            self.chain_of.insert(request, 0);
            return;
        }
        if self.chains.is_empty() {
            self.chains.push(Chain::default());
        }
        let is_first = self.chains.iter().all(|chain| chain.tail.is_none());
        let continued = if is_first { Some(0) } else { self.continued_chain(listed) };
        let chain = continued.unwrap_or_else(|| {
            let chain = self.chains.len();
            let closest = self.closest_tail(&listed.hash_ids);
            if let Some((tail, _)) = closest {
                self.forks.entry(tail).or_default().push(chain);
            }
            let shared = closest.map_or(0, |(_, shared)| shared);
            self.chains.push(Chain { shared, ..Chain::default() });
            chain
        });
        self.chains[chain].requests.push(request);
        self.chains[chain].tail = Some(request);
        self.chain_of.insert(request, chain);
    }

    /// Returns the index of the chain that the request `listed` continues; of several such chains,
    /// the one with the longest last prompt.
    ///
    /// Its last request has ended, and has the same model.
    fn continued_chain(&self, listed: &WekaTraceRequest<'_>) -> Option<usize> {
        let mut found: Option<(usize, usize)> = None;
        for (index, chain) in self.chains.iter().enumerate() {
            let Some(tail) = chain.tail.map(|tail| &self.list[tail]) else {
                continue;
            };
            let len = tail.hash_ids.len();
            let longer = found.is_none_or(|(_, longest)| len > longest);
            if longer
                && tail.model == listed.model
                && tail.end_ms <= listed.start_ms + TIME_EPSILON_MS
                && listed.hash_ids.starts_with(&tail.hash_ids)
            {
                found = Some((index, len));
            }
        }
        found.map(|(index, _)| index)
    }

    /// Finds the chain whose last prompt shares the most leading hash ids with `hash_ids`. Returns
    /// the chain's last request and the number of shared ids.
    fn closest_tail(&self, hash_ids: &[u64]) -> Option<(usize, usize)> {
        let mut found: Option<(usize, (usize, usize))> = None;
        for tail in self.chains.iter().filter_map(|chain| chain.tail) {
            let ids = &self.list[tail].hash_ids;
            let shared = shared_prefix(ids, hash_ids);
            let key = (shared, ids.len());
            if shared > 0 && found.is_none_or(|(_, best)| key > best) {
                found = Some((tail, key));
            }
        }
        found.map(|(tail, (shared, _))| (tail, shared))
    }

    /// Joins forked chains to the chains that they continue, from the first request to the last.
    fn join_forks(&mut self) {
        let mut open: BTreeSet<usize> = self.forks.keys().copied().collect();
        while let Some(tail) = open.pop_first() {
            let owner = self.chain_of[&tail];
            if self.last_with_hash_ids(owner) != Some(tail) {
                // The longer prompt was continued, so that all forks are other agents.
                continue;
            }
            let forks: Vec<usize> = self.forks[&tail]
                .iter()
                .copied()
                .filter(|fork| !self.chains[*fork].joined)
                .collect();
            let Some(elected) = self.continuation(tail, &forks) else {
                continue;
            };
            let requests = std::mem::take(&mut self.chains[elected].requests);
            self.chains[elected].joined = true;
            for request in &requests {
                self.chain_of.insert(*request, owner);
            }
            self.chains[owner].requests.extend(requests);
            if let Some(tail) = self.last_with_hash_ids(owner)
                && self.compare_again(tail, &forks)
            {
                open.insert(tail);
            }
        }
    }

    fn last_with_hash_ids(&self, chain: usize) -> Option<usize> {
        let requests = self.chains[chain].requests.iter().rev();
        requests.copied().find(|request| !self.list[*request].hash_ids.is_empty())
    }

    /// Returns the forked chain that continues the agent of request `tail`: of several candidates
    /// the one with the most shared hash ids, then the earliest.
    fn continuation(&self, tail: usize, forks: &[usize]) -> Option<usize> {
        let tail = &self.list[tail];
        let mut found: Option<(usize, usize, f64)> = None;
        for chain in forks {
            let first = &self.list[*self.chains[*chain].requests.first()?];
            let shared = self.chains[*chain].shared;
            let gap_ms = first.start_ms - tail.end_ms;
            let overlap = shared as f64 / tail.hash_ids.len() as f64;
            if gap_ms < -TIME_EPSILON_MS
                || first.model != tail.model
                || (gap_ms > MAX_GAP_MS && overlap < MIN_OVERLAP)
            {
                continue;
            }
            let better = found.is_none_or(|(_, most, earliest)| {
                shared > most || (shared == most && first.start_ms < earliest)
            });
            if better {
                found = Some((*chain, shared, first.start_ms));
            }
        }
        found.map(|(chain, ..)| chain)
    }

    /// Updates the shared prefix length of the forked chains that are not joined yet, after a fork
    /// was joined to the chain that ends with request `tail`.
    ///
    /// Returns whether one of them shares a part of its prompt.
    fn compare_again(&mut self, tail: usize, forks: &[usize]) -> bool {
        let mut shares = false;
        for chain in forks.iter().copied() {
            if self.chains[chain].joined {
                continue;
            }
            let Some(first) = self.chains[chain].requests.first() else {
                continue;
            };
            let shared = shared_prefix(&self.list[tail].hash_ids, &self.list[*first].hash_ids);
            if shared > 0 {
                self.chains[chain].shared = shared;
                self.forks.entry(tail).or_default().push(chain);
                shares = true;
            }
        }
        shares
    }
}
