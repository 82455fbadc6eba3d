//! Inputs near those that tests know: a seed, changed at random a few times.

use vllm_sim_random::mix_u64_pair;

/// Longest input, in bytes.
const LONGEST: usize = 64 << 10;
/// Longest nesting that one change makes.
const DEEPEST: u64 = 3000;

/// Numbers at which types and bounds end.
const NUMBERS: [&str; 24] = [
    "0",
    "-0",
    "-1",
    "1",
    "2",
    "63",
    "64",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "1000000",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1e400",
    "0.1",
];

/// Characters that readers trip over.
const CHARACTERS: [&str; 16] = [
    "\0",
    "\t",
    "\r\n",
    "\u{7f}",
    "\u{85}",
    "\u{a0}",
    "é",
    "e\u{301}",
    "\u{300}\u{345}",
    "\u{200b}",
    "\u{2028}",
    "\u{feff}",
    "\u{fffd}",
    "👩‍👩‍👧",
    "\u{10ffff}",
    "İ",
];

/// What the inputs of a target are made of.
#[derive(Debug, Clone)]
pub(crate) struct Corpus {
    /// Good and bad inputs, as tests have them.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Words and signs of the format.
    pub(crate) tokens: &'static [&'static str],
}

impl Corpus {
    /// The input of this number, always the same.
    pub(crate) fn input(&self, number: u64) -> Vec<u8> {
        let mut dice = Dice(mix_u64_pair(number, self.seeds.len() as u64));
        let mut input = dice.of(&self.seeds).clone();
        for _ in 0..=dice.below(6) {
            self.change(&mut input, &mut dice);
            input.truncate(LONGEST);
        }
        input
    }

    fn change(&self, input: &mut Vec<u8>, dice: &mut Dice) {
        let range = dice.range(input.len());
        match dice.below(12) {
            0 if !range.is_empty() => input[range.start] ^= 1 << dice.below(8),
            1 if !range.is_empty() => input[range.start] = dice.below(256) as u8,
            2 => drop(input.drain(range)),
            3 => {
                let piece = input[range.clone()].repeat(1 + dice.below(3) as usize);
                input.splice(range, piece);
            }
            4 => {
                let room = LONGEST / range.len().max(1);
                let piece = input[range.clone()].repeat(room.min(1 << dice.below(14)));
                input.splice(range, piece);
            }
            5 => {
                let other = dice.of(&self.seeds);
                let part = dice.range(other.len());
                input.splice(range, other[part].iter().copied());
            }
            6 => {
                let place = dice.number(input).unwrap_or(range);
                input.splice(place, dice.of(&NUMBERS).bytes());
            }
            7 => drop(input.splice(range.start..range.start, dice.of(&CHARACTERS).bytes())),
            8 if !self.tokens.is_empty() => {
                drop(input.splice(range, dice.of(self.tokens).bytes()));
            }
            9 if !self.tokens.is_empty() => {
                drop(input.splice(range.start..range.start, dice.of(self.tokens).bytes()));
            }
            10 => {
                let (open, close) = dice.pair();
                let most = 1 + dice.below(DEEPEST);
                let levels = 1 + dice.below(most) as usize;
                let inner = [&open.repeat(levels), &input[range.clone()], &close.repeat(levels)];
                input.splice(range, inner.concat());
            }
            _ => input.truncate(range.start),
        }
    }
}

/// Chance, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = mix_u64_pair(self.0, 1);
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    /// A stretch of a text, short ones more often than long ones.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length as u64 + 1) as usize;
        let most = (1 << self.below(17)).min(length - start);
        start..start + self.below(most as u64 + 1) as usize
    }

    /// One of the numbers in a text.
    fn number(&mut self, text: &[u8]) -> Option<std::ops::Range<usize>> {
        let from = self.below(text.len() as u64 + 1) as usize;
        let start = from + text[from..].iter().position(u8::is_ascii_digit)?;
        let digits = text[start..].iter().take_while(|byte| byte.is_ascii_digit());
        Some(start..start + digits.count())
    }

    fn pair(&mut self) -> (&'static [u8], &'static [u8]) {
        const PAIRS: [(&[u8], &[u8]); 8] = [
            (b"[", b"]"),
            (b"(", b")"),
            (b"{", b"}"),
            (b"{\"a\":", b"}"),
            (b"{\"items\":", b"}"),
            (b"\"", b"\""),
            (b"(?:", b")*"),
            (b"- ", b""),
        ];
        *self.of(&PAIRS)
    }
}

/// The texts in quotes of a Rust source: what its tests read.
pub(crate) fn literals(source: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find('"') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        let signs = before.len() - before.trim_end_matches('#').len();
        let raw = before[..at - signs].ends_with('r');
        let end = if raw {
            after.find(&format!("\"{}", "#".repeat(signs)))
        } else {
            let mut escaped = false;
            after.bytes().position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            })
        };
        let Some(end) = end else { break };
        let text = &after[..end];
        let text = if raw { text.to_owned() } else { unescaped(text) };
        if text.len() > 3 {
            found.push(text.into_bytes());
        }
        rest = &after[end + 1..];
    }
    found
}

/// The escapes that matter to a seed.
fn unescaped(text: &str) -> String {
    let text = text.replace("\\n", "\n").replace("\\\"", "\"");
    text.replace("\\\\", "\\")
}
