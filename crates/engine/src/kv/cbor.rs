//! Writes canonical CBOR (RFC 8949, 4.2): definite lengths, shortest heads.

const MAJOR_UNSIGNED: u8 = 0;
const MAJOR_NEGATIVE: u8 = 1;
const MAJOR_BYTES: u8 = 2;
const MAJOR_TEXT: u8 = 3;
const MAJOR_ARRAY: u8 = 4;
const MAJOR_MAP: u8 = 5;

pub(super) struct CborWriter<'a>(pub(super) &'a mut Vec<u8>);

impl CborWriter<'_> {
    pub(super) fn write_null(&mut self) {
        self.0.push(0xf6);
    }

    pub(super) fn write_unsigned(&mut self, n: u64) {
        self.write_header(MAJOR_UNSIGNED, n);
    }

    pub(super) fn write_integer(&mut self, n: i64) {
        match u64::try_from(n) {
            Ok(n) => self.write_header(MAJOR_UNSIGNED, n),
            // CBOR encodes -1 - n, which is the complement.
            Err(_) => self.write_header(MAJOR_NEGATIVE, !n as u64),
        }
    }

    pub(super) fn write_bytes(&mut self, bytes: &[u8]) {
        self.write_header(MAJOR_BYTES, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn write_text(&mut self, text: &str) {
        self.write_header(MAJOR_TEXT, text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn write_array_header(&mut self, len: usize) {
        self.write_header(MAJOR_ARRAY, len as u64);
    }

    pub(super) fn write_map_header(&mut self, len: usize) {
        self.write_header(MAJOR_MAP, len as u64);
    }

    pub(super) fn write_token_array(&mut self, tokens: &[u32]) {
        self.write_array_header(tokens.len());
        for &token in tokens {
            self.write_unsigned(u64::from(token));
        }
    }

    fn write_header(&mut self, major: u8, n: u64) {
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

    fn cbor_hex(write: impl Fn(&mut CborWriter<'_>)) -> String {
        let mut buf = Vec::new();
        write(&mut CborWriter(&mut buf));
        buf.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn cbor_headers_use_the_shortest_form() {
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
            assert_eq!(cbor_hex(|c| c.write_integer(n)), expected, "{n}");
        }
    }

    #[test]
    fn block_hash_input_is_parent_tokens_and_null() {
        let written = cbor_hex(|c| {
            c.write_array_header(3);
            c.write_bytes(&[0; 32]);
            c.write_token_array(&[1, 2, 300, 70_000]);
            c.write_null();
        });
        let expected = format!("835820{}84010219012c1a00011170f6", "00".repeat(32));
        assert_eq!(written, expected);
    }
}
