//! Renders the dataset card, a Markdown page that describes the dataset's files.

use super::build::{BuiltDatasetSummary, DatasetBuild};
use vllm_sim_dataset::{DatasetFormat, schema::recording_table_name};

pub(super) fn dataset_card_markdown(build: &DatasetBuild, built: &BuiltDatasetSummary) -> String {
    let DatasetBuild { origin, args, .. } = build;
    let (model, table, name) = (&args.model, &args.table_name, &args.output_file);
    let BuiltDatasetSummary { read, used, records, recorded, .. } = built;
    let (what, how, timing) = if *recorded {
        (
            "Recordings",
            "each for its prompt",
            format!(
                "\nTable `{}` has the request, the model's name and the microseconds to each token.\n",
                recording_table_name(table)
            ),
        )
    } else {
        (
            "Conversations",
            "each answer once for a completion of the user's text and once for the chat so far",
            String::new(),
        )
    };
    let (hash, form) = match build.generation() {
        DatasetFormat::Tokens => (
            "SHA-256 of the prompt's token ids, each 4 bytes, little-endian",
            "object with `Tokens` (ids) and `Strings` (the text of each)",
        ),
        DatasetFormat::Texts => (
            "SHA-256 of `### ROLE:\\nTEXT\\n` of each message",
            "array with the text of each token",
        ),
    };
    format!(
        "# {name}

Recorded replies for an inference simulator, by the hash of their prompt.

- **Source:** {origin}
- **Tokenizer:** {model}
- **{what}:** {read} read, {used} used
- **Replies:** {records}; {how}

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
{timing}
The JSON file has the same fields (`prompt_hash` in base64), and `input_text` and `generated`.
"
    )
}
