//! Server settings against which requests are checked.

use super::fault::{ErrorType, Fault};
use super::version::VllmVersion;

/// Limits and switches of a server for request checks; defaults are vLLM's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Context length of the model, in tokens.
    pub max_model_len: u32,
    /// Maximum number of log probabilities per token that a request may ask for; -1 for the whole
    /// vocabulary.
    pub max_logprobs: i64,
    /// Vocabulary size of the model, in tokens; `None` accepts any token id.
    pub vocab_size: Option<u32>,
    /// Whether the server has a tool parser (`--tool-call-parser`).
    pub has_tool_parser: bool,
    /// Whether the server allows `tool_choice: auto` (`--enable-auto-tool-choice`).
    pub auto_tool_choice: bool,
    /// Whether the server has a reasoning parser (`--reasoning-parser` or `--reasoning-config`).
    pub reasoning_parser: bool,
    /// Whether requests may contain their own chat template.
    pub trust_request_chat_template: bool,
    /// Whether requests may contain arguments for the multimodal processor and media decoding.
    pub trust_request_mm_kwargs: bool,
    /// Whether requests may contain prompt embeddings (`--enable-prompt-embeds`).
    pub prompt_embeds: bool,
    /// Whether speculative decoding is enabled.
    pub speculative: bool,
    /// Number of data-parallel ranks that a request may select.
    pub data_parallel_ranks: u32,
    /// The served model name that responses show.
    pub served_name: String,
    /// vLLM release to imitate.
    pub version: VllmVersion,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_model_len: 32_768,
            max_logprobs: 20,
            vocab_size: None,
            has_tool_parser: false,
            auto_tool_choice: false,
            reasoning_parser: false,
            trust_request_chat_template: false,
            trust_request_mm_kwargs: false,
            prompt_embeds: false,
            speculative: false,
            data_parallel_ranks: 1,
            served_name: String::new(),
            version: VllmVersion::default(),
        }
    }
}

impl ServerLimits {
    /// Rejects a prompt that exceeds the context length.
    ///
    /// The prompt has `tokens` tokens. vLLM stops counting at one more than the limit, so the
    /// message then contains "at least".
    ///
    /// # Errors
    /// A 400 with `param` `input_tokens`.
    pub fn check_prompt_tokens(&self, tokens: usize) -> Result<(), Fault> {
        let limit = self.max_model_len as usize;
        if tokens <= limit {
            return Ok(());
        }
        if self.version < VllmVersion::V032 {
            return Err(self.prompt_and_output_too_long(tokens, 0));
        }
        let at_least = if tokens == limit + 1 { "at least " } else { "" };
        Err(Fault::invalid_value_fault(
            format_args!(
                "This model's maximum context length is {limit} tokens. However, your prompt \
                 contains {at_least}{tokens} input tokens, which exceeds this limit even \
                 without any output tokens. Please reduce the length of the input prompt."
            ),
            "input_tokens",
            tokens,
        ))
    }

    /// Rejects a prompt that leaves less room than the requested output, as vLLM up to 0.31 does;
    /// newer releases shorten the output.
    ///
    /// # Errors
    /// A 400 with `param` `input_tokens`.
    pub fn check_prompt_and_output_tokens(
        &self,
        prompt: usize,
        output: Option<i128>,
    ) -> Result<(), Fault> {
        let limit = self.max_model_len as usize;
        let output = usize::try_from(output.unwrap_or(0)).unwrap_or(0).min(limit);
        // The tokenizer stops one token after those that fit.
        let counted = prompt.min(limit - output + 1);
        match self.version < VllmVersion::V032 && prompt > limit - output {
            true => Err(self.prompt_and_output_too_long(counted, output)),
            false => Ok(()),
        }
    }

    /// Returns the error for a prompt that exceeds the context length together with the requested
    /// output.
    ///
    /// **Source:** vLLM 0.31 `vllm/renderers/params.py`, `_token_len_check`.
    fn prompt_and_output_too_long(&self, prompt: usize, output: usize) -> Fault {
        let limit = self.max_model_len as usize;
        let at_least = if prompt == limit - output + 1 { "at least " } else { "" };
        let total = prompt + output;
        Fault::invalid_value_fault(
            format_args!(
                "This model's maximum context length is {limit} tokens. However, you requested \
                 {output} output tokens and your prompt contains {at_least}{prompt} input tokens, \
                 for a total of {at_least}{total} tokens. Please reduce the length of the input \
                 prompt or the number of requested output tokens."
            ),
            "input_tokens",
            prompt,
        )
    }

    /// Rejects a prompt text that is too long for the context with any tokenization.
    ///
    /// The parameter `longest_token` is the length of the longest vocabulary entry, in characters.
    ///
    /// # Errors
    /// A 400 with `param` `input_text`.
    pub fn check_prompt_characters(&self, text: &str, longest_token: usize) -> Result<(), Fault> {
        let limit = self.max_model_len as usize;
        let most = limit.saturating_mul(longest_token);
        if text.len() <= most {
            return Ok(());
        }
        let characters = text.chars().count();
        if characters <= most {
            return Ok(());
        }
        Err(Fault::invalid_value_fault(
            format_args!(
                "This model's maximum context length is {limit} tokens. However, your prompt \
                 contains {characters} characters (more than {most} characters, which is the \
                 upper bound for {limit} input tokens). Please reduce the length of the input \
                 prompt."
            ),
            "input_text",
            characters,
        ))
    }

    /// Rejects a prompt of `/v1/responses` that leaves no room for output.
    ///
    /// The length of the prompt, in tokens, must be below the context length.
    ///
    /// # Errors
    /// A 400 `invalid_request_error` with `param` `input`.
    pub fn check_responses_prompt_tokens(&self, tokens: usize) -> Result<(), Fault> {
        let limit = self.max_model_len as usize;
        if tokens < limit {
            return Ok(());
        }
        Err(Fault {
            param: Some("input".to_owned()),
            ..Fault::new(
                400,
                ErrorType::InvalidRequest,
                format!(
                    "The engine prompt length {tokens} exceeds the max_model_len {limit}. \
                     Please reduce prompt."
                ),
            )
        })
    }

    /// Rejects a request whose output limit or truncation length exceeds the context length.
    ///
    /// `name` is the request field with the output limit. Source: `TokenizeParams.__post_init__`.
    ///
    /// # Errors
    /// A 400 for a limit or truncation above the context length.
    pub fn check_output_and_truncation_limits(
        &self,
        name: &str,
        max_tokens: Option<i128>,
        truncate: Option<i64>,
    ) -> Result<(), Fault> {
        let limit = self.max_model_len;
        if let Some(asked) = max_tokens.filter(|asked| *asked > i128::from(limit)) {
            return Err(Fault::invalid_value_fault(
                format_args!(
                    "{name}={asked} cannot be greater than max_model_len={limit}. Please \
                     request fewer output tokens."
                ),
                name,
                asked,
            ));
        }
        if let Some(asked) = truncate.filter(|asked| *asked > i64::from(limit)) {
            return Err(Fault::invalid_value_fault(
                format_args!(
                    "truncate_prompt_tokens={asked} cannot be greater than max_model_len = \
                     {limit}. Please request a smaller truncation size."
                ),
                "truncate_prompt_tokens",
                asked,
            ));
        }
        Ok(())
    }

    /// Rejects a request for a data-parallel rank that does not exist.
    ///
    /// # Errors
    /// A 400 with vLLM's message.
    pub fn check_data_parallel_rank(&self, rank: Option<i128>) -> Result<(), Fault> {
        let ranks = self.data_parallel_ranks;
        match rank {
            Some(rank) if !(0..i128::from(ranks)).contains(&rank) => Err(Fault::bad_request(
                format!("data_parallel_rank {rank} is out of range [0, {ranks})."),
            )),
            _ => Ok(()),
        }
    }

    /// Rejects an empty prompt and token ids outside the vocabulary.
    ///
    /// # Errors
    /// A 400 for an empty prompt or a token id outside the vocabulary.
    pub fn check_prompt_ids<T: Copy + Ord + Into<i64>>(&self, ids: &[T]) -> Result<(), Fault> {
        let (Some(lowest), Some(highest)) = (ids.iter().min(), ids.iter().max()) else {
            return Err(Fault::bad_request("The decoder prompt cannot be empty"));
        };
        let (lowest, highest): (i64, i64) = ((*lowest).into(), (*highest).into());
        let size = self.vocab_size.map_or(i64::MAX, i64::from);
        let unknown = if lowest < 0 { lowest } else { highest };
        if (0..size).contains(&unknown) {
            return Ok(());
        }
        Err(Fault::bad_request(format!("Token id {unknown} is out of vocabulary")))
    }

    /// Rejects arguments for the multimodal processor and media decoding if clients are untrusted.
    ///
    /// `processor` and `media_io` are the numbers of arguments of each kind.
    ///
    /// # Errors
    /// A 400 that names the request field.
    pub(crate) fn reject_untrusted_mm_kwargs(
        &self,
        processor: usize,
        media_io: usize,
    ) -> Result<(), Fault> {
        if self.trust_request_mm_kwargs {
            return Ok(());
        }
        if processor > 0 {
            return Err(Fault::bad_parameter(
                "Per-request mm_processor_kwargs are disabled by default because they can \
                 change multimodal preprocessing resource usage. Start the server with \
                 --trust-request-mm-kwargs only when clients are trusted.",
                "mm_processor_kwargs",
            ));
        }
        if media_io > 0 {
            return Err(Fault::bad_parameter(
                "Per-request media_io_kwargs are disabled by default because they can change \
                 multimodal media loading resource usage. Start the server with \
                 --trust-request-mm-kwargs only when clients are trusted.",
                "media_io_kwargs",
            ));
        }
        Ok(())
    }

    /// Rejects a chat template in the request if clients are untrusted.
    ///
    /// # Errors
    /// A 400 with vLLM's message.
    pub fn reject_untrusted_template(
        &self,
        template: Option<&str>,
        kwargs: Option<&serde_json::Map<String, serde_json::Value>>,
    ) -> Result<(), Fault> {
        let hidden = kwargs
            .and_then(|kwargs| kwargs.get("chat_template"))
            .is_some_and(|template| !template.is_null());
        if self.trust_request_chat_template || (template.is_none() && !hidden) {
            return Ok(());
        }
        Err(Fault::bad_request(
            "Chat template is passed with request, but --trust-request-chat-template is not \
             set. Refused request with untrusted chat template.",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> ServerLimits {
        ServerLimits { max_model_len: 1024, vocab_size: Some(4096), ..ServerLimits::default() }
    }

    #[test]
    fn a_full_context_error_counts_tokens_or_characters() {
        let text = |outcome: Result<(), Fault>| outcome.map_err(|fault| fault.message);
        assert_eq!(limits().check_prompt_tokens(1024), Ok(()));
        assert_eq!(
            text(limits().check_prompt_tokens(1025)),
            Err("This model's maximum context length is 1024 tokens. However, your prompt \
                 contains at least 1025 input tokens, which exceeds this limit even without any \
                 output tokens. Please reduce the length of the input prompt. \
                 (parameter=input_tokens, value=1025)"
                .to_owned())
        );
        assert!(
            text(limits().check_prompt_tokens(2000)).is_err_and(|t| t.contains("contains 2000 "))
        );
        assert!(
            text(limits().check_prompt_characters(&"é".repeat(9000), 8))
                .is_err_and(|t| t.contains("9000 characters (more than 8192 characters,"))
        );
        assert_eq!(
            text(limits().check_responses_prompt_tokens(1024)),
            Err("The engine prompt length 1024 exceeds the max_model_len 1024. Please reduce \
                 prompt."
                .to_owned())
        );
    }

    #[test]
    fn prompt_ids_must_be_in_the_vocabulary() {
        let text = |ids: &[i64]| limits().check_prompt_ids(ids).map_err(|fault| fault.message);
        assert_eq!(text(&[0, 4095]), Ok(()));
        assert_eq!(text(&[]), Err("The decoder prompt cannot be empty".to_owned()));
        assert_eq!(text(&[1, 999_999]), Err("Token id 999999 is out of vocabulary".to_owned()));
        assert_eq!(text(&[1, -1]), Err("Token id -1 is out of vocabulary".to_owned()));
    }
}
