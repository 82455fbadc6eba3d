//! What a run has seen.

use crate::hist::Hist;
use std::collections::HashMap;

/// Counts and times of one thread, or of all.
#[derive(Clone)]
pub struct Stats {
    pub ttft: Hist,
    pub gap: Hist,
    pub ttft_err: Hist,
    pub gap_err: Hist,
    pub sched_err: Hist,
    pub lag: Hist,
    pub total: Hist,
    pub ok: u64,
    pub errors: HashMap<String, u64>,
    pub tokens: u64,
    pub events: u64,
    pub bytes: u64,
    pub reads: u64,
    pub coalesced: u64,
    pub early: u64,
    pub no_done: u64,
    pub connects: u64,
}
impl Stats {
    pub fn new() -> Self {
        let h = Hist::new;
        Stats {
            ttft: h(),
            gap: h(),
            ttft_err: h(),
            gap_err: h(),
            sched_err: h(),
            lag: h(),
            total: h(),
            ok: 0,
            errors: HashMap::new(),
            tokens: 0,
            events: 0,
            bytes: 0,
            reads: 0,
            coalesced: 0,
            early: 0,
            no_done: 0,
            connects: 0,
        }
    }
    pub fn merge(&mut self, o: &Stats) {
        for (a, b) in [
            (&mut self.ttft, &o.ttft),
            (&mut self.gap, &o.gap),
            (&mut self.ttft_err, &o.ttft_err),
            (&mut self.gap_err, &o.gap_err),
            (&mut self.sched_err, &o.sched_err),
            (&mut self.lag, &o.lag),
            (&mut self.total, &o.total),
        ] {
            a.merge(b);
        }
        for (k, v) in &o.errors {
            *self.errors.entry(k.clone()).or_default() += v;
        }
        for (a, b) in [
            (&mut self.ok, o.ok),
            (&mut self.tokens, o.tokens),
            (&mut self.events, o.events),
            (&mut self.bytes, o.bytes),
            (&mut self.reads, o.reads),
            (&mut self.early, o.early),
            (&mut self.coalesced, o.coalesced),
            (&mut self.no_done, o.no_done),
            (&mut self.connects, o.connects),
        ] {
            *a += b;
        }
    }
}
