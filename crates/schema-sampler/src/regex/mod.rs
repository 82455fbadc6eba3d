//! Strings that match a pattern.

mod ecma;
mod rx;

use std::sync::OnceLock;

use jsonschema::{FancyRegex, PatternOptions, Validator};
use rand_chacha::ChaCha8Rng;
use regex_syntax::hir::Look;
use serde_json::{Value, json};

pub(super) use rx::Rx;

use super::{ConstraintError, words};
use vllm_sim_random::{Draw, Purpose, stream};

/// How often a matcher with look-around may backtrack: bounds hostile patterns.
const BACKTRACKS: usize = 20_000;

/// Length of a text that shows whether a pattern with word boundaries can match at all.
const MAX_PROBE: u32 = 1_000;

/// The longest pattern that is compiled, in bytes.
const MAX_PATTERN: usize = 64 * 1024;

/// Size of a compiled pattern, in bytes.
const MAX_COMPILED: usize = 2 << 20;

/// The engine that patterns are matched with: look-around, within bounds.
pub(super) fn engine() -> PatternOptions<FancyRegex> {
    PatternOptions::fancy_regex()
        .backtrack_limit(BACKTRACKS)
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
}

/// A JSON Schema `pattern`: found anywhere in the string, ECMA-262 dialect.
pub(super) struct Pattern {
    source: String,
    rx: Option<Rx>,
    ahead: Vec<Rx>,
    open_start: bool,
    open_end: bool,
    exact: bool,
    matcher: OnceLock<Option<Matcher>>,
}

enum Matcher {
    /// ECMA-262, as `jsonschema` understands it.
    Ecma(Box<Validator>),
    /// Another dialect, such as Python's, translated.
    Other(Box<regex::Regex>),
}

impl Pattern {
    /// Reads `source`.
    ///
    /// # Errors
    /// The reason, when no matcher can be built from it.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        if source.len() > MAX_PATTERN {
            return Err(format!("a pattern of {} bytes is too long", source.len()));
        }
        let translated = ecma::translate(source);
        let parsed = regex_syntax::parse(&translated.rust);
        let mut pattern = Self {
            source: source.to_owned(),
            rx: None,
            ahead: Vec::new(),
            open_start: true,
            open_end: true,
            exact: false,
            matcher: OnceLock::new(),
        };
        match parsed {
            Ok(hir) => {
                let looks = hir.properties().look_set();
                let anchors = looks.remove(Look::Start).remove(Look::End).is_empty();
                pattern.open_start = !hir.properties().look_set_prefix().contains(Look::Start);
                pattern.open_end = !hir.properties().look_set_suffix().contains(Look::End);
                let inner = looks.contains(Look::Start) == pattern.open_start
                    || looks.contains(Look::End) == pattern.open_end;
                pattern.exact = !translated.lossy && anchors && !inner;
                pattern.rx = Some(Rx::new(&hir));
            }
            Err(error) if !translated.lossy => {
                // The last word is the matcher's: it reads some patterns that we cannot.
                if pattern.matcher().is_none() {
                    return Err(error.to_string());
                }
            }
            Err(_) => {}
        }
        if translated.lossy && pattern.matcher().is_none() {
            return Err(format!("regex {source:?} is not supported"));
        }
        pattern.ahead = translated
            .ahead
            .iter()
            .filter_map(|body| regex_syntax::parse(&ecma::translate(body).rust).ok())
            .map(|hir| Rx::new(&hir))
            .collect();
        Ok(pattern)
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Whether [`Self::sample`] needs no check when this pattern stands alone.
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Where a match of this goes when several patterns must be found in one string:
    /// at its start, anywhere, at its end.
    pub(super) fn order(&self) -> u8 {
        match (self.open_start, self.open_end) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        }
    }

    fn matcher(&self) -> Option<&Matcher> {
        self.matcher
            .get_or_init(|| {
                let ecma = jsonschema::options()
                    .with_pattern_options(engine())
                    .build(&json!({"pattern": self.source}));
                if let Ok(validator) = ecma {
                    return Some(Matcher::Ecma(Box::new(validator)));
                }
                let translated = ecma::translate(&self.source);
                if translated.lossy {
                    return None;
                }
                regex::RegexBuilder::new(&translated.rust)
                    .size_limit(MAX_COMPILED)
                    .build()
                    .ok()
                    .map(|regex| Matcher::Other(Box::new(regex)))
            })
            .as_ref()
    }

    /// Whether the pattern is found in `text`.
    pub(super) fn is_match(&self, text: &str) -> bool {
        match self.matcher() {
            Some(Matcher::Ecma(validator)) => validator.is_valid(&Value::String(text.to_owned())),
            Some(Matcher::Other(regex)) => regex.is_match(text),
            // Too big to compile: what the sampler makes is taken on trust.
            None => self.exact,
        }
    }

    /// A string of `low..=high` characters that probably matches.
    pub(super) fn sample(&self, low: u32, high: u32, rng: &mut ChaCha8Rng) -> Option<String> {
        let rx = self.rx.as_ref()?;
        let mut out = String::new();
        if !self.ahead.is_empty() && rng.percent(70) {
            return self.sample_ahead(rx, low, high, rng);
        }
        // Outside the match an open end may hold anything: use it only to reach the length.
        let open = self.open_start || self.open_end;
        let (core_low, core_high) = (if open { low.min(rx.max) } else { low }, high);
        rx.sample(core_low, core_high, rng, &mut out)?;
        let length = out.chars().count();
        let missing = (low as usize).saturating_sub(length);
        if missing == 0 {
            // `^x_` reads better as `x_value`.
            let word = words::word(rng);
            if self.open_end && length + word.len() <= high as usize && rng.percent(75) {
                out.push_str(word);
            }
            return Some(out);
        }
        let filler: String = (0..missing)
            .map(|_| char::from(b'a' + (rng.between(0, 25) as u8)))
            .collect();
        Some(if self.open_end {
            out + &filler
        } else {
            filler + &out
        })
    }

    /// Passwords and the like: a piece for each look-ahead, then the body of the pattern.
    fn sample_ahead(&self, rx: &Rx, low: u32, high: u32, rng: &mut ChaCha8Rng) -> Option<String> {
        let mut out = String::new();
        for piece in &self.ahead {
            if rng.percent(90) {
                piece.sample(piece.min, piece.min.max(2).min(high), rng, &mut out)?;
            }
        }
        let used = u32::try_from(out.chars().count()).ok()?;
        if used < rx.max && used < high {
            let low = low.max(rx.min).saturating_sub(used).max(rx.min.min(1));
            let mut body = String::new();
            if rx
                .sample(
                    low.max(rx.min.saturating_sub(used)),
                    high - used,
                    rng,
                    &mut body,
                )
                .is_none()
            {
                body.clear();
                rx.sample(rx.min, high, rng, &mut body)?;
            }
            let missing = low.max(rx.min.saturating_sub(used)) as usize;
            let take = body.chars().count().min(missing.max(2));
            out.extend(body.chars().take(take));
        }
        Some(out)
    }
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}/", self.source)
    }
}

/// A regex constraint: the whole answer matches.
#[derive(Debug)]
pub(super) struct WholeRegex {
    rx: Rx,
    check: regex::Regex,
}

impl WholeRegex {
    /// Reads `source`.
    ///
    /// # Errors
    /// [`ConstraintError::BadRegex`] in the words of llguidance, which is what vLLM falls
    /// back to (`parser/src/lark/compiler.rs`, `lexer.rs` of llguidance).
    pub(super) fn new(source: &str) -> Result<Self, ConstraintError> {
        if source.contains('\0') {
            return Err(ConstraintError::BadRegex(
                "structured_outputs.regex must not contain a NUL character ('\\x00')".to_owned(),
            ));
        }
        if source.len() > MAX_PATTERN {
            return Err(grammar_error(source, "the pattern is too long"));
        }
        let (text, hir) = match regex_syntax::parse(source) {
            Ok(hir) => (source.to_owned(), hir),
            Err(_) => {
                let translated = ecma::translate(source);
                match regex_syntax::parse(&translated.rust) {
                    Ok(hir) if !translated.lossy => (translated.rust, hir),
                    _ => return Err(syntax_error(source)),
                }
            }
        };
        let check = regex::Regex::new(&format!(r"\A(?:{text})\z"))
            .map_err(|error| grammar_error(source, &error.to_string()))?;
        let regex = Self {
            rx: Rx::new(&hir),
            check,
        };
        let looks = hir.properties().look_set();
        let anchors_only = looks.remove(Look::Start).remove(Look::End).is_empty();
        let mut rng = stream(0, 0, Purpose::Structured);
        if !anchors_only && regex.sample(MAX_PROBE, &mut rng).is_none() {
            let words = format!(
                "lookarounds not supported yet in regex /{}/",
                slashed(source)
            );
            return Err(grammar_error(source, &words));
        }
        Ok(regex)
    }

    /// Whether `text` matches as a whole.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.check.is_match(text)
    }

    /// A string that matches as a whole, of at most `max_chars` characters.
    pub(super) fn sample(&self, max_chars: u32, rng: &mut ChaCha8Rng) -> Option<String> {
        // Word boundaries and inner anchors are ignored by the sampler: try again.
        (0..64).find_map(|_| {
            let mut out = String::new();
            self.rx.sample(0, max_chars, rng, &mut out)?;
            self.check.is_match(&out).then_some(out)
        })
    }
}

/// The pattern between slashes: as llguidance's `regex_to_lark` escapes it.
fn slashed(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                text.push('\\');
                text.extend(chars.next());
            }
            '/' => text.push_str("\\/"),
            '\n' => text.push_str("\\n"),
            _ => text.push(c),
        }
    }
    text
}

/// What the parser says of the pattern in its escaped form.
fn syntax_error(source: &str) -> ConstraintError {
    match regex_syntax::parse(&slashed(source)) {
        Err(error) => grammar_error(source, &error.to_string()),
        Ok(_) => grammar_error(source, "not supported"),
    }
}

fn grammar_error(source: &str, error: &str) -> ConstraintError {
    let text = slashed(source);
    ConstraintError::BadRegex(format!(
        "Grammar error: at 1(8): invalid regex {text:?} (in regex): {error}\n   1 | start: /{text}/\n\
         \u{20}             ^"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_match_the_whole_pattern() {
        for source in [
            r"\d{3}-\d{4}",
            r"(yes|no|maybe)",
            r"[A-Z][a-z]+ [A-Z][a-z]+",
            r"^https?://[\w.-]+/\S*$",
            r"a{2,}b*c?",
            r"[^\n]{10,20}",
            r"\p{Greek}+",
            r"(?i)hello",
            r"\{.*\}",
            r"\bword\b",
            r"(ab|cde){3,5}x",
            r"[\u4e00-\u9fff]{2}",
            r"",
            r"<tool_call>\n\{.name.: get_weather\n</tool_call>",
        ] {
            let regex = WholeRegex::new(source).expect("a good pattern");
            for seed in 0..50 {
                let mut rng = stream(seed, 0, Purpose::Structured);
                assert!(regex.sample(1000, &mut rng).is_some(), "{source}");
            }
        }
    }

    /// The words of a recorded vLLM 0.32 answer (conformance case 273).
    #[test]
    fn a_bad_pattern_is_refused_in_the_words_of_vllm() {
        let error = WholeRegex::new("([").expect_err("an unclosed class");
        assert_eq!(
            error.to_string(),
            "Grammar error: at 1(8): invalid regex \"([\" (in regex): regex parse error:\n    \
             ([\n     ^\nerror: unclosed character class\n   1 | start: /([/\n              ^"
        );
    }

    #[test]
    fn look_around_and_back_references_are_refused() {
        for source in ["(?=a)b", "(?<!a)b", r"(a)\1", "a\0b", r"a\bb"] {
            assert!(WholeRegex::new(source).is_err(), "{source}");
        }
    }

    #[test]
    fn patterns_are_sampled_within_their_length() {
        for (source, low, high) in [
            (r"^[a-z]+$", 3, 5),
            (r"^[a-z]+(-[a-z]+)*$", 20, 21),
            (r"^(foo|quux)*$", 6, 8),
            (r"x", 10, 10),
            (r"^\d+", 8, 9),
            (r"^(?=.*[A-Z])(?=.*\d)(?=.*[a-z]).{8,16}$", 8, 16),
            (r"^(?!foo)[a-z]{3,9}$", 3, 9),
            (r"^[^@]+@[^@]+\.com$", 12, 30),
        ] {
            let pattern = Pattern::new(source).expect("a good pattern");
            for seed in 0..20 {
                let mut rng = stream(seed, 0, Purpose::Structured);
                let found = (0..40).find_map(|_| {
                    pattern.sample(low, high, &mut rng).filter(|s| {
                        let n = s.chars().count() as u32;
                        n >= low && n <= high && pattern.is_match(s)
                    })
                });
                assert!(found.is_some(), "{source} in {low}..={high}");
            }
        }
    }
}
