//! What the ids of a Hugging Face tokenizer stand for, as one table.

use tokenizers::{DecoderWrapper, Tokenizer};

/// Facts about all tokens, gathered once when they are first asked for.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// One more than the largest id.
    pub(super) size: u32,
    /// Characters of the longest piece.
    pub(super) longest: usize,
    /// The bytes of every token, for tokenizers that decode byte by byte.
    bytes: Option<Table>,
}

/// Byte strings by id, in one buffer.
#[derive(Debug)]
struct Table {
    bytes: Vec<u8>,
    /// Where each id's bytes end.
    ends: Vec<u32>,
}

impl Vocabulary {
    /// Reads the vocabulary of `tokenizer`.
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let pieces = tokenizer.get_vocab(true);
        let size = pieces
            .values()
            .max()
            .map_or(0, |largest| largest.saturating_add(1));
        let longest = pieces
            .keys()
            .map(|piece| piece.chars().count())
            .max()
            .unwrap_or(0);
        // Made-up ids far beyond the count of tokens are not worth a table of holes.
        let dense = (size as usize) < 4 * pieces.len() + (1 << 20);
        let by_bytes = matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        let bytes = (dense && by_bytes).then(|| {
            let mut by_id = vec![None; size as usize];
            for (piece, id) in pieces {
                // The largest id set the size.
                by_id[id as usize] = Some(piece);
            }
            Table::new(by_id)
        });
        Self {
            size,
            longest,
            bytes,
        }
    }

    /// The bytes of a token: empty for an unknown one. `None` when this tokenizer's tokens are not
    /// plain byte strings.
    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let table = self.bytes.as_ref()?;
        let id = id as usize;
        let Some(&end) = table.ends.get(id) else {
            return Some(&[]);
        };
        let start = if id == 0 { 0 } else { table.ends[id - 1] };
        Some(&table.bytes[start as usize..end as usize])
    }
}

impl Table {
    fn new(by_id: Vec<Option<String>>) -> Self {
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(by_id.len()),
        };
        for piece in by_id {
            push_bytes(&mut table.bytes, piece.as_deref().unwrap_or_default());
            table
                .ends
                .push(u32::try_from(table.bytes.len()).unwrap_or(u32::MAX));
        }
        table
    }
}

/// The bytes that the byte-level alphabet spells; a piece with any other character is its own text.
///
/// Source: `tokenizers/src/pre_tokenizers/byte_level.rs`, `bytes_char` and `decode_chain`.
fn push_bytes(out: &mut Vec<u8>, piece: &str) {
    let start = out.len();
    for c in piece.chars() {
        match byte(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(piece.as_bytes());
                return;
            }
        }
    }
}

/// The byte that a character of GPT-2's alphabet stands for: printable Latin-1 is itself, the other
/// 68 bytes are the characters from U+0100 on, in order.
fn byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The character that spells a byte: the other way round.
pub(super) fn character(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte) - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte('Ġ'), Some(b' '));
        assert_eq!(byte('Ċ'), Some(b'\n'));
        assert_eq!(byte('ł'), Some(0xa0));
        assert!((0..=255).all(|b| byte(character(b)) == Some(b)));
    }

    #[test]
    fn a_piece_outside_the_alphabet_is_its_own_text() {
        let mut out = b"x".to_vec();
        push_bytes(&mut out, "Ġa");
        push_bytes(&mut out, "a b");
        push_bytes(&mut out, "世");
        assert_eq!(out, "x aa b世".as_bytes());
    }
}
