//! Splits text into words like the pre-tokenizers of most byte-level models, without a regular
//! expression engine.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// The split pattern of Llama 3; with one digit instead of three, that of Qwen.
///
/// ```text
/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
/// |\s*[\r\n]+|\s+(?!\S)|\s+
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SplitPattern {
    digits: usize,
}

impl SplitPattern {
    pub(super) fn of(regex: &str) -> Option<Self> {
        const HEAD: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
        const TAIL: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        match regex.strip_prefix(HEAD)?.strip_suffix(TAIL)? {
            r"\p{N}{1,3}" => Some(Self { digits: 3 }),
            r"\p{N}" => Some(Self { digits: 1 }),
            _ => None,
        }
    }

    /// Returns the length of the first word of a text, in bytes; zero only for empty text.
    pub(super) fn word(self, text: &str) -> usize {
        let mut chars = text.chars();
        let Some(first) = chars.next() else { return 0 };
        let rest = chars.as_str();
        let class = char_class(first);
        if first == '\'' && contraction(rest) > 0 {
            return 1 + contraction(rest);
        }
        if class == CharClass::Letter {
            return letters(text);
        }
        if !matches!(first, '\r' | '\n') && class != CharClass::Number {
            let letters = letters(rest);
            if letters > 0 {
                return first.len_utf8() + letters;
            }
        }
        match class {
            CharClass::Number => {
                let digits = text.chars().take(self.digits);
                digits
                    .take_while(|c| char_class(*c) == CharClass::Number)
                    .map(char::len_utf8)
                    .sum()
            }
            CharClass::Blank => match if first == ' ' { signs(rest) } else { 0 } {
                0 => blanks(text),
                length => 1 + length,
            },
            CharClass::Letter | CharClass::Sign => signs(text),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Letter,
    Number,
    Blank,
    Sign,
}

fn char_class(c: char) -> CharClass {
    match c {
        'a'..='z' | 'A'..='Z' => CharClass::Letter,
        '0'..='9' => CharClass::Number,
        _ if c.is_whitespace() => CharClass::Blank,
        '\0'..='\x7f' => CharClass::Sign,
        // Most Chinese and Korean characters, without a search.
        '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' => CharClass::Letter,
        _ => {
            static CLASSES: OnceLock<[Vec<(char, char)>; 2]> = OnceLock::new();
            let [letters, numbers] = CLASSES.get_or_init(|| [class(r"\p{L}"), class(r"\p{N}")]);
            if holds(letters, c) {
                CharClass::Letter
            } else if holds(numbers, c) {
                CharClass::Number
            } else {
                CharClass::Sign
            }
        }
    }
}

fn holds(ranges: &[(char, char)], c: char) -> bool {
    let at = ranges.partition_point(|(_, last)| *last < c);
    ranges.get(at).is_some_and(|(first, _)| *first <= c)
}

fn class(pattern: &str) -> Vec<(char, char)> {
    let hir = regex_syntax::parse(pattern).expect("a class of one Unicode property is valid");
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => class
            .iter()
            .map(|range| (range.start(), range.end()))
            .collect(),
        _ => Vec::new(),
    }
}

fn contraction(rest: &str) -> usize {
    let mut chars = rest.chars();
    let (first, second) = (chars.next(), chars.next());
    match (first, second) {
        // Case-insensitively, the long s is an s.
        (Some('\u{17f}'), _) => 2,
        (Some('s' | 'S' | 't' | 'T' | 'm' | 'M' | 'd' | 'D'), _) => 1,
        (Some('r' | 'R' | 'v' | 'V'), Some('e' | 'E')) | (Some('l' | 'L'), Some('l' | 'L')) => 2,
        _ => 0,
    }
}

fn run(text: &str, of: impl Fn(char) -> bool) -> usize {
    text.find(|c| !of(c)).unwrap_or(text.len())
}

/// Returns the length of the leading letters of a text, in bytes; most are ASCII.
fn letters(text: &str) -> usize {
    let ascii = text.bytes().position(|byte| !byte.is_ascii_alphabetic());
    match ascii {
        None => text.len(),
        Some(at) if text.as_bytes()[at].is_ascii() => at,
        Some(at) => at + run(&text[at..], |c| char_class(c) == CharClass::Letter),
    }
}

/// Returns the length of a text's leading punctuation and the newlines after it, in bytes.
fn signs(text: &str) -> usize {
    match run(text, |c| char_class(c) == CharClass::Sign) {
        0 => 0,
        length => length + run(&text[length..], |c| matches!(c, '\r' | '\n')),
    }
}

/// Returns the length of a word of leading whitespace, in bytes: up to the last newline, else all
/// but the last character, which belongs to the next word.
fn blanks(text: &str) -> usize {
    let length = run(text, char::is_whitespace);
    let run = &text[..length];
    if let Some(line_end) = run.rfind(['\r', '\n']) {
        return line_end + 1;
    }
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    if length == text.len() || length == last {
        length
    } else {
        length - last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pattern: SplitPattern, mut text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        while !text.is_empty() {
            let (word, rest) = text.split_at(pattern.word(text));
            words.push(word);
            text = rest;
        }
        words
    }

    #[test]
    fn words_are_those_of_the_pattern() {
        let llama = SplitPattern { digits: 3 };
        for (text, expected) in [
            (
                "Hello, it's 12345",
                vec!["Hello", ",", " it", "'s", " ", "123", "45"],
            ),
            (
                "don'T 'RE'sx x'lL",
                vec!["don", "'T", " '", "RE", "'s", "x", " x", "'lL"],
            ),
            (
                "a  b   \n\n  c \t",
                vec!["a", " ", " b", "   \n\n", " ", " c", " \t"],
            ),
            ("!!\n\r x.y (z)", vec!["!!\n\r", " x", ".y", " (", "z", ")"]),
            (
                "世界, \u{a0}é\u{301}½",
                vec!["世界", ",", " ", "\u{a0}é", "\u{301}", "½"],
            ),
            (" \n", vec![" \n"]),
            (" ", vec![" "]),
            ("\r\nx", vec!["\r\n", "x"]),
        ] {
            assert_eq!(words(llama, text), expected, "{text:?}");
        }
        assert_eq!(
            words(SplitPattern { digits: 1 }, "x123"),
            ["x", "1", "2", "3"]
        );
        assert_eq!(words(llama, ""), Vec::<&str>::new());
    }

    #[test]
    fn only_known_patterns_count() {
        assert_eq!(SplitPattern::of(r"\s+"), None);
        let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(SplitPattern::of(qwen), Some(SplitPattern { digits: 1 }));
    }
}
