use serde::Deserialize;

use super::Generation;

/// A reply as a row holds it: the JSON of `gen_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Token ids; empty in a v0.6 file.
    pub tokens: Vec<u32>,
    /// The text of each token.
    pub texts: Vec<String>,
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
            let tokens = Vec::new();
            Ok((Generation::Texts, Recorded { tokens, texts }))
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
            Ok((Generation::Tokens, Recorded { tokens, texts }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let texts = vec!["a ".to_owned(), "b".to_owned()];
        let old = parse(r#"["a ","b"]"#);
        let tokens = Vec::new();
        let recorded = Recorded {
            tokens,
            texts: texts.clone(),
        };
        assert_eq!(old, Ok((Generation::Texts, recorded)));
        let tokens = vec![1, 2];
        let recorded = Recorded { tokens, texts };
        // Upstream's own tool wrote the second one for a while.
        for json in [
            r#"{"Tokens":[1,2],"Strings":["a ","b"]}"#,
            r#"{"strings":["a ","b"],"numbers":[1,2]}"#,
        ] {
            assert_eq!(parse(json), Ok((Generation::Tokens, recorded.clone())));
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
