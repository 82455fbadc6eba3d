//! Schemas as data, and the macro that declares a request once.
//!
//! A field's Rust type says what pydantic would say of its Python annotation: `Option<bool>` is
//! `bool | None`, `Vec<String>` is `list[str]`. `wire_model!` turns a struct into a [`Model`]
//! for [`super::check`] and into a reader of checked values; the two cannot drift apart.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::Py;

use super::bounds::RequestBounds;
use super::fault::Fault;

/// What a value must be; mirrors the core schemas of pydantic.
#[derive(Debug, Clone, Copy)]
pub enum Schema {
    /// `Any`.
    Any,
    /// `bool`.
    Bool,
    /// `int`, perhaps with bounds.
    Int(NumberBounds<i128>),
    /// `float`, perhaps with bounds.
    Float(NumberBounds<f64>),
    /// `str`, perhaps with limits on its length in characters.
    Str(Length),
    /// `bytes`; from JSON always a string.
    Bytes,
    /// `Literal["…"]`.
    Literal(&'static [&'static str]),
    /// A string `Enum`.
    Enum(&'static [&'static str]),
    /// `list[…]`.
    List(&'static Schema, Length),
    /// `Iterable[…]`: pydantic checks the items only when something iterates.
    Iterable(&'static Schema),
    /// `Sequence[…]`: a list, but never a string.
    Sequence(&'static Schema),
    /// `dict[…, …]`.
    Dict(&'static Schema, &'static Schema),
    /// `… | None`.
    Nullable(&'static Schema),
    /// `A | B | …`, in smart mode.
    Union(&'static [Schema]),
    /// A union told apart by the literal in one field.
    Tagged {
        /// The field that tells.
        by: &'static str,
        /// Its values and what they choose.
        choices: &'static [(&'static str, &'static Schema)],
    },
    /// A class with fields.
    Model(&'static Model),
    /// A `BeforeValidator`: may replace the value or refuse the request.
    Before(fn(&Value) -> Result<Option<Value>, Fault>, &'static Schema),
    /// An `AfterValidator`: may replace the checked value or refuse it.
    After(
        fn(&Value) -> Result<Option<Value>, ValidatorError>,
        &'static Schema,
    ),
    /// An `Enum` of integers.
    IntEnum(&'static [i64]),
    /// An instance of a Python class, which no JSON value is.
    Instance(&'static str),
    /// `tuple[…]` of fixed length.
    Tuple(&'static [Schema]),
    /// Looked up late, for types that contain themselves.
    Late(fn() -> Schema),
}

/// Limits of a number, both ends included unless said otherwise.
#[derive(Debug, Clone, Copy)]
pub struct NumberBounds<T: 'static> {
    /// At least.
    pub ge: Option<T>,
    /// At most.
    pub le: Option<T>,
    /// More than.
    pub gt: Option<T>,
}

/// Limits of a length.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// At least.
    pub min: usize,
    /// At most.
    pub max: usize,
}

/// Any length.
pub(crate) const ANY_LENGTH: Length = Length {
    min: 0,
    max: usize::MAX,
};

/// `int`.
pub const INT: Schema = Schema::Int(NumberBounds {
    ge: None,
    le: None,
    gt: None,
});

/// `int` of 64 bits.
pub(crate) const INT64: Schema = int_within(i64::MIN as i128, i64::MAX as i128);

/// `float`.
pub const FLOAT: Schema = Schema::Float(NumberBounds {
    ge: None,
    le: None,
    gt: None,
});

/// `str`.
pub(crate) const STR: Schema = Schema::Str(ANY_LENGTH);

/// `int` from `ge` to `le`.
pub(crate) const fn int_within(ge: i128, le: i128) -> Schema {
    Schema::Int(NumberBounds {
        ge: Some(ge),
        le: Some(le),
        gt: None,
    })
}

/// `int` of at least `ge`.
pub(crate) const fn int_from(ge: i128) -> Schema {
    Schema::Int(NumberBounds {
        ge: Some(ge),
        le: None,
        gt: None,
    })
}

/// `int` of more than `gt`.
pub(crate) const fn int_above(gt: i128) -> Schema {
    Schema::Int(NumberBounds {
        ge: None,
        le: None,
        gt: Some(gt),
    })
}

/// `float` from `ge` to `le`.
pub(crate) const fn float_within(ge: f64, le: f64) -> Schema {
    Schema::Float(NumberBounds {
        ge: Some(ge),
        le: Some(le),
        gt: None,
    })
}

/// What kind of class a [`Model`] is; it decides the words for «not an object».
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassKind {
    /// vLLM's `OpenAIBaseModel`: its name does not show in the path of a union's errors.
    Wrapped,
    /// A plain pydantic model.
    Plain,
    /// A plain pydantic model that refuses unknown fields.
    Strict,
    /// A `TypedDict`.
    TypedDict,
    /// A pydantic dataclass.
    Dataclass,
}

/// A class with named fields.
#[derive(Debug)]
pub struct Model {
    /// The Python class.
    pub name: &'static str,
    /// What kind of class.
    pub kind: ClassKind,
    /// In declaration order, which is the order of errors.
    pub fields: &'static [Field],
    /// `model_validator(mode="before")` functions, in the order they run.
    pub before: &'static [BeforeValidator],
    /// What runs once all fields are good.
    pub after: Option<AfterValidator>,
}

/// A validator over the raw object: may change it or refuse the request.
pub(crate) type BeforeValidator =
    fn(&mut Cow<'_, Map<String, Value>>) -> Result<(), ValidatorError>;

/// A validator over the checked object.
#[derive(Debug, Clone, Copy)]
pub enum AfterValidator {
    /// One that looks at the object alone.
    Alone(fn(&Map<String, Value>) -> Result<(), ValidatorError>),
    /// One that looks at what the server allows too.
    Within(fn(&Map<String, Value>, &RequestBounds) -> Result<(), ValidatorError>),
}

impl AfterValidator {
    /// Runs it.
    ///
    /// # Errors
    /// Its refusal.
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

/// Why a validator function refuses.
#[derive(Debug)]
pub enum ValidatorError {
    /// Its exception ends the whole validation and becomes the answer.
    Fault(Fault),
    /// It raised `ValueError`, which pydantic lists among the schema errors.
    ValueError(String),
    /// It found a collection empty that must not be.
    TooShort,
    /// It iterated a lazily checked list and met an item that is not of the schema.
    Item {
        /// Its place.
        index: usize,
        /// What it should have been.
        schema: &'static Schema,
        /// What it is.
        value: Value,
    },
}

impl From<Fault> for ValidatorError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Model {
    /// Returns whether a required literal, such as `role` or `type`, says that an object is of another
    /// class, so that a union need not try the other fields.
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

    /// A `TypedDict`.
    pub(crate) const fn typed_dict(name: &'static str, fields: &'static [Field]) -> Self {
        Self {
            name,
            kind: ClassKind::TypedDict,
            fields,
            before: &[],
            after: None,
        }
    }

    /// A pydantic model without validators.
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

/// A field that must be there.
pub const fn required(name: &'static str, schema: Schema) -> Field {
    Field {
        name,
        required: true,
        schema,
    }
}

/// A field that may be absent.
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
    /// Name on the wire.
    pub name: &'static str,
    /// Whether it may be absent.
    pub required: bool,
    /// What it must be.
    pub schema: Schema,
}

/// A type that can stand in a request: what pydantic demands of it, and how to read it once
/// that has been checked.
pub trait Wire: Sized {
    /// What the value must be.
    const SCHEMA: Schema;

    /// Reads a value that satisfies [`Wire::SCHEMA`]; `None` for one that does not.
    fn read(value: &Value) -> Option<Self>;
}

impl Wire for Value {
    const SCHEMA: Schema = Schema::Any;

    fn read(value: &Value) -> Option<Self> {
        Some(value.clone())
    }
}

impl Wire for bool {
    const SCHEMA: Schema = Schema::Bool;

    fn read(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

/// Python's `int`. Values beyond 128 bits become the nearest that fits.
impl Wire for i128 {
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

impl Wire for i64 {
    const SCHEMA: Schema = INT64;

    fn read(value: &Value) -> Option<Self> {
        i128::read(value).and_then(|i| Self::try_from(i).ok())
    }
}

impl Wire for u64 {
    const SCHEMA: Schema = int_from(0);

    fn read(value: &Value) -> Option<Self> {
        i128::read(value).map(|i| Self::try_from(i).unwrap_or(Self::MAX))
    }
}

impl Wire for f64 {
    const SCHEMA: Schema = FLOAT;

    fn read(value: &Value) -> Option<Self> {
        Py::of(value).number()
    }
}

impl Wire for String {
    const SCHEMA: Schema = STR;

    fn read(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

impl<T: Wire> Wire for Option<T> {
    const SCHEMA: Schema = Schema::Nullable(&T::SCHEMA);

    fn read(value: &Value) -> Option<Self> {
        if value.is_null() {
            Some(None)
        } else {
            T::read(value).map(Some)
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    const SCHEMA: Schema = Schema::List(&T::SCHEMA, ANY_LENGTH);

    fn read(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::read).collect()
    }
}

impl<T: Wire> Wire for IndexMap<String, T> {
    const SCHEMA: Schema = Schema::Dict(&STR, &T::SCHEMA);

    fn read(value: &Value) -> Option<Self> {
        value
            .as_object()?
            .iter()
            .map(|(k, v)| Some((k.clone(), T::read(v)?)))
            .collect()
    }
}

impl Wire for Map<String, Value> {
    const SCHEMA: Schema = Schema::Dict(&STR, &Schema::Any);

    fn read(value: &Value) -> Option<Self> {
        value.as_object().cloned()
    }
}

/// A member by name. Requests have few members and classes many fields: comparing names is quicker
/// than hashing each field's.
pub(crate) fn find<'m>(map: &'m Map<String, Value>, name: &str) -> Option<(&'m String, &'m Value)> {
    const FEW: usize = 12;

    if map.len() <= FEW {
        map.iter().find(|(key, _)| *key == name)
    } else {
        map.get_key_value(name)
    }
}

/// An object in which every field of a class is looked for. A class has many more fields than a request has
/// members, so most names are ruled out by their length.
pub(crate) struct Members<'m> {
    map: &'m Map<String, Value>,
    /// A bit for each length of a name, modulo 64.
    lengths: u64,
}

impl<'m> Members<'m> {
    pub(crate) fn of(map: &'m Map<String, Value>) -> Self {
        let lengths = map.keys().fold(0, |lengths, key| lengths | bit(key));
        Self { map, lengths }
    }

    /// Returns a member by name, as [`find`].
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
/// Each field reads `name: Type`, then perhaps `as "wire name"`, perhaps `: SCHEMA` where the
/// type does not say it all, and perhaps `= default`; a field without a default is required.
///
/// With `default` before it, the class can also be made of defaults alone.
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
            /// The schema of this class.
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

        impl $crate::schema::Wire for $name {
            const SCHEMA: $crate::schema::Schema =
                $crate::schema::Schema::Model(Self::MODEL);

            fn read(value: &::serde_json::Value) -> Option<Self> {
                $(let mut $field: Option<$type> = None;)*
                for (name, value) in value.as_object()? {
                    match name.as_str() {
                        $(wire_model!(@name $field $($wire)?) => {
                            $field = Some(<$type as $crate::schema::Wire>::read(value)?);
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
    (@schema $type:ty) => { <$type as $crate::schema::Wire>::SCHEMA };
    (@schema $type:ty, $schema:expr) => { $schema };
    (@after) => { None };
    (@after $after:ident) => { Some($crate::schema::AfterValidator::Alone($after)) };
    (@after , $within:ident) => { Some($crate::schema::AfterValidator::Within($within)) };
    (@default) => { return None };
    (@default $default:expr) => { $default };
}

pub(crate) use wire_model;
