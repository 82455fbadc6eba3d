//! A scanner over the characters of a grammar, with positions for error messages.

/// Number of source characters that an error message shows before and after the error.
const ERROR_CONTEXT_CHARS: usize = 20;

pub(super) struct GrammarScanner {
    source: String,
    chars: Vec<char>,
    /// Byte offset of each character in the source text of the grammar.
    starts: Vec<usize>,
    pub(super) at: usize,
}

impl GrammarScanner {
    pub(super) fn new(grammar_text: &str) -> Self {
        Self {
            source: grammar_text.to_owned(),
            chars: grammar_text.chars().collect(),
            starts: grammar_text.char_indices().map(|(start, _)| start).collect(),
            at: 0,
        }
    }

    pub(super) fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        Some(c)
    }

    pub(super) fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c))
    }

    /// Skips `text` if it comes next in the grammar's source; returns whether `text` was skipped.
    pub(super) fn skip_if_next(&mut self, text: &str) -> bool {
        let found = self.starts_with(text);
        if found {
            self.at += text.chars().count();
        }
        found
    }

    pub(super) fn remaining_text(&self) -> &str {
        let start = self.starts.get(self.at);
        &self.source[start.copied().unwrap_or(self.source.len())..]
    }

    pub(super) fn take_while(&mut self, test: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.peek(0).is_some_and(&test) {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    pub(super) fn parse_number(&mut self) -> Option<u32> {
        let digits = self.take_while(|c| c.is_ascii_digit());
        digits.parse().ok()
    }

    /// Parses a quoted string, whose opening quote comes next; `None` if the string does not end on
    /// its line.
    pub(super) fn parse_quoted_string(&mut self) -> Result<Option<String>, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(Some(text)),
                Some('\\') => text.push(self.parse_escape()?),
                Some('\n') | None => return Ok(None),
                Some(c) => text.push(c),
            }
        }
    }

    /// Parses the rest of an escape sequence after its backslash, in EBNF or Lark: `\n`, `\xHH`,
    /// `\uHHHH`, `\UHHHHHHHH`.
    pub(super) fn parse_escape(&mut self) -> Result<char, String> {
        let start = self.at.saturating_sub(1);
        let Some(c) = self.next() else {
            return Err(self.lark_error(start, "the grammar ends in an escape"));
        };
        let digits = match c {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'b' => return Ok('\u{8}'),
            'f' => return Ok('\u{c}'),
            'v' => return Ok('\u{b}'),
            '0' => return Ok('\0'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c if !c.is_ascii_alphanumeric() => return Ok(c),
            _ => return Err(self.lark_error(start, &format!("unknown escape '\\{c}'"))),
        };
        let code = self
            .parse_hex_digits(digits)
            .ok_or_else(|| self.lark_error(start, "bad hexadecimal escape"))?;
        // JSON writes characters beyond U+FFFF as two escapes.
        let low = (0xd800..0xdc00).contains(&code) && self.starts_with("\\u");
        if low {
            self.at += 2;
            let low = self.parse_hex_digits(4).unwrap_or(0);
            let code = 0x10000 + ((code - 0xd800) << 10) + (low & 0x3ff);
            return Ok(char::from_u32(code).unwrap_or('\u{fffd}'));
        }
        char::from_u32(code).ok_or_else(|| self.lark_error(start, "the escape is no character"))
    }

    fn parse_hex_digits(&mut self, digits: usize) -> Option<u32> {
        let mut code: u32 = 0;
        for i in 0..digits {
            code = code.checked_mul(16)?.checked_add(self.peek(i)?.to_digit(16)?)?;
        }
        self.at += digits;
        Some(code)
    }

    /// Formats a syntax error like llguidance's GBNF converter: `message at line 1, 'a' ^ 'b'`.
    pub(super) fn gbnf_error(&self, at: usize, message: &str) -> String {
        let at = at.min(self.chars.len());
        let line = self.chars[..at].iter().filter(|&&c| c == '\n').count() + 1;
        let before: String =
            self.chars[at.saturating_sub(ERROR_CONTEXT_CHARS)..at].iter().collect();
        let after: String = self.chars[at..].iter().take(ERROR_CONTEXT_CHARS).collect();
        format!("{message} at line {line}, {} ^ {}", python_repr(&before), python_repr(&after))
    }

    /// Formats a syntax error like llguidance's Lark parser: `at line(column): message`, then the
    /// surrounding lines.
    pub(super) fn lark_error(&self, at: usize, message: &str) -> String {
        let before = &self.chars[..at.min(self.chars.len())];
        let line = before.iter().filter(|&&c| c == '\n').count() + 1;
        let column = before.iter().rev().take_while(|&&c| c != '\n').count() + 1;
        let lines: Vec<&str> = self.source.lines().collect();
        let mut text = format!("at {line}({column}): {message}");
        let first = line.saturating_sub(3);
        for (i, shown) in lines.iter().enumerate().take(line + 2).skip(first) {
            let head = format!("{:>4} | ", i + 1);
            text.push_str(&format!("\n{head}{shown}"));
            if i + 1 == line {
                text.push_str(&format!("\n{}^", " ".repeat(head.len() + column - 1)));
            }
        }
        text
    }
}

/// Quotes text for error messages like Python's `repr`.
fn python_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}
