//! vLLM releases that the server can imitate.

/// A vLLM release that the server imitates, where releases differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum VllmVersion {
    /// The server imitates vLLM 0.26.
    V026,
    /// The server imitates vLLM 0.31.
    V031,
    /// The server imitates vLLM 0.32.
    V032,
    /// The server imitates vLLM 0.33.
    #[default]
    V033,
}

impl VllmVersion {
    /// All vLLM releases that can be imitated, oldest first.
    pub const ALL: [Self; 4] = [Self::V026, Self::V031, Self::V032, Self::V033];

    /// Returns the complete number of the release, such as `0.33.0`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V026 => "0.26.0",
            Self::V031 => "0.31.0",
            Self::V032 => "0.32.0",
            Self::V033 => "0.33.0",
        }
    }

    /// Returns the major and the minor number of the release.
    pub const fn major_minor(self) -> (u32, u32) {
        match self {
            Self::V026 => (0, 26),
            Self::V031 => (0, 31),
            Self::V032 => (0, 32),
            Self::V033 => (0, 33),
        }
    }
}
