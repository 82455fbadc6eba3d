//! Schemas of requests as data, and the macro that declares a request class.
//!
//! The Rust type of a field implies the schema of its Python annotation:
//! `Option<bool>` is `bool | None`, `Vec<String>` is `list[str]`.
//!
//! The macro `wire_model!` generates both a [`Model`] for [`super::body`] and a reader of checked
//! values, so they always agree.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::PythonValue;

use super::bounds::RequestBounds;
use super::fault::Fault;

/// Pydantic's core schema of a request field: the JSON values that the field accepts.
#[derive(Debug, Clone, Copy)]
pub enum Schema {
    /// Schema of Python's `Any`: every JSON value.
    Any,
    /// Schema of Python's `bool`.
    Bool,
    /// Schema of Python's `int`, optionally with bounds.
    Int(NumberBounds<i128>),
    /// Schema of Python's `float`, optionally with bounds.
    Float(NumberBounds<f64>),
    /// Schema of Python's `str`, optionally with length limits in characters.
    Str(LengthLimits),
    /// Schema of Python's `bytes`; JSON sends a string.
    Bytes,
    /// Schema of Python's `Literal["…"]`: one of the given strings.
    Literal(&'static [&'static str]),
    /// Schema of a Python `Enum` whose values are the given strings.
    Enum(&'static [&'static str]),
    /// Schema of Python's `list[…]`, optionally with a limited number of items.
    List(&'static Schema, LengthLimits),
    /// Schema of Python's `Iterable[…]`: pydantic validates items only when code iterates over
    /// them.
    Iterable(&'static Schema),
    /// Schema of Python's `Sequence[…]`: a list, but never a string.
    Sequence(&'static Schema),
    /// Schema of Python's `dict[…, …]`, from the schemas of keys and values.
    Dict(&'static Schema, &'static Schema),
    /// Schema of a Python type or `None`.
    Nullable(&'static Schema),
    /// Schema of a Python union `A | B | …`, in pydantic's smart mode.
    Union(&'static [Schema]),
    /// Schema of a discriminated union, whose branch is selected by a string in one field.
    Tagged {
        /// Name of the field that selects the branch.
        by: &'static str,
        /// Values of the selecting field, each with the schema of its branch.
        choices: &'static [(&'static str, &'static Schema)],
    },
    /// Schema of a union whose branch a function selects; the branch's name is part of the error
    /// path.
    Selected(fn(&Value) -> (&'static str, &'static Schema)),
    /// Schema of a Python class with fields.
    Model(&'static Model),
    /// Schema with pydantic's `BeforeValidator`, which may replace the raw value or reject the
    /// request.
    Before(fn(&Value) -> Result<Option<Value>, Fault>, &'static Schema),
    /// Schema with pydantic's `AfterValidator`, which may replace or reject the checked value.
    After(fn(&Value) -> Result<Option<Value>, ValidatorError>, &'static Schema),
    /// Schema of a Python `Enum` whose values are the given integers.
    IntEnum(&'static [i64]),
    /// Schema of an instance of a Python class; no JSON value matches.
    Instance(&'static str),
    /// Schema of Python's `tuple[…]` of fixed length.
    Tuple(&'static [Schema]),
    /// Schema for recursive types, built when it is used.
    Late(fn() -> Schema),
    /// Schema with the name that pydantic gives the validator around the schema.
    Named(&'static str, &'static Schema),
}

/// Bounds of a number in a schema, inclusive except for `gt`.
#[derive(Debug, Clone, Copy)]
pub struct NumberBounds<T: 'static> {
    /// Inclusive minimum of the number; `None`: no minimum.
    pub ge: Option<T>,
    /// Inclusive maximum of the number; `None`: no maximum.
    pub le: Option<T>,
    /// Exclusive minimum of the number; `None`: no minimum.
    pub gt: Option<T>,
}

/// Limits of the length of a string or list, inclusive.
#[derive(Debug, Clone, Copy)]
pub struct LengthLimits {
    /// Minimum length, in characters or items.
    pub min: usize,
    /// Maximum length, in characters or items.
    pub max: usize,
}

pub(crate) const ANY_LENGTH: LengthLimits = LengthLimits { min: 0, max: usize::MAX };

/// The schema of Python's `int`, without bounds.
pub const INT: Schema = Schema::Int(NumberBounds { ge: None, le: None, gt: None });

pub(crate) const INT64: Schema = int_between_schema(i64::MIN as i128, i64::MAX as i128);

/// The schema of Python's `float`, without bounds.
pub const FLOAT: Schema = Schema::Float(NumberBounds { ge: None, le: None, gt: None });

/// Schema of Python's `str`, of any length.
pub(crate) const STR: Schema = Schema::Str(ANY_LENGTH);

pub(crate) const fn int_between_schema(ge: i128, le: i128) -> Schema {
    Schema::Int(NumberBounds { ge: Some(ge), le: Some(le), gt: None })
}

pub(crate) const fn int_at_least_schema(ge: i128) -> Schema {
    Schema::Int(NumberBounds { ge: Some(ge), le: None, gt: None })
}

pub(crate) const fn int_greater_than_schema(gt: i128) -> Schema {
    Schema::Int(NumberBounds { ge: None, le: None, gt: Some(gt) })
}

pub(crate) const fn float_between_schema(ge: f64, le: f64) -> Schema {
    Schema::Float(NumberBounds { ge: Some(ge), le: Some(le), gt: None })
}

/// Kind of a Python class; selects the error text for a value that is not an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassKind {
    /// A subclass of vLLM's `OpenAIBaseModel`; error paths of a union omit its name.
    Wrapped,
    /// A plain pydantic model class.
    Plain,
    /// A plain pydantic model class that rejects unknown fields.
    Strict,
    /// A Python `TypedDict`.
    TypedDict,
    /// A pydantic dataclass.
    Dataclass,
}

/// A Python class with named fields and validators.
#[derive(Debug)]
pub struct Model {
    /// Name of the Python class.
    pub name: &'static str,
    /// Kind of the Python class.
    pub kind: ClassKind,
    /// Fields of the class in declaration order, which is the order of errors.
    pub fields: &'static [Field],
    /// Validator functions of the raw object (`mode="before"`), in the order they run.
    pub before: &'static [BeforeValidator],
    /// Validator function for the object once all fields are valid.
    pub after: Option<AfterValidator>,
}

/// A validator function of the raw object: may change it or reject the request.
pub(crate) type BeforeValidator =
    fn(&mut Cow<'_, Map<String, Value>>) -> Result<(), ValidatorError>;

/// A validator function of an object whose fields are valid.
#[derive(Debug, Clone, Copy)]
pub enum AfterValidator {
    /// A validator function that needs only the object.
    Alone(fn(&Map<String, Value>) -> Result<(), ValidatorError>),
    /// A validator function that also needs the server's limits.
    Within(fn(&Map<String, Value>, &RequestBounds) -> Result<(), ValidatorError>),
}

impl AfterValidator {
    /// Runs the validator function on the object.
    ///
    /// # Errors
    /// The error that the validator function returns.
    pub fn run_validator(
        self,
        map: &Map<String, Value>,
        bounds: &RequestBounds,
    ) -> Result<(), ValidatorError> {
        match self {
            Self::Alone(check) => check(map),
            Self::Within(check) => check(map, bounds),
        }
    }
}

/// An error of a validator function.
#[derive(Debug)]
pub enum ValidatorError {
    /// An error response that ends validation.
    Fault(Fault),
    /// Python's `ValueError`, which pydantic lists among the schema errors.
    ValueError(String),
    /// Error of a list or dict that is empty but must not be.
    TooShort,
    /// An invalid item in a list whose items were not validated before (`Iterable`).
    Item {
        /// Index of the invalid item in the list.
        index: usize,
        /// The schema that each item of the list must match.
        schema: &'static Schema,
        /// The invalid item of the list.
        value: Value,
    },
}

impl From<Fault> for ValidatorError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Model {
    /// Returns whether an object cannot be of the class, because a required literal field, such as
    /// `role` or `type`, has another value.
    ///
    /// Validation of a union then skips the other fields of the class.
    pub(crate) fn is_excluded_by_literal_field(&self, map: &Map<String, Value>) -> bool {
        let mut literals = self.fields.iter().filter_map(|field| match field.schema {
            Schema::Literal(choices) if field.required => Some((field.name, choices)),
            _ => None,
        });
        literals.any(|(name, choices)| match find_member(map, name) {
            Some((_, Value::String(text))) => !choices.contains(&text.as_str()),
            _ => true,
        })
    }

    /// Creates the schema class of a `TypedDict`.
    pub(crate) const fn typed_dict(name: &'static str, fields: &'static [Field]) -> Self {
        Self { name, kind: ClassKind::TypedDict, fields, before: &[], after: None }
    }

    /// Creates the schema class of a pydantic model without validators.
    pub const fn plain(name: &'static str, fields: &'static [Field]) -> Self {
        Self { name, kind: ClassKind::Plain, fields, before: &[], after: None }
    }
}

// The `const` blocks of both macros make nested schemas static.

/// Creates the [`Schema`] of a `TypedDict` from its name and fields.
macro_rules! typed_dict {
    ($name:literal, $($field:expr),* $(,)?) => {
        $crate::schema::Schema::Model(const {
            &$crate::schema::Model::typed_dict($name, const { &[$($field),*] })
        })
    };
}

/// Creates the [`Schema`] of a pydantic model without validators from its name and fields.
macro_rules! plain_model {
    ($name:literal $(, $field:expr)* $(,)?) => {
        $crate::schema::Schema::Model(const {
            &$crate::schema::Model::plain($name, const { &[$($field),*] })
        })
    };
}

pub(crate) use {plain_model, typed_dict};

/// Creates the schema of a field that a JSON object must have.
pub const fn required_field(name: &'static str, schema: Schema) -> Field {
    Field { name, required: true, schema }
}

/// Creates the schema of a field that a JSON object may omit.
pub const fn optional_field(name: &'static str, schema: Schema) -> Field {
    Field { name, required: false, schema }
}

/// One field of a request class ([`Model`]).
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name of the field in the JSON body.
    pub name: &'static str,
    /// Whether the field must be present in the object.
    pub required: bool,
    /// Schema of the field's value.
    pub schema: Schema,
}

/// A Rust type of a request field: its schema, and a reader of checked values.
pub trait RequestField: Sized {
    /// The schema that the field's value must match.
    const SCHEMA: Schema;

    /// Reads a field value that satisfies [`RequestField::SCHEMA`]; `None` for one that does not.
    fn read(value: &Value) -> Option<Self>;
}

impl RequestField for Value {
    const SCHEMA: Schema = Schema::Any;

    fn read(value: &Value) -> Option<Self> {
        Some(value.clone())
    }
}

impl RequestField for bool {
    const SCHEMA: Schema = Schema::Bool;

    fn read(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

/// A field of Python's type `int`; values beyond 128 bits become the nearest 128-bit integer.
impl RequestField for i128 {
    const SCHEMA: Schema = INT;

    fn read(value: &Value) -> Option<Self> {
        match PythonValue::from_json_value(value) {
            PythonValue::Int(i) => Some(i),
            PythonValue::BigInt(text) => {
                Some(if text.starts_with('-') { Self::MIN } else { Self::MAX })
            }
            _ => None,
        }
    }
}

impl RequestField for i64 {
    const SCHEMA: Schema = INT64;

    fn read(value: &Value) -> Option<Self> {
        i128::read(value).and_then(|i| Self::try_from(i).ok())
    }
}

impl RequestField for u64 {
    const SCHEMA: Schema = int_at_least_schema(0);

    fn read(value: &Value) -> Option<Self> {
        i128::read(value).map(|i| Self::try_from(i).unwrap_or(Self::MAX))
    }
}

impl RequestField for f64 {
    const SCHEMA: Schema = FLOAT;

    fn read(value: &Value) -> Option<Self> {
        PythonValue::from_json_value(value).as_number()
    }
}

impl RequestField for String {
    const SCHEMA: Schema = STR;

    fn read(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

impl<T: RequestField> RequestField for Option<T> {
    const SCHEMA: Schema = Schema::Nullable(&T::SCHEMA);

    fn read(value: &Value) -> Option<Self> {
        if value.is_null() { Some(None) } else { T::read(value).map(Some) }
    }
}

impl<T: RequestField> RequestField for Vec<T> {
    const SCHEMA: Schema = Schema::List(&T::SCHEMA, ANY_LENGTH);

    fn read(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::read).collect()
    }
}

impl<T: RequestField> RequestField for IndexMap<String, T> {
    const SCHEMA: Schema = Schema::Dict(&STR, &T::SCHEMA);

    fn read(value: &Value) -> Option<Self> {
        value.as_object()?.iter().map(|(k, v)| Some((k.clone(), T::read(v)?))).collect()
    }
}

impl RequestField for Map<String, Value> {
    const SCHEMA: Schema = Schema::Dict(&STR, &Schema::Any);

    fn read(value: &Value) -> Option<Self> {
        value.as_object().cloned()
    }
}

/// Returns the member `name` of a JSON object.
///
/// Small maps are searched linearly: comparing names is faster than hashing each field's name.
pub(crate) fn find_member<'m>(
    map: &'m Map<String, Value>,
    name: &str,
) -> Option<(&'m String, &'m Value)> {
    const LINEAR_SEARCH_MAX: usize = 12;

    if map.len() <= LINEAR_SEARCH_MAX {
        map.iter().find(|(key, _)| *key == name)
    } else {
        map.get_key_value(name)
    }
}

/// Members of a JSON object, indexed by the lengths of their names, so that most absent fields are
/// ruled out without a search.
pub(crate) struct JsonMemberIndex<'m> {
    map: &'m Map<String, Value>,
    /// Bit set of the lengths of member names, modulo 64.
    lengths: u64,
}

impl<'m> JsonMemberIndex<'m> {
    pub(crate) fn from_map(map: &'m Map<String, Value>) -> Self {
        let lengths = map.keys().fold(0, |lengths, key| lengths | name_length_bit(key));
        Self { map, lengths }
    }

    /// Returns the member `name` of the object, as [`find_member`] does.
    pub(crate) fn find_member(&self, name: &str) -> Option<(&'m String, &'m Value)> {
        match self.lengths & name_length_bit(name) {
            0 => None,
            _ => find_member(self.map, name),
        }
    }
}

const fn name_length_bit(name: &str) -> u64 {
    1 << (name.len() % 64)
}

/// Declares a request class: a documented struct, its [`Model`], and a reader.
///
/// In the declaration, a field is `name: Type`, then optionally `[SCHEMA]` if the type does not
/// imply it, `as "wire name"` and `= default`. A field without a default is required.
///
/// The keyword `default` before the struct also implements [`Default`].
macro_rules! wire_model {
    (
        default
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $kind:ident $python:literal
            $(before [$($before:path),* $(,)?])? $(after $after:ident)? $(within $within:ident)?
        {
            $(
                $(#[$field_meta:meta])*
                $field:ident: $type:ty $([$schema:expr])? $(as $wire:literal)? = $default:expr
            ),* $(,)?
        }
    ) => {
        wire_model! {
            $(#[$meta])*
            $vis struct $name: $kind $python $(before [$($before),*])? $(after $after)? $(within $within)? {
                $(
                    $(#[$field_meta])*
                    $field: $type $([$schema])? $(as $wire)? = $default,
                )*
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $kind:ident $python:literal
            $(before [$($before:path),* $(,)?])? $(after $after:ident)? $(within $within:ident)?
        {
            $(
                $(#[$field_meta:meta])*
                $field:ident: $type:ty $([$schema:expr])? $(as $wire:literal)? $(= $default:expr)?
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* $vis $field: $type,)*
        }

        impl $name {
            /// The schema of the request class.
            pub(crate) const MODEL: &'static $crate::schema::Model =
                &$crate::schema::Model {
                    name: $python,
                    kind: $crate::schema::ClassKind::$kind,
                    fields: &[$(
                        $crate::schema::Field {
                            name: wire_model!(@name $field $($wire)?),
                            required: wire_model!(@required $($default)?),
                            schema: wire_model!(@schema $type $(, $schema)?),
                        },
                    )*],
                    before: &[$($($before),*)?],
                    after: wire_model!(@after $($after)? $(, $within)?),
                };
        }

        impl $crate::schema::RequestField for $name {
            const SCHEMA: $crate::schema::Schema =
                $crate::schema::Schema::Model(Self::MODEL);

            fn read(value: &::serde_json::Value) -> Option<Self> {
                $(let mut $field: Option<$type> = None;)*
                for (name, value) in value.as_object()? {
                    match name.as_str() {
                        $(wire_model!(@name $field $($wire)?) => {
                            $field = Some(<$type as $crate::schema::RequestField>::read(value)?);
                        })*
                        _ => {}
                    }
                }
                Some(Self {
                    $($field: match $field {
                        Some(value) => value,
                        None => wire_model!(@default $($default)?),
                    },)*
                })
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $wire:literal) => { $wire };
    (@required) => { true };
    (@required $default:expr) => { false };
    (@schema $type:ty) => { <$type as $crate::schema::RequestField>::SCHEMA };
    (@schema $type:ty, $schema:expr) => { $schema };
    (@after) => { None };
    (@after $after:ident) => { Some($crate::schema::AfterValidator::Alone($after)) };
    (@after , $within:ident) => { Some($crate::schema::AfterValidator::Within($within)) };
    (@default) => { return None };
    (@default $default:expr) => { $default };
}

pub(crate) use wire_model;
