//! Words and signs of Rust code, without comments and literals.

/// Identifiers, `::` and single other characters; no comments, no literals.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut tokens, mut i) = (Vec::new(), 0);
    while i < chars.len() {
        let (start, c, next) = (i, at(i), at(i + 1));
        if c == '/' && (next == '/' || next == '*') {
            i = comment_end(&chars, i);
        } else if c == '"' {
            i = string_end(&chars, i + 1);
        } else if c == '\'' && next == '\\' {
            let end = (i + 3..chars.len()).find(|j| at(*j) == '\'');
            i = end.map_or(chars.len(), |j| j + 1);
        } else if c == '\'' && at(i + 2) == '\'' {
            i += 3;
        } else if c.is_alphanumeric() || c == '_' {
            let rest = chars[i..].iter();
            i += rest
                .take_while(|c| c.is_alphanumeric() || **c == '_')
                .count();
            let word: String = chars[start..i].iter().collect();
            let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
            if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                i = raw_string_end(&chars, i + hashes + 1, hashes);
            } else {
                tokens.push(word);
            }
        } else if c == ':' && next == ':' {
            tokens.push("::".into());
            i += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push(c.into());
            }
            i += 1;
        }
    }
    tokens
}

fn comment_end(chars: &[char], start: usize) -> usize {
    if chars[start + 1] == '/' {
        return start + chars[start..].iter().take_while(|c| **c != '\n').count();
    }
    let (mut depth, mut i) = (0, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn raw_string_end(chars: &[char], start: usize, hashes: usize) -> usize {
    let ends = |i: &usize| {
        let tail = chars[*i + 1..].iter().take(hashes);
        chars[*i] == '"' && tail.clone().count() == hashes && tail.clone().all(|c| *c == '#')
    };
    let end = (start..chars.len()).find(ends);
    end.map_or(chars.len(), |i| i + 1 + hashes)
}
