//! Request of `POST /generate`.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`, `GenerateReqInput`.

use serde_json::Value;

use crate::fault::Fault;
use crate::sampling::STRING_OR_LIST;
use crate::schema::{ANY_LENGTH, INT, STR, Schema, wire_model};

const BOOL_OR_LIST: Schema =
    Schema::Union(&[Schema::List(&Schema::Bool, ANY_LENGTH), Schema::Bool]);
const INT_OR_LIST: Schema = Schema::Union(&[Schema::List(&INT, ANY_LENGTH), INT]);
/// Schema of bootstrap ports and rooms (for prefill/decode pairs): a number, or one per prompt.
pub(super) const BOOTSTRAP_PORTS: Schema =
    Schema::Union(&[Schema::List(&Schema::Nullable(&INT), ANY_LENGTH), INT]);
const IDS: Schema = Schema::List(&INT, ANY_LENGTH);

wire_model! {
    /// A native request. Absent fields have SGLang's defaults; unknown ones are ignored.
    pub struct GenerateRequest: Dataclass "GenerateReqInput" {
        /// Ids of the requests; a string is the prefix of the ids of a batch.
        rid: Option<Value> [Schema::Nullable(&STRING_OR_LIST)] = None,
        /// Prompt texts.
        text: Option<Value> [Schema::Nullable(&STRING_OR_LIST)] = None,
        /// Prompts as token ids.
        input_ids: Option<Value> [Schema::Nullable(&Schema::Union(&[
            Schema::List(&IDS, ANY_LENGTH),
            IDS,
        ]))] = None,
        /// Prompts as embeddings.
        input_embeds: Option<Value> = None,
        /// Images of the prompts.
        image_data: Option<Value> = None,
        /// Videos of the prompts.
        video_data: Option<Value> = None,
        /// Audio clips of the prompts.
        audio_data: Option<Value> = None,
        /// Sampling parameters, for all prompts or for each.
        sampling_params: Option<Value> [Schema::Nullable(&Schema::Union(&[
            Schema::List(&Schema::Dict(&STR, &Schema::Any), ANY_LENGTH),
            Schema::Dict(&STR, &Schema::Any),
        ]))] = None,
        /// Request for log probabilities: one boolean for all prompts, or one for each prompt.
        return_logprob: Option<Value> [Schema::Nullable(&BOOL_OR_LIST)] = None,
        /// First prompt position with a log probability; -1 for output tokens only.
        logprob_start_len: Option<Value> [Schema::Nullable(&INT_OR_LIST)] = None,
        /// Number of the most likely tokens to list at each position.
        top_logprobs_num: Option<Value> [Schema::Nullable(&INT_OR_LIST)] = None,
        /// The token ids whose log probabilities to return.
        token_ids_logprob: Option<Value> = None,
        /// Whether log probabilities contain the texts of tokens.
        return_text_in_logprobs: bool = false,
        /// Whether to stream server-sent events.
        stream: bool = false,
        /// Request for hidden states, which the server rejects.
        return_hidden_states: Option<Value> = None,
        /// The session whose history the prompt continues.
        session_params: Option<Value> = None,
        /// Name of the LoRA adapter, for all prompts or for each.
        lora_path: Option<Value> = None,
        /// The serialized class that changes the logits.
        custom_logit_processor: Option<Value> = None,
        /// Host of the bootstrap server of the prefill server.
        bootstrap_host: Option<Value> [Schema::Nullable(&crate::sampling::STRING_OR_LIST)] = None,
        /// Port of the bootstrap server of the prefill server.
        bootstrap_port: Option<Value> [Schema::Nullable(&BOOTSTRAP_PORTS)] = None,
        /// Number of the request, which identifies it on both servers of a prefill/decode pair.
        bootstrap_room: Option<Value> [Schema::Nullable(&BOOTSTRAP_PORTS)] = None,
        /// The data-parallel rank of the prefill server that computes the prompt.
        disagg_prefill_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request.
        routed_dp_rank: Option<i64> = None,
        /// Former name of `routed_dp_rank`.
        data_parallel_rank: Option<i64> = None,
        /// Scheduling priority.
        priority: Option<i64> = None,
        /// Salt of the prefix cache.
        cache_salt: Option<Value> [Schema::Nullable(&STRING_OR_LIST)] = None,
        /// Whether the response contains the token ids of the prompt.
        return_prompt_token_ids: bool = false,
    }
}

impl GenerateRequest {
    /// Refuses the members that are not simulated, or that SGLang needs a flag for.
    ///
    /// # Errors
    /// A 400 that names the member.
    pub fn check_simulated(&self) -> Result<(), Fault> {
        let truthy = |value: &Option<Value>| {
            value.as_ref().is_some_and(|value| {
                !matches!(value, Value::Null | Value::Bool(false))
                    && value.as_array().is_none_or(|items| {
                        items.iter().any(|item| !matches!(item, Value::Null | Value::Bool(false)))
                    })
            })
        };
        if truthy(&self.return_hidden_states) {
            return Err(Fault::bad_request(HIDDEN_STATES_DISABLED));
        }
        if truthy(&self.custom_logit_processor) {
            return Err(Fault::bad_request(
                "The server is not configured to enable custom logit processor. Please set \
                 `--enable-custom-logit-processor` to enable this feature.",
            ));
        }
        let refused = [
            ("input_embeds", truthy(&self.input_embeds)),
            ("image_data", truthy(&self.image_data)),
            ("video_data", truthy(&self.video_data)),
            ("audio_data", truthy(&self.audio_data)),
            ("token_ids_logprob", truthy(&self.token_ids_logprob)),
        ];
        match refused.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => Err(Fault::bad_request(format!("{name} is not simulated"))),
        }
    }
}

/// Error message for a request for hidden states, which a server returns only with a flag.
pub const HIDDEN_STATES_DISABLED: &str = "The server is not configured to return hidden states. \
     Please set `--return-hidden-states-mode last`, `--return-hidden-states-mode full`, or the \
     legacy `--enable-return-hidden-states` flag.";
