//! Request of `POST /v1/systemone` of an SGLang server: questions by id about a state.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/systemone/protocol.py`.

use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::decisions::{
    FILLED_TEXT, MAP, NULLABLE_TEXT, TEXT, check_distinct_names, is_blank, question,
};
use crate::schema::Schema::{self, After, Any, Dict, List, Literal, Nullable, Tagged};
use crate::schema::{
    AfterValidator, Field, LengthLimits, Model, STR, ValidatorError, optional_field as opt,
    required_field as req, wire_model,
};

const fn kind(name: &'static [&'static str]) -> Field {
    req("type", Literal(name))
}

const INSTRUCTIONS: Field = opt("instructions", NULLABLE_TEXT);
const NOUL_CRITERIA: Schema = Schema::Model(&question(
    "SystemOneNoulCriteria",
    &[opt("true", NULLABLE_TEXT), opt("false", NULLABLE_TEXT)],
));
const NOUL: Schema = Schema::Model(&Model {
    after: Some(AfterValidator::Alone(check_asks_something)),
    ..question(
        "SystemOneNoulQuestion",
        &[INSTRUCTIONS, kind(&["noul"]), opt("criteria", Nullable(&NOUL_CRITERIA))],
    )
});
const CHOICE: Schema = Schema::Model(&question(
    "SystemOneChoiceQuestion",
    &[
        INSTRUCTIONS,
        kind(&["choice"]),
        req("criteria", After(check_criteria, &Dict(&STR, &NULLABLE_TEXT))),
    ],
));
const SCORE: Schema = Schema::Model(&question(
    "SystemOneScoreQuestion",
    &[
        INSTRUCTIONS,
        kind(&["score"]),
        req("criteria", List(&FILLED_TEXT, LengthLimits { min: 1, max: 10 })),
    ],
));
const QUESTION: Schema =
    Tagged { by: "type", choices: &[("noul", &NOUL), ("choice", &CHOICE), ("score", &SCORE)] };

/// Returns the schema of a field of `/v1/decisions`, which must be absent here.
macro_rules! decisions_field {
    ($name:literal) => {
        After(
            |value| match value.is_null() {
                true => Ok(None),
                false => Err(ValidatorError::ValueError(
                    concat!($name, " is not part of this API, use /v1/decisions for it").to_owned(),
                )),
            },
            &Any,
        )
    };
}

wire_model! {
    /// A request of `POST /v1/systemone`.
    pub struct SystemOneRequest: Plain "SystemOneRequest" {
        /// Text, object or array that the questions are about.
        state: Value [TEXT],
        /// Images of the state; none are simulated.
        images: Vec<Value> = Vec::new(),
        /// Name of the model.
        model: String,
        /// Questions by id.
        questions: Map<String, Value> [After(check_not_empty, &Dict(&STR, &QUESTION))],
        /// Arguments of the chat template.
        chat_template_kwargs: Map<String, Value> [MAP] = Map::new(),
        /// A field of `/v1/decisions`, which must be absent.
        temperature: Option<Value> [decisions_field!("temperature")] = None,
        /// A field of `/v1/decisions`, which must be absent.
        prompt_format_version: Option<Value> [decisions_field!("prompt_format_version")] = None,
        /// A field of `/v1/decisions`, which must be absent.
        return_prompt_token_ids: Option<Value> [decisions_field!("return_prompt_token_ids")] = None,
    }
}

fn check_not_empty(map: &Value) -> Result<Option<Value>, ValidatorError> {
    match map.as_object().is_some_and(Map::is_empty) {
        true => Err(ValidatorError::TooShort),
        false => Ok(None),
    }
}

fn check_asks_something(question: &Map<String, Value>) -> Result<(), ValidatorError> {
    let criteria = question.get("criteria").unwrap_or(&Value::Null);
    let texts = [question.get("instructions"), criteria.get("true"), criteria.get("false")];
    if texts.into_iter().flatten().any(|text| !text.is_null() && !is_blank(text)) {
        return Ok(());
    }
    let text = "a noul question needs instructions or a true or false description to decide on";
    Err(ValidatorError::ValueError(text.to_owned()))
}

fn check_criteria(criteria: &Value) -> Result<Option<Value>, ValidatorError> {
    let names = criteria.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    check_distinct_names(names).map_err(ValidatorError::ValueError)?;
    check_not_empty(criteria)
}

/// Returns Python's `repr` of the id of a question, which errors name.
pub fn shown_question_id(id: &str) -> String {
    python::python_repr_of_str(id)
}
