use std::sync::Arc;

use serde_json::{Map, Value};

use super::cli_command::{self, CliCommandAction, CliCommandInvocation, TOOL_COMMANDS};
use super::cli_mode::CliMode;
use super::command_line::{self, HelpRequest, ParsedCommandLine, UnknownFlagPolicy};
use super::error::{ConfigError, bail, invalid};
use super::fake::FAKE_HISTOGRAM_AND_TOTAL_KEYS;
use super::fitted_profile::FittedProfile;
use super::flag::{FlagKind, FlagSpec, value_to_flag_text};
use super::flags::api::RENDER_ONLY;
use super::flags::engine::{EXTRA_ENGINE_ARGS, PREEMPTION_MODE};
use super::flags::model::{CLI_MODE, COMPAT, CONFIG, MODEL, STRICT_CONFIG};
use super::flags::server::FAKE_METRICS;
use super::flags::{self, all_effective_flags};
use super::imitated_engine::{ImitatedEngineCommandLine, imitated_engine_command_line};
use super::layers::{self, ConfigLayer, ConfigLayerSetting, FlagValueSource};
use super::values::FlagValues;
use super::yaml::{self, UnknownKeyPolicy};
use super::{Config, dynamo, help, ignored, show};
use vllm_sim_engine::duration;
use vllm_sim_observe::metrics::MetricsCompat;

const RENDER_URL_FLAG: &str = "--render-url";
const RENDER_URL_WITHOUT_EFFECT: &str = "is not used for tokenization: token ids come from this server's own \
     tokenizer. Token ids, and therefore block hashes and KV events, match the render service \
     only if --tokenizer (or --model) names the same tokenizer files; with \
     --force-dummy-tokenizer or a simulated tokenizer they never match.";

/// Key of an admin API update that lists the fields to reset to their start values.
const RESET_KEY: &str = "reset";

/// Command on the command line: start the server, print a text, or run a tool.
#[derive(Debug, Clone, PartialEq)]
pub enum ParsedCommand {
    /// Command to start the server with this configuration.
    Serve(Box<LoadedConfig>),
    /// Command to print the configuration with [`LoadedConfig::to_config_yaml`].
    Config(Box<LoadedConfig>),
    /// Command to print this text of `--version`.
    Version(String),
    /// Command to print this help text.
    Help(String),
    /// Command to run a tool, such as `replay`, with the tool's own arguments.
    Tool {
        /// Name of the tool to run, one of [`TOOL_COMMANDS`].
        name: &'static str,
        /// Command-line arguments of the tool, those after its name.
        args: Vec<String>,
    },
}

/// A loaded configuration with the sources of its values, warnings and ignored flags.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    /// The validated configuration of the server.
    pub config: Config,
    /// Ignored flags, accepted without effect and reported in one log line.
    pub ignored: Vec<String>,
    /// Ignored flags with an effect in vLLM; a subset of `ignored`.
    pub ignored_with_effect: Vec<String>,
    /// Warnings about probable mistakes in the configuration.
    pub warnings: Vec<String>,
    /// Warnings for tools, too: about settings that have no effect in combination with others, that
    /// vLLM refuses, or that were fitted for another deployment. A subset of `warnings`.
    pub without_effect: Vec<String>,
    /// All flags with their resolved values, in the order of the help text.
    pub resolved_flags: Vec<ResolvedFlag>,
    settings: ConfigLayer,
    at_start: Option<Arc<ConfigLayer>>,
}

/// One flag with its value, after all sources (files, environment, command line) are merged.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedFlag {
    /// Name of the flag, without dashes.
    pub name: &'static str,
    /// Values of the flag: one for a scalar, any number for a list, none if unset.
    pub values: Vec<String>,
    /// Source of the flag's value, such as a file or the command line.
    pub source: FlagValueSource,
    /// Description of the rule by which the flag's value was derived, if one is recorded.
    pub rule: Option<String>,
}

/// Loads the configuration from the command line `args` (program name first), environment and
/// files.
///
/// # Errors
/// [`ConfigError`], with a message for the person who typed the flags; the program then exits with
/// 2.
pub fn load_config(
    args: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<ParsedCommand, ConfigError> {
    let named = cli_command::program_name_from_env(env)?;
    let entry = cli_command::parse_command_invocation(args, named.as_deref())?;
    if let CliCommandAction::Tool(name) = entry.action {
        let mut own = entry.words.iter().take_while(|word| *word != "--");
        if own.any(|word| matches!(word.as_str(), "-V" | "--version")) {
            let text = version_text(&entry, &ConfigLayer::default(), env)?;
            return Ok(ParsedCommand::Version(text));
        }
        let args = entry.words.to_vec();
        return Ok(ParsedCommand::Tool { name, args });
    }
    let cli_mode = entry.cli_mode.unwrap_or_default();
    if entry.action == CliCommandAction::LaunchHelp {
        return Ok(ParsedCommand::Help(help::LAUNCH_HELP_PAGE.to_owned()));
    }
    if entry.action == CliCommandAction::Help {
        let topic = entry.words.first().map_or("", String::as_str);
        if let Some(name) = TOOL_COMMANDS.into_iter().find(|name| *name == topic) {
            let args = vec!["--help".to_owned()];
            return Ok(ParsedCommand::Tool { name, args });
        }
        let page = match (entry.cli_mode, topic) {
            (None, "") => help::program_help_page(),
            (_, "") => help::server_help_text(cli_mode, &HelpRequest::Long),
            _ => help::server_help_text(cli_mode, &HelpRequest::Topic(topic.to_owned())),
        };
        return Ok(ParsedCommand::Help(page));
    }
    let own = imitated_engine_command_line(entry.compat);
    let read = match own {
        Some(own) => parse_translated_command_line(own, entry.words)?,
        None => command_line::parse_command_line(entry.words, UnknownFlagPolicy::Reject)?,
    };
    if let Some(request) = read.help {
        if let Some(own) = own.filter(|_| !matches!(request, HelpRequest::Topic(_))) {
            return Ok(ParsedCommand::Help(own.help_page.to_owned()));
        }
        // The program itself was asked, not one of its two servers.
        let is_program = entry.action == CliCommandAction::Serve
            && entry.cli_mode.is_none()
            && entry.compat.is_none()
            && !matches!(request, HelpRequest::Topic(_));
        return Ok(ParsedCommand::Help(match is_program {
            true => help::program_help_page(),
            false => help::server_help_text(cli_mode, &request),
        }));
    }
    let mut typed = read.layer;
    if read.version || entry.action == CliCommandAction::Version {
        return Ok(ParsedCommand::Version(version_text(&entry, &typed, env)?));
    }
    assign_positional(&entry, &read.positional, &mut typed)?;
    if entry.render {
        typed.set_if_unset(&RENDER_ONLY, "true", FlagValueSource::CommandLine);
    }
    let loaded = LoadedConfig::merge_layers(typed, entry.cli_mode, entry.compat, env)?;
    Ok(match entry.action {
        CliCommandAction::Config => ParsedCommand::Config(Box::new(loaded)),
        _ => ParsedCommand::Serve(Box::new(loaded)),
    })
}

/// Loads a configuration from the flags that this crate knows and returns all other arguments, in
/// order, for tools. A model is not required.
///
/// # Errors
/// The errors of [`load_config`], except for unknown flags.
pub fn load_config_and_unknown_args(
    words: &[String],
    cli_mode: CliMode,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(LoadedConfig, Vec<String>), ConfigError> {
    let read = command_line::parse_command_line(words, UnknownFlagPolicy::Return)?;
    let mut typed = read.layer;
    let mut rest = read.unknown;
    // `replay` interprets this flag itself.
    if let Some(engine) = typed.settings.shift_remove(EXTRA_ENGINE_ARGS.name) {
        rest.push(format!("--{}", EXTRA_ENGINE_ARGS.name));
        rest.extend(engine.values);
    }
    rest.extend(read.help.map(|request| request.to_help_argument()));
    let named = MODEL.env.iter().any(|name| env(name).is_some())
        || env(&MODEL.env_variable_name()).is_some();
    if !named && !typed.settings.contains_key(CONFIG.name) {
        typed.set_if_unset(&MODEL, "model", FlagValueSource::Derived);
    }
    let loaded = LoadedConfig::merge_layers(typed, Some(cli_mode), None, env)?;
    Ok((loaded, rest))
}

/// Parses a command line with the flags of another engine, such as SGLang.
fn parse_translated_command_line(
    own: &ImitatedEngineCommandLine,
    words: &[String],
) -> Result<ParsedCommandLine, ConfigError> {
    let translated = (own.translate)(words)?;
    let mut read = command_line::parse_command_line(&translated.words, UnknownFlagPolicy::Reject)?;
    read.layer.warnings.extend(translated.warnings);
    Ok(read)
}

/// Assigns positional command-line arguments: the model of `serve MODEL`. llm-d ignores further
/// arguments, vLLM rejects them.
fn assign_positional(
    entry: &CliCommandInvocation<'_>,
    positional: &[String],
    typed: &mut ConfigLayer,
) -> Result<(), ConfigError> {
    let mut rest = positional;
    if entry.takes_model
        && let Some((model, others)) = positional.split_first()
    {
        let setting = ConfigLayerSetting {
            values: vec![model.clone()],
            source: FlagValueSource::CommandLine,
        };
        typed.settings.insert(MODEL.name, setting);
        rest = others;
    }
    match rest.first() {
        Some(word) if entry.takes_model => {
            Err(invalid!("unexpected word {word:?}: after the model only flags may follow"))
        }
        Some(_) => {
            let words = rest.join(" ");
            typed.warnings.push(format!("arguments that belong to no flag are ignored: {words}"));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Returns the text of `--version`: the bare release for `vllm --version`, because KServe reads the
/// last word of the last line.
fn version_text(
    entry: &CliCommandInvocation<'_>,
    typed: &ConfigLayer,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ConfigError> {
    let mut settings = layers::layer_from_environment(env);
    settings.merge_from_upper_layer(typed.clone());
    let version = FlagValues::new(&settings, CliMode::Llmd).vllm_version()?.as_str();
    Ok(match entry.called_vllm {
        true => version.to_owned(),
        false => format!("vllm-sim {}, imitates vLLM {version}", env!("CARGO_PKG_VERSION")),
    })
}

impl LoadedConfig {
    /// Loads a configuration from flags only, without environment.
    ///
    /// # Errors
    /// The errors of [`load_config`].
    pub fn from_flags(cli_mode: CliMode, words: &[&str]) -> Result<Self, ConfigError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let read = command_line::parse_command_line(&words, UnknownFlagPolicy::Reject)?;
        Self::merge_layers(read.layer, Some(cli_mode), None, &|_| None)
    }

    fn merge_layers(
        typed: ConfigLayer,
        cli_mode: Option<CliMode>,
        compat: Option<MetricsCompat>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut upper = layers::layer_from_environment(env);
        upper.merge_from_upper_layer(typed);
        let mut settings = ConfigLayer::default();
        let strict = FlagValues::new(&upper, CliMode::default()).get(&STRICT_CONFIG)?;
        let unknown = match strict {
            true => UnknownKeyPolicy::Reject,
            false => UnknownKeyPolicy::Warn,
        };
        let mut profiles = Vec::new();
        let files = upper.settings.shift_remove(CONFIG.name);
        for path in files.iter().flat_map(|setting| &setting.values) {
            let mut file = yaml::read_config_file(path, unknown)?;
            // The file itself may set `strict-config`.
            if !strict && FlagValues::new(&file, CliMode::default()).get(&STRICT_CONFIG)? {
                file = yaml::read_config_file(path, UnknownKeyPolicy::Reject)?;
            }
            profiles.extend(FittedProfile::from_config_file(path, &file));
            settings.merge_from_upper_layer(file);
        }
        let engine = upper.settings.shift_remove(EXTRA_ENGINE_ARGS.name);
        settings.merge_from_upper_layer(upper);
        for path in engine.iter().flat_map(|setting| &setting.values) {
            settings.merge_from_upper_layer(dynamo::read_mocker_engine_args(path)?);
        }
        if compat == Some(MetricsCompat::Llmd) {
            settings.set_if_unset(&COMPAT, "llm-d", FlagValueSource::Derived);
        }
        if let Some(own) = imitated_engine_command_line(compat) {
            (own.set_defaults)(&mut settings);
        }
        let named = read_cli_mode(&settings)?;
        let cli_mode = cli_mode.unwrap_or(named);
        if cli_mode == CliMode::Vllm {
            let version = FlagValues::new(&settings, cli_mode).vllm_version()?;
            for (flag, value) in ignored::flags_with_release_dependent_defaults(version) {
                settings.set_if_unset(flag, value, FlagValueSource::Derived);
            }
        }
        let mut loaded = Self::from_merged_layer(settings, cli_mode)?;
        let used = (loaded.config.model.name.as_str(), loaded.config.engine.gpu.as_deref());
        let told = profiles.iter();
        let told = told.filter_map(|it| it.other_deployment_warning(&loaded.settings, used));
        let told: Vec<String> = told.collect();
        loaded.warnings.extend(told.iter().cloned());
        loaded.without_effect.extend(told);
        Ok(loaded)
    }

    fn from_merged_layer(settings: ConfigLayer, cli_mode: CliMode) -> Result<Self, ConfigError> {
        let values = FlagValues::new(&settings, cli_mode);
        let mut warnings = settings.warnings.clone();
        if cli_mode == CliMode::Vllm {
            let dependent = release_dependent_flags(&settings, &values, &mut warnings);
            let typed = [settings.ignored.clone(), dependent].concat();
            ignored::refuse_flags_of_other_releases(&typed, values.vllm_version()?)?;
        }
        let config = Config::from_values(&values);
        let config = config.map_err(|error| match settings.warnings.is_empty() {
            true => error,
            // A misspelt key may be the cause of the error.
            false => {
                ConfigError::Warned { error: Box::new(error), warnings: settings.warnings.clone() }
            }
        })?;
        let notes = values.resolution_notes();
        let mut resolved_flags: Vec<ResolvedFlag> = all_effective_flags()
            .map(|flag| ResolvedFlag {
                name: flag.name,
                values: values.raw_flag_texts(flag).to_vec(),
                source: values.flag_value_source(flag),
                rule: None,
            })
            .collect();
        for derived in notes.derived {
            let mut entries = resolved_flags.iter_mut();
            if let Some(entry) = entries.find(|entry| entry.name == derived.name) {
                entry.values = vec![derived.value];
                entry.source = FlagValueSource::Derived;
                entry.rule = derived.rule;
            }
        }
        warnings.extend(notes.warnings);
        let ignored = settings.ignored.clone();
        if ignored.iter().any(|flag| flag == RENDER_URL_FLAG) {
            warnings.push(format!("{RENDER_URL_FLAG} {RENDER_URL_WITHOUT_EFFECT}"));
        }
        Ok(Self {
            config,
            ignored_with_effect: ignored::ignored_flags_with_vllm_effect(&ignored),
            ignored,
            warnings,
            without_effect: notes.without_effect,
            resolved_flags,
            settings,
            at_start: None,
        })
    }

    /// Returns the configuration as a YAML file for `--config`.
    ///
    /// Each set flag has a comment with its source; defaults are commented out.
    pub fn to_config_yaml(&self) -> String {
        show::format_config_yaml(self)
    }

    /// Returns the configuration as llm-d's `/admin/config` shows it: flag names, durations as
    /// text.
    pub fn to_admin_json(&self) -> Map<String, Value> {
        show::effective_config_to_json(self)
    }

    /// Returns the flags of [`Self::to_admin_json`] that a file, variable, flag or admin API call
    /// sets.
    pub fn explicit_settings_to_admin_json(&self) -> Map<String, Value> {
        show::explicit_config_to_json(self)
    }

    /// Returns the flags of [`Self::to_admin_json`] that were changed at run time.
    pub fn runtime_changes_to_admin_json(&self) -> Map<String, Value> {
        show::runtime_changed_config_to_json(self)
    }

    /// Returns the names of the flags that an admin API update for [`Self::with_admin_update`]
    /// changes, with their new values; the value of a reset flag is `null`.
    ///
    /// Fields with underscores get the flag's name.
    pub fn updated_flags(update: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
        let reset = update.get(RESET_KEY).and_then(Value::as_array);
        let reset = reset.into_iter().flatten().filter_map(Value::as_str);
        let set = update.iter().map(|(field, value)| (field.as_str(), value));
        let set = set.filter(|(field, _)| *field != RESET_KEY);
        let all = reset.map(|field| (field, &Value::Null)).chain(set);
        all.map(|(field, value)| {
            let flag = flags::find_runtime_changeable_flag(field);
            (flag.map_or(field, |(flag, _)| flag.name), value)
        })
    }

    /// Returns this configuration with the changes of an admin API update.
    ///
    /// With `--compat llm-d`, integers for durations are in nanoseconds, as in llm-d's admin API;
    /// else a duration other than 0 needs a unit. `fake-metrics` is merged into the current value
    /// key by key; null keeps a key. Fields in the list `reset` return to their start values before
    /// the others are set.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for a flag that cannot be changed and for a duration without a unit;
    /// else the errors of [`load_config`].
    pub fn with_admin_update(&self, update: &Map<String, Value>) -> Result<Self, ConfigError> {
        let at_start = match &self.at_start {
            Some(layer) => layer.clone(),
            None => Arc::new(self.settings.clone()),
        };
        let mut settings = self.settings.clone();
        settings.warnings.clear();
        let mut fake = self.config.metrics.fake.clone();
        for field in flags_to_reset(update)? {
            let name = require_runtime_changeable(field)?.name;
            match at_start.settings.get(name) {
                Some(setting) => settings.settings.insert(name, setting.clone()),
                None => settings.settings.shift_remove(name),
            };
            if name == FAKE_METRICS.name {
                let values = FlagValues::new(&settings, self.config.model.cli_mode);
                fake = Config::from_values(&values)?.metrics.fake;
            }
        }
        for (key, value) in update.iter().filter(|(key, _)| *key != RESET_KEY) {
            let flag = require_runtime_changeable(key)?;
            if value.is_null() {
                continue;
            }
            let values = if flag.name == FAKE_METRICS.name {
                vec![merge_fake_metrics(fake.as_ref(), value)?]
            } else {
                admin_value_to_flag_values(flag, value, self.config.model.compat)?
            };
            let source = FlagValueSource::Operator;
            settings.settings.insert(flag.name, ConfigLayerSetting { values, source });
        }
        let tuned = Self::from_merged_layer(settings, self.config.model.cli_mode)?;
        Ok(Self { at_start: Some(at_start), ..tuned })
    }
}

fn require_runtime_changeable(field: &str) -> Result<&'static FlagSpec, ConfigError> {
    let flag = flags::find_runtime_changeable_flag(field).map(|(flag, _)| flag);
    flag.ok_or_else(|| invalid!("field '{field}' is not admin-configurable"))
}

fn flags_to_reset(update: &Map<String, Value>) -> Result<Vec<&str>, ConfigError> {
    let Some(value) = update.get(RESET_KEY) else {
        return Ok(Vec::new());
    };
    let fields = value.as_array().map(|fields| fields.iter());
    let fields = fields.and_then(|fields| fields.map(Value::as_str).collect());
    fields.ok_or_else(|| invalid!("'reset' must be a list of fields, not {value}"))
}

fn merge_fake_metrics(current: Option<&Value>, update: &Value) -> Result<String, ConfigError> {
    let Some(Value::Object(current)) = current else {
        bail!("the simulator is reporting real metrics; fake metrics cannot be updated");
    };
    let Value::Object(update) = update else {
        bail!("fake-metrics must be a JSON object, not {update}");
    };
    let mut merged = current.clone();
    // The old total does not match new observations.
    for (observations, total) in FAKE_HISTOGRAM_AND_TOTAL_KEYS {
        if update.get(observations).is_some_and(|new| !new.is_null()) {
            merged.remove(total);
        }
    }
    let told = update.iter().filter(|(_, value)| !value.is_null());
    merged.extend(told.map(|(key, value)| (key.clone(), value.clone())));
    Ok(Value::Object(merged).to_string())
}

/// Returns the flags in `settings` that vLLM has removed, except those that have a meaning of their
/// own in this program.
///
/// The removed flag `--task` adds a warning; `--preemption-mode` has values of its own here.
fn release_dependent_flags(
    settings: &ConfigLayer,
    values: &FlagValues,
    warnings: &mut Vec<String>,
) -> Vec<String> {
    let is_own = |flag: &str| match flag {
        "--preemption-mode" => {
            let typed = values.raw_flag_texts(&PREEMPTION_MODE);
            typed.iter().all(|word| matches!(word.as_str(), "lifo" | "fifo"))
        }
        flag => flag == "--task",
    };
    let (own, dependent) =
        settings.release_dependent.iter().cloned().partition(|flag| is_own(flag));
    let own: Vec<String> = own;
    if own.iter().any(|flag| flag == "--task") {
        warnings.push(
            "--task is ignored because vLLM has removed it; use --runner and --convert".to_owned(),
        );
    }
    dependent
}

fn admin_value_to_flag_values(
    flag: &FlagSpec,
    value: &Value,
    compat: MetricsCompat,
) -> Result<Vec<String>, ConfigError> {
    match (flag.kind, value) {
        (FlagKind::Duration, Value::Number(number))
            if compat != MetricsCompat::Llmd && number.as_f64() != Some(0.0) =>
        {
            Err(invalid!(
                "{} is {number}: a duration needs a unit, such as \"{number}ms\"; only with --compat \
                 llm-d a number is nanoseconds",
                flag.name
            ))
        }
        (FlagKind::Duration, Value::Number(nanos)) if nanos.is_i64() || nanos.is_u64() => {
            Ok(vec![format!("{nanos}ns")])
        }
        (FlagKind::List, Value::Array(items)) => Ok(items.iter().map(value_to_flag_text).collect()),
        (_, value) => Ok(vec![value_to_flag_text(value)]),
    }
}

fn read_cli_mode(settings: &ConfigLayer) -> Result<CliMode, ConfigError> {
    let values = FlagValues::new(settings, CliMode::default());
    Ok(values.get_choice(&CLI_MODE)?.unwrap_or_default())
}

/// Formats the value of a duration flag as Go does.
pub(super) fn format_go_duration(flag: &FlagSpec, typed: &str) -> Option<String> {
    let unit = match flag.kind {
        FlagKind::Seconds => 1_000_000_000,
        FlagKind::Duration => 1_000_000,
        _ => return None,
    };
    let typed = duration::parse_signed_duration(typed, unit).ok()?;
    typed.to_non_negative_duration().map(duration::format_go_duration)
}
