//! Decodes MessagePack messages of front ends leniently.
//!
//! Integers may have any width, map keys may be numbers, and trailing fields may be missing.

use rmpv::Value;
use serde_json::{Map, Number, Value as Json};

#[derive(Debug, thiserror::Error)]
pub(crate) enum MsgpackDecodeError {
    #[error("not valid MessagePack: {0}")]
    Format(#[from] rmpv::decode::Error),
    #[error("{field} is {found}, must be {expected}")]
    Type { field: &'static str, found: String, expected: &'static str },
}

pub(crate) fn decode_msgpack_value(mut bytes: &[u8]) -> Result<Value, MsgpackDecodeError> {
    Ok(rmpv::decode::read_value(&mut bytes)?)
}

/// The fields of a decoded MessagePack array, taken by index; missing fields read as nil.
pub(crate) struct MsgpackArrayFields(Vec<Value>);

impl MsgpackArrayFields {
    /// Splits a MessagePack array into its fields.
    ///
    /// # Errors
    /// [`MsgpackDecodeError::Type`] for any value but an array.
    pub(crate) fn from_msgpack_array(
        value: Value,
        field: &'static str,
    ) -> Result<Self, MsgpackDecodeError> {
        match value {
            Value::Array(fields) => Ok(Self(fields)),
            other => Err(field_type_error(field, &other, "an array")),
        }
    }

    pub(crate) fn take_field(&mut self, index: usize) -> Value {
        let field = self.0.get_mut(index);
        field.map_or(Value::Nil, |field| std::mem::replace(field, Value::Nil))
    }

    pub(crate) fn take_text_field(&mut self, index: usize) -> Option<String> {
        msgpack_value_into_text(self.take_field(index))
    }

    pub(crate) fn take_int_field(&mut self, index: usize) -> Option<i64> {
        self.take_field(index).as_i64()
    }

    pub(crate) fn take_bool_field(&mut self, index: usize) -> bool {
        self.take_field(index).as_bool().unwrap_or(false)
    }
}

/// Creates the error for a value that is not `expected`, as decoding requires; a long value is
/// shortened in the message.
pub(crate) fn field_type_error(
    field: &'static str,
    found: &Value,
    expected: &'static str,
) -> MsgpackDecodeError {
    let mut found = found.to_string();
    if let Some((cut, _)) = found.char_indices().nth(60) {
        found.truncate(cut);
        found.push('…');
    }
    MsgpackDecodeError::Type { field, found, expected }
}

pub(crate) fn msgpack_value_into_text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => text.into_str(),
        _ => None,
    }
}

pub(crate) fn msgpack_map_member<'v>(map: &'v Value, key: &str) -> &'v Value {
    const NIL: &Value = &Value::Nil;
    let entries = map.as_map().map_or(&[][..], Vec::as_slice);
    let found = entries.iter().find(|(k, _)| k.as_str() == Some(key));
    found.map_or(NIL, |(_, value)| value)
}

pub(crate) fn decode_token_ids(
    value: &Value,
    field: &'static str,
) -> Result<Vec<u32>, MsgpackDecodeError> {
    let items =
        value.as_array().ok_or_else(|| field_type_error(field, value, "an array of token ids"))?;
    let id = |item: &Value| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| field_type_error(field, item, "a token id"))
    };
    items.iter().map(id).collect()
}

/// Decodes a tensor to its type, shape and bytes, which are inline or in one of the message's
/// auxiliary frames `aux`.
pub(crate) fn decode_tensor<'v>(
    value: &'v Value,
    aux: &'v [Vec<u8>],
) -> Option<(&'v str, Vec<usize>, &'v [u8])> {
    let [dtype, shape, data] = value.as_array()?.as_slice() else {
        return None;
    };
    let shape = shape.as_array()?.iter();
    let shape = shape.map(|size| usize::try_from(size.as_u64()?).ok());
    let bytes = match (data.as_ext(), data.as_u64()) {
        (Some((_, bytes)), _) => bytes,
        // Frame 0 is the message itself.
        (None, Some(frame)) => aux.get(usize::try_from(frame).ok()?.checked_sub(1)?)?,
        (None, None) => return None,
    };
    Some((dtype.as_str()?, shape.collect::<Option<_>>()?, bytes))
}

pub(crate) fn decode_int_matrix(value: &Value, aux: &[Vec<u8>]) -> Option<Vec<Vec<i64>>> {
    let (dtype, shape, bytes) = decode_tensor(value, aux)?;
    let [_, columns] = shape.as_slice() else {
        return None;
    };
    let numbers: Vec<i64> = match dtype {
        "<i4" | "int32" => {
            let four = bytes.as_chunks::<4>().0.iter();
            four.map(|n| i32::from_le_bytes(*n).into()).collect()
        }
        "<i8" | "int64" => {
            let eight = bytes.as_chunks::<8>().0.iter();
            eight.map(|n| i64::from_le_bytes(*n)).collect()
        }
        _ => return None,
    };
    let rows = numbers.chunks_exact((*columns).max(1));
    Some(rows.map(<[i64]>::to_vec).collect())
}

/// Converts a MessagePack value to JSON; tensors and NaN, which JSON cannot represent, become null.
pub(crate) fn msgpack_to_json(value: Value) -> Json {
    match value {
        Value::Nil | Value::Ext(..) => Json::Null,
        Value::Boolean(b) => Json::Bool(b),
        Value::Integer(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => n.into(),
            (None, Some(n)) => n.into(),
            (None, None) => Json::Null,
        },
        Value::F32(x) => Number::from_f64(x.into()).map_or(Json::Null, Json::Number),
        Value::F64(x) => Number::from_f64(x).map_or(Json::Null, Json::Number),
        Value::String(text) => Json::String(text.into_str().unwrap_or_default()),
        Value::Binary(bytes) => Json::String(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Array(items) => Json::Array(items.into_iter().map(msgpack_to_json).collect()),
        Value::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                let key = match key {
                    Value::String(key) => key.into_str().unwrap_or_default(),
                    other => other.to_string(),
                };
                (key, msgpack_to_json(value))
            });
            Json::Object(entries.collect::<Map<_, _>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_names_or_numbers_for_keys() {
        // {"a": 1, 7: [nil, 2.5], "t": ext}
        let bytes =
            [0x83, 0xa1, b'a', 1, 7, 0x92, 0xc0, 0xca, 0x40, 0x20, 0, 0, 0xa1, b't', 0xd4, 3, 9];
        let read = msgpack_to_json(decode_msgpack_value(&bytes).expect("it is MessagePack"));
        assert_eq!(read.to_string(), r#"{"a":1,"7":[null,2.5],"t":null}"#);
    }

    #[test]
    fn garbage_is_an_error_and_never_large() {
        for bytes in [&[][..], &[0xdd, 0xff, 0xff, 0xff, 0xff], &[0xc1]] {
            let read = decode_msgpack_value(bytes);
            assert!(read.is_err() || read.is_ok_and(|v| v.is_nil()), "{bytes:?}");
        }
        assert!(decode_token_ids(&Value::from(-1), "x").is_err());
    }
}
