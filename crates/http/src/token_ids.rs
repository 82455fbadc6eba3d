//! Checks token ids of requests: vLLM parses them as integers of any size, tokenizers accept 32 bits.

use vllm_sim_wire::ServerLimits;
use vllm_sim_wire::fault::Fault;

/// Converts a token id of a request to the 32 bits that a tokenizer decodes.
///
/// # Errors
/// Returns a 400 with the message of the `OverflowError` of Python's `tokenizers`, as vLLM does.
pub(crate) fn to_decodable_token_id<T: TryInto<u32>>(id: T) -> Result<u32, Fault> {
    let overflow = "out of range integral type conversion attempted";
    id.try_into().map_err(|_| Fault::bad_request(overflow))
}

/// Converts the token ids of a prompt; all must be in the vocabulary of the model.
///
/// # Errors
/// Returns a 400 with an id that is not in the vocabulary.
pub(crate) fn check_prompt_token_ids(
    limits: &ServerLimits,
    ids: &[i64],
) -> Result<Vec<u32>, Fault> {
    if !ids.is_empty() {
        limits.check_prompt_ids(ids)?;
    }
    let unknown = |id: i64| Fault::bad_request(format!("Token id {id} is out of vocabulary"));
    let known = ids.iter().map(|id| u32::try_from(*id).map_err(|_| unknown(*id)));
    known.collect()
}
