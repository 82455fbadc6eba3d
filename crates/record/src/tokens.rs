//! Converts the text of a recorded choice to tokens: id, text and time of each.

use std::time::Duration;

use serde_json::Value;

use super::exchange::{RecordedApi, RecordedChoice, RecordedResponseDelivery, TimedTextPiece};
use vllm_sim_service::prompt::{to_template_messages, to_unvalidated_messages};
use vllm_sim_tokenizer::{ChatTemplateInput, SpecialTokenHandling, Tokenizer};
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::{CompletionPrompt, CompletionRequest};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RecordedReplyTokens {
    pub(super) ids: Vec<u32>,
    pub(super) texts: Vec<String>,
    pub(super) times: Vec<Duration>,
    /// Number of leading tokens of the reply that are reasoning content.
    pub(super) reasoning: u32,
}

impl RecordedReplyTokens {
    /// Converts a recorded choice to tokens; `counted` is the number of its tokens in `usage`.
    ///
    /// - A streamed piece is one token if there are about as many pieces as tokens. Otherwise the
    ///   tokenizer splits it, and its tokens share the time of the piece.
    /// - The tokens of a reply in one body are spread evenly over its duration.
    /// - Tokens without text are added for the end of reasoning and the end of the reply.
    pub(super) fn from_choice(
        choice: &RecordedChoice,
        delivery: RecordedResponseDelivery,
        counted: Option<u64>,
        tokenizer: &Tokenizer,
    ) -> Self {
        let streamed = delivery == RecordedResponseDelivery::Streamed;
        let has_ids = choice.pieces.iter().any(|piece| !piece.ids.is_empty());
        let thinks =
            !has_ids && choice.pieces.windows(2).any(|p| p[0].reasoning && !p[1].reasoning);
        let ends = choice.finish.as_deref() == Some("stop") && !choice.stopped;
        let eos = tokenizer.eos_token_id().filter(|_| ends);
        let silent = u64::from(thinks) + u64::from(eos.is_some());
        let pieces = choice.pieces.len() as u64;
        // A stop string may hide one more token.
        let each = streamed && counted.is_some_and(|n| (pieces..=pieces + silent + 1).contains(&n));
        let mut tokens = Self::default();
        for piece in &choice.pieces {
            tokens.push_text(piece, each, tokenizer);
        }
        if let Some(counted) = counted.filter(|_| !each && !has_ids) {
            tokens.match_token_count(counted.saturating_sub(silent), tokenizer);
        }
        let mut lacking = match counted {
            Some(counted) => counted.saturating_sub(tokens.ids.len() as u64),
            None => silent,
        };
        if thinks && lacking > 0 && tokens.reasoning > 0 {
            let at = tokens.reasoning as usize;
            let end = tokenizer.token_id_of_entry("</think>").unwrap_or_default();
            tokens.ids.insert(at, end);
            tokens.texts.insert(at, String::new());
            tokens.times.insert(at, tokens.times[at - 1]);
            lacking -= 1;
        }
        let eos = eos.filter(|eos| lacking > 0 && tokens.ids.last() != Some(eos));
        let hidden = if each { lacking - u64::from(eos.is_some()) } else { 0 };
        for id in (0..hidden).map(|_| 0).chain(eos) {
            tokens.ids.push(id);
            tokens.texts.push(String::new());
            tokens.times.push(choice.ended);
        }
        if !streamed {
            let count = tokens.ids.len() as u32;
            for (index, time) in tokens.times.iter_mut().enumerate() {
                *time = choice.ended * (index as u32 + 1) / count;
            }
        }
        tokens
    }

    /// Appends the tokens of a piece of a reply's text; with `each`, the whole piece is one token.
    fn push_text(&mut self, piece: &TimedTextPiece, each: bool, tokenizer: &Tokenizer) {
        let before = self.ids.len();
        if piece.ids.is_empty() {
            let fragments = tokenizer.tokenize_with_text(&piece.text);
            if each {
                let id = fragments.ids.first().copied().unwrap_or_default();
                self.ids.push(id);
                self.texts.push(piece.text.clone());
            } else {
                let texts = (0..fragments.ids.len()).map(|i| fragments.fragment_text(i).to_owned());
                self.texts.extend(texts);
                self.ids.extend(fragments.ids);
            }
        } else {
            // The text is complete with the last token.
            self.ids.extend_from_slice(&piece.ids);
            self.texts.resize(self.ids.len() - 1, String::new());
            self.texts.push(piece.text.clone());
        }
        self.times.resize(self.ids.len(), piece.at);
        if piece.reasoning {
            self.reasoning += (self.ids.len() - before) as u32;
        }
    }

    /// Splits or merges the choice's tokens until their number is `counted`; the text stays the
    /// same.
    ///
    /// The tokenizer does not always split a text as the model did.
    fn match_token_count(&mut self, counted: u64, tokenizer: &Tokenizer) {
        let id = |text: &str| {
            tokenizer
                .encode(text, SpecialTokenHandling::Without)
                .first()
                .copied()
                .unwrap_or_default()
        };
        let most = self.texts.iter().map(|text| text.len() as u64).sum::<u64>();
        let counted = counted.clamp(1, most.max(1)) as usize;
        while self.ids.len() > counted {
            let (Some(text), Some(_)) = (self.texts.pop(), self.ids.pop()) else {
                return;
            };
            self.times.pop();
            if let Some(last) = self.texts.last_mut() {
                last.push_str(&text);
            }
        }
        let mut at = 0;
        while self.ids.len() < counted {
            // Split off trailing spaces first, then halve the longest token.
            let blank = |text: &String| !text.trim_end().is_empty() && text.ends_with(' ');
            let found = self.texts[at..].iter().position(blank).map(|i| at + i);
            let longest = || (0..self.texts.len()).max_by_key(|i| self.texts[*i].chars().count());
            let Some(index) = found.or_else(longest) else {
                return;
            };
            let text = &self.texts[index];
            let middle = text.chars().count() / 2;
            let middle = text.char_indices().nth(middle).map_or(0, |(place, _)| place);
            let place = match found {
                Some(_) => text.trim_end().len(),
                None => middle,
            };
            if place == 0 {
                return;
            }
            let tail = self.texts[index].split_off(place);
            self.ids[index] = id(&self.texts[index]);
            self.ids.insert(index + 1, id(&tail));
            self.texts.insert(index + 1, tail);
            self.times.insert(index + 1, self.times[index]);
            at = found.map_or(self.texts.len(), |index| index + 2);
        }
        self.reasoning = self.reasoning.min(self.ids.len() as u32);
    }
}

/// Returns the token ids of a request's prompts, as a server of the same model computes them.
///
/// # Errors
/// Returns the reason if the prompts cannot be determined.
pub(crate) fn prompt_token_ids(
    api: RecordedApi,
    request: &Value,
    tokenizer: &Tokenizer,
) -> Result<Vec<Vec<u32>>, String> {
    if !request["truncate_prompt_tokens"].is_null() {
        return Err("the request truncates its prompt".to_owned());
    }
    match api {
        RecordedApi::Completions => {
            let parsed =
                CompletionRequest::parse_completion_request(request, &RequestBounds::default())
                    .map_err(|fault| fault.message)?;
            if parsed.echo.unwrap_or(false) {
                return Err("the response repeats its prompt".to_owned());
            }
            let special = parsed.add_special_tokens;
            let prompts = parsed.prompt.unwrap_or_default().0.into_iter();
            let tokens = prompts.map(|prompt| match prompt {
                CompletionPrompt::Text(text) => {
                    tokenizer.encode(&text, SpecialTokenHandling::from_bool(special))
                }
                CompletionPrompt::Tokens(ids) => {
                    ids.into_iter().map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect()
                }
            });
            Ok(tokens.collect())
        }
        RecordedApi::Chat => chat_prompt_token_ids(request, tokenizer).map(|prompt| vec![prompt]),
    }
}

fn chat_prompt_token_ids(request: &Value, tokenizer: &Tokenizer) -> Result<Vec<u32>, String> {
    let request = ChatRequest::parse_chat_request(request, &RequestBounds::default())
        .map_err(|fault| fault.message)?;
    let template = request.chat_template.as_deref();
    let model = request.model.as_deref().unwrap_or_default();
    // Content other than text is passed to the template as it is.
    let messages = to_template_messages(&request.messages, model)
        .unwrap_or_else(|_| to_unvalidated_messages(&request.messages));
    let tools: Option<Vec<Value>> = request
        .tools
        .as_ref()
        .filter(|tools| !tools.is_empty())
        .map(|tools| tools.iter().map(|tool| tool.to_template_json()).collect());
    let documents =
        request.documents.as_ref().and_then(|documents| serde_json::to_value(documents).ok());
    let mut kwargs = request.chat_template_kwargs.clone().unwrap_or_default();
    if let Some(effort) = &request.reasoning_effort {
        kwargs.insert("reasoning_effort".to_owned(), effort.clone().into());
    }
    let text = tokenizer.render_chat(&ChatTemplateInput {
        messages: &messages,
        tools: tools.as_deref(),
        documents: documents.as_ref(),
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        chat_template: template,
        kwargs: Some(&kwargs),
        content_format: None,
    });
    let text = text.map_err(|error| error.to_string())?;
    Ok(tokenizer.encode(&text, SpecialTokenHandling::from_bool(request.add_special_tokens)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(pieces: &[(&str, u64)]) -> RecordedChoice {
        let piece = |(text, at): &(&str, u64)| TimedTextPiece {
            text: (*text).to_owned(),
            ids: Vec::new(),
            at: Duration::from_millis(*at),
            reasoning: false,
        };
        RecordedChoice {
            pieces: pieces.iter().map(piece).collect(),
            ended: Duration::from_millis(90),
            ..RecordedChoice::default()
        }
    }

    fn shown(tokens: &RecordedReplyTokens) -> Vec<(&str, u128)> {
        let times = tokens.times.iter().map(Duration::as_millis);
        tokens.texts.iter().map(String::as_str).zip(times).collect()
    }

    #[test]
    fn sse_pieces_are_tokens_if_usage_count_matches() {
        let tokenizer = Tokenizer::new_simulated();
        let choice = choice(&[("One two ", 5), ("three", 9)]);
        let tokens = RecordedReplyTokens::from_choice(
            &choice,
            RecordedResponseDelivery::Streamed,
            Some(2),
            &tokenizer,
        );
        assert_eq!(shown(&tokens), [("One two ", 5), ("three", 9)]);
        let tokens = RecordedReplyTokens::from_choice(
            &choice,
            RecordedResponseDelivery::Streamed,
            Some(3),
            &tokenizer,
        );
        assert_eq!(shown(&tokens), [("One two ", 5), ("three", 9), ("", 90)]);
        let tokens = RecordedReplyTokens::from_choice(
            &choice,
            RecordedResponseDelivery::Streamed,
            Some(5),
            &tokenizer,
        );
        let split = [("One", 5), (" ", 5), ("two", 5), (" ", 5), ("three", 9)];
        assert_eq!(shown(&tokens), split);
        let tokens = RecordedReplyTokens::from_choice(
            &choice,
            RecordedResponseDelivery::Streamed,
            Some(1),
            &tokenizer,
        );
        assert_eq!(shown(&tokens), [("One two three", 5)]);
        let tokens = RecordedReplyTokens::from_choice(
            &choice,
            RecordedResponseDelivery::Streamed,
            Some(99),
            &tokenizer,
        );
        assert_eq!(tokens.texts.concat(), "One two three");
        let tokens = RecordedReplyTokens::from_choice(
            &choice,
            RecordedResponseDelivery::Streamed,
            None,
            &tokenizer,
        );
        assert_eq!(shown(&tokens), [("One ", 5), ("two ", 5), ("three", 9)]);
    }

    #[test]
    fn the_end_of_reasoning_is_a_token_without_text() {
        let tokenizer = Tokenizer::new_simulated();
        let mut choice = choice(&[("Hm ", 5), ("Yes", 9)]);
        choice.pieces[0].reasoning = true;
        for counted in [None, Some(3)] {
            let tokens = RecordedReplyTokens::from_choice(
                &choice,
                RecordedResponseDelivery::Streamed,
                counted,
                &tokenizer,
            );
            assert_eq!(shown(&tokens), [("Hm ", 5), ("", 5), ("Yes", 9)]);
            assert_eq!(tokens.reasoning, 1);
        }
        let tokens = RecordedReplyTokens::from_choice(
            &choice,
            RecordedResponseDelivery::Streamed,
            Some(2),
            &tokenizer,
        );
        assert_eq!(shown(&tokens), [("Hm ", 5), ("Yes", 9)]);
    }

    #[test]
    fn the_tokens_of_a_unary_reply_are_spread_over_its_time() {
        let tokenizer = Tokenizer::new_simulated();
        let tokens = RecordedReplyTokens::from_choice(
            &choice(&[("One two three", 90)]),
            RecordedResponseDelivery::Whole,
            None,
            &tokenizer,
        );
        assert_eq!(shown(&tokens), [("One ", 30), ("two ", 60), ("three", 90)]);
    }
}
