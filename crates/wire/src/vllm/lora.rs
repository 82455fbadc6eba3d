//! `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`: the requests.
//!
//! Source: `vllm/entrypoints/serve/lora/protocol.py`.

use serde_json::Value;

use crate::check;
use crate::fault::{ErrorType, Fault};
use crate::schema::wire_model;

wire_model! {
    /// A request to load an adapter.
    pub struct LoadLoraRequest: Plain "LoadLoRAAdapterRequest" {
        /// Name to serve it under.
        lora_name: String,
        /// Where it lies.
        lora_path: String,
        /// Whether a loaded one of that name is replaced.
        load_inplace: bool = false,
        /// Whether its weights have three dimensions.
        is_3d_lora_weight: bool = false,
    }
}

wire_model! {
    /// A request to unload an adapter.
    pub struct UnloadLoraRequest: Plain "UnloadLoRAAdapterRequest" {
        /// Name it is served under.
        lora_name: String,
        /// Its number inside the engine; ignored.
        lora_int_id: Option<i128> = None,
    }
}

impl LoadLoraRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }

    /// Refuses blanks.
    ///
    /// # Errors
    /// 400 `InvalidUserInput`.
    pub fn validate(&self) -> Result<(), Fault> {
        if self.lora_name.is_empty() || self.lora_path.is_empty() {
            return Err(invalid(
                "Both 'lora_name' and 'lora_path' must be provided.",
            ));
        }
        Ok(())
    }
}

impl UnloadLoraRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }

    /// Refuses a blank.
    ///
    /// # Errors
    /// 400 `InvalidUserInput`.
    pub fn validate(&self) -> Result<(), Fault> {
        if self.lora_name.is_empty() {
            return Err(invalid(
                "'lora_name' needs to be provided to unload a LoRA adapter.",
            ));
        }
        Ok(())
    }
}

/// The adapter is loaded and may not be replaced.
pub fn already_loaded(name: &str) -> Fault {
    invalid(&format!(
        "The lora adapter '{name}' has already been loaded. If you want to load the adapter in \
         place, set 'load_inplace' to True."
    ))
}

/// The name is that of a base model.
pub fn served_as_base(name: &str) -> Fault {
    invalid(&format!(
        "The lora adapter '{name}' conflicts with a served base model."
    ))
}

/// Nothing lies at the path.
pub fn not_found(name: &str, path: &str) -> Fault {
    let text = format!("Loading lora {name} failed: No adapter found for {path}");
    Fault::new(404, ErrorType::NotFound, text)
}

/// No adapter of that name is loaded.
pub fn not_loaded(name: &str) -> Fault {
    Fault::new(
        404,
        ErrorType::NotFound,
        format!("The lora adapter '{name}' cannot be found."),
    )
}

fn invalid(message: &str) -> Fault {
    Fault::new(400, ErrorType::InvalidUserInput, message)
}
