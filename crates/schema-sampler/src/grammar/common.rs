//! Regular expressions for Lark's library of common terminals.
//!
//! Source: `lark/grammars/common.lark`. Each pattern matches only a readable subset of its
//! terminal.

const LARK_COMMON_TERMINALS: &[(&str, &str)] = &[
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9a-f]"),
    ("INT", "[1-9][0-9]{0,2}"),
    ("SIGNED_INT", "-?[1-9][0-9]{0,2}"),
    ("DECIMAL", r"[1-9][0-9]?\.[0-9]{1,2}"),
    ("_EXP", "e[1-9]"),
    ("FLOAT", r"[1-9][0-9]?\.[0-9]{1,2}"),
    ("SIGNED_FLOAT", r"-?[1-9][0-9]?\.[0-9]{1,2}"),
    ("NUMBER", r"[1-9][0-9]?(\.[0-9]{1,2})?"),
    ("SIGNED_NUMBER", r"-?[1-9][0-9]?(\.[0-9]{1,2})?"),
    ("ESCAPED_STRING", r#""[a-z]+""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[a-z]+"),
    ("CNAME", "[a-z]+"),
    ("WS_INLINE", " "),
    ("WS", " "),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"\n"),
    ("SH_COMMENT", "# [a-z]+"),
    ("CPP_COMMENT", "// [a-z]+"),
    ("C_COMMENT", r"/\* [a-z]+ \*/"),
    ("SQL_COMMENT", "-- [a-z]+"),
];

/// Returns the regular expression for Lark's terminal `common.NAME`.
///
/// # Errors
/// An error message with the available names.
pub(super) fn lark_common_terminal_regex(name: &str) -> Result<&'static str, String> {
    LARK_COMMON_TERMINALS
        .iter()
        .find_map(|(known, pattern)| (*known == name).then_some(*pattern))
        .ok_or_else(|| {
            let names: Vec<String> =
                LARK_COMMON_TERMINALS.iter().map(|(n, _)| format!("common.{n}")).collect();
            format!(
                "Unknown common regex: common.{name}; following are available: {}",
                names.join(", ")
            )
        })
}
