/// The name in `names` that is most like `typed`, by edit distance with transposition, if any is
/// like it at all.
pub fn closest<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let typed = typed.trim_start_matches("no-");
    let reach = (typed.len() / 3).max(2);
    names
        .map(|name| (strsim::damerau_levenshtein(typed, name), name))
        .filter(|(distance, name)| *distance <= reach || typed.len() > 3 && name.starts_with(typed))
        .min()
        .map(|(_, name)| name)
}
