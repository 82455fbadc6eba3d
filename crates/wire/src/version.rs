//! vLLM releases whose HTTP API the server can imitate.

/// A vLLM release whose API the server imitates, where releases differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum VllmVersion {
    /// vLLM 0.32.
    V032,
    /// vLLM 0.33.
    #[default]
    V033,
}

impl VllmVersion {
    /// Returns the version to imitate for a release number: 0.32 for 0.32 and older, else 0.33.
    pub fn from_release(release: &str) -> Self {
        let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
        let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if release < (0, 33) { Self::V032 } else { Self::V033 }
    }
}
