//! Describes the time of the API server, which virtual time leaves out.

use serde_json::{Map, Value};

use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::SchedulerSpec;

use super::pools::WorkerPools;

impl WorkerPools {
    /// Returns the mean time of a request in vLLM's API server before the engine, in milliseconds,
    /// which the latencies of a replay leave out.
    ///
    /// The time is that of an idle API server for the mean prompt of the run with the summary `summary`.
    /// `None` unless the engines are vLLM's with step times of the roofline.
    pub fn front_end_ms(&self, summary: &Map<String, Value>) -> Option<f64> {
        let entry = self.prefill.as_ref().unwrap_or(&self.serving);
        let Some(SchedulerSpec::Vllm(engine)) = entry.engines.first() else {
            return None;
        };
        let LatencyModel::Roofline(roofline) = &engine.latency else {
            return None;
        };
        // The cast saturates.
        let prompt = mean_prompt_tokens(summary)?.round() as u32;
        Some(roofline.front_end_processing_delay(prompt, 0).as_secs_f64() * 1e3)
    }

    /// Returns a sentence about the time that [`Self::front_end_ms`] leaves out.
    pub fn front_end_note(&self, summary: &Map<String, Value>) -> Option<String> {
        let ms = self.front_end_ms(summary)?;
        let prompt = mean_prompt_tokens(summary)?;
        Some(format!(
            "the API server before the engine, which adds {ms:.1} ms or more to TTFT and E2E of \
             the mean prompt ({prompt:.0} tokens); `validate` and its known errors include it"
        ))
    }
}

fn mean_prompt_tokens(summary: &Map<String, Value>) -> Option<f64> {
    let number = |key: &str| summary.get(key).and_then(Value::as_f64);
    let completed = number("completed_requests").filter(|completed| *completed > 0.0)?;
    Some(number("total_input_tokens")? / completed)
}
