//! Writes Python pickles of protocol 5 with the same bytes as CPython's C pickler. Covers the parts
//! of a block hash: null, integers, bytes, text and tuples.
//!
//! **Source:** CPython `Modules/_pickle.c`.

/// Maximum size of a pickle frame, in bytes: the first item that starts beyond it begins a new
/// frame. Longer strings are written outside frames.
const FRAME_TARGET_BYTES: usize = 64 * 1024;
const MIN_FRAME_BYTES: usize = 4;
/// Length of the `FRAME` opcode and its size field, in bytes.
const FRAME_HEADER_BYTES: usize = 9;

const OP_PROTO: u8 = 0x80;
const OP_FRAME: u8 = 0x95;
const OP_STOP: u8 = b'.';
const OP_NONE: u8 = b'N';
const OP_MEMOIZE: u8 = 0x94;
const OP_BINGET: u8 = b'h';
const OP_LONG_BINGET: u8 = b'j';
const OP_MARK: u8 = b'(';
const OP_TUPLE: u8 = b't';

#[derive(Debug, Clone, Copy)]
pub(super) struct PickleMemoIndex(u32);

pub(super) struct PickleWriter<'a> {
    buf: &'a mut Vec<u8>,
    frame: Option<usize>,
    memoized: u32,
    /// Pickle memo references to written texts that are singletons in CPython: the empty text and
    /// single Latin-1 characters.
    singletons: Vec<(Option<char>, PickleMemoIndex)>,
}

impl<'a> PickleWriter<'a> {
    pub(super) fn new(buf: &'a mut Vec<u8>) -> Self {
        buf.extend_from_slice(&[OP_PROTO, 5]);
        Self { buf, frame: None, memoized: 0, singletons: Vec::new() }
    }

    pub(super) fn finish_pickle(mut self) {
        self.append_to_frame(&[OP_STOP]);
        self.close_frame();
    }

    pub(super) fn write_python_none(&mut self) {
        self.begin_item();
        self.append_to_frame(&[OP_NONE]);
    }

    pub(super) fn write_integer(&mut self, n: i64) {
        self.begin_item();
        let wide = n.to_le_bytes();
        match n {
            0..0x100 => self.append_to_frame(&[b'K', wide[0]]),
            0x100..0x1_0000 => self.append_to_frame(&[b'M', wide[0], wide[1]]),
            _ if i32::try_from(n).is_ok() => {
                self.append_to_frame(&[b'J', wide[0], wide[1], wide[2], wide[3]])
            }
            _ => {
                // Write two's complement in the fewest bytes that keep the sign.
                let sign_bits = if n < 0 { n.leading_ones() } else { n.leading_zeros() };
                let len = (64 - sign_bits as usize) / 8 + 1;
                self.append_to_frame(&[0x8a, len as u8]);
                self.append_to_frame(&wide[..len]);
            }
        }
    }

    pub(super) fn write_bytes(&mut self, bytes: &[u8]) {
        self.begin_item();
        self.write_string_opcode(b'C', b'B', bytes);
    }

    pub(super) fn write_text(&mut self, text: &str) -> PickleMemoIndex {
        let mut chars = text.chars();
        let only = chars.next();
        let singleton = chars.next().is_none() && only.is_none_or(|c| c < '\u{100}');
        let known = self.singletons.iter().find(|(c, _)| singleton && *c == only);
        if let Some(&(_, memo)) = known {
            self.write_memo_reference(memo);
            return memo;
        }
        self.begin_item();
        let memo = self.write_string_opcode(0x8c, b'X', text.as_bytes());
        if singleton {
            self.singletons.push((only, memo));
        }
        memo
    }

    /// Writes a pickle reference to an object that was written before.
    pub(super) fn write_memo_reference(&mut self, PickleMemoIndex(at): PickleMemoIndex) {
        self.begin_item();
        match u8::try_from(at) {
            Ok(at) => self.append_to_frame(&[OP_BINGET, at]),
            Err(_) => {
                self.append_to_frame(&[OP_LONG_BINGET]);
                self.append_to_frame(&at.to_le_bytes());
            }
        }
    }

    /// Writes a pickled tuple of `len` items, at least one; `items` writes the items.
    pub(super) fn write_tuple(&mut self, len: usize, items: impl FnOnce(&mut Self)) {
        self.begin_item();
        if len > 3 {
            self.append_to_frame(&[OP_MARK]);
        }
        items(self);
        let end = match len {
            1 => 0x85,
            2 => 0x86,
            3 => 0x87,
            _ => OP_TUPLE,
        };
        self.append_to_frame(&[end]);
        self.write_memoize();
    }

    fn write_memoize(&mut self) -> PickleMemoIndex {
        self.append_to_frame(&[OP_MEMOIZE]);
        self.memoized += 1;
        PickleMemoIndex(self.memoized - 1)
    }

    fn write_string_opcode(&mut self, short: u8, long: u8, bytes: &[u8]) -> PickleMemoIndex {
        // Strings over 4 GiB use another opcode; block contents are shorter.
        let len = bytes.len() as u32;
        let bare = bytes.len() >= FRAME_TARGET_BYTES;
        if bare {
            self.close_frame();
            self.buf.push(long);
            self.buf.extend_from_slice(&len.to_le_bytes());
            self.buf.extend_from_slice(bytes);
        } else {
            match u8::try_from(len) {
                Ok(len) => self.append_to_frame(&[short, len]),
                Err(_) => {
                    self.append_to_frame(&[long]);
                    self.append_to_frame(&len.to_le_bytes());
                }
            }
            self.append_to_frame(bytes);
        }
        self.write_memoize()
    }

    /// Closes the pickle frame if it is full, before the next item.
    fn begin_item(&mut self) {
        if self
            .frame
            .is_some_and(|start| self.buf.len() - start - FRAME_HEADER_BYTES >= FRAME_TARGET_BYTES)
        {
            self.close_frame();
        }
    }

    fn append_to_frame(&mut self, bytes: &[u8]) {
        if self.frame.is_none() {
            self.frame = Some(self.buf.len());
            self.buf.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        }
        self.buf.extend_from_slice(bytes);
    }

    fn close_frame(&mut self) {
        let Some(start) = self.frame.take() else {
            return;
        };
        let body = start + FRAME_HEADER_BYTES;
        let len = self.buf.len() - body;
        if len < MIN_FRAME_BYTES {
            self.buf.drain(start..body);
        } else {
            self.buf[start] = OP_FRAME;
            self.buf[start + 1..body].copy_from_slice(&(len as u64).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickle_hex(write: impl FnOnce(&mut PickleWriter<'_>)) -> String {
        let mut buf = Vec::new();
        let mut pickle = PickleWriter::new(&mut buf);
        write(&mut pickle);
        pickle.finish_pickle();
        buf.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn pickled_text_is_framed_and_memoized() {
        let written = pickle_hex(|p| {
            p.write_text("0");
        });
        assert_eq!(written, "80059505000000000000008c0130942e");
    }

    #[test]
    fn short_pickle_has_no_frame() {
        assert_eq!(pickle_hex(|p| p.write_python_none()), "80054e2e");
    }

    #[test]
    fn pickled_integers_use_the_opcode_of_their_size() {
        // From CPython 3.11: pickle.dumps((n,), 5)[11:-3], frameless.
        for (n, expected) in [
            (255, "4bff"),
            (256, "4d0001"),
            (65_536, "4a00000100"),
            (-1, "4affffffff"),
            (2_147_483_648, "8a050000008000"),
            (-2_147_483_649, "8a05ffffff7fff"),
            (i64::MIN, "8a080000000000000080"),
        ] {
            let written = pickle_hex(|p| p.write_tuple(1, |p| p.write_integer(n)));
            assert_eq!(written[22..written.len() - 6], *expected, "{n}");
        }
    }

    #[test]
    fn repeated_pickle_object_is_a_memo_reference() {
        let written = pickle_hex(|p| {
            p.write_tuple(2, |p| {
                let mm = p.write_text("mm");
                p.write_memo_reference(mm);
            });
        });
        assert_eq!(written, "8005950a000000000000008c026d6d946800869 42e".replace(' ', ""));
    }
}
