//! Distributions of prompt and output lengths.

use std::path::Path;
use std::str::FromStr;

use crate::workload::MAX_PROMPT_OR_OUTPUT_TOKENS;
use vllm_sim_random::DrawRandom;

/// Distribution of prompt or output lengths, in tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenLengthDistribution {
    /// Constant length: every prompt or output has this number of tokens.
    Constant(u32),
    /// Uniform distribution between two lengths in tokens, inclusive.
    Uniform(u32, u32),
    /// Normal distribution of lengths, clamped to a range.
    Normal {
        /// Mean of the normal distribution of lengths, in tokens.
        mean: f64,
        /// Standard deviation of the normal distribution of lengths, in tokens.
        std_dev: f64,
        /// Minimum and maximum length of a prompt or output, in tokens.
        range: (u32, u32),
    },
    /// Log-normal distribution; mean and deviation are those of the lengths, not of their
    /// logarithms.
    LogNormal {
        /// Mean of the log-normally distributed lengths, in tokens.
        mean: f64,
        /// Standard deviation of the log-normally distributed lengths, in tokens.
        std_dev: f64,
        /// Minimum and maximum length of a prompt or output, in tokens.
        range: (u32, u32),
    },
    /// Histogram: lengths in tokens, each with its cumulative weight.
    Histogram(Vec<(u32, f64)>),
}

impl TokenLengthDistribution {
    /// Draws one random length in tokens, at least `min_tokens`.
    pub fn draw_tokens(&self, rng: &mut impl DrawRandom, min_tokens: u32) -> u32 {
        let within = |x: f64, range: &(u32, u32)| (x.round() as u32).clamp(range.0, range.1);
        let length = match self {
            Self::Constant(n) => *n,
            Self::Uniform(low, high) => rng.draw_u64_between((*low).into(), (*high).into()) as u32,
            Self::Normal { mean, std_dev, range } => {
                within(mean + std_dev * rng.draw_standard_normal(), range)
            }
            Self::LogNormal { mean, std_dev, range } => {
                let variance = (1.0 + (std_dev / mean).powi(2)).ln();
                let location = mean.ln() - variance / 2.0;
                within((location + variance.sqrt() * rng.draw_standard_normal()).exp(), range)
            }
            Self::Histogram(bins) => {
                let total = bins.last().map_or(0.0, |(_, sum)| *sum);
                let at = rng.draw_unit_f64() * total;
                let bin = bins.partition_point(|(_, sum)| *sum <= at);
                bins.get(bin.min(bins.len().saturating_sub(1))).map_or(min_tokens, |(n, _)| *n)
            }
        };
        length.max(min_tokens)
    }

    /// Returns the length in tokens if all lengths of the distribution are equal.
    pub fn constant_tokens(&self) -> Option<u32> {
        match self {
            Self::Constant(n) => Some(*n),
            _ => None,
        }
    }

    /// Reads a histogram of lengths from lines of `LENGTH` or `LENGTH,WEIGHT` (`#` begins a
    /// comment).
    ///
    /// # Errors
    /// Returns a message with the unreadable line.
    pub fn read_length_histogram(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
        let (mut bins, mut sum) = (Vec::new(), 0.0);
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let (length, weight) = line.split_once([',', '\t', ' ']).unwrap_or((line, "1"));
            let length =
                parse_token_count(length).map_err(|e| format!("{shown}:{}: {e}", i + 1))?;
            let weight: Option<f64> = weight.trim().parse().ok();
            let weight = weight.filter(|w| w.is_finite() && *w >= 0.0);
            sum += weight.ok_or_else(|| {
                format!("{shown}:{}: weight must be a number of 0 or more", i + 1)
            })?;
            bins.push((length, sum));
        }
        if sum <= 0.0 {
            return Err(format!("{shown}: has no length with a weight above 0"));
        }
        Ok(Self::Histogram(bins))
    }
}

fn parse_token_count(text: &str) -> Result<u32, String> {
    let n: Option<u32> = text.trim().parse().ok();
    n.filter(|n| u64::from(*n) <= MAX_PROMPT_OR_OUTPUT_TOKENS).ok_or_else(|| {
        format!("{text:?} is not a whole number from 0 to {MAX_PROMPT_OR_OUTPUT_TOKENS}")
    })
}

/// Parses a distribution of lengths: `N`, `uniform:LOW:HIGH`, `normal:MEAN:STD[:MIN:MAX]`,
/// `lognormal:MEAN:STD[:MIN:MAX]` or `histogram:FILE`.
impl FromStr for TokenLengthDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("histogram:") {
            return Self::read_length_histogram(Path::new(path));
        }
        let (kind, rest) = text.split_once(':').unwrap_or(("constant", text));
        let parts: Vec<&str> = rest.split(':').collect();
        let number = |part: &str| {
            let n: Option<f64> = part.trim().parse().ok();
            n.filter(|n| n.is_finite() && *n >= 0.0)
                .ok_or_else(|| format!("{part:?} in {text:?} is not a number of 0 or more"))
        };
        let range = |parts: &[&str]| -> Result<(u32, u32), String> {
            let (low, high) = match parts {
                [] => (1, MAX_PROMPT_OR_OUTPUT_TOKENS as u32),
                [low, high] => (parse_token_count(low)?, parse_token_count(high)?),
                _ => return Err(format!("{text:?} must have both MIN and MAX, or neither")),
            };
            if low > high {
                return Err(format!("{text:?} has a MIN above its MAX"));
            }
            Ok((low, high))
        };
        match (kind, &parts[..]) {
            ("constant", [n]) => Ok(Self::Constant(parse_token_count(n)?)),
            ("uniform", [_, _]) => range(&parts).map(|(low, high)| Self::Uniform(low, high)),
            ("normal", [mean, std_dev, rest @ ..]) => Ok(Self::Normal {
                mean: number(mean)?,
                std_dev: number(std_dev)?,
                range: range(rest)?,
            }),
            ("lognormal", [mean, std_dev, rest @ ..]) => {
                let mean_ = number(mean)?;
                if mean_ == 0.0 {
                    return Err(format!("the mean of {text:?} must be above 0"));
                }
                Ok(Self::LogNormal { mean: mean_, std_dev: number(std_dev)?, range: range(rest)? })
            }
            _ => Err(format!(
                "{text:?} is not known, must be N, uniform:LOW:HIGH, normal:MEAN:STD[:MIN:MAX], \
                 lognormal:MEAN:STD[:MIN:MAX] or histogram:FILE"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_random::{RandomStreamPurpose, request_rng};

    fn mean(lengths: &str) -> f64 {
        let lengths: TokenLengthDistribution = lengths.parse().expect("is known");
        let mut rng = request_rng(1, 2, RandomStreamPurpose::Workload);
        (0..20_000).map(|_| f64::from(lengths.draw_tokens(&mut rng, 0))).sum::<f64>() / 20_000.0
    }

    #[test]
    fn every_distribution_has_the_given_mean() {
        assert_eq!(mean("17"), 17.0);
        assert!((mean("uniform:10:20") - 15.0).abs() < 0.1);
        assert!((mean("normal:500:50") - 500.0).abs() < 2.0);
        assert!((mean("lognormal:500:400") - 500.0).abs() < 12.0);
        assert!(mean("normal:500:50:1:10") <= 10.0);
    }

    #[test]
    fn bad_lengths_are_errors() {
        for (text, part) in [
            ("normal:5", "is not known"),
            ("uniform:9:3", "MIN above its MAX"),
            ("lognormal:0:1", "must be above 0"),
            ("abc", "not a whole number"),
            ("normal:x:1", "not a number"),
        ] {
            let error = text.parse::<TokenLengthDistribution>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
