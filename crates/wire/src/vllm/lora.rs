//! Requests of `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`.
//!
//! Source: `vllm/entrypoints/serve/lora/protocol.py`.

use crate::fault::{ErrorType, Fault};
use crate::schema::wire_model;

wire_model! {
    /// A request to load a LoRA adapter.
    pub struct LoadLoraRequest: Plain "LoadLoRAAdapterRequest" {
        /// Model name under which to serve the LoRA adapter.
        lora_name: String,
        /// Directory of the LoRA adapter's files.
        lora_path: String,
        /// Whether to replace a loaded LoRA adapter of that name.
        load_inplace: bool = false,
        /// Whether the LoRA weights have three dimensions (mixture of experts).
        is_3d_lora_weight: bool = false,
    }
}

wire_model! {
    /// A request to unload a LoRA adapter.
    pub struct UnloadLoraRequest: Plain "UnloadLoRAAdapterRequest" {
        /// Name of the LoRA adapter to unload.
        lora_name: String,
        /// Number of the LoRA adapter inside the engine; ignored.
        lora_int_id: Option<i128> = None,
    }
}

impl LoadLoraRequest {
    /// Rejects a load request with an empty adapter name or path.
    ///
    /// # Errors
    /// A 400 `InvalidUserInput`.
    pub fn validate_load_lora_request(&self) -> Result<(), Fault> {
        if self.lora_name.is_empty() || self.lora_path.is_empty() {
            return Err(invalid_adapter_request(
                "Both 'lora_name' and 'lora_path' must be provided.",
            ));
        }
        Ok(())
    }
}

impl UnloadLoraRequest {
    /// Rejects an unload request with an empty adapter name.
    ///
    /// # Errors
    /// A 400 `InvalidUserInput`.
    pub fn validate_unload_lora_request(&self) -> Result<(), Fault> {
        if self.lora_name.is_empty() {
            return Err(invalid_adapter_request(
                "'lora_name' needs to be provided to unload a LoRA adapter.",
            ));
        }
        Ok(())
    }
}

/// Returns the error of a LoRA request that cannot be served: a 400 `InvalidUserInput`.
pub fn invalid_adapter_request(message: impl Into<String>) -> Fault {
    Fault::new(400, ErrorType::InvalidUserInput, message)
}
