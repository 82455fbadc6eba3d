use super::*;
use crate::limits::SampleLimits;
use crate::work::WorkBudget;
use vllm_sim_random::{RandomStreamPurpose, request_rng};

fn sample_texts(source: &str) -> Vec<String> {
    let grammar =
        Grammar::parse_grammar(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    (0..60)
        .map(|seed| {
            let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
            grammar
                .sample_grammar_text(&SampleLimits::default(), &mut rng, &mut WorkBudget::default())
                .unwrap_or_else(|error| panic!("{source}: {error}"))
        })
        .collect()
}

fn assert_samples_match(source: &str, pattern: &str) {
    let whole = regex::Regex::new(&format!("(?s)^(?:{pattern})$")).expect("a pattern");
    for text in sample_texts(source) {
        assert!(whole.is_match(&text), "{source}\n-> {text:?}");
    }
}

fn grammar_error(source: &str) -> String {
    Grammar::parse_grammar(source).expect_err(&format!("{source} should be refused")).to_string()
}

#[test]
fn ebnf_samples_match_the_grammar() {
    for (source, pattern) in [
        ("root ::= \"yes\" | \"no\"", "yes|no"),
        ("root ::= [a-c]+ [^a-z]", "[a-c]+[^a-z]"),
        ("root ::= item (\",\" item)*\nitem ::= [0-9]{2,3}", "[0-9]{2,3}(,[0-9]{2,3})*"),
        ("root ::= \"a\"? \"b\"{2} \"c\"{,2} \"d\"{1,}", "a?b{2}c{0,2}d+"),
        ("# note\nroot ::= a-b # more\na-b ::=\n  \"x\" |\n  \"y\"\n", "x|y"),
        ("root ::= \"\\n\\t\\\"\\\\\\x41\\u00e9\"", "\n\t\"\\\\Aé"),
        ("root ::= ( \"a\" | ( \"b\" \"c\" ) )+", "(a|bc)+"),
        ("root ::= \"\" | \"x\"", "x?"),
        ("root ::= . .", ".."),
        ("root ::= \"(\" root \")\" | \"x\"", r"\(*x\)*"),
        ("root ::= [\\]\\-a^]", r"[\]\-a^]"),
    ] {
        assert_samples_match(source, pattern);
    }
}

/// The grammar from vLLM's documentation of structured outputs.
#[test]
fn vllm_sql_grammar_example_is_parsed() {
    let source = r#"
        root ::= select_statement

        select_statement ::= "SELECT " column " from " table " where " condition

        column ::= "col_1 " | "col_2 "

        table ::= "table_1 " | "table_2 "

        condition ::= column "= " number

        number ::= "1 " | "2 "
    "#;
    assert_samples_match(source, "SELECT col_[12]  from table_[12]  where col_[12] = [12] ");
}

#[test]
fn lark_samples_match_the_grammar() {
    for (source, pattern) in [
        ("start: \"a\" | \"b\"", "a|b"),
        ("start: \"a\"\n     | \"b\"\n     | \"c\"\n", "[abc]"),
        ("start: x~3\nx: \"a\"..\"c\"", "[abc]{3}"),
        ("start: x~2..4 [\"z\"]\nx: /[0-9]/", "[0-9]{2,4}z?"),
        (
            "?start: value\n!value: INT -> number\n  | NAME\nINT: /[0-9]+/\nNAME.2: /[a-z]+/",
            "[0-9]+|[a-z]+",
        ),
        ("start: \"yes\"i", "(?i)yes"),
        ("start: A B\nA: \"a\"+\nB: /b\\/c/ // note", "a+b/c"),
        ("start: (\"a\" |\n  \"b\")\n  # note\nother: \"c\"", "a|b"),
        (
            "%import common.INT\n%import common (WORD, WS)\n%ignore WS\nstart: WORD INT",
            "[A-Za-z]+ ?[0-9]+",
        ),
        ("%import common.INT -> N\nstart: N \"+\" N\n%ignore \" \"", "[0-9]+ ?\\+ ?[0-9]+"),
        ("start: \"<c>\" %json {\"type\": \"integer\"} \"</c>\"", "<c>-?[0-9]+</c>"),
        ("start: \"[\" %lark { start: item \":\" item\n item: \"x\" } \"]\"", r"\[x:x\]"),
        ("start: x{2,3}\nx: \"q\"", "q{2,3}"),
        ("start:\nother: \"a\"", ""),
        ("start: <|tool|> TEXT\nTEXT: /.*/s", r"<\|tool\|>.*"),
        (
            "start: sum\nsum: product | sum \"+\" product\nproduct: \"1\" | \"(\" sum \")\"",
            r"[1+()]+",
        ),
    ] {
        assert_samples_match(source, pattern);
    }
}

#[test]
fn ignored_spaces_separate_words_in_samples() {
    let source = "%import common (CNAME, WS)\n%ignore WS\nstart: \"select\" CNAME \"from\" CNAME";
    assert_samples_match(source, "select [a-z]+ from [a-z]+");
}

#[test]
fn recursive_grammar_samples_terminate() {
    for source in [
        "root ::= \"a\" root | \"b\" root root | \"c\"",
        "root ::= x x x x\nx ::= root | y\ny ::= \"y\" | x x",
        "start: \"(\" start \")\" start | \"x\"",
        "root ::= value\nvalue ::= \"{\" pair (\",\" pair)* \"}\" | \"1\"\npair ::= \"k:\" value",
    ] {
        let longest = sample_texts(source).iter().map(String::len).max();
        assert!(longest.is_some_and(|n| n > 0 && n < 20_000), "{source}");
    }
}

#[test]
fn grammar_errors_name_the_position() {
    for (source, words) in [
        ("root ::= missing", "Rule 'missing' not found"),
        ("other ::= \"a\"", "No 'root' rule found"),
        ("root ::= \"a", "Unexpected end of input at line 1, 'root ::= \"a' ^ ''"),
        ("root ::= (\"a\"", "Expected ')' at line 1, 'root ::= (\"a\"' ^ ''"),
        ("root ::= [z-a]", "lower bound is larger"),
        ("root ::= root", "no finite text"),
        ("root ::= \"a\" root", "no finite text"),
        ("root ::= \"a\"{3,2}", "the upper bound is below"),
        ("root ::= \"a\"\nroot ::= \"b\"", "already exists"),
        ("start: missing", "at 1(8): unknown name: \"missing\""),
        ("other: \"a\"", "Expected ::= at line 1, 'other' ^"),
        ("start \"a\"", "Expected ::= at line 1, 'start ' ^"),
        ("start: /([/", "invalid regex \"([\" (in regex): regex parse error"),
        ("start: \"a\n", "unterminated string"),
        ("start: start", "no finite text"),
        ("%import common.NOPE\nstart: NOPE", "Unknown common regex: common.NOPE"),
        ("%declare X\nstart: X", "at 1(1): declare statement not supported yet"),
        ("start: x{1}\nx{a}: a", "template"),
        ("start: <[128]>", "token ids"),
        ("start: \"a\")", "unexpected ')'"),
        ("start: \"z\"..\"a\"", "at 1(8): invalid range order: 'z'..'a'"),
        ("", "No 'root' rule found"),
    ] {
        let text = grammar_error(source);
        assert!(text.contains(words), "{source}: {text}");
    }
}

/// Recorded from llguidance 1.9 (`LLMatcher.validate_grammar`, `grammar_from`).
#[test]
fn grammar_errors_have_llguidance_wording() {
    assert_eq!(
        grammar_error("start: \"a\"\n     | missing"),
        "Grammar error: at 2(8): unknown name: \"missing\"\n   1 | start: \"a\"\n   2 |      | \
         missing\n              ^"
    );
    assert_eq!(
        grammar_error("root ::= \"a\" ]"),
        "Invalid grammar specification: Failed to convert the grammar from GBNF to Lark: \
         Expected name at line 1, 'root ::= \"a\" ' ^ ']'"
    );
}

#[test]
fn hostile_grammars_have_bounded_work() {
    let mut doubling = "root ::= r0\n".to_owned();
    let mut chain = "root ::= r0\n".to_owned();
    for i in 0..40 {
        doubling.push_str(&format!("r{i} ::= r{0} r{0}\n", i + 1));
    }
    for i in 0..4000 {
        chain.push_str(&format!("r{i} ::= r{}\n", i + 1));
    }
    doubling.push_str("r40 ::= \"x\"");
    chain.push_str("r4000 ::= \"x\"");
    let nested = format!("root ::= {}\"x\"{}", "(".repeat(5000), ")".repeat(5000));
    let counted = "root ::= ((\"a\"{1000}){1000}){1000}".to_owned();
    for source in [doubling, chain, nested, counted] {
        if let Ok(grammar) = Grammar::parse_grammar(&source) {
            let mut rng = request_rng(1, 0, RandomStreamPurpose::Structured);
            let text = grammar.sample_grammar_text(
                &SampleLimits::default(),
                &mut rng,
                &mut WorkBudget::default(),
            );
            assert!(matches!(text, Err(ConstraintError::TooLong(_))), "{text:?}");
        }
    }
}

#[test]
fn text_without_a_start_rule_is_reported_as_ebnf() {
    let prefix = "Invalid grammar specification: Failed to convert the grammar from GBNF to Lark: ";
    for (source, detail) in [
        ("not a grammar", "Expected ::= at line 1, 'not ' ^ 'a grammar'"),
        ("root := x", "Expected ::= at line 1, 'root ' ^ ':= x'"),
        ("{", "Expected name at line 1, '' ^ '{'"),
        ("a: \"b\"", "Expected ::= at line 1, 'a' ^ ': \"b\"'"),
    ] {
        assert_eq!(grammar_error(source), format!("{prefix}{detail}"));
    }
    assert!(grammar_error("start: x").starts_with("Grammar error: at 1(8): unknown name: \"x\""));
}
