use super::CliMode;
use super::flags::ALL;

/// One flag of our own command line: parsing, help, printouts and docs all come from it.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name without the two dashes; also the YAML key.
    pub name: &'static str,
    /// Other long names.
    pub aliases: &'static [&'static str],
    /// Names after one dash (`tp` for `-tp`).
    pub shorts: &'static [&'static str],
    /// Heading it stands under.
    pub group: Group,
    /// What it takes.
    pub kind: Kind,
    /// Default of llm-d's command line and of vLLM's; empty: none.
    pub defaults: (&'static str, &'static str),
    /// Environment variables beside `VLLM_SIM_<NAME>`.
    pub env: &'static [&'static str],
    /// What it does, one or two sentences.
    pub help: &'static str,
    /// Left out of `--help`, not of the documentation.
    pub hidden: bool,
    /// Never printed.
    pub secret: bool,
    /// May be changed while running (llm-d's `/admin/config`).
    pub admin: bool,
}

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `--x`, `--x=false`, `--x false`, `--no-x`.
    Switch,
    /// A whole number.
    Int,
    /// A whole number that may end in k, K, m, M, g, G, t, T as vLLM reads them.
    Count,
    /// A number.
    Float,
    /// A Go duration; a bare number is milliseconds.
    Duration,
    /// A Go duration; a bare number is seconds.
    Seconds,
    /// Any text.
    Text,
    /// A file or folder.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any number of values: up to the next flag, repeated, or a JSON array.
    List,
    /// One value each time it stands there.
    Repeat,
    /// A JSON object, whole or in dotted pieces.
    Json,
}

impl Kind {
    /// What stands for the value in help texts.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Switch => "",
            Self::Int | Self::Count => "N",
            Self::Float => "X",
            Self::Duration => "DURATION",
            Self::Seconds => "SECONDS",
            Self::Text => "TEXT",
            Self::Path | Self::Repeat => "PATH",
            Self::Choice(_) => "CHOICE",
            Self::List => "VALUE…",
            Self::Json => "JSON",
        }
    }
}

/// Headings of the help text, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Which model is imitated.
    Model,
    /// Sockets and headers.
    Server,
    /// Encryption.
    Tls,
    /// Logs.
    Logging,
    /// What the API offers.
    Api,
    /// What replies say.
    Content,
    /// Tool calls.
    Tools,
    /// Delays of the pool scheduler.
    Delays,
    /// Batches and queues.
    Scheduler,
    /// Step times of the batching schedulers.
    Timing,
    /// Blocks.
    KvCache,
    /// Events about blocks.
    KvEvents,
    /// Ranks.
    Parallel,
    /// Adapters.
    Lora,
    /// Failures on purpose.
    Failures,
    /// Metrics.
    Metrics,
    /// The program itself.
    General,
}

impl Group {
    /// All of them, in order.
    pub const ALL: [Self; 17] = [
        Self::General,
        Self::Model,
        Self::Server,
        Self::Tls,
        Self::Logging,
        Self::Api,
        Self::Content,
        Self::Tools,
        Self::Delays,
        Self::Scheduler,
        Self::Timing,
        Self::KvCache,
        Self::KvEvents,
        Self::Parallel,
        Self::Lora,
        Self::Failures,
        Self::Metrics,
    ];

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Server => "Server",
            Self::Tls => "TLS",
            Self::Logging => "Logging",
            Self::Api => "API",
            Self::Content => "Content of replies",
            Self::Tools => "Tool calls",
            Self::Delays => "Delays",
            Self::Scheduler => "Scheduler and queue",
            Self::Timing => "Step times",
            Self::KvCache => "KV cache",
            Self::KvEvents => "KV events",
            Self::Parallel => "Parallelism",
            Self::Lora => "LoRA",
            Self::Failures => "Failures",
            Self::Metrics => "Metrics",
            Self::General => "General",
        }
    }
}

impl Flag {
    /// A visible flag without default, aliases or variables.
    pub(super) const fn new(
        name: &'static str,
        group: Group,
        kind: Kind,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            aliases: &[],
            shorts: &[],
            group,
            kind,
            defaults: ("", ""),
            env: &[],
            help,
            hidden: false,
            secret: false,
            admin: false,
        }
    }

    /// The same default behind both doors.
    pub(super) const fn or(self, value: &'static str) -> Self {
        self.doors(value, value)
    }

    /// The default of llm-d's command line, and of vLLM's.
    pub(super) const fn doors(mut self, llmd: &'static str, vllm: &'static str) -> Self {
        self.defaults = (llmd, vllm);
        self
    }

    /// Other long names.
    pub(super) const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Names after one dash.
    pub(super) const fn short(mut self, shorts: &'static [&'static str]) -> Self {
        self.shorts = shorts;
        self
    }

    /// Environment variables that set it.
    pub(super) const fn env(mut self, names: &'static [&'static str]) -> Self {
        self.env = names;
        self
    }

    /// Leaves it out of `--help`.
    pub(super) const fn hide(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Keeps its value out of every printout.
    pub(super) const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Lets it be changed while running.
    pub(super) const fn tunable(mut self) -> Self {
        self.admin = true;
        self
    }

    /// Its default behind a cli_mode; `None`: none.
    pub fn default(&self, cli_mode: CliMode) -> Option<&'static str> {
        let text = match cli_mode {
            CliMode::Llmd => self.defaults.0,
            CliMode::Vllm => self.defaults.1,
        };
        (!text.is_empty()).then_some(text)
    }

    /// The variable that every flag has.
    pub fn env_name(&self) -> String {
        format!("VLLM_SIM_{}", self.name.to_uppercase().replace('-', "_"))
    }
}

/// Every flag that does something, group by group.
pub fn flags() -> impl Iterator<Item = &'static Flag> {
    ALL.iter().copied().flatten()
}

/// The flag of this long name or alias.
pub(super) fn long(name: &str) -> Option<&'static Flag> {
    flags().find(|f| f.name == name || f.aliases.contains(&name))
}

/// The flag of this name after one dash.
pub(super) fn short(name: &str) -> Option<&'static Flag> {
    flags().find(|f| f.shorts.contains(&name))
}
