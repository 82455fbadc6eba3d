//! The dataset's card: Markdown that says what the files are.

use super::build::{Build, Built};
use crate::dataset::Generation;

/// The card.
pub(super) fn text(build: &Build, built: &Built) -> String {
    let Build {
        origin,
        model,
        table,
        name,
        ..
    } = build;
    let Built {
        read,
        used,
        records,
        ..
    } = built;
    let (hash, form) = match build.generation {
        Generation::Tokens => (
            "SHA-256 of the prompt's token ids, each 4 bytes, little-endian",
            "object with `Tokens` (ids) and `Strings` (the text of each)",
        ),
        Generation::Texts => (
            "SHA-256 of `### ROLE:\\nTEXT\\n` of each message",
            "array with the text of each token",
        ),
    };
    format!(
        "# {name}

Recorded replies for an inference simulator, by the hash of their prompt.

- **Source:** {origin}
- **Tokenizer:** {model}
- **Conversations:** {read} read, {used} used
- **Replies:** {records}; each answer once for a completion of the user's text and once for the chat so far

## Files

- `{name}.sqlite3`: what the simulator reads
- `{name}.json`: the same for people, with the texts

## Table `{table}`

| Column | Type | What it holds |
| :--- | :--- | :--- |
| `id` | INTEGER PRIMARY KEY | number of the row |
| `prompt_hash` | BLOB | {hash} |
| `gen_tokens` | JSON | {form} |
| `n_gen_tokens` | INTEGER | tokens of the reply |

The JSON file has the same fields (`prompt_hash` in base64), and `input_text` and `generated`.
"
    )
}
