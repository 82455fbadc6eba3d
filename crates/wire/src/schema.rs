//! Schemas as data, and the macro that declares a request class.
//!
//! The Rust type of a field implies the schema of its Python annotation:
//! `Option<bool>` is `bool | None`, `Vec<String>` is `list[str]`.
//!
//! `wire_model!` generates both a [`Model`] for [`super::check`] and a reader of checked values, so
//! they always agree.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::Py;

use super::bounds::RequestBounds;
use super::fault::Fault;

/// A pydantic core schema: the values that a field accepts.
#[derive(Debug, Clone, Copy)]
pub enum Schema {
    /// `Any`.
    Any,
    /// `bool`.
    Bool,
    /// `int`, optionally with bounds.
    Int(NumberBounds<i128>),
    /// `float`, optionally with bounds.
    Float(NumberBounds<f64>),
    /// `str`, optionally with length limits in characters.
    Str(Length),
    /// `bytes`; JSON sends a string.
    Bytes,
    /// `Literal["…"]`.
    Literal(&'static [&'static str]),
    /// A string `Enum`.
    Enum(&'static [&'static str]),
    /// `list[…]`.
    List(&'static Schema, Length),
    /// `Iterable[…]`: pydantic validates items only when code iterates over them.
    Iterable(&'static Schema),
    /// `Sequence[…]`: a list, but never a string.
    Sequence(&'static Schema),
    /// `dict[…, …]`.
    Dict(&'static Schema, &'static Schema),
    /// `… | None`.
    Nullable(&'static Schema),
    /// `A | B | …`, in smart mode.
    Union(&'static [Schema]),
    /// A union whose branch is selected by a literal in one field.
    Tagged {
        /// Name of the selecting field.
        by: &'static str,
        /// Values of the selecting field and their schemas.
        choices: &'static [(&'static str, &'static Schema)],
    },
    /// A class with fields.
    Model(&'static Model),
    /// A `BeforeValidator`: may replace the value or reject the request.
    Before(fn(&Value) -> Result<Option<Value>, Fault>, &'static Schema),
    /// An `AfterValidator`: may replace or reject the checked value.
    After(
        fn(&Value) -> Result<Option<Value>, ValidatorError>,
        &'static Schema,
    ),
    /// An `Enum` of integers.
    IntEnum(&'static [i64]),
    /// An instance of a Python class; no JSON value matches.
    Instance(&'static str),
    /// `tuple[…]` of fixed length.
    Tuple(&'static [Schema]),
    /// Schema built on use, for recursive types.
    Late(fn() -> Schema),
}

/// Limits of a number, inclusive except for `gt`.
#[derive(Debug, Clone, Copy)]
pub struct NumberBounds<T: 'static> {
    /// Minimum.
    pub ge: Option<T>,
    /// Maximum.
    pub le: Option<T>,
    /// Exclusive minimum.
    pub gt: Option<T>,
}

/// Limits of a length.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Minimum.
    pub min: usize,
    /// Maximum.
    pub max: usize,
}

pub(crate) const ANY_LENGTH: Length = Length {
    min: 0,
    max: usize::MAX,
};

/// The schema of `int`.
pub const INT: Schema = Schema::Int(NumberBounds {
    ge: None,
    le: None,
    gt: None,
});

pub(crate) const INT64: Schema = int_within(i64::MIN as i128, i64::MAX as i128);

/// The schema of `float`.
pub const FLOAT: Schema = Schema::Float(NumberBounds {
    ge: None,
    le: None,
    gt: None,
});

/// Schema of `str`.
pub(crate) const STR: Schema = Schema::Str(ANY_LENGTH);

pub(crate) const fn int_within(ge: i128, le: i128) -> Schema {
    Schema::Int(NumberBounds {
        ge: Some(ge),
        le: Some(le),
        gt: None,
    })
}

pub(crate) const fn int_from(ge: i128) -> Schema {
    Schema::Int(NumberBounds {
        ge: Some(ge),
        le: None,
        gt: None,
    })
}

pub(crate) const fn int_above(gt: i128) -> Schema {
    Schema::Int(NumberBounds {
        ge: None,
        le: None,
        gt: Some(gt),
    })
}

pub(crate) const fn float_within(ge: f64, le: f64) -> Schema {
    Schema::Float(NumberBounds {
        ge: Some(ge),
        le: Some(le),
        gt: None,
    })
}

/// Kind of a class; it selects the error text for a value that is not an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassKind {
    /// vLLM's `OpenAIBaseModel`; error paths of a union omit its name.
    Wrapped,
    /// A plain pydantic model.
    Plain,
    /// A plain pydantic model that rejects unknown fields.
    Strict,
    /// A `TypedDict`.
    TypedDict,
    /// A pydantic dataclass.
    Dataclass,
}

/// A class with named fields.
#[derive(Debug)]
pub struct Model {
    /// Name of the Python class.
    pub name: &'static str,
    /// Kind of the class.
    pub kind: ClassKind,
    /// Fields in declaration order, which is the order of errors.
    pub fields: &'static [Field],
    /// `model_validator(mode="before")` functions, in the order they run.
    pub before: &'static [BeforeValidator],
    /// Validator that runs once all fields are valid.
    pub after: Option<AfterValidator>,
}

/// A validator of the raw object: may change it or reject the request.
pub(crate) type BeforeValidator =
    fn(&mut Cow<'_, Map<String, Value>>) -> Result<(), ValidatorError>;

/// A validator of the checked object.
#[derive(Debug, Clone, Copy)]
pub enum AfterValidator {
    /// A validator that needs only the object.
    Alone(fn(&Map<String, Value>) -> Result<(), ValidatorError>),
    /// A validator that also needs the server's limits.
    Within(fn(&Map<String, Value>, &RequestBounds) -> Result<(), ValidatorError>),
}

impl AfterValidator {
    /// Runs the validator.
    ///
    /// # Errors
    /// The error that the validator returns.
    pub fn check(
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
    /// An exception that ends validation and becomes the response.
    Fault(Fault),
    /// A `ValueError`, which pydantic lists among the schema errors.
    ValueError(String),
    /// An empty collection that must not be empty.
    TooShort,
    /// An invalid item in a lazily checked list.
    Item {
        /// Index of the item.
        index: usize,
        /// Schema that the item must match.
        schema: &'static Schema,
        /// The invalid item.
        value: Value,
    },
}

impl From<Fault> for ValidatorError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Model {
    /// Returns whether a required literal, such as `role` or `type`, excludes this class.
    ///
    /// A union then skips the other fields.
    pub(crate) fn is_ruled_out(&self, map: &Map<String, Value>) -> bool {
        let mut literals = self.fields.iter().filter_map(|field| match field.schema {
            Schema::Literal(choices) if field.required => Some((field.name, choices)),
            _ => None,
        });
        literals.any(|(name, choices)| match find(map, name) {
            Some((_, Value::String(text))) => !choices.contains(&text.as_str()),
            _ => true,
        })
    }

    /// Creates a `TypedDict`.
    pub(crate) const fn typed_dict(name: &'static str, fields: &'static [Field]) -> Self {
        Self {
            name,
            kind: ClassKind::TypedDict,
            fields,
            before: &[],
            after: None,
        }
    }

    /// Creates a pydantic model without validators.
    pub const fn plain(name: &'static str, fields: &'static [Field]) -> Self {
        Self {
            name,
            kind: ClassKind::Plain,
            fields,
            before: &[],
            after: None,
        }
    }
}

/// Creates a required field.
pub const fn required(name: &'static str, schema: Schema) -> Field {
    Field {
        name,
        required: true,
        schema,
    }
}

/// Creates an optional field.
pub const fn optional(name: &'static str, schema: Schema) -> Field {
    Field {
        name,
        required: false,
        schema,
    }
}

/// One field of a [`Model`].
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name in the JSON body.
    pub name: &'static str,
    /// Whether the field must be present.
    pub required: bool,
    /// Schema of the value.
    pub schema: Schema,
}

/// A type that can be read from a request: its schema, and a reader of checked values.
pub trait RequestField: Sized {
    /// Schema that the value must match.
    const SCHEMA: Schema;

    /// Reads a value that satisfies [`RequestField::SCHEMA`]; `None` for one that does not.
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

/// Python's `int`; values beyond 128 bits become the nearest 128-bit integer.
impl RequestField for i128 {
    const SCHEMA: Schema = INT;

    fn read(value: &Value) -> Option<Self> {
        match Py::of(value) {
            Py::Int(i) => Some(i),
            Py::BigInt(text) => Some(if text.starts_with('-') {
                Self::MIN
            } else {
                Self::MAX
            }),
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
    const SCHEMA: Schema = int_from(0);

    fn read(value: &Value) -> Option<Self> {
        i128::read(value).map(|i| Self::try_from(i).unwrap_or(Self::MAX))
    }
}

impl RequestField for f64 {
    const SCHEMA: Schema = FLOAT;

    fn read(value: &Value) -> Option<Self> {
        Py::of(value).number()
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
        if value.is_null() {
            Some(None)
        } else {
            T::read(value).map(Some)
        }
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
        value
            .as_object()?
            .iter()
            .map(|(k, v)| Some((k.clone(), T::read(v)?)))
            .collect()
    }
}

impl RequestField for Map<String, Value> {
    const SCHEMA: Schema = Schema::Dict(&STR, &Schema::Any);

    fn read(value: &Value) -> Option<Self> {
        value.as_object().cloned()
    }
}

/// Returns a member by name.
///
/// Small maps are searched linearly: comparing names is faster than hashing each field's name.
pub(crate) fn find<'m>(map: &'m Map<String, Value>, name: &str) -> Option<(&'m String, &'m Value)> {
    const FEW: usize = 12;

    if map.len() <= FEW {
        map.iter().find(|(key, _)| *key == name)
    } else {
        map.get_key_value(name)
    }
}

/// Indexes an object by the lengths of its names, so that most absent fields of a class are ruled
/// out without a search.
pub(crate) struct Members<'m> {
    map: &'m Map<String, Value>,
    /// Bit set of name lengths, modulo 64.
    lengths: u64,
}

impl<'m> Members<'m> {
    pub(crate) fn of(map: &'m Map<String, Value>) -> Self {
        let lengths = map.keys().fold(0, |lengths, key| lengths | bit(key));
        Self { map, lengths }
    }

    /// Returns a member by name, as [`find`] does.
    pub(crate) fn find(&self, name: &str) -> Option<(&'m String, &'m Value)> {
        match self.lengths & bit(name) {
            0 => None,
            _ => find(self.map, name),
        }
    }
}

const fn bit(name: &str) -> u64 {
    1 << (name.len() % 64)
}

/// Declares a request class: a documented struct, its [`Model`], and a reader.
///
/// A field is `name: Type`, then optionally `[SCHEMA]` if the type does not imply it,
/// `as "wire name"` and `= default`. A field without a default is required.
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
            /// Schema of this class.
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
