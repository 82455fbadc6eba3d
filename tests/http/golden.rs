//! Answers compared with files under `tests/golden/http`; `BLESS=1` rewrites them.
//!
//! A file shows the request, the status, every header and the body. JSON bodies are indented, but
//! not parsed: spelling of numbers, order of keys and blanks stay as they were on the wire. Events
//! of a stream are one line each. What differs from run to run is masked by name.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::sim::Sim;
use super::wire::Answer;

/// Posts each body to `path` and compares the answers with the files called so.
pub(crate) async fn posts(sim: &Sim, path: &str, cases: &[(&str, Value)]) {
    for (name, body) in cases {
        let answer = sim.post(path, body).await;
        check(name, &format!("POST {path}\n{body}"), &answer);
    }
}

/// Compares `answer` to `request` with the file called `name`.
pub(crate) fn check(name: &str, request: &str, answer: &Answer) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/http")
        .join(format!("{name}.txt"));
    let shown = mask(&show(request, answer));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &shown).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    if golden == shown {
        return;
    }
    let differs = golden.lines().zip(shown.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or(golden.lines().count().min(shown.lines().count()));
    panic!(
        "{name}.txt differs in line {}:\n  golden: {}\n  answer: {}\n(BLESS=1 rewrites it)",
        line + 1,
        golden.lines().nth(line).unwrap_or("(end)"),
        shown.lines().nth(line).unwrap_or("(end)"),
    );
}

fn show(request: &str, answer: &Answer) -> String {
    let mut out = format!("{request}\n\n{}\n", answer.status);
    for (name, value) in &answer.headers {
        let _ = writeln!(out, "{name}: {value}");
    }
    out.push('\n');
    let text = answer.text();
    match answer.header("content-type") {
        Some("application/json") => indent(&text, &mut out),
        Some(kind) if kind.starts_with("text/event-stream") => {
            for event in text.split_inclusive("\n\n") {
                let _ = writeln!(out, "{}", event.trim_end_matches('\n'));
                assert!(event.ends_with("\n\n"), "a frame without its end");
            }
        }
        _ => out.push_str(&text),
    }
    out
}

/// Breaks JSON into lines. A blank outside a string is shown as `·`.
fn indent(json: &str, out: &mut String) {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        if quoted {
            out.push(c);
            quoted = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        let closed = chars.peek().is_some_and(|next| matches!(next, '}' | ']'));
        match c {
            '{' | '[' if closed => {
                out.push(c);
                out.extend(chars.next());
                continue;
            }
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let line = format!("\n{}", " ".repeat(depth));
        match c {
            '{' | '[' | ',' => {
                out.push(c);
                out.push_str(&line);
            }
            '}' | ']' => {
                out.push_str(&line);
                out.push(c);
            }
            c if c.is_whitespace() => out.push('·'),
            c => {
                quoted = c == '"';
                out.push(c);
            }
        }
    }
    out.push('\n');
}

/// Replaces ids, times and hashes by their names.
fn mask(text: &str) -> String {
    static MASKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let mask = |pattern: &str, name| (Regex::new(pattern).unwrap(), name);
        vec![
            mask(
                r"\b((?:chatcmpl-tool|chatcmpl|cmpl|modelperm|embd|classify|pooling|score|generate-tokens)-|(?:ctc|fc|msg|resp|rs)_)[0-9a-f]{16}(?:[0-9a-f]{16})?\b",
                "${1}UID",
            ),
            mask(r#""signature":"[0-9a-f]{32}""#, "\"signature\":\"UUID\""),
            mask(r#""created_at":\d{10}\b"#, "\"created_at\":NOW"),
            mask(r#""created":\d{10}\b"#, "\"created\":NOW"),
            mask(r"(?m)^date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$", "date: DATE"),
            mask(r"(?m)^x-request-id: [0-9a-f]{32}$", "x-request-id: UUID"),
            mask(r#""age_seconds":[0-9.]+"#, "\"age_seconds\":AGE"),
            mask(r"vllm-0\.33\.0-[0-9a-f]{8}", "vllm-0.33.0-HASH"),
            mask(r"127\.0\.0\.1:\d+", "HOST"),
        ]
    });
    // Where the checkout lies decides how long a body is that names the model's folder, and how long it
    // took how long an age is.
    let length = Regex::new(r"(?m)^content-length: \d+$").unwrap();
    let text = if text.contains(super::sim::MODEL) || text.contains("\"age_seconds\"") {
        length.replace(text, "content-length: LENGTH").replace(super::sim::MODEL, "MODEL")
    } else {
        text.to_owned()
    };
    MASKS.iter().fold(text, |text, (pattern, name)| pattern.replace_all(&text, *name).into_owned())
}
