//! Blocks that all HTML pages share: tables, tiles, the description of the run, the document.

use std::fmt::Write as _;

/// Renders an HTML table that scrolls horizontally; the first cell of each row is its header.
pub fn render_table<H: AsRef<str>, R: AsRef<[String]>>(head: &[H], rows: &[R]) -> String {
    let mut text = String::from("<div class=\"wide\"><table><thead><tr>");
    for cell in head {
        let _ = write!(text, "<th>{}</th>", escape_html(cell.as_ref()));
    }
    text.push_str("</tr></thead><tbody>");
    for row in rows {
        text.push_str("<tr>");
        for (column, cell) in row.as_ref().iter().enumerate() {
            let tag = if column == 0 { "th" } else { "td" };
            let _ = write!(text, "<{tag}>{}</{tag}>", escape_html(cell));
        }
        text.push_str("</tr>");
    }
    text + "</tbody></table></div>"
}

/// Renders the section that describes a run, from pairs of name and value; empty without pairs.
pub fn run(about: &[(String, String)]) -> String {
    if about.is_empty() {
        return String::new();
    }
    let mut text = String::from("<section><h2>Run</h2><table class=\"plain\">");
    for (name, value) in about {
        let (name, value) = (escape_html(name), escape_html(value));
        let _ = write!(text, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    text + "</table></section>"
}

/// Renders one summary figure (label, value, note), for an HTML section of class `tiles`.
pub fn render_summary_tile(label: &str, value: &str, note: &str) -> String {
    format!(
        "<div class=\"tile\"><span>{}</span><strong>{}</strong><small>{}</small></div>",
        escape_html(label),
        escape_html(value),
        escape_html(note)
    )
}

/// Renders an HTML section with the command line that made the page.
pub fn render_command_section(line: &str) -> String {
    format!(
        "<section><h2>Command</h2><p><code style=\"overflow-wrap:anywhere\">{}</code></p></section>",
        escape_html(line)
    )
}

/// Wraps HTML sections into a page with the style and script of the replay report.
pub fn render_document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\"><title>{}</title>\n<style>{}</style></head>\n\
         <body><main>{body}</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n\
         <script>{}{}</script></body></html>\n",
        escape_html(title),
        include_str!("page.css"),
        include_str!("page.js"),
        include_str!("requests.js"),
    )
}

/// Escapes text for use in HTML, between tags and in attributes.
pub fn escape_html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Formats a number with three to four significant digits and a prefix `k`, `M` or `G`.
pub fn format_short_number(value: f64) -> String {
    let size = value.abs();
    let (scaled, unit) = match size {
        s if s >= 1e9 => (value / 1e9, "G"),
        s if s >= 1e6 => (value / 1e6, "M"),
        s if s >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let places = match scaled.abs() {
        s if s >= 100.0 || s == 0.0 => 0,
        s if s >= 10.0 => 1,
        s if s >= 1.0 => 2,
        s if s >= 0.01 => 3,
        _ => 5,
    };
    let text = format!("{scaled:.places$}");
    // Trailing zeros are dropped.
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_number_format() {
        let shown =
            [0.0, 0.00012, 1.5, 23.456, 999.9, 12_345.0, 2e6, -0.5].map(format_short_number);
        assert_eq!(shown, ["0", "0.00012", "1.5", "23.5", "1000", "12.3k", "2M", "-0.5"]);
    }

    #[test]
    fn html_escape_prevents_injection() {
        assert_eq!(escape_html("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
    }
}
