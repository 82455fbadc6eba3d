//! Writes KV event messages in MessagePack as msgspec does, and as Go's encoder does where it
//! differs.
//!
//! serde cannot express this: in one message, the Go encoder of llm-d writes some integers at full
//! width where msgspec writes the shortest form.
//!
//! **Source:** msgspec 0.22; `github.com/vmihailenco/msgpack/v5`.

use super::message::{BlockHash, ExtraKey};

/// Appends MessagePack items to a buffer, with the shortest integers and headers.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(256))
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub(super) fn uint(&mut self, n: u64) {
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

    pub(super) fn float(&mut self, x: f64) {
        self.marked(0xcb, &x.to_be_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        match text.len() {
            len @ 0..0x20 => self.0.push(0xa0 | len as u8),
            len @ 0x20..0x100 => self.0.extend_from_slice(&[0xd9, len as u8]),
            len @ 0x100..0x1_0000 => self.marked(0xda, &(len as u16).to_be_bytes()),
            len => self.marked(0xdb, &(len as u32).to_be_bytes()),
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&[0xc4, bytes.len() as u8]);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn array(&mut self, len: usize) {
        match len {
            0..0x10 => self.0.push(0x90 | len as u8),
            0x10..0x1_0000 => self.marked(0xdc, &(len as u16).to_be_bytes()),
            _ => self.marked(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    pub(super) fn map(&mut self, len: usize) {
        self.0.push(0x80 | len as u8);
    }

    pub(super) fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    pub(super) fn each<T: Copy>(&mut self, items: &[T], write: impl Fn(&mut Self, T)) {
        self.array(items.len());
        for &item in items {
            write(self, item);
        }
    }

    pub(super) fn option<T>(&mut self, item: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match item {
            Some(item) => write(self, item),
            None => self.nil(),
        }
    }

    pub(super) fn token(&mut self, token: u32) {
        self.uint(token.into());
    }

    pub(super) fn hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => self.uint(n),
            BlockHash::Bytes(bytes) => self.bytes(bytes),
        }
    }

    /// Appends a token id as a Go `uint32`, always five bytes.
    pub(super) fn wide_token(&mut self, token: u32) {
        self.marked(0xce, &token.to_be_bytes());
    }

    /// Appends an integer hash as a Go `uint64`, always nine bytes; a hash of bytes is appended as
    /// it is.
    pub(super) fn wide_hash(&mut self, hash: BlockHash<'_>) {
        match hash {
            BlockHash::Int(n) => self.marked(0xcf, &n.to_be_bytes()),
            BlockHash::Bytes(bytes) => self.bytes(bytes),
        }
    }

    pub(super) fn extra_keys(&mut self, blocks: &[Option<Vec<ExtraKey<'_>>>]) {
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

    /// Appends the extra hash keys of each block; a block without keys is nil.
    pub(super) fn llmd_extra_keys(&mut self, blocks: &[Vec<&str>]) {
        self.array(blocks.len());
        for keys in blocks {
            let keys = Some(keys).filter(|keys| !keys.is_empty());
            self.option(keys, |w, keys| w.each(keys, Writer::text));
        }
    }

    pub(super) fn cleared(&mut self) {
        self.array(1);
        self.text("AllBlocksCleared");
    }

    fn marked(&mut self, marker: u8, bytes: &[u8]) {
        self.0.push(marker);
        self.0.extend_from_slice(bytes);
    }
}
