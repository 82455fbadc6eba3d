//! Requests of SGLang's routes that control a server.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`.

use serde_json::Value;

use crate::check;
use crate::fault::Fault;
use crate::schema::{Schema, wire_model};

wire_model! {
    /// A request to abort one request or all.
    pub struct AbortRequest: Plain "AbortReq" {
        /// Id of the request to abort.
        rid: Option<String> = None,
        /// Whether all requests are aborted.
        abort_all: bool = false,
    }
}

wire_model! {
    /// A request to pause generation.
    pub struct PauseRequest: Plain "PauseGenerationReqInput" {
        /// Treatment of running requests.
        mode: String [Schema::Literal(&["abort", "retract", "in_place"])] = "abort".to_owned(),
    }
}

wire_model! {
    /// A request to load a LoRA adapter.
    pub struct LoadAdapterRequest: Plain "LoadLoRAAdapterReqInput" {
        /// Name of the adapter.
        lora_name: String,
        /// Directory of the adapter's files.
        lora_path: String,
        /// Whether the adapter stays in memory.
        pinned: bool = false,
    }
}

wire_model! {
    /// A request to unload a LoRA adapter.
    pub struct UnloadAdapterRequest: Plain "UnloadLoRAAdapterReqInput" {
        /// Name of the adapter.
        lora_name: String,
    }
}

macro_rules! parsed {
    ($($name:ident),*) => {$(
        impl $name {
            /// Validates and reads the request body.
            ///
            /// # Errors
            /// A 400 if the body does not match the schema.
            pub fn parse(value: &Value) -> Result<Self, Fault> {
                check::read_body(value)
            }
        }
    )*};
}

parsed!(AbortRequest, PauseRequest, LoadAdapterRequest, UnloadAdapterRequest);
