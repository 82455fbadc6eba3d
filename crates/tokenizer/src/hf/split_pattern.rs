//! Splits text into words like the pre-tokenizers of most byte-level models, without a regular
//! expression engine.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// Regular expression by which Llama 3's tokenizer splits text into words, with up to three digits
/// in a number. With one digit, it is the expression of Qwen's tokenizer.
///
/// ```text
/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
/// |\s*[\r\n]+|\s+(?!\S)|\s+
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PreTokenizerSplitPattern {
    digits: usize,
}

impl PreTokenizerSplitPattern {
    pub(super) fn from_regex(regex: &str) -> Option<Self> {
        const HEAD: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
        const TAIL: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        match regex.strip_prefix(HEAD)?.strip_suffix(TAIL)? {
            r"\p{N}{1,3}" => Some(Self { digits: 3 }),
            r"\p{N}" => Some(Self { digits: 1 }),
            _ => None,
        }
    }

    /// Returns the length of the first word of a text, in bytes; zero only for empty text.
    pub(super) fn first_word_len(self, text: &str) -> usize {
        let mut chars = text.chars();
        let Some(first) = chars.next() else { return 0 };
        let rest = chars.as_str();
        let class = char_class(first);
        if first == '\'' && contraction_len(rest) > 0 {
            return 1 + contraction_len(rest);
        }
        if class == SplitCharClass::Letter {
            return letters_len(text);
        }
        if !matches!(first, '\r' | '\n') && class != SplitCharClass::Number {
            let letters = letters_len(rest);
            if letters > 0 {
                return first.len_utf8() + letters;
            }
        }
        match class {
            SplitCharClass::Number => {
                let digits = text.chars().take(self.digits);
                digits
                    .take_while(|c| char_class(*c) == SplitCharClass::Number)
                    .map(char::len_utf8)
                    .sum()
            }
            SplitCharClass::Blank => match if first == ' ' { signs_len(rest) } else { 0 } {
                0 => blanks_len(text),
                length => 1 + length,
            },
            SplitCharClass::Letter | SplitCharClass::Sign => signs_len(text),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitCharClass {
    Letter,
    Number,
    Blank,
    Sign,
}

fn char_class(c: char) -> SplitCharClass {
    match c {
        'a'..='z' | 'A'..='Z' => SplitCharClass::Letter,
        '0'..='9' => SplitCharClass::Number,
        _ if c.is_whitespace() => SplitCharClass::Blank,
        '\0'..='\x7f' => SplitCharClass::Sign,
        // Most Chinese and Korean characters, without a search.
        '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' => SplitCharClass::Letter,
        _ => {
            static CLASSES: OnceLock<[Vec<(char, char)>; 2]> = OnceLock::new();
            let [letters, numbers] =
                CLASSES.get_or_init(|| [char_class_ranges(r"\p{L}"), char_class_ranges(r"\p{N}")]);
            if ranges_contain(letters, c) {
                SplitCharClass::Letter
            } else if ranges_contain(numbers, c) {
                SplitCharClass::Number
            } else {
                SplitCharClass::Sign
            }
        }
    }
}

fn ranges_contain(ranges: &[(char, char)], c: char) -> bool {
    let at = ranges.partition_point(|(_, last)| *last < c);
    ranges.get(at).is_some_and(|(first, _)| *first <= c)
}

fn char_class_ranges(pattern: &str) -> Vec<(char, char)> {
    let hir = regex_syntax::parse(pattern).expect("a class of one Unicode property is valid");
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().map(|range| (range.start(), range.end())).collect()
        }
        _ => Vec::new(),
    }
}

fn contraction_len(rest: &str) -> usize {
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

fn run_len(text: &str, of: impl Fn(char) -> bool) -> usize {
    text.find(|c| !of(c)).unwrap_or(text.len())
}

/// Returns the length of the leading letters of a text, in bytes; most are ASCII.
fn letters_len(text: &str) -> usize {
    let ascii = text.bytes().position(|byte| !byte.is_ascii_alphabetic());
    match ascii {
        None => text.len(),
        Some(at) if text.as_bytes()[at].is_ascii() => at,
        Some(at) => at + run_len(&text[at..], |c| char_class(c) == SplitCharClass::Letter),
    }
}

/// Returns the length of a text's leading punctuation and the newlines after it, in bytes.
fn signs_len(text: &str) -> usize {
    match run_len(text, |c| char_class(c) == SplitCharClass::Sign) {
        0 => 0,
        length => length + run_len(&text[length..], |c| matches!(c, '\r' | '\n')),
    }
}

/// Returns the length of a word of leading whitespace, in bytes: up to the last newline, else all
/// but the last character, which belongs to the next word.
fn blanks_len(text: &str) -> usize {
    let length = run_len(text, char::is_whitespace);
    let run = &text[..length];
    if let Some(line_end) = run.rfind(['\r', '\n']) {
        return line_end + 1;
    }
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    if length == text.len() || length == last { length } else { length - last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_into_words(pattern: PreTokenizerSplitPattern, mut text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        while !text.is_empty() {
            let (word, rest) = text.split_at(pattern.first_word_len(text));
            words.push(word);
            text = rest;
        }
        words
    }

    #[test]
    fn split_words_equal_the_regex() {
        let llama = PreTokenizerSplitPattern { digits: 3 };
        for (text, expected) in [
            ("Hello, it's 12345", vec!["Hello", ",", " it", "'s", " ", "123", "45"]),
            ("don'T 'RE'sx x'lL", vec!["don", "'T", " '", "RE", "'s", "x", " x", "'lL"]),
            ("a  b   \n\n  c \t", vec!["a", " ", " b", "   \n\n", " ", " c", " \t"]),
            ("!!\n\r x.y (z)", vec!["!!\n\r", " x", ".y", " (", "z", ")"]),
            ("世界, \u{a0}é\u{301}½", vec!["世界", ",", " ", "\u{a0}é", "\u{301}", "½"]),
            (" \n", vec![" \n"]),
            (" ", vec![" "]),
            ("\r\nx", vec!["\r\n", "x"]),
        ] {
            assert_eq!(split_into_words(llama, text), expected, "{text:?}");
        }
        assert_eq!(
            split_into_words(PreTokenizerSplitPattern { digits: 1 }, "x123"),
            ["x", "1", "2", "3"]
        );
        assert_eq!(split_into_words(llama, ""), Vec::<&str>::new());
    }

    #[test]
    fn only_known_split_patterns_are_accepted() {
        assert_eq!(PreTokenizerSplitPattern::from_regex(r"\s+"), None);
        let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(
            PreTokenizerSplitPattern::from_regex(qwen),
            Some(PreTokenizerSplitPattern { digits: 1 })
        );
    }
}
