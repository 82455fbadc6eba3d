//! Encodes the output messages of an engine core in MessagePack.
//!
//! Arrays omit trailing fields that decoders fill with defaults.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/__init__.py`, `EngineCoreOutputs`, `EngineCoreOutput`.

use std::sync::Arc;

use rmp::encode;
use rmpv::Value;

use super::logprobs::LogprobRows;
use super::stats::SchedulerStats;
use vllm_sim_engine::SimTime;

/// Names of the 32-bit integer and float types in numpy arrays and torch tensors.
const NUMPY_DTYPES: [&str; 2] = ["<i4", "<f4"];
const TORCH_DTYPES: [&str; 2] = ["int32", "float32"];

/// Finish reason of a request, as in vLLM's `FinishReason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishReason {
    Stop = 0,
    Length = 1,
    Abort = 2,
    Error = 3,
}

/// Type of a request's event, as in vLLM's `EngineCoreEventType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineCoreEventType {
    Queued = 1,
    Scheduled = 2,
    Preempted = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefillStats {
    pub(crate) prompt: u32,
    /// Number of the request's prompt tokens found in this engine's prefix cache.
    pub(crate) cached: u32,
    /// Number of the request's prompt tokens whose KV cache comes from another engine.
    pub(crate) external: u32,
}

/// Error of a request that ends without output (vLLM 0.33).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineRequestError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) retryable: bool,
}

/// Tensor of a pooling result, such as an embedding, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PoolingTensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) numbers: Vec<f32>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct EngineCoreOutput {
    pub(crate) id: Arc<str>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Option<LogprobRows>,
    pub(crate) prompt_logprobs: Option<LogprobRows>,
    pub(crate) pooled: Option<PoolingTensor>,
    pub(crate) finish: Option<FinishReason>,
    /// Matched stop token of a finished request, if it is not the end-of-sequence token.
    pub(crate) stop: Option<u32>,
    pub(crate) events: Vec<(EngineCoreEventType, SimTime)>,
    pub(crate) prefill: Option<PrefillStats>,
    /// Log probabilities of the tokens named by a scoring request, one row per scored prompt
    /// position.
    pub(crate) prompt_scores: Option<PoolingTensor>,
    pub(crate) trace: Option<Arc<Value>>,
    pub(crate) error: Option<EngineRequestError>,
}

impl EngineCoreOutput {
    pub(crate) fn empty_output(request_id: Arc<str>) -> Self {
        Self { id: request_id, ..Self::default() }
    }
}

/// A MessagePack encoder with integers of minimal width. Writing to a buffer cannot fail.
#[derive(Default)]
pub(crate) struct MsgpackWriter(Vec<u8>);

impl MsgpackWriter {
    pub(crate) fn into_msgpack_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn write_nil(&mut self) {
        let _ = encode::write_nil(&mut self.0);
    }

    pub(crate) fn write_bool(&mut self, flag: bool) {
        let _ = encode::write_bool(&mut self.0, flag);
    }

    pub(crate) fn write_uint(&mut self, n: u64) {
        let _ = encode::write_uint(&mut self.0, n);
    }

    pub(crate) fn write_float(&mut self, x: f64) {
        let _ = encode::write_f64(&mut self.0, x);
    }

    pub(crate) fn write_text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.0, text);
    }

    pub(crate) fn write_array_len(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.0, len as u32);
    }

    pub(crate) fn write_map_len(&mut self, len: usize) {
        let _ = encode::write_map_len(&mut self.0, len as u32);
    }

    pub(crate) fn write_value(&mut self, value: &Value) {
        let _ = rmpv::encode::write_value(&mut self.0, value);
    }

    pub(crate) fn write_count_entry(&mut self, key: &str, n: u64) {
        self.write_text(key);
        self.write_uint(n);
    }

    pub(crate) fn write_count_array(&mut self, counts: &[u64]) {
        self.write_array_len(counts.len());
        for count in counts {
            self.write_uint(*count);
        }
    }

    fn write_ids(&mut self, ids: &[u32]) {
        self.write_array_len(ids.len());
        for id in ids {
            self.write_uint((*id).into());
        }
    }

    fn write_or_nil<T>(&mut self, item: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match item {
            Some(item) => write(self, item),
            None => self.write_nil(),
        }
    }

    fn write_output(&mut self, output: &EngineCoreOutput) {
        self.write_array_len(match (&output.error, &output.prompt_scores) {
            (Some(_), _) => 19,
            (None, Some(_)) => 18,
            (None, None) => 12,
        });
        self.write_text(&output.id);
        self.write_ids(&output.tokens);
        self.write_or_nil(output.logprobs.as_ref(), |w, rows| {
            w.write_logprobs(rows, &NUMPY_DTYPES);
        });
        self.write_or_nil(output.prompt_logprobs.as_ref(), |w, rows| {
            w.write_logprobs(rows, &TORCH_DTYPES);
        });
        self.write_or_nil(output.pooled.as_ref(), Self::write_tensor);
        self.write_or_nil(output.finish, |w, finish| w.write_uint(finish as u64));
        self.write_or_nil(output.stop, |w, stop| w.write_uint(stop.into()));
        let events = Some(&output.events).filter(|events| !events.is_empty());
        self.write_or_nil(events, |w, events| {
            w.write_array_len(events.len());
            for (kind, at) in events {
                w.write_map_len(2);
                w.write_count_entry("type", *kind as u64);
                w.write_text("timestamp");
                w.write_float(at.as_secs_f64());
            }
        });
        // Parameters of KV transfers and of encoder-cache transfers.
        (0..2).for_each(|_| self.write_nil());
        self.write_or_nil(output.trace.as_deref(), Self::write_value);
        self.write_or_nil(output.prefill, Self::write_prefill_stats);
        if output.error.is_none() && output.prompt_scores.is_none() {
            return;
        }
        self.write_nil();
        self.write_uint(0);
        (0..3).for_each(|_| self.write_nil());
        self.write_or_nil(output.prompt_scores.as_ref(), Self::write_tensor);
        if let Some(error) = &output.error {
            self.write_error(error);
        }
    }

    fn write_error(&mut self, error: &EngineRequestError) {
        self.write_map_len(3);
        self.write_text("code");
        self.write_text(error.code);
        self.write_text("message");
        self.write_text(&error.message);
        self.write_text("retryable");
        self.write_bool(error.retryable);
    }

    fn write_tensor(&mut self, tensor: &PoolingTensor) {
        let numbers = tensor.numbers.iter();
        self.write_ndarray(TORCH_DTYPES[1], &tensor.shape, numbers.map(|x| x.to_le_bytes()));
    }

    /// Writes log probabilities as vLLM's `LogprobsLists`: token ids, values and ranks; request
    /// boundaries stay nil.
    fn write_logprobs(&mut self, rows: &LogprobRows, [int, float]: &[&str; 2]) {
        let shape = [rows.ranks.len(), rows.columns];
        self.write_array_len(4);
        self.write_ndarray(int, &shape, rows.ids.iter().map(|id| id.to_le_bytes()));
        self.write_ndarray(float, &shape, rows.values.iter().map(|x| x.to_le_bytes()));
        self.write_ndarray(int, &shape[..1], rows.ranks.iter().map(|n| n.to_le_bytes()));
        self.write_nil();
    }

    /// Writes a numpy array of 4-byte numbers into the message itself, whatever its size, never as
    /// a separate ZMQ frame.
    fn write_ndarray(
        &mut self,
        dtype: &str,
        shape: &[usize],
        numbers: impl Iterator<Item = [u8; 4]>,
    ) {
        /// MessagePack extension type of inline array bytes, vLLM's `CUSTOM_TYPE_RAW_VIEW`.
        const EXT_RAW_VIEW: i8 = 3;

        self.write_array_len(3);
        self.write_text(dtype);
        self.write_array_len(shape.len());
        for size in shape {
            self.write_uint(*size as u64);
        }
        let bytes = 4 * shape.iter().product::<usize>();
        let _ = encode::write_ext_meta(&mut self.0, bytes as u32, EXT_RAW_VIEW);
        self.0.extend(numbers.flatten());
    }

    fn write_prefill_stats(&mut self, stats: PrefillStats) {
        let cached = stats.cached + stats.external;
        self.write_map_len(6);
        self.write_count_entry("num_prompt_tokens", stats.prompt.into());
        let computed = stats.prompt.saturating_sub(cached);
        self.write_count_entry("num_computed_tokens", computed.into());
        self.write_count_entry("num_cached_tokens", cached.into());
        self.write_count_entry("num_local_cached_tokens", stats.cached.into());
        self.write_count_entry("num_external_cached_tokens", stats.external.into());
        self.write_count_entry("num_cache_creation_tokens", 0);
    }
}

/// Encodes the outputs of one engine step for one front end, optionally with scheduler statistics
/// and the label of the model weights.
pub(crate) fn encode_step_outputs(
    rank: u32,
    at: SimTime,
    outputs: &[EngineCoreOutput],
    stats: Option<&SchedulerStats>,
    weight_version: Option<&str>,
) -> Vec<u8> {
    let mut w = MsgpackWriter::default();
    w.write_array_len(if weight_version.is_some() { 9 } else { 4 });
    w.write_uint(rank.into());
    w.write_array_len(outputs.len());
    for output in outputs {
        w.write_output(output);
    }
    w.write_or_nil(stats, |w, stats| stats.write_scheduler_stats(w));
    w.write_float(at.as_secs_f64());
    if let Some(version) = weight_version {
        // Result of a utility call, finished requests, and changes of the wave.
        (0..4).for_each(|_| w.write_nil());
        w.write_text(version);
    }
    w.into_msgpack_bytes()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataParallelWaveChange {
    Begun(u64),
    Complete(u64),
}

/// Encodes a notification for the coordinator that a wave of data-parallel ranks starts or ends.
pub(crate) fn encode_wave_change(rank: u32, change: DataParallelWaveChange) -> Vec<u8> {
    let mut w = MsgpackWriter::default();
    w.write_array_len(8);
    w.write_uint(rank.into());
    w.write_array_len(0);
    w.write_nil();
    w.write_float(0.0);
    (0..2).for_each(|_| w.write_nil());
    match change {
        DataParallelWaveChange::Complete(wave) => {
            w.write_uint(wave);
            w.write_nil();
        }
        DataParallelWaveChange::Begun(wave) => {
            w.write_nil();
            w.write_uint(wave);
        }
    }
    w.into_msgpack_bytes()
}

/// Encodes the response to a front end's utility call.
pub(crate) fn encode_utility_response(
    rank: u32,
    call: &Value,
    result: &Result<Value, String>,
) -> Vec<u8> {
    let mut w = MsgpackWriter::default();
    w.write_array_len(5);
    w.write_uint(rank.into());
    w.write_array_len(0);
    w.write_nil();
    w.write_float(0.0);
    w.write_array_len(3);
    w.write_value(call);
    match result {
        Ok(result) => {
            w.write_nil();
            w.write_array_len(2);
            w.write_nil();
            w.write_value(result);
        }
        Err(failure) => {
            w.write_text(failure);
            w.write_nil();
        }
    }
    w.into_msgpack_bytes()
}
