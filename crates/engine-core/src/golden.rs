//! Compares engine core messages byte for byte with `golden/*.hex`.
//!
//! With `BLESS=1` the test rewrites the files of our messages; those of `vllm-rs` are recordings.

use std::path::Path;

use rmpv::Value;

use super::encode::{
    self, EngineCoreEventType, EngineCoreOutput, EngineRequestError, FinishReason, PrefillStats,
};
use super::encode::{DataParallelWaveChange, PoolingTensor};
use super::logprobs::LogprobRows;
use super::request::{EngineCoreRequest, EngineCoreRequestFields, EngineCoreRequestKind};
use super::stats::SchedulerStats;
use vllm_sim_engine::SimTime;

fn hex_lines(bytes: &[u8]) -> String {
    let line = |bytes: &[u8]| {
        let bytes = bytes.iter().map(|byte| format!("{byte:02x}"));
        bytes.collect::<Vec<_>>().join(" ") + "\n"
    };
    bytes.chunks(16).map(line).collect()
}

fn check_golden(name: &str, message: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{name}.hex"));
    let shown = hex_lines(message);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &shown).expect("the folder can be written to");
    }
    let golden = std::fs::read_to_string(&path).expect("there is a file");
    assert_eq!(golden, shown, "{name}");
}

fn encoded_output(fields: impl FnOnce(&mut EngineCoreOutput)) -> Vec<u8> {
    let mut output = EngineCoreOutput::empty_output("chatcmpl-1-0a1b2c3d".into());
    fields(&mut output);
    encode::encode_step_outputs(1, SimTime::from_millis(1500), &[output], None, None)
}

#[test]
fn first_tokens_have_events_and_cached_token_counts() {
    let message = encoded_output(|output| {
        output.tokens = vec![7, 70_000];
        output.events = vec![
            (EngineCoreEventType::Queued, SimTime::from_millis(1000)),
            (EngineCoreEventType::Scheduled, SimTime::from_millis(1250)),
        ];
        output.prefill = Some(PrefillStats { prompt: 40, cached: 16, external: 8 });
    });
    check_golden("first-tokens", &message);
}

#[test]
fn a_message_has_the_label_of_the_model_weights() {
    let output = EngineCoreOutput { tokens: vec![7], ..EngineCoreOutput::empty_output("a".into()) };
    let message = encode::encode_step_outputs(0, SimTime::ZERO, &[output], None, Some("default"));
    let fields = rmpv::decode::read_value(&mut &*message).expect("a message");
    let fields = fields.as_array().expect("an array");
    assert_eq!((fields.len(), fields[8].as_str()), (9, Some("default")));
}

#[test]
fn log_probabilities_are_arrays_in_the_message() {
    let rows =
        || LogprobRows { columns: 2, ids: vec![7, 9], values: vec![-0.5, -1.25], ranks: vec![1] };
    let message = encoded_output(|output| {
        output.tokens = vec![7];
        output.logprobs = Some(rows());
        output.prompt_logprobs = Some(rows());
    });
    check_golden("log-probabilities", &message);
}

#[test]
fn a_finished_output_has_its_finish_reason() {
    let message = encoded_output(|output| {
        output.tokens = vec![9];
        output.finish = Some(FinishReason::Stop);
        output.stop = Some(9);
    });
    check_golden("end", &message);
}

#[test]
fn a_rejected_request_has_an_error_code() {
    let message = encoded_output(|output| {
        output.finish = Some(FinishReason::Error);
        output.error = Some(EngineRequestError {
            code: "engine_paused",
            message: "paused".to_owned(),
            retryable: true,
        });
    });
    check_golden("refusal", &message);
}

#[test]
fn a_pooling_output_is_a_tensor() {
    let message = encoded_output(|output| {
        output.pooled =
            Some(PoolingTensor { shape: vec![2, 2], numbers: vec![1.0, 0.5, -0.5, 0.0] });
        output.finish = Some(FinishReason::Stop);
    });
    check_golden("pooled", &message);
}

#[test]
fn scheduler_stats_are_sent_with_a_step() {
    let stats = SchedulerStats { wave: 3, ..SchedulerStats::default() };
    let message = encode::encode_step_outputs(0, SimTime::from_millis(20), &[], Some(&stats), None);
    check_golden("statistics", &message);
}

#[test]
fn responses_to_calls_have_the_call_id() {
    let call = Value::from(u64::MAX - 1);
    check_golden("answer", &encode::encode_utility_response(0, &call, &Ok(true.into())));
    let failed = Err("Call to make_tea method failed: no".to_owned());
    check_golden("failed-answer", &encode::encode_utility_response(0, &call, &failed));
}

#[test]
fn waves_begin_and_end() {
    check_golden("wave-begun", &encode::encode_wave_change(1, DataParallelWaveChange::Begun(2)));
    check_golden(
        "wave-complete",
        &encode::encode_wave_change(0, DataParallelWaveChange::Complete(2)),
    );
}

/// Returns the decoded request of the golden file `name`: a chat with seed, bias, stop string and
/// template arguments, or a required tool call.
fn recorded_request(name: &str) -> (EngineCoreRequest, EngineCoreRequestFields) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{name}.hex"));
    let text = std::fs::read_to_string(&path).expect("there is a file");
    let bytes = text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Vec<_> = bytes.collect::<Result<_, _>>().expect("hexadecimal digits");
    let mut request = EngineCoreRequest::decode_request(&bytes, &[]).expect("it is right");
    let nothing = Err(super::decode::field_type_error("", &Value::Nil, ""));
    let fields = std::mem::replace(&mut request.fields, nothing);
    (request, fields.expect("it is right"))
}

#[test]
fn requests_of_real_front_ends_are_read() {
    for version in ["0.32", "0.33"] {
        let (request, chat) = recorded_request(&format!("vllm-rs-{version}-chat"));
        assert!(request.id.starts_with("chatcmpl-"));
        assert_eq!((request.client, chat.prompt.len()), (0, 15));
        let EngineCoreRequestKind::Generate(sampling) = chat.work else {
            panic!("{:?}", chat.work);
        };
        let params = sampling.params;
        assert_eq!((sampling.eos, params.seed), (Some(4084), Some(3)));
        assert_eq!((params.max_tokens, params.stop), (Some(5), None));
        assert_eq!(params.stop_token_ids, Some(vec![4081]));
        assert_eq!(params.logit_bias.map(|bias| bias.0.len()), Some(1));
        assert!(chat.parser_kwargs.is_map() && chat.reasoning_ended.is_none());
        let (_, call) = recorded_request(&format!("vllm-rs-{version}-call"));
        let EngineCoreRequestKind::Generate(sampling) = call.work else {
            panic!("{:?}", call.work);
        };
        assert!(sampling.params.structured_outputs.is_some());
        assert_eq!(call.reasoning_ended, Some(true));
    }
}
