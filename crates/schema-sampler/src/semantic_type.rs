//! Recognises the meaning of a JSON field by its name or description, to generate plausible values.

use std::collections::HashMap;
use std::sync::LazyLock;

use rand_chacha::ChaCha8Rng;

use crate::words::random_item;

/// The meaning of a JSON field, recognised by keywords, with typical values.
#[derive(Debug)]
pub(crate) struct SemanticType {
    keys: Vec<&'static str>,
    pub(crate) texts: Vec<&'static str>,
    pub(crate) range: Option<(f64, f64)>,
}

/// Generic strings for fields without a known meaning, from llm-d-inference-sim
/// (`pkg/llm-d-inference-sim/tools_utils.go`).
const LLM_D_WORDS: &[&str] = &[
    "testing",
    "hello",
    "Boston",
    "sunny",
    "temperature",
    "cloudy",
    "question",
    "Yorick",
    "silence",
    "lifetime",
];

/// Field meanings, one per line: keywords, then `=` and texts separated by `|`, or `:` and a range
/// of numbers.
///
/// In the table, an indented line continues the previous entry.
const SEMANTIC_TYPE_TABLE: &str = r#"
city town destination origin = Paris | Berlin | Tokyo | London | New York | San Francisco | Oslo
location place region area = San Francisco, CA | Paris, France | Tokyo, Japan | London, UK
  | Boston, MA
country nation = France | Germany | Japan | United States | Brazil | India
state province = California | Texas | Bavaria | Ontario | Queensland
address street = 221B Baker Street | 1600 Amphitheatre Parkway | 10 Rue de Rivoli
  | 350 Fifth Avenue
zip zipcode postcode postal = 94103 | 10001 | 75001 | 60601
email mail recipient cc bcc = alice@example.com | bob@example.org | carol.smith@example.com
  | support@example.net
phone telephone mobile = +1-555-0100 | +44 20 7946 0000 | +49 30 123456 | +33 1 70 18 99 00
url link website homepage href uri = https://example.com | https://example.org/docs
  | https://api.example.com/v1/items | https://www.example.net/article/42
firstname first given = Alice | Bob | Carol | David | Emma
lastname last surname family = Smith | Johnson | Garcia | Müller | Tanaka
author person assignee owner sender contact customer = Alice Johnson | Bob Smith | Carol Garcia
  | David Lee | Emma Müller
user username login handle account = alice | bob42 | carol_s | dlee | emma.m
company organization organisation employer vendor = Acme Corp | Globex | Initech | Umbrella Ltd
  | Stark Industries
filename file = report.pdf | data.csv | main.py | README.md | config.yaml
path directory folder dir cwd = src/main.py | docs/README.md | data/input.csv
  | tests/test_app.py | config/settings.yaml
command cmd shell = ls -la | git status | pytest -q | cat README.md | npm test
code snippet script program = print("hello") | return x + 1 | console.log(42);
sql = SELECT * FROM users LIMIT 10 | SELECT id, name FROM orders WHERE total > 100
  | SELECT COUNT(*) FROM events
query search keyword keywords q term = weather in Paris | best pizza near me | how to learn Rust
  | latest news on AI | cheap flights to Tokyo
expression formula equation = 2 + 2 | (3 * 4) / 5 | sqrt(16) | 12 * 7 - 3
pattern regex glob = *.py | src/**/*.ts | TODO | def .*
date day birthday deadline checkin checkout = 2025-03-14 | 2025-06-01 | 2025-09-30 | 2025-12-24
datetime timestamp created updated at = 2025-03-14T09:26:53Z | 2025-06-01T12:00:00Z
  | 2025-11-30T18:45:10Z
time hour = 09:30 | 12:00 | 14:45 | 18:15
timezone tz = UTC | Europe/Paris | America/New_York | Asia/Tokyo
month = January | April | July | October
currency = USD | EUR | GBP | JPY
language lang locale = en | fr | de | es | ja
unit units = celsius | fahrenheit | metric | kilometers
color colour = red | green | blue | orange | purple
gender sex = female | male | other
title subject headline heading = Weekly status report | Project kickoff meeting
  | Quarterly results | Introduction to machine learning
description summary abstract details note notes comment bio explanation rationale = The quick brown fox jumps over the lazy dog.
  | This is a short summary of the request. | All checks passed and the result looks correct.
  | Please review the attached report before the meeting.
  | The weather is expected to be sunny with light winds.
  | Updated the configuration and restarted the service.
  | The customer asked for a refund of the last order.
  | A detailed explanation follows in the next section.
message body content text prompt input answer response question instructions = Hello, how are you today?
  | The meeting has been moved to 3 pm. | Could you summarise this document?
  | Thanks for your help! | Please find the results below.
reasoning thought thoughts thinking reason plan analysis = The user wants the current weather, so the forecast is needed first.
  | Compare both options, then choose the cheaper one.
  | The input is short, so a direct answer is enough.
  | First collect the facts, then draw the conclusion.
category genre topic theme department = technology | science | travel | sports | finance
tag tags label labels = urgent | backend | review | travel | new
status = active | pending | completed | open
type kind mode class = default | standard | basic | custom
priority severity level importance = low | medium | high
sentiment mood emotion = positive | neutral | negative
symbol ticker stock = AAPL | MSFT | GOOG | NVDA
product item sku ingredient object = laptop | coffee mug | running shoes | desk lamp | notebook
model = base-model | gpt-neo | llama-3 | mistral-7b
version = 1.0.0 | 2.3.1 | 0.9.4
brand make = Toyota | BMW | Ford | Honda
genes gene protein = BRCA1 | TP53 | EGFR
branch = main | develop | feature/login
repo repository project = acme/website | octocat/hello-world | data-pipeline
ip host hostname server domain = example.com | db.example.org | 192.0.2.10 | api.example.net
token key secret apikey password hash = a1b2c3d4e5f6 | k3y-0042 | s3cr3t-value | 9f86d081884c
id uuid identifier ref reference number = a1b2c3 | 42 | ID-1001 | usr_7f3k | ord-2025-0017
name fullname = Alice Johnson | Bob Smith | Carol Garcia | David Lee | Emma Müller
step action operation task = search | Read the input file | Collect the data
  | Send the confirmation | Check the results
latitude lat : -60 70
longitude lng lon long : -180 180
age : 18 80
year : 2015 2026
limit count k n max num size results top : 1 20
page offset index start : 0 10
quantity guests passengers people adults nights days : 1 8
price amount cost total budget salary balance : 5 500
temperature temp : -5 35
confidence probability ratio similarity weight threshold : 0 1
score percent percentage : 0 100
rating stars : 1 5
port : 1024 65535
width height length radius distance : 1 100
minutes seconds duration timeout delay : 5 60
"#;

static SEMANTIC_TYPES: LazyLock<Vec<SemanticType>> = LazyLock::new(|| {
    let mut types: Vec<SemanticType> = Vec::new();
    for line in SEMANTIC_TYPE_TABLE.lines().filter(|line| !line.is_empty()) {
        if let (Some(more), Some(last)) = (line.strip_prefix("  "), types.last_mut()) {
            last.texts.extend(more.split('|').map(str::trim).filter(|t| !t.is_empty()));
        } else if let Some((keys, texts)) = line.split_once(" = ") {
            types.push(SemanticType {
                keys: keys.split(' ').collect(),
                texts: texts.split('|').map(str::trim).filter(|t| !t.is_empty()).collect(),
                range: None,
            });
        } else if let Some((keys, range)) = line.split_once(" : ") {
            let mut ends = range.split(' ').filter_map(|end| end.parse().ok());
            types.push(SemanticType {
                keys: keys.split(' ').collect(),
                texts: Vec::new(),
                range: ends.next().zip(ends.next()),
            });
        }
    }
    types
});

static SEMANTIC_TYPE_BY_WORD: LazyLock<HashMap<&'static str, &'static SemanticType>> =
    LazyLock::new(|| {
        let mut map = HashMap::new();
        for semantic_type in SEMANTIC_TYPES.iter() {
            for key in &semantic_type.keys {
                map.entry(*key).or_insert(semantic_type);
            }
        }
        map
    });

impl SemanticType {
    /// Returns the meaning of a field by its name; the last word takes precedence: `user_email` is
    /// an email.
    pub(crate) fn from_field_name(name: &str) -> Option<&'static Self> {
        let words = split_field_name(name);
        let joined: String = words.concat();
        semantic_type_of_word(&joined)
            .or_else(|| words.iter().rev().find_map(|word| semantic_type_of_word(word)))
    }

    /// Returns the meaning of a field by its description, which is less reliable than the name.
    pub(crate) fn from_description(description: &str) -> Option<&'static Self> {
        split_field_name(description)
            .iter()
            .take(24)
            .filter(|word| word.len() > 2)
            .find_map(|word| semantic_type_of_word(word))
    }
}

fn semantic_type_of_word(word: &str) -> Option<&'static SemanticType> {
    let exact = |word: &str| SEMANTIC_TYPE_BY_WORD.get(word).copied();
    exact(word).or_else(|| {
        let singular = match word.strip_suffix("ies") {
            Some(stem) => format!("{stem}y"),
            None => word.strip_suffix('s')?.to_owned(),
        };
        exact(&singular)
    })
}

/// Splits a field name in snake_case, kebab-case, camelCase or plain text into lower-case words.
fn split_field_name(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut lower_before = false;
    for c in name.chars().take(400) {
        if !c.is_alphanumeric() || (c.is_uppercase() && lower_before) {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            lower_before = false;
        }
        if c.is_alphanumeric() {
            lower_before = c.is_lowercase() || c.is_numeric();
            word.extend(c.to_lowercase());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Returns the example within a field's description, such as in "The city, e.g. San Francisco, CA".
pub(crate) fn example_in_description(description: &str) -> Option<&str> {
    let (_, rest) = description
        .split_once("e.g.")
        .or_else(|| description.split_once("for example"))
        .or_else(|| description.split_once("such as"))?;
    let rest = rest.trim_start_matches([' ', ',', ':']);
    for quote in ['"', '\'', '`'] {
        if let Some(inner) = rest.strip_prefix(quote) {
            return inner.split(quote).next().filter(|s| is_usable_example(s));
        }
    }
    let end = rest.find([')', ';', '\n', ']']).or_else(|| rest.find(". ")).unwrap_or(rest.len());
    Some(rest[..end].trim().trim_end_matches('.')).filter(|s| is_usable_example(s))
}

fn is_usable_example(example: &str) -> bool {
    !example.trim().is_empty() && example.len() <= 60
}

pub(crate) fn random_sentence(rng: &mut ChaCha8Rng) -> &'static str {
    random_phrase(semantic_type_of_word("description"), rng)
}

/// Returns a random string that fits the meaning of a field.
pub(crate) fn random_phrase(
    semantic_type: Option<&'static SemanticType>,
    rng: &mut ChaCha8Rng,
) -> &'static str {
    match semantic_type {
        Some(semantic_type) if !semantic_type.texts.is_empty() => {
            random_item(&semantic_type.texts, rng)
        }
        _ => random_item(LLM_D_WORDS, rng),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_random::{RandomStreamPurpose, request_rng};

    fn values_of_field(name: &str) -> Vec<&'static str> {
        SemanticType::from_field_name(name).map_or(Vec::new(), |c| c.texts.clone())
    }

    #[test]
    fn semantic_type_is_found_by_field_name() {
        assert!(values_of_field("city").contains(&"Paris"));
        assert!(values_of_field("departureCity").contains(&"Paris"));
        assert!(values_of_field("cities").contains(&"Paris"));
        assert!(values_of_field("user-email").contains(&"alice@example.com"));
        assert!(values_of_field("file_path").contains(&"src/main.py"));
        assert!(
            SemanticType::from_field_name("max_results")
                .is_some_and(|c| c.range == Some((1.0, 20.0)))
        );
        assert!(SemanticType::from_field_name("xyzzy").is_none());
    }

    #[test]
    fn example_is_taken_from_field_description() {
        let said = example_in_description("The city and state, e.g. San Francisco, CA");
        assert_eq!(said, Some("San Francisco, CA"));
        assert_eq!(example_in_description("Unit (e.g. 'celsius')"), Some("celsius"));
        assert_eq!(example_in_description("Anything."), None);
        assert!(SemanticType::from_description("Name of the country").is_some());
    }

    #[test]
    fn fields_of_unknown_meaning_use_llm_d_words() {
        let mut rng = request_rng(1, 1, RandomStreamPurpose::Structured);
        assert!(LLM_D_WORDS.contains(&random_phrase(None, &mut rng)));
    }
}
