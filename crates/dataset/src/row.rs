use std::time::Duration;

use serde::Deserialize;

/// Which writer a file is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// v0.6: prompts are hashed as text, replies are strings without token ids.
    Texts,
    /// After v0.6: prompts are hashed as token ids, replies have ids and strings.
    Tokens,
}

/// A reply as a row holds it: the JSON of `gen_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Recorded {
    /// Token ids; empty in a v0.6 file.
    pub(super) tokens: Vec<u32>,
    /// The text of each token.
    pub(super) texts: Vec<String>,
    /// When each token came; empty when that was not recorded.
    pub(super) times: Vec<Duration>,
    /// How many of the first tokens are reasoning.
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

/// Reads `gen_tokens`, and says which generation wrote it.
///
/// # Errors
/// What is wrong with it, in words.
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

/// Reads `token_us`: microseconds from the start of the request to each of `tokens` tokens.
///
/// # Errors
/// What is wrong with it, in words.
#[cfg(any(feature = "sqlite", test))]
pub(super) fn parse_times(json: &str, tokens: usize) -> Result<Vec<Duration>, String> {
    let wrong = |_| "token_us is no array of microseconds".to_owned();
    let micros: Vec<u64> = serde_json::from_str(json).map_err(wrong)?;
    if micros.len() != tokens {
        let found = micros.len();
        return Err(format!("token_us has {found} times for {tokens} tokens"));
    }
    if !micros.is_sorted() {
        return Err("token_us runs backwards".to_owned());
    }
    Ok(micros.into_iter().map(Duration::from_micros).collect())
}

/// The token ids and texts of a `gen_tokens`; a v0.6 row has no ids.
///
/// # Errors
/// What is wrong with it, in words.
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
        // Upstream's own tool wrote the second one for a while.
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
    fn what_is_neither_is_refused() {
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
