//! Writes canonical CBOR (RFC 8949, 4.2): definite lengths, shortest heads.

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;

pub(super) struct Cbor<'a>(pub(super) &'a mut Vec<u8>);

impl Cbor<'_> {
    pub(super) fn null(&mut self) {
        self.0.push(0xf6);
    }

    pub(super) fn unsigned(&mut self, n: u64) {
        self.head(UNSIGNED, n);
    }

    pub(super) fn integer(&mut self, n: i64) {
        match u64::try_from(n) {
            Ok(n) => self.head(UNSIGNED, n),
            // CBOR encodes -1 - n, which is the complement.
            Err(_) => self.head(NEGATIVE, !n as u64),
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.head(BYTES, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.head(TEXT, text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn array(&mut self, len: usize) {
        self.head(ARRAY, len as u64);
    }

    pub(super) fn map(&mut self, len: usize) {
        self.head(MAP, len as u64);
    }

    pub(super) fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for &token in tokens {
            self.unsigned(u64::from(token));
        }
    }

    fn head(&mut self, major: u8, n: u64) {
        let major = major << 5;
        let wide = n.to_be_bytes();
        match n {
            0..24 => self.0.push(major | n as u8),
            24..0x100 => self.0.extend_from_slice(&[major | 24, n as u8]),
            0x100..0x1_0000 => {
                self.0.push(major | 25);
                self.0.extend_from_slice(&wide[6..]);
            }
            0x1_0000..0x1_0000_0000 => {
                self.0.push(major | 26);
                self.0.extend_from_slice(&wide[4..]);
            }
            _ => {
                self.0.push(major | 27);
                self.0.extend_from_slice(&wide);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(write: impl Fn(&mut Cbor<'_>)) -> String {
        let mut buf = Vec::new();
        write(&mut Cbor(&mut buf));
        buf.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn heads_are_as_short_as_can_be() {
        // RFC 8949, appendix A.
        for (n, expected) in [
            (0, "00"),
            (23, "17"),
            (24, "1818"),
            (255, "18ff"),
            (1000, "1903e8"),
            (1_000_000, "1a000f4240"),
            (1_000_000_000_000, "1b000000e8d4a51000"),
            (-1, "20"),
            (-1000, "3903e7"),
            (i64::MIN, "3b7fffffffffffffff"),
        ] {
            assert_eq!(hex(|c| c.integer(n)), expected, "{n}");
        }
    }

    #[test]
    fn a_block_is_the_parent_its_tokens_and_a_null() {
        let written = hex(|c| {
            c.array(3);
            c.bytes(&[0; 32]);
            c.tokens(&[1, 2, 300, 70_000]);
            c.null();
        });
        let expected = format!("835820{}84010219012c1a00011170f6", "00".repeat(32));
        assert_eq!(written, expected);
    }
}
