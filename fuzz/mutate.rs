//! A small deterministic mutator for the fuzz tests of hand-written readers: each crate that owns a
//! reader includes this file in its unit tests.
//!
//! `FUZZ_CASES` says how many inputs a test makes (default 300); case N is the same in every run.

/// Inputs of a test when nothing is said.
const CASES: u64 = 300;
/// Longest input.
const MAX_BYTES: usize = 16 * 1024;

/// What readers trip over.
const TOKENS: &[&str] = &[
    "\"",
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    ",",
    ":",
    ";",
    "|",
    "*",
    "+",
    "?",
    "{{",
    "}}",
    "{%",
    "%}",
    "::=",
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\u{feff}",
    "\u{fffd}",
    "é",
    "😀",
    "-",
    "0",
    "-1",
    "1e400",
    "NaN",
    "null",
    "true",
    "4294967296",
    "9223372036854775808",
    "99999999999999999999999",
    "\\u0000",
    "\\ud800",
    "%s",
    "{0,99999}",
    "[^",
    "(?",
    "&a",
    "*a",
    "!!",
    "---",
];

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 below 1.
    fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }

    /// A range within so many bytes, more often a short one.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let from = self.below(len);
        let most = if self.below(4) == 0 { len - from } else { 16 };
        from..(from + self.below(most + 1)).min(len)
    }
}

/// Names the input of a case that panics.
struct Shown<'a>(u64, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "fuzz case {}: {:?}",
                self.0,
                String::from_utf8_lossy(self.1)
            );
        }
    }
}

/// Gives `check` mutations of the seeds, first the seeds themselves as far as the cases reach.
pub(crate) fn each(seeds: &[impl AsRef<[u8]>], mut check: impl FnMut(&[u8])) {
    assert!(!seeds.is_empty(), "there are no seeds");
    let asked = std::env::var("FUZZ_CASES").ok();
    let cases = asked.map_or(CASES, |cases| {
        cases.parse().expect("FUZZ_CASES is a number")
    });
    for case in 0..cases {
        let mut chance = Chance(case);
        let input = match seeds.get(case as usize / 2).filter(|_| case % 2 == 0) {
            Some(seed) => seed.as_ref().to_vec(),
            None => mutated(seeds, &mut chance),
        };
        let shown = Shown(case, &input);
        check(&input);
        drop(shown);
    }
}

fn mutated(seeds: &[impl AsRef<[u8]>], chance: &mut Chance) -> Vec<u8> {
    let seed = |chance: &mut Chance| seeds[chance.below(seeds.len())].as_ref();
    let mut input = seed(chance).to_vec();
    for _ in 0..=chance.below(4) {
        let range = chance.range(input.len());
        let at = range.start;
        match chance.below(8) {
            0 => drop(input.drain(range)),
            1 => {
                let copy = input[range].to_vec();
                for _ in 0..=chance.below(3) {
                    input.splice(at..at, copy.iter().copied());
                }
            }
            2 => {
                // Deep nesting and long runs.
                let copy = input[at..range.end.min(at + 4)]
                    .to_vec()
                    .repeat(chance.below(600));
                input.splice(at..at, copy);
            }
            3 => {
                let other = seed(chance);
                let part = other[chance.range(other.len())].to_vec();
                input.splice(range, part);
            }
            4 => input.truncate(at),
            5 if !input.is_empty() => input[at] ^= 1 << chance.below(8),
            6 if !input.is_empty() => input[at] = chance.draw() as u8,
            _ => {
                let token = TOKENS[chance.below(TOKENS.len())];
                input.splice(at..at, token.bytes());
            }
        }
        input.truncate(MAX_BYTES);
    }
    input
}
