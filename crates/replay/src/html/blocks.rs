//! Blocks that all HTML pages share: tables, tiles, the description of the run, the document.

use std::fmt::Write as _;

/// Minimum latency, in milliseconds, for which HTML pages show seconds as the unit.
pub(super) const MIN_MS_SHOWN_AS_SECONDS: f64 = 10_000.0;

/// Meaning of a value on an HTML page, such as better or worse than another value, shown by the
/// value's colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValueColour {
    /// The coloured value is neutral: neither better nor worse.
    #[default]
    Plain,
    /// The coloured value is better than another one, or within a bound.
    Better,
    /// The coloured value is worse than another one, or misses a bound.
    Worse,
    /// The coloured value belongs to the best row of a table.
    Best,
}

impl ValueColour {
    fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Best => "best",
        }
    }

    /// Returns the meaning of the verdict of a comparison: of `better`, of `worse` or of any other
    /// text.
    pub fn from_comparison_verdict(verdict: &str) -> Self {
        match verdict {
            "better" => Self::Better,
            "worse" => Self::Worse,
            _ => Self::Plain,
        }
    }
}

/// Renders an HTML table that scrolls horizontally; the first cell of each row is its header.
pub fn render_table<H: AsRef<str>, R: AsRef<[String]>>(head: &[H], rows: &[R]) -> String {
    render_coloured_table(head, rows, |_, _| ValueColour::Plain)
}

/// Renders an HTML table with coloured cells; `tone` selects the colour by row and column.
pub fn render_coloured_table<H: AsRef<str>, R: AsRef<[String]>>(
    head: &[H],
    rows: &[R],
    tone: impl Fn(usize, usize) -> ValueColour,
) -> String {
    let mut text = String::from(
        "<div class=\"wide\" role=\"region\" aria-label=\"Table\" tabindex=\"0\"><table><thead><tr>",
    );
    for cell in head {
        // A head may name several files.
        let cell = escape_html(cell.as_ref()).replace(',', ",<wbr>");
        let _ = write!(text, "<th scope=\"col\">{cell}</th>");
    }
    text.push_str("</tr></thead><tbody>");
    for (at, row) in rows.iter().enumerate() {
        text.push_str("<tr>");
        for (column, cell) in row.as_ref().iter().enumerate() {
            let class = match tone(at, column).class() {
                "" => String::new(),
                class => format!(" class=\"{class}\""),
            };
            let (tag, scope) = if column == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
            let _ = write!(text, "<{tag}{scope}{class}>{}</{tag}>", escape_html(cell));
        }
        text.push_str("</tr>");
    }
    text + "</tbody></table></div>"
}

/// Renders the notes below a table as a list; empty without notes.
pub fn render_table_notes(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let items = notes.iter().map(|note| format!("<li>{}</li>", escape_html(note)));
    format!("<ul class=\"notes\">{}</ul>", items.collect::<String>())
}

/// Horizontal bar of a bar chart.
#[derive(Debug, Clone)]
pub struct ChartBar {
    /// Label above the bar of a bar chart.
    pub label: String,
    /// Text of the bar's value in a bar chart.
    pub value: String,
    /// Length of the bar as a ratio of the chart's width.
    pub ratio: f64,
    /// Meaning of the bar's value, shown by the colour of the bar.
    pub tone: ValueColour,
}

/// Renders a bar chart as HTML boxes instead of SVG, so that long labels wrap and the text size is
/// fixed.
pub fn render_bar_chart(title: &str, bars: &[ChartBar]) -> String {
    let mut text =
        format!("<figure class=\"bars\"><figcaption>{}</figcaption>", escape_html(title));
    for bar in bars {
        let _ = write!(
            text,
            "<p><span>{}</span> <b>{}</b></p>\
             <div class=\"fill {}\" style=\"width:max(2px,{:.1}%)\"></div>",
            escape_html(&bar.label),
            escape_html(&bar.value),
            bar.tone.class(),
            bar.ratio * 100.0,
        );
    }
    text + "</figure>"
}

/// Renders the section that describes a run, from pairs of name and value; empty without pairs.
fn render_run_section(name_value_rows: &[(String, String)]) -> String {
    if name_value_rows.is_empty() {
        return String::new();
    }
    let mut text = String::from("<section><h2>Run</h2><table class=\"plain\">");
    for (name, value) in name_value_rows {
        let (name, value) = (escape_html(name), escape_html(value));
        let _ = write!(text, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    text + "</table></section>"
}

/// Summary figure at the top of a page: label, value, and a note below the value.
#[derive(Debug, Clone)]
pub struct SummaryTile {
    label: String,
    value: String,
    note: String,
    tone: ValueColour,
}

impl SummaryTile {
    /// Creates a summary figure without a colour.
    pub fn new(label: &str, value: &str, note: &str) -> Self {
        let (label, value, note) = (label.to_owned(), value.to_owned(), note.to_owned());
        Self { label, value, note, tone: ValueColour::Plain }
    }

    /// Sets the meaning of a summary figure's value, which selects the value's colour.
    pub fn with_colour(self, tone: ValueColour) -> Self {
        Self { tone, ..self }
    }
}

/// Renders the summary figures of a page as a section.
pub fn render_summary_tiles(tiles: &[SummaryTile]) -> String {
    let mut text = String::from("<section class=\"tiles\" aria-label=\"Summary\">");
    for tile in tiles {
        let _ = write!(
            text,
            "<div class=\"tile {}\"><span>{}</span><strong>{}</strong><small>{}</small></div>",
            tile.tone.class(),
            escape_html(&tile.label),
            escape_html(&tile.value),
            escape_html(&tile.note)
        );
    }
    text + "</section>"
}

/// Wraps HTML sections into a page with a heading, and the style and script of all pages.
///
/// The last sections describe the run, from the pairs of name and value in `about`, and show the
/// command line that made the page.
pub fn render_html_document(
    title: &str,
    body: &str,
    about: &[(String, String)],
    command_line: &str,
) -> String {
    let (title, command_line) = (escape_html(title), escape_html(command_line));
    let run = render_run_section(about);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"icon\" href=\"data:,\"><title>{title}</title>\n<style>{}{}</style></head>\n\
         <body><main><h1>{title}</h1>{body}{run}\
         <section><h2>Command</h2><pre><code>{command_line}</code></pre></section></main>\n\
         <div id=\"tip\" role=\"status\" hidden></div>\n\
         <script>{}{}</script></body></html>\n",
        include_str!("base.css"),
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

/// Formats a latency in milliseconds, or in seconds from ten seconds on.
pub fn format_latency(ms: f64) -> String {
    match ms >= MIN_MS_SHOWN_AS_SECONDS {
        true => format!("{} s", format_short_number(ms / 1e3)),
        false => format!("{} ms", format_short_number(ms)),
    }
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
    fn table_cells_have_their_tone() {
        let rows = [["a".to_owned(), "better".to_owned()]];
        let table = render_coloured_table(&["x,y", ""], &rows, |row, column| {
            ValueColour::from_comparison_verdict(&rows[row][column])
        });
        assert!(table.contains("<td class=\"better\">better</td>"), "{table}");
        assert!(table.contains("<th scope=\"row\">a</th>"), "{table}");
        assert!(table.contains(">x,<wbr>y</th>"), "{table}");
    }

    #[test]
    fn long_latencies_are_in_seconds() {
        assert_eq!([80.5, 9999.0, 65_992.4].map(format_latency), ["80.5 ms", "9999 ms", "66 s"]);
    }

    #[test]
    fn html_escape_prevents_injection() {
        assert_eq!(escape_html("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
    }
}
