mod sglang;

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use super::cbor::CborWriter;
use super::pickle::PickleWriter;
use crate::{BlockHashExtraKey, BlockKey, LoraId, PlannedKvBlocks};

/// Selects the hash algorithm for KV blocks.
///
/// **Source:** `vllm/utils/hashing.py` and `vllm/v1/core/kv_cache_utils.py` for the first four,
/// `pkg/kvcache/kvblock/token_processor.go` of llm-d-kv-cache for llm-d's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockHashAlgorithm {
    /// The block hash is the SHA-256 of a Python pickle of the hashed values (vLLM's default).
    #[default]
    Sha256,
    /// The block hash is the SHA-256 of the hashed values in canonical CBOR.
    Sha256Cbor,
    /// The block hash is the XXH3-128 of a Python pickle of the hashed values.
    Xxhash,
    /// The block hash is the XXH3-128 of the hashed values in canonical CBOR.
    XxhashCbor,
    /// The block hash is the 64-bit FNV-1a of the hashed values in canonical CBOR; its root hash
    /// depends on the model's name (llm-d-inference-sim HEAD).
    LlmdFnv,
    /// The block hash is the last 64 bits of a SHA-256 over canonical CBOR, which includes the
    /// previous block's hash (llm-d-inference-sim v0.6).
    LlmdSha256,
    /// The block hash is a SHA-256 over the raw bytes of the token ids (SGLang).
    Sglang,
    /// The block hash is an XXH3-128 over the raw bytes of the token ids, for servers that do not
    /// publish block hashes.
    Internal,
}

impl fmt::Display for BlockHashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "sha256",
            Self::Sha256Cbor => "sha256_cbor",
            Self::Xxhash => "xxhash",
            Self::XxhashCbor => "xxhash_cbor",
            Self::LlmdFnv => "llm-d-fnv",
            Self::LlmdSha256 => "llm-d-sha256",
            Self::Sglang => "sglang",
            Self::Internal => "internal",
        })
    }
}

impl BlockHashAlgorithm {
    /// Returns the length of a full block hash, in bytes.
    pub const fn hash_len_bytes(self) -> usize {
        match self {
            Self::Sha256 | Self::Sha256Cbor | Self::Sglang => 32,
            Self::Xxhash | Self::XxhashCbor | Self::Internal => 16,
            Self::LlmdFnv | Self::LlmdSha256 => 8,
        }
    }
}

/// Configures the block hashes that a [`BlockHasher`] computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockHashConfig {
    /// Hash algorithm for KV blocks.
    pub algo: BlockHashAlgorithm,
    /// Seed of the root hash of KV blocks: value of PYTHONHASHSEED or `--hash-seed`.
    ///
    /// Default: `vllm-none-hash`, as in vLLM for SHA-256. For XXH3, vLLM draws a random root per
    /// process; here it is reproducible too.
    pub seed: Option<String>,
    /// Number of tokens per KV block; 0 counts as 1.
    pub block_size: u32,
    /// Number of tokens after a KV block that the block's hash also covers, in vLLM's algorithms.
    ///
    /// **Source:** vLLM 0.33 `vllm/v1/core/kv_cache_utils.py`, `get_request_block_hasher`.
    pub lookahead: u32,
    /// Whether the planned KV blocks of a sequence keep full hashes, for KV events with hashes as
    /// bytes.
    pub keep_hashes: bool,
    /// Whether the planned KV blocks of a sequence keep tokens and extra keys, for KV events.
    pub keep_tokens: bool,
}

/// Describes a LoRA adapter for block hashes and KV events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraAdapter {
    /// Id of the LoRA adapter within the engine, from 1.
    pub id: LoraId,
    /// Served model name of the LoRA adapter.
    pub name: Arc<str>,
    /// Path of the LoRA adapter, as configured.
    pub path: Arc<str>,
}

/// Describes an image, audio clip or video in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedMediaSpan {
    /// Hash of the media item's content.
    pub identifier: Arc<str>,
    /// Index in the prompt of the media item's first placeholder token.
    pub start: u32,
    /// Number of the media item's placeholder tokens.
    pub len: u32,
}

/// Holds the inputs of block hashes other than tokens (vLLM's `extra_keys`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockHashExtraKeys {
    /// LoRA adapter of the request, if any.
    pub lora: Option<LoraAdapter>,
    /// First served model name; llm-d computes the root hash from it if there is no LoRA adapter.
    pub model: Arc<str>,
    /// `cache_salt` of the request.
    pub salt: Option<Arc<str>>,
    /// Media items of the prompt, in order.
    pub media: Vec<HashedMediaSpan>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockHash {
    bytes: [u8; 32],
    len: usize,
}

impl BlockHash {
    fn new(digest: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { bytes, len: digest.len() }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the last eight bytes of the block hash as a big-endian number (vLLM's integer form).
    fn low_u64(&self) -> u64 {
        self.bytes[self.len - 8..self.len].iter().fold(0, |key, &byte| key << 8 | u64::from(byte))
    }
}

/// Computes the KV block hashes of sequences as a [`PlannedKvBlocks`]. All requests of a model
/// share one hasher.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    config: BlockHashConfig,
    /// Parent hash of the first block (vLLM's NONE_HASH; in llm-d the hashed seed, before the model
    /// name).
    none: BlockHash,
}

impl BlockHasher {
    /// Creates a hasher of KV blocks and computes its root hash.
    pub fn new(config: BlockHashConfig) -> Self {
        let mut buf = Vec::new();
        let none = match config.algo {
            BlockHashAlgorithm::LlmdFnv => {
                let seed = config.seed.as_deref().unwrap_or_default();
                BlockHash::new(&fnv1a_64(seed.as_bytes()).to_be_bytes())
            }
            BlockHashAlgorithm::LlmdSha256 => {
                CborWriter(&mut buf).write_text(config.seed.as_deref().unwrap_or_default());
                hash_bytes(config.algo, &buf)
            }
            BlockHashAlgorithm::Sglang => BlockHash::new(&[]),
            algo => {
                let seed = config.seed.as_deref().unwrap_or("vllm-none-hash");
                match algo {
                    BlockHashAlgorithm::Sha256 | BlockHashAlgorithm::Xxhash => {
                        let mut pickle = PickleWriter::new(&mut buf);
                        pickle.write_text(seed);
                        pickle.finish_pickle();
                    }
                    _ => CborWriter(&mut buf).write_text(seed),
                }
                hash_bytes(algo, &buf)
            }
        };
        let covers_lookahead = !matches!(
            config.algo,
            BlockHashAlgorithm::LlmdFnv
                | BlockHashAlgorithm::LlmdSha256
                | BlockHashAlgorithm::Sglang
        );
        let config = BlockHashConfig {
            block_size: config.block_size.max(1),
            lookahead: if covers_lookahead { config.lookahead } else { 0 },
            ..config
        };
        Self { config, none }
    }

    /// Returns the configuration of the block hashes.
    pub const fn config(&self) -> &BlockHashConfig {
        &self.config
    }

    /// Returns the parent hash of a sequence's first block (vLLM's NONE_HASH).
    pub fn none_hash(&self) -> &[u8] {
        self.none.as_slice()
    }

    /// Returns the approximate memory of a [`PlannedKvBlocks`] for `tokens` tokens, in bytes.
    pub const fn estimate_planned_blocks_bytes(&self, tokens: u64) -> u64 {
        let config = &self.config;
        let token = if config.keep_tokens { 4 } else { 0 };
        let block = if config.keep_hashes { 8 + 32 } else { 8 };
        tokens * token + tokens / config.block_size as u64 * block
    }

    /// Computes the keys and hashes of a sequence's KV blocks; `tokens` are its prompt and output
    /// tokens.
    pub fn plan_kv_blocks(&self, tokens: &[u32], extras: &BlockHashExtraKeys) -> PlannedKvBlocks {
        let mut chain = self.begin_planned_kv_blocks(extras, tokens.len());
        chain.append_tokens(tokens);
        chain.finish_planned_kv_blocks()
    }

    /// Creates a builder of a sequence's [`PlannedKvBlocks`] with room for `tokens` tokens.
    ///
    /// Sequences with the same prompt need to hash it only once: append the prompt, then clone the
    /// builder.
    pub fn begin_planned_kv_blocks<'a>(
        &'a self,
        extras: &'a BlockHashExtraKeys,
        tokens: usize,
    ) -> PlannedKvBlocksBuilder<'a> {
        let mut chain = PlannedKvBlocksBuilder {
            hasher: self,
            extras,
            parent: self.none,
            plan: PlannedKvBlocks {
                block_size: self.config.block_size,
                lookahead: self.config.lookahead,
                lora: extras.lora.as_ref().map(|lora| (lora.id, Arc::clone(&lora.name))),
                tokens: Vec::with_capacity(tokens),
                keys: Vec::with_capacity(tokens / self.config.block_size as usize),
                ..PlannedKvBlocks::default()
            },
            buf: Vec::new(),
        };
        if self.config.algo == BlockHashAlgorithm::LlmdFnv {
            let model = extras.lora.as_ref().map_or(&extras.model, |lora| &lora.name);
            let mut cbor = CborWriter(&mut chain.buf);
            cbor.write_array_header(3);
            cbor.write_unsigned(self.none.low_u64());
            cbor.write_null();
            cbor.write_text(model);
            chain.parent = hash_bytes(self.config.algo, &chain.buf);
        }
        if let (BlockHashAlgorithm::Sglang, Some(salt)) = (self.config.algo, &extras.salt) {
            chain.parent = BlockHash::new(&sglang::cache_salt_digest(salt));
        }
        chain
    }
}

/// Builds a [`PlannedKvBlocks`] token by token.
#[derive(Debug, Clone)]
pub struct PlannedKvBlocksBuilder<'a> {
    hasher: &'a BlockHasher,
    extras: &'a BlockHashExtraKeys,
    parent: BlockHash,
    plan: PlannedKvBlocks,
    buf: Vec<u8>,
}

impl PlannedKvBlocksBuilder<'_> {
    /// Appends tokens to the sequence and hashes the KV blocks that become full.
    pub fn append_tokens(&mut self, tokens: &[u32]) {
        self.plan.tokens.extend_from_slice(tokens);
        let size = self.plan.block_size as usize;
        let ahead = self.plan.lookahead as usize;
        let full = self.plan.tokens.len().saturating_sub(ahead) / size;
        for block in self.plan.keys.len()..full {
            let extra_keys = extra_keys_of_block(self.extras, block * size, size + ahead);
            self.buf.clear();
            let (start, end) = (block * size, (block + 1) * size);
            let content = BlockHashInput {
                parent: &self.parent,
                tokens: &self.plan.tokens[start..end],
                extra_keys: &extra_keys,
                ahead: &self.plan.tokens[end..end + ahead],
            };
            content.encode_hash_input(self.hasher.config.algo, &mut self.buf);
            self.parent = hash_bytes(self.hasher.config.algo, &self.buf);
            let key = match self.hasher.config.algo {
                BlockHashAlgorithm::Sglang => {
                    let adapter = self.extras.lora.as_ref().map(|lora| &*lora.name);
                    sglang::sglang_page_key(&self.parent.bytes, adapter)
                }
                _ => self.parent.low_u64(),
            };
            self.plan.keys.push(BlockKey(key));
            if self.hasher.config.keep_hashes {
                self.plan.hashes.push(self.parent.bytes);
            }
            if self.hasher.config.keep_tokens {
                self.store_extra_keys(block, &extra_keys);
            }
        }
    }

    /// Returns the planned KV blocks for all appended tokens: the hash of each full block, and the
    /// last partial block.
    pub fn finish_planned_kv_blocks(mut self) -> PlannedKvBlocks {
        if !self.hasher.config.keep_tokens {
            self.plan.tokens = Vec::new();
        }
        self.plan
    }

    /// Stores the extra hash keys of a KV block as the sequence's KV events report them.
    fn store_extra_keys(&mut self, block: usize, extra_keys: &[ExtraKeyPart<'_>]) {
        if extra_keys.is_empty() {
            // The list stays empty until a block has extra keys.
            if !self.plan.extra_keys.is_empty() {
                self.plan.extra_keys.push(None);
            }
            return;
        }
        self.plan.extra_keys.resize(block, None);
        let shown = extra_keys.iter().copied().map(ExtraKeyPart::to_event_key).collect();
        self.plan.extra_keys.push(Some(shown));
    }
}

#[derive(Debug, Clone, Copy)]
enum ExtraKeyPart<'a> {
    Lora(&'a LoraAdapter),
    Media(&'a Arc<str>, i64),
    Salt(&'a Arc<str>),
}

impl ExtraKeyPart<'_> {
    fn to_event_key(self) -> BlockHashExtraKey {
        match self {
            Self::Lora(lora) => BlockHashExtraKey::Text(Arc::clone(&lora.name)),
            Self::Media(identifier, offset) => {
                BlockHashExtraKey::Media { identifier: Arc::clone(identifier), offset }
            }
            Self::Salt(salt) => BlockHashExtraKey::Text(Arc::clone(salt)),
        }
    }
}

/// Returns the extra hash keys of the KV block that starts at token `start`, in vLLM's order
/// (`generate_block_hash_extra_keys`).
fn extra_keys_of_block(
    extras: &BlockHashExtraKeys,
    start: usize,
    size: usize,
) -> Vec<ExtraKeyPart<'_>> {
    let lora = extras.lora.iter().map(ExtraKeyPart::Lora);
    let media = extras.media.iter().filter_map(|item| {
        let offset = i64::from(item.start) - start as i64;
        let overlaps = offset < size as i64 && offset + i64::from(item.len) > 0;
        overlaps.then_some(ExtraKeyPart::Media(&item.identifier, offset))
    });
    let salt = extras.salt.iter().filter(|_| start == 0).map(ExtraKeyPart::Salt);
    lora.chain(media).chain(salt).collect()
}

struct BlockHashInput<'a> {
    parent: &'a BlockHash,
    tokens: &'a [u32],
    extra_keys: &'a [ExtraKeyPart<'a>],
    /// Tokens after the KV block that the block's hash also covers; empty without `lookahead`.
    ahead: &'a [u32],
}

impl BlockHashInput<'_> {
    fn encode_hash_input(&self, algo: BlockHashAlgorithm, buf: &mut Vec<u8>) {
        let &Self { parent, tokens, extra_keys, .. } = self;
        match algo {
            BlockHashAlgorithm::Sha256 | BlockHashAlgorithm::Xxhash => self.encode_pickle(buf),
            BlockHashAlgorithm::Sha256Cbor | BlockHashAlgorithm::XxhashCbor => {
                self.encode_cbor(buf)
            }
            BlockHashAlgorithm::LlmdFnv => encode_llmd(parent, tokens, extra_keys, buf),
            BlockHashAlgorithm::LlmdSha256 => encode_llmd(parent, tokens, &[], buf),
            BlockHashAlgorithm::Sglang => Self { extra_keys: &[], ..*self }.encode_internal(buf),
            BlockHashAlgorithm::Internal => self.encode_internal(buf),
        }
    }

    fn encode_internal(&self, buf: &mut Vec<u8>) {
        let (parent, tokens, extra_keys) = (self.parent, self.tokens, self.extra_keys);
        // Reserve once: the parent, and four bytes per token.
        buf.reserve(parent.len + 4 * (tokens.len() + self.ahead.len()));
        buf.extend_from_slice(parent.as_slice());
        for tokens in [tokens, self.ahead] {
            let start = buf.len();
            buf.resize(start + 4 * tokens.len(), 0);
            let places = buf[start..].chunks_exact_mut(4);
            for (place, token) in places.zip(tokens) {
                place.copy_from_slice(&token.to_le_bytes());
            }
        }
        if !extra_keys.is_empty() {
            cbor_extra_keys(&mut CborWriter(buf), extra_keys);
        }
    }

    fn encode_pickle(&self, buf: &mut Vec<u8>) {
        let mut pickle = PickleWriter::new(buf);
        pickle.write_tuple(3, |p| {
            p.write_bytes(self.parent.as_slice());
            p.write_tuple(self.tokens.len(), |p| {
                for &token in self.tokens {
                    p.write_integer(i64::from(token));
                }
            });
            if self.ahead.is_empty() {
                pickle_extra_keys(p, self.extra_keys);
                return;
            }
            p.write_tuple(1 + self.ahead.len(), |p| {
                pickle_extra_keys(p, self.extra_keys);
                for &token in self.ahead {
                    p.write_integer(i64::from(token));
                }
            });
        });
        pickle.finish_pickle();
    }

    fn encode_cbor(&self, buf: &mut Vec<u8>) {
        let mut cbor = CborWriter(buf);
        cbor.write_array_header(3);
        cbor.write_bytes(self.parent.as_slice());
        cbor.write_token_array(self.tokens);
        if !self.ahead.is_empty() {
            cbor.write_array_header(1 + self.ahead.len());
        }
        match self.extra_keys {
            [] => cbor.write_null(),
            keys => cbor_extra_keys(&mut cbor, keys),
        }
        for &token in self.ahead {
            cbor.write_unsigned(u64::from(token));
        }
    }
}

fn pickle_extra_keys(p: &mut PickleWriter<'_>, extra_keys: &[ExtraKeyPart<'_>]) {
    if extra_keys.is_empty() {
        p.write_python_none();
        return;
    }
    // Python's literal "mm" is one object, so its second use is a reference.
    let mut mm = None;
    p.write_tuple(extra_keys.len(), |p| {
        for extra in extra_keys {
            match extra {
                ExtraKeyPart::Lora(lora) => p.write_tuple(3, |p| {
                    p.write_text("lora");
                    p.write_text(&lora.name);
                    p.write_text(&lora.path);
                }),
                ExtraKeyPart::Media(identifier, offset) => p.write_tuple(3, |p| {
                    match mm {
                        Some(mm) => p.write_memo_reference(mm),
                        None => mm = Some(p.write_text("mm")),
                    }
                    p.write_text(identifier);
                    p.write_integer(*offset);
                }),
                ExtraKeyPart::Salt(salt) => p.write_tuple(2, |p| {
                    p.write_text("cache_salt");
                    p.write_text(salt);
                }),
            }
        }
    });
}

fn cbor_extra_keys(cbor: &mut CborWriter<'_>, extra_keys: &[ExtraKeyPart<'_>]) {
    cbor.write_array_header(extra_keys.len());
    for extra in extra_keys {
        match extra {
            ExtraKeyPart::Lora(lora) => {
                cbor.write_array_header(3);
                cbor.write_text("lora");
                cbor.write_text(&lora.name);
                cbor.write_text(&lora.path);
            }
            ExtraKeyPart::Media(identifier, offset) => {
                cbor.write_array_header(3);
                cbor.write_text("mm");
                cbor.write_text(identifier);
                cbor.write_integer(*offset);
            }
            ExtraKeyPart::Salt(salt) => {
                cbor.write_array_header(2);
                cbor.write_text("cache_salt");
                cbor.write_text(salt);
            }
        }
    }
}

/// Writes the input of a block hash as llm-d does: the parent hash is a number, and a LoRA adapter
/// changes only the root hash. A cache salt is hashed like a media item, as llm-d's router does.
///
/// **Source:** llm-d-router `pkg/kvcache/kvblock/token_processor.go`, `ParseRawExtraKeys`.
fn encode_llmd(
    parent: &BlockHash,
    tokens: &[u32],
    extra_keys: &[ExtraKeyPart<'_>],
    buf: &mut Vec<u8>,
) {
    let hashed = extra_keys.iter().filter_map(|extra| match *extra {
        ExtraKeyPart::Media(identifier, _) => Some(identifier),
        ExtraKeyPart::Salt(salt) => Some(salt),
        ExtraKeyPart::Lora(_) => None,
    });
    let mut cbor = CborWriter(buf);
    cbor.write_array_header(3);
    cbor.write_unsigned(parent.low_u64());
    cbor.write_token_array(tokens);
    match hashed.clone().count() {
        0 => cbor.write_null(),
        n => {
            cbor.write_array_header(n);
            for identifier in hashed {
                cbor.write_map_header(1);
                cbor.write_text("Hash");
                cbor.write_text(identifier);
            }
        }
    }
}

fn hash_bytes(algo: BlockHashAlgorithm, bytes: &[u8]) -> BlockHash {
    match algo {
        BlockHashAlgorithm::Sha256
        | BlockHashAlgorithm::Sha256Cbor
        | BlockHashAlgorithm::Sglang => BlockHash::new(&Sha256::digest(bytes)),
        BlockHashAlgorithm::Xxhash
        | BlockHashAlgorithm::XxhashCbor
        | BlockHashAlgorithm::Internal => BlockHash::new(&xxh3_128(bytes).to_be_bytes()),
        BlockHashAlgorithm::LlmdFnv => BlockHash::new(&fnv1a_64(bytes).to_be_bytes()),
        BlockHashAlgorithm::LlmdSha256 => BlockHash::new(&Sha256::digest(bytes)[24..]),
    }
}

fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
