//! Generates JSON strings that satisfy a schema.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::format;
use super::plan::ValuePlan;
use super::sampler::{SampleFailure, ValueContext, ValueSampler};
use crate::regex::SchemaPattern;
use crate::schema::{SchemaNodeId, StringFormat, StringRules};
use crate::semantic_type::{random_phrase, random_sentence};
use crate::words;
use vllm_sim_random::DrawRandom;

const MAX_STRING_TRIES: u32 = 60;
/// Index of the first attempt in which a pattern match is inserted into a formatted string.
const SPLICE_FROM_ATTEMPT: u32 = 6;

impl ValueSampler<'_> {
    pub(super) fn sample_string(
        &mut self,
        plan: &ValuePlan,
        context: ValueContext,
    ) -> Result<String, SampleFailure> {
        let schema = self.schema;
        let rules: Vec<&StringRules> =
            plan.facets.iter().filter_map(|&id| schema.schema_node(id).string.as_deref()).collect();
        let at_fault =
            plan.facets.iter().copied().find(|&id| schema.schema_node(id).string.is_some());
        let (min, max) = self.string_length_bounds(&rules, plan, at_fault)?;
        let cap = u64::from(self.limits.max_chars);
        let window = (min as u32, max.unwrap_or(cap).min(cap) as u32);
        self.validator.spend_validation_fuel(window.0 / 16)?;
        let patterns: Vec<&SchemaPattern> =
            rules.iter().filter_map(|r| r.pattern.as_ref()).collect();
        let formats: Vec<&StringFormat> = rules
            .iter()
            .filter_map(|r| r.format.as_ref())
            .filter(|format| format::string_format_generator(&format.name).is_some())
            .collect();
        let encoded = rules.iter().find(|r| r.base64 || r.json);
        if patterns.is_empty() && formats.is_empty() && encoded.is_none() {
            return Ok(self.plausible_text(plan, context, window));
        }
        for attempt in 0..MAX_STRING_TRIES {
            self.validator.spend_validation_fuel(2)?;
            let candidate = if attempt == 0 && !patterns.is_empty() {
                // A real word that matches is preferred.
                Some(self.plausible_text(plan, context, window))
            } else if let Some(rules) = encoded {
                Some(self.sample_encoded_content(rules))
            } else {
                self.candidate_string(&patterns, &formats, attempt, window)
            };
            let Some(text) = candidate else { continue };
            let text =
                if attempt >= SPLICE_FROM_ATTEMPT && !formats.is_empty() && !patterns.is_empty() {
                    self.splice_pattern_into_format(&patterns, &formats, window)?.unwrap_or(text)
                } else {
                    text
                };
            let length = text.chars().count() as u64;
            self.validator.spend_validation_fuel(length as u32 / 64)?;
            if length < min || max.is_some_and(|max| length > max) {
                continue;
            }
            let sure = attempt > 0
                && formats.is_empty()
                && matches!(patterns.as_slice(), [only] if only.generates_only_matches());
            if sure || self.matches_patterns_and_formats(&patterns, &formats, &text)? {
                return Ok(text);
            }
        }
        let asked: Vec<String> = patterns
            .iter()
            .map(|p| format!("pattern {:?}", p.pattern_source()))
            .chain(formats.iter().map(|f| format!("format {:?}", f.name)))
            .collect();
        let asked = asked.join(" and ");
        self.record_sample_failure(
            at_fault,
            match max {
                Some(max) => format!("no string of {min} to {max} characters has {asked}"),
                None => format!("no string of at least {min} characters has {asked}"),
            },
        )
    }

    /// Returns the minimum length of a string and, if any, its maximum length, in characters.
    fn string_length_bounds(
        &mut self,
        rules: &[&StringRules],
        plan: &ValuePlan,
        at_fault: Option<SchemaNodeId>,
    ) -> Result<(u64, Option<u64>), SampleFailure> {
        let (least, most) = plan.bounds.length;
        let min = rules.iter().map(|r| r.min).max().unwrap_or(0).max(least);
        let most = Some(most).filter(|&most| most < u64::MAX);
        let max = rules.iter().filter_map(|r| r.max).chain(most).min();
        if let Some(max) = max.filter(|&max| min > max) {
            return self.record_sample_failure(
                at_fault,
                format!("minLength ({min}) is greater than maxLength ({max})"),
            );
        }
        if min > u64::from(self.limits.max_chars) {
            return self.record_sample_failure(
                at_fault,
                format!("minLength ({min}) is more than a reply can hold"),
            );
        }
        Ok((min, max))
    }

    fn matches_patterns_and_formats(
        &self,
        patterns: &[&SchemaPattern],
        formats: &[&StringFormat],
        text: &str,
    ) -> Result<bool, SampleFailure> {
        let work = patterns.iter().map(|pattern| pattern.match_cost_steps(text));
        self.validator
            .spend_validation_fuel(work.fold(formats.len() as u32, u32::saturating_add))?;
        Ok(formats.iter().all(|f| f.is_match(text)) && patterns.iter().all(|p| p.is_match(text)))
    }

    fn candidate_string(
        &mut self,
        patterns: &[&SchemaPattern],
        formats: &[&StringFormat],
        attempt: u32,
        (low, high): (u32, u32),
    ) -> Option<String> {
        let by_format = !formats.is_empty() && (patterns.is_empty() || attempt % 2 == 1);
        if by_format {
            let format = formats[attempt as usize % formats.len()];
            let generate = format::string_format_generator(&format.name)?;
            return Some(generate(low, high, self.rng));
        }
        if patterns.len() > 1 && attempt % 3 == 2 {
            let mut sorted = patterns.to_vec();
            sorted.sort_by_key(|pattern| pattern.order_in_pattern_concatenation());
            return sorted.iter().map(|pattern| pattern.sample_string(0, high, self.rng)).collect();
        }
        let pattern = patterns[attempt as usize % patterns.len()];
        pattern.sample_string(low, high, self.rng)
    }

    /// Inserts a match of a `pattern` into a string of a `format`: at the start, at the end, or
    /// inside.
    fn splice_pattern_into_format(
        &mut self,
        patterns: &[&SchemaPattern],
        formats: &[&StringFormat],
        (low, high): (u32, u32),
    ) -> Result<Option<String>, SampleFailure> {
        let over = patterns[self.random_below(patterns.len())].sample_string(0, high, self.rng);
        let format = formats[self.random_below(formats.len())];
        let generate = format::string_format_generator(&format.name);
        let base = generate.map(|generate| generate(low, high, self.rng));
        let (Some(over), Some(base)) = (over, base) else {
            return Ok(None);
        };
        self.validator.spend_validation_fuel(base.len() as u32)?;
        let cuts: Vec<usize> = base.char_indices().map(|(at, _)| at).collect();
        let inside = |at: usize| {
            let rest = base.get(at + over.len()..).unwrap_or_default();
            format!("{}{over}{rest}", &base[..at])
        };
        let candidates = cuts.iter().flat_map(|&at| {
            let (head, tail) = base.split_at(at);
            [format!("{over}{tail}"), format!("{head}{over}"), inside(at)]
        });
        for text in candidates {
            if self.matches_patterns_and_formats(patterns, formats, &text)? {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    fn sample_encoded_content(&mut self, rules: &StringRules) -> String {
        let word = words::random_word(self.rng);
        let inner = if rules.json { format!("{{\"value\": \"{word}\"}}") } else { word.to_owned() };
        if rules.base64 { STANDARD.encode(inner) } else { inner }
    }

    /// Returns plausible text of `low..=high` characters for a JSON field.
    fn plausible_text(
        &mut self,
        plan: &ValuePlan,
        context: ValueContext,
        (low, high): (u32, u32),
    ) -> String {
        let fits = |text: &str| {
            let length = text.chars().count();
            length >= low as usize && length <= high as usize
        };
        let schema = self.schema;
        let example = plan
            .facets
            .iter()
            .find_map(|&id| schema.schema_node(id).hints.as_ref()?.example.as_deref());
        if let Some(example) = example.filter(|example| fits(example))
            && self.random_chance(50)
        {
            return example.to_owned();
        }
        let semantic_type = context.semantic_type.or_else(|| self.semantic_type(plan));
        if self.spread {
            let numbered = format!(
                "{} {}",
                random_phrase(semantic_type, self.rng),
                self.rng.draw_u64_between(2, 9999)
            );
            if fits(&numbered) {
                return numbered;
            }
            let short = self.rng.draw_u64_between(0, 99_999).to_string();
            return fit_to_length(short, low, high, self.rng);
        }
        for _ in 0..6 {
            let phrase = random_phrase(semantic_type, self.rng);
            if fits(phrase) {
                return phrase.to_owned();
            }
        }
        fit_to_length(random_phrase(semantic_type, self.rng).to_owned(), low, high, self.rng)
    }
}

fn fit_to_length(
    mut text: String,
    low: u32,
    high: u32,
    rng: &mut rand_chacha::ChaCha8Rng,
) -> String {
    let mut length = text.chars().count();
    if length < low as usize {
        let target =
            rng.draw_u64_between(u64::from(low), u64::from(high.min(low.saturating_add(12))));
        while length < target as usize {
            let more = random_sentence(rng);
            text.push(' ');
            text.push_str(more);
            length += 1 + more.chars().count();
        }
        if length > target as usize {
            text = text.chars().take(target as usize).collect();
        }
        if text.ends_with(' ') {
            text.pop();
            text.push('.');
        }
    } else if length > high as usize {
        text = text.chars().take(high as usize).collect();
        if text.ends_with(' ') {
            text.pop();
            text.push('.');
        }
    }
    text
}
