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
const NUMPY: [&str; 2] = ["<i4", "<f4"];
const TORCH: [&str; 2] = ["int32", "float32"];

/// vLLM's `FinishReason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishReason {
    Stop = 0,
    Length = 1,
    Abort = 2,
    Error = 3,
}

/// vLLM's `EngineCoreEventType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventType {
    Queued = 1,
    Scheduled = 2,
    Preempted = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefillStats {
    pub(crate) prompt: u32,
    /// Number of prompt tokens from this engine's prefix cache.
    pub(crate) cached: u32,
    /// Number of prompt tokens whose KV cache comes from another engine.
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
pub(crate) struct Tensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) numbers: Vec<f32>,
}

#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) id: Arc<str>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Option<LogprobRows>,
    pub(crate) prompt_logprobs: Option<LogprobRows>,
    pub(crate) pooled: Option<Tensor>,
    pub(crate) finish: Option<FinishReason>,
    /// Matched stop token of a finished request, if it is not the end-of-sequence token.
    pub(crate) stop: Option<u32>,
    pub(crate) events: Vec<(EventType, SimTime)>,
    pub(crate) prefill: Option<PrefillStats>,
    /// Log probabilities of the tokens that a scoring request named, per row of its prompt.
    pub(crate) prompt_scores: Option<Tensor>,
    pub(crate) trace: Option<Arc<Value>>,
    pub(crate) error: Option<EngineRequestError>,
}

impl Output {
    pub(crate) fn new(id: Arc<str>) -> Self {
        Self {
            id,
            tokens: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            pooled: None,
            finish: None,
            stop: None,
            events: Vec::new(),
            prefill: None,
            prompt_scores: None,
            trace: None,
            error: None,
        }
    }
}

/// A MessagePack encoder with integers of minimal width. Writing to a buffer cannot fail.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn nil(&mut self) {
        let _ = encode::write_nil(&mut self.0);
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        let _ = encode::write_bool(&mut self.0, flag);
    }

    pub(crate) fn uint(&mut self, n: u64) {
        let _ = encode::write_uint(&mut self.0, n);
    }

    pub(crate) fn float(&mut self, x: f64) {
        let _ = encode::write_f64(&mut self.0, x);
    }

    pub(crate) fn text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.0, text);
    }

    pub(crate) fn array(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.0, len as u32);
    }

    pub(crate) fn map(&mut self, len: usize) {
        let _ = encode::write_map_len(&mut self.0, len as u32);
    }

    pub(crate) fn value(&mut self, value: &Value) {
        let _ = rmpv::encode::write_value(&mut self.0, value);
    }

    pub(crate) fn count(&mut self, key: &str, n: u64) {
        self.text(key);
        self.uint(n);
    }

    pub(crate) fn counts(&mut self, counts: &[u64]) {
        self.array(counts.len());
        for count in counts {
            self.uint(*count);
        }
    }

    fn ids(&mut self, ids: &[u32]) {
        self.array(ids.len());
        for id in ids {
            self.uint((*id).into());
        }
    }

    fn or_nil<T>(&mut self, item: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match item {
            Some(item) => write(self, item),
            None => self.nil(),
        }
    }

    fn output(&mut self, output: &Output) {
        self.array(match (&output.error, &output.prompt_scores) {
            (Some(_), _) => 19,
            (None, Some(_)) => 18,
            (None, None) => 12,
        });
        self.text(&output.id);
        self.ids(&output.tokens);
        self.or_nil(output.logprobs.as_ref(), |w, rows| {
            w.logprobs(rows, &NUMPY);
        });
        self.or_nil(output.prompt_logprobs.as_ref(), |w, rows| {
            w.logprobs(rows, &TORCH);
        });
        self.or_nil(output.pooled.as_ref(), Self::tensor);
        self.or_nil(output.finish, |w, finish| w.uint(finish as u64));
        self.or_nil(output.stop, |w, stop| w.uint(stop.into()));
        let events = Some(&output.events).filter(|events| !events.is_empty());
        self.or_nil(events, |w, events| {
            w.array(events.len());
            for (kind, at) in events {
                w.map(2);
                w.count("type", *kind as u64);
                w.text("timestamp");
                w.float(at.as_secs_f64());
            }
        });
        // Parameters of KV transfers and of encoder-cache transfers.
        (0..2).for_each(|_| self.nil());
        self.or_nil(output.trace.as_deref(), Self::value);
        self.or_nil(output.prefill, Self::prefill);
        if output.error.is_none() && output.prompt_scores.is_none() {
            return;
        }
        self.nil();
        self.uint(0);
        (0..3).for_each(|_| self.nil());
        self.or_nil(output.prompt_scores.as_ref(), Self::tensor);
        if let Some(error) = &output.error {
            self.error(error);
        }
    }

    fn error(&mut self, error: &EngineRequestError) {
        self.map(3);
        self.text("code");
        self.text(error.code);
        self.text("message");
        self.text(&error.message);
        self.text("retryable");
        self.flag(error.retryable);
    }

    fn tensor(&mut self, tensor: &Tensor) {
        let numbers = tensor.numbers.iter();
        self.ndarray(TORCH[1], &tensor.shape, numbers.map(|x| x.to_le_bytes()));
    }

    /// Writes log probabilities as vLLM's `LogprobsLists`: token ids, values and ranks; request
    /// boundaries stay nil.
    fn logprobs(&mut self, rows: &LogprobRows, [int, float]: &[&str; 2]) {
        let shape = [rows.ranks.len(), rows.columns];
        self.array(4);
        self.ndarray(int, &shape, rows.ids.iter().map(|id| id.to_le_bytes()));
        self.ndarray(float, &shape, rows.values.iter().map(|x| x.to_le_bytes()));
        self.ndarray(int, &shape[..1], rows.ranks.iter().map(|n| n.to_le_bytes()));
        self.nil();
    }

    /// Writes a numpy array of 4-byte numbers inline, whatever its size.
    fn ndarray(&mut self, dtype: &str, shape: &[usize], numbers: impl Iterator<Item = [u8; 4]>) {
        /// MessagePack extension type of inline array bytes, vLLM's `CUSTOM_TYPE_RAW_VIEW`.
        const RAW: i8 = 3;

        self.array(3);
        self.text(dtype);
        self.array(shape.len());
        for size in shape {
            self.uint(*size as u64);
        }
        let bytes = 4 * shape.iter().product::<usize>();
        let _ = encode::write_ext_meta(&mut self.0, bytes as u32, RAW);
        self.0.extend(numbers.flatten());
    }

    fn prefill(&mut self, stats: PrefillStats) {
        let cached = stats.cached + stats.external;
        self.map(6);
        self.count("num_prompt_tokens", stats.prompt.into());
        let computed = stats.prompt.saturating_sub(cached);
        self.count("num_computed_tokens", computed.into());
        self.count("num_cached_tokens", cached.into());
        self.count("num_local_cached_tokens", stats.cached.into());
        self.count("num_external_cached_tokens", stats.external.into());
        self.count("num_cache_creation_tokens", 0);
    }
}

/// Encodes the outputs of one engine step for one front end, optionally with scheduler statistics.
pub(crate) fn outputs(
    rank: u32,
    at: SimTime,
    outputs: &[Output],
    stats: Option<&SchedulerStats>,
) -> Vec<u8> {
    let mut w = Writer::default();
    w.array(4);
    w.uint(rank.into());
    w.array(outputs.len());
    for output in outputs {
        w.output(output);
    }
    w.or_nil(stats, |w, stats| stats.write(w));
    w.float(at.as_secs_f64());
    w.into_bytes()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaveEdge {
    Begun(u64),
    Complete(u64),
}

/// Encodes a notification for the coordinator that a wave of data-parallel ranks starts or ends.
pub(crate) fn wave(rank: u32, edge: WaveEdge) -> Vec<u8> {
    let mut w = Writer::default();
    w.array(8);
    w.uint(rank.into());
    w.array(0);
    w.nil();
    w.float(0.0);
    (0..2).for_each(|_| w.nil());
    match edge {
        WaveEdge::Complete(wave) => {
            w.uint(wave);
            w.nil();
        }
        WaveEdge::Begun(wave) => {
            w.nil();
            w.uint(wave);
        }
    }
    w.into_bytes()
}

/// Encodes the response to a front end's utility call.
pub(crate) fn answer(rank: u32, call: &Value, result: &Result<Value, String>) -> Vec<u8> {
    let mut w = Writer::default();
    w.array(5);
    w.uint(rank.into());
    w.array(0);
    w.nil();
    w.float(0.0);
    w.array(3);
    w.value(call);
    match result {
        Ok(result) => {
            w.nil();
            w.array(2);
            w.nil();
            w.value(result);
        }
        Err(failure) => {
            w.text(failure);
            w.nil();
        }
    }
    w.into_bytes()
}
