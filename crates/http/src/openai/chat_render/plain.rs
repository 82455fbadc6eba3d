//! Renders chat chunks that have only text: the fast path of most streams.

use super::ChatStream;
use crate::json;
use crate::openai::response_shape::UsageMembers;
use vllm_sim_service::Choice;
use vllm_sim_service::generate::OutputToken;
use vllm_sim_wire::VllmVersion;

/// JSON before the text of a text-only chat chunk.
const CONTENT_START: &str = "\"content\":\"";

impl ChatStream {
    pub(super) fn has_text_only_chunks(&self) -> bool {
        self.chat.view.logprobs.is_none()
            && !self.chat.image
            && !self.chat.view.return_token_ids
            && !self.chat.parsed
    }

    /// Appends a text-only chat chunk of one token.
    pub(super) fn write_text_chunk(
        &mut self,
        out: &mut String,
        token: &OutputToken<'_>,
        index: usize,
    ) {
        self.so_far[index].tokens += 1;
        self.begin_chunk(out, index);
        out.push_str(CONTENT_START);
        json::push_escaped_unicode(out, token.text);
        self.end_text_chunk(out, index);
    }

    /// Appends the JSON of a text-only chat chunk after its text.
    fn end_text_chunk(&self, out: &mut String, index: usize) {
        out.push_str("\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]");
        self.chat.view.write_chunk_usage(out, self.token_counts(index), UsageMembers::Chat);
        if self.chat.view.version >= VllmVersion::V033 {
            out.push_str(",\"kv_transfer_params\":null");
        }
        out.push_str("}\n\n");
    }

    /// Appends text-only chat chunks of several tokens; the JSON between two texts is constant.
    pub(super) fn write_text_chunks(
        &mut self,
        out: &mut String,
        choice: &mut Choice,
        most: u32,
        bytes: usize,
    ) -> u32 {
        if self.so_far.len() > 1 || !self.has_text_only_chunks() || self.chat.view.continuous_usage
        {
            return 0;
        }
        let mut between = String::with_capacity(2 * self.head.len());
        self.end_text_chunk(&mut between, 0);
        let end = between.len();
        self.begin_chunk(&mut between, 0);
        between.push_str(CONTENT_START);
        let begin = between.len() - end;
        let mut written = 0;
        out.push_str(&between[end..]);
        while written < most
            && out.len() - begin < bytes
            && let Some(texts) = choice.script.next_texts(&mut choice.cursor)
        {
            let plain = !texts.may_have_escapes();
            let before = written;
            for text in texts.iter().take((most - written) as usize) {
                match plain {
                    true => text.append_to(out),
                    false => json::push_escaped_unicode(out, text.as_str()),
                }
                out.push_str(&between);
                written += 1;
                if out.len() - begin >= bytes {
                    break;
                }
            }
            choice.cursor.advance(written - before);
        }
        out.truncate(out.len() - begin);
        self.so_far[0].tokens += written;
        written
    }
}
