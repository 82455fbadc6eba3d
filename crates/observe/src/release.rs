//! Looks up the first vLLM release with a family, label or field in the generated lists.

use vllm_sim_wire::VllmVersion;

/// Returns the first imitated vLLM release that has the metric family, label or field `name`. Names
/// that are not in `first_releases` exist in all releases.
pub(crate) const fn first_vllm_release_of(
    first_releases: &[(&str, VllmVersion)],
    name: &str,
) -> VllmVersion {
    let mut i = 0;
    while i < first_releases.len() {
        if is_equal_text(first_releases[i].0.as_bytes(), name.as_bytes()) {
            return first_releases[i].1;
        }
        i += 1;
    }
    VllmVersion::ALL[0]
}

/// Returns whether two texts are equal, at compile time.
pub(crate) const fn is_equal_text(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while a.len() == b.len() && i < a.len() && a[i] == b[i] {
        i += 1;
    }
    a.len() == b.len() && i == a.len()
}
