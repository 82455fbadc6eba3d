//! What an engine holds, for whoever looks at it: nothing is kept for that while nobody does, and what a
//! look does under the engine's lock is bounded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::core::slot_of;
use super::live::LiveEngine;
use super::record::SequenceRecord;
use crate::{BlockUse, SequenceProgress, SimTime, Stats};

/// Sequences that are looked at before the engine has its lock again.
const SEQUENCES_AT_ONCE: usize = 1024;
/// Blocks that are.
const BLOCKS_AT_ONCE: u32 = 32_768;

/// Where a sequence is between its submission and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequencePhase {
    /// In the queue.
    Waiting,
    /// Its prompt's cache is fetched from another engine or the memory of the host.
    WaitingForRemoteKvs,
    /// Its prompt is computed, or after a preemption all that it had.
    Prefill,
    /// It makes output.
    Decode,
    /// In the queue again, without blocks.
    Preempted,
}

impl SequencePhase {
    /// All of them, in the order of [`LiveSequences::phases`].
    pub const ALL: [Self; 5] = [
        Self::Waiting,
        Self::WaitingForRemoteKvs,
        Self::Prefill,
        Self::Decode,
        Self::Preempted,
    ];

    /// Its name, vLLM's where its `RequestStatus` has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::WaitingForRemoteKvs => "waiting_for_remote_kvs",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Preempted => "preempted",
        }
    }

    fn of(record: &SequenceRecord, progress: Option<SequenceProgress>) -> Self {
        let known = record.prompt + record.output.saturating_sub(1);
        let behind = progress.is_some_and(|progress| progress.computed < known);
        match record.running {
            false if progress.is_some_and(|progress| progress.waits_for_kv) => {
                Self::WaitingForRemoteKvs
            }
            false if record.preemptions > 0 => Self::Preempted,
            false => Self::Waiting,
            true if record.output == 0 || behind => Self::Prefill,
            true => Self::Decode,
        }
    }
}

/// A sequence that lives.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSequence {
    /// The request's id, as the client knows it.
    pub id: Arc<str>,
    /// Its adapter.
    pub lora: Option<Arc<str>>,
    /// Where it is.
    pub phase: SequencePhase,
    /// Prompt tokens.
    pub prompt: u32,
    /// Prompt tokens from the prefix cache; 0 while it waits for the first time.
    pub cached: u32,
    /// Prompt tokens from another engine or the memory of the host; 0 while it waits for the first time.
    pub external: u32,
    /// Tokens of prompt and output whose cache is computed; `None`: this engine does not count them.
    pub computed: Option<u32>,
    /// Released tokens.
    pub output: u32,
    /// Its limit of output tokens.
    pub max_tokens: u32,
    /// Since its request arrived.
    pub age: Duration,
}

/// The sequences of an engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LiveSequences {
    /// How many there are, by [`SequencePhase`].
    pub phases: [usize; 5],
    /// The newest of them, the newest first.
    pub newest: Vec<LiveSequence>,
}

/// The blocks of an engine in the order of their numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockMap {
    /// Gauges, from before the blocks were looked at.
    pub stats: Stats,
    /// Blocks of a cell; the last one may have fewer.
    pub blocks_per_cell: u32,
    /// What the blocks of each cell are used for.
    pub cells: Vec<BlockUse>,
}

impl LiveEngine {
    /// The sequences that live, and `most` of them in detail. What comes, goes or moves on during the
    /// look may be missed or counted where it was.
    pub fn sequences(&self, most: usize) -> LiveSequences {
        let mut all = LiveSequences::default();
        // Ids grow: the oldest on top.
        let mut newest = BinaryHeap::new();
        let mut ranks = self.shared.ranks.lock();
        let mut from = 0;
        while from < ranks[self.rank].records.len() {
            let core = &ranks[self.rank];
            let to = core.records.len().min(from + SEQUENCES_AT_ONCE);
            for record in core.records[from..to].iter().flatten() {
                let phase = SequencePhase::of(record, core.engine.progress(record.id));
                all.phases[phase as usize] += 1;
                newest.push(Reverse(record.id));
                if newest.len() > most {
                    newest.pop();
                }
            }
            from = to;
            MutexGuard::bump(&mut ranks);
        }
        let core = &ranks[self.rank];
        let now = self.shared.now();
        let newest = newest.into_sorted_vec().into_iter();
        let found = newest.filter_map(|Reverse(id)| {
            let record = core.records[slot_of(id)].as_ref();
            let record = record.filter(|record| record.id == id)?;
            Some(detail(record, core.engine.progress(id), now))
        });
        all.newest = found.collect();
        all
    }

    /// What its blocks are used for, in `most` cells or fewer.
    pub fn block_map(&self, most: u32) -> BlockMap {
        let mut ranks = self.shared.ranks.lock();
        let stats = ranks[self.rank].engine.stats();
        let end = stats.total_blocks.saturating_add(1);
        let blocks_per_cell = stats.total_blocks.div_ceil(most.max(1)).max(1);
        let (mut cells, mut looked_at) = (Vec::new(), 0_u32);
        for from in (1..end).step_by(blocks_per_cell as usize) {
            let to = end.min(from.saturating_add(blocks_per_cell));
            cells.push(ranks[self.rank].engine.block_use(from..to));
            looked_at = looked_at.saturating_add(blocks_per_cell);
            if looked_at >= BLOCKS_AT_ONCE {
                looked_at = 0;
                MutexGuard::bump(&mut ranks);
            }
        }
        BlockMap {
            stats,
            blocks_per_cell,
            cells,
        }
    }
}

fn detail(
    record: &SequenceRecord,
    progress: Option<SequenceProgress>,
    now: SimTime,
) -> LiveSequence {
    LiveSequence {
        id: record.request.id.clone(),
        lora: record.request.lora.clone(),
        phase: SequencePhase::of(record, progress),
        prompt: record.prompt,
        cached: record.cached,
        external: record.external,
        computed: progress.map(|progress| progress.computed),
        output: record.output,
        max_tokens: record.request.max_tokens,
        age: now.since(record.arrived),
    }
}
