//! Encodes the events of an engine as KV event messages.

use super::encoding::{HostKvEventDetail, KvEventEncoding, KvEventHashFormat};
use super::message::{
    self, AttentionKind, BlockHash, BlockStored, KvEvent, KvEventBatch, KvEventFormat,
    StorageMedium,
};
use crate::imitated::encode_own_kv_events;
use vllm_sim_engine::{
    BlockHashExtraKey, BlockKey, HostCacheEvent, LayerGroupCacheEvent, PlannedKvBlocks,
    SchedulerEvent,
};

/// Encodes the payload of one KV event message; `ts` is in Unix seconds. Events that do not concern
/// the KV cache are skipped.
pub fn encode_kv_event_batch(
    events: &[SchedulerEvent],
    ts: f64,
    rank: u32,
    encoding: KvEventEncoding,
) -> Vec<u8> {
    encode_with_remaining_block_copies(events, ts, rank, encoding, &[])
}

/// Encodes a KV event message; `remaining_copies` has the number of remaining copies for each
/// removed GPU block, or is empty.
pub(super) fn encode_with_remaining_block_copies(
    events: &[SchedulerEvent],
    ts: f64,
    rank: u32,
    encoding: KvEventEncoding,
    remaining_copies: &[u32],
) -> Vec<u8> {
    if let Some(message) = encode_own_kv_events(encoding.format, events, ts, rank) {
        return message;
    }
    let mut shown = Vec::with_capacity(events.len());
    for event in events {
        push_event(event, encoding, &mut shown);
    }
    shown.iter_mut().for_each(|event| event.clear_newer_fields(encoding.version));
    let batch = KvEventBatch { ts, events: &shown, data_parallel_rank: rank, remaining_copies };
    batch.encode_batch_as_msgpack(encoding.format)
}

/// Returns whether an engine event concerns the KV cache.
pub fn is_kv_event(event: &SchedulerEvent) -> bool {
    matches!(
        event,
        SchedulerEvent::Stored { .. }
            | SchedulerEvent::Reused { .. }
            | SchedulerEvent::Removed { .. }
            | SchedulerEvent::Group(_)
            | SchedulerEvent::Cleared
    ) || is_host_memory_event(event)
}

pub(super) fn is_host_memory_event(event: &SchedulerEvent) -> bool {
    let changes = |event: &HostCacheEvent| {
        matches!(event, HostCacheEvent::Stored { .. } | HostCacheEvent::Removed { .. })
    };
    matches!(event, SchedulerEvent::Host(event) if changes(event))
}

fn push_event<'a>(
    event: &'a SchedulerEvent,
    encoding: KvEventEncoding,
    shown: &mut Vec<KvEvent<'a>>,
) {
    let (hashes, groups) = (encoding.hashes, encoding.groups);
    // vLLM and llm-d send one event per block.
    let removed = |(key, hash): &'a (BlockKey, Option<[u8; 32]>), group| {
        let hash = block_hash(key.0, hash.as_ref(), hashes);
        KvEvent::BlockRemoved(vec![hash], StorageMedium::Gpu, group)
    };
    match event {
        SchedulerEvent::Stored { plan, from, to } => {
            let mut event = block_stored_event(plan, *from, *to, hashes);
            (event.group, event.kind) = (groups.main, Some(groups.main_kind));
            shown.push(KvEvent::BlockStored(event));
        }
        // vLLM reports the same blocks for each group, also those that the group no longer has.
        SchedulerEvent::Reused { plan, blocks, groups: count } => {
            let numbers = match encoding.format {
                KvEventFormat::Vllm => 0..*count,
                _ => groups.main..groups.main + 1,
            };
            shown.extend(numbers.map(|group| {
                let mut event = block_stored_event(plan, 0, *blocks, hashes);
                (event.group, event.kind) = (group, Some(groups.attention_kind_of_group(group)));
                KvEvent::BlockStored(event)
            }));
        }
        SchedulerEvent::Removed { keys } => {
            shown.extend(keys.iter().map(|key| removed(key, groups.main)));
        }
        // llm-d's formats have no groups, only the blocks of the main one.
        SchedulerEvent::Group(event) if encoding.format != KvEventFormat::Vllm => {
            if let LayerGroupCacheEvent::Stored { is_main: true, plan, kept, .. } = &**event {
                let runs = kept.chunk_by(|a, b| a + 1 == *b);
                let runs = runs.map(|run| (run[0], run[0] + run.len() as u32));
                let stored = runs.map(|(from, to)| block_stored_event(plan, from, to, hashes));
                shown.extend(stored.map(KvEvent::BlockStored));
            }
        }
        SchedulerEvent::Group(event) => match &**event {
            LayerGroupCacheEvent::Stored { group, plan, from, to, kept, .. } => {
                let event = block_stored_event(plan, *from, *to, hashes);
                let hash = |&i: &u32| {
                    let i = i as usize;
                    block_hash(plan.keys[i].0, plan.hashes.get(i), hashes)
                };
                let extra = kept.iter().map(|&i| extra_keys(plan, i as usize));
                shown.push(KvEvent::BlockStored(BlockStored {
                    block_hashes: kept.iter().map(hash).collect(),
                    extra_keys: Some(extra.collect()),
                    lookahead: lookahead_tokens_per_block(plan, kept.iter().copied()),
                    group: *group,
                    kind: Some(groups.attention_kind_of_group(*group)),
                    ..event
                }));
            }
            LayerGroupCacheEvent::Removed { group, keys } => {
                shown.extend(keys.iter().map(|key| removed(key, *group)));
            }
        },
        SchedulerEvent::Host(event) => push_host_memory_event(event, encoding, shown),
        SchedulerEvent::Cleared => shown.push(KvEvent::AllBlocksCleared),
        _ => {}
    }
}

/// Pushes one KV event for each offloaded chunk stored in CPU memory, and one per layer group for
/// chunks removed together.
///
/// **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`.
fn push_host_memory_event<'a>(
    event: &'a HostCacheEvent,
    encoding: KvEventEncoding,
    shown: &mut Vec<KvEvent<'a>>,
) {
    let (hashes, detail, groups) = (encoding.hashes, encoding.host, encoding.groups);
    let medium = match detail {
        HostKvEventDetail::Local => StorageMedium::LocalCpu,
        HostKvEventDetail::Names | HostKvEventDetail::Tokens => StorageMedium::Cpu,
    };
    match event {
        HostCacheEvent::Stored { plan, chunks, blocks_per_chunk: size } => {
            shown.extend(chunks.iter().map(|&(group, chunk)| {
                let (from, to) = (chunk * size, (chunk + 1) * size);
                let kind = groups.attention_kind_of_group(group);
                let mut event = block_stored_event(plan, from, to, hashes);
                (event.medium, event.group, event.kind) = (medium, group, Some(kind));
                event.session = None;
                if detail != HostKvEventDetail::Local {
                    event.extra_keys = None;
                }
                // vLLM never describes chunks of sparse groups.
                let is_sparse = matches!(kind, AttentionKind::Window(_) | AttentionKind::Mamba);
                if detail == HostKvEventDetail::Names
                    || (detail == HostKvEventDetail::Tokens && is_sparse)
                {
                    let last = event.block_hashes.len().saturating_sub(1);
                    event.block_hashes.drain(..last);
                    event = BlockStored {
                        parent_block_hash: None,
                        token_ids: &[],
                        block_size: 0,
                        lora_id: None,
                        lora_name: None,
                        kind: None,
                        ..event
                    };
                }
                KvEvent::BlockStored(event)
            }))
        }
        HostCacheEvent::Removed { keys } => {
            let mut numbers: Vec<u32> = keys.iter().map(|(group, ..)| *group).collect();
            numbers.sort_unstable();
            numbers.dedup();
            for number in numbers {
                let own = keys.iter().filter(|(group, ..)| *group == number);
                let own = own.map(|(_, key, hash)| block_hash(key.0, hash.as_ref(), hashes));
                shown.push(KvEvent::BlockRemoved(own.collect(), medium, number));
            }
        }
        _ => {}
    }
}

fn block_stored_event(
    plan: &PlannedKvBlocks,
    from: u32,
    to: u32,
    hashes: KvEventHashFormat,
) -> BlockStored<'_> {
    let (from, to) = (from as usize, (to as usize).min(plan.keys.len()));
    let hash = |i: usize| block_hash(plan.keys[i].0, plan.hashes.get(i), hashes);
    let size = plan.block_size as usize;
    BlockStored {
        block_hashes: (from..to).map(hash).collect(),
        parent_block_hash: from.checked_sub(1).map(hash),
        token_ids: plan.tokens.get(from * size..to * size).unwrap_or_default(),
        block_size: plan.block_size,
        lora_id: plan.lora.as_ref().map(|(id, _)| id.0),
        lora_name: plan.lora.as_ref().map(|(_, name)| &**name),
        extra_keys: Some((from..to).map(|i| extra_keys(plan, i)).collect()),
        group: 0,
        kind: Some(AttentionKind::Full),
        medium: StorageMedium::Gpu,
        session: plan.session.as_deref(),
        lookahead: lookahead_tokens_per_block(plan, from as u32..to as u32),
    }
}

/// Returns, for each stored KV block, the tokens after the block that the block's hash includes as
/// lookahead; `None` without lookahead.
fn lookahead_tokens_per_block(
    plan: &PlannedKvBlocks,
    blocks: impl Iterator<Item = u32>,
) -> Option<Vec<&[u32]>> {
    let (size, ahead) = (plan.block_size as usize, plan.lookahead as usize);
    let behind = |block: u32| {
        let end = (block as usize + 1) * size;
        plan.tokens.get(end..end + ahead).unwrap_or_default()
    };
    (ahead > 0).then(|| blocks.map(behind).collect())
}

fn block_hash<'a>(
    key: u64,
    hash: Option<&'a [u8; 32]>,
    format: KvEventHashFormat,
) -> BlockHash<'a> {
    match (format, hash) {
        (KvEventHashFormat::Bytes(len), Some(hash)) => {
            BlockHash::Bytes(&hash[..len.min(hash.len())])
        }
        _ => BlockHash::Int(key),
    }
}

fn extra_keys(plan: &PlannedKvBlocks, block: usize) -> Option<Vec<message::ExtraKey<'_>>> {
    let keys = plan.extra_keys.get(block)?.as_deref()?;
    let keys = keys.iter().map(|key| match key {
        BlockHashExtraKey::Text(text) => message::ExtraKey::Text(text),
        BlockHashExtraKey::Media { identifier, offset } => {
            message::ExtraKey::Media(identifier, *offset)
        }
    });
    Some(keys.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::encoding::KvEventLayerGroups;
    use super::*;
    use vllm_sim_engine::{LoraId, SimTime};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn events() -> Vec<SchedulerEvent> {
        let text = |text: &str| BlockHashExtraKey::Text(text.into());
        let img = |offset| BlockHashExtraKey::Media { identifier: "img".into(), offset };
        let adapted = PlannedKvBlocks {
            keys: vec![BlockKey(7), BlockKey(1 << 40)],
            tokens: vec![1, 200, 300, 70_000],
            block_size: 2,
            lora: Some((LoraId(1), "sql-lora".into())),
            extra_keys: vec![
                Some([text("sql-lora"), img(3), text("pepper")].into()),
                Some([text("sql-lora"), img(-1)].into()),
            ],
            ..PlannedKvBlocks::default()
        };
        let plain = PlannedKvBlocks {
            keys: vec![BlockKey(1 << 40), BlockKey(9)],
            tokens: vec![3, 4, 5, 6, 7],
            block_size: 2,
            ..PlannedKvBlocks::default()
        };
        let stored = |plan, from, to| SchedulerEvent::Stored { plan: Arc::new(plan), from, to };
        vec![
            SchedulerEvent::Cleared,
            SchedulerEvent::Step {
                begun: SimTime::ZERO,
                prompt_tokens: 1,
                output_tokens: 1,
                count: 1,
            },
            SchedulerEvent::Removed { keys: vec![(BlockKey(200), None)] },
            stored(adapted, 0, 2),
            stored(plain, 1, 2),
        ]
    }

    fn encoded(format: KvEventFormat, rank: u32) -> String {
        let encoding = KvEventEncoding { format, ..KvEventEncoding::default() };
        hex(&encode_kv_event_batch(&events(), 1_700_000_000.5, rank, encoding))
    }

    // The expected bytes come from msgspec 0.22 (vLLM) and vmihailenco/msgpack 5.4.1 (llm-d).
    // llm-d's `extra_keys` are an exception: its simulator leaves them empty.

    #[test]
    fn vllm_events_are_msgpack_maps() {
        assert_eq!(
            encoded(KvEventFormat::Vllm, 0),
            "93cb41d954fc402000009481a474797065b0416c6c426c6f636b73436c656172656484a474797065ac42\
             6c6f636b52656d6f766564ac626c6f636b5f68617368657391ccc8a66d656469756da3475055a967726f\
             75705f69647800de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739207\
             cf0000010000000000b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401ccc8\
             cd012cce00011170aa626c6f636b5f73697a6502a76c6f72615f696401a66d656469756da3475055a96c\
             6f72615f6e616d65a873716c2d6c6f7261aa65787472615f6b6579739293a873716c2d6c6f726192a369\
             6d6703a670657070657292a873716c2d6c6f726192a3696d67ffa967726f75705f69647800b26b765f63\
             616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6ede000ba474797065ab426c6f63\
             6b53746f726564ac626c6f636b5f6861736865739109b1706172656e745f626c6f636b5f68617368cf00\
             00010000000000a9746f6b656e5f696473920506aa626c6f636b5f73697a6502a76c6f72615f6964c0a6\
             6d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69\
             647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00"
        );
    }

    #[test]
    fn llmd_events_are_arrays_with_fixed_width_ints() {
        assert_eq!(
            encoded(KvEventFormat::LlmdArray, 3),
            "93cb41d954fc402000009491b0416c6c426c6f636b73436c656172656493ac426c6f636b52656d6f766564\
             91cf00000000000000c8a347505599ab426c6f636b53746f72656492cf0000000000000007cf0000010000\
             000000cf000000000000000094ce00000001ce000000c8ce0000012cce000111700201a3475055a873716c\
             2d6c6f72619292a3696d67a670657070657291a3696d6799ab426c6f636b53746f72656491cf0000000000\
             000009cf000001000000000092ce00000005ce0000000602c0a3475055c0c003"
        );
    }

    #[test]
    fn llmd_maps_omit_absent_fields() {
        assert_eq!(
            encoded(KvEventFormat::LlmdMap, 3),
            "93cb41d954fc402000009481a474797065b0416c6c426c6f636b73436c656172656483a474797065ac426c\
             6f636b52656d6f766564ac626c6f636b5f68617368657391cf00000000000000c8a66d656469756da34750\
             5589a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf0000000000000007cf\
             0000010000000000b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647394ce00000001\
             ce000000c8ce0000012cce00011170aa626c6f636b5f73697a6502a76c6f72615f696401a66d656469756d\
             a3475055a96c6f72615f6e616d65a873716c2d6c6f7261aa65787472615f6b6579739292a3696d67a67065\
             7070657291a3696d6786a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf00\
             00000000000009b1706172656e745f626c6f636b5f68617368cf0000010000000000a9746f6b656e5f6964\
             7392ce00000005ce00000006aa626c6f636b5f73697a6502a66d656469756da347505503"
        );
    }

    #[test]
    fn block_hashes_can_be_bytes() {
        let counting = std::array::from_fn(|i| i as u8);
        let plan = PlannedKvBlocks {
            keys: vec![BlockKey(1), BlockKey(2)],
            hashes: vec![[0x22; 32], [0x11; 32]],
            tokens: vec![9, 1],
            block_size: 1,
            ..PlannedKvBlocks::default()
        };
        let events = [
            SchedulerEvent::Removed { keys: vec![(BlockKey(3), Some(counting))] },
            SchedulerEvent::Stored { plan: Arc::new(plan), from: 1, to: 2 },
        ];
        let encoded = |len| {
            let encoding = KvEventEncoding {
                format: KvEventFormat::Vllm,
                hashes: KvEventHashFormat::Bytes(len),
                ..KvEventEncoding::default()
            };
            hex(&encode_kv_event_batch(&events, 0.25, 3, encoding))
        };
        assert_eq!(
            encoded(32),
            "93cb3fd00000000000009284a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865\
             7391c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa66d65646975\
             6da3475055a967726f75705f69647800de000ba474797065ab426c6f636b53746f726564ac626c6f636b\
             5f68617368657391c4201111111111111111111111111111111111111111111111111111111111111111\
             b1706172656e745f626c6f636b5f68617368c42022222222222222222222222222222222222222222222\
             22222222222222222222a9746f6b656e5f6964739101aa626c6f636b5f73697a6501a76c6f72615f6964\
             c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f7570\
             5f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e03"
        );
        assert!(encoded(16).contains("c41011111111111111111111111111111111b1"));
    }

    /// The expected bytes come from msgspec 0.22 and vLLM 0.33's `BlockStored`.
    #[test]
    fn reused_blocks_are_reported_for_each_group_with_their_session() {
        let plan = Arc::new(PlannedKvBlocks {
            keys: vec![BlockKey(1), BlockKey(2)],
            tokens: vec![9, 1, 5],
            block_size: 1,
            lookahead: 1,
            session: Some("s-1".into()),
            ..PlannedKvBlocks::default()
        });
        let groups = KvEventLayerGroups {
            main: 1,
            main_kind: AttentionKind::Full,
            sparse_kind: AttentionKind::Window(128),
        };
        let event = [SchedulerEvent::Reused { plan, blocks: 2, groups: 2 }];
        let encoded = |format| {
            let encoding = KvEventEncoding { format, groups, ..KvEventEncoding::default() };
            hex(&encode_kv_event_batch(&event, 0.25, 0, encoding))
        };
        assert_eq!(
            encoded(KvEventFormat::Vllm),
            "93cb3fd000000000000092de000ea474797065ab426c6f636b53746f726564ac626c6f636b5f68617368\
             6573920102b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920901aa626c6f63\
             6b5f73697a6501a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa657874\
             72615f6b65797392c0c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae73\
             6c6964696e675f77696e646f77bc6b765f63616368655f737065635f736c6964696e675f77696e646f77\
             cc80aa73657373696f6e5f6964a3732d31b36c6f6f6b61686561645f746f6b656e5f6964739291019105\
             de000da474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573920102b1706172656e\
             745f626c6f636b5f68617368c0a9746f6b656e5f696473920901aa626c6f636b5f73697a6501a76c6f72\
             615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c0c0a9\
             67726f75705f69647801b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e7469\
             6f6eaa73657373696f6e5f6964a3732d31b36c6f6f6b61686561645f746f6b656e5f6964739291019105\
             00"
        );
        let llmd = encoded(KvEventFormat::LlmdMap);
        assert_eq!(llmd.matches("ab426c6f636b53746f726564").count(), 1, "{llmd}");
        assert!(!llmd.contains("a3732d31"), "{llmd}");
    }

    #[test]
    fn a_plan_without_tokens_still_has_its_hashes() {
        let plan = PlannedKvBlocks {
            keys: vec![BlockKey(5)],
            block_size: 16,
            ..PlannedKvBlocks::default()
        };
        let event = SchedulerEvent::Stored { plan: Arc::new(plan), from: 0, to: 1 };
        let bytes = hex(&encode_kv_event_batch(&[event], 0.0, 0, KvEventEncoding::default()));
        assert!(bytes.contains("ac626c6f636b5f6861736865739105"));
        assert!(bytes.contains("a9746f6b656e5f69647390aa"));
    }

    #[test]
    fn host_block_events_name_or_describe_blocks() {
        let plan = PlannedKvBlocks {
            keys: (1..=4).map(BlockKey).collect(),
            tokens: (10..14).collect(),
            block_size: 1,
            ..PlannedKvBlocks::default()
        };
        let events = [
            SchedulerEvent::Host(Box::new(HostCacheEvent::Stored {
                plan: Arc::new(plan),
                chunks: vec![(0, 0), (0, 1)],
                blocks_per_chunk: 2,
            })),
            SchedulerEvent::Host(Box::new(HostCacheEvent::Removed {
                keys: vec![(0, BlockKey(2), None), (0, BlockKey(4), None)],
            })),
        ];
        let shown = |host| {
            let mut shown = Vec::new();
            let encoding = KvEventEncoding { host, ..KvEventEncoding::default() };
            events.iter().for_each(|event| push_event(event, encoding, &mut shown));
            let written = |event: &KvEvent<'_>| match event {
                KvEvent::BlockStored(e) => format!(
                    "{:?} after {:?}, {:?} of {}, {:?}, {:?}, {}",
                    e.block_hashes,
                    e.parent_block_hash,
                    e.token_ids,
                    e.block_size,
                    e.extra_keys,
                    e.medium,
                    e.kind.is_some()
                ),
                event => format!("{event:?}"),
            };
            shown.iter().map(written).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(HostKvEventDetail::Names),
            [
                "[Int(2)] after None, [] of 0, None, Cpu, false",
                "[Int(4)] after None, [] of 0, None, Cpu, false",
                "BlockRemoved([Int(2), Int(4)], Cpu, 0)"
            ]
        );
        assert_eq!(
            shown(HostKvEventDetail::Tokens)[1],
            "[Int(3), Int(4)] after Some(Int(2)), [12, 13] of 1, None, Cpu, true"
        );
        assert_eq!(
            shown(HostKvEventDetail::Local)[1],
            "[Int(3), Int(4)] after Some(Int(2)), [12, 13] of 1, Some([None, None]), LocalCpu, true"
        );
        let bytes = |host| {
            let encoding = KvEventEncoding { host, ..KvEventEncoding::default() };
            hex(&encode_kv_event_batch(&events[..1], 0.0, 0, encoding))
        };
        // Maps with 9 and 12 entries; `medium` is `CPU`.
        assert!(
            bytes(HostKvEventDetail::Names).contains("de0009a474797065ab426c6f636b53746f726564")
        );
        assert!(
            bytes(HostKvEventDetail::Local).contains("de000ca474797065ab426c6f636b53746f726564")
        );
        assert!(bytes(HostKvEventDetail::Names).contains("a66d656469756da3435055"));
        assert!(bytes(HostKvEventDetail::Local).contains("a86c6f63616c697479a54c4f43414c"));
    }

    #[test]
    fn layer_groups_have_index_and_kind() {
        let plan = Arc::new(PlannedKvBlocks {
            keys: (1..=4).map(BlockKey).collect(),
            tokens: (10..18).collect(),
            block_size: 2,
            ..PlannedKvBlocks::default()
        });
        let events = [
            SchedulerEvent::Stored { plan: Arc::clone(&plan), from: 1, to: 4 },
            SchedulerEvent::Group(Box::new(LayerGroupCacheEvent::Stored {
                group: 0,
                is_main: false,
                plan,
                from: 1,
                to: 4,
                kept: vec![3],
            })),
            SchedulerEvent::Group(Box::new(LayerGroupCacheEvent::Removed {
                group: 0,
                keys: vec![(BlockKey(4), None)],
            })),
        ];
        let groups = KvEventLayerGroups {
            main: 1,
            main_kind: AttentionKind::Full,
            sparse_kind: AttentionKind::Window(128),
        };
        let encoding = |format| KvEventEncoding { format, groups, ..KvEventEncoding::default() };
        let mut shown = Vec::new();
        events
            .iter()
            .for_each(|event| push_event(event, encoding(KvEventFormat::Vllm), &mut shown));
        let written = |event: &KvEvent<'_>| match event {
            KvEvent::BlockStored(e) => {
                format!("{} {:?} {:?} {}", e.group, e.kind, e.block_hashes, e.token_ids.len())
            }
            KvEvent::BlockRemoved(hashes, _, group) => format!("{group} -{hashes:?}"),
            KvEvent::AllBlocksCleared => String::new(),
        };
        let written: Vec<String> = shown.iter().map(written).collect();
        assert_eq!(
            written,
            [
                "1 Some(Full) [Int(2), Int(3), Int(4)] 6",
                "0 Some(Window(128)) [Int(4)] 6",
                "0 -[Int(4)]",
            ]
        );
        // `group_idx` 0, `kv_cache_spec_kind` and `kv_cache_spec_sliding_window` 128.
        let bytes =
            hex(&encode_kv_event_batch(&events[1..2], 0.0, 0, encoding(KvEventFormat::Vllm)));
        let kind = "a967726f75705f69647800b26b765f63616368655f737065635f6b696e64\
                    ae736c6964696e675f77696e646f77bc6b765f63616368655f737065635f736c6964696e67\
                    5f77696e646f77cc80";
        assert!(bytes.contains(kind), "{bytes}");
        let llmd = encode_kv_event_batch(&events[1..], 0.0, 0, encoding(KvEventFormat::LlmdArray));
        assert_eq!(llmd, encode_kv_event_batch(&[], 0.0, 0, KvEventEncoding::default()));
    }
}
