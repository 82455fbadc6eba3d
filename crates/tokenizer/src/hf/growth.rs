//! Limits the growth of text by the normalizer and decoder of a `tokenizer.json`.
//!
//! Model folders are downloaded, and a few lines in them could otherwise exhaust memory.

use serde_json::Value as Json;

/// Maximum growth factor of a text's length in bytes; Unicode's normal forms need at most 11.
const MAX_TEXT_GROWTH_FACTOR: f64 = 256.0;

/// Checks that a tokenizer's normalizer or decoder (`normalizer_or_decoder`) cannot make a text much longer.
///
/// # Errors
/// A message if the part may lengthen a text by more than [`MAX_TEXT_GROWTH_FACTOR`].
pub(super) fn check_text_growth_limit(
    part_name: &str,
    normalizer_or_decoder: &Json,
) -> Result<(), String> {
    let mut unicode = 1.0_f64;
    let growth = text_growth_factor(normalizer_or_decoder, &mut unicode) * unicode;
    if growth <= MAX_TEXT_GROWTH_FACTOR {
        return Ok(());
    }
    Err(format!(
        "its {part_name} may make a text {growth:.0} times as long; at most {MAX_TEXT_GROWTH_FACTOR} times is \
         allowed"
    ))
}

/// Returns the maximum factor by which a normalizer or decoder lengthens a text.
///
/// Several Unicode normal forms grow a text only once: their factor is returned in `unicode`.
fn text_growth_factor(part: &Json, unicode: &mut f64) -> f64 {
    let length = |key: &str| part[key].as_str().map_or(0, str::len) as f64;
    match part["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let lists = ["normalizers", "decoders"];
            let parts = lists.iter().filter_map(|list| part[*list].as_array());
            parts.flatten().map(|part| text_growth_factor(part, unicode)).product()
        }
        "Replace" => match part["pattern"]["String"].as_str() {
            Some(pattern) => (length("content") / pattern.len().max(1) as f64).max(1.0),
            // The pattern may match at every position.
            None => length("content") + 1.0,
        },
        "Prepend" => 1.0 + length("prepend"),
        "NFKC" | "NFKD" | "Precompiled" => {
            *unicode = unicode.max(11.0);
            1.0
        }
        "NFC" | "NFD" => {
            *unicode = unicode.max(4.0);
            1.0
        }
        "BertNormalizer" => 4.0,
        "Lowercase" | "ByteLevel" => 2.0,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn normalizers_that_grow_text_too_much_are_rejected() {
        let replace = |pattern: Json, times: usize| json!({"type": "Replace", "pattern": pattern, "content": "▁".repeat(times)});
        let space = replace(json!({"String": " "}), 1);
        let sequence = |parts: &[Json]| json!({"type": "Sequence", "normalizers": parts});
        let albert = sequence(&[
            json!({"type": "NFKD"}),
            json!({"type": "StripAccents"}),
            json!({"type": "Lowercase"}),
            json!({"type": "Precompiled", "precompiled_charsmap": ""}),
            replace(json!({"Regex": " {2,}"}), 1),
        ]);
        let llama = sequence(&[json!({"type": "Prepend", "prepend": "▁"}), space]);
        for fine in [Json::Null, albert, llama] {
            assert_eq!(check_text_growth_limit("normalizer", &fine), Ok(()), "{fine}");
        }
        let long = replace(json!({"String": "a"}), 30);
        let bombs = sequence(&[long.clone(), long.clone(), long]);
        let told = check_text_growth_limit("normalizer", &bombs).unwrap_err();
        assert!(told.contains("times as long"), "{told}");
        assert!(check_text_growth_limit("decoder", &replace(json!({"Regex": ""}), 100)).is_err());
    }
}
