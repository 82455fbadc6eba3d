//! Truncation of prompts (`truncate_prompt_tokens`).

use vllm_sim_tokenizer::{PlacedMediaItem, SpecialTokenHandling, Tokenizer};
use vllm_sim_wire::ServerLimits;

/// The truncation of a prompt to a number of tokens (`truncate_prompt_tokens`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptTruncation {
    /// Number of prompt tokens to keep; negative keeps `max_model_len - 1`, `None` keeps all.
    pub keep: Option<i64>,
    /// Side of the prompt that is cut.
    pub side: TruncationSide,
    /// Whether truncation keeps the special tokens around the text.
    ///
    /// The tokenizers of vLLM truncate a text before they add special tokens. If the request names a
    /// side, vLLM itself cuts the tokens, special ones too.
    pub special: bool,
}

/// The side of a prompt that truncation cuts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TruncationSide {
    /// Truncation cuts the beginning of the prompt; the default of chat models' tokenizers.
    #[default]
    Left,
    /// Truncation cuts the end of the prompt.
    Right,
}

impl TruncationSide {
    /// Converts a request's `truncation_side`; every value but `right` means left.
    pub fn from_side_name(asked: Option<&str>) -> Self {
        match asked {
            Some("right") => Self::Right,
            _ => Self::Left,
        }
    }
}

impl PromptTruncation {
    /// Truncates the token ids of a prompt.
    pub fn truncate_tokens(
        self,
        tokenizer: &Tokenizer,
        limits: &ServerLimits,
        mut tokens: Vec<u32>,
    ) -> Vec<u32> {
        let most = limits.max_model_len as usize;
        let keep = match self.keep {
            Some(keep) => usize::try_from(keep).unwrap_or(most.saturating_sub(1)),
            None => return tokens,
        };
        if tokens.len() <= keep {
            return tokens;
        }
        let (before, behind) = match self.special {
            true => count_special_around(tokenizer, &tokens),
            false => (0, 0),
        };
        // If not even the special tokens fit, they are truncated like the rest.
        let (before, behind) = match keep >= before + behind {
            true => (before, behind),
            false => (0, 0),
        };
        let cut = tokens.len() - keep;
        match self.side {
            TruncationSide::Right => {
                let end = tokens.len() - behind;
                tokens.drain(end - cut..end);
            }
            TruncationSide::Left => {
                tokens.drain(before..before + cut);
            }
        }
        tokens
    }

    /// Removes the media items that truncation cut from a prompt; truncation removed
    /// `removed_tokens` tokens and kept `remaining_tokens`.
    pub(super) fn truncate_media(
        self,
        media: &mut Vec<PlacedMediaItem>,
        removed_tokens: usize,
        remaining_tokens: usize,
    ) {
        if removed_tokens == 0 {
            return;
        }
        let shift = match self.side {
            TruncationSide::Right => 0,
            TruncationSide::Left => u32::try_from(removed_tokens).unwrap_or(u32::MAX),
        };
        media.retain_mut(|item| {
            let start = item.start.checked_sub(shift);
            let end = start.map(|start| u64::from(start) + u64::from(item.len));
            item.start = start.unwrap_or(0);
            end.is_some_and(|end| end <= remaining_tokens as u64)
        });
    }
}

/// Returns the numbers of special tokens that the tokenizer added before and after a text.
fn count_special_around(tokenizer: &Tokenizer, tokens: &[u32]) -> (usize, usize) {
    let special = tokenizer.encode("", SpecialTokenHandling::With);
    let fits = |at: &usize| {
        let (before, behind) = special.split_at(*at);
        tokens.starts_with(before) && tokens.ends_with(behind)
    };
    let at = (0..=special.len()).rev().find(fits);
    at.map_or((0, 0), |at| (at, special.len() - at))
}
