use std::sync::Arc;

use serde_json::{Map, Value};

use super::cli_mode::{self, Action, CliMode, Invocation, TOOLS};
use super::command_line::{self, UnknownFlags};
use super::error::ConfigError;
use super::fake::OBSERVED_TOTALS;
use super::flag::{FlagKind, FlagSpec};
use super::flags::api::RENDER_ONLY;
use super::flags::engine::{EXTRA_ENGINE_ARGS, PREEMPTION_MODE};
use super::flags::model::{CLI_MODE, COMPAT, CONFIG, MODEL, STRICT_CONFIG, VLLM_VERSION};
use super::flags::server::FAKE_METRICS;
use super::flags::{self, flags};
use super::layers::{self, Layer, Setting, ValueSource};
use super::values::Values;
use super::yaml::{self, UnknownKeys};
use super::{Config, dynamo, help, ignored, show};
use vllm_sim_engine::duration;
use vllm_sim_observe::metrics::Compat;

/// llm-d's flag for the service that tokenises.
const RENDER_URL: &str = "--render-url";
/// What it means here.
const NOT_RENDERED: &str = "is not asked for tokens: they come from this server's own tokenizer. \
    Token ids, and with them block hashes and KV events, are the render service's only if \
    --tokenizer (or --model) names the same tokenizer files; with --force-dummy-tokenizer or a \
    simulated tokenizer they never are.";

/// In an operator's update: the fields that are to be as they were at the start.
const RESET: &str = "reset";

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Serve.
    Serve(Box<Loaded>),
    /// Print the configuration: [`Loaded::to_yaml`].
    Config(Box<Loaded>),
    /// Print this line.
    Version(String),
    /// Print this text.
    Help(String),
    /// Run a tool with the words behind its name.
    Tool {
        /// One of [`super::TOOLS`].
        name: &'static str,
        /// What follows.
        args: Vec<String>,
    },
}

/// A configuration, and how it came about.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Flags that were accepted and mean nothing here, for one log line.
    pub ignored: Vec<String>,
    /// Of these, flags of which a user of vLLM would expect an effect.
    pub felt: Vec<String>,
    /// What looks like a mistake.
    pub warnings: Vec<String>,
    /// Of these, what is said of settings that do nothing beside the others.
    pub without_effect: Vec<String>,
    /// Every flag's value in force, in the order of the help text.
    pub effective: Vec<Effective>,
    settings: Layer,
    /// What was typed before an operator changed anything; `None`: nothing was changed.
    at_start: Option<Arc<Layer>>,
}

/// One flag's value in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// Its name.
    pub name: &'static str,
    /// One value, any number for a list, none where there is no default.
    pub values: Vec<String>,
    /// Where it was typed.
    pub source: ValueSource,
    /// The rule that a derived value follows from, where that is worth a sentence.
    pub rule: Option<String>,
}

/// Reads a command line, the program's name included, over environment and files.
///
/// # Errors
/// [`ConfigError`], whose text is for the person who typed it; the exit code is 2.
pub fn load(args: &[String], env: &dyn Fn(&str) -> Option<String>) -> Result<Command, ConfigError> {
    let named = cli_mode::named(env)?;
    let entry = cli_mode::enter(args, named.as_deref())?;
    if let Action::Tool(name) = entry.action {
        let mut own = entry.words.iter().take_while(|word| *word != "--");
        if own.any(|word| matches!(word.as_str(), "-V" | "--version")) {
            return Ok(Command::Version(version(&entry, &Layer::default(), env)));
        }
        let args = entry.words.to_vec();
        return Ok(Command::Tool { name, args });
    }
    let cli_mode = entry.cli_mode.unwrap_or_default();
    if entry.action == Action::LaunchHelp {
        return Ok(Command::Help(help::LAUNCH.to_owned()));
    }
    if entry.action == Action::Help {
        let topic = entry.words.first().map_or("", String::as_str);
        if let Some(name) = TOOLS.into_iter().find(|name| *name == topic) {
            let args = vec!["--help".to_owned()];
            return Ok(Command::Tool { name, args });
        }
        return Ok(Command::Help(help::help(cli_mode, topic)));
    }
    let read = command_line::read(entry.words, UnknownFlags::Refused)?;
    if let Some(topic) = read.help {
        return Ok(Command::Help(help::help(cli_mode, &topic)));
    }
    let mut typed = read.layer;
    if read.version || entry.action == Action::Version {
        return Ok(Command::Version(version(&entry, &typed, env)));
    }
    place_loose(&entry, &read.loose, &mut typed)?;
    if entry.render {
        preset(&mut typed, &RENDER_ONLY, "true", ValueSource::CommandLine);
    }
    let loaded = Loaded::over(typed, entry.cli_mode, entry.compat, env)?;
    Ok(match entry.action {
        Action::Config => Command::Config(Box::new(loaded)),
        _ => Command::Serve(Box::new(loaded)),
    })
}

/// For tools: reads the flags that this module knows and hands back every other word, in order.
/// No model needs to be named.
///
/// # Errors
/// As [`load`], but for unknown flags.
pub fn load_known(
    words: &[String],
    cli_mode: CliMode,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Loaded, Vec<String>), ConfigError> {
    let read = command_line::read(words, UnknownFlags::HandedBack)?;
    let mut typed = read.layer;
    let mut rest = read.unknown;
    // A replay plays the mocker itself.
    if let Some(engine) = typed.settings.shift_remove(EXTRA_ENGINE_ARGS.name) {
        rest.push(format!("--{}", EXTRA_ENGINE_ARGS.name));
        rest.extend(engine.values);
    }
    if let Some(topic) = read.help {
        rest.push(if topic.is_empty() {
            "--help".to_owned()
        } else {
            format!("--help={topic}")
        });
    }
    let named =
        MODEL.env.iter().any(|name| env(name).is_some()) || env(&MODEL.env_name()).is_some();
    if !named && !typed.settings.contains_key(CONFIG.name) {
        preset(&mut typed, &MODEL, "model", ValueSource::Derived);
    }
    let loaded = Loaded::over(typed, Some(cli_mode), None, env)?;
    Ok((loaded, rest))
}

/// Sets a flag that nobody has set.
fn preset(layer: &mut Layer, flag: &FlagSpec, value: &str, source: ValueSource) {
    layer.settings.entry(flag.name).or_insert_with(|| Setting {
        values: vec![value.to_owned()],
        source,
    });
}

/// The model of `serve MODEL`; other loose words are llm-d's to ignore and vLLM's to refuse.
fn place_loose(
    entry: &Invocation<'_>,
    loose: &[String],
    typed: &mut Layer,
) -> Result<(), ConfigError> {
    let mut rest = loose;
    if entry.takes_model
        && let Some((model, others)) = loose.split_first()
    {
        let setting = Setting {
            values: vec![model.clone()],
            source: ValueSource::CommandLine,
        };
        typed.settings.insert(MODEL.name, setting);
        rest = others;
    }
    match rest.first() {
        Some(word) if entry.takes_model => Err(ConfigError::Invalid(format!(
            "unexpected word {word:?}: after the model only flags may follow"
        ))),
        Some(_) => {
            let words = rest.join(" ");
            typed
                .warnings
                .push(format!("words that belong to no flag are ignored: {words}"));
            Ok(())
        }
        None => Ok(()),
    }
}

/// `vllm --version` prints the release alone; KServe reads the last word of the last line.
fn version(entry: &Invocation<'_>, typed: &Layer, env: &dyn Fn(&str) -> Option<String>) -> String {
    let mut settings = layers::environment(env);
    settings.cover(typed.clone());
    let release = settings
        .settings
        .get(VLLM_VERSION.name)
        .and_then(|setting| setting.values.last().cloned())
        .or_else(|| VLLM_VERSION.default(CliMode::Llmd).map(str::to_owned))
        .unwrap_or_default();
    if entry.called_vllm {
        release
    } else {
        let own = env!("CARGO_PKG_VERSION");
        format!("vllm-sim {own}, imitates vLLM {release}")
    }
}

impl Loaded {
    /// Flags of a command line, with no environment.
    ///
    /// # Errors
    /// As [`load`].
    pub fn from_flags(cli_mode: CliMode, words: &[&str]) -> Result<Self, ConfigError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let read = command_line::read(&words, UnknownFlags::Refused)?;
        Self::over(read.layer, Some(cli_mode), None, &|_| None)
    }

    /// Lays what was typed over environment and files.
    fn over(
        typed: Layer,
        cli_mode: Option<CliMode>,
        compat: Option<Compat>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut upper = layers::environment(env);
        upper.cover(typed);
        let mut settings = Layer::default();
        let strict = Values::new(&upper, CliMode::default()).get(&STRICT_CONFIG)?;
        let unknown = match strict {
            true => UnknownKeys::Refused,
            false => UnknownKeys::Warned,
        };
        let files = upper.settings.shift_remove(CONFIG.name);
        for path in files.iter().flat_map(|setting| &setting.values) {
            let mut file = yaml::read(path, unknown)?;
            // A file may ask for it itself.
            if !strict && Values::new(&file, CliMode::default()).get(&STRICT_CONFIG)? {
                file = yaml::read(path, UnknownKeys::Refused)?;
            }
            settings.cover(file);
        }
        let engine = upper.settings.shift_remove(EXTRA_ENGINE_ARGS.name);
        settings.cover(upper);
        for path in engine.iter().flat_map(|setting| &setting.values) {
            settings.cover(dynamo::read(path)?);
        }
        if let Some(Compat::Llmd) = compat {
            preset(&mut settings, &COMPAT, "llm-d", ValueSource::Derived);
        }
        let named = mode_of(&settings)?;
        let cli_mode = cli_mode.unwrap_or(named);
        Self::of(settings, cli_mode)
    }

    fn of(settings: Layer, cli_mode: CliMode) -> Result<Self, ConfigError> {
        let values = Values::new(&settings, cli_mode);
        let mut warnings = settings.warnings.clone();
        if cli_mode == CliMode::Vllm {
            let dropped = dropped(&settings, &values, &mut warnings);
            let removed = [settings.ignored.clone(), dropped].concat();
            ignored::refuse_removed(&removed, &values.get(&VLLM_VERSION)?)?;
        }
        let config = Config::from_values(&values);
        let config = config.map_err(|error| match settings.warnings.is_empty() {
            true => error,
            // A misspelt key may be why it fails.
            false => ConfigError::Warned {
                error: Box::new(error),
                warnings: settings.warnings.clone(),
            },
        })?;
        let notes = values.notes();
        let mut effective: Vec<Effective> = flags()
            .map(|flag| Effective {
                name: flag.name,
                values: values.raw(flag).to_vec(),
                source: values.source(flag),
                rule: None,
            })
            .collect();
        for derived in notes.derived {
            let mut entries = effective.iter_mut();
            if let Some(entry) = entries.find(|entry| entry.name == derived.name) {
                entry.values = vec![derived.value];
                entry.source = ValueSource::Derived;
                entry.rule = derived.rule;
            }
        }
        warnings.extend(notes.warnings);
        let ignored = settings.ignored.clone();
        if ignored.iter().any(|flag| flag == RENDER_URL) {
            warnings.push(format!("{RENDER_URL} {NOT_RENDERED}"));
        }
        Ok(Self {
            config,
            felt: ignored::felt(&ignored),
            ignored,
            warnings,
            without_effect: notes.without_effect,
            effective,
            settings,
            at_start: None,
        })
    }

    /// The configuration as a file for `--config`: what was typed somewhere, with a comment that
    /// says where; defaults as comments.
    pub fn to_yaml(&self) -> String {
        show::yaml(self)
    }

    /// The configuration as llm-d's `/admin/config` shows it: flag names, durations as texts.
    pub fn to_json(&self) -> Map<String, Value> {
        show::json(self)
    }

    /// As [`Self::to_json`], only what somebody typed, in a file, the environment or the command line.
    pub fn to_json_chosen(&self) -> Map<String, Value> {
        show::json_chosen(self)
    }

    /// As [`Self::to_json`], only what an operator changed while it ran.
    pub fn to_json_changed(&self) -> Map<String, Value> {
        show::json_changed(self)
    }

    /// The fields that an update of [`Self::tuned`] is about.
    pub fn fields(update: &Map<String, Value>) -> impl Iterator<Item = &str> {
        let reset = update.get(RESET).and_then(Value::as_array);
        let reset = reset.into_iter().flatten().filter_map(Value::as_str);
        let set = update.keys().map(String::as_str);
        set.filter(|field| *field != RESET).chain(reset)
    }

    /// What an operator may change while running, changed; all the rest stays.
    ///
    /// Whole numbers for durations are nanoseconds, as in llm-d's admin API. `fake-metrics` is
    /// laid over what is shown already, key by key; a null keeps, as there. The fields of the list
    /// `reset` are as they were at the start, before the others are set.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for a flag that cannot be changed, and all that [`load`] refuses.
    pub fn tuned(&self, update: &Map<String, Value>) -> Result<Self, ConfigError> {
        let at_start = match &self.at_start {
            Some(layer) => layer.clone(),
            None => Arc::new(self.settings.clone()),
        };
        let mut settings = self.settings.clone();
        settings.warnings.clear();
        let mut fake = self.config.metrics.fake.clone();
        for field in reset_fields(update)? {
            let name = live(field)?.name;
            match at_start.settings.get(name) {
                Some(setting) => settings.settings.insert(name, setting.clone()),
                None => settings.settings.shift_remove(name),
            };
            if name == FAKE_METRICS.name {
                let values = Values::new(&settings, self.config.model.cli_mode);
                fake = Config::from_values(&values)?.metrics.fake;
            }
        }
        for (key, value) in update.iter().filter(|(key, _)| *key != RESET) {
            let flag = live(key)?;
            if value.is_null() {
                continue;
            }
            let values = if flag.name == FAKE_METRICS.name {
                vec![fake_metrics_with(fake.as_ref(), value)?]
            } else {
                updated_values(flag, value)
            };
            let source = ValueSource::Operator;
            settings
                .settings
                .insert(flag.name, Setting { values, source });
        }
        let tuned = Self::of(settings, self.config.model.cli_mode)?;
        Ok(Self {
            at_start: Some(at_start),
            ..tuned
        })
    }
}

/// The flag of a field that an operator may change.
fn live(field: &str) -> Result<&'static FlagSpec, ConfigError> {
    let flag = flags::live(field).map(|(flag, _)| flag);
    flag.ok_or_else(|| ConfigError::Invalid(format!("field '{field}' is not admin-configurable")))
}

/// The fields that are to be as they were at the start.
fn reset_fields(update: &Map<String, Value>) -> Result<Vec<&str>, ConfigError> {
    let Some(value) = update.get(RESET) else {
        return Ok(Vec::new());
    };
    let fields = value.as_array().map(|fields| fields.iter());
    let fields = fields.and_then(|fields| fields.map(Value::as_str).collect());
    fields.ok_or_else(|| ConfigError::Invalid(format!("reset is a list of fields, not {value}")))
}

/// Fake metrics with a part of them replaced.
fn fake_metrics_with(current: Option<&Value>, update: &Value) -> Result<String, ConfigError> {
    let Some(Value::Object(current)) = current else {
        return Err(ConfigError::Invalid(
            "the simulator is reporting real metrics; fake metrics cannot be updated".to_owned(),
        ));
    };
    let Value::Object(update) = update else {
        return Err(ConfigError::Invalid(format!(
            "fake-metrics must be a JSON object, not {update}"
        )));
    };
    let mut merged = current.clone();
    // A total that was said of other observations does not stand for the new ones.
    for (observations, total) in OBSERVED_TOTALS {
        if update.get(observations).is_some_and(|new| !new.is_null()) {
            merged.remove(total);
        }
    }
    let told = update.iter().filter(|(_, value)| !value.is_null());
    merged.extend(told.map(|(key, value)| (key.clone(), value.clone())));
    Ok(Value::Object(merged).to_string())
}

/// Flags that vLLM has dropped and that say here what they said there. The others are this program's
/// own by now: `--task` is worth a word, `--preemption-mode` has values of its own.
fn dropped(settings: &Layer, values: &Values, warnings: &mut Vec<String>) -> Vec<String> {
    let is_own = |flag: &str| match flag {
        "--preemption-mode" => {
            let typed = values.raw(&PREEMPTION_MODE);
            typed
                .iter()
                .all(|word| matches!(word.as_str(), "lifo" | "fifo"))
        }
        flag => flag == "--task",
    };
    let (own, dropped) = settings
        .dropped
        .iter()
        .cloned()
        .partition(|flag| is_own(flag));
    let own: Vec<String> = own;
    if own.iter().any(|flag| flag == "--task") {
        warnings.push("vLLM has no --task any more, but --runner and --convert".to_owned());
    }
    dropped
}

/// A value of the admin API as it would be typed.
fn updated_values(flag: &FlagSpec, value: &Value) -> Vec<String> {
    match (flag.kind, value) {
        (FlagKind::Duration, Value::Number(nanos)) if nanos.is_i64() || nanos.is_u64() => {
            vec![format!("{nanos}ns")]
        }
        (FlagKind::List, Value::Array(items)) => items.iter().map(text).collect(),
        (_, value) => vec![text(value)],
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The command line that files, environment or flags name.
fn mode_of(settings: &Layer) -> Result<CliMode, ConfigError> {
    let values = Values::new(settings, CliMode::default());
    Ok(values.choice(&CLI_MODE)?.unwrap_or_default())
}

/// A duration as Go writes it, whatever it was typed as.
pub(super) fn shown_duration(flag: &FlagSpec, typed: &str) -> Option<String> {
    let unit = match flag.kind {
        FlagKind::Seconds => 1_000_000_000,
        FlagKind::Duration => 1_000_000,
        _ => return None,
    };
    let typed = duration::parse(typed, unit).ok()?;
    typed.positive().map(duration::show)
}
