//! Patterns of the JSON Schema keyword `pattern`: matching and generation.

use std::sync::OnceLock;

use jsonschema::{FancyRegex, PatternOptions, Validator};
use rand_chacha::ChaCha8Rng;
use regex_syntax::hir::Look;
use serde_json::{Value, json};

use super::ecma;
use super::generator::RegexGenerator;
use super::states::regex_state_count;
use crate::words;
use crate::work::regex_match_cost_steps;
use vllm_sim_random::DrawRandom;

/// Maximum number of backtracking steps of a matcher with look-around.
const MAX_REGEX_BACKTRACKS: usize = 20_000;

/// Maximum size of a regular expression, in bytes.
const MAX_PATTERN_BYTES: usize = 64 * 1024;

/// Maximum translation cost of a pattern: its size in bytes times its number of classes such as
/// `\w`.
///
/// Each class takes kilobytes in the parser, and the translation scans the whole pattern per class.
pub(crate) const MAX_REGEX_TRANSLATION_COST: usize = 1 << 20;

/// Maximum cost of checking one match, in steps; a costlier match is assumed to succeed if the
/// generator is exact.
const MAX_MATCH_CHECK_STEPS: u32 = 20_000;

pub(super) fn is_pattern_too_large(source: &str) -> bool {
    source.len() > MAX_PATTERN_BYTES || regex_translation_cost(source) > MAX_REGEX_TRANSLATION_COST
}

/// Returns the cost of translating a regular expression: bytes times classes.
pub(crate) fn regex_translation_cost(source: &str) -> usize {
    let classes =
        source.as_bytes().windows(2).filter(|two| two[0] == b'\\' && b"wWdDsSpP".contains(&two[1]));
    source.len() * classes.count()
}

/// Maximum size of a compiled regular expression, in bytes.
const MAX_COMPILED_REGEX_BYTES: usize = 2 << 20;

/// Returns the options of the regex engine for `jsonschema`: look-around, with limits.
pub(crate) fn pattern_engine_options() -> PatternOptions<FancyRegex> {
    PatternOptions::fancy_regex()
        .backtrack_limit(MAX_REGEX_BACKTRACKS)
        .size_limit(MAX_COMPILED_REGEX_BYTES)
        .dfa_size_limit(MAX_COMPILED_REGEX_BYTES)
}

/// A regular expression of the JSON Schema keyword `pattern` (ECMA-262), which may match anywhere
/// in a string.
pub(crate) struct SchemaPattern {
    source: String,
    generator: Option<RegexGenerator>,
    look_aheads: Vec<RegexGenerator>,
    open_start: bool,
    open_end: bool,
    exact: bool,
    states: u32,
    matcher: OnceLock<Option<PatternMatcher>>,
}

enum PatternMatcher {
    /// A matcher for ECMA-262 patterns, as implemented by `jsonschema`.
    Ecma(Box<Validator>),
    /// A matcher for non-ECMA-262 patterns, such as Python's, after their translation.
    Other(Box<regex::Regex>),
}

impl SchemaPattern {
    /// Parses the regular expression `ecma_regex`.
    ///
    /// # Errors
    /// An error message if no matcher can be built.
    pub(crate) fn new(ecma_regex: &str) -> Result<Self, String> {
        if is_pattern_too_large(ecma_regex) {
            return Err(format!("a pattern of {} bytes is too long", ecma_regex.len()));
        }
        let translated = ecma::translate_ecma_regex(ecma_regex);
        let parsed = regex_syntax::parse(&translated.rust);
        let mut pattern = Self {
            source: ecma_regex.to_owned(),
            generator: None,
            look_aheads: Vec::new(),
            open_start: true,
            open_end: true,
            exact: false,
            states: 1,
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
                pattern.generator = Some(RegexGenerator::new(&hir));
                pattern.states = regex_state_count(&hir);
            }
            Err(error) if !translated.lossy => {
                // The matcher may support patterns that the translation does not.
                if pattern.matcher().is_none() {
                    return Err(error.to_string());
                }
            }
            Err(_) => {}
        }
        if translated.lossy && pattern.matcher().is_none() {
            return Err(format!("regex {ecma_regex:?} is not supported"));
        }
        pattern.look_aheads = translated
            .look_aheads
            .iter()
            .filter_map(|body| regex_syntax::parse(&ecma::translate_ecma_regex(body).rust).ok())
            .map(|hir| {
                pattern.states = pattern.states.saturating_add(regex_state_count(&hir));
                RegexGenerator::new(&hir)
            })
            .collect();
        Ok(pattern)
    }

    pub(crate) fn pattern_source(&self) -> &str {
        &self.source
    }

    /// Returns whether every string that [`Self::sample_string`] generates matches the pattern.
    pub(crate) fn generates_only_matches(&self) -> bool {
        self.exact
    }

    /// Returns the position of this pattern's match in a string that concatenates matches of
    /// several patterns. 0: start; 1: middle; 2: end.
    pub(crate) fn order_in_pattern_concatenation(&self) -> u8 {
        match (self.open_start, self.open_end) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        }
    }

    fn matcher(&self) -> Option<&PatternMatcher> {
        self.matcher
            .get_or_init(|| {
                let ecma = jsonschema::options()
                    .with_pattern_options(pattern_engine_options())
                    .build(&json!({"pattern": self.source}));
                if let Ok(validator) = ecma {
                    return Some(PatternMatcher::Ecma(Box::new(validator)));
                }
                let translated = ecma::translate_ecma_regex(&self.source);
                if translated.lossy {
                    return None;
                }
                regex::RegexBuilder::new(&translated.rust)
                    .size_limit(MAX_COMPILED_REGEX_BYTES)
                    .build()
                    .ok()
                    .map(|regex| PatternMatcher::Other(Box::new(regex)))
            })
            .as_ref()
    }

    pub(crate) fn match_cost_steps(&self, text: &str) -> u32 {
        regex_match_cost_steps(self.states, text)
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        if self.match_cost_steps(text) > MAX_MATCH_CHECK_STEPS {
            return self.exact;
        }
        match self.matcher() {
            Some(PatternMatcher::Ecma(validator)) => {
                validator.is_valid(&Value::String(text.to_owned()))
            }
            Some(PatternMatcher::Other(regex)) => regex.is_match(text),
            // The pattern is too large to compile.
            None => self.exact,
        }
    }

    /// Generates a string of `low..=high` characters that probably matches the pattern.
    pub(crate) fn sample_string(
        &self,
        low: u32,
        high: u32,
        rng: &mut ChaCha8Rng,
    ) -> Option<String> {
        let generator = self.generator.as_ref()?;
        let mut out = String::new();
        if !self.look_aheads.is_empty() && rng.draw_percent_chance(70) {
            return self.sample_ahead(generator, low, high, rng);
        }
        // An open end allows any text outside the match, used only to reach the length.
        let open = self.open_start || self.open_end;
        let (core_low, core_high) = (if open { low.min(generator.max) } else { low }, high);
        generator.append_random_match(core_low, core_high, rng, &mut out)?;
        let length = out.chars().count();
        let missing = (low as usize).saturating_sub(length);
        if missing == 0 {
            // Extends `^x_` to a readable `x_value`.
            let word = words::random_word(rng);
            if self.open_end && length + word.len() <= high as usize && rng.draw_percent_chance(75)
            {
                out.push_str(word);
            }
            return Some(out);
        }
        let filler: String =
            (0..missing).map(|_| char::from(b'a' + (rng.draw_u64_between(0, 25) as u8))).collect();
        Some(if self.open_end { out + &filler } else { filler + &out })
    }

    /// Generates a string for a pattern with look-aheads, as in password rules: one piece per
    /// look-ahead, then the rest of the pattern.
    fn sample_ahead(
        &self,
        generator: &RegexGenerator,
        low: u32,
        high: u32,
        rng: &mut ChaCha8Rng,
    ) -> Option<String> {
        let mut out = String::new();
        for piece in &self.look_aheads {
            if rng.draw_percent_chance(90) {
                piece.append_random_match(piece.min, piece.min.max(2).min(high), rng, &mut out)?;
            }
        }
        let used = u32::try_from(out.chars().count()).ok()?;
        if used < generator.max && used < high {
            let low = low.max(generator.min).saturating_sub(used).max(generator.min.min(1));
            let mut body = String::new();
            if generator
                .append_random_match(
                    low.max(generator.min.saturating_sub(used)),
                    high - used,
                    rng,
                    &mut body,
                )
                .is_none()
            {
                body.clear();
                generator.append_random_match(generator.min, high, rng, &mut body)?;
            }
            let missing = low.max(generator.min.saturating_sub(used)) as usize;
            let take = body.chars().count().min(missing.max(2));
            out.extend(body.chars().take(take));
        }
        Some(out)
    }
}

impl std::fmt::Debug for SchemaPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}/", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_random::{RandomStreamPurpose, request_rng};

    #[test]
    fn pattern_samples_have_the_wanted_length() {
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
            let pattern = SchemaPattern::new(source).expect("a good pattern");
            for seed in 0..20 {
                let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
                let found = (0..40).find_map(|_| {
                    pattern.sample_string(low, high, &mut rng).filter(|s| {
                        let n = s.chars().count() as u32;
                        n >= low && n <= high && pattern.is_match(s)
                    })
                });
                assert!(found.is_some(), "{source} in {low}..={high}");
            }
        }
    }
}
