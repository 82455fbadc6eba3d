//! Writes Python pickles of protocol 5 with the same bytes as CPython's C pickler. Covers the parts
//! of a block hash: null, integers, bytes, text and tuples.
//!
//! **Source:** CPython `Modules/_pickle.c`.

/// Maximum size of a pickle frame, in bytes: the first item that starts beyond it begins a new
/// frame. Longer strings are written outside frames.
const FRAME_TARGET: usize = 64 * 1024;
const FRAME_MIN: usize = 4;
/// Length of the `FRAME` opcode and its size field, in bytes.
const FRAME_HEAD: usize = 9;

const PROTO: u8 = 0x80;
const FRAME: u8 = 0x95;
const STOP: u8 = b'.';
const NONE: u8 = b'N';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';
const MARK: u8 = b'(';
const TUPLE: u8 = b't';

#[derive(Debug, Clone, Copy)]
pub(super) struct Memo(u32);

pub(super) struct Pickle<'a> {
    buf: &'a mut Vec<u8>,
    frame: Option<usize>,
    memoized: u32,
    /// References to written texts that are singletons in CPython: the empty text and single
    /// Latin-1 characters.
    singletons: Vec<(Option<char>, Memo)>,
}

impl<'a> Pickle<'a> {
    pub(super) fn new(buf: &'a mut Vec<u8>) -> Self {
        buf.extend_from_slice(&[PROTO, 5]);
        Self {
            buf,
            frame: None,
            memoized: 0,
            singletons: Vec::new(),
        }
    }

    pub(super) fn finish(mut self) {
        self.put(&[STOP]);
        self.close_frame();
    }

    pub(super) fn none(&mut self) {
        self.item();
        self.put(&[NONE]);
    }

    pub(super) fn integer(&mut self, n: i64) {
        self.item();
        let wide = n.to_le_bytes();
        match n {
            0..0x100 => self.put(&[b'K', wide[0]]),
            0x100..0x1_0000 => self.put(&[b'M', wide[0], wide[1]]),
            _ if i32::try_from(n).is_ok() => self.put(&[b'J', wide[0], wide[1], wide[2], wide[3]]),
            _ => {
                // Write two's complement in the fewest bytes that keep the sign.
                let sign_bits = if n < 0 {
                    n.leading_ones()
                } else {
                    n.leading_zeros()
                };
                let len = (64 - sign_bits as usize) / 8 + 1;
                self.put(&[0x8a, len as u8]);
                self.put(&wide[..len]);
            }
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.item();
        self.string(b'C', b'B', bytes);
    }

    pub(super) fn text(&mut self, text: &str) -> Memo {
        let mut chars = text.chars();
        let only = chars.next();
        let singleton = chars.next().is_none() && only.is_none_or(|c| c < '\u{100}');
        let known = self
            .singletons
            .iter()
            .find(|(c, _)| singleton && *c == only);
        if let Some(&(_, memo)) = known {
            self.again(memo);
            return memo;
        }
        self.item();
        let memo = self.string(0x8c, b'X', text.as_bytes());
        if singleton {
            self.singletons.push((only, memo));
        }
        memo
    }

    /// Writes a pickle reference to an object that was written before.
    pub(super) fn again(&mut self, Memo(at): Memo) {
        self.item();
        match u8::try_from(at) {
            Ok(at) => self.put(&[BINGET, at]),
            Err(_) => {
                self.put(&[LONG_BINGET]);
                self.put(&at.to_le_bytes());
            }
        }
    }

    /// Writes a pickled tuple of `len` items, at least one; `items` writes the items.
    pub(super) fn tuple(&mut self, len: usize, items: impl FnOnce(&mut Self)) {
        self.item();
        if len > 3 {
            self.put(&[MARK]);
        }
        items(self);
        let end = match len {
            1 => 0x85,
            2 => 0x86,
            3 => 0x87,
            _ => TUPLE,
        };
        self.put(&[end]);
        self.memoize();
    }

    fn memoize(&mut self) -> Memo {
        self.put(&[MEMOIZE]);
        self.memoized += 1;
        Memo(self.memoized - 1)
    }

    fn string(&mut self, short: u8, long: u8, bytes: &[u8]) -> Memo {
        // Strings over 4 GiB use another opcode; block contents are shorter.
        let len = bytes.len() as u32;
        let bare = bytes.len() >= FRAME_TARGET;
        if bare {
            self.close_frame();
            self.buf.push(long);
            self.buf.extend_from_slice(&len.to_le_bytes());
            self.buf.extend_from_slice(bytes);
        } else {
            match u8::try_from(len) {
                Ok(len) => self.put(&[short, len]),
                Err(_) => {
                    self.put(&[long]);
                    self.put(&len.to_le_bytes());
                }
            }
            self.put(bytes);
        }
        self.memoize()
    }

    /// Closes the pickle frame if it is full, before the next item.
    fn item(&mut self) {
        if self
            .frame
            .is_some_and(|start| self.buf.len() - start - FRAME_HEAD >= FRAME_TARGET)
        {
            self.close_frame();
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.frame.is_none() {
            self.frame = Some(self.buf.len());
            self.buf.extend_from_slice(&[0; FRAME_HEAD]);
        }
        self.buf.extend_from_slice(bytes);
    }

    fn close_frame(&mut self) {
        let Some(start) = self.frame.take() else {
            return;
        };
        let body = start + FRAME_HEAD;
        let len = self.buf.len() - body;
        if len < FRAME_MIN {
            self.buf.drain(start..body);
        } else {
            self.buf[start] = FRAME;
            self.buf[start + 1..body].copy_from_slice(&(len as u64).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(write: impl FnOnce(&mut Pickle<'_>)) -> String {
        let mut buf = Vec::new();
        let mut pickle = Pickle::new(&mut buf);
        write(&mut pickle);
        pickle.finish();
        buf.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn text_is_framed_and_memoized() {
        let written = hex(|p| {
            p.text("0");
        });
        assert_eq!(written, "80059505000000000000008c0130942e");
    }

    #[test]
    fn a_short_body_has_no_frame() {
        assert_eq!(hex(|p| p.none()), "80054e2e");
    }

    #[test]
    fn integers_take_the_form_of_their_size() {
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
            let written = hex(|p| p.tuple(1, |p| p.integer(n)));
            assert_eq!(written[22..written.len() - 6], *expected, "{n}");
        }
    }

    #[test]
    fn a_repeated_object_is_a_memo_reference() {
        let written = hex(|p| {
            p.tuple(2, |p| {
                let mm = p.text("mm");
                p.again(mm);
            });
        });
        assert_eq!(
            written,
            "8005950a000000000000008c026d6d946800869 42e".replace(' ', "")
        );
    }
}
