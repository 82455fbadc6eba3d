//! Generates strings of the formats that JSON Schema defines.

use rand_chacha::ChaCha8Rng;

use crate::words;
use vllm_sim_random::DrawRandom;

/// Generates a string with about as many characters as the two numbers: the lowest and the highest.
type FormatGenerator = fn(u32, u32, &mut ChaCha8Rng) -> String;

/// Returns the generator of strings of a JSON Schema `format`; `None` for an unknown format, which
/// does not constrain a string.
pub(super) fn string_format_generator(format: &str) -> Option<FormatGenerator> {
    let generator: FormatGenerator = match format {
        "date" => |_, _, rng| random_date(rng),
        "time" => |_, _, rng| random_time(rng),
        "date-time" | "datetime" => {
            |_, _, rng| format!("{}T{}", random_date(rng), random_time(rng))
        }
        "duration" => |low, _, rng| random_duration(low, rng),
        "email" | "idn-email" => random_email,
        "hostname" | "idn-hostname" => random_hostname,
        "ipv4" => |_, _, rng| format!("192.0.2.{}", rng.draw_u64_between(1, 254)),
        "ipv6" => |low, _, rng| random_ipv6(low, rng),
        "uri" | "iri" | "url" => |low, high, rng| random_uri("https://", low, high, rng),
        "uri-reference" | "iri-reference" => |low, high, rng| {
            let is_path = high < 12 || rng.draw_percent_chance(30);
            random_uri(if is_path { "/" } else { "https://" }, low, high, rng)
        },
        "uri-template" => {
            |low, high, rng| random_uri("/", low, high.saturating_sub(5), rng) + "/{id}"
        }
        "uuid" => |_, _, rng| random_uuid(rng),
        "regex" => |low, _, rng| pad_to_length("^[a-z]+$", "x", low, rng),
        "json-pointer" => |low, high, rng| random_uri("/", low, high, rng),
        "relative-json-pointer" => |low, high, rng| {
            let path = random_uri("/", low.saturating_sub(1), high.saturating_sub(1), rng);
            format!("{}{path}", rng.draw_u64_between(0, 3))
        },
        _ => return None,
    };
    Some(generator)
}

fn random_date(rng: &mut ChaCha8Rng) -> String {
    let (year, month) = (rng.draw_u64_between(2024, 2026), rng.draw_u64_between(1, 12));
    format!("{year}-{month:02}-{:02}", rng.draw_u64_between(1, 28))
}

fn random_time(rng: &mut ChaCha8Rng) -> String {
    let (hour, minute) = (rng.draw_u64_between(0, 23), rng.draw_u64_between(0, 59));
    format!("{hour:02}:{minute:02}:{:02}Z", rng.draw_u64_between(0, 59))
}

fn random_duration(low: u32, rng: &mut ChaCha8Rng) -> String {
    if low > 6 {
        let (days, hours) = (rng.draw_u64_between(1, 9), rng.draw_u64_between(10, 23));
        return format!(
            "P{days}DT{hours}H{}M{}S",
            rng.draw_u64_between(10, 59),
            rng.draw_u64_between(10, 59)
        );
    }
    match rng.draw_u64_between(0, 2) {
        0 => format!("P{}D", rng.draw_u64_between(1, 9)),
        1 => format!("PT{}H", rng.draw_u64_between(1, 9)),
        _ => format!("PT{}M", rng.draw_u64_between(1, 59)),
    }
}

/// Inserts the text `filler` before the last character of `text` until `text` has at least `low`
/// characters.
fn pad_to_length(text: &str, filler: &str, low: u32, rng: &mut ChaCha8Rng) -> String {
    let missing = (low as usize).saturating_sub(text.len());
    let extra = if missing == 0 { 0 } else { missing + rng.draw_u64_between(0, 1) as usize };
    let (head, tail) = text.split_at(text.len() - 1);
    format!("{head}{}{tail}", filler.repeat(extra))
}

fn random_email(low: u32, high: u32, rng: &mut ChaCha8Rng) -> String {
    let names = ["alice", "bob", "carol", "david", "emma"];
    let name = names[rng.draw_u64_between(0, 4) as usize];
    let domains = ["example.com", "example.org", "example.net", "mail.example.com"];
    let domain = domains[rng.draw_u64_between(0, 3) as usize];
    let natural = format!("{name}@{domain}");
    if natural.len() > high as usize {
        return "a@b.co".to_owned();
    }
    // A local part has at most 64 characters, a domain label at most 63.
    let missing = (low as usize).saturating_sub(natural.len());
    let local = missing.min(64 - name.len());
    let more = domain_labels(missing - local);
    format!("{name}{}@{more}{domain}", "x".repeat(local))
}

/// Returns at least `length` characters of domain name labels, each followed by a dot.
fn domain_labels(length: usize) -> String {
    let mut text = String::new();
    while text.len() < length {
        let label = (length - text.len()).clamp(2, 61) - 1;
        text.push_str(&"a".repeat(label));
        text.push('.');
    }
    text
}

fn random_hostname(low: u32, high: u32, rng: &mut ChaCha8Rng) -> String {
    let natural = format!("{}.example.com", words::random_word(rng));
    if natural.len() > high as usize {
        let word = words::random_word(rng);
        return word[..word.len().min(high as usize)].to_owned();
    }
    let missing = (low as usize).saturating_sub(natural.len());
    domain_labels(missing) + &natural
}

fn random_ipv6(low: u32, rng: &mut ChaCha8Rng) -> String {
    if low > 20 {
        let last = rng.draw_u64_between(0x1000, 0xffff);
        return format!("2001:0db8:85a3:08d3:1319:8a2e:0370:{last:04x}");
    }
    format!("2001:db8::{:x}", rng.draw_u64_between(1, 0xffff))
}

/// Returns a URI: `start` followed by words, with a host after a scheme.
fn random_uri(start: &str, low: u32, high: u32, rng: &mut ChaCha8Rng) -> String {
    let mut text = start.to_owned();
    if start.len() > 1 {
        if high < 20 {
            return "urn:a".to_owned() + &"b".repeat((low as usize).saturating_sub(5));
        }
        text.push_str("example.com/");
    }
    text.push_str(words::random_word(rng));
    while text.len() < low as usize {
        text.push('/');
        text.push_str(words::random_word(rng));
    }
    text.truncate((high as usize).max(start.len()));
    text
}

fn random_uuid(rng: &mut ChaCha8Rng) -> String {
    let (high, low) = (rng.draw_u64_between(0, u64::MAX), rng.draw_u64_between(0, u64::MAX));
    // Version 4, variant 1 (RFC 9562 section 5.4).
    let high = high & !0xf000 | 0x4000;
    let low = low & (u64::MAX >> 2) | 1 << 63;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}
