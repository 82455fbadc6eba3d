//! Writes KV event messages in MessagePack as msgspec does, and as Go's encoder does where it
//! differs.
//!
//! serde cannot express this: in one message, the Go encoder of llm-d writes some integers at full
//! width where msgspec writes the shortest form.
//!
//! **Source:** msgspec 0.22; `github.com/vmihailenco/msgpack/v5`.

use super::message::{BlockHash, ExtraKey};

/// Buffer of MessagePack items, in which integers and headers have their shortest encoding.
pub(crate) struct MsgpackWriter(Vec<u8>);

impl MsgpackWriter {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(256))
    }

    pub(crate) fn into_msgpack_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn write_nil(&mut self) {
        self.0.push(0xc0);
    }

    pub(crate) fn write_uint(&mut self, n: u64) {
        let wide = n.to_be_bytes();
        match n {
            0..0x80 => self.0.push(n as u8),
            0x80..0x100 => self.0.extend_from_slice(&[0xcc, n as u8]),
            0x100..0x1_0000 => self.write_marker_and_bytes(0xcd, &wide[6..]),
            0x1_0000..0x1_0000_0000 => self.write_marker_and_bytes(0xce, &wide[4..]),
            _ => self.write_marker_and_bytes(0xcf, &wide),
        }
    }

    pub(crate) fn write_int(&mut self, n: i64) {
        let wide = n.to_be_bytes();
        match n {
            0.. => self.write_uint(n as u64),
            -0x20..0 => self.0.push(wide[7]),
            -0x80..-0x20 => self.write_marker_and_bytes(0xd0, &wide[7..]),
            -0x8000..-0x80 => self.write_marker_and_bytes(0xd1, &wide[6..]),
            -0x8000_0000..-0x8000 => self.write_marker_and_bytes(0xd2, &wide[4..]),
            _ => self.write_marker_and_bytes(0xd3, &wide),
        }
    }

    pub(crate) fn write_float(&mut self, x: f64) {
        self.write_marker_and_bytes(0xcb, &x.to_be_bytes());
    }

    pub(crate) fn write_str(&mut self, text: &str) {
        match text.len() {
            len @ 0..0x20 => self.0.push(0xa0 | len as u8),
            len @ 0x20..0x100 => self.0.extend_from_slice(&[0xd9, len as u8]),
            len @ 0x100..0x1_0000 => self.write_marker_and_bytes(0xda, &(len as u16).to_be_bytes()),
            len => self.write_marker_and_bytes(0xdb, &(len as u32).to_be_bytes()),
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    fn write_bin(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&[0xc4, bytes.len() as u8]);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn write_array_header(&mut self, len: usize) {
        match len {
            0..0x10 => self.0.push(0x90 | len as u8),
            0x10..0x1_0000 => self.write_marker_and_bytes(0xdc, &(len as u16).to_be_bytes()),
            _ => self.write_marker_and_bytes(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    pub(crate) fn write_map_header(&mut self, len: usize) {
        self.0.push(0x80 | len as u8);
    }

    /// Appends the header of a MessagePack map in its 16-bit form (`map 16`), also for fewer than
    /// 16 entries.
    pub(crate) fn write_map16_header(&mut self, len: u16) {
        self.0.push(0xde);
        self.0.extend(len.to_be_bytes());
    }

    pub(crate) fn write_map_entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.write_str(key);
        value(self);
    }

    pub(crate) fn write_array<T: Copy>(&mut self, items: &[T], write: impl Fn(&mut Self, T)) {
        self.write_array_header(items.len());
        for &item in items {
            write(self, item);
        }
    }

    pub(crate) fn write_option<T>(&mut self, item: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match item {
            Some(item) => write(self, item),
            None => self.write_nil(),
        }
    }

    pub(crate) fn write_token_id(&mut self, token: u32) {
        self.write_uint(token.into());
    }

    pub(super) fn write_block_hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => self.write_uint(n),
            BlockHash::Bytes(bytes) => self.write_bin(bytes),
        }
    }

    /// Appends a token id as a Go `uint32`, always five bytes.
    pub(crate) fn write_fixed_width_token_id(&mut self, token: u32) {
        self.write_marker_and_bytes(0xce, &token.to_be_bytes());
    }

    /// Appends an integer hash as a Go `uint64`, always nine bytes; a hash of bytes is appended as
    /// it is.
    pub(super) fn write_fixed_width_block_hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => self.write_marker_and_bytes(0xcf, &n.to_be_bytes()),
            BlockHash::Bytes(bytes) => self.write_bin(bytes),
        }
    }

    pub(super) fn write_extra_keys(&mut self, blocks: &[Option<Vec<ExtraKey<'_>>>]) {
        self.write_array_header(blocks.len());
        for block in blocks {
            self.write_option(block.as_deref(), |w, keys| {
                w.write_array(keys, |w, key| match key {
                    ExtraKey::Text(text) => w.write_str(text),
                    ExtraKey::Media(identifier, offset) => {
                        w.write_array_header(2);
                        w.write_str(identifier);
                        w.write_int(offset);
                    }
                });
            });
        }
    }

    /// Appends the extra hash keys of each block; a block without keys is nil.
    pub(crate) fn write_llmd_extra_keys(&mut self, blocks: &[Vec<&str>]) {
        self.write_array_header(blocks.len());
        for keys in blocks {
            let keys = Some(keys).filter(|keys| !keys.is_empty());
            self.write_option(keys, |w, keys| w.write_array(keys, MsgpackWriter::write_str));
        }
    }

    pub(crate) fn write_all_blocks_cleared(&mut self) {
        self.write_array_header(1);
        self.write_str("AllBlocksCleared");
    }

    fn write_marker_and_bytes(&mut self, marker: u8, bytes: &[u8]) {
        self.0.push(marker);
        self.0.extend_from_slice(bytes);
    }
}
