use std::time::Duration;

use serde::Deserialize;

/// Version of the dataset file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetFormat {
    /// Format v0.6: prompts hashed as text, replies without token ids.
    Texts,
    /// Format after v0.6: prompts hashed as token ids, replies with token ids and texts.
    Tokens,
}

/// Reply in a dataset row, parsed from the JSON in the column `gen_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct StoredReply {
    /// Token ids of the reply; empty in a v0.6 file.
    pub(super) tokens: Vec<u32>,
    pub(super) texts: Vec<String>,
    /// Time of each token since the start of the request; empty if not recorded.
    pub(super) times: Vec<Duration>,
    /// Number of the reply's leading tokens that are reasoning content.
    pub(super) reasoning: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum GenTokensJson {
    Texts(Vec<String>),
    Tokens {
        #[serde(rename = "Tokens", alias = "tokens", alias = "numbers")]
        tokens: Option<Vec<u32>>,
        #[serde(rename = "Strings", alias = "strings")]
        strings: Option<Vec<String>>,
    },
}

/// Parses the column `gen_tokens` of a row, and detects the format version.
///
/// # Errors
/// Returns a message for invalid JSON.
pub(super) fn parse_gen_tokens(json: &str) -> Result<(DatasetFormat, StoredReply), String> {
    let wrong = || {
        "gen_tokens is neither an array of strings nor \
         {\"Tokens\": [ids], \"Strings\": [texts]}"
            .to_owned()
    };
    match serde_json::from_str(json).map_err(|_| wrong())? {
        GenTokensJson::Texts(texts) => {
            let recorded = StoredReply { texts, ..StoredReply::default() };
            Ok((DatasetFormat::Texts, recorded))
        }
        GenTokensJson::Tokens { tokens: None, strings: None } => Err(wrong()),
        GenTokensJson::Tokens { tokens, strings } => {
            // Go writes a nil slice as null.
            let tokens = tokens.unwrap_or_default();
            let texts = strings.unwrap_or_default();
            if tokens.len() != texts.len() {
                let (ids, strings) = (tokens.len(), texts.len());
                return Err(format!("gen_tokens has {ids} Tokens and {strings} Strings"));
            }
            let recorded = StoredReply { tokens, texts, ..StoredReply::default() };
            Ok((DatasetFormat::Tokens, recorded))
        }
    }
}

/// Parses the column `token_us` of a row: the time of each of `tokens` tokens since the start of
/// the request, in µs.
///
/// # Errors
/// Returns a message for invalid JSON.
#[cfg(any(feature = "sqlite", test))]
pub(super) fn parse_token_times(json: &str, tokens: usize) -> Result<Vec<Duration>, String> {
    let wrong = |_| "token_us is not an array of microseconds".to_owned();
    let micros: Vec<u64> = serde_json::from_str(json).map_err(wrong)?;
    if micros.len() != tokens {
        let found = micros.len();
        return Err(format!("token_us has {found} times for {tokens} tokens"));
    }
    if !micros.is_sorted() {
        return Err("token_us decreases".to_owned());
    }
    Ok(micros.into_iter().map(Duration::from_micros).collect())
}

/// Parses the column `gen_tokens` of a row to token ids and texts; a v0.6 row has no ids.
///
/// # Errors
/// Returns a message for invalid JSON.
pub fn token_ids_and_texts(gen_tokens: &str) -> Result<(Vec<u32>, Vec<String>), String> {
    parse_gen_tokens(gen_tokens).map(|(_, recorded)| (recorded.tokens, recorded.texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dataset_formats_are_parsed() {
        let texts = vec!["a ".to_owned(), "b".to_owned()];
        let old = parse_gen_tokens(r#"["a ","b"]"#);
        let recorded = StoredReply { texts: texts.clone(), ..StoredReply::default() };
        assert_eq!(old, Ok((DatasetFormat::Texts, recorded)));
        let recorded = StoredReply { tokens: vec![1, 2], texts, ..StoredReply::default() };
        // A tool of llm-d writes the second form.
        for json in [
            r#"{"Tokens":[1,2],"Strings":["a ","b"]}"#,
            r#"{"strings":["a ","b"],"numbers":[1,2]}"#,
        ] {
            assert_eq!(parse_gen_tokens(json), Ok((DatasetFormat::Tokens, recorded.clone())));
        }
    }

    #[test]
    fn token_times_are_one_per_token_and_ascending() {
        let times = [5, 5, 90].map(Duration::from_micros);
        assert_eq!(parse_token_times("[5,5,90]", 3), Ok(times.to_vec()));
        for json in ["[5,5]", "[5,4,9]", "[-1,0,1]", "{}", ""] {
            assert!(parse_token_times(json, 3).is_err(), "{json}");
        }
    }

    #[test]
    fn invalid_gen_tokens_are_errors() {
        for json in ["", "[1]", "{}", "null", r#"{"Tokens":[1],"Strings":[]}"#, "[\"a\""] {
            assert!(parse_gen_tokens(json).is_err(), "{json}");
        }
    }
}
