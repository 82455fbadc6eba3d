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

/// Returns the error for a LoRA adapter that is loaded and may not be replaced.
pub fn adapter_already_loaded_fault(name: &str) -> Fault {
    invalid_adapter_request(&format!(
        "The lora adapter '{name}' has already been loaded. If you want to load the adapter in \
         place, set 'load_inplace' to True."
    ))
}

/// Returns the error for a LoRA adapter named like a base model.
pub fn adapter_named_like_base_fault(name: &str) -> Fault {
    invalid_adapter_request(&format!(
        "The lora adapter '{name}' conflicts with a served base model."
    ))
}

/// Returns the 404 for a path without a LoRA adapter.
pub fn adapter_not_found_fault(name: &str, path: &str) -> Fault {
    let text = format!("Loading lora {name} failed: No adapter found for {path}");
    Fault::new(404, ErrorType::NotFound, text)
}

/// Returns the 404 for a LoRA adapter that is not loaded.
pub fn adapter_not_loaded_fault(name: &str) -> Fault {
    Fault::new(404, ErrorType::NotFound, format!("The lora adapter '{name}' cannot be found."))
}

fn invalid_adapter_request(message: &str) -> Fault {
    Fault::new(400, ErrorType::InvalidUserInput, message)
}
