//! Command line of `python -m sglang.launch_server`, translated to the flags of this crate.
//!
//! SGLang's flags that act become ours; others are accepted and named in one warning. Other flags
//! of this crate are passed on. **Source:** SGLang 0.5.23 `srt/arg_groups/fields` and
//! `srt/server_args.py`.

pub(super) mod disaggregation;
mod parsers;

use std::{iter, slice};

use serde_json::{Map, Value};

use super::{ImitatedEngineCommandLine, TranslatedCommandLine};
use crate::command_line::split_at_first;
use crate::did_you_mean::closest_known_name;
use crate::error::{ConfigError, bail};
use crate::flag::FlagSpec;
use crate::flags::{self, all_effective_flags, engine, kv, model, server};
use crate::layers::{ConfigLayer, FlagValueSource};
use parsers::{REASONING_PARSERS, TOOL_PARSERS};
use vllm_sim_engine::kv::BlockHashAlgorithm;
use vllm_sim_observe::kv_events::KvEventFormat;
use vllm_sim_observe::metrics::MetricsCompat;

pub(super) const COMMAND_LINE: ImitatedEngineCommandLine = ImitatedEngineCommandLine {
    compat: MetricsCompat::Sglang,
    command: "sglang",
    module: "sglang.launch_server",
    summary: "Serve with the command line, API and metrics of SGLang",
    translate: translate_sglang_arguments,
    help_page: include_str!("help_page.txt"),
    set_defaults: set_sglang_flag_defaults,
    tool_parsers: &TOOL_PARSERS,
    reasoning_parsers: &REASONING_PARSERS,
    kv_event_format: KvEventFormat::Sglang,
    block_hash_algorithm: BlockHashAlgorithm::Sglang,
};

/// Flags of SGLang, one per line: name, kind of value, other names.
const FLAG_LIST: &str = include_str!("flags.txt");

/// Number of tokens in the KV cache of a server without GPU.
const DEFAULT_KV_TOKENS: u32 = 262_144;

/// Flags of SGLang with the flag of this crate that has the same meaning and takes the same value.
const RENAMED_FLAGS: [(&str, &str); 43] = [
    ("admin-api-key", "admin-api-key"),
    ("api-key", "api-key"),
    ("chat-template", "chat-template"),
    ("config", "config"),
    ("context-length", "max-model-len"),
    ("default-chat-template-kwargs", "default-chat-template-kwargs"),
    ("disaggregation-bootstrap-port", "disaggregation-bootstrap-port"),
    ("download-dir", "download-dir"),
    ("dp-size", "data-parallel-size"),
    ("enable-cache-report", "enable-prompt-tokens-details"),
    ("enable-lora", "enable-lora"),
    ("enable-ssl-refresh", "enable-ssl-refresh"),
    ("fastapi-root-path", "root-path"),
    ("host", "host"),
    ("incremental-streaming-output", "incremental-streaming-output"),
    ("json-model-override-args", "hf-overrides"),
    ("kv-cache-dtype", "kv-cache-dtype"),
    ("log-level", "log-level"),
    ("log-requests", "enable-log-requests"),
    ("max-loaded-loras", "max-cpu-loras"),
    ("max-lora-rank", "max-lora-rank"),
    ("max-loras-per-batch", "max-loras"),
    ("max-prefill-tokens", "sglang-max-prefill-tokens"),
    ("max-queued-requests", "max-waiting-queue-length"),
    ("max-running-requests", "max-num-seqs"),
    ("mem-fraction-static", "gpu-memory-utilization"),
    ("model-path", "model"),
    ("page-size", "block-size"),
    ("port", "port"),
    ("pp-size", "pipeline-parallel-size"),
    ("quantization", "quantization"),
    ("random-seed", "seed"),
    ("reasoning-parser", "reasoning-parser"),
    ("revision", "revision"),
    ("schedule-conservativeness", "sglang-schedule-conservativeness"),
    ("served-model-name", "served-model-name"),
    ("ssl-ca-certs", "ssl-ca-certs"),
    ("ssl-certfile", "ssl-certfile"),
    ("ssl-keyfile", "ssl-keyfile"),
    ("stream-interval", "stream-interval"),
    ("stream-response-default-include-usage", "enable-force-include-usage"),
    ("tokenizer-path", "tokenizer"),
    ("tp-size", "tensor-parallel-size"),
];

/// Names of SGLang's backends for KV cache transfer.
///
/// **Source:** SGLang 0.5.23 `srt/arg_groups/choices.py`, `DISAGG_TRANSFER_BACKEND_CHOICES`.
const TRANSFER_BACKENDS: [&str; 6] = ["mooncake", "nixl", "ascend", "fake", "mori", "mooncake_tcp"];

/// Number of values that a flag of SGLang takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arity {
    Switch,
    Value,
    List,
}

/// Description of one command-line flag of SGLang.
#[derive(Debug)]
struct SglangFlag {
    name: &'static str,
    arity: Arity,
    aliases: Vec<&'static str>,
}

fn sglang_flags() -> impl Iterator<Item = SglangFlag> {
    let lines = FLAG_LIST.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut words = line.split(' ');
        Some(SglangFlag {
            name: words.next()?,
            arity: match words.next()? {
                "switch" => Arity::Switch,
                "list" => Arity::List,
                _ => Arity::Value,
            },
            aliases: words.collect(),
        })
    })
}

fn flag_names() -> Vec<(&'static str, &'static str)> {
    let names = |flag: SglangFlag| {
        let all = iter::once(flag.name).chain(flag.aliases);
        all.map(|alias| (alias, flag.name)).collect::<Vec<_>>()
    };
    sglang_flags().flat_map(names).collect()
}

/// Returns the flag of SGLang with this name, or the only one whose names begin with it, as
/// argparse does.
fn find_sglang_flag(typed: &str) -> Option<SglangFlag> {
    let names = flag_names();
    let exact = names.iter().find(|(alias, _)| *alias == typed).map(|(_, name)| *name);
    let found = exact.or_else(|| {
        // A name of ours is not read as short for one of SGLang's.
        let ours = flags::find_long_flag(typed).is_some();
        let mut fits = names.iter().filter(|(alias, _)| !ours && alias.starts_with(typed));
        let (_, name) = fits.next()?;
        fits.all(|(_, other)| other == name).then_some(*name)
    })?;
    sglang_flags().find(|flag| flag.name == found)
}

/// Translates the arguments of `python -m sglang.launch_server` to flags of this crate.
///
/// # Errors
/// [`ConfigError::Unknown`] for a flag that neither has; [`ConfigError::Invalid`] or
/// [`ConfigError::Value`] for a missing or unsupported value.
fn translate_sglang_arguments(words: &[String]) -> Result<TranslatedCommandLine, ConfigError> {
    let mut translator = Translator { words: words.iter(), ..Translator::default() };
    while let Some(word) = translator.words.next() {
        translator.translate_word(word)?;
    }
    translator.finish()
}

#[derive(Default)]
struct Translator<'a> {
    words: slice::Iter<'a, String>,
    out: Vec<String>,
    without_effect: Vec<String>,
    typed_names: Vec<(&'static str, &'static str)>,
    has_metrics: bool,
    is_decode: bool,
    decode_has_radix_cache: bool,
    page_size: Option<u32>,
    total_tokens: Option<u32>,
}

impl<'a> Translator<'a> {
    /// Returns the next command-line argument unless it is a flag.
    fn next_value(&mut self) -> Option<&'a str> {
        let word = self.words.as_slice().first().filter(|word| !word.starts_with("--"))?;
        self.words.next();
        Some(word)
    }

    fn translate_word(&mut self, word: &'a str) -> Result<(), ConfigError> {
        let Some(body) = word.strip_prefix("--").filter(|body| !body.is_empty()) else {
            if matches!(word, "-h" | "-V") {
                self.out.push(word.to_owned());
                return Ok(());
            }
            bail!(
                "unexpected word {word:?}: `vllm-sim sglang` takes only flags, such as --model-path"
            );
        };
        let (name, inline) = split_at_first(body, '=');
        let typed = name.replace('_', "-");
        let negated = typed.strip_prefix("no-").and_then(find_sglang_flag);
        if let Some(flag) = negated.filter(|flag| flag.arity == Arity::Switch) {
            self.note_without_effect(flag.name);
            return Ok(());
        }
        match find_sglang_flag(&typed) {
            Some(flag) => self.translate_flag(&flag, inline),
            None => self.pass_on(word, &typed),
        }
    }

    fn translate_flag(
        &mut self,
        flag: &SglangFlag,
        inline: Option<&'a str>,
    ) -> Result<(), ConfigError> {
        let mut values: Vec<&str> = inline.into_iter().collect();
        match flag.arity {
            Arity::Switch if inline.is_some() => {
                bail!("--{}: takes no value", flag.name);
            }
            Arity::Switch => {}
            Arity::Value if inline.is_none() => values.extend(self.next_value()),
            Arity::Value => {}
            Arity::List => values.extend(iter::from_fn(|| self.next_value())),
        }
        if flag.arity != Arity::Switch && values.is_empty() {
            bail!("--{} needs a value", flag.name);
        }
        let names = RENAMED_FLAGS.iter().filter(|(name, _)| *name == flag.name);
        self.typed_names.extend(names.map(|(name, ours)| (*ours, *name)));
        if flag.name == "page-size" {
            self.page_size = Some(read_count(flag.name, values[0])?);
        }
        let renamed = RENAMED_FLAGS.iter().find(|(name, _)| *name == flag.name);
        let Some((_, ours)) = renamed else {
            return self.convert_flag(flag.name, &values);
        };
        self.out.push(format!("--{ours}"));
        self.out.extend(values.into_iter().map(str::to_owned));
        Ok(())
    }

    /// Appends the flags of this crate that do what a flag of SGLang does, if there are any.
    fn convert_flag(&mut self, name: &str, values: &[&str]) -> Result<(), ConfigError> {
        let value = values.first().copied().unwrap_or_default();
        let words = match name {
            "disable-radix-cache" => vec!["--no-enable-prefix-caching".to_owned()],
            "is-embedding" => vec!["--runner=pooling".to_owned()],
            "trust-request-chat-template" => vec!["--trust-request-chat-template".to_owned()],
            "enable-metrics" => {
                self.has_metrics = true;
                Vec::new()
            }
            "tool-call-parser" => vec![
                "--tool-call-parser".to_owned(),
                value.to_owned(),
                "--enable-auto-tool-choice".to_owned(),
            ],
            "chunked-prefill-size" => {
                // Without a positive size, SGLang computes every prompt in one pass.
                let is_off = value.parse::<i64>().is_ok_and(|size| size <= 0);
                let size = if is_off { "16777216" } else { value };
                self.typed_names.push(("sglang-chunked-prefill-size", "chunked-prefill-size"));
                vec!["--sglang-chunked-prefill-size".to_owned(), size.to_owned()]
            }
            "schedule-policy" => {
                check_choice(name, value, &["fcfs", "lpm"])?;
                vec!["--sglang-schedule-policy".to_owned(), value.to_owned()]
            }
            "disaggregation-mode" => {
                check_choice(name, value, &["null", "prefill", "decode"])?;
                self.is_decode = value == "decode";
                match value {
                    "null" => Vec::new(),
                    role => vec!["--disaggregation-mode".to_owned(), role.to_owned()],
                }
            }
            "disaggregation-transfer-backend" => {
                check_choice(name, value, &TRANSFER_BACKENDS)?;
                vec![format!("--{name}"), value.to_owned()]
            }
            "disaggregation-decode-enable-radix-cache" => {
                self.decode_has_radix_cache = true;
                Vec::new()
            }
            "max-total-tokens" => {
                self.total_tokens = Some(read_count(name, value)?);
                Vec::new()
            }
            "kv-events-config" => {
                vec!["--kv-events-config".to_owned(), convert_kv_events_config(value)?]
            }
            "lora-paths" => {
                let modules = values.iter().map(|value| convert_lora_path(value));
                let modules = modules.collect::<Result<Vec<_>, _>>()?;
                let flags = ["--enable-lora", "--lora-modules"].map(str::to_owned);
                flags.into_iter().chain(modules).collect()
            }
            _ => {
                self.note_without_effect(name);
                Vec::new()
            }
        };
        self.out.extend(words);
        Ok(())
    }

    fn note_without_effect(&mut self, name: &str) {
        let name = format!("--{name}");
        if !self.without_effect.contains(&name) {
            self.without_effect.push(name);
        }
    }

    /// Appends a flag of this crate, which SGLang does not have, and its values to the translated
    /// command line.
    fn pass_on(&mut self, word: &str, typed: &str) -> Result<(), ConfigError> {
        let base = typed.split('.').next().unwrap_or(typed);
        let known = |name: &str| flags::find_long_flag(name).is_some();
        let help = typed == "help" || typed == "version";
        if !(help || known(base) || base.strip_prefix("no-").is_some_and(known)) {
            let ours = all_effective_flags().map(|flag| flag.name);
            let names = flag_names().into_iter().map(|(alias, _)| alias).chain(ours);
            return Err(ConfigError::Unknown {
                what: "flag".to_owned(),
                name: word.split('=').next().unwrap_or(word).to_owned(),
                nearest: closest_known_name(typed, names).map(|name| format!("--{name}")),
            });
        }
        self.out.push(word.to_owned());
        while let Some(value) = self.next_value() {
            self.out.push(value.to_owned());
        }
        Ok(())
    }

    fn finish(mut self) -> Result<TranslatedCommandLine, ConfigError> {
        if let Some(tokens) = self.total_tokens {
            let pages = tokens / self.page_size.unwrap_or(1);
            if pages == 0 {
                return Err(value_error("max-total-tokens", tokens, "at least --page-size"));
            }
            self.out.push(format!("--num-gpu-blocks-override={}", pages.saturating_add(1)));
        }
        // Source: SGLang 0.5.23 `srt/arg_groups/pd_disaggregation_hook.py`.
        if self.is_decode && !self.decode_has_radix_cache {
            self.out.push("--no-enable-prefix-caching".to_owned());
        }
        if !self.has_metrics {
            self.out.push("--disable-log-stats".to_owned());
        }
        let named = self.without_effect.join(", ");
        let warnings = match self.without_effect.is_empty() {
            true => Vec::new(),
            false => vec![format!("{named}: no effect here")],
        };
        Ok(TranslatedCommandLine { words: self.out, warnings, typed_names: self.typed_names })
    }
}

fn value_error(flag: &str, value: impl ToString, expected: &str) -> ConfigError {
    ConfigError::Value {
        flag: format!("--{flag}"),
        value: value.to_string(),
        expected: expected.to_owned(),
        origin: FlagValueSource::CommandLine.to_string(),
    }
}

fn read_count(flag: &str, value: &str) -> Result<u32, ConfigError> {
    let count = value.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| value_error(flag, value, "a whole number of at least 1"))
}

fn check_choice(flag: &str, value: &str, choices: &[&str]) -> Result<(), ConfigError> {
    if choices.contains(&value) {
        return Ok(());
    }
    let words = choices.join(" or ");
    Err(value_error(flag, value, &format!("{words}; the others are not simulated")))
}

/// Converts the value of SGLang's `--kv-events-config`, which enables publishing only if its
/// publisher is `zmq`.
///
/// **Source:** SGLang 0.5.23 `srt/disaggregation/kv_events.py`, `KVEventsConfig`.
fn convert_kv_events_config(value: &str) -> Result<String, ConfigError> {
    let flag = "kv-events-config";
    let Ok(Value::Object(mut config)) = serde_json::from_str::<Value>(value) else {
        return Err(value_error(flag, value, "a JSON object"));
    };
    let format = config.shift_remove("format");
    if format.as_ref().is_some_and(|format| format != "default") {
        return Err(value_error(flag, value, "the format \"default\""));
    }
    if config.shift_remove("bind").is_some_and(|bind| !bind.is_null()) {
        return Err(value_error(flag, value, "no key bind: the endpoint decides"));
    }
    // SGLang binds this address; vLLM connects to it.
    if let Some(Value::String(endpoint)) = config.get_mut("endpoint") {
        *endpoint = endpoint.replace("//0.0.0.0:", "//*:");
    }
    let publisher = config.entry("publisher").or_insert_with(|| "null".into());
    let enabled = publisher == "zmq";
    config.insert("enable_kv_cache_events".to_owned(), enabled.into());
    Ok(Value::Object(config).to_string())
}

/// Converts an element of SGLang's `--lora-paths`: `name=path`, a path, or a JSON object.
fn convert_lora_path(value: &str) -> Result<String, ConfigError> {
    if !value.starts_with('{') {
        return Ok(match value.contains('=') {
            true => value.to_owned(),
            false => format!("{value}={value}"),
        });
    }
    let parsed: Option<Map<String, Value>> = serde_json::from_str(value).ok();
    let text = |key| parsed.as_ref()?.get(key)?.as_str().map(str::to_owned);
    match (text("lora_name"), text("lora_path")) {
        (Some(name), Some(path)) => Ok(format!("{name}={path}")),
        _ => {
            let expected = "a JSON object with lora_name and lora_path";
            Err(value_error("lora-paths", value, expected))
        }
    }
}

/// Sets an SGLang server's defaults for the flags that no other source of settings sets.
fn set_sglang_flag_defaults(settings: &mut ConfigLayer) {
    let page = settings.settings.get(kv::BLOCK_SIZE.name).and_then(|set| set.values.last());
    let page: u32 = page.and_then(|text| text.parse().ok()).filter(|size| *size > 0).unwrap_or(1);
    let blocks = (DEFAULT_KV_TOKENS / page).max(1) + 1;
    let sized = [engine::GPU.name, kv::KV_CACHE_MEMORY_BYTES.name, kv::KV_CACHE_SIZE.name];
    if !sized.iter().any(|name| settings.settings.contains_key(name)) {
        let blocks = blocks.to_string();
        let source = FlagValueSource::Derived;
        settings.set_if_unset(&kv::NUM_GPU_BLOCKS_OVERRIDE, &blocks, source);
    }
    let defaults: [(&FlagSpec, &str); 11] = [
        (&model::COMPAT, "sglang"),
        (&engine::SCHEDULER, "sglang"),
        (&kv::BLOCK_SIZE, "1"),
        (&server::HOST, "127.0.0.1"),
        (&server::PORT, "30000"),
        // SGLang waits without a bound.
        (&server::SHUTDOWN_TIMEOUT, "24h"),
        (&flags::api::ALLOW_RUNTIME_LORA_UPDATING, "true"),
        (&server::ALLOWED_ORIGINS, "[\"*\"]"),
        (&server::ALLOW_CREDENTIALS, "true"),
        (&flags::api::MAX_LOGPROBS, "-1"),
        (&flags::api::MAX_STOP_STRINGS, "32"),
    ];
    for (flag, value) in defaults {
        settings.set_if_unset(flag, value, FlagValueSource::Derived);
    }
}

#[cfg(test)]
mod tests {
    use super::super::select_command_line;
    use super::*;

    fn split_words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn translated(line: &str) -> String {
        translate_sglang_arguments(&split_words(line)).unwrap().words.join(" ")
    }

    fn refused(line: &str) -> String {
        translate_sglang_arguments(&split_words(line)).unwrap_err().to_string()
    }

    #[test]
    fn the_command_and_the_module_select_this_command_line() {
        for (line, rest) in
            [("sglang --port 1", "--port 1"), ("-m sglang.launch_server --tp 2", "--tp 2")]
        {
            let words = split_words(line);
            let (own, words) = select_command_line(&words).unwrap();
            assert_eq!((own.compat, words.join(" ")), (MetricsCompat::Sglang, rest.to_owned()));
        }
        assert!(select_command_line(&split_words("serve sglang")).is_none());
    }

    #[test]
    fn every_renamed_flag_is_a_flag_of_sglang_and_has_a_flag_here() {
        for (name, ours) in RENAMED_FLAGS {
            assert!(sglang_flags().any(|flag| flag.name == name), "{name}");
            assert!(flags::find_long_flag(ours).is_some(), "{name}: {ours:?}");
        }
    }

    #[test]
    fn flags_of_sglang_become_ours() {
        for (line, ours) in [
            ("--model-path m --tp 2", "--model m --tensor-parallel-size 2"),
            ("--model=m --context-length 99", "--model m --max-model-len 99"),
            ("--disable-radix-cache", "--no-enable-prefix-caching"),
            ("--lora-paths a=/x /y", "--enable-lora --lora-modules a=/x /y=/y"),
            ("--disaggregation-mode null", ""),
            ("--disaggregation-mode prefill", "--disaggregation-mode prefill"),
            (
                "--disaggregation-mode decode",
                "--disaggregation-mode decode --no-enable-prefix-caching",
            ),
            (
                "--disaggregation-mode decode --disaggregation-decode-enable-radix-cache",
                "--disaggregation-mode decode",
            ),
            ("--page-size 4 --max-total-tokens 64", "--block-size 4 --num-gpu-blocks-override=17"),
            ("--time-to-first-token 1s --seed 3", "--time-to-first-token 1s --seed 3"),
        ] {
            let ours = format!("{ours} --disable-log-stats");
            assert_eq!(translated(line), ours.trim_start(), "{line}");
        }
        assert_eq!(translated("--enable-metrics"), "");
    }

    #[test]
    fn other_flags_of_sglang_are_named_in_one_warning() {
        let line = "--dtype auto --trust-remote-code --dtype half --no-lora-strict-loading";
        let warnings = translate_sglang_arguments(&split_words(line)).unwrap().warnings;
        let named = "--dtype, --trust-remote-code, --lora-strict-loading: no effect here";
        assert_eq!(warnings, [named]);
    }

    #[test]
    fn unknown_flags_and_values_are_refused() {
        for (line, text) in [
            ("--modle-path m", "did you mean --model-path?"),
            ("--gpus H100", "did you mean --gpu?"),
            ("--disaggregation-mode both", "null or prefill or decode; the others"),
            ("--disaggregation-transfer-backend smoke", "mooncake or nixl or"),
            ("--schedule-policy lof", "fcfs or lpm; the others are not simulated"),
            ("--model-path", "--model-path needs a value"),
            ("demo", "takes only flags"),
            ("--kv-events-config 3", "a JSON object"),
        ] {
            assert!(refused(line).contains(text), "{line}: {}", refused(line));
        }
    }

    #[test]
    fn kv_events_need_the_publisher_zmq() {
        let converted = |text| convert_kv_events_config(text).unwrap();
        assert!(converted(r#"{"publisher":"zmq"}"#).contains(r#""enable_kv_cache_events":true"#));
        assert!(converted("{}").contains(r#""enable_kv_cache_events":false"#));
        let bound = converted(r#"{"endpoint":"tcp://0.0.0.0:5557"}"#);
        assert!(bound.contains(r#""endpoint":"tcp://*:5557""#), "{bound}");
        assert!(convert_kv_events_config(r#"{"format":"dynamo"}"#).is_err());
    }
}
