//! Compares Hugging Face tokenizers with Python's; `tests/fixtures/generate.py` generates the
//! results.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::SpecialTokenHandling::{With, Without};
use super::chat::golden::ChatTemplateGoldenCase;
use super::*;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");

fn golden_json(name: &str) -> Json {
    serde_json::from_str(&fs::read_to_string(Path::new(FIXTURES).join(name)).unwrap()).unwrap()
}

fn tiny_tokenizer() -> Tokenizer {
    let (tokenizer, why) =
        Tokenizer::open(&TokenizerLocation::Folder(PathBuf::from(FIXTURES).join("tiny-llama")))
            .unwrap();
    assert!(why.ends_with("tiny-llama, with a chat template"), "{why}");
    tokenizer
}

fn token_ids(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

fn strings(json: &Json) -> Vec<&str> {
    json.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn decoded_pieces(mut detokenizer: Detokenizer<'_>, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|id| detokenizer.decode_token(*id)).collect()
}

#[test]
fn texts_encode_and_decode_as_in_python() {
    let tokenizer = tiny_tokenizer();
    for case in golden_json("tiny-llama-expected.json")["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let plain = token_ids(&case["ids"]);
        let special = token_ids(&case["with_special"]);
        assert_eq!(tokenizer.encode(text, Without), plain, "{text:?}");
        assert_eq!(tokenizer.encode(text, With), special, "{text:?}");
        let pieces: Vec<String> =
            plain.iter().map(|id| tokenizer.vocabulary_entry(*id).unwrap()).collect();
        assert_eq!(pieces, strings(&case["pieces"]));
        assert!(
            pieces
                .iter()
                .zip(&plain)
                .all(|(piece, id)| tokenizer.token_id_of_entry(piece) == Some(*id))
        );
        assert_eq!(tokenizer.decode(&special, With), case["decoded"].as_str().unwrap());
        assert_eq!(
            tokenizer.decode(&special, Without),
            case["decoded_without_special"].as_str().unwrap()
        );
        assert_eq!(
            decoded_pieces(tokenizer.detokenizer(Without), &special),
            strings(&case["shown"])
        );
        assert_eq!(
            decoded_pieces(tokenizer.detokenizer(With), &special),
            strings(&case["shown_all"])
        );
        let fragments = tokenizer.tokenize_with_text(text);
        assert_eq!(fragments.ids, plain);
        assert_eq!(fragments.text, text);
        let pieces: Vec<&str> =
            (0..plain.len()).map(|index| fragments.fragment_text(index)).collect();
        assert_eq!(pieces.concat(), text);
    }
}

#[test]
fn any_ids_decode_as_in_python() {
    let tokenizer = tiny_tokenizer();
    for case in golden_json("tiny-llama-expected.json")["noise"].as_array().unwrap() {
        let ids = token_ids(&case["ids"]);
        assert_eq!(tokenizer.decode(&ids, Without), case["decoded"].as_str().unwrap());
        assert_eq!(decoded_pieces(tokenizer.detokenizer(Without), &ids), strings(&case["shown"]));
        assert_eq!(decoded_pieces(tokenizer.detokenizer(With), &ids), strings(&case["shown_all"]));
    }
    assert_eq!(tokenizer.decode(&[u32::MAX, 4096], With), "");
    assert_eq!(tokenizer.token_text(9999), "");
    assert_eq!(tokenizer.vocabulary_entry(9999), None);
}

#[test]
fn chats_render_and_encode_as_in_python() {
    let tokenizer = tiny_tokenizer();
    let cases = golden_json("templates/expected.json")["cases"].clone();
    for case in golden_json("tiny-llama-expected.json")["chats"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let input = ChatTemplateGoldenCase::new(&cases[name]);
        match (tokenizer.render_chat(&input.input()), case["text"].as_str()) {
            (Ok(text), Some(expected)) => {
                assert_eq!(text, expected, "{name}");
                assert_eq!(tokenizer.encode(&text, Without), token_ids(&case["ids"]), "{name}");
            }
            (Err(error), None) => assert_eq!(error.to_string(), case["error"].as_str().unwrap()),
            (found, expected) => panic!("{name}: {found:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn vocabulary_size_and_special_ids_are_known() {
    let tokenizer = tiny_tokenizer();
    let golden = golden_json("tiny-llama-expected.json");
    assert_eq!(u64::from(tokenizer.vocab_size()), golden["size"].as_u64().unwrap());
    assert_eq!(tokenizer.max_token_chars() as u64, golden["longest"].as_u64().unwrap());
    assert_eq!(tokenizer.eos_token_id(), Some(4084));
    assert_eq!(tokenizer.stop_token_ids(), [4081]);
    assert!(
        tokenizer.is_special_token(4080)
            && !tokenizer.is_special_token(4088)
            && !tokenizer.is_special_token(1)
    );
    assert!(tokenizer.chat_template().is_some());
}

#[test]
fn tokenizer_info_equals_vllm() {
    // Recorded from vLLM 0.32.0, where only the name is a path.
    let info = tiny_tokenizer().tokenizer_info();
    let keys: Vec<&String> = info.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "tokenizer_class",
            "bos_token",
            "eos_token",
            "pad_token",
            "clean_up_tokenization_spaces",
            "model_max_length",
            "model_input_names",
            "chat_template",
            "truncation_side",
            "name_or_path",
            "is_local",
            "local_files_only",
            "added_tokens_decoder",
            "backend"
        ]
    );
    assert_eq!(info["tokenizer_class"], "TokenizerPoolCachedTokenizersBackend");
    assert_eq!(info["added_tokens_decoder"]["4095"], "<|reserved_special_token_3|>");
    assert_eq!(info["truncation_side"], "left");
    assert_eq!(info["is_local"], true);
    assert_eq!(info["backend"], "tokenizers");
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn open(folder: &tempfile::TempDir) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::open(&TokenizerLocation::Folder(folder.path().into()))
        .map(|(tokenizer, _)| tokenizer)
}

#[test]
fn other_decoders_stream_as_in_python() {
    let golden = golden_json("decoders.json");
    for (name, model) in golden.as_object().unwrap() {
        let folder = folder(&[("tokenizer.json", &model["tokenizer"].to_string())]);
        let tokenizer = open(&folder).unwrap();
        for case in model["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids = token_ids(&case["ids"]);
            assert_eq!(tokenizer.encode(text, Without), ids, "{name} {text:?}");
            assert_eq!(tokenizer.decode(&ids, Without), case["decoded"].as_str().unwrap());
            assert_eq!(
                decoded_pieces(tokenizer.detokenizer(Without), &ids),
                strings(&case["shown"])
            );
            if case["after"].is_array() {
                let after = tokenizer.detokenizer_after(&[3 + 65], Without);
                assert_eq!(decoded_pieces(after, &ids), strings(&case["after"]), "{text:?}");
            }
            let fragments = tokenizer.tokenize_with_text(text);
            assert_eq!(fragments.text, tokenizer.decode(&ids, With), "{name} {text:?}");
            assert_eq!(fragments.ids, ids);
        }
        assert!(tokenizer.chat_template().is_none());
        assert_eq!(tokenizer.eos_token_id(), None);
    }
    let spm = folder(&[("tokenizer.json", &golden["spm"]["tokenizer"].to_string())]);
    let spm = open(&spm).unwrap();
    let world = spm.token_id_of_entry("▁world").unwrap();
    assert_eq!(spm.decode(&[world], With), "world");
    assert_eq!(spm.token_text(world), " world");
}

#[test]
fn config_files_beside_tokenizer_json_are_read() {
    let spm = golden_json("decoders.json")["spm"]["tokenizer"].to_string();
    let config = json!({
        "eos_token": {"content": "</s>", "special": true},
        "bos_token": "<s>",
        "image_token": "<image>",
        "additional_special_tokens": ["<|x|>"],
        "added_tokens_decoder": {"300": {"content": "<new>", "special": false}},
        "chat_template": [
            {"name": "default", "template": "D{{ bos_token }}{{ image_token }}{{ unk_token }}"},
            {"name": "tool_use", "template": "T{{ tools | length }}"},
        ],
    });
    let files = [
        ("tokenizer.json", spm.as_str()),
        ("tokenizer_config.json", &config.to_string()),
        ("generation_config.json", r#"{"eos_token_id": [2, 7], "temperature": 0.5}"#),
        ("config.json", r#"{"eos_token_id": 9, "text_config": {"vocab_size": 500}}"#),
    ];
    let named = folder(&files);
    let tokenizer = open(&named).unwrap();
    assert_eq!((tokenizer.eos_token_id(), tokenizer.stop_token_ids()), (Some(2), &[7][..]));
    assert_eq!(tokenizer.vocab_size(), 500);
    let image = tokenizer.token_id_of_entry("<image>").unwrap();
    assert!(
        tokenizer.is_special_token(image)
            && !tokenizer.is_special_token(tokenizer.token_id_of_entry("<new>").unwrap())
    );
    assert_eq!(tokenizer.encode("<image>", Without), [image]);
    let render = |chat: ChatTemplateInput<'_>| tokenizer.render_chat(&chat).unwrap();
    assert_eq!(render(ChatTemplateInput::default()), "D<s><image>");
    assert_eq!(
        render(ChatTemplateInput { tools: Some(&[]), ..ChatTemplateInput::default() }),
        "T0"
    );
    let by_name = ChatTemplateInput {
        chat_template: Some("tool_use"),
        tools: Some(&[]),
        ..ChatTemplateInput::default()
    };
    assert_eq!(render(by_name), "T0");
    let Tokenizer::Hf(hf) = &tokenizer else { panic!("not from files") };
    assert_eq!(hf.generation_config()["temperature"], 0.5);
    assert_eq!(hf.model_config()["eos_token_id"], 9);

    let mut files = files.to_vec();
    files.push(("chat_template.jinja", "J"));
    files.push(("additional_chat_templates/tool_use.jinja", "A"));
    let jinja = open(&folder(&files)).unwrap();
    assert_eq!(jinja.render_chat(&ChatTemplateInput::default()).unwrap(), "J");
    let tools = ChatTemplateInput { tools: Some(&[]), ..ChatTemplateInput::default() };
    assert_eq!(jinja.render_chat(&tools).unwrap(), "A");
}

#[test]
fn broken_tokenizer_files_are_named() {
    let spm = golden_json("decoders.json")["spm"]["tokenizer"].to_string();
    for broken in ["", "{", "[]", "{}", "\0", "null", r#"{"model": {"type": "BPE", "vocab": 1}}"#] {
        let error = open(&folder(&[("tokenizer.json", broken)])).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: "), "{error}");
    }
    for name in ["tokenizer_config.json", "generation_config.json", "config.json"] {
        let error = open(&folder(&[("tokenizer.json", &spm), (name, "[1]")])).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = open(&folder(&[])).unwrap_err().to_string();
    assert!(error.starts_with("no tokenizer.json in "), "{error}");
}

#[test]
fn broken_chat_templates_return_an_error() {
    let tokenizer = Tokenizer::new_simulated();
    let messages = [json!({"role": "user", "content": "a\0b\u{fffd}"}).into()];
    let render = |template| {
        tokenizer.render_chat(&ChatTemplateInput {
            messages: &messages,
            chat_template: Some(template),
            ..ChatTemplateInput::default()
        })
    };
    assert_eq!(render("{{ messages[0].content }}").unwrap(), "a\0b\u{fffd}");
    let raised =
        render("{% macro m() %}{{ raise_exception('No: \\'x\\' {1}') }}{% endmacro %}{{ m() }}");
    assert_eq!(raised, Err(ChatTemplateError::Rejected("No: 'x' {1}".to_owned())));
    for template in [
        "{{",
        "{% if %}",
        "{% for x in %}{% endfor %}",
        "{{ 'a }}",
        "{% endif %}",
        "{{ a.b.c }}",
        "{{ 'a' + 1 }}",
        "{{ none + 'a' }}",
        "{{ missing.x.y }}",
        "{{ 1 // 0 }}",
        "{{ x | nope }}",
        "{{ 'x' is nope }}",
        "{{ missing | tojson }}",
        "{{ 'x'.nope() }}",
        "{% include 'x' %}",
        "{{ 'x'[::0] }}",
        "{{ 'a'.center(1000000000000) | length }}{{ 'a'.x.y }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
        "{{ range(10000000) }}",
        "{{ ([1, 2, 3] * 9223372036854775807) | length + 'x' }}",
        "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
    ] {
        let found = render(template);
        assert!(matches!(found, Err(ChatTemplateError::Rejected(_))), "{template}: {found:?}");
    }
    let kwargs = json!({"chat_template": "x"});
    let chat = ChatTemplateInput {
        chat_template: Some("x"),
        kwargs: kwargs.as_object(),
        ..ChatTemplateInput::default()
    };
    assert_eq!(tokenizer.render_chat(&chat).unwrap(), "x");
    let both =
        ChatTemplateInput { continue_final_message: true, add_generation_prompt: true, ..chat };
    let refused = tokenizer.render_chat(&both).unwrap_err().to_string();
    assert!(refused.contains("and add_generation_prompt are not compatible. Use"), "{refused}");
}

#[test]
fn malformed_chat_messages_are_rejected() {
    let tokenizer = tiny_tokenizer();
    for (message, expected) in [
        (
            json!({"role": "user", "content": [{"text": "x"}]}),
            "Missing 'type' field in multimodal part. (parameter=type)",
        ),
        (
            json!({"role": "user", "content": [{"type": 3}]}),
            "Invalid 'type' field in multimodal part. (parameter=type)",
        ),
        (
            json!({"role": "user", "content": [{"type": "video"}]}),
            "Unsupported chat content part type: 'video'. Supported types: audio_embeds, audio_url, image_embeds, \
             image_pil, image_url, input_audio, input_image, input_text, output_text, prompt_embeds, refusal, text, \
             thinking, tool_reference, video_embeds, video_url. (parameter=type, value=video)",
        ),
        (
            json!({"role": "assistant", "tool_calls": ["x"]}),
            "assistant tool_calls entries must be objects. (parameter=tool_calls)",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}),
            "chat completions only support assistant tool_calls of type 'function'. (parameter=tool_calls)",
        ),
        (json!("x"), "each message must be an object. (parameter=messages)"),
    ] {
        let messages = [message.into()];
        let error = tokenizer.render_chat(&ChatTemplateInput {
            messages: &messages,
            ..ChatTemplateInput::default()
        });
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}

#[test]
fn simulated_tokenizer_needs_no_files() {
    let (tokenizer, why) = Tokenizer::open(&TokenizerLocation::Simulated).unwrap();
    assert_eq!(why, "simulated: words and punctuation");
    let messages = [json!({"role": "user", "content": "This is a test."}).into()];
    let chat = ChatTemplateInput {
        messages: &messages,
        add_generation_prompt: true,
        ..ChatTemplateInput::default()
    };
    let text = tokenizer.render_chat(&chat).unwrap();
    assert_eq!(text, "### user: This is a test.\n");
    let fragments = tokenizer.tokenize_with_text(&text);
    assert_eq!(fragments.ids.len(), 10);
    assert_eq!(fragments.fragment_text(4), ": ");
    assert_eq!(fragments.ids, tokenizer.encode(&text, With));
    assert_eq!(tokenizer.decode(&fragments.ids, Without), text);
    assert_eq!(decoded_pieces(tokenizer.detokenizer(Without), &fragments.ids).concat(), text);
    assert_eq!(tokenizer.token_text(3_157_421_587), "This ");
    assert_eq!(tokenizer.token_text(1), "");
    assert_eq!((tokenizer.eos_token_id(), tokenizer.stop_token_ids()), (None, &[][..]));
    assert!(tokenizer.chat_template().is_none() && !tokenizer.is_special_token(1));
    assert_eq!(tokenizer.tokenizer_info()["tokenizer_class"], "SimulatedTokenizer");
}

fn tokenizer_with_composed_characters() -> Tokenizer {
    let path = Path::new(FIXTURES).join("tiny-llama/tokenizer.json");
    let text = fs::read_to_string(path).unwrap();
    let mut json: Json = serde_json::from_str(&text).unwrap();
    json["normalizer"] = json!({"type": "NFC"});
    let regex = &mut json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
    *regex = regex.as_str().unwrap().replace("{1,3}", "").into();
    open(&folder(&[("tokenizer.json", &json.to_string())])).unwrap()
}

fn encodes_both_ways_alike(tokenizer: &Tokenizer, text: &str) {
    let Tokenizer::Hf(hf) = tokenizer else { panic!("not from files") };
    for special in [Without, With] {
        assert_eq!(
            hf.encode(text, special),
            hf.encode_with_tokenizers_crate(text, special),
            "{text:?}"
        );
    }
}

#[test]
fn fast_path_encodes_unicode_characters() {
    let tokenizer = tiny_tokenizer();
    // Combines each character with neighbors of different classes, one after another.
    let all: Vec<char> = ('\0'..'\u{20000}').chain('\u{e0000}'..'\u{e0200}').collect();
    for (part, before) in all.chunks(64).zip(["a", "1", " ", "!", "'"].into_iter().cycle()) {
        let text: String = part.iter().map(|c| format!("{before}{c}")).collect();
        encodes_both_ways_alike(&tokenizer, &text);
    }
}

proptest::proptest! {
    #[test]
    fn fast_path_equals_library_encoding(
        text in "(<\\|eot_id\\|>|<think>|<\\|eot|'(?i)(s|ll|re|x)|[a-cA-C]{1,3}|[0-9]{1,4}|[ \\t\\r\\n\u{a0}\u{2028}]{1,3}|[-.!'<>|]{1,3}|[é世\u{301}ſ½😀가\u{11a8}]{1,2}){0,12}|.{0,40}"
    ) {
        use std::sync::OnceLock;
        static BOTH: OnceLock<[Tokenizer; 2]> = OnceLock::new();
        for tokenizer in BOTH.get_or_init(|| [tiny_tokenizer(), tokenizer_with_composed_characters()]) {
            encodes_both_ways_alike(tokenizer, &text);
        }
    }
}

#[test]
fn long_text_encoded_in_parts_equals_whole_encoding() {
    let tokenizer = tiny_tokenizer();
    let line = "All the words of a licence, and 世界 too. ";
    let text = line.repeat((1 << 20) / line.len() + 100);
    let once = tokenizer.encode(line.trim_end(), Without);
    let more = tokenizer.encode(&(" ".to_owned() + line.trim_end()), Without);
    let times = text.len() / line.len();
    let ids = tokenizer.encode(&text, With);
    assert_eq!(ids[0], 4080);
    let blank = tokenizer.encode(" ", Without);
    assert_eq!(ids.len(), 1 + once.len() + (times - 1) * more.len() + blank.len());
    assert_eq!(tokenizer.decode(&ids[1..], With), text);
    let blanks = " ".repeat(11 << 20);
    assert_eq!(tokenizer.decode(&tokenizer.encode(&blanks, Without), With).len(), blanks.len());
}

#[test]
fn text_is_cut_after_a_number_of_tokens() {
    let simulated = Tokenizer::new_simulated();
    let text = "één 世界, two 😀 words";
    let pieces = simulated.tokenize_with_text(text);
    for most in 0..=pieces.ids.len() + 1 {
        let kept = most.min(pieces.ids.len());
        assert_eq!(simulated.truncate_text(text, most), pieces.text_of_tokens(0, kept));
    }
    let tiny = tiny_tokenizer();
    let count = tiny.encode(text, Without).len();
    for most in 0..=count + 1 {
        let kept = tiny.truncate_text(text, most);
        assert!(text.starts_with(kept) && tiny.encode(kept, Without).len() <= most, "{kept}");
    }
    assert_eq!(tiny.truncate_text(text, count), text);
}

#[test]
fn texts_with_one_simulated_id_do_not_change_the_cut() {
    let simulated = Tokenizer::new_simulated();
    // The character's id is the hash of a word that the tokenizer has read before.
    let collides = |n: &u32| {
        let id = crate::simulated::fnv1a_32(format!("w{n}").as_bytes());
        id.checked_sub(0x8000_0000).and_then(char::from_u32).is_some_and(|c| !c.is_ascii())
    };
    let word = format!("w{}", (0..).find(collides).unwrap());
    let id = simulated.encode(&word, Without)[0];
    let character = char::from_u32(id - 0x8000_0000).unwrap();
    let text = format!("{character}a b");
    assert_eq!(simulated.truncate_text(&text, 1), character.to_string());
}

#[test]
fn long_text_is_cut_in_parts() {
    let tokenizer = tiny_tokenizer();
    let line = "All the words of a licence, and more. ";
    let text = line.repeat((1 << 20) / line.len() + 100);
    let count = tokenizer.encode(&text, Without).len();
    for most in [3, count - 5, count] {
        let kept = tokenizer.truncate_text(&text, most);
        assert!(text.starts_with(kept));
        assert_eq!(tokenizer.encode(kept, Without).len(), most);
    }
    // The regular expression fails on such a text as a whole.
    let blanks = " ".repeat(11 << 20);
    let count = tokenizer.encode(&blanks, Without).len();
    assert_eq!(tokenizer.truncate_text(&blanks, count), blanks);
}

#[test]
fn large_inputs_are_encoded_in_time() {
    let word = "x".repeat(1 << 20);
    let blanks = " ".repeat(1 << 20);
    let lines = "a\n \n".repeat(1 << 18);
    let chinese = "世界".repeat(1 << 17);
    for tokenizer in [tiny_tokenizer(), Tokenizer::new_simulated()] {
        for text in [&word, &blanks, &lines, &chinese] {
            let ids = tokenizer.encode(text, Without);
            assert_eq!(tokenizer.decode(&ids, With).len(), text.len());
        }
        let messages: Vec<ChatMessage> = (0..10_000)
            .map(|n| json!({"role": "user", "content": format!("message {n}")}).into())
            .collect();
        let chat = ChatTemplateInput { messages: &messages, ..ChatTemplateInput::default() };
        let text = tokenizer.render_chat(&chat).unwrap();
        assert!(text.contains("message 9999"));
    }
}
