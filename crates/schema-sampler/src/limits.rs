//! Bounds of what is read and made.

/// Bytes of a constraint: what is made of it takes up to a hundred times as many.
pub(crate) const MAX_SOURCE: usize = 1 << 20;

/// What a made-up value is like where the constraint leaves it open.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Integers, both ends included; `None`: by what the field is about, else 0 to 100.
    pub integer: Option<(i64, i64)>,
    /// Other numbers; `None` as for integers.
    pub number: Option<(f64, f64)>,
    /// Lengths of arrays.
    pub array: (u64, u64),
    /// Chance of an optional property of the outermost object, in percent.
    pub optional_percent: u32,
    /// Chance of an optional property of an inner object, in percent.
    pub nested_optional_percent: u32,
    /// Levels of nesting beyond which optional parts are left out.
    pub max_depth: u32,
    /// The longest text, in characters.
    pub max_chars: u32,
}

impl Default for Limits {
    /// Structured answers of real models fill nearly every field.
    fn default() -> Self {
        Self {
            integer: None,
            number: None,
            array: (1, 3),
            optional_percent: 85,
            nested_optional_percent: 70,
            max_depth: 12,
            max_chars: 64 * 1024,
        }
    }
}
