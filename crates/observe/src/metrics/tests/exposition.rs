//! Parses the classic Prometheus text format and rejects everything that strict readers reject.

use std::collections::HashSet;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: String,
    /// HELP text, still escaped.
    pub(super) help: String,
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    /// Rest of the name after the family's: ``, `_bucket`, `_sum` or `_count`.
    pub(super) suffix: String,
    /// Names and values, in the order of the text.
    pub(super) labels: Vec<(String, String)>,
    pub(super) value: f64,
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(n, _)| n == name);
        found.map(|(_, v)| v.as_str())
    }

    fn labels_without_le(&self) -> Vec<(String, String)> {
        let others = self.labels.iter().filter(|(n, _)| n != "le");
        others.cloned().collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(super) struct Malformed {
    pub(super) line: usize,
    pub(super) reason: String,
}

/// Parses a text.
///
/// Checks that HELP and TYPE come once before each family, that samples of a family are adjacent,
/// that labels are sorted and unique, that no series repeats, and that histograms add up.
pub(super) fn parse(text: &str) -> Result<Vec<Family>, Malformed> {
    let mut families: Vec<Family> = Vec::new();
    let mut names = HashSet::new();
    let mut help: Option<(String, String)> = None;
    let at = |line: usize, reason: String| Malformed { line: line + 1, reason };
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(at(text.lines().count().saturating_sub(1), "no newline".to_owned()));
    }
    for (i, line) in text.lines().enumerate() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').unwrap_or((rest, ""));
            if let Some((open, _)) = &help {
                return Err(at(i, format!("HELP of {open} has no TYPE")));
            }
            help = Some((name.to_owned(), words.to_owned()));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            if let Some(last) = families.last() {
                check_family(last).map_err(|reason| at(i, reason))?;
            }
            let family = family(rest, help.take()).map_err(|reason| at(i, reason))?;
            if !names.insert(family.name.clone()) {
                return Err(at(i, format!("{} for the second time", family.name)));
            }
            families.push(family);
        } else {
            let Some(family) = families.last_mut().filter(|_| help.is_none()) else {
                return Err(at(i, "a sample without a TYPE before it".to_owned()));
            };
            let sample = sample(line, family).map_err(|reason| at(i, reason))?;
            family.samples.push(sample);
        }
    }
    if let Some(last) = families.last() {
        check_family(last).map_err(|reason| at(text.lines().count(), reason))?;
    }
    Ok(families)
}

fn family(rest: &str, help: Option<(String, String)>) -> Result<Family, String> {
    let (name, kind) = rest.split_once(' ').ok_or("TYPE without a type")?;
    let help = match help {
        Some((helped, help)) if helped == name => help,
        _ => return Err(format!("{name} has no HELP before its TYPE")),
    };
    if !matches!(kind, "counter" | "gauge" | "histogram" | "summary") {
        return Err(format!("{kind} is no type"));
    }
    if !is_name(name, true) {
        return Err(format!("{name} is no name"));
    }
    Ok(Family { name: name.to_owned(), kind: kind.to_owned(), help, samples: Vec::new() })
}

fn is_name(name: &str, colons: bool) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty()
}

fn sample(line: &str, family: &Family) -> Result<Sample, String> {
    let suffix_and_rest = line.strip_prefix(&family.name);
    let rest = suffix_and_rest.ok_or_else(|| format!("not of {}", family.name))?;
    let end = rest.find(['{', ' ']).ok_or("no value")?;
    let (suffix, rest) = rest.split_at(end);
    let known: &[&str] = match family.kind.as_str() {
        "histogram" => &["_bucket", "_count", "_sum"],
        "summary" => &["_count", "_sum"],
        _ => &[""],
    };
    if !known.contains(&suffix) {
        return Err(format!("{suffix:?} is no part of a {}", family.kind));
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    if !labels.windows(2).all(|w| w[0].0 < w[1].0) {
        return Err("labels are not sorted".to_owned());
    }
    if labels.iter().any(|(name, _)| name == "le") != (suffix == "_bucket") {
        return Err("le belongs to buckets, and to them alone".to_owned());
    }
    let number = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let value =
        number.replace("Inf", "inf").parse().map_err(|_| format!("{number:?} is not a number"))?;
    Ok(Sample { suffix: suffix.to_owned(), labels, value })
}

type LabelsAndRest<'a> = (Vec<(String, String)>, &'a str);

fn labels(mut rest: &str) -> Result<LabelsAndRest<'_>, String> {
    let mut labels = Vec::new();
    loop {
        let (name, tail) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name, false) {
            return Err(format!("{name} is no label"));
        }
        let mut value = String::new();
        let mut chars = tail.char_indices();
        let end = loop {
            match chars.next().ok_or("a label value without an end")? {
                (i, '"') => break i,
                (_, '\\') => value.push(match chars.next() {
                    Some((_, '\\')) => '\\',
                    Some((_, '"')) => '"',
                    Some((_, 'n')) => '\n',
                    _ => return Err("an escape that is none".to_owned()),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &tail[end + 1..];
        match rest.split_at_checked(1) {
            Some((",", tail)) => rest = tail,
            Some(("}", tail)) => return Ok((labels, tail)),
            _ => return Err("labels without an end".to_owned()),
        }
    }
}

fn check_family(family: &Family) -> Result<(), String> {
    let mut seen = HashSet::new();
    for s in &family.samples {
        if !seen.insert((&s.suffix, &s.labels)) {
            return Err(format!("{}{} {:?} twice", family.name, s.suffix, s.labels));
        }
    }
    if family.kind == "histogram" {
        check_histogram(family)?;
    }
    Ok(())
}

fn check_histogram(family: &Family) -> Result<(), String> {
    for count in family.samples.iter().filter(|s| s.suffix == "_count") {
        let name = format!("{}{:?}", family.name, count.labels);
        let buckets: Vec<(f64, f64)> = family
            .samples
            .iter()
            .filter(|s| s.suffix == "_bucket" && s.labels_without_le() == count.labels)
            .filter_map(|s| Some((s.label("le")?.replace("Inf", "inf").parse().ok()?, s.value)))
            .collect();
        if !buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1) {
            return Err(format!("buckets of {name} do not ascend"));
        }
        if buckets.last() != Some(&(f64::INFINITY, count.value)) {
            return Err(format!("{name} counts other than its last bucket"));
        }
        let mut sums = family.samples.iter().filter(|s| s.suffix == "_sum");
        if !sums.any(|s| s.labels == count.labels) {
            return Err(format!("{name} has no sum"));
        }
    }
    let counts = family.samples.iter().filter(|s| s.suffix == "_count").count();
    let sums = family.samples.iter().filter(|s| s.suffix == "_sum").count();
    if counts == sums {
        Ok(())
    } else {
        Err(format!("{} has {sums} sums and {counts} counts", family.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn valid_exposition_text_is_parsed() {
        let text = "# HELP a A counter.\n# TYPE a counter\na{x=\"\\\"\\\\\\n,}\",y=\"2\"} 1e+06\n\
                    # HELP b:c B.\n# TYPE b:c histogram\nb:c_bucket{le=\"1.0\"} 0.0\n\
                    b:c_bucket{le=\"+Inf\"} 2.0\nb:c_count 2.0\nb:c_sum 9.0\n";
        let families = parse(text).unwrap();
        let a = &families[0];
        assert_eq!((a.name.as_str(), a.help.as_str()), ("a", "A counter."));
        assert_eq!(a.samples[0].labels[0], ("x".to_owned(), "\"\\\n,}".to_owned()));
        assert_eq!(a.samples[0].value, 1e6);
        assert_eq!(families[1].samples.len(), 4);
    }

    #[test]
    fn invalid_exposition_text_is_rejected() {
        let head = "# HELP a A.\n# TYPE a gauge\n";
        let hist = "# HELP h H.\n# TYPE h histogram\n";
        for (text, reason) in [
            ("a 1.0\n".to_owned(), "a sample without a TYPE"),
            ("# TYPE a gauge\n".to_owned(), "no HELP"),
            (format!("{head}a 1.0"), "no newline"),
            (format!("{head}{head}"), "second time"),
            (format!("{head}b 1.0\n"), "not of a"),
            (format!("{head}a one\n"), "not a number"),
            (format!("{head}a 1.0\na 2.0\n"), "twice"),
            (format!("{head}a{{y=\"1\",x=\"1\"}} 1.0\n"), "not sorted"),
            (format!("{head}a{{x=\"1\\t\"}} 1.0\n"), "escape"),
            (format!("{head}a{{x=\"1\"; 1.0\n"), "without an end"),
            (format!("{head}a_total 1.0\n"), "no part of"),
            (format!("{hist}h_bucket{{le=\"+Inf\"}} 1.0\nh_count 2.0\nh_sum 0.0\n"), "other than"),
            (format!("{hist}h_bucket{{le=\"+Inf\"}} 1.0\nh_count 1.0\n"), "no sum"),
            (format!("{hist}h_sum 1.0\n"), "1 sums and 0 counts"),
        ] {
            assert!(error(&text).contains(reason), "{} / {reason}", error(&text));
        }
    }
}
