//! Token ids of requests: upstream reads them as numbers of any size, tokenizers take 32 bits.

use vllm_sim_wire::Limits;
use vllm_sim_wire::fault::Fault;

/// Returns an id as a tokenizer takes it to make text of it.
///
/// # Errors
/// 400 in the words of Python's `tokenizers`, whose `OverflowError` vLLM answers so.
pub(crate) fn decodable<T: TryInto<u32>>(id: T) -> Result<u32, Fault> {
    let overflow = "out of range integral type conversion attempted";
    id.try_into().map_err(|_| Fault::bad_request(overflow))
}

/// Returns the ids of a prompt, all of which the model has to know.
///
/// # Errors
/// 400 that names one that it does not.
pub(crate) fn of_prompt(limits: &Limits, ids: &[i64]) -> Result<Vec<u32>, Fault> {
    if !ids.is_empty() {
        limits.prompt_ids(ids)?;
    }
    let unknown = |id: i64| Fault::bad_request(format!("Token id {id} is out of vocabulary"));
    let known = ids
        .iter()
        .map(|id| u32::try_from(*id).map_err(|_| unknown(*id)));
    known.collect()
}
