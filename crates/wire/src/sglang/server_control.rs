//! Requests of SGLang's routes that control a server.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`.

use super::generate::VertexRequest;
use crate::schema::{FLOAT, NumberBounds, Schema, wire_model};

/// A request body that is a msgspec struct of SGLang; pydantic accepts it as an instance or by its
/// fields.
#[derive(Debug)]
pub struct Struct<T>(pub T);

/// Implements the schema and the reader of SGLang's msgspec structs, each with the name of its
/// Python class.
macro_rules! msgspec_structs {
    ($($name:ident: $class:literal),* $(,)?) => {$(
        impl $crate::schema::RequestField for $crate::sglang::server_control::Struct<$name> {
            const SCHEMA: $crate::schema::Schema = $crate::schema::Schema::Union(&[
                $crate::schema::Schema::Instance($class),
                $crate::schema::Schema::Model($name::MODEL),
            ]);

            fn read(value: &::serde_json::Value) -> Option<Self> {
                <$name as $crate::schema::RequestField>::read(value).map(Self)
            }
        }
    )*};
}
pub(super) use msgspec_structs;

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
    VertexRequest: "VertexGenerateReqInput",
}

wire_model! {
    /// A request to abort one request or all.
    pub struct AbortRequest: TypedDict "function-after[build_struct(), AbortReq]" {
        /// Id of the request to abort.
        rid: Option<String> = None,
        /// Whether all requests are aborted, instead of one.
        abort_all: bool = false,
    }
}

wire_model! {
    /// A request to pause generation.
    pub struct PauseRequest: TypedDict "function-after[build_struct(), PauseGenerationReqInput]" {
        /// Treatment of running requests during the pause: `abort`, `retract` or `in_place`.
        mode: String [Schema::Literal(&["abort", "retract", "in_place"])] = "abort".to_owned(),
    }
}

wire_model! {
    /// A request to load a LoRA adapter.
    pub struct LoadAdapterRequest: TypedDict "function-after[build_struct(), LoadLoRAAdapterReqInput]" {
        /// Name of the LoRA adapter to load.
        lora_name: String,
        /// Directory of the files of the LoRA adapter to load.
        lora_path: String,
        /// Whether the LoRA adapter to load stays in memory.
        pinned: bool = false,
    }
}

wire_model! {
    /// A request to unload a LoRA adapter.
    pub struct UnloadAdapterRequest: TypedDict "function-after[build_struct(), UnloadLoRAAdapterReqInput]" {
        /// Name of the LoRA adapter to unload.
        lora_name: String,
    }
}

wire_model! {
    /// A request to continue generation.
    pub struct ContinueRequest: TypedDict "function-after[build_struct(), ContinueGenerationReqInput]" {
        /// Whether unused GPU memory is released before generation continues.
        torch_empty_cache: bool = true,
    }
}

wire_model! {
    /// A request to open a session.
    pub struct OpenSessionRequest: TypedDict "function-after[build_struct(), OpenSessionReqInput]" {
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
    pub struct CloseSessionRequest: TypedDict "function-after[build_struct(), CloseSessionReqInput]" {
        /// Id of the session to close.
        session_id: String,
    }
}

wire_model! {
    /// A request to release GPU memory.
    pub struct ReleaseMemoryRequest: TypedDict "function-after[build_struct(), ReleaseMemoryOccupationReqInput]" {
        /// Kinds of memory to release; `None`: all kinds.
        tags: Option<Vec<String>> = None,
    }
}

wire_model! {
    /// A request to occupy released GPU memory again.
    pub struct ResumeMemoryRequest: TypedDict "function-after[build_struct(), ResumeMemoryOccupationReqInput]" {
        /// Kinds of memory to occupy again; `None`: all kinds.
        tags: Option<Vec<String>> = None,
    }
}

wire_model! {
    /// A request to slow a server down by a pause before each engine step.
    pub struct SlowDownRequest: TypedDict "function-after[build_struct(), SlowDownReqInput]" {
        /// Pause before each engine step, in seconds; null ends the pauses.
        forward_sleep_time: Option<f64> [Schema::Nullable(&FLOAT)],
    }
}

wire_model! {
    /// A request to change the version of the weights that responses report.
    pub struct WeightVersionRequest: TypedDict "function-after[build_struct(), UpdateWeightVersionReqInput]" {
        /// The new version of the weights.
        new_version: String,
        /// Whether running requests are aborted before the version changes.
        abort_all_requests: bool = true,
    }
}

wire_model! {
    /// Query parameters of a request to empty the prefix cache.
    pub struct FlushCacheQuery: Plain "query" {
        /// Maximum waiting time for running requests, in seconds; ignored, because this server
        /// never waits.
        timeout: f64 [Schema::Float(NumberBounds { ge: Some(0.0), le: None, gt: None })] = 0.0,
    }
}

wire_model! {
    /// Query parameters of a request for the load of the data-parallel ranks.
    pub struct LoadsQuery: Plain "query" {
        /// The only data-parallel rank whose load is returned; `None`: all ranks.
        dp_rank: Option<i64> = None,
    }
}
