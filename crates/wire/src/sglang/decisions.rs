//! Request of `POST /v1/decisions` of an SGLang server: questions about an input, answered by the
//! probabilities of the answer labels.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py`, `DecisionRequest`;
//! `serving_decisions.py` (`render_question`, `default_labels`).

use std::collections::HashSet;

use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::completion::DEFAULT_MODEL_NAME;
use crate::schema::Schema::{self, After, Any, Dict, List, Literal, Nullable, Tagged, Union};
use crate::schema::{
    ANY_LENGTH, AfterValidator, ClassKind, Field, LengthLimits, Model, NumberBounds, STR,
    ValidatorError, optional_field as opt, required_field as req, wire_model,
};

pub(super) const TEXT: Schema = Union(&[STR, Dict(&STR, &Any), List(&Any, ANY_LENGTH)]);
pub(super) const NULLABLE_TEXT: Schema = Nullable(&TEXT);
pub(super) const FILLED_TEXT: Schema = After(check_not_blank, &TEXT);
const FILLED_STR: Schema = After(check_not_blank, &STR);
pub(super) const MAP: Schema = Dict(&STR, &Any);

pub(super) const fn question(name: &'static str, fields: &'static [Field]) -> Model {
    Model { name, kind: ClassKind::Strict, fields, before: &[], after: None }
}

const OPTION: Schema = Schema::Model(&question(
    "DecisionOption",
    &[req("name", STR), opt("description", NULLABLE_TEXT)],
));
const CHOICE: Schema = Schema::Model(&Model {
    after: Some(AfterValidator::Alone(check_option_names)),
    ..question(
        "DecisionChoiceQuestion",
        &[
            req("id", FILLED_STR),
            req("type", Literal(&["choice"])),
            req("question", FILLED_TEXT),
            req("options", List(&OPTION, LengthLimits { min: 2, max: 26 })),
        ],
    )
});
const SCORE: Schema = Schema::Model(&question(
    "DecisionScoreQuestion",
    &[
        req("id", FILLED_STR),
        req("type", Literal(&["score"])),
        req("question", FILLED_TEXT),
        req("levels", List(&FILLED_TEXT, LengthLimits { min: 2, max: 10 })),
    ],
));
const YES_NO: Schema = Schema::Model(&question(
    "DecisionYesNoQuestion",
    &[
        req("id", FILLED_STR),
        req("type", Literal(&["yes_no"])),
        req("question", FILLED_TEXT),
        opt("yes", NULLABLE_TEXT),
        opt("no", NULLABLE_TEXT),
    ],
));
const QUESTION: Schema =
    Tagged { by: "type", choices: &[("choice", &CHOICE), ("score", &SCORE), ("yes_no", &YES_NO)] };
const QUESTIONS: Schema = List(&QUESTION, LengthLimits { min: 1, max: usize::MAX });

wire_model! {
    /// A request of `POST /v1/decisions`.
    pub struct DecisionRequest: Strict "DecisionRequest" {
        /// Text, object or array that the questions are about.
        input: Value [FILLED_TEXT],
        /// Images of the input, which are not simulated.
        images: Vec<Value> = Vec::new(),
        /// Questions with their options, levels, or descriptions of yes and no.
        questions: Vec<Value> [After(check_ids, &QUESTIONS)],
        /// Divisor of the log probabilities of labels (a softmax temperature).
        temperature: f64 [Schema::Float(NumberBounds { ge: None, le: None, gt: Some(0.0) })] = 1.0,
        /// Arguments of the chat template.
        chat_template_kwargs: Map<String, Value> [MAP] = Map::new(),
        /// Version of the wording of prompts that the client expects.
        prompt_format_version: Option<i64> = None,
        /// Whether the response contains the token ids of prompts and labels.
        return_prompt_token_ids: bool = false,
        /// Name of the model, which the response repeats.
        model: String = DEFAULT_MODEL_NAME.to_owned(),
    }
}

pub(super) fn is_blank(value: &Value) -> bool {
    match value {
        Value::String(text) => text.chars().all(python::is_python_whitespace),
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

fn check_not_blank(value: &Value) -> Result<Option<Value>, ValidatorError> {
    match is_blank(value) {
        true => Err(ValidatorError::ValueError("must not be blank".to_owned())),
        false => Ok(None),
    }
}

fn check_ids(questions: &Value) -> Result<Option<Value>, ValidatorError> {
    let mut seen = HashSet::new();
    for id in questions.as_array().into_iter().flatten().filter_map(|one| one.get("id")) {
        if !seen.insert(id) {
            let shown = python::python_repr(id);
            return Err(ValidatorError::ValueError(format!(
                "question id {shown} repeats another question"
            )));
        }
    }
    Ok(None)
}

fn check_option_names(question: &Map<String, Value>) -> Result<(), ValidatorError> {
    let options = question.get("options").and_then(Value::as_array);
    let names = options.into_iter().flatten().filter_map(|option| option.get("name")?.as_str());
    check_distinct_names(names).map_err(|text| {
        let id = python::python_repr(question.get("id").unwrap_or(&Value::Null));
        ValidatorError::ValueError(format!("question {id}: {text}"))
    })
}

/// Checks that the names of options are distinct lines of a prompt; the error is SGLang's text.
pub(super) fn check_distinct_names<'n>(names: impl Iterator<Item = &'n str>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        let key = name.trim_matches(python::is_python_whitespace).to_lowercase();
        let shown = python::python_repr_of_str(name);
        let text = if key.is_empty() {
            "option names must be nonempty".to_owned()
        } else if name.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')) {
            format!("option name {shown} must not contain control or line break characters")
        } else if !seen.insert(key) {
            format!("option name {shown} repeats another option")
        } else {
            continue;
        };
        return Err(text);
    }
    Ok(())
}

/// A question with its possible answers, in the order of their labels.
#[derive(Debug)]
pub struct Decision<'q> {
    /// Id of the question, under which the response contains its answer.
    pub id: &'q str,
    /// Type of the question: `choice`, `score` or `yes_no`.
    pub kind: &'q str,
    /// Text of the question.
    text: &'q Value,
    /// Names of the answers: options, level indices, or `yes` and `no`.
    pub names: Vec<String>,
    /// Descriptions of the answers; null without one.
    details: Vec<&'q Value>,
}

impl<'q> Decision<'q> {
    /// Reads a question that matches its schema.
    pub fn of_question(question: &'q Value) -> Self {
        let text = |name: &str| question[name].as_str().unwrap_or_default();
        let kind = text("type");
        let list = |name: &str| question[name].as_array().map_or(&[][..], Vec::as_slice);
        let (names, details): (Vec<String>, Vec<&Value>) = match kind {
            "choice" => list("options")
                .iter()
                .map(|one| {
                    (one["name"].as_str().unwrap_or_default().to_owned(), &one["description"])
                })
                .unzip(),
            "score" => {
                list("levels").iter().enumerate().map(|(at, one)| (at.to_string(), one)).unzip()
            }
            _ => ["yes", "no"].into_iter().map(|one| (one.to_owned(), &question[one])).unzip(),
        };
        Self { id: text("id"), kind, text: &question["question"], names, details }
    }

    /// Reads a question of `POST /v1/systemone` that matches its schema.
    pub fn of_system_one_question(id: &'q str, question: &'q Value) -> Self {
        let criteria = &question["criteria"];
        let kind = match question["type"].as_str() {
            Some("choice") => "choice",
            Some("score") => "score",
            _ => "yes_no",
        };
        let (names, details): (Vec<String>, Vec<&Value>) = match criteria {
            Value::Array(levels) => {
                levels.iter().enumerate().map(|(at, level)| (at.to_string(), level)).unzip()
            }
            Value::Object(options) if kind == "choice" => {
                options.iter().map(|(name, detail)| (name.clone(), detail)).unzip()
            }
            noul => [("yes", &noul["true"]), ("no", &noul["false"])]
                .map(|(name, detail)| (name.to_owned(), detail))
                .into_iter()
                .unzip(),
        };
        Self { id, kind, text: &question["instructions"], names, details }
    }

    /// Returns the descriptions of the answers by their names.
    pub fn details_by_name(&self) -> Map<String, Value> {
        let details = self.details.iter().map(|detail| (*detail).clone());
        self.names.iter().cloned().zip(details).collect()
    }

    /// Returns the labels that answer the question: letters, level indices, or yes and no.
    pub fn labels(&self) -> Vec<String> {
        match self.kind {
            "choice" => ('A'..='Z').take(self.names.len()).map(String::from).collect(),
            _ => self.names.clone(),
        }
    }

    /// Returns the message that asks the question about an input.
    pub fn message(&self, input: &Value) -> String {
        let question = if is_blank(self.text) { String::new() } else { shown_text(self.text) };
        let (lead, last) = match self.kind {
            "choice" => ("Question:", "Answer with the letter of one option only."),
            "score" => ("Question:", "Answer with the number of one level only."),
            _ => ("Is the following true?", "Answer with yes or no only."),
        };
        let mut lines = vec![shown_text(input), String::new()];
        match (question.is_empty(), self.kind) {
            (false, _) => lines.push(format!("{lead} {question}")),
            (true, "yes_no") => lines.push(lead.to_owned()),
            (true, _) => {}
        }
        for ((label, name), detail) in self.labels().iter().zip(&self.names).zip(&self.details) {
            let detail = shown_text(detail);
            match self.kind {
                "choice" if detail.is_empty() => lines.push(format!("{label}: {name}")),
                "choice" => lines.push(format!("{label}: {name} - {detail}")),
                "yes_no" if detail.is_empty() => {}
                _ => lines.push(format!("{label}: {detail}")),
            }
        }
        lines.push(last.to_owned());
        lines.join("\n")
    }
}

/// Returns a text as it is, and an object or array as compact JSON.
fn shown_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
