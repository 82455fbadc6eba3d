//! Builds a dataset of recorded replies from conversations, with one conversation in memory at a
//! time.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::recording::{self, RecordedRequest};
use super::source::{self, ConversationMessage};
use super::write::{DatasetRow, DatasetWriter};
use super::{BuildArgs, card};
use vllm_sim_dataset::{
    DatasetFormat, hash_completion_prompt, hash_conversation, hash_prompt_tokens,
};
use vllm_sim_tokenizer::{ChatMessage, ChatTemplateInput, SpecialTokenHandling, Tokenizer};

/// Input of a dataset build, with the command-line arguments.
pub(super) struct DatasetBuild {
    /// Path of the input file, with conversations or recordings.
    pub(super) input: PathBuf,
    /// Origin of the input, printed on the dataset card.
    pub(super) origin: String,
    pub(super) args: BuildArgs,
}

impl DatasetBuild {
    /// Returns the version of the dataset format to write.
    pub(super) fn generation(&self) -> DatasetFormat {
        if self.args.legacy { DatasetFormat::Texts } else { DatasetFormat::Tokens }
    }
}

/// Result of a dataset build.
pub(super) struct BuiltDatasetSummary {
    /// Paths of the SQLite database, the JSON file and the dataset card.
    pub(super) files: [PathBuf; 3],
    /// Whether the input was a recording of `vllm-sim record`.
    pub(super) recorded: bool,
    /// Number of conversations or recordings read from the input.
    pub(super) read: usize,
    /// Number of conversations or recordings with at least one question and answer.
    pub(super) used: usize,
    /// Number of replies written to the dataset.
    pub(super) records: usize,
}

/// Builds a dataset, and shows progress on a terminal.
///
/// Each answer of the assistant to a user becomes two rows: one for a completion of the user's
/// text, one for the chat so far. A recording keeps its rows.
///
/// # Errors
/// Returns an error if an output file exists, the input is unreadable or has no reply, or writing
/// fails. No output file remains then.
pub(super) fn build_dataset(
    build: &DatasetBuild,
    tokenizer: &Tokenizer,
) -> Result<BuiltDatasetSummary> {
    let files = ["sqlite3", "json", "md"].map(|extension| {
        build.args.output_path.join(format!("{}.{extension}", build.args.output_file))
    });
    for file in &files {
        if file.exists() {
            bail!("{} already exists", file.display());
        }
    }
    let recorded = recording::is_sqlite_file(&build.input);
    let input = File::open(&build.input)
        .with_context(|| format!("cannot open {}", build.input.display()))?;
    let length = input.metadata().map_or(0, |about| about.len());
    let progress = if recorded {
        ProgressBar::new(recording::count_recordings(&build.input, &build.args.table_name)?)
    } else {
        ProgressBar::new(length).with_style(progress_style())
    };
    let mut writer = DatasetWriter::new(&files[0], &files[1], &build.args.table_name)?;
    let (mut read, mut used) = (0, 0);
    if recorded && build.args.max_records > 0 {
        recording::for_each_recording(&build.input, &build.args.table_name, |recording| {
            read += 1;
            let before = writer.written_row_count();
            write_retokenized_recording(build.generation(), tokenizer, recording, &mut writer)?;
            progress.inc(1);
            used += usize::from(writer.written_row_count() > before);
            Ok(if read >= build.args.max_records {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })
        .with_context(|| format!("{}, recording {}", build.input.display(), read + 1))?;
    } else if build.args.max_records > 0 {
        source::for_each_conversation(BufReader::new(progress.wrap_read(input)), |messages| {
            read += 1;
            let before = writer.written_row_count();
            write_conversation_replies(build.generation(), tokenizer, &messages, &mut writer)?;
            used += usize::from(writer.written_row_count() > before);
            Ok(if read >= build.args.max_records {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })
        .with_context(|| format!("{}, conversation {}", build.input.display(), read + 1))?;
    }
    progress.finish_and_clear();
    let records = writer.written_row_count();
    if records == 0 {
        let what = if recorded { "recordings" } else { "conversations" };
        bail!(
            "{}: no reply in {read} {what}; a dataset is built from ShareGPT conversations or OpenAI \
             messages in which an assistant answers a user, or from a recording of `vllm-sim record`",
            build.input.display()
        );
    }
    writer.finish_and_rename()?;
    let built = BuiltDatasetSummary { files, recorded, read, used, records };
    if let Err(error) = std::fs::write(&built.files[2], card::dataset_card_markdown(build, &built))
    {
        for file in &built.files {
            let _ = std::fs::remove_file(file);
        }
        return Err(error).with_context(|| format!("cannot write {}", built.files[2].display()));
    }
    Ok(built)
}

fn progress_style() -> ProgressStyle {
    let template = "{bar:40} {bytes}/{total_bytes} {elapsed} (eta {eta})";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Writes the dataset row of one recording, converted to the tokens of `tokenizer`.
fn write_retokenized_recording(
    generation: DatasetFormat,
    tokenizer: &Tokenizer,
    recording: RecordedRequest,
    writer: &mut DatasetWriter,
) -> Result<()> {
    let Some(recording) = recording.retokenize_recording(tokenizer) else {
        return Ok(());
    };
    let messages = recording.prompt_messages();
    let said = messages.iter().map(|(role, text)| (role.as_str(), text.as_str()));
    let hash = match generation {
        DatasetFormat::Tokens => hash_prompt_tokens(&recording.prompt),
        DatasetFormat::Texts => hash_conversation(said.clone()),
    };
    let input: Vec<&str> = said.map(|(_, text)| text).collect();
    writer.write_row(&DatasetRow {
        hash,
        ids: &recording.ids,
        texts: &recording.texts,
        generation,
        input: &input.join("\n"),
        output: &recording.texts.concat(),
        recording: Some(&recording),
    })
}

fn write_conversation_replies(
    generation: DatasetFormat,
    tokenizer: &Tokenizer,
    messages: &[ConversationMessage],
    writer: &mut DatasetWriter,
) -> Result<()> {
    let as_json = |m: &ConversationMessage| json!({"role": m.role, "content": m.text}).into();
    let history: Vec<ChatMessage> = messages.iter().map(as_json).collect();
    for (place, pair) in messages.windows(2).enumerate() {
        let [question, answer] = pair else { continue };
        if question.role != "user" || answer.role != "assistant" || answer.text.is_empty() {
            continue;
        }
        let reply = tokenizer.tokenize_with_text(&answer.text);
        if reply.ids.is_empty() {
            continue;
        }
        let texts: Vec<_> =
            (0..reply.ids.len()).map(|index| reply.fragment_text(index).to_owned()).collect();
        let (completion, chat) = match generation {
            DatasetFormat::Tokens => {
                let asked = ChatTemplateInput {
                    messages: &history[..=place],
                    add_generation_prompt: true,
                    ..ChatTemplateInput::default()
                };
                // A template may reject a conversation, such as one with two users in a row.
                let chat = tokenizer.render_chat(&asked).ok().map(|text| {
                    let hash =
                        hash_prompt_tokens(&tokenizer.encode(&text, SpecialTokenHandling::Without));
                    (hash, text)
                });
                let hash = hash_prompt_tokens(
                    &tokenizer.encode(&question.text, SpecialTokenHandling::With),
                );
                ((hash, question.text.clone()), chat)
            }
            DatasetFormat::Texts => {
                let said = messages[..=place].iter();
                let hash =
                    hash_conversation(said.clone().map(|m| (m.role.as_str(), m.text.as_str())));
                let text = said.map(|m| format!("### {}:\n{}\n", m.role, m.text)).collect();
                let completion = (hash_completion_prompt(&question.text), question.text.clone());
                (completion, Some((hash, text)))
            }
        };
        for (hash, input) in std::iter::once(completion).chain(chat) {
            writer.write_row(&DatasetRow {
                hash,
                ids: &reply.ids,
                texts: &texts,
                generation,
                input: &input,
                output: &answer.text,
                recording: None,
            })?;
        }
    }
    Ok(())
}
