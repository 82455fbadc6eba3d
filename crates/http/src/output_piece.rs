//! Parts of a reply's output for a stream event or a whole response.

use vllm_sim_service::ReplyChoice;
use vllm_sim_service::generate::{OutputChannel, OutputToken};

/// Consecutive output tokens of a choice, with their text.
#[derive(Default)]
pub(crate) struct OutputPiece {
    /// Ids of the output tokens.
    pub(crate) ids: Vec<u32>,
    /// Text of the output tokens, without markers such as the end of reasoning.
    pub(crate) text: String,
    /// Position of the first of the tokens in the output of the choice.
    pub(crate) from: usize,
}

impl OutputPiece {
    /// Returns all output tokens that the engine has released for a choice.
    pub(crate) fn released_output(choice: &ReplyChoice) -> Self {
        let mut piece = Self::default();
        piece.extend(choice.script.output_tokens().take(choice.released_tokens() as usize));
        piece
    }

    /// Appends the output tokens of a stream step.
    pub(crate) fn push_step(&mut self, choice: &mut ReplyChoice, tokens: u32) {
        self.extend(choice.script.next_tokens(&mut choice.cursor, tokens));
    }

    fn extend<'a>(&mut self, tokens: impl Iterator<Item = OutputToken<'a>>) {
        for token in tokens {
            self.ids.push(token.id);
            if token.channel != OutputChannel::Marker {
                self.text.push_str(token.text);
            }
        }
    }
}
