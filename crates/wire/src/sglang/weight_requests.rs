//! Requests of SGLang's routes that change the weights of the model.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`.

use serde_json::{Map, Value};

use super::server_control::msgspec_structs;
use crate::schema::{STR, Schema, wire_model};

/// Describes the effects of a weight-update request on the server: aborted requests, an emptied
/// prefix cache and the new version of the weights.
pub trait UpdateEffects {
    /// Returns whether all requests are aborted before the update of the weights.
    fn aborts_requests(&self) -> bool {
        false
    }

    /// Returns whether the update of the weights empties the prefix cache.
    fn flushes_cache(&self) -> bool {
        false
    }

    /// Returns the version of the weights that responses report from now on.
    fn weight_version(&self) -> Option<&str> {
        None
    }
}

msgspec_structs! {
    UpdateWeightsFromDiskRequest: "UpdateWeightFromDiskReqInput",
    UpdateWeightsFromDistributedRequest: "UpdateWeightsFromDistributedReqInput",
    UpdateWeightsFromTensorRequest: "UpdateWeightsFromTensorReqInput",
    UpdateWeightsFromIpcRequest: "UpdateWeightsFromIPCReqInput",
    InitWeightsUpdateGroupRequest: "InitWeightsUpdateGroupReqInput",
    DestroyWeightsUpdateGroupRequest: "DestroyWeightsUpdateGroupReqInput",
    BeginWeightUpdateRequest: "BeginWeightUpdateReqInput",
    EndWeightUpdateRequest: "EndWeightUpdateReqInput",
    WeightsByNameRequest: "GetWeightsByNameReqInput",
    CheckWeightsRequest: "CheckWeightsReqInput",
}

const SELECTOR: Schema = Schema::Literal(&["target", "draft", "all"]);

fn default_group() -> String {
    "weight_update_group".to_owned()
}

wire_model! {
    /// A request to load other weights from files.
    pub struct UpdateWeightsFromDiskRequest: TypedDict "function-after[build_struct(), UpdateWeightFromDiskReqInput]" {
        /// Folder of the weights.
        model_path: String,
        /// Format of the weight files.
        load_format: Option<String> = None,
        /// Whether all requests are aborted before the update of the weights.
        abort_all_requests: bool = false,
        /// Version of the new weights.
        weight_version: Option<String> = None,
        /// Whether generation continues while the files are read.
        is_async: bool = false,
        /// Whether the update of the weights also releases unused GPU memory.
        torch_empty_cache: bool = false,
        /// Whether the scheduler stays paused after the update of the weights.
        keep_pause: bool = false,
        /// Whether the update of the weights captures CUDA graphs again.
        recapture_cuda_graph: bool = false,
        /// Training step of the new weights.
        token_step: i64 = 0,
        /// Whether the update of the weights empties the prefix cache.
        flush_cache: bool = true,
        /// Description of the weight tensors to load (`manifest`).
        manifest: Option<Map<String, Value>> = None,
    }
}

wire_model! {
    /// A request to receive weights from another process.
    pub struct UpdateWeightsFromDistributedRequest: TypedDict "function-after[build_struct(), UpdateWeightsFromDistributedReqInput]" {
        /// Names of the model parameters to receive.
        names: Vec<String>,
        /// Data types of the model parameters.
        dtypes: Vec<String>,
        /// Shapes of the model parameters.
        shapes: Vec<Vec<i64>>,
        /// Name of the process group that sends the weights.
        group_name: String = default_group(),
        /// Whether the update of the weights empties the prefix cache.
        flush_cache: bool = true,
        /// Whether all requests are aborted before the update of the weights.
        abort_all_requests: bool = false,
        /// Version of the new weights.
        weight_version: Option<String> = None,
        /// Format of the received weights.
        load_format: Option<String> = None,
        /// Models to update: `target`, `draft` or `all`.
        selector: String [SELECTOR] = "all".to_owned(),
        /// Whether the update of the weights also releases unused GPU memory.
        torch_empty_cache: bool = false,
    }
}

wire_model! {
    /// A request to take weights from serialized tensors.
    pub struct UpdateWeightsFromTensorRequest: TypedDict "function-after[build_struct(), UpdateWeightsFromTensorReqInput]" {
        /// The tensors in base64, one text per rank.
        serialized_named_tensors: Vec<String>,
        /// Format of the serialized tensors.
        load_format: Option<String> = None,
        /// Whether the update of the weights empties the prefix cache.
        flush_cache: bool = true,
        /// Whether all requests are aborted before the update of the weights.
        abort_all_requests: bool = false,
        /// Version of the new weights.
        weight_version: Option<String> = None,
        /// Models to update: `target`, `draft` or `all`.
        selector: String [SELECTOR] = "all".to_owned(),
        /// Whether the update of the weights also releases unused GPU memory.
        torch_empty_cache: bool = false,
    }
}

wire_model! {
    /// A request to take weights from shared GPU memory.
    pub struct UpdateWeightsFromIpcRequest: TypedDict "function-after[build_struct(), UpdateWeightsFromIPCReqInput]" {
        /// Paths of the ZeroMQ sockets for the weights in shared GPU memory, by device.
        zmq_handles: Map<String, Value> [Schema::Dict(&STR, &STR)],
        /// Whether the update of the weights empties the prefix cache.
        flush_cache: bool = true,
        /// Version of the new weights.
        weight_version: Option<String> = None,
        /// Whether the update of the weights also releases unused GPU memory.
        torch_empty_cache: bool = false,
    }
}

wire_model! {
    /// A request to join the process group that sends weights.
    pub struct InitWeightsUpdateGroupRequest: TypedDict "function-after[build_struct(), InitWeightsUpdateGroupReqInput]" {
        /// Address of the process group's first process.
        master_address: String,
        /// Port of the process group's first process.
        master_port: i64,
        /// Number of this server's first rank in the process group that sends the weights.
        rank_offset: i64,
        /// Number of ranks of the process group.
        world_size: i64,
        /// Name of the process group that sends the weights.
        group_name: String = default_group(),
        /// Communication library of the process group.
        backend: String = "nccl".to_owned(),
    }
}

wire_model! {
    /// A request to leave the process group that sends weights.
    pub struct DestroyWeightsUpdateGroupRequest: TypedDict "function-after[build_struct(), DestroyWeightsUpdateGroupReqInput]" {
        /// Name of the process group to leave.
        group_name: String = default_group(),
    }
}

wire_model! {
    /// A request to make quantized weights loadable.
    pub struct BeginWeightUpdateRequest: TypedDict "function-after[build_struct(), BeginWeightUpdateReqInput]" {
        /// Models to update: `target`, `draft` or `all`.
        selector: String [SELECTOR] = "all".to_owned(),
    }
}

wire_model! {
    /// A request to quantize loaded weights again.
    pub struct EndWeightUpdateRequest: TypedDict "function-after[build_struct(), EndWeightUpdateReqInput]" {
        /// Id of the request.
        rid: Option<Value> [Schema::Nullable(&crate::sampling::STRING_OR_LIST_SCHEMA)] = None,
    }
}

wire_model! {
    /// A request for the values of a model parameter.
    pub struct WeightsByNameRequest: TypedDict "function-after[build_struct(), GetWeightsByNameReqInput]" {
        /// Name of the model parameter.
        name: String,
        /// Maximum number of values to return of the named model parameter.
        truncate_size: i64 = 100,
    }
}

wire_model! {
    /// A request to copy, compare or hash the weights.
    pub struct CheckWeightsRequest: TypedDict "function-after[build_struct(), CheckWeightsReqInput]" {
        /// Action on the weights: `checksum`, `snapshot`, `reset_tensors` or `compare`.
        action: String = "checksum".to_owned(),
        /// Whether a comparison allows the error of quantization.
        allow_quant_error: bool = false,
        /// Parts of the names of tensors to leave out.
        skip_tensor_list: Option<Vec<String>> = None,
        /// Models to check: `target`, `draft` or `all`.
        selector: String [SELECTOR] = "all".to_owned(),
    }
}

macro_rules! update_effects {
    ($($request:ident),*) => {$(
        impl UpdateEffects for $request {
            fn aborts_requests(&self) -> bool {
                self.abort_all_requests
            }

            fn flushes_cache(&self) -> bool {
                self.flush_cache
            }

            fn weight_version(&self) -> Option<&str> {
                self.weight_version.as_deref()
            }
        }
    )*};
}

update_effects!(
    UpdateWeightsFromDiskRequest,
    UpdateWeightsFromDistributedRequest,
    UpdateWeightsFromTensorRequest
);

impl UpdateEffects for UpdateWeightsFromIpcRequest {
    fn flushes_cache(&self) -> bool {
        self.flush_cache
    }

    fn weight_version(&self) -> Option<&str> {
        self.weight_version.as_deref()
    }
}

impl UpdateEffects for InitWeightsUpdateGroupRequest {}
impl UpdateEffects for DestroyWeightsUpdateGroupRequest {}
impl UpdateEffects for BeginWeightUpdateRequest {}
impl UpdateEffects for EndWeightUpdateRequest {}
