//! Encodes the events of an engine as SGLang does.
//!
//! Events are maps without the fields that are not set. Consecutive events of the same kind become
//! one.
//!
//! **Source:** SGLang 0.5.23 `srt/disaggregation/kv_events.py`, and `KVCacheEventRecorder` of
//! `srt/mem_cache/events.py`.

use crate::kv_events::msgpack::{MsgpackMap, MsgpackWriter};
use vllm_sim_engine::{BlockHashExtraKey, PlannedKvBlocks, SchedulerEvent};

/// Storage medium in KV events about pages (KV blocks) on the GPU.
const MEDIUM: &str = "GPU";

#[derive(Debug, PartialEq, Eq)]
enum SglangEvent<'a> {
    Stored(StoredPages<'a>),
    Removed(Vec<u64>),
    Cleared,
}

/// Stored pages (KV blocks) of an event, each the parent of the next.
#[derive(Debug, PartialEq, Eq)]
struct StoredPages<'a> {
    hashes: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    labels: PageLabels<'a>,
}

/// Common fields of all pages (KV blocks) of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageLabels<'a> {
    page_size: u32,
    salt: Option<&'a str>,
    session: Option<&'a str>,
    adapter: Option<&'a str>,
}

/// Encodes the payload of one KV event message; `ts` is in Unix seconds.
pub(crate) fn encode_sglang_batch(events: &[SchedulerEvent], ts: f64, rank: u32) -> Vec<u8> {
    let mut shown = Vec::new();
    for event in events {
        match event {
            SchedulerEvent::Stored { plan, from, to } => push_stored(plan, *from, *to, &mut shown),
            SchedulerEvent::Removed { keys } => {
                let keys = keys.iter().map(|(key, _)| key.0);
                match shown.last_mut() {
                    Some(SglangEvent::Removed(hashes)) => hashes.extend(keys),
                    _ => shown.push(SglangEvent::Removed(keys.collect())),
                }
            }
            SchedulerEvent::Cleared => shown.push(SglangEvent::Cleared),
            _ => {}
        }
    }
    let mut w = MsgpackWriter::new();
    w.write_array_header(3);
    w.write_float(ts);
    w.write_array_header(shown.len());
    shown.iter().for_each(|event| event.write(&mut w));
    w.write_uint(rank.into());
    w.into_msgpack_bytes()
}

fn push_stored<'a>(
    plan: &'a PlannedKvBlocks,
    from: u32,
    to: u32,
    shown: &mut Vec<SglangEvent<'a>>,
) {
    let (from, to) = (from as usize, (to as usize).min(plan.keys.len()));
    let size = plan.block_size as usize;
    let adapter = plan.lora.as_ref().map(|(_, name)| &**name);
    // The salt is an extra key of the first block, after the adapter.
    let keys = plan.extra_keys.first().and_then(Option::as_deref).unwrap_or_default();
    let salt = keys.iter().skip(usize::from(adapter.is_some())).find_map(|key| match key {
        BlockHashExtraKey::Text(salt) => Some(&**salt),
        BlockHashExtraKey::Media { .. } => None,
    });
    let labels =
        PageLabels { page_size: plan.block_size, salt, session: plan.session.as_deref(), adapter };
    let hashes: Vec<u64> = plan.keys[from.min(to)..to].iter().map(|key| key.0).collect();
    let parent = from.checked_sub(1).map(|before| plan.keys[before].0);
    let tokens = plan.tokens.get(from * size..to * size).unwrap_or_default();
    if let Some(SglangEvent::Stored(last)) = shown.last_mut()
        && last.labels == labels
        && parent.is_some()
        && last.hashes.last().copied() == parent
    {
        last.hashes.extend(hashes);
        last.tokens.extend_from_slice(tokens);
        return;
    }
    let tokens = tokens.to_vec();
    shown.push(SglangEvent::Stored(StoredPages { hashes, parent, tokens, labels }));
}

impl SglangEvent<'_> {
    fn write(&self, w: &mut MsgpackWriter) {
        w.write_map(|map| match self {
            Self::Stored(pages) => pages.write_fields(map),
            Self::Removed(hashes) => {
                map.write_text("type", "BlockRemoved");
                map.write_list("block_hashes", hashes, write_hash);
                map.write_text("medium", MEDIUM);
            }
            Self::Cleared => map.write_text("type", "AllBlocksCleared"),
        });
    }
}

impl StoredPages<'_> {
    fn write_fields(&self, map: &mut MsgpackMap<'_>) {
        let PageLabels { page_size, salt, session, adapter } = self.labels;
        map.write_text("type", "BlockStored");
        map.write_list("block_hashes", &self.hashes, write_hash);
        map.write_nullable("parent_block_hash", self.parent, write_hash);
        map.write_list("token_ids", &self.tokens, MsgpackWriter::write_u32);
        map.write_number("block_size", page_size);
        map.write_entry("lora_id", MsgpackWriter::write_nil);
        map.write_text("medium", MEDIUM);
        map.write_text_if_set("cache_salt", salt);
        map.write_text_if_set("session_id", session);
        map.write_text_if_set("lora_name", adapter);
    }
}

/// Writes a block hash as a signed number, as SGLang does.
fn write_hash(w: &mut MsgpackWriter, hash: u64) {
    w.write_int(hash.cast_signed());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use vllm_sim_engine::kv::{
        BlockHashAlgorithm, BlockHashConfig, BlockHashExtraKeys, BlockHasher, LoraAdapter,
    };
    use vllm_sim_engine::{BlockKey, LoraId};

    fn plan(extras: &BlockHashExtraKeys, session: Option<&str>) -> Arc<PlannedKvBlocks> {
        let hasher = BlockHasher::new(BlockHashConfig {
            algo: BlockHashAlgorithm::Sglang,
            block_size: 2,
            keep_tokens: true,
            ..BlockHashConfig::default()
        });
        let plan = hasher.plan_kv_blocks(&[1, 200, 300, 70_000, 5, 6], extras);
        Arc::new(PlannedKvBlocks { session: session.map(Into::into), ..plan })
    }

    /// The expected bytes come from msgspec 0.22 and the classes of SGLang 0.5.23.
    #[test]
    fn events_are_those_of_sglang() {
        let salted =
            BlockHashExtraKeys { salt: Some("pepper".into()), ..BlockHashExtraKeys::default() };
        let adapter = LoraAdapter { id: LoraId(1), name: "sql".into(), path: "/a".into() };
        let adapted = BlockHashExtraKeys { lora: Some(adapter), ..BlockHashExtraKeys::default() };
        let (plain, salted) =
            (plan(&BlockHashExtraKeys::default(), None), plan(&salted, Some("s-1")));
        let adapted = plan(&adapted, None);
        let stored = |plan: &Arc<PlannedKvBlocks>, from, to| SchedulerEvent::Stored {
            plan: Arc::clone(plan),
            from,
            to,
        };
        let removed = |key: i64| SchedulerEvent::Removed {
            keys: vec![(BlockKey(key.cast_unsigned()), None)],
        };
        let events = [
            SchedulerEvent::Cleared,
            removed(5),
            removed(-7),
            stored(&plain, 0, 1),
            stored(&plain, 1, 3),
            stored(&salted, 1, 2),
            stored(&adapted, 0, 1),
        ];
        let payload = encode_sglang_batch(&events, 1_700_000_000.5, 1);
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "93cb41d954fc402000009581a474797065b0416c6c426c6f636b73436c656172656483a474797065ac426c\
             6f636b52656d6f766564ac626c6f636b5f6861736865739205f9a66d656469756da347505587a474797065\
             ab426c6f636b53746f726564ac626c6f636b5f68617368657393cf07ba131683fc7a2ad3f2002596be3c7e\
             0ccf21c34472fb7fcd2cb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739601ccc8\
             cd012cce000111700506aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da347505589\
             a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf5a2011a311cd7b1bb17061\
             72656e745f626c6f636b5f68617368cf0137973cff8539e2a9746f6b656e5f69647392cd012cce00011170\
             aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055aa63616368655f73616c74\
             a6706570706572aa73657373696f6e5f6964a3732d3188a474797065ab426c6f636b53746f726564ac626c\
             6f636b5f68617368657391cf36e79dbc9ffe34bcb1706172656e745f626c6f636b5f68617368c0a9746f6b\
             656e5f6964739201ccc8aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a9\
             6c6f72615f6e616d65a373716c01"
        );
    }
}
