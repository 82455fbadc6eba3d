//! Generates random texts that match a structural tag.

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::format::{StructuralTag, TaggedJsonStyle};
use crate::constraint::ConstraintError;
use crate::json_text::json_to_spaced_text;
use crate::limits::SampleLimits;
use crate::sample;
use crate::schema::{JsonTypes, Schema};
use crate::semantic_type::random_sentence;
use crate::work::WorkBudget;
use vllm_sim_random::DrawRandom;

/// Maximum number of repetitions of a structural tag's repeated format beyond the minimum.
const MAX_EXTRA_REPETITIONS: u32 = 2;

impl StructuralTag {
    /// Generates a random text that matches the structural tag.
    ///
    /// # Errors
    /// [`ConstraintError::TooLong`] if the text is too long, or the error of a nested schema or
    /// grammar.
    pub(crate) fn sample_structural_tag_text(
        &self,
        limits: &SampleLimits,
        rng: &mut ChaCha8Rng,
        work: &mut WorkBudget,
    ) -> Result<String, ConstraintError> {
        let mut writer = TagWriter { limits, rng, work, out: String::new() };
        writer.write_tag(self, &[])?;
        Ok(writer.out)
    }
}

struct TagWriter<'a> {
    limits: &'a SampleLimits,
    rng: &'a mut ChaCha8Rng,
    work: &'a mut WorkBudget,
    out: String,
}

impl TagWriter<'_> {
    /// Appends a random text that matches `tag`; free text in it contains none of `stops`.
    fn write_tag(&mut self, tag: &StructuralTag, stops: &[String]) -> Result<(), ConstraintError> {
        let spent = self.work.spend_steps(1).is_none();
        let max_chars = self.limits.max_chars as usize;
        // A text has at most as many characters as bytes.
        let is_long = self.out.len() > max_chars && self.out.chars().count() > max_chars;
        if spent || is_long {
            return Err(ConstraintError::TooLong(self.limits.max_chars));
        }
        match tag {
            StructuralTag::ConstString(text) => self.out.push_str(text),
            StructuralTag::JsonSchema(schema, style) => self.write_json(schema, *style)?,
            StructuralTag::AnyText { excludes, max_chars } => {
                self.write_free_text(&[excludes, stops], *max_chars)
            }
            StructuralTag::Regex(regex) => {
                let text =
                    regex.sample_fully_matching_text(self.limits.max_chars, self.rng, self.work);
                let long = ConstraintError::TooLong(self.limits.max_chars);
                self.out.push_str(&text.ok_or(long)?);
            }
            StructuralTag::Grammar(grammar) => {
                let text = grammar.sample_grammar_text(self.limits, self.rng, self.work)?;
                self.out.push_str(&text);
            }
            StructuralTag::Sequence(parts) => {
                for part in parts {
                    self.write_tag(part, stops)?;
                }
            }
            StructuralTag::Or(parts) => self.write_one_of(parts, stops)?,
            StructuralTag::Repeat(part, min, max) => {
                let most = max.unwrap_or(u32::MAX).min(min.saturating_add(MAX_EXTRA_REPETITIONS));
                for _ in 0..self.rng.draw_u64_between(u64::from(*min), u64::from(most)) {
                    self.write_tag(part, stops)?;
                }
            }
            StructuralTag::Tag { begin, content, ends } => {
                self.out.push_str(begin);
                self.write_tag(content, ends)?;
                let index = self.rng.draw_u64_between(0, ends.len() as u64 - 1) as usize;
                self.out.push_str(&ends[index]);
            }
            StructuralTag::TriggeredTags { triggers, tags, at_least_one, stop_after_first } => {
                if !at_least_one {
                    self.write_free_text(&[triggers, stops], None);
                }
                let most = if *stop_after_first { 1 } else { 2 };
                let least = u64::from(*at_least_one || self.rng.draw_percent_chance(85));
                for _ in 0..self.rng.draw_u64_between(least, most) {
                    self.write_one_of(tags, stops)?;
                }
            }
            StructuralTag::TagsWithSeparator {
                tags,
                separator,
                at_least_one,
                stop_after_first,
            } => {
                let most = if *stop_after_first { 1 } else { 3 };
                let least = u64::from(*at_least_one || self.rng.draw_percent_chance(85));
                for i in 0..self.rng.draw_u64_between(least, most) {
                    if i > 0 {
                        self.out.push_str(separator);
                    }
                    self.write_one_of(tags, stops)?;
                }
            }
        }
        Ok(())
    }

    fn write_one_of(
        &mut self,
        parts: &[StructuralTag],
        stops: &[String],
    ) -> Result<(), ConstraintError> {
        let index = self.rng.draw_u64_between(0, parts.len() as u64 - 1) as usize;
        self.write_tag(&parts[index], stops)
    }

    fn write_json(
        &mut self,
        schema: &Schema,
        style: TaggedJsonStyle,
    ) -> Result<(), ConstraintError> {
        let want = match style {
            TaggedJsonStyle::Json => JsonTypes::NO_TYPES,
            TaggedJsonStyle::Qwen | TaggedJsonStyle::Minimax | TaggedJsonStyle::Glm => {
                JsonTypes::OBJECT
            }
        };
        let value = sample::sample_value(schema, self.limits, want, self.rng, self.work)?;
        let field_text: Option<fn(&str, &str) -> String> = match style {
            TaggedJsonStyle::Json => None,
            TaggedJsonStyle::Qwen => {
                Some(|name, value| format!("<parameter={name}>{value}</parameter>"))
            }
            TaggedJsonStyle::Minimax => {
                Some(|name, value| format!("<parameter name=\"{name}\">{value}</parameter>"))
            }
            TaggedJsonStyle::Glm => Some(|name, value| {
                format!("<arg_key>{name}</arg_key><arg_value>{value}</arg_value>")
            }),
        };
        let (Some(field_text), Value::Object(map)) = (field_text, &value) else {
            self.out.push_str(&json_to_spaced_text(&value));
            return Ok(());
        };
        for (name, value) in map {
            self.out.push_str(&match value {
                Value::String(text) => field_text(name, text),
                other => field_text(name, &json_to_spaced_text(other)),
            });
        }
        Ok(())
    }

    /// Appends a sentence as free text, unless it contains one of the structural tag's stop strings
    /// or is too long.
    fn write_free_text(&mut self, stops: &[&[String]], max_chars: Option<u64>) {
        let text = format!("{} ", random_sentence(self.rng));
        let stopped = stops
            .iter()
            .copied()
            .flatten()
            .any(|stop| stop.is_empty() || text.contains(stop.as_str()));
        let fits = max_chars.is_none_or(|max| text.chars().count() as u64 <= max);
        if !stopped && fits {
            self.out.push_str(&text);
        }
    }
}
