use super::Played;

/// The page of a sweep.
pub(super) fn page(names: &[&str], played: &[Played]) -> String {
    let _ = (names, played);
    String::new()
}
