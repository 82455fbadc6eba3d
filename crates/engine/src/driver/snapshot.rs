//! Takes snapshots of an engine's sequences and KV blocks for dashboards. They cost nothing until
//! requested, and hold the engine's lock only for a bounded time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::core::sequence_record_index;
use super::live::LiveEngine;
use super::record::SequenceRecord;
use crate::{EngineStats, KvBlockUsage, SequenceProgress, SimTime};

/// Maximum number of sequences that a snapshot reads before it yields the engine's lock.
const SEQUENCES_PER_LOCK: usize = 1024;
/// Maximum number of KV blocks that a snapshot reads before it yields the engine's lock.
const BLOCKS_PER_LOCK: u32 = 32_768;

/// Phase of a sequence between its submission and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequencePhase {
    /// The sequence waits in the engine's queue.
    Waiting,
    /// The prompt's KV blocks are being loaded from another engine or from host memory.
    WaitingForRemoteKvs,
    /// The prompt is being computed; after a preemption, also the output is computed again.
    Prefill,
    /// The sequence generates output tokens.
    Decode,
    /// The sequence was preempted and waits in the queue again, without KV blocks.
    Preempted,
}

impl SequencePhase {
    /// All sequence phases, in the order of [`LiveSequencesSnapshot::phases`].
    pub const ALL_PHASES: [Self; 5] =
        [Self::Waiting, Self::WaitingForRemoteKvs, Self::Prefill, Self::Decode, Self::Preempted];

    /// Returns the name of the sequence phase, as in vLLM's `RequestStatus` if that has the phase.
    pub fn phase_name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::WaitingForRemoteKvs => "waiting_for_remote_kvs",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Preempted => "preempted",
        }
    }

    fn from_record(record: &SequenceRecord, progress: Option<SequenceProgress>) -> Self {
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

/// Snapshot of a live sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSequenceSnapshot {
    /// Request id, as shown to the client.
    pub id: Arc<str>,
    /// LoRA adapter of the request, if any.
    pub lora: Option<Arc<str>>,
    /// Phase of the sequence.
    pub phase: SequencePhase,
    /// Number of prompt tokens of the sequence.
    pub prompt: u32,
    /// Number of prompt tokens found in the prefix cache; 0 before the first admission.
    pub cached: u32,
    /// Number of prompt tokens loaded from another engine or from host memory; 0 before the first
    /// admission.
    pub external: u32,
    /// Number of the sequence's prompt and output tokens in the KV cache; `None` if the engine does
    /// not count them.
    pub computed: Option<u32>,
    /// Number of the sequence's output tokens sent to the client so far.
    pub output: u32,
    /// Maximum number of output tokens of the sequence.
    pub max_tokens: u32,
    /// Time since the request arrived.
    pub age: Duration,
}

/// Snapshot of the live sequences of an engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LiveSequencesSnapshot {
    /// Number of sequences in each [`SequencePhase`].
    pub phases: [usize; 5],
    /// Details of the newest live sequences, latest first.
    pub newest: Vec<LiveSequenceSnapshot>,
}

/// Snapshot of an engine's KV blocks in order of their ids, summed up in cells of equally many
/// blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct KvBlockMapSnapshot {
    /// Gauges of the engine, read before the KV blocks; slightly older than [`Self::cells`].
    pub stats: EngineStats,
    /// Number of KV blocks per cell; the last cell may have fewer.
    pub blocks_per_cell: u32,
    /// Counts of KV blocks by use, for each cell of [`Self::blocks_per_cell`] consecutive blocks.
    pub cells: Vec<KvBlockUsage>,
}

impl LiveEngine {
    /// Returns a snapshot of the live sequences, with details of at most `max_sequences` sequences.
    /// Sequences that change during the call may be missed or counted with their previous state.
    pub fn snapshot_sequences(&self, max_sequences: usize) -> LiveSequencesSnapshot {
        let mut all = LiveSequencesSnapshot::default();
        // Ids increase: the oldest is on top.
        let mut newest = BinaryHeap::new();
        let mut ranks = self.shared.ranks.lock();
        let mut from = 0;
        while from < ranks[self.rank].records.len() {
            let core = &ranks[self.rank];
            let to = core.records.len().min(from + SEQUENCES_PER_LOCK);
            for record in core.records[from..to].iter().flatten() {
                let phase =
                    SequencePhase::from_record(record, core.engine.sequence_progress(record.id));
                all.phases[phase as usize] += 1;
                newest.push(Reverse(record.id));
                if newest.len() > max_sequences {
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
            let record = core.records[sequence_record_index(id)].as_ref();
            let record = record.filter(|record| record.id == id)?;
            Some(snapshot_sequence(record, core.engine.sequence_progress(id), now))
        });
        all.newest = found.collect();
        all
    }

    /// Returns a snapshot of the KV blocks, summed up in at most `max_cells` cells of consecutive
    /// blocks.
    pub fn snapshot_kv_block_map(&self, max_cells: u32) -> KvBlockMapSnapshot {
        let mut ranks = self.shared.ranks.lock();
        let stats = ranks[self.rank].engine.stats();
        let end = stats.total_blocks.saturating_add(1);
        let blocks_per_cell = stats.total_blocks.div_ceil(max_cells.max(1)).max(1);
        let (mut cells, mut looked_at) = (Vec::new(), 0_u32);
        for from in (1..end).step_by(blocks_per_cell as usize) {
            let to = end.min(from.saturating_add(blocks_per_cell));
            cells.push(ranks[self.rank].engine.block_usage(from..to));
            looked_at = looked_at.saturating_add(blocks_per_cell);
            if looked_at >= BLOCKS_PER_LOCK {
                looked_at = 0;
                MutexGuard::bump(&mut ranks);
            }
        }
        KvBlockMapSnapshot { stats, blocks_per_cell, cells }
    }
}

fn snapshot_sequence(
    record: &SequenceRecord,
    progress: Option<SequenceProgress>,
    now: SimTime,
) -> LiveSequenceSnapshot {
    LiveSequenceSnapshot {
        id: record.request_id.clone(),
        lora: record.lora.clone(),
        phase: SequencePhase::from_record(record, progress),
        prompt: record.prompt,
        cached: record.cached,
        external: record.external,
        computed: progress.map(|progress| progress.computed),
        output: record.output,
        max_tokens: record.max_tokens,
        age: now.duration_since(record.arrived),
    }
}
