//! `POST /v1/load_lora_adapter`, `POST /v1/unload_lora_adapter`: the requests.
//!
//! Source: `vllm/entrypoints/serve/lora/protocol.py`.

use serde_json::Value;

use crate::wire::check;
use crate::wire::fault::Fault;
use crate::wire::schema::wire_model;

wire_model! {
    /// Which adapter to load.
    pub struct LoadRequest: Plain "LoadLoRAAdapterRequest" {
        /// Name that requests will use.
        lora_name: String,
        /// Where it lies.
        lora_path: String,
        /// Whether it may take the place of one of the same name.
        load_inplace: bool = false,
        /// Whether its weights are of a mixture of experts in one tensor.
        is_3d_lora_weight: bool = false,
    }
}

wire_model! {
    /// Which adapter to unload.
    pub struct UnloadRequest: Plain "UnloadLoRAAdapterRequest" {
        /// Its name.
        lora_name: String,
        /// Its number; ignored.
        lora_int_id: Option<i128> = None,
    }
}

impl LoadRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}

impl UnloadRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}
