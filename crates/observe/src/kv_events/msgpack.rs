//! Writes KV event messages in MessagePack as msgspec does, and as Go's encoder does where it
//! differs.
//!
//! serde cannot express this: in one message, the Go encoder of llm-d writes some integers at full
//! width where msgspec writes the shortest form.
//!
//! **Source:** msgspec 0.22; `github.com/vmihailenco/msgpack/v5`.

use rmp::encode;

use super::message::{BlockHash, ExtraKey};

/// Buffer of MessagePack items, in which integers and headers have their shortest encoding.
///
/// Results of `rmp` are ignored, because writing to a vector never fails.
pub(crate) struct MsgpackWriter(Vec<u8>);

impl MsgpackWriter {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(256))
    }

    pub(crate) fn into_msgpack_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn write_nil(&mut self) {
        let _ = encode::write_nil(&mut self.0);
    }

    pub(crate) fn write_uint(&mut self, n: u64) {
        let _ = encode::write_uint(&mut self.0, n);
    }

    pub(crate) fn write_u32(&mut self, n: u32) {
        self.write_uint(n.into());
    }

    pub(crate) fn write_int(&mut self, n: i64) {
        let _ = encode::write_sint(&mut self.0, n);
    }

    pub(crate) fn write_float(&mut self, x: f64) {
        let _ = encode::write_f64(&mut self.0, x);
    }

    pub(crate) fn write_str(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.0, text);
    }

    fn write_bin(&mut self, bytes: &[u8]) {
        let _ = encode::write_bin(&mut self.0, bytes);
    }

    pub(crate) fn write_array_header(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.0, len as u32);
    }

    /// Appends a MessagePack map of at most 15 entries, which `write` appends.
    pub(crate) fn write_map(&mut self, write: impl FnOnce(&mut MsgpackMap<'_>)) {
        let header = self.0.len();
        self.0.push(0);
        let len = self.write_map_entries(write);
        self.0[header] = 0x80 | len as u8;
    }

    /// Appends a MessagePack map with a header in 16-bit form (`map 16`), also for fewer than 16
    /// entries.
    pub(crate) fn write_map16(&mut self, write: impl FnOnce(&mut MsgpackMap<'_>)) {
        let header = self.0.len();
        self.0.extend([0xde, 0, 0]);
        let len = self.write_map_entries(write);
        self.0[header + 1..header + 3].copy_from_slice(&len.to_be_bytes());
    }

    fn write_map_entries(&mut self, write: impl FnOnce(&mut MsgpackMap<'_>)) -> u16 {
        let mut map = MsgpackMap { writer: self, len: 0 };
        write(&mut map);
        map.len
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

    pub(super) fn write_block_hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => self.write_uint(n),
            BlockHash::Bytes(bytes) => self.write_bin(bytes),
        }
    }

    /// Appends a token id as a Go `uint32`, always five bytes.
    pub(super) fn write_fixed_width_token_id(&mut self, token: u32) {
        let _ = encode::write_u32(&mut self.0, token);
    }

    /// Appends an integer hash as a Go `uint64`, always nine bytes; a hash of bytes is appended as
    /// it is.
    pub(super) fn write_fixed_width_block_hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => {
                let _ = encode::write_u64(&mut self.0, n);
            }
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
    pub(super) fn write_llmd_extra_keys(&mut self, blocks: &[Vec<&str>]) {
        self.write_array_header(blocks.len());
        for keys in blocks {
            let keys = Some(keys).filter(|keys| !keys.is_empty());
            self.write_option(keys, |w, keys| w.write_array(keys, MsgpackWriter::write_str));
        }
    }
}

/// Entries of a MessagePack map, which are counted for its header.
pub(crate) struct MsgpackMap<'w> {
    writer: &'w mut MsgpackWriter,
    len: u16,
}

impl MsgpackMap<'_> {
    pub(crate) fn write_entry(&mut self, key: &str, value: impl FnOnce(&mut MsgpackWriter)) {
        self.len += 1;
        self.writer.write_str(key);
        value(self.writer);
    }

    pub(crate) fn write_text(&mut self, key: &str, text: &str) {
        self.write_entry(key, |w| w.write_str(text));
    }

    pub(crate) fn write_text_if_set(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.write_text(key, text);
        }
    }

    pub(crate) fn write_number(&mut self, key: &str, number: u32) {
        self.write_entry(key, |w| w.write_u32(number));
    }

    pub(crate) fn write_list<T: Copy>(
        &mut self,
        key: &str,
        items: &[T],
        write: impl Fn(&mut MsgpackWriter, T),
    ) {
        self.write_entry(key, |w| w.write_array(items, write));
    }

    /// Appends an entry whose value is nil for `None`.
    pub(crate) fn write_nullable<T>(
        &mut self,
        key: &str,
        item: Option<T>,
        write: impl FnOnce(&mut MsgpackWriter, T),
    ) {
        self.write_entry(key, |w| w.write_option(item, write));
    }
}
