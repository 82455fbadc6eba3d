//! Formats local times like Python's `strftime` on Linux.

use std::fmt::Write as _;

use time::OffsetDateTime;

const DAY_NAMES: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTH_NAMES: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats the time `at` by Python's `strftime` format; unknown directives are kept.
///
/// As with Python's `datetime.now()` there is no time zone, so `%z` and `%Z` are empty.
pub(super) fn strftime(at: OffsetDateTime, format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(percent) = rest.find('%') {
        out.push_str(&rest[..percent]);
        rest = &rest[percent + 1..];
        let (flag, directive) = match rest.chars().next() {
            Some(flag @ ('-' | '_' | '0' | '^')) => (Some(flag), rest[1..].chars().next()),
            directive => (None, directive),
        };
        let Some(directive) = directive else {
            out.push('%');
            continue;
        };
        let used = usize::from(flag.is_some()) + directive.len_utf8();
        match format_directive(at, directive, flag) {
            Some(text) if flag == Some('^') => out.push_str(&text.to_uppercase()),
            Some(text) => out.push_str(&text),
            None => {
                out.push('%');
                out.push_str(&rest[..used]);
            }
        }
        rest = &rest[used..];
    }
    out.push_str(rest);
    out
}

fn format_directive(at: OffsetDateTime, directive: char, flag: Option<char>) -> Option<String> {
    let number = |value: i64, width: usize, fill: char| {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match (flag, fill) {
            (Some('-'), _) => write!(text, "{value}"),
            (Some('_'), _) | (None, ' ') => write!(text, "{value:width$}"),
            _ => write!(text, "{value:0width$}"),
        };
        text
    };
    let two = |value: u8| number(value.into(), 2, '0');
    let day = usize::from(at.weekday().number_days_from_monday());
    let month = usize::from(u8::from(at.month())) - 1;
    // Midnight and noon are 12.
    let hour12 = (at.hour() + 11) % 12 + 1;
    Some(match directive {
        'Y' => number(at.year().into(), 1, '0'),
        'C' => number((at.year() / 100).into(), 2, '0'),
        'y' => number((at.year() % 100).into(), 2, '0'),
        'G' => number(at.to_iso_week_date().0.into(), 1, '0'),
        'g' => number((at.to_iso_week_date().0 % 100).into(), 2, '0'),
        'm' => two(u8::from(at.month())),
        'd' => two(at.day()),
        'e' => number(at.day().into(), 2, ' '),
        'H' => two(at.hour()),
        'k' => number(at.hour().into(), 2, ' '),
        'I' => two(hour12),
        'l' => number(hour12.into(), 2, ' '),
        'M' => two(at.minute()),
        'S' => two(at.second()),
        'f' => number(at.microsecond().into(), 6, '0'),
        'j' => number(at.ordinal().into(), 3, '0'),
        'U' => two(at.sunday_based_week()),
        'W' => two(at.monday_based_week()),
        'V' => two(at.iso_week()),
        'u' => (day + 1).to_string(),
        'w' => at.weekday().number_days_from_sunday().to_string(),
        'a' => DAY_NAMES[day][..3].to_owned(),
        'A' => DAY_NAMES[day].to_owned(),
        'b' | 'h' => MONTH_NAMES[month][..3].to_owned(),
        'B' => MONTH_NAMES[month].to_owned(),
        'p' => if at.hour() < 12 { "AM" } else { "PM" }.to_owned(),
        'P' => if at.hour() < 12 { "am" } else { "pm" }.to_owned(),
        's' => at.unix_timestamp().to_string(),
        'c' => strftime(at, "%a %b %e %H:%M:%S %Y"),
        'D' | 'x' => strftime(at, "%m/%d/%y"),
        'F' => strftime(at, "%Y-%m-%d"),
        'T' | 'X' => strftime(at, "%H:%M:%S"),
        'R' => strftime(at, "%H:%M"),
        'r' => strftime(at, "%I:%M:%S %p"),
        'z' | 'Z' => String::new(),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn strftime_directives_equal_python() {
        // Output of CPython 3.11 on Linux for datetime(2024, 7, 6, 9, 5, 3, 42).
        let at = datetime!(2024-07-06 09:05:03.000042 UTC);
        assert_eq!(
            strftime(at, "%d %b %Y|%B %-d, %Y|%A %a %e"),
            "06 Jul 2024|July 6, 2024|Saturday Sat  6"
        );
        assert_eq!(strftime(at, "%H:%M:%S.%f %I %p %-I %y %j"), "09:05:03.000042 09 AM 9 24 188");
        assert_eq!(
            strftime(at, "%F %T %D %R %c %x %X"),
            "2024-07-06 09:05:03 07/06/24 09:05 Sat Jul  6 09:05:03 2024 07/06/24 09:05:03"
        );
        assert_eq!(strftime(at, "%U %W %V %G %u %w %% %^a [%z%Z]"), "26 27 27 2024 6 6 % SAT []");
        assert_eq!(strftime(at, "é%"), "é%");
        assert_eq!(strftime(at, "%é%-"), "%é%-");
    }
}
