//! Translates ECMA-262 and Python regular expressions to the syntax of the crate `regex-syntax`.

#[derive(Debug, Default)]
pub(super) struct TranslatedPattern {
    /// The translated regular expression in `regex-syntax` notation, without look-around and
    /// back-references.
    pub(super) rust: String,
    /// Bodies of the positive look-aheads in the source pattern, untranslated.
    pub(super) look_aheads: Vec<String>,
    /// Whether the translation omits parts of the source pattern and may match more strings.
    pub(super) lossy: bool,
}

/// Translates an ECMA-262 or Python regular expression; unsupported syntax is copied, and
/// `regex-syntax` then rejects it.
pub(super) fn translate_ecma_regex(source: &str) -> TranslatedPattern {
    let mut translator = EcmaTranslator {
        chars: source.chars().collect(),
        at: 0,
        out: TranslatedPattern::default(),
    };
    translator.translate_pattern();
    translator.out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RegexPlace {
    InClass,
    Outside,
}

struct EcmaTranslator {
    chars: Vec<char>,
    at: usize,
    out: TranslatedPattern,
}

impl EcmaTranslator {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c))
    }

    fn push_text(&mut self, text: &str) {
        self.out.rust.push_str(text);
    }

    fn push_literal(&mut self, c: char) {
        if regex_syntax::is_meta_character(c) {
            self.out.rust.push('\\');
        }
        self.out.rust.push(c);
    }

    fn translate_pattern(&mut self) {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => self.translate_escape(RegexPlace::Outside),
                '[' => self.translate_class(),
                '(' => self.translate_group(),
                '{' => self.translate_brace(),
                '}' | ']' => {
                    self.push_literal(c);
                    self.at += 1;
                }
                _ => {
                    self.out.rust.push(c);
                    self.at += 1;
                }
            }
        }
    }

    /// Translates `{`, which is a literal in ECMA-262 (Annex B) and Python unless it opens a
    /// quantifier.
    fn translate_brace(&mut self) {
        let mut i = 1;
        let mut digits = 0;
        while self.peek(i).is_some_and(|c| c.is_ascii_digit()) {
            i += 1;
            digits += 1;
        }
        if self.peek(i) == Some(',') {
            i += 1;
            while self.peek(i).is_some_and(|c| c.is_ascii_digit()) {
                i += 1;
            }
        }
        let quantifier = self.peek(i) == Some('}') && digits > 0;
        if quantifier {
            let text: String = self.chars[self.at..=self.at + i].iter().collect();
            self.push_text(&text);
            self.at += i + 1;
        } else {
            self.push_text("\\{");
            self.at += 1;
        }
    }

    fn translate_group(&mut self) {
        for (open, positive) in [("(?=", true), ("(?!", false), ("(?<=", false), ("(?<!", false)] {
            if self.starts_with(open) {
                let body = self.skip_group(open.len());
                if positive {
                    self.out.look_aheads.push(body);
                }
                self.out.lossy = true;
                // An empty group keeps a following quantifier valid.
                self.push_text("(?:)");
                return;
            }
        }
        if self.starts_with("(?#") {
            self.skip_group(3);
        } else if self.starts_with("(?>") {
            self.push_text("(?:");
            self.at += 3;
        } else if self.starts_with("(?P=") {
            self.skip_group(4);
            self.out.lossy = true;
            self.push_text("(?:)");
        } else {
            self.push_text("(");
            self.at += 1;
        }
    }

    /// Skips a regular expression group whose opening, such as `(?=`, has `open` characters;
    /// returns the group's body.
    fn skip_group(&mut self, open: usize) -> String {
        self.at += open;
        let start = self.at;
        let mut depth = 1;
        let mut in_class = false;
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => self.at += 1,
                '[' if !in_class => in_class = true,
                ']' if in_class => in_class = false,
                '(' if !in_class => depth += 1,
                ')' if !in_class => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                let body = self.chars[start..self.at].iter().collect();
                self.at += 1;
                return body;
            }
            self.at += 1;
        }
        self.at = self.chars.len();
        // Leaves the group unclosed, so that the parser reports the right error.
        self.push_text("(");
        String::new()
    }

    fn translate_class(&mut self) {
        self.at += 1;
        let negated = self.peek(0) == Some('^');
        if negated {
            self.at += 1;
        }
        if self.peek(0) == Some(']') {
            // `[]` matches nothing, `[^]` matches any character.
            self.at += 1;
            self.push_text(if negated { "(?s:.)" } else { "[^\\x00-\\x{10FFFF}]" });
            return;
        }
        self.push_text(if negated { "[^" } else { "[" });
        let mut after_set = false;
        while let Some(c) = self.peek(0) {
            let set_next =
                self.peek(1) == Some('\\') && self.peek(2).is_some_and(|c| "dDwWsSpP".contains(c));
            match c {
                ']' => {
                    self.push_text("]");
                    self.at += 1;
                    return;
                }
                '\\' => {
                    after_set = self.peek(1).is_some_and(|c| "dDwWsSpP".contains(c));
                    self.translate_escape(RegexPlace::InClass);
                    continue;
                }
                '-' if after_set || set_next => self.push_text("\\-"),
                '-' if self.peek(1) == Some('-') => self.push_text("\\-"),
                '[' | '&' | '~' => {
                    self.out.rust.push('\\');
                    self.out.rust.push(c);
                }
                _ => self.out.rust.push(c),
            }
            after_set = false;
            self.at += 1;
        }
    }

    fn translate_escape(&mut self, place: RegexPlace) {
        let Some(c) = self.peek(1) else {
            self.push_text("\\");
            self.at += 1;
            return;
        };
        self.at += 2;
        match c {
            'd' => self.push_character_set("0-9", place),
            'w' => self.push_character_set("0-9A-Za-z_", place),
            's' => self.push_character_set(" \\t\\n\\r\\f\\v", place),
            'D' => self.push_text("[^0-9]"),
            'W' => self.push_text("[^0-9A-Za-z_]"),
            'S' => self.push_text("[^ \\t\\n\\r\\f\\v\\x{a0}\\x{feff}\\x{2028}\\x{2029}\\p{Zs}]"),
            'b' if place == RegexPlace::InClass => self.push_text("\\x08"),
            'b' | 'B' | 'f' | 'n' | 'r' | 't' | 'v' | 'x' | 'p' | 'P' | 'A' | 'z' => {
                self.out.rust.push('\\');
                self.out.rust.push(c);
                self.copy_braced();
            }
            'Z' => self.push_text("\\z"),
            '0' => self.push_text("\\x00"),
            '1'..='9' if place == RegexPlace::Outside => {
                while self.peek(0).is_some_and(|c| c.is_ascii_digit()) {
                    self.at += 1;
                }
                self.out.lossy = true;
                self.push_text("(?:)");
            }
            'k' if place == RegexPlace::Outside && self.peek(0) == Some('<') => {
                while self.peek(0).is_some_and(|c| c != '>') {
                    self.at += 1;
                }
                self.at += 1;
                self.out.lossy = true;
                self.push_text("(?:)");
            }
            'c' => {
                let control = self.peek(0).map_or(0, |c| c as u32 % 32);
                self.at += 1;
                self.push_text(&format!("\\x{control:02x}"));
            }
            'u' => self.translate_unicode_escape(),
            _ if regex_syntax::is_meta_character(c) || c == '/' => {
                self.out.rust.push('\\');
                self.out.rust.push(c);
            }
            _ => self.push_literal(c),
        }
    }

    fn push_character_set(&mut self, ranges: &str, place: RegexPlace) {
        if place == RegexPlace::InClass {
            self.push_text(ranges);
        } else {
            self.push_text("[");
            self.push_text(ranges);
            self.push_text("]");
        }
    }

    /// Copies the braces of `\p{…}` or `\x{…}` to the translated pattern.
    fn copy_braced(&mut self) {
        if self.peek(0) != Some('{') {
            return;
        }
        while let Some(c) = self.peek(0) {
            self.out.rust.push(c);
            self.at += 1;
            if c == '}' {
                return;
            }
        }
    }

    /// Translates an escape `\uXXXX`, a surrogate pair, or `\u{X…}`.
    fn translate_unicode_escape(&mut self) {
        if self.peek(0) == Some('{') {
            self.push_text("\\x");
            self.copy_braced();
            return;
        }
        let Some(high) = self.parse_hex4(0) else {
            self.push_text("u");
            return;
        };
        self.at += 4;
        let low = (self.starts_with("\\u"))
            .then(|| self.parse_hex4(2))
            .flatten()
            .filter(|low| (0xdc00..0xe000).contains(low));
        let code = match low {
            Some(low) if (0xd800..0xdc00).contains(&high) => {
                self.at += 6;
                0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
            }
            _ => high,
        };
        if char::from_u32(code).is_none() {
            // An unpaired surrogate, which no Rust string can contain.
            self.out.lossy = true;
            self.push_text("\\x{fffd}");
        } else {
            self.push_text(&format!("\\x{{{code:x}}}"));
        }
    }

    fn parse_hex4(&self, from: usize) -> Option<u32> {
        (0..4).try_fold(0, |code, i| Some(code * 16 + self.peek(from + i)?.to_digit(16)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_other_dialects_are_translated() {
        for source in [
            r"^\d{3}-\d{2}$",
            r"^[\w-.]+@[a-z\d-]+\.[a-z]{2,}$",
            r"^[[a]+$",
            r"{[^}]*}",
            r"\u00e9\ud83d\ude00",
            r"^a{,3}$",
            r"[\]\[]",
            r"[]",
            r"[^]",
            r"^(?!foo)[a-z]+$",
            r"(?<year>\d{4})",
            r"^[^\s@]+$",
            r"\cA\-\_\/",
            r"[a&&b~~c]",
            r"^\S+$",
            r"[+--]",
            r"^\p{Lu}\p{Ll}+\u{1F600}$",
        ] {
            let rust = translate_ecma_regex(source).rust;
            assert!(
                regex_syntax::parse(&rust).is_ok(),
                "{source} became {rust}: {:?}",
                regex_syntax::parse(&rust)
            );
        }
    }

    #[test]
    fn look_around_is_removed_and_reported() {
        let t = translate_ecma_regex(r"^(?=.*[A-Z])(?!x(y)z).{8,}$");
        assert_eq!(t.rust, "^(?:)(?:).{8,}$");
        assert_eq!(t.look_aheads, [".*[A-Z]"]);
        assert!(t.lossy);
    }
}
