//! Regular expressions that must match the whole text.

use rand_chacha::ChaCha8Rng;
use regex_syntax::hir::Look;

use super::ecma;
use super::generator::RegexGenerator;
use super::pattern::is_pattern_too_large;
use super::states::regex_state_count;
use crate::constraint::ConstraintError;
use crate::work::{WorkBudget, regex_match_cost_steps};
use vllm_sim_random::{RandomStreamPurpose, request_rng};

/// Maximum length of the text generated to test patterns with word boundaries, in characters.
const MAX_PROBE_CHARS: u32 = 1_000;

#[derive(Debug)]
pub(crate) struct WholeTextRegex {
    generator: RegexGenerator,
    check: regex::Regex,
    states: u32,
    /// Whether every text generated for this regular expression also matches the expression.
    exact: bool,
}

impl WholeTextRegex {
    /// Parses the regular expression `regex_text`.
    ///
    /// # Errors
    /// [`ConstraintError::BadRegex`] with the message of llguidance, vLLM's fallback backend
    /// (`parser/src/lark/compiler.rs`, `lexer.rs`).
    pub(crate) fn new(regex_text: &str) -> Result<Self, ConstraintError> {
        if regex_text.contains('\0') {
            return Err(ConstraintError::BadRegex(
                "structured_outputs.regex must not contain a NUL character ('\\x00')".to_owned(),
            ));
        }
        if is_pattern_too_large(regex_text) {
            return Err(regex_grammar_error(regex_text, "the pattern is too long"));
        }
        let (text, hir) = match regex_syntax::parse(regex_text) {
            Ok(hir) => (regex_text.to_owned(), hir),
            Err(_) => {
                let translated = ecma::translate_ecma_regex(regex_text);
                match regex_syntax::parse(&translated.rust) {
                    Ok(hir) if !translated.lossy => (translated.rust, hir),
                    _ => return Err(regex_syntax_error(regex_text)),
                }
            }
        };
        let check = regex::Regex::new(&format!(r"\A(?:{text})\z"))
            .map_err(|error| regex_grammar_error(regex_text, &error.to_string()))?;
        let looks = hir.properties().look_set();
        let regex = Self {
            generator: RegexGenerator::new(&hir),
            check,
            states: regex_state_count(&hir),
            exact: looks.is_empty(),
        };
        let anchors_only = looks.remove(Look::Start).remove(Look::End).is_empty();
        let mut rng = request_rng(0, 0, RandomStreamPurpose::Structured);
        let work = &mut WorkBudget::default();
        if !anchors_only
            && regex.sample_fully_matching_text(MAX_PROBE_CHARS, &mut rng, work).is_none()
        {
            let words =
                format!("lookarounds not supported yet in regex /{}/", escape_slashes(regex_text));
            return Err(regex_grammar_error(regex_text, &words));
        }
        Ok(regex)
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.check.is_match(text)
    }

    /// Generates a text of at most `max_chars` characters that the regular expression matches in
    /// full.
    pub(crate) fn sample_fully_matching_text(
        &self,
        max_chars: u32,
        rng: &mut ChaCha8Rng,
        work: &mut WorkBudget,
    ) -> Option<String> {
        // The generator ignores word boundaries and inner anchors, so each text is checked.
        for _ in 0..64 {
            let mut out = String::new();
            let made = self.generator.append_random_match(0, max_chars, rng, &mut out);
            work.spend_steps(1 + regex_match_cost_steps(1, &out))?;
            if made.is_some() && self.exact {
                return Some(out);
            }
            if made.is_some() {
                work.spend_steps(regex_match_cost_steps(self.states, &out))?;
                if self.check.is_match(&out) {
                    return Some(out);
                }
            }
        }
        None
    }
}

/// Escapes a regular expression for use between slashes in a Lark grammar, like llguidance's
/// `regex_to_lark`.
fn escape_slashes(source: &str) -> String {
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

fn regex_syntax_error(source: &str) -> ConstraintError {
    match regex_syntax::parse(&escape_slashes(source)) {
        Err(error) => regex_grammar_error(source, &error.to_string()),
        Ok(_) => regex_grammar_error(source, "not supported"),
    }
}

fn regex_grammar_error(source: &str, error: &str) -> ConstraintError {
    let text = escape_slashes(source);
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
            let regex = WholeTextRegex::new(source).expect("a good pattern");
            for seed in 0..50 {
                let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
                let text =
                    regex.sample_fully_matching_text(1000, &mut rng, &mut WorkBudget::default());
                assert!(text.is_some_and(|text| regex.is_match(&text)), "{source}");
            }
        }
    }

    /// The message of a recorded vLLM 0.32 response (conformance case 273).
    #[test]
    fn invalid_regex_error_has_vllm_wording() {
        let error = WholeTextRegex::new("([").expect_err("an unclosed class");
        assert_eq!(
            error.to_string(),
            "Grammar error: at 1(8): invalid regex \"([\" (in regex): regex parse error:\n    \
             ([\n     ^\nerror: unclosed character class\n   1 | start: /([/\n              ^"
        );
    }

    #[test]
    fn regex_look_around_and_back_references_are_rejected() {
        for source in ["(?=a)b", "(?<!a)b", r"(a)\1", "a\0b", r"a\bb"] {
            assert!(WholeTextRegex::new(source).is_err(), "{source}");
        }
    }
}
