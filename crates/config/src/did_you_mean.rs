/// Returns the element of `names` closest to `typed` by edit distance with transposition; `None` if
/// none is similar.
pub fn closest_known_name<'n>(
    typed: &str,
    names: impl Iterator<Item = &'n str>,
) -> Option<&'n str> {
    let typed = typed.trim_start_matches("no-");
    let length = typed.chars().count();
    let reach = (length / 3).max(2);
    // A difference in length is a lower bound of the distance; this limits work for very long
    // words.
    let near = |name: &&str| name.chars().count().abs_diff(length) <= reach;
    let begun = |name: &&str| typed.len() > 3 && name.starts_with(typed);
    names
        .filter(|name| near(name) || begun(name))
        .map(|name| {
            // Of names that are equally near, one with two letters swapped comes first.
            let other_length = name.chars().count().abs_diff(length);
            (strsim::damerau_levenshtein(typed, name), other_length, name)
        })
        .filter(|(distance, _, name)| *distance <= reach || begun(name))
        .min()
        .map(|(.., name)| name)
}

/// Returns the end of a message about the unknown name `typed`, which asks whether the closest of
/// `names` was meant; empty if none is similar.
pub(super) fn spelling_hint<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> String {
    let nearest = closest_known_name(typed, names);
    nearest.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_found() {
        let names = ["max-num-seqs", "max-model-len", "port", "mode", "model"];
        let found = |typed: &str| closest_known_name(typed, names.into_iter());
        assert_eq!(found("max-num-sesq"), Some("max-num-seqs"));
        assert_eq!(found("max-mo"), Some("max-model-len"));
        assert_eq!(found("prot"), Some("port"));
        assert_eq!(found("modle"), Some("model"));
        assert_eq!(found("x"), None);
    }

    /// Comparing takes time proportional to the product of both lengths.
    #[test]
    fn very_long_word_has_no_suggestion() {
        let names = (0..400).map(|_| "a-name-of-thirty-characters-xx");
        assert_eq!(closest_known_name(&"max-".repeat(1 << 20), names), None);
    }
}
