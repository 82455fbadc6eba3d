//! The release of vLLM whose wire is spoken.

/// The vLLM release whose wire is spoken, where releases differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    /// 0.32.
    V032,
    /// 0.33.
    #[default]
    V033,
}

impl Version {
    /// The wire of a release: 0.32's for 0.32 and older, else 0.33's.
    pub fn of(release: &str) -> Self {
        let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
        let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if release < (0, 33) {
            Self::V032
        } else {
            Self::V033
        }
    }
}
