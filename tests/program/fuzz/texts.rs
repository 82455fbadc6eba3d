//! Chat templates, and texts for tokenizers.

use std::fs;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use vllm_sim_tokenizer::{
    ChatMessage, ChatTemplateInput, ChatTemplates, SpecialTokenHandling, Tokenizer,
    TokenizerLocation, data_url_first_bytes,
};

use super::mutate::Corpus;
use super::run::fuzz;
use super::{bodies, files_below, literals, root};

/// Statements and expressions of Jinja.
const TOKENS: &[&str] = &[
    "{{",
    "}}",
    "{%",
    "%}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    "{{ messages }}",
    "{{ messages|tojson }}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% for i in range(1000000) %}",
    "{% if true %}",
    "{% elif x %}",
    "{% else %}",
    "{% endif %}",
    "{% set x = x ~ x %}",
    "{% set ns.x = ns.x ~ 'a' %}",
    "{% macro m(a) %}{{ m(a) }}{% endmacro %}",
    "{{ m(1) }}",
    "{% call m(1) %}",
    "{% endcall %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{% raw %}",
    "{% endraw %}",
    "{% generation %}",
    "{% endgeneration %}",
    "{% break %}",
    "{% continue %}",
    "{% include 'x' %}",
    "recursive",
    "{{ loop(messages) }}",
    "|join(',')",
    "|map(attribute='content')",
    "|selectattr('role')",
    "|tojson(indent=100)",
    "|indent(1000000)",
    "|replace('a', 'aaaa')",
    "|batch(3)",
    "|list",
    "|sort",
    "|center(100000)",
    "|format('%1000000d')",
    "'%s' % x",
    "'{:>99999}'.format(1)",
    " * 1000",
    " ** 999",
    "'a' * 1000000",
    "[1] * 1000000",
    " ~ ",
    " in ",
    " is ",
    "not ",
    "(",
    ")",
    "[",
    "]",
    "[::-1]",
    "[1:]",
    ".split('')",
    ".join(messages)",
    ".items()",
    ".content",
    "namespace(x='a')",
    "range(99999999)",
    "strftime_now('%Y')",
    "raise_exception('x')",
    "dict(a=1)",
    "loop.index0",
    "loop.previtem",
    "none",
    "9223372036854775807",
    "-1",
    "0",
    "1e308",
];

fn conversations() -> Vec<Map<String, Value>> {
    let text = fs::read(root("tests/fixtures/templates/expected.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let cases = golden["cases"].as_object().unwrap().values();
    cases.map(|case| case.as_object().unwrap().clone()).collect()
}

fn messages(case: &Map<String, Value>) -> Vec<ChatMessage> {
    let messages = case.get("messages").and_then(Value::as_array);
    let messages = messages.into_iter().flatten();
    messages.cloned().map(ChatMessage::from).collect()
}

fn chat<'a>(
    case: &'a Map<String, Value>,
    messages: &'a [ChatMessage],
    template: &'a str,
) -> ChatTemplateInput<'a> {
    let list = |name: &str| case.get(name).and_then(Value::as_array).map(Vec::as_slice);
    let flag = |name: &str| case.get(name) == Some(&Value::Bool(true));
    ChatTemplateInput {
        messages,
        tools: list("tools"),
        documents: case.get("documents"),
        add_generation_prompt: flag("add_generation_prompt"),
        continue_final_message: flag("continue_final_message"),
        chat_template: Some(template),
        kwargs: case.get("kwargs").and_then(Value::as_object),
        content_format: None,
    }
}

#[test]
fn fuzz_chat_templates() {
    let sources = files_below("tests/fixtures/templates", ".jinja").into_iter();
    let mut seeds: Vec<Vec<u8>> = sources.map(|path| fs::read(path).unwrap()).collect();
    let snippets = literals("crates/tokenizer/src/chat").into_iter();
    seeds.extend(snippets.filter(|text| text.windows(2).any(|two| two == b"{{" || two == b"{%")));
    let corpus = Corpus { seeds, tokens: TOKENS };
    let conversations = conversations();
    let mut number = 0;
    fuzz("chat templates", 2, corpus, move |input| {
        let source = String::from_utf8_lossy(input);
        let templates = ChatTemplates::new(Vec::new(), &Map::new());
        number += 1;
        let case = &conversations[number % conversations.len()];
        if let Ok(text) = templates.render_chat(&chat(case, &messages(case), &source)) {
            assert!(text.len() < 128 << 20, "{} bytes", text.len());
        }
    });
}

#[test]
fn conversations_for_templates() {
    let seeds = conversations().into_iter();
    let seeds = seeds.map(|case| Value::Object(case).to_string().into_bytes());
    let corpus = Corpus { seeds: seeds.collect(), ..bodies::corpus() };
    let sources = files_below("tests/fixtures/templates", ".jinja").into_iter();
    let sources: Vec<String> = sources.map(|path| fs::read_to_string(path).unwrap()).collect();
    let templates = ChatTemplates::new(Vec::new(), &Map::new());
    let mut number = 0;
    fuzz("conversations", 1, corpus, move |input| {
        if let Ok(Value::Object(case)) = serde_json::from_slice(input) {
            number += 1;
            let messages = messages(&case);
            let source = &sources[number % sources.len()];
            let _ = templates.render_chat(&chat(&case, &messages, source));
            let _ = ChatTemplates::default().render_chat(&chat(&case, &messages, ""));
        }
    });
}

fn tiny() -> Tokenizer {
    let folder = TokenizerLocation::Folder(root("tests/fixtures/tiny-llama"));
    Tokenizer::open(&folder).unwrap().0
}

#[test]
fn fuzz_tokenizer_texts() {
    let corpus = Corpus {
        seeds: [bodies::requests(), literals("crates/tokenizer/src")].concat(),
        tokens: &[
            "<s>",
            "</s>",
            "<|im_start|>",
            "<unk>",
            "<",
            "\u{2581}",
            "  ",
            "\n\n",
            "'s",
            "'RE",
            "0123456789",
            "ÀÉ",
            "e\u{301}",
            "\u{1112}\u{1161}\u{11ab}",
            "ﷺ",
            "𝒜",
            "👍🏽",
            "\u{e0100}",
        ],
    };
    let tokenizers = [tiny(), Tokenizer::new_simulated()];
    fuzz("texts", 2, corpus, move |input| {
        let text = String::from_utf8_lossy(input);
        for tokenizer in &tokenizers {
            let ids = tokenizer.encode(&text, SpecialTokenHandling::With);
            assert!(ids.len() <= 4 * text.len() + 8, "{} tokens", ids.len());
            let _ = tokenizer.decode(&ids, SpecialTokenHandling::Without);
            let fragments = tokenizer.tokenize_with_text(&text);
            assert_eq!(fragments.ids.len(), fragments.ends.len());
            let numbers = input.chunks_exact(4);
            let ids: Vec<u32> =
                numbers.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let _ = tokenizer.decode(&ids, SpecialTokenHandling::With);
        }
        let _ = data_url_first_bytes(&text);
    });
}

/// The files beside the vocabulary; that one is read by a library.
#[test]
fn fuzz_model_files() {
    let folder = tempfile::tempdir().unwrap();
    let from = root("tests/fixtures/tiny-llama");
    fs::copy(from.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let seed = |name: &str| fs::read(from.join(name)).unwrap();
    let generation = json!({"eos_token_id": [1, 2], "temperature": 0.7, "top_k": 5});
    let corpus = Corpus {
        seeds: vec![
            seed("config.json"),
            seed("tokenizer_config.json"),
            generation.to_string().into_bytes(),
        ],
        tokens: &[
            "\"chat_template\":",
            "\"added_tokens_decoder\":",
            "\"eos_token\":",
            "\"content\":",
            "{",
            "}",
            "[",
            "]",
            "null",
            "true",
            "\"\"",
            "\"vocab_size\":",
            "\"special\":true",
            ",",
            ":",
        ],
    };
    let folder = Arc::new(folder);
    fuzz("files of a model", 40, corpus, move |input| {
        for name in ["config.json", "tokenizer_config.json", "generation_config.json"] {
            fs::write(folder.path().join(name), input).unwrap();
        }
        let place = TokenizerLocation::Folder(folder.path().to_owned());
        if let Ok((tokenizer, _)) = Tokenizer::open(&place) {
            let _ = tokenizer.tokenizer_info().to_string();
            let _ = tokenizer.encode("Hello </s>", SpecialTokenHandling::With);
            let _ = tokenizer.vocab_size();
        }
    });
}
