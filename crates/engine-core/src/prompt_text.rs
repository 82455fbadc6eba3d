//! What a client said, as far as the tokens of a prompt tell.

use vllm_sim_tokenizer::{SpecialTokens, Tokenizer};

/// Who speaks, as templates write it before a message.
const ROLES: [&str; 5] = ["assistant", "developer", "system", "tool", "user"];

/// The text of the last message: what stands between the last two tokens that end a turn, behind the
/// special tokens and the name of a role that begin it. The whole text where nothing ends a turn.
pub(crate) fn last_message(tokenizer: &Tokenizer, prompt: &[u32]) -> String {
    let ends_turn = |id: &u32| Some(*id) == tokenizer.eos() || tokenizer.stop_ids().contains(id);
    let Some(end) = prompt.iter().rposition(ends_turn) else {
        return tokenizer.decode(prompt, SpecialTokens::Without);
    };
    let turn = &prompt[..end];
    let start = turn.iter().rposition(ends_turn).map_or(0, |at| at + 1);
    let turn = &turn[start..];
    let head = turn.iter().rposition(|id| tokenizer.is_special(*id));
    let text = tokenizer.decode(&turn[head.map_or(0, |at| at + 1)..], SpecialTokens::Without);
    let text = text.trim_start();
    match text.split_once('\n') {
        Some((role, rest)) if ROLES.contains(&role.trim()) => rest.trim_start().to_owned(),
        _ => text.to_owned(),
    }
}
