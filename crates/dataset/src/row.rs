use std::time::Duration;

use serde::Deserialize;

/// Version of the dataset file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Format v0.6: prompts hashed as text, replies without token ids.
    Texts,
    /// Format after v0.6: prompts hashed as token ids, replies with token ids and texts.
    Tokens,
}

/// Reply stored in a dataset row, parsed from the JSON of `gen_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Recorded {
    /// Token ids of the reply; empty in a v0.6 file.
    pub(super) tokens: Vec<u32>,
    pub(super) texts: Vec<String>,
    /// Time of each token since the start of the request; empty if not recorded.
    pub(super) times: Vec<Duration>,
    /// Number of leading tokens that are reasoning content.
    pub(super) reasoning: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Json {
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
pub(super) fn parse(json: &str) -> Result<(Generation, Recorded), String> {
    let wrong = || {
        "gen_tokens is neither an array of strings nor \
         {\"Tokens\": [ids], \"Strings\": [texts]}"
            .to_owned()
    };
    match serde_json::from_str(json).map_err(|_| wrong())? {
        Json::Texts(texts) => {
            let recorded = Recorded {
                texts,
                ..Recorded::default()
            };
            Ok((Generation::Texts, recorded))
        }
        Json::Tokens {
            tokens: None,
            strings: None,
        } => Err(wrong()),
        Json::Tokens { tokens, strings } => {
            // Go writes a nil slice as null.
            let tokens = tokens.unwrap_or_default();
            let texts = strings.unwrap_or_default();
            if tokens.len() != texts.len() {
                let (ids, strings) = (tokens.len(), texts.len());
                return Err(format!("gen_tokens has {ids} Tokens and {strings} Strings"));
            }
            let recorded = Recorded {
                tokens,
                texts,
                ..Recorded::default()
            };
            Ok((Generation::Tokens, recorded))
        }
    }
}

/// Parses the column `token_us` of a row: the time of each of `tokens` tokens since the start of
/// the request, in µs.
///
/// # Errors
/// Returns a message for invalid JSON.
#[cfg(any(feature = "sqlite", test))]
pub(super) fn parse_times(json: &str, tokens: usize) -> Result<Vec<Duration>, String> {
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
pub fn tokens_of(gen_tokens: &str) -> Result<(Vec<u32>, Vec<String>), String> {
    parse(gen_tokens).map(|(_, recorded)| (recorded.tokens, recorded.texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let texts = vec!["a ".to_owned(), "b".to_owned()];
        let old = parse(r#"["a ","b"]"#);
        let recorded = Recorded {
            texts: texts.clone(),
            ..Recorded::default()
        };
        assert_eq!(old, Ok((Generation::Texts, recorded)));
        let recorded = Recorded {
            tokens: vec![1, 2],
            texts,
            ..Recorded::default()
        };
        // A tool of llm-d writes the second form.
        for json in [
            r#"{"Tokens":[1,2],"Strings":["a ","b"]}"#,
            r#"{"strings":["a ","b"],"numbers":[1,2]}"#,
        ] {
            assert_eq!(parse(json), Ok((Generation::Tokens, recorded.clone())));
        }
    }

    #[test]
    fn times_are_one_per_token_and_never_run_back() {
        let times = [5, 5, 90].map(Duration::from_micros);
        assert_eq!(parse_times("[5,5,90]", 3), Ok(times.to_vec()));
        for json in ["[5,5]", "[5,4,9]", "[-1,0,1]", "{}", ""] {
            assert!(parse_times(json, 3).is_err(), "{json}");
        }
    }

    #[test]
    fn bad_token_columns_are_errors() {
        for json in [
            "",
            "[1]",
            "{}",
            "null",
            r#"{"Tokens":[1],"Strings":[]}"#,
            "[\"a\"",
        ] {
            assert!(parse(json).is_err(), "{json}");
        }
    }
}
