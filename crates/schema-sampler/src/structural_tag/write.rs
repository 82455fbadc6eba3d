//! Generates random texts that match a structural tag.

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::format::{JsonStyle, StructuralTag};
use crate::constraint::ConstraintError;
use crate::json_text::print;
use crate::limits::Limits;
use crate::sample;
use crate::schema::{JsonTypes, Schema};
use crate::semantic_type::sentence;
use crate::work::WorkBudget;
use vllm_sim_random::Draw;

/// Maximum number of repetitions of a repeated format beyond its minimum.
const EXTRA: u32 = 2;

impl StructuralTag {
    /// Generates a random text that matches the structural tag.
    ///
    /// # Errors
    /// [`ConstraintError::TooLong`] if the text is too long, or the error of a nested schema or
    /// grammar.
    pub(crate) fn sample(
        &self,
        limits: &Limits,
        rng: &mut ChaCha8Rng,
        work: &mut WorkBudget,
    ) -> Result<String, ConstraintError> {
        let mut writer = TagWriter {
            limits,
            rng,
            work,
            out: String::new(),
        };
        writer.write(self, &[])?;
        Ok(writer.out)
    }
}

struct TagWriter<'a> {
    limits: &'a Limits,
    rng: &'a mut ChaCha8Rng,
    work: &'a mut WorkBudget,
    out: String,
}

impl TagWriter<'_> {
    /// Appends a random text that matches `tag`; free text in it contains none of `stops`.
    fn write(&mut self, tag: &StructuralTag, stops: &[String]) -> Result<(), ConstraintError> {
        let spent = self.work.spend(1).is_none();
        let max_chars = self.limits.max_chars as usize;
        // A text has at most as many characters as bytes.
        let is_long = self.out.len() > max_chars && self.out.chars().count() > max_chars;
        if spent || is_long {
            return Err(ConstraintError::TooLong(self.limits.max_chars));
        }
        match tag {
            StructuralTag::ConstString(text) => self.out.push_str(text),
            StructuralTag::JsonSchema(schema, style) => self.json(schema, *style)?,
            StructuralTag::AnyText {
                excludes,
                max_chars,
            } => self.free(&[excludes, stops], *max_chars),
            StructuralTag::Regex(regex) => {
                let text = regex.sample(self.limits.max_chars, self.rng, self.work);
                let long = ConstraintError::TooLong(self.limits.max_chars);
                self.out.push_str(&text.ok_or(long)?);
            }
            StructuralTag::Grammar(grammar) => {
                let text = grammar.sample(self.limits, self.rng, self.work)?;
                self.out.push_str(&text);
            }
            StructuralTag::Sequence(parts) => {
                for part in parts {
                    self.write(part, stops)?;
                }
            }
            StructuralTag::Or(parts) => self.one_of(parts, stops)?,
            StructuralTag::Repeat(part, min, max) => {
                let most = max.unwrap_or(u32::MAX).min(min.saturating_add(EXTRA));
                for _ in 0..self.rng.between(u64::from(*min), u64::from(most)) {
                    self.write(part, stops)?;
                }
            }
            StructuralTag::Tag {
                begin,
                content,
                ends,
            } => {
                self.out.push_str(begin);
                self.write(content, ends)?;
                let index = self.rng.between(0, ends.len() as u64 - 1) as usize;
                self.out.push_str(&ends[index]);
            }
            StructuralTag::TriggeredTags {
                triggers,
                tags,
                at_least_one,
                stop_after_first,
            } => {
                if !at_least_one {
                    self.free(&[triggers, stops], None);
                }
                let most = if *stop_after_first { 1 } else { 2 };
                let least = u64::from(*at_least_one || self.rng.percent(85));
                for _ in 0..self.rng.between(least, most) {
                    self.one_of(tags, stops)?;
                }
            }
            StructuralTag::TagsWithSeparator {
                tags,
                separator,
                at_least_one,
                stop_after_first,
            } => {
                let most = if *stop_after_first { 1 } else { 3 };
                let least = u64::from(*at_least_one || self.rng.percent(85));
                for i in 0..self.rng.between(least, most) {
                    if i > 0 {
                        self.out.push_str(separator);
                    }
                    self.one_of(tags, stops)?;
                }
            }
        }
        Ok(())
    }

    fn one_of(&mut self, parts: &[StructuralTag], stops: &[String]) -> Result<(), ConstraintError> {
        let index = self.rng.between(0, parts.len() as u64 - 1) as usize;
        self.write(&parts[index], stops)
    }

    fn json(&mut self, schema: &Schema, style: JsonStyle) -> Result<(), ConstraintError> {
        let want = match style {
            JsonStyle::Json => JsonTypes::NONE,
            JsonStyle::Qwen | JsonStyle::Minimax | JsonStyle::Glm => JsonTypes::OBJECT,
        };
        let value = sample::sample(schema, self.limits, want, self.rng, self.work)?;
        let Value::Object(map) = &value else {
            self.out.push_str(&print(&value));
            return Ok(());
        };
        let plain = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => print(other),
        };
        for (name, inner) in map {
            let inner = plain(inner);
            match style {
                JsonStyle::Json => {
                    self.out.push_str(&print(&value));
                    return Ok(());
                }
                JsonStyle::Qwen => {
                    let text = format!("<parameter={name}>{inner}</parameter>");
                    self.out.push_str(&text);
                }
                JsonStyle::Minimax => {
                    let text = format!("<parameter name=\"{name}\">{inner}</parameter>");
                    self.out.push_str(&text);
                }
                JsonStyle::Glm => {
                    let text = format!("<arg_key>{name}</arg_key><arg_value>{inner}</arg_value>");
                    self.out.push_str(&text);
                }
            }
        }
        if map.is_empty() && matches!(style, JsonStyle::Json) {
            self.out.push_str("{}");
        }
        Ok(())
    }

    /// Appends a sentence that contains none of the stop strings, or nothing.
    fn free(&mut self, stops: &[&[String]], max_chars: Option<u64>) {
        let text = format!("{} ", sentence(self.rng));
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
