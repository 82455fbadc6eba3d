//! Decodes `EngineCoreRequest`, a MessagePack array whose trailing fields may be missing.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/__init__.py`, `EngineCoreRequest`; `vllm/lora/request.py`.

use std::sync::Arc;

use rmpv::Value;
use serde_json::Value as Json;

use super::decode::{
    self, MsgpackArrayFields, MsgpackDecodeError, field_type_error, msgpack_map_member,
};
use vllm_sim_tokenizer::{MediaModality, PlacedMediaItem};
use vllm_sim_wire::SamplingParams;
use vllm_sim_wire::schema::RequestField;

#[derive(Debug)]
pub(crate) struct EngineCoreRequest {
    pub(crate) id: Arc<str>,
    /// Index of the front end that sent the request.
    pub(crate) client: usize,
    /// Number of the latest wave of data-parallel ranks known to the front end.
    pub(crate) wave: u64,
    /// Fields of the request other than its id, front end and wave, or the error of the first field
    /// that cannot be decoded.
    pub(crate) fields: Result<EngineCoreRequestFields, MsgpackDecodeError>,
}

impl EngineCoreRequest {
    pub(crate) fn prompt_token_count(&self) -> usize {
        self.fields.as_ref().map_or(0, |fields| fields.prompt.len())
    }
}

#[derive(Debug)]
pub(crate) struct EngineCoreRequestFields {
    pub(crate) prompt: Vec<u32>,
    pub(crate) media: Vec<PlacedMediaItem>,
    pub(crate) work: EngineCoreRequestKind,
    pub(crate) lora: Option<LoraRequest>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i64,
    /// Trace headers `traceparent` and `tracestate` of the request.
    pub(crate) trace: Option<(Box<str>, Option<Box<str>>)>,
    /// All trace headers of the request, which its outputs repeat.
    pub(crate) trace_headers: Option<Arc<Value>>,
    /// Whether reasoning has ended within the prompt; `None` if the front end does not know.
    pub(crate) reasoning_ended: Option<bool>,
    /// Arguments of the reasoning parser: the request's `chat_template_kwargs`.
    pub(crate) parser_kwargs: Value,
    /// Whether the request is aborted as soon as the engine has queued the request.
    pub(crate) abort_immediately: bool,
    /// Name of the request's session, as in its KV events.
    pub(crate) session_id: Option<String>,
}

#[derive(Debug)]
pub(crate) enum EngineCoreRequestKind {
    Generate(Box<RequestSamplingParams>),
    Pool(PoolingParams),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolingParams {
    /// Pooling task: `embed`, `classify`, `token_embed`, `token_classify`, …
    pub(crate) task: String,
    /// Number of dimensions of the embedding; `None`: as many as the model has.
    pub(crate) dimensions: Option<u32>,
    /// Whether embeddings are normalised to length 1.
    pub(crate) activation: bool,
}

#[derive(Debug)]
pub(crate) struct RequestSamplingParams {
    pub(crate) params: SamplingParams,
    /// End-of-sequence token of the front end's tokenizer.
    pub(crate) eos: Option<u32>,
    /// Token ids of the request's bad words, as encoded by the front end's tokenizer.
    pub(crate) bad_words: Vec<Vec<u32>>,
    /// Index of the first prompt position to score, and for each scored position the token ids
    /// whose log probabilities are returned.
    pub(crate) scored: Option<(usize, Vec<Vec<i64>>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoraRequest {
    pub(crate) name: String,
    pub(crate) id: i64,
    pub(crate) path: String,
    pub(crate) in_place: bool,
}

impl EngineCoreRequest {
    /// Decodes the payload of an ADD message and its auxiliary frames.
    ///
    /// # Errors
    /// [`MsgpackDecodeError`] if not even the request id can be decoded.
    pub(crate) fn decode_request(
        payload: &[u8],
        aux: &[Vec<u8>],
    ) -> Result<Self, MsgpackDecodeError> {
        let mut fields = MsgpackArrayFields::from_msgpack_array(
            decode::decode_msgpack_value(payload)?,
            "EngineCoreRequest",
        )?;
        let id = fields.take_field(0);
        let id = match id.as_str() {
            Some(text) => text.into(),
            None => return Err(field_type_error("request_id", &id, "a text")),
        };
        let client = fields.take_int_field(11).and_then(|n| usize::try_from(n).ok());
        let wave = fields.take_int_field(12).and_then(|n| u64::try_from(n).ok());
        Ok(Self {
            id,
            client: client.unwrap_or(0),
            wave: wave.unwrap_or(0),
            fields: EngineCoreRequestFields::read(fields, aux),
        })
    }
}

impl EngineCoreRequestFields {
    fn read(mut fields: MsgpackArrayFields, aux: &[Vec<u8>]) -> Result<Self, MsgpackDecodeError> {
        let embeds = fields.take_field(9);
        let prompt = match fields.take_field(1) {
            Value::Nil => tokens_of_embeddings(&embeds, aux),
            ids => decode::decode_token_ids(&ids, "prompt_token_ids")?,
        };
        if fields.take_bool_field(15) {
            let found = Value::from(true);
            return Err(field_type_error(
                "resumable",
                &found,
                "false (prompts that arrive in parts are not supported)",
            ));
        }
        let media = fields.take_field(2);
        let media = media.as_array().map_or(&[][..], Vec::as_slice);
        let work = match (fields.take_field(3), fields.take_field(4)) {
            (Value::Nil, Value::Nil) => {
                return Err(field_type_error(
                    "sampling_params",
                    &Value::Nil,
                    "set unless pooling_params is set",
                ));
            }
            (Value::Nil, pooling) => EngineCoreRequestKind::Pool(PoolingParams::read(pooling)?),
            (sampling, _) => EngineCoreRequestKind::Generate(Box::new(
                RequestSamplingParams::read(sampling, aux)?,
            )),
        };
        let lora = match fields.take_field(6) {
            Value::Nil => None,
            lora => Some(LoraRequest::decode_lora_request(lora)?),
        };
        let trace = fields.take_field(14);
        let header = |name: &str| msgpack_map_member(&trace, name).as_str().map(Into::into);
        Ok(Self {
            prompt,
            media: media.iter().map(decode_media_feature).collect::<Result<_, _>>()?,
            work,
            lora,
            cache_salt: fields.take_text_field(7),
            priority: fields.take_int_field(13).unwrap_or(0),
            trace: header("traceparent").map(|parent| (parent, header("tracestate"))),
            trace_headers: trace.is_map().then(|| Arc::new(trace)),
            reasoning_ended: fields.take_field(17).as_bool(),
            parser_kwargs: fields.take_field(18),
            abort_immediately: fields.take_bool_field(19),
            session_id: fields.take_text_field(20),
        })
    }
}

/// Returns one token per row of prompt embeddings: a hash below 256 of the row's bytes.
fn tokens_of_embeddings(embeds: &Value, aux: &[Vec<u8>]) -> Vec<u32> {
    let Some((_, shape, bytes)) = decode::decode_tensor(embeds, aux) else {
        return Vec::new();
    };
    let rows = shape.first().copied().unwrap_or(0).min(bytes.len());
    let row = |row: &[u8]| {
        let words = row.as_chunks::<2>().0.iter();
        let key = words.fold(0, |key, word| {
            vllm_sim_random::mix_u64_pair(key, u16::from_le_bytes(*word).into())
        });
        (key % 256) as u32
    };
    bytes.chunks_exact(bytes.len().checked_div(rows).unwrap_or(1).max(1)).map(row).collect()
}

impl PoolingParams {
    fn read(value: Value) -> Result<Self, MsgpackDecodeError> {
        let mut fields = MsgpackArrayFields::from_msgpack_array(value, "pooling_params")?;
        let activation = fields.take_field(0).as_bool();
        let dimensions = match fields.take_field(1) {
            Value::Nil => None,
            found => match found.as_u64().and_then(|n| u32::try_from(n).ok()) {
                Some(dimensions @ 1..) => Some(dimensions),
                _ => return Err(field_type_error("dimensions", &found, "a count of at least 1")),
            },
        };
        let task = fields.take_text_field(4);
        Ok(Self {
            task: task.ok_or_else(|| field_type_error("task", &Value::Nil, "a text"))?,
            dimensions,
            activation: activation.unwrap_or(true),
        })
    }
}

impl RequestSamplingParams {
    fn read(value: Value, aux: &[Vec<u8>]) -> Result<Self, MsgpackDecodeError> {
        if !value.is_map() {
            return Err(field_type_error("sampling_params", &value, "a map"));
        }
        let eos = msgpack_map_member(&value, "_eos_token_id").as_u64();
        let scored = msgpack_map_member(&value, "prompt_logprob_token_ids");
        let scored = match scored {
            Value::Nil => None,
            ids => {
                let rows = decode::decode_int_matrix(ids, aux);
                let rows = rows.ok_or_else(|| {
                    field_type_error("prompt_logprob_token_ids", ids, "rows of whole numbers")
                })?;
                let first =
                    msgpack_map_member(&value, "prompt_logprob_start").as_u64().unwrap_or(0);
                Some((usize::try_from(first).unwrap_or(usize::MAX), rows))
            }
        };
        let bad_words = msgpack_map_member(&value, "_bad_words_token_ids").as_array();
        let bad_words = bad_words.map_or(&[][..], Vec::as_slice).iter();
        let bad_words = bad_words.map(|ids| decode::decode_token_ids(ids, "_bad_words_token_ids"));
        let bad_words = bad_words.collect::<Result<_, _>>()?;
        let mut params = decode::msgpack_to_json(value);
        if let Json::Object(params) = &mut params {
            // The front end applies stop strings to its own text.
            params.remove("stop");
            params.remove("prompt_logprob_token_ids");
            params.remove("prompt_logprob_start");
            let outputs = params.get_mut("structured_outputs");
            if let Some(tag) = outputs.and_then(|outputs| outputs.get_mut("structural_tag"))
                && let Some(mut parsed) =
                    tag.as_str().and_then(|tag| serde_json::from_str(tag).ok())
            {
                require_object_arguments(&mut parsed);
                *tag = Json::String(parsed.to_string());
            }
        }
        let read = SamplingParams::read(&params).ok_or_else(|| {
            let found = Value::from(params.to_string());
            field_type_error("sampling_params", &found, "vLLM's SamplingParams")
        })?;
        Ok(Self {
            params: SamplingParams {
                n: 1,
                // The front end omits the token if the request ignores it.
                ignore_eos: read.ignore_eos || eos.is_none(),
                ..read
            },
            eos: eos.and_then(|id| u32::try_from(id).ok()),
            bad_words,
            scored,
        })
    }
}

/// Restricts the arguments of tool calls in a structural tag to JSON objects.
///
/// The tag of a tool that is not strict allows any JSON value, but models write objects and parsers
/// accept no other type.
fn require_object_arguments(tag: &mut Json) {
    match tag {
        Json::Array(items) => items.iter_mut().for_each(require_object_arguments),
        Json::Object(map) => {
            for (key, value) in map {
                match value {
                    Json::Bool(true) if key == "json_schema" => {
                        *value = serde_json::json!({"type": "object"});
                    }
                    _ if key == "json_schema" => {}
                    value => require_object_arguments(value),
                }
            }
        }
        _ => {}
    }
}

impl LoraRequest {
    /// Decodes the LoRA adapter of a request.
    ///
    /// # Errors
    /// [`MsgpackDecodeError::Type`] for any value but an array that begins with the adapter's name and
    /// number.
    pub(crate) fn decode_lora_request(value: Value) -> Result<Self, MsgpackDecodeError> {
        let mut fields = MsgpackArrayFields::from_msgpack_array(value, "lora_request")?;
        let name = fields.take_field(0);
        let id = fields.take_field(1);
        Ok(Self {
            name: match name.as_str() {
                Some(name) => name.to_owned(),
                None => return Err(field_type_error("lora_name", &name, "a text")),
            },
            id: match id.as_i64() {
                Some(id) => id,
                None => return Err(field_type_error("lora_int_id", &id, "a number")),
            },
            path: fields.take_text_field(2).unwrap_or_default(),
            in_place: fields.take_bool_field(4),
        })
    }
}

/// Decodes the position in the prompt and the content hash of an image, audio clip or video,
/// without its data.
fn decode_media_feature(feature: &Value) -> Result<PlacedMediaItem, MsgpackDecodeError> {
    let position = msgpack_map_member(feature, "mm_position");
    let number = |key: &'static str| {
        let found = msgpack_map_member(position, key);
        let number = found.as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| field_type_error("mm_position", position, "offset and length"))
    };
    let name = |key: &str| msgpack_map_member(feature, key).as_str().map(Arc::from);
    let identifier = name("identifier").or_else(|| name("mm_hash"));
    Ok(PlacedMediaItem {
        modality: match msgpack_map_member(feature, "modality").as_str() {
            Some("audio") => MediaModality::Audio,
            Some("video") => MediaModality::Video,
            _ => MediaModality::Image,
        },
        identifier: identifier.unwrap_or_else(|| "".into()),
        start: number("offset")?,
        len: number("length")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with every supported field.
    fn whole() -> Vec<u8> {
        let map = |entries: &[(&str, Value)]| {
            let entries = entries.iter().map(|(k, v)| ((*k).into(), v.clone()));
            Value::Map(entries.collect())
        };
        let position = map(&[("offset", 1.into()), ("length", 2.into())]);
        let media = map(&[
            ("modality", "image".into()),
            ("identifier", "hash".into()),
            ("mm_position", position),
        ]);
        let tag = r#"{"type":"structural_tag","format":{"type":"any_text"}}"#;
        let params = map(&[
            ("max_tokens", 9.into()),
            ("stop", vec![Value::from("x")].into()),
            ("logit_bias", Value::Map(vec![(7.into(), 1.5.into())])),
            ("structured_outputs", map(&[("structural_tag", tag.into())])),
            ("_eos_token_id", 2.into()),
        ]);
        let lora = vec!["name".into(), 1.into(), "path".into()];
        let trace = map(&[("traceparent", "00-1-1-00".into())]);
        let mut fields = vec![Value::Nil; 22];
        fields[0] = "id-1".into();
        fields[1] = vec![Value::from(1), 2.into(), 3.into()].into();
        fields[2] = vec![media].into();
        fields[3] = params;
        fields[6] = Value::Array(lora);
        fields[7] = "salt".into();
        fields[11] = 1.into();
        fields[13] = (-3).into();
        fields[14] = trace;
        fields[19] = true.into();
        fields[20] = "session".into();
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &fields.into()).expect("a buffer takes everything");
        bytes
    }

    #[test]
    fn every_request_field_is_decoded() {
        let request = EngineCoreRequest::decode_request(&whole(), &[]).expect("it is right");
        assert_eq!((&*request.id, request.client), ("id-1", 1));
        let fields = request.fields.expect("it is right");
        assert_eq!(fields.prompt, [1, 2, 3]);
        assert_eq!((fields.media[0].start, fields.media[0].len), (1, 2));
        assert_eq!(fields.cache_salt.as_deref(), Some("salt"));
        assert_eq!((fields.priority, fields.abort_immediately), (-3, true));
        assert_eq!(fields.session_id.as_deref(), Some("session"));
        assert_eq!(fields.lora.expect("one").name, "name");
        assert_eq!(&*fields.trace.expect("one").0, "00-1-1-00");
        let EngineCoreRequestKind::Generate(sampling) = fields.work else {
            panic!("{:?}", fields.work);
        };
        assert_eq!((sampling.params.stop, sampling.eos), (None, Some(2)));
        assert!(!sampling.params.ignore_eos);
    }

    #[test]
    fn random_bytes_never_panic_the_decoder() {
        let whole = whole();
        for cut in 0..whole.len() {
            let _ = EngineCoreRequest::decode_request(&whole[..cut], &[]);
        }
        let mut word = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..3 {
                word = vllm_sim_random::mix_u64_pair(word, 7);
                let at = word as usize % bytes.len();
                bytes[at] = (word >> 32) as u8;
            }
            let _ = EngineCoreRequest::decode_request(&bytes, &[]);
        }
        let deep = vec![0x91; 100_000];
        assert!(EngineCoreRequest::decode_request(&deep, &[]).is_err());
    }

    #[test]
    fn a_tool_call_without_schema_has_object_arguments() {
        let mut tag = serde_json::json!({"format": {"tags": [
            {"content": {"type": "json_schema", "json_schema": true}},
            {"content": {"type": "json_schema", "json_schema": {"not": {"json_schema": true}}}},
        ]}});
        require_object_arguments(&mut tag);
        let contents = tag.pointer("/format/tags").expect("they stay");
        let schemas = [0, 1].map(|tag| contents[tag]["content"]["json_schema"].to_string());
        let kept = r#"{"not":{"json_schema":true}}"#;
        assert_eq!(schemas, [r#"{"type":"object"}"#, kept]);
    }
}
