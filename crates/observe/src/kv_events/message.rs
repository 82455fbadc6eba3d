//! KV-cache events as msgpack.
//!
//! Not serde: the Go encoder behind llm-d writes some integers at full width where msgspec writes
//! the shortest, in the same message, which no serde data model tells apart.
//!
//! Sources: `vllm/distributed/kv_events.py`; `pkg/kv-cache/kv_cache_sender.go` of
//! llm-d-inference-sim with `github.com/vmihailenco/msgpack/v5`.

/// Which program's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Form {
    /// vLLM 0.32 and later: each event is a map.
    #[default]
    Vllm,
    /// vLLM before that: each event is an array, trailing defaults included.
    VllmArray,
    /// llm-d-inference-sim: arrays (its default).
    Llmd,
    /// llm-d-inference-sim with `use-vllm-map-event-format`.
    LlmdMap,
    /// llm-d-inference-sim v0.6: arrays of which only the hashes carry data.
    LlmdV06,
}

/// A block hash as a consumer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockHash<'a> {
    /// The last 64 bits.
    Int(u64),
    /// All of it.
    Bytes(&'a [u8]),
}

/// One entry of `extra_keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtraKey<'a> {
    /// Adapter name or cache salt.
    Text(&'a str),
    /// Identifier and offset of a media item.
    Media(&'a str, i64),
}

/// Consecutive blocks entered the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockStored<'a> {
    /// The blocks.
    pub block_hashes: Vec<BlockHash<'a>>,
    /// The block before the first of them.
    pub parent_block_hash: Option<BlockHash<'a>>,
    /// The tokens of all of them.
    pub token_ids: &'a [u32],
    /// Tokens per block.
    pub block_size: u32,
    /// Adapter number, from 1.
    pub lora_id: Option<u32>,
    /// Adapter name.
    pub lora_name: Option<&'a str>,
    /// One entry per block.
    pub extra_keys: Vec<Option<Vec<ExtraKey<'a>>>>,
}

/// One change of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// Blocks entered.
    BlockStored(BlockStored<'a>),
    /// A block left.
    BlockRemoved(BlockHash<'a>),
    /// All left.
    AllBlocksCleared,
}

/// What one message carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvEventBatch<'a> {
    /// Unix seconds.
    pub ts: f64,
    /// In the order they happened.
    pub events: &'a [KvEvent<'a>],
    /// Whose cache.
    pub data_parallel_rank: u32,
}

const MEDIUM: &str = "GPU";

impl KvEventBatch<'_> {
    /// The payload frame.
    pub fn encode(&self, form: Form) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(256));
        w.array(3);
        w.float(self.ts);
        w.array(self.events.len());
        for event in self.events {
            match form {
                Form::Vllm => event.write_vllm(&mut w),
                Form::VllmArray => event.write_vllm_array(&mut w),
                Form::Llmd => event.write_llmd(&mut w),
                Form::LlmdMap => event.write_llmd_map(&mut w),
                Form::LlmdV06 => event.write_llmd_v06(&mut w),
            }
        }
        w.uint(match form {
            Form::LlmdV06 => 0,
            _ => u64::from(self.data_parallel_rank),
        });
        w.0
    }
}

impl KvEvent<'_> {
    fn write_vllm(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                w.map(11);
                w.entry("type", |w| w.text("BlockStored"));
                w.entry("block_hashes", |w| {
                    w.each(&event.block_hashes, Writer::hash)
                });
                w.entry("parent_block_hash", |w| {
                    w.option(event.parent_block_hash, Writer::hash)
                });
                w.entry("token_ids", |w| w.each(event.token_ids, Writer::token));
                w.entry("block_size", |w| w.uint(event.block_size.into()));
                w.entry("lora_id", |w| {
                    w.option(event.lora_id, |w, id| w.uint(id.into()))
                });
                w.entry("medium", |w| w.text(MEDIUM));
                w.entry("lora_name", |w| w.option(event.lora_name, Writer::text));
                w.entry("extra_keys", |w| w.extra_keys(&event.extra_keys));
                w.entry("group_idx", |w| w.uint(0));
                w.entry("kv_cache_spec_kind", |w| w.text("full_attention"));
            }
            Self::BlockRemoved(hash) => {
                w.map(4);
                w.entry("type", |w| w.text("BlockRemoved"));
                w.entry("block_hashes", |w| w.each(&[*hash], Writer::hash));
                w.entry("medium", |w| w.text(MEDIUM));
                w.entry("group_idx", |w| w.uint(0));
            }
            Self::AllBlocksCleared => {
                w.map(1);
                w.entry("type", |w| w.text("AllBlocksCleared"));
            }
        }
    }

    fn write_vllm_array(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                w.array(10);
                w.text("BlockStored");
                w.each(&event.block_hashes, Writer::hash);
                w.option(event.parent_block_hash, Writer::hash);
                w.each(event.token_ids, Writer::token);
                w.uint(event.block_size.into());
                w.option(event.lora_id, |w, id| w.uint(id.into()));
                w.text(MEDIUM);
                w.option(event.lora_name, Writer::text);
                w.extra_keys(&event.extra_keys);
                w.uint(0);
            }
            Self::BlockRemoved(hash) => {
                w.array(4);
                w.text("BlockRemoved");
                w.each(&[*hash], Writer::hash);
                w.text(MEDIUM);
                w.uint(0);
            }
            Self::AllBlocksCleared => w.tag_alone(),
        }
    }

    fn write_llmd(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                w.array(9);
                w.text("BlockStored");
                w.each(&event.block_hashes, Writer::wide_hash);
                w.wide_hash(event.parent_block_hash.unwrap_or(BlockHash::Int(0)));
                w.each(event.token_ids, Writer::wide_token);
                w.uint(event.block_size.into());
                w.option(event.lora_id, |w, id| w.uint(id.into()));
                w.text(MEDIUM);
                w.option(event.lora_name, Writer::text);
                w.nil();
            }
            Self::BlockRemoved(hash) => {
                w.array(3);
                w.text("BlockRemoved");
                w.each(&[*hash], Writer::wide_hash);
                w.text(MEDIUM);
            }
            Self::AllBlocksCleared => w.tag_alone(),
        }
    }

    fn write_llmd_map(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                let lora = usize::from(event.lora_id.is_some());
                w.map(6 + lora + usize::from(event.lora_name.is_some()));
                w.entry("type", |w| w.text("BlockStored"));
                w.entry("block_hashes", |w| {
                    w.each(&event.block_hashes, Writer::wide_hash)
                });
                let parent = event.parent_block_hash;
                w.entry("parent_block_hash", |w| w.option(parent, Writer::wide_hash));
                w.entry("token_ids", |w| w.each(event.token_ids, Writer::wide_token));
                w.entry("block_size", |w| w.uint(event.block_size.into()));
                if let Some(id) = event.lora_id {
                    w.entry("lora_id", |w| w.uint(id.into()));
                }
                w.entry("medium", |w| w.text(MEDIUM));
                if let Some(name) = event.lora_name {
                    w.entry("lora_name", |w| w.text(name));
                }
            }
            Self::BlockRemoved(hash) => {
                w.map(3);
                w.entry("type", |w| w.text("BlockRemoved"));
                w.entry("block_hashes", |w| w.each(&[*hash], Writer::wide_hash));
                w.entry("medium", |w| w.text(MEDIUM));
            }
            Self::AllBlocksCleared => {
                w.map(1);
                w.entry("type", |w| w.text("AllBlocksCleared"));
            }
        }
    }

    fn write_llmd_v06(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                w.array(6);
                w.text("BlockStored");
                w.each(&event.block_hashes, Writer::wide_hash);
                w.nil();
                w.nil();
                w.uint(0);
                w.nil();
            }
            Self::BlockRemoved(hash) => {
                w.array(2);
                w.text("BlockRemoved");
                w.each(&[*hash], Writer::wide_hash);
            }
            Self::AllBlocksCleared => w.tag_alone(),
        }
    }
}

/// Appends msgpack items to a buffer, integers and heads as short as they can be.
struct Writer(Vec<u8>);

impl Writer {
    fn nil(&mut self) {
        self.0.push(0xc0);
    }

    fn uint(&mut self, n: u64) {
        let wide = n.to_be_bytes();
        match n {
            0..0x80 => self.0.push(n as u8),
            0x80..0x100 => self.0.extend_from_slice(&[0xcc, n as u8]),
            0x100..0x1_0000 => self.marked(0xcd, &wide[6..]),
            0x1_0000..0x1_0000_0000 => self.marked(0xce, &wide[4..]),
            _ => self.marked(0xcf, &wide),
        }
    }

    fn int(&mut self, n: i64) {
        let wide = n.to_be_bytes();
        match n {
            0.. => self.uint(n as u64),
            -0x20..0 => self.0.push(wide[7]),
            -0x80..-0x20 => self.marked(0xd0, &wide[7..]),
            -0x8000..-0x80 => self.marked(0xd1, &wide[6..]),
            -0x8000_0000..-0x8000 => self.marked(0xd2, &wide[4..]),
            _ => self.marked(0xd3, &wide),
        }
    }

    fn float(&mut self, x: f64) {
        self.marked(0xcb, &x.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        match text.len() {
            len @ 0..0x20 => self.0.push(0xa0 | len as u8),
            len @ 0x20..0x100 => self.0.extend_from_slice(&[0xd9, len as u8]),
            len @ 0x100..0x1_0000 => self.marked(0xda, &(len as u16).to_be_bytes()),
            len => self.marked(0xdb, &(len as u32).to_be_bytes()),
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    /// A hash; it has 32 bytes at most.
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&[0xc4, bytes.len() as u8]);
        self.0.extend_from_slice(bytes);
    }

    fn array(&mut self, len: usize) {
        match len {
            0..0x10 => self.0.push(0x90 | len as u8),
            0x10..0x1_0000 => self.marked(0xdc, &(len as u16).to_be_bytes()),
            _ => self.marked(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    /// The head of a map with fewer than 16 keys.
    fn map(&mut self, len: usize) {
        self.0.push(0x80 | len as u8);
    }

    fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    fn each<T: Copy>(&mut self, items: &[T], write: impl Fn(&mut Self, T)) {
        self.array(items.len());
        for &item in items {
            write(self, item);
        }
    }

    fn option<T>(&mut self, item: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match item {
            Some(item) => write(self, item),
            None => self.nil(),
        }
    }

    fn token(&mut self, token: u32) {
        self.uint(token.into());
    }

    fn hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => self.uint(n),
            BlockHash::Bytes(bytes) => self.bytes(bytes),
        }
    }

    /// A Go `uint32`: five bytes, however small.
    fn wide_token(&mut self, token: u32) {
        self.marked(0xce, &token.to_be_bytes());
    }

    /// A Go `uint64`: nine bytes, however small.
    fn wide_hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => self.marked(0xcf, &n.to_be_bytes()),
            BlockHash::Bytes(bytes) => self.bytes(bytes),
        }
    }

    fn extra_keys(&mut self, blocks: &[Option<Vec<ExtraKey<'_>>>]) {
        self.array(blocks.len());
        for block in blocks {
            self.option(block.as_deref(), |w, keys| {
                w.each(keys, |w, key| match key {
                    ExtraKey::Text(text) => w.text(text),
                    ExtraKey::Media(identifier, offset) => {
                        w.array(2);
                        w.text(identifier);
                        w.int(offset);
                    }
                });
            });
        }
    }

    fn tag_alone(&mut self) {
        self.array(1);
        self.text("AllBlocksCleared");
    }

    fn marked(&mut self, marker: u8, bytes: &[u8]) {
        self.0.push(marker);
        self.0.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// Lengths and integers of every width, against the digest of what msgspec 0.22 writes.
    #[test]
    fn large_events_are_written_as_msgspec_does() {
        let tokens: Vec<u32> = (0..70_000).map(|i| i * 3).collect();
        let (name, salt, identifier) = ("n".repeat(300), "s".repeat(70_000), "x".repeat(40));
        let keys = vec![
            ExtraKey::Text(&salt),
            ExtraKey::Media(&identifier, -200),
            ExtraKey::Media("y", -40_000),
            ExtraKey::Media("z", -(1 << 31) - 1),
            ExtraKey::Media("z", -(1 << 31)),
            ExtraKey::Media("w", -33),
            ExtraKey::Media("w", -32),
        ];
        let plain = BlockStored {
            block_hashes: (0..35_000).map(BlockHash::Int).collect(),
            parent_block_hash: None,
            token_ids: &tokens,
            block_size: 2,
            lora_id: None,
            lora_name: None,
            extra_keys: vec![None; 35_000],
        };
        let named = BlockStored {
            block_hashes: vec![BlockHash::Int(1)],
            token_ids: &[1, 2],
            lora_name: Some(&name),
            extra_keys: vec![Some(keys)],
            ..plain.clone()
        };
        let batch = KvEventBatch {
            ts: 1.0,
            events: &[KvEvent::BlockStored(plain), KvEvent::BlockStored(named)],
            data_parallel_rank: 300,
        };
        let digest = Sha256::digest(batch.encode(Form::Vllm));
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "5f4b4995dc784459ea291540cdb05ff4bd3e9971585e7f50b939090c40e946a7"
        );
    }
}
