//! Builds a table of the tokens of a Hugging Face tokenizer.

use tokenizers::{DecoderWrapper, Tokenizer};

#[derive(Debug)]
pub(super) struct TokenVocabulary {
    pub(super) size: u32,
    /// Length of the longest token in the vocabulary, in characters.
    pub(super) longest: usize,
    /// Bytes of every token in the vocabulary; `None` unless the tokenizer is byte-level.
    bytes: Option<TokenBytesTable>,
}

#[derive(Debug)]
struct TokenBytesTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl TokenVocabulary {
    pub(super) fn vocabulary_of_tokenizer(tokenizer: &Tokenizer) -> Self {
        let pieces = tokenizer.get_vocab(true);
        let size = pieces.values().max().map_or(0, |largest| largest.saturating_add(1));
        let longest = pieces.keys().map(|piece| piece.chars().count()).max().unwrap_or(0);
        // A table with gaps is not built for ids far beyond the number of tokens.
        let dense = (size as usize) < 4 * pieces.len() + (1 << 20);
        let by_bytes = matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        let bytes = (dense && by_bytes).then(|| {
            let mut by_id = vec![None; size as usize];
            for (piece, id) in pieces {
                // Cannot be out of bounds: the largest id determines the size.
                by_id[id as usize] = Some(piece);
            }
            TokenBytesTable::new(by_id)
        });
        Self { size, longest, bytes }
    }

    /// Returns the bytes of a token id, empty for an unknown id; `None` if the tokenizer is not
    /// byte-level.
    pub(super) fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let table = self.bytes.as_ref()?;
        let id = id as usize;
        let Some(&end) = table.ends.get(id) else {
            return Some(&[]);
        };
        let start = if id == 0 { 0 } else { table.ends[id - 1] };
        Some(&table.bytes[start as usize..end as usize])
    }
}

impl TokenBytesTable {
    fn new(by_id: Vec<Option<String>>) -> Self {
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(by_id.len()) };
        for piece in by_id {
            push_piece_bytes(&mut table.bytes, piece.as_deref().unwrap_or_default());
            table.ends.push(u32::try_from(table.bytes.len()).unwrap_or(u32::MAX));
        }
        table
    }
}

/// Appends the bytes of a byte-level token; a token with any other character is appended as text.
///
/// **Source:** `tokenizers/src/pre_tokenizers/byte_level.rs`, `bytes_char` and `decode_chain`.
fn push_piece_bytes(out: &mut Vec<u8>, piece: &str) {
    let start = out.len();
    for c in piece.chars() {
        match byte_of_char(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(piece.as_bytes());
                return;
            }
        }
    }
}

/// Returns the byte that a character represents in GPT-2's byte-level alphabet.
///
/// Printable Latin-1 characters represent their own code, the characters from U+0100 on the other
/// 68 bytes in order.
fn byte_of_char(c: char) -> Option<u8> {
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

pub(super) fn char_of_byte(byte: u8) -> char {
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
    fn byte_level_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(byte_of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char('ł'), Some(0xa0));
        assert!((0..=255).all(|b| byte_of_char(char_of_byte(b)) == Some(b)));
    }

    #[test]
    fn piece_outside_byte_alphabet_is_its_own_text() {
        let mut out = b"x".to_vec();
        push_piece_bytes(&mut out, "Ġa");
        push_piece_bytes(&mut out, "a b");
        push_piece_bytes(&mut out, "世");
        assert_eq!(out, "x aa b世".as_bytes());
    }
}
