//! Generates texts that match a regular expression; each part has a minimum and maximum length.

use rand_chacha::ChaCha8Rng;
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::words;
use vllm_sim_random::DrawRandom;

/// Maximum number of repetitions beyond the minimum when a pattern sets no maximum, as in `a*`.
const MAX_EXTRA_REPETITIONS: u32 = 8;

/// A part of a regular expression, with the range of its match lengths in characters.
#[derive(Debug)]
pub(crate) struct RegexGenerator {
    node: RegexNode,
    pub(crate) min: u32,
    pub(crate) max: u32,
}

#[derive(Debug)]
enum RegexNode {
    Empty,
    Literal(String),
    Class(Vec<(char, char)>),
    Concat(Vec<RegexGenerator>),
    Alternation(Vec<RegexGenerator>),
    Repeat { sub: Box<RegexGenerator>, min: u32, max: u32 },
}

impl RegexGenerator {
    /// Creates a generator for a parsed regular expression; anchors and word boundaries match the
    /// empty text, so the caller must check matches.
    pub(crate) fn new(hir: &Hir) -> Self {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Self::with_length_range(RegexNode::Empty, 0, 0),
            HirKind::Literal(literal) => {
                let text = String::from_utf8_lossy(&literal.0).into_owned();
                let n = saturating_u32(text.chars().count());
                Self::with_length_range(RegexNode::Literal(text), n, n)
            }
            HirKind::Class(class) => {
                let ranges: Vec<(char, char)> = match class {
                    Class::Unicode(c) => c.iter().map(|r| (r.start(), r.end())).collect(),
                    Class::Bytes(c) => {
                        c.iter().map(|r| (char::from(r.start()), char::from(r.end()))).collect()
                    }
                };
                if ranges.is_empty() {
                    // An empty class matches nothing: no length fits this range.
                    return Self::with_length_range(RegexNode::Class(ranges), u32::MAX, 0);
                }
                Self::with_length_range(RegexNode::Class(ranges), 1, 1)
            }
            HirKind::Capture(capture) => Self::new(&capture.sub),
            HirKind::Concat(parts) => {
                let parts: Vec<Self> = parts.iter().map(Self::new).collect();
                let min = parts.iter().fold(0u32, |n, p| n.saturating_add(p.min));
                let max = parts.iter().fold(0u32, |n, p| n.saturating_add(p.max));
                Self::with_length_range(RegexNode::Concat(parts), min, max)
            }
            HirKind::Alternation(parts) => {
                let parts: Vec<Self> = parts.iter().map(Self::new).collect();
                let min = parts.iter().map(|p| p.min).min().unwrap_or(0);
                let max = parts.iter().map(|p| p.max).max().unwrap_or(0);
                Self::with_length_range(RegexNode::Alternation(parts), min, max)
            }
            HirKind::Repetition(rep) => {
                Self::repeat_node(Self::new(&rep.sub), rep.min, rep.max.unwrap_or(u32::MAX))
            }
        }
    }

    fn with_length_range(node: RegexNode, min: u32, max: u32) -> Self {
        Self { node, min, max }
    }

    fn repeat_node(sub: Self, min: u32, max: u32) -> Self {
        let (low, high) = if min == 0 && sub.min > sub.max {
            (0, 0)
        } else {
            (sub.min.saturating_mul(min), sub.max.saturating_mul(max))
        };
        let sub = Box::new(sub);
        Self::with_length_range(RegexNode::Repeat { sub, min, max }, low, high)
    }

    pub(crate) fn from_char_ranges(ranges: Vec<(char, char)>) -> Self {
        Self::with_length_range(RegexNode::Class(ranges), 1, 1)
    }

    pub(crate) fn can_produce_char(&self, c: char) -> bool {
        matches!(&self.node, RegexNode::Class(ranges) if class_contains(ranges, c))
    }

    /// Appends a random match of `low..=high` characters to `out`; `None` if none was found.
    pub(crate) fn append_random_match(
        &self,
        low: u32,
        high: u32,
        rng: &mut ChaCha8Rng,
        out: &mut String,
    ) -> Option<()> {
        if self.min > high || self.max < low || self.min > self.max {
            return None;
        }
        match &self.node {
            RegexNode::Empty => {}
            RegexNode::Literal(text) => out.push_str(text),
            RegexNode::Class(ranges) => out.push(pick_plausible_char(ranges, rng)?),
            RegexNode::Concat(parts) => {
                let sizes = parts.iter().map(|p| (p.min, p.max));
                let mut window = LengthWindow::split_range(sizes, low, high);
                for part in parts {
                    let (low, high) = window.next_range((part.min, part.max))?;
                    let before = out.len();
                    part.append_random_match(low, high, rng, out)?;
                    window.used += saturating_u32(out[before..].chars().count());
                }
            }
            RegexNode::Alternation(parts) => {
                let first = rng.draw_u64_between(0, parts.len() as u64 - 1) as usize;
                let before = out.len();
                let done = (0..parts.len()).any(|i| {
                    out.truncate(before);
                    let part = &parts[(first + i) % parts.len()];
                    part.append_random_match(low, high, rng, out).is_some()
                });
                return done.then_some(());
            }
            RegexNode::Repeat { sub, min, max } => {
                return append_repetition(sub, (*min, *max), (low, high), rng, out);
            }
        }
        Some(())
    }
}

/// Distributes the length range of a text, in characters, over the consecutive parts of a regular
/// expression.
struct LengthWindow {
    low: u32,
    high: u32,
    used: u32,
    rest_min: u32,
    rest_max: u64,
}

impl LengthWindow {
    fn split_range(sizes: impl Iterator<Item = (u32, u32)>, low: u32, high: u32) -> Self {
        let (min, max) = sizes.fold((0u32, 0u64), |(min, max), (a, b)| {
            (min.saturating_add(a), max.saturating_add(u64::from(b)))
        });
        Self { low, high, used: 0, rest_min: min, rest_max: max }
    }

    /// Returns the length range for the next part of a regular expression, in characters, given the
    /// part's own minimum and maximum.
    fn next_range(&mut self, (min, max): (u32, u32)) -> Option<(u32, u32)> {
        self.rest_min = self.rest_min.saturating_sub(min);
        self.rest_max = self.rest_max.saturating_sub(u64::from(max));
        let rest_max = u32::try_from(self.rest_max).unwrap_or(u32::MAX);
        let needed = self.low.saturating_sub(self.used).saturating_sub(rest_max);
        let room = self.high.checked_sub(self.used)?.checked_sub(self.rest_min)?;
        (needed <= room).then_some((needed, room))
    }
}

fn append_repetition(
    sub: &RegexGenerator,
    (min, max): (u32, u32),
    (low, high): (u32, u32),
    rng: &mut ChaCha8Rng,
    out: &mut String,
) -> Option<()> {
    if sub.min > sub.max {
        return (min == 0 && low == 0).then_some(());
    }
    if sub.max == 0 {
        return Some(());
    }
    // Empty repetitions need not be generated to reach `min`.
    let least = if sub.min == 0 { 0 } else { min }.max(low.div_ceil(sub.max));
    let most = high.checked_div(sub.min).map_or(max, |n| max.min(n));
    if least > most {
        return None;
    }
    let class = match &sub.node {
        RegexNode::Class(ranges) => Some(ranges),
        _ => None,
    };
    let natural = if class.is_some() { MAX_EXTRA_REPETITIONS } else { 2 };
    // Prefers a non-empty text for an unbounded repetition of characters.
    let from = if class.is_some() && most > least && max > 1 { least.max(1) } else { least };
    let to = most.min(from.saturating_add(natural));
    if let Some(ranges) = class
        && let Some(word) = random_word_of_class(ranges, from, to, rng)
    {
        out.push_str(word);
        return Some(());
    }
    let count = rng.draw_u64_between(u64::from(from), u64::from(to)) as u32;
    let each = (sub.min, sub.max);
    let mut window = LengthWindow {
        low,
        high,
        used: 0,
        rest_min: sub.min.saturating_mul(count),
        rest_max: u64::from(sub.max) * u64::from(count),
    };
    for _ in 0..count {
        let (low, high) = window.next_range(each)?;
        let before = out.len();
        sub.append_random_match(low, high, rng, out)?;
        window.used += saturating_u32(out[before..].chars().count());
    }
    Some(())
}

/// Returns an English word whose characters are all in the class `ranges`, in three of four cases.
fn random_word_of_class(
    ranges: &[(char, char)],
    low: u32,
    high: u32,
    rng: &mut ChaCha8Rng,
) -> Option<&'static str> {
    if high < 3
        || !class_contains(ranges, 'a')
        || !class_contains(ranges, 'z')
        || rng.draw_percent_chance(25)
    {
        return None;
    }
    (0..4).map(|_| words::random_word(rng)).find(|word| {
        (low..=high).contains(&saturating_u32(word.len()))
            && word.chars().all(|c| class_contains(ranges, c))
    })
}

fn class_contains(ranges: &[(char, char)], c: char) -> bool {
    ranges.iter().any(|&(a, b)| (a..=b).contains(&c))
}

/// Selects a random character of a character class; in large classes, prefers letters, digits and
/// printable ASCII.
fn pick_plausible_char(ranges: &[(char, char)], rng: &mut ChaCha8Rng) -> Option<char> {
    let size: u64 = ranges.iter().map(|&r| range_width(r)).sum();
    if size > 100 {
        for nice in [('a', 'z'), ('A', 'Z'), ('0', '9'), (' ', '~')] {
            let shared: Vec<(char, char)> = ranges
                .iter()
                .map(|&(a, b)| (a.max(nice.0), b.min(nice.1)))
                .filter(|(a, b)| a <= b)
                .collect();
            if !shared.is_empty() && (nice.0 == ' ' || rng.draw_percent_chance(80)) {
                return pick_uniform_char(&shared, rng);
            }
        }
    } else if class_contains(ranges, ' ')
        && !class_contains(ranges, 'a')
        && rng.draw_percent_chance(80)
    {
        return Some(' ');
    }
    pick_uniform_char(ranges, rng)
}

fn range_width((a, b): (char, char)) -> u64 {
    u64::from(b as u32) - u64::from(a as u32) + 1
}

fn pick_uniform_char(ranges: &[(char, char)], rng: &mut ChaCha8Rng) -> Option<char> {
    let size: u64 = ranges.iter().map(|&r| range_width(r)).sum();
    let mut index = rng.draw_u64_between(0, size.checked_sub(1)?);
    for &(a, b) in ranges {
        let n = range_width((a, b));
        if index < n {
            let code = a as u32 + index as u32;
            // A range may include surrogates, which are not characters.
            return Some(char::from_u32(code).unwrap_or(a));
        }
        index -= n;
    }
    None
}

fn saturating_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
