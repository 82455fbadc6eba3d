//! Limits on constraints and on generated values.

/// Maximum size of a constraint's source, in bytes. Its compiled form takes up to a hundred times
/// as much.
pub(crate) const MAX_CONSTRAINT_SOURCE_BYTES: usize = 1 << 20;

/// Ranges and probabilities for the parts of a generated value that the constraint leaves open.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleLimits {
    /// Inclusive range of generated integers; `None` uses the range that is typical for the JSON
    /// field's name, else 0 to 100.
    pub integer: Option<(i64, i64)>,
    /// Inclusive range of generated numbers with a fraction; `None` uses the range that is typical
    /// for the JSON field's name, else 0 to 100.
    pub number: Option<(f64, f64)>,
    /// Inclusive range of the number of array items.
    pub array: (u64, u64),
    /// Probability of an optional property of the outermost object, in percent.
    pub optional_percent: u32,
    /// Probability of an optional property of an inner object, in percent.
    pub nested_optional_percent: u32,
    /// Nesting depth of objects and arrays beyond which optional parts are omitted.
    pub max_depth: u32,
    /// Maximum length of a generated text, in characters.
    pub max_chars: u32,
}

impl Default for SampleLimits {
    /// Returns limits under which nearly every optional property is generated, as in structured
    /// outputs of real models.
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
