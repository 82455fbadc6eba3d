//! Requests of SGLang's routes that control a server.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`.

use serde_json::Value;

use crate::schema::{FLOAT, RequestField, Schema, wire_model};

/// A msgspec struct as body, which pydantic accepts as an instance or by its fields.
#[derive(Debug)]
pub struct Struct<T>(pub T);

macro_rules! msgspec_structs {
    ($($name:ident: $class:literal),* $(,)?) => {$(
        impl RequestField for Struct<$name> {
            const SCHEMA: Schema = Schema::Union(&[
                Schema::Instance($class),
                Schema::Model($name::MODEL),
            ]);

            fn read(value: &Value) -> Option<Self> {
                $name::read(value).map(Self)
            }
        }
    )*};
}

msgspec_structs! {
    AbortRequest: "AbortReq",
    PauseRequest: "PauseGenerationReqInput",
    ContinueRequest: "ContinueGenerationReqInput",
    LoadAdapterRequest: "LoadLoRAAdapterReqInput",
    UnloadAdapterRequest: "UnloadLoRAAdapterReqInput",
    OpenSessionRequest: "OpenSessionReqInput",
    CloseSessionRequest: "CloseSessionReqInput",
    ReleaseMemoryRequest: "ReleaseMemoryOccupationReqInput",
    ResumeMemoryRequest: "ResumeMemoryOccupationReqInput",
    SlowDownRequest: "SlowDownReqInput",
    WeightVersionRequest: "UpdateWeightVersionReqInput",
}

wire_model! {
    /// A request to abort one request or all.
    pub struct AbortRequest: Plain "function-after[build_struct(), AbortReq]" {
        /// Id of the request to abort.
        rid: Option<String> = None,
        /// Whether all requests are aborted.
        abort_all: bool = false,
    }
}

wire_model! {
    /// A request to pause generation.
    pub struct PauseRequest: Plain "function-after[build_struct(), PauseGenerationReqInput]" {
        /// Treatment of running requests during the pause: `abort`, `retract` or `in_place`.
        mode: String [Schema::Literal(&["abort", "retract", "in_place"])] = "abort".to_owned(),
    }
}

wire_model! {
    /// A request to load a LoRA adapter.
    pub struct LoadAdapterRequest: Plain "function-after[build_struct(), LoadLoRAAdapterReqInput]" {
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
    pub struct UnloadAdapterRequest: Plain "function-after[build_struct(), UnloadLoRAAdapterReqInput]" {
        /// Name of the adapter.
        lora_name: String,
    }
}

wire_model! {
    /// A request to continue generation.
    pub struct ContinueRequest: Plain "function-after[build_struct(), ContinueGenerationReqInput]" {
        /// Whether unused GPU memory is given back first.
        torch_empty_cache: bool = true,
    }
}

wire_model! {
    /// A request to open a session.
    pub struct OpenSessionRequest: Plain "function-after[build_struct(), OpenSessionReqInput]" {
        /// Limit of the session's text, which SGLang stores and does not check.
        capacity_of_str_len: i64,
        /// Id of the session; null or absent for a new random id.
        session_id: Option<String> = None,
        /// Whether requests append to the session in order.
        streaming: Option<bool> = None,
        /// Idle time after which the session is closed, in seconds.
        timeout: Option<f64> = None,
    }
}

wire_model! {
    /// A request to close a session.
    pub struct CloseSessionRequest: Plain "function-after[build_struct(), CloseSessionReqInput]" {
        /// Id of the session.
        session_id: String,
    }
}

wire_model! {
    /// A request to release GPU memory.
    pub struct ReleaseMemoryRequest: Plain "function-after[build_struct(), ReleaseMemoryOccupationReqInput]" {
        /// Kinds of GPU memory to release; null or absent for all.
        tags: Option<Vec<String>> = None,
    }
}

wire_model! {
    /// A request to occupy released GPU memory again.
    pub struct ResumeMemoryRequest: Plain "function-after[build_struct(), ResumeMemoryOccupationReqInput]" {
        /// Kinds of GPU memory to occupy; null or absent for all.
        tags: Option<Vec<String>> = None,
    }
}

wire_model! {
    /// A request to pause before each step.
    pub struct SlowDownRequest: Plain "function-after[build_struct(), SlowDownReqInput]" {
        /// Pause before each engine step, in seconds; null ends the pauses.
        forward_sleep_time: Option<f64> [Schema::Nullable(&FLOAT)],
    }
}

wire_model! {
    /// A request to change the version of the weights that responses report.
    pub struct WeightVersionRequest: Plain "function-after[build_struct(), UpdateWeightVersionReqInput]" {
        /// The new version of the model weights.
        new_version: String,
        /// Whether running requests are aborted first.
        abort_all_requests: bool = true,
    }
}
