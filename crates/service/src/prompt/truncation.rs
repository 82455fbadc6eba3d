use vllm_sim_tokenizer::{SpecialTokens, Tokenizer};
use vllm_sim_wire::Limits;

/// The cut of a prompt (`truncate_prompt_tokens`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Truncation {
    /// Tokens that are kept: −1 leaves one for the answer, `None` keeps all.
    pub keep: Option<i64>,
    /// Side that is cut.
    pub side: CutSide,
    /// Whether the tokenizer put special tokens around the text. They stay: upstream cuts a text
    /// before it gets them.
    pub special: bool,
}

/// The side of a prompt that is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CutSide {
    /// The beginning: the side of the tokenizers of chat models.
    #[default]
    Left,
    /// The end.
    Right,
}

impl CutSide {
    /// Returns the side of a request's `truncation_side`.
    pub fn of(asked: Option<&str>) -> Self {
        match asked {
            Some("right") => Self::Right,
            _ => Self::Left,
        }
    }
}

impl Truncation {
    /// Returns as many tokens of a prompt as the request keeps.
    pub fn apply(self, tokenizer: &Tokenizer, limits: &Limits, mut tokens: Vec<u32>) -> Vec<u32> {
        let most = limits.max_model_len as usize;
        let keep = match self.keep {
            Some(keep) => usize::try_from(keep).unwrap_or(most.saturating_sub(1)),
            None => return tokens,
        };
        if tokens.len() <= keep {
            return tokens;
        }
        let (before, behind) = match self.special {
            true => special_around(tokenizer, &tokens),
            false => (0, 0),
        };
        // Fewer tokens than special ones: these alone cannot be kept.
        let (before, behind) = match keep >= before + behind {
            true => (before, behind),
            false => (0, 0),
        };
        let cut = tokens.len() - keep;
        match self.side {
            CutSide::Right => {
                let end = tokens.len() - behind;
                tokens.drain(end - cut..end);
            }
            CutSide::Left => {
                tokens.drain(before..before + cut);
            }
        }
        tokens
    }
}

/// Returns how many special tokens stand before and behind a text.
fn special_around(tokenizer: &Tokenizer, tokens: &[u32]) -> (usize, usize) {
    let special = tokenizer.encode("", SpecialTokens::With);
    let fits = |at: &usize| {
        let (before, behind) = special.split_at(*at);
        tokens.starts_with(before) && tokens.ends_with(behind)
    };
    let at = (0..=special.len()).rev().find(fits);
    at.map_or((0, 0), |at| (at, special.len() - at))
}
