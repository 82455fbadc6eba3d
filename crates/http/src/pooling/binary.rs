//! Bytes of vectors in the number formats of embedding requests.

/// Number format and byte order in which embedding vectors are sent as base64 or binary data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EmbeddingBinaryFormat {
    number: NumberFormat,
    big_endian: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberFormat {
    Float32,
    /// A float of at most 16 bits, with its numbers of exponent and mantissa bits.
    Small {
        exponent: u32,
        mantissa: u32,
    },
}

impl EmbeddingBinaryFormat {
    /// Default binary format of embedding vectors: 32-bit floats, little-endian.
    pub(crate) const FLOAT32: Self = Self { number: NumberFormat::Float32, big_endian: false };

    /// Returns the binary vector format that a request selects by `embed_dtype` and `endianness`.
    ///
    /// Source: vLLM 0.33 `utils/serial_utils.py`, `EMBED_DTYPES`.
    pub(crate) fn new(embed_dtype: &str, endianness: &str) -> Self {
        let small = |exponent, mantissa| NumberFormat::Small { exponent, mantissa };
        let number = match embed_dtype {
            "float16" => small(5, 10),
            "bfloat16" => small(8, 7),
            "fp8_e4m3" => small(4, 3),
            "fp8_e5m2" => small(5, 2),
            _ => NumberFormat::Float32,
        };
        Self { number, big_endian: endianness == "big" }
    }

    /// Returns an embedding vector as bytes in the selected number format and byte order.
    pub(crate) fn encode_vector(self, vector: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 * vector.len());
        for value in vector {
            match self.number {
                NumberFormat::Float32 if self.big_endian => bytes.extend(value.to_be_bytes()),
                NumberFormat::Float32 => bytes.extend(value.to_le_bytes()),
                NumberFormat::Small { exponent, mantissa } => {
                    let bits = round_to_small_float(*value, exponent, mantissa);
                    match exponent + mantissa {
                        7 => bytes.push(bits as u8),
                        _ if self.big_endian => bytes.extend(bits.to_be_bytes()),
                        _ => bytes.extend(bits.to_le_bytes()),
                    }
                }
            }
        }
        bytes
    }
}

/// Returns the bits of the nearest float with fewer exponent and mantissa bits; ties go to the even
/// one.
///
/// A value beyond the largest finite one is an infinity, or that one in `fp8_e4m3`, which has no
/// infinity.
///
/// Source: PyTorch's conversions to `float8_e4m3fn` and the others.
fn round_to_small_float(value: f32, exponent: u32, mantissa: u32) -> u16 {
    let sign = (u16::from(value.is_sign_negative())) << (exponent + mantissa);
    let ones = u16::MAX >> (16 - exponent - mantissa);
    let largest = match exponent {
        4 => ones - 1,
        _ => ones ^ ((1 << mantissa) - 1),
    };
    if value.is_nan() {
        return sign | ones;
    }
    let bias = (1i32 << (exponent - 1)) - 1;
    let magnitude = f64::from(value.abs());
    if magnitude.is_infinite() {
        return sign | largest;
    }
    // The distance between neighbours is that of the value's power of two, or of subnormal values.
    let bits = magnitude.to_bits();
    let power = ((bits >> 52) as i32 - 1023).max(1 - bias);
    let units = (magnitude * 2f64.powi(mantissa as i32 - power)).round_ties_even();
    // Carries of the mantissa go to the exponent, since a value's bits grow with it.
    let subnormal_steps = f64::from(power - (1 - bias)) * f64::from(1u32 << mantissa);
    let place = subnormal_steps + units;
    if place >= f64::from(largest) { sign | largest } else { sign | place as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of PyTorch's conversions.
    #[test]
    fn small_floats_round_to_the_nearest() {
        for (value, float16, bfloat16, e4m3, e5m2) in [
            (0.0, 0x0000, 0x0000, 0x00, 0x00),
            (-0.0, 0x8000, 0x8000, 0x80, 0x80),
            (1.0, 0x3c00, 0x3f80, 0x38, 0x3c),
            (-0.1, 0xae66, 0xbdcd, 0x9d, 0xae),
            (0.193_649_2, 0x3232, 0x3e46, 0x24, 0x32),
            (0.001, 0x1419, 0x3a83, 0x01, 0x14),
            (1e-7, 0x0002, 0x33d7, 0x00, 0x00),
            (448.0, 0x5f00, 0x43e0, 0x7e, 0x5f),
            (500.0, 0x5fd0, 0x43fa, 0x7e, 0x60),
            (1e6, 0x7c00, 0x4974, 0x7e, 0x7c),
        ] {
            let bits = |dtype| match EmbeddingBinaryFormat::new(dtype, "big")
                .encode_vector(&[value])[..]
            {
                [high, low] => u16::from_be_bytes([high, low]),
                [byte] => byte.into(),
                _ => panic!("one or two bytes"),
            };
            let all = ["float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"].map(bits);
            assert_eq!(all, [float16, bfloat16, e4m3, e5m2], "{value}");
        }
    }

    #[test]
    fn bytes_are_in_the_order_that_is_asked_for() {
        let bytes = |dtype, order| EmbeddingBinaryFormat::new(dtype, order).encode_vector(&[1.0]);
        assert_eq!(bytes("float16", "native"), [0x00, 0x3c]);
        assert_eq!(bytes("float16", "big"), [0x3c, 0x00]);
        assert_eq!(bytes("float32", "little"), [0, 0, 0x80, 0x3f]);
        assert_eq!(bytes("float32", "big"), [0x3f, 0x80, 0, 0]);
    }
}
