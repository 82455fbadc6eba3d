//! Recovers the client's text from the token ids of a prompt.

use vllm_sim_tokenizer::{SpecialTokenHandling, Tokenizer};

/// Names of chat roles that chat templates write before a message.
const TEMPLATE_ROLES: [&str; 5] = ["assistant", "developer", "system", "tool", "user"];

/// Returns the text of the last chat message in a prompt of token ids.
///
/// The message is between the last two end-of-turn tokens, without special tokens and role. A
/// prompt without an end-of-turn token is the message as a whole.
pub(crate) fn last_chat_message_text(tokenizer: &Tokenizer, prompt: &[u32]) -> String {
    let ends_turn =
        |id: &u32| Some(*id) == tokenizer.eos_token_id() || tokenizer.stop_token_ids().contains(id);
    let Some(end) = prompt.iter().rposition(ends_turn) else {
        return tokenizer.decode(prompt, SpecialTokenHandling::Without);
    };
    let turn = &prompt[..end];
    let start = turn.iter().rposition(ends_turn).map_or(0, |at| at + 1);
    let turn = &turn[start..];
    let head = turn.iter().rposition(|id| tokenizer.is_special_token(*id));
    let text =
        tokenizer.decode(&turn[head.map_or(0, |at| at + 1)..], SpecialTokenHandling::Without);
    let text = text.trim_start();
    match text.split_once('\n') {
        Some((role, rest)) if TEMPLATE_ROLES.contains(&role.trim()) => rest.trim_start().to_owned(),
        _ => text.to_owned(),
    }
}
