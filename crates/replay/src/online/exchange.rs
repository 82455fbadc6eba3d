//! Records the token times of one streamed response, and the token counts in its `usage`.

use std::time::Instant;

use serde_json::Value;

use crate::outcome::HttpResponseInfo;

const MAX_SSE_LINE_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct GenerationResponse {
    pub(super) tokens: Vec<Instant>,
    /// Prompt length in tokens, as reported in the response's `usage`.
    pub(super) prompt_tokens: Option<u32>,
    pub(super) reply: HttpResponseInfo,
    completion_tokens: Option<u32>,
    requested: u32,
    pub(super) ids: Vec<u32>,
    pub(super) text: String,
    pub(super) error: Option<Box<str>>,
    finished: bool,
    finish_reason: Option<String>,
}

impl GenerationResponse {
    pub(super) fn new(requested_output_tokens: u32) -> Self {
        Self {
            tokens: Vec::with_capacity(requested_output_tokens.min(1 << 16) as usize),
            requested: requested_output_tokens,
            ..Self::default()
        }
    }

    /// Sets the number of token times to the server's token count; returns a description of the
    /// error in the response, if any.
    pub(super) fn check_response_completeness(&mut self) -> Option<Box<str>> {
        if let (Some(n), Some(last)) = (self.completion_tokens, self.tokens.last().copied()) {
            let (asked, came) = (self.requested, self.tokens.len());
            if n as usize > asked as usize + came {
                let counts = format!("the server counts {n} tokens in its response");
                return Some(format!("{counts}: {asked} were requested, {came} arrived").into());
            }
            // Chunks without a token come last, and one chunk may hold several tokens.
            self.tokens.resize(n as usize, last);
        }
        match (self.finished, self.tokens.is_empty()) {
            (_, true) => Some("the response has no token".into()),
            (false, _) => Some("the stream ended without [DONE]".into()),
            // Requests have `ignore_eos`, so only a fault makes an answer shorter.
            _ if self.tokens.len() < self.requested as usize => {
                let (came, asked) = (self.tokens.len(), self.requested);
                let reason = self.finish_reason.as_deref().unwrap_or("unknown");
                let uncounted = match self.completion_tokens {
                    None => "; the answer has no usage, so each chunk counts as one",
                    Some(_) => "",
                };
                let text =
                    format!("{came} of {asked} tokens came (finish_reason {reason}{uncounted})");
                Some(text.into())
            }
            _ => None,
        }
    }

    /// Returns a message if the response does not have exactly the requested number of tokens.
    pub(super) fn missing_tokens_error(&self) -> Option<Box<str>> {
        let asked = self.requested.max(1) as usize;
        let came = match self.ids.len() {
            0 => self.tokens.len(),
            ids => ids,
        };
        if came != asked {
            return Some(format!("{came} of {asked} tokens came").into());
        }
        match self.finish_reason.as_deref() {
            Some("length") => None,
            Some(reason) => Some(format!("finish_reason is {reason:?}, not \"length\"").into()),
            None => Some("the answer has no finish_reason".into()),
        }
    }

    fn add_stream_event(&mut self, event: &Value, at: Instant) -> Result<(), String> {
        if let Some(error) = event.get("error") {
            let message = error["message"].as_str().map(str::to_owned);
            return Err(message.unwrap_or_else(|| error.to_string()));
        }
        let count = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        if let Some(usage) = event.get("usage").filter(|usage| !usage.is_null()) {
            self.prompt_tokens = count(&usage["prompt_tokens"]).or(self.prompt_tokens);
            self.completion_tokens = count(&usage["completion_tokens"]).or(self.completion_tokens);
            let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
            self.reply.cached = cached.or(self.reply.cached);
        }
        if self.reply.id.is_none() {
            self.reply.id = event["id"].as_str().map(str::to_owned);
        }
        let choice = &event["choices"][0];
        if choice.is_null() {
            return Ok(());
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        let delta = &choice["delta"];
        let text = choice["text"].as_str().or(delta["content"].as_str());
        let thought = ["reasoning", "reasoning_content"];
        let thought = thought.iter().find_map(|key| delta[*key].as_str());
        let ids = choice["token_ids"].as_array();
        let opening = delta.get("role").is_some_and(|role| !role.is_null())
            && text.is_none_or(str::is_empty)
            && thought.is_none();
        if opening && ids.is_none() {
            return Ok(());
        }
        // Without ids a chunk counts as one token, as in other load generators.
        let n = ids.map_or(1, Vec::len);
        let ids = ids.into_iter().flatten().filter_map(count);
        self.ids.extend(ids);
        self.text.push_str(text.or(thought).unwrap_or_default());
        self.tokens.extend(std::iter::repeat_n(at, n));
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct SseReader {
    rest: Vec<u8>,
}

impl SseReader {
    pub(super) fn feed_sse_bytes(
        &mut self,
        data: &[u8],
        at: Instant,
        exchange: &mut GenerationResponse,
    ) -> Result<(), String> {
        let mut data = data;
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            if self.rest.is_empty() {
                parse_sse_line(&data[..end], at, exchange)?;
            } else {
                self.rest.extend_from_slice(&data[..end]);
                parse_sse_line(&self.rest, at, exchange)?;
                self.rest.clear();
            }
            data = &data[end + 1..];
        }
        if self.rest.len() + data.len() > MAX_SSE_LINE_BYTES {
            return Err(format!("a line of the stream is longer than {MAX_SSE_LINE_BYTES} bytes"));
        }
        self.rest.extend_from_slice(data);
        Ok(())
    }
}

fn parse_sse_line(
    line: &[u8],
    at: Instant,
    exchange: &mut GenerationResponse,
) -> Result<(), String> {
    let Some(data) = line.strip_prefix(b"data:") else {
        return Ok(());
    };
    let data = data.trim_ascii();
    if data == b"[DONE]" {
        exchange.finished = true;
        return Ok(());
    }
    let event: Value =
        serde_json::from_slice(data).map_err(|error| format!("an event is not JSON: {error}"))?;
    exchange.add_stream_event(&event, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_split_anywhere_is_parsed_the_same() {
        let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n: ping\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"bc\"},\"token_ids\":[5,6]}]}\n\n\
                      data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n\
                      data: [DONE]\n\n";
        let at = crate::online::drive::real_time_now();
        for cut in 0..stream.len() {
            let (mut reader, mut exchange) = (SseReader::default(), GenerationResponse::new(3));
            for part in [&stream[..cut], &stream[cut..]] {
                reader.feed_sse_bytes(part.as_bytes(), at, &mut exchange).expect("is a stream");
            }
            assert_eq!(exchange.check_response_completeness(), None);
            assert_eq!((exchange.tokens.len(), exchange.prompt_tokens), (3, Some(7)));
            assert_eq!((exchange.text.as_str(), &exchange.ids[..]), ("abc", &[5, 6][..]));
        }
    }

    #[test]
    fn incomplete_streams_and_bad_events_are_errors() {
        let at = crate::online::drive::real_time_now();
        let read = |text: &str| {
            let mut exchange = GenerationResponse::new(1);
            let read = SseReader::default().feed_sse_bytes(text.as_bytes(), at, &mut exchange);
            (read, exchange.check_response_completeness())
        };
        let (read_, missing) = read("data: {\"choices\":[{\"text\":\"x\"}]}\n\n");
        assert_eq!((read_, missing.as_deref()), (Ok(()), Some("the stream ended without [DONE]")));
        assert_eq!(read("data: [DONE]\n").1.as_deref(), Some("the response has no token"));
        let counted = "data: {\"choices\":[{\"text\":\"x\"}],\
                       \"usage\":{\"completion_tokens\":4294967295}}\n\ndata: [DONE]\n\n";
        assert_eq!(
            read(counted).1.as_deref(),
            Some(
                "the server counts 4294967295 tokens in its response: 1 were requested, 1 arrived"
            )
        );
        let mut short = GenerationResponse::new(20);
        let stream = "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"length\"}],\
                      \"usage\":{\"completion_tokens\":4}}\n\ndata: [DONE]\n\n";
        SseReader::default()
            .feed_sse_bytes(stream.as_bytes(), at, &mut short)
            .expect("is a stream");
        assert_eq!(
            short.check_response_completeness().as_deref(),
            Some("4 of 20 tokens came (finish_reason length)")
        );
        let (error, _) = read("data: {\"error\":{\"message\":\"no\"}}\n");
        assert_eq!(error, Err("no".to_owned()));
    }
}
