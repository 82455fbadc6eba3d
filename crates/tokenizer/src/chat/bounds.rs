//! Limits the cost of a chat template: its source before compilation, and the work of a rendering.
//!
//! A request may contain a template (`--trust-request-chat-template`), and minijinja recurses for
//! each level of an expression and of a value. minijinja's fuel counts instructions, each of which
//! may copy any amount of text; so this module counts bytes.

use std::cell::Cell;

use minijinja::functions::Function;
use minijinja::value::{FunctionArgs, FunctionResult, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::error::{ChatTemplateError, invalid_operation};
use super::lexer::{JinjaTag, JinjaTokenKind, lex_jinja_tags};

/// Maximum size of a chat template, in bytes.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Maximum size of a malformed chat template, in bytes; the parser only locates the error.
const MAX_BROKEN_SOURCE_BYTES: usize = 2048;
/// Maximum number of nested operators in an expression of a chat template.
const MAX_NESTED_OPERATORS: usize = 300;
const MAX_TEMPLATE_CALL_DEPTH: usize = 100;
const MAX_TEMPLATE_BRANCHES: usize = 150;
/// Names of the Jinja statements that load other templates, which a chat template cannot use.
const TEMPLATE_LOADING_TAGS: [&str; 4] = ["include", "import", "from", "extends"];
/// Maximum work of rendering one chat template: bytes read, written and stored.
const MAX_RENDER_WORK_BYTES: u64 = 96 << 20;
/// Maximum nesting depth of a template value that is assigned to a name.
const MAX_VALUE_DEPTH: usize = 500;
/// Maximum width of a padded field in a format string, in characters.
const MAX_FIELD_WIDTH: usize = 1 << 16;
/// Assumed cost of one list element of a template value, in bytes of work.
const ELEMENT_WORK_BYTES: u64 = 64;

/// Name of the template filter, inserted by this crate, that counts the work of evaluating a part
/// of an expression.
pub(super) const COUNT_EXPRESSION_WORK_FILTER: &str = "__part__";
/// Name of the template filter, inserted by this crate, that counts the work of a whole value with
/// all nested values, such as an assigned value.
pub(super) const COUNT_NESTED_VALUE_WORK_FILTER: &str = "__kept__";
/// Name of the template filter, inserted by this crate, that counts the work of a loop: the size of
/// its body, once per element.
pub(super) const COUNT_LOOP_WORK_FILTER: &str = "__looped__";

/// Rejects a chat template whose source is too large or too deeply nested.
///
/// # Errors
/// [`ChatTemplateError::Rejected`] with the exceeded limit.
pub(super) fn check_template_limits(source: &str) -> Result<(), ChatTemplateError> {
    let refuse = |what: &str, most: usize| {
        let text = format!("the chat template is too large: {what}; at most {most} are allowed");
        Err(ChatTemplateError::Rejected(text))
    };
    if source.len() > MAX_SOURCE_BYTES {
        return refuse(&format!("{} bytes", source.len()), MAX_SOURCE_BYTES);
    }
    let Some(tags) = lex_jinja_tags(source) else {
        if source.len() > MAX_BROKEN_SOURCE_BYTES {
            let text = "the chat template is not well formed: a tag or a bracket is not closed";
            return Err(ChatTemplateError::Rejected(text.to_owned()));
        }
        return Ok(());
    };
    let depth = tags.iter().map(max_nested_operators).max().unwrap_or(0);
    if depth > MAX_NESTED_OPERATORS {
        return refuse(&format!("{depth} operators in one expression"), MAX_NESTED_OPERATORS);
    }
    let first = |tag: &JinjaTag<'_>| tag.tokens.first().map_or("", |token| token.text).to_owned();
    let mut words = tags.iter().filter(|tag| tag.is_statement_tag()).map(first);
    if let Some(word) = words.find(|word| TEMPLATE_LOADING_TAGS.contains(&word.as_str())) {
        let text = format!("no loader for this environment specified: `{word}` finds no template");
        return Err(ChatTemplateError::Rejected(text));
    }
    let branches = max_nested_branches(&tags);
    if branches > MAX_TEMPLATE_BRANCHES {
        return refuse(&format!("{branches} branches of one `if`"), MAX_TEMPLATE_BRANCHES);
    }
    Ok(())
}

/// Returns the maximum number of nested operators in the expressions of a template tag; commas
/// separate expressions.
fn max_nested_operators(tag: &JinjaTag<'_>) -> usize {
    const OPERATOR_WORDS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "else", "recursive"];
    // Operators in the current element of each open bracket, and in all brackets around it.
    let (mut own, mut around, mut most) = (0, Vec::new(), 0);
    let mut outside = 0;
    for token in &tag.tokens {
        match (token.kind, token.text) {
            (JinjaTokenKind::Str, _) => {}
            (JinjaTokenKind::Name, word) => own += usize::from(OPERATOR_WORDS.contains(&word)),
            (JinjaTokenKind::Other, "(" | "[" | "{") => {
                own += 1;
                outside += own;
                around.push(own);
                own = 0;
            }
            (JinjaTokenKind::Other, ")" | "]" | "}") => {
                own = around.pop().unwrap_or(0);
                outside -= own;
            }
            (JinjaTokenKind::Other, ",") => own = 0,
            (JinjaTokenKind::Other, text) => {
                own += usize::from(!text.starts_with(|c: char| c.is_ascii_digit()));
            }
        }
        most = most.max(outside + own);
    }
    most
}

fn max_nested_branches(tags: &[JinjaTag<'_>]) -> usize {
    let (mut open, mut most) = (Vec::new(), 0);
    for tag in tags.iter().filter(|tag| tag.is_statement_tag()) {
        match tag.tokens.first().map(|token| token.text) {
            Some("if") => open.push(0),
            Some("elif") => {
                if let Some(count) = open.last_mut() {
                    *count += 1;
                    most = most.max(*count);
                }
            }
            Some("endif") => {
                open.pop();
            }
            _ => {}
        }
    }
    most
}

thread_local! {
    /// Work of the current template rendering on this thread, in bytes.
    ///
    /// A rendering stays on one thread and renders no other template. minijinja's own per-rendering
    /// state is looked up by name under a lock.
    static WORK_DONE_BYTES: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn reset_render_work_count() {
    WORK_DONE_BYTES.set(0);
}

/// Adds `bytes` to the work of the current template rendering.
///
/// # Errors
/// [`Error`] if the rendering exceeds its work limit.
pub(super) fn charge_render_work(bytes: u64) -> Result<(), Error> {
    let done = WORK_DONE_BYTES.get().saturating_add(bytes);
    WORK_DONE_BYTES.set(done);
    if done > MAX_RENDER_WORK_BYTES {
        return Err(invalid_operation(format!(
            "the chat template does too much: it reads and writes more than {MAX_RENDER_WORK_BYTES} bytes"
        )));
    }
    Ok(())
}

/// Counts the work of writing a template value with all nested values.
///
/// # Errors
/// Those of [`charge_render_work`], and [`Error`] for a value that is nested too deeply.
pub(super) fn charge_nested_value_work(value: &Value) -> Result<(), Error> {
    spend_recursively(value, 0)
}

fn spend_recursively(value: &Value, level: usize) -> Result<(), Error> {
    charge_render_work(value_size_bytes(value))?;
    if value.as_str().is_some() || !is_container_value(value) {
        return Ok(());
    }
    if level == MAX_VALUE_DEPTH {
        return Err(invalid_operation(format!(
            "the chat template nests a value more than {MAX_VALUE_DEPTH} levels deep"
        )));
    }
    let pairs = value.as_object().filter(|_| value.kind() == ValueKind::Map);
    if let Some(pairs) = pairs.and_then(|object| object.try_iter_pairs()) {
        for (key, value) in pairs {
            spend_recursively(&key, level + 1)?;
            spend_recursively(&value, level + 1)?;
        }
        return Ok(());
    }
    for item in value.try_iter().into_iter().flatten() {
        spend_recursively(&item, level + 1)?;
    }
    Ok(())
}

fn is_container_value(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
}

pub(super) fn charge_element_work() -> Result<(), Error> {
    charge_render_work(ELEMENT_WORK_BYTES)
}

/// Counts the work of reading a template value without its elements.
pub(super) fn charge_value_work(value: &Value) -> Result<(), Error> {
    charge_render_work(value_size_bytes(value))
}

/// Returns the size of a template value without its elements, in bytes.
fn value_size_bytes(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => text.len() as u64,
        None if is_container_value(value) => {
            ELEMENT_WORK_BYTES.saturating_mul(1 + value.len().unwrap_or(0) as u64)
        }
        None => ELEMENT_WORK_BYTES,
    }
}

/// Counts the work of calling a Python string method with the given arguments.
///
/// # Errors
/// Those of [`charge_render_work`], and [`Error`] for a padding width that is too large.
pub(super) fn charge_string_method_work(
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<(), Error> {
    let length = text.len() as u64;
    match method {
        "split" | "rsplit" | "splitlines" => {
            charge_render_work(length.saturating_mul(ELEMENT_WORK_BYTES))
        }
        "join" => {
            for item in args.first().and_then(|items| items.try_iter().ok()).into_iter().flatten() {
                charge_render_work(length)?;
                charge_nested_value_work(&item)?;
            }
            Ok(())
        }
        "replace" => {
            let part = |at: usize| args.get(at).and_then(Value::as_str).unwrap_or_default();
            charge_text_replacement_work(text, part(0), part(1))
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let width = args.first().and_then(Value::as_usize).unwrap_or(0);
            charge_render_work(length.saturating_add(width as u64))
        }
        "format" => spend_formatting(text, args, '{'),
        _ => charge_render_work(length.saturating_mul(3)),
    }
}

/// Counts the work of replacing every `old` by `new` in a text.
///
/// # Errors
/// Those of [`charge_render_work`].
pub(super) fn charge_text_replacement_work(text: &str, old: &str, new: &str) -> Result<(), Error> {
    let places = text.matches(old).count() as u64;
    let grown = places.saturating_mul(new.len() as u64);
    charge_render_work(grown.saturating_add(text.len() as u64))
}

/// Counts the work of formatting with a format string against the template's limit; `open` is the
/// character that begins a field, `%` or `{`.
///
/// Assumes the largest width and the largest argument for each field.
fn spend_formatting(text: &str, args: &[Value], open: char) -> Result<(), Error> {
    let specs = || text.split(open).skip(1);
    let widths = specs().flat_map(|spec| {
        let end = spec.find(|c: char| c.is_alphabetic() || c == '}');
        spec[..end.unwrap_or(spec.len())].split(|c: char| !c.is_ascii_digit())
    });
    // A width may also be an argument.
    let given = args.iter().filter(|_| text.contains(['*', ':'])).filter_map(Value::as_usize);
    let widest = widths
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap_or(usize::MAX))
        .chain(given)
        .max()
        .unwrap_or(0);
    if widest > MAX_FIELD_WIDTH {
        return Err(invalid_operation(format!(
            "the chat template formats to a width of {widest}; at most {MAX_FIELD_WIDTH} is \
             allowed"
        )));
    }
    let largest = args.iter().map(value_size_bytes).max().unwrap_or(0);
    for arg in args.iter().filter(|arg| arg.as_str().is_none()) {
        charge_nested_value_work(arg)?;
    }
    let fields = specs().count() as u64;
    let each = largest.saturating_mul(3).saturating_add(widest as u64);
    charge_render_work(fields.saturating_mul(each).saturating_add(text.len() as u64))
}

pub(super) fn add_work_counting_filters(env: &mut Environment<'_>) {
    env.set_recursion_limit(MAX_TEMPLATE_CALL_DEPTH);
    env.add_filter(COUNT_EXPRESSION_WORK_FILTER, |value: Value| {
        charge_render_work(value_size_bytes(&value)).map(|()| value)
    });
    env.add_filter(COUNT_NESTED_VALUE_WORK_FILTER, |value: Value| {
        charge_nested_value_work(&value).map(|()| value)
    });
    env.add_filter(COUNT_LOOP_WORK_FILTER, |value: Value, body: u64| {
        let rounds = value.len().unwrap_or(0) as u64;
        // `len` counts the characters of a text.
        charge_render_work(value.as_str().map_or(0, |text| text.len() as u64 / 16))?;
        charge_render_work(rounds.saturating_mul(body)).map(|()| value)
    });
    macro_rules! count {
        ($($name:ident $(as $alias:literal)? costs $factor:expr;)*) => {
            $(count!(@one $name, $factor, stringify!($name)); $(count!(@one $name, $factor, $alias);)?)*
        };
        (@one $name:ident, $factor:expr, $as:expr) => {
            replace_by_counting_filter(env, $as, $factor, minijinja::filters::$name)
        };
    }
    count! {
        upper costs 3;
        lower costs 3;
        title costs 3;
        capitalize costs 3;
        escape as "e" costs 6;
        list costs ELEMENT_WORK_BYTES;
        lines costs ELEMENT_WORK_BYTES;
        reverse costs 2;
        sort costs 1;
        unique costs 1;
        batch costs 1;
        slice costs 1;
        split costs ELEMENT_WORK_BYTES;
        map costs 1;
        select costs 1;
        reject costs 1;
        selectattr costs 1;
        rejectattr costs 1;
        groupby costs ELEMENT_WORK_BYTES;
        pprint costs ELEMENT_WORK_BYTES;
        safe costs 1;
        min costs 1;
        max costs 1;
        sum costs 1;
    }
    env.add_test("lower", |text: &str| {
        charge_render_work(4 * text.len() as u64).map(|()| text.chars().all(char::is_lowercase))
    });
    env.add_test("upper", |text: &str| {
        charge_render_work(4 * text.len() as u64).map(|()| text.chars().all(char::is_uppercase))
    });
    env.add_filter("minijinja_format", minijinja::filters::format);
    env.add_filter("format", |state: &State<'_, '_>, args: Rest<Value>| {
        if let [text, args @ ..] = args.as_slice() {
            spend_formatting(text.as_str().unwrap_or_default(), args, '%')?;
        }
        state.apply_filter("minijinja_format", &args)
    });
}

/// Replaces a filter of minijinja by one that also counts work: `factor` times the size of the
/// filtered value, and the size of the arguments.
fn replace_by_counting_filter<F, Rv, Args>(
    env: &mut Environment<'_>,
    name: &'static str,
    factor: u64,
    filter: F,
) where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let hidden = format!("minijinja_{name}");
    env.add_filter(hidden.clone(), filter);
    env.add_filter(name, move |state: &State<'_, '_>, args: Rest<Value>| {
        if let [value, args @ ..] = args.as_slice() {
            let counts = args.iter().filter_map(Value::as_usize).map(|n| n as u64);
            let counts = counts.fold(0u64, u64::saturating_add);
            // Applying a filter costs at least as much as reading some text.
            let work = value_size_bytes(value).saturating_mul(factor).max(ELEMENT_WORK_BYTES);
            charge_render_work(work.saturating_add(counts.saturating_mul(ELEMENT_WORK_BYTES)))?;
        }
        state.apply_filter(&hidden, &args)
    });
}

#[cfg(test)]
mod tests {
    use super::super::filters::local_time;
    use super::super::templates::CompiledTemplate;

    fn render_template(source: &str) -> Result<String, String> {
        CompiledTemplate::new(source, local_time)
            .and_then(|template| template.render_template(Default::default()))
            .map_err(|error| error.to_string())
    }

    fn assert_rejected(source: &str, reason: &str) {
        let shown: String = source.chars().take(120).collect();
        match render_template(source) {
            Ok(text) => panic!("{shown}: {} bytes", text.len()),
            Err(error) => assert!(error.contains(reason), "{shown}: {error}"),
        }
    }

    #[test]
    fn deep_and_large_templates_are_rejected() {
        let deep = |part: &str, n: usize| part.repeat(n);
        for source in [
            format!("{{{{ a{} }}}}", deep(".a", 100_000)),
            format!("{{{{ a{} }}}}", deep("|upper", 100_000)),
            format!("{{{{ a{} }}}}", deep("()", 100_000)),
            format!("{{{{ a{} }}}}", deep(" + a", 100_000)),
            format!("{{{{ {}a }}}}", deep("not ", 100_000)),
            format!("{{{{ a{} }}}}", deep(" if a else a", 50_000)),
            format!("{{% if a %}}{}{{% endif %}}", deep("{% elif a %}", 50_000)),
            "x".repeat(2 << 20),
        ] {
            assert_rejected(&source, "too large");
        }
        assert_rejected(&format!("{{{{ a{}", deep(".a", 100_000)), "not well formed");
        assert_rejected(&format!("{{{{ {}{} }}}}", deep("[", 200), deep("]", 200)), "recursion");
        assert_rejected(&deep("{% if a %}", 10_000), "recursion");
        assert_rejected("{% include 'chat_template' %}", "no loader");
        assert_rejected("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion");
    }

    #[test]
    fn exponentially_growing_values_are_rejected() {
        let twice = |body: &str| {
            format!(
                "{{% set ns = namespace(s='ab', l=[1]) %}}{{% for i in range(100) %}}{body}\
                 {{% endfor %}}"
            )
        };
        for source in [
            twice("{% set ns.s = ns.s ~ ns.s %}"),
            twice("{% set ns.s = ns.s + ns.s %}"),
            twice("{% set ns.s = ns.s * 2 %}"),
            twice("{% set ns.s = [ns.s, ns.s]|join %}"),
            twice("{% set ns.s = ''.join([ns.s, ns.s]) %}"),
            twice("{% set ns.s = ns.s|replace('a', 'aa') %}"),
            twice("{% set ns.s = ns.s.replace('a', 'aa') %}"),
            twice("{% set ns.s = '%s%s'|format(ns.s, ns.s) %}"),
            twice("{% set ns.s = '{0}{0}'.format(ns.s) %}"),
            twice("{% set ns.l = ns.l + ns.l %}"),
            twice("{% set ns.l = [ns.l, ns.l] %}"),
            twice("{% set ns.s = ns.l %}{% set ns.l = [ns.s, ns.s, ns.l] %}"),
            twice("{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}"),
            format!(
                "{{% set t %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}",
                "text ".repeat(10_000)
            ),
            format!(
                "{{% for i in [1] recursive %}}{{{{ loop(range(100000)) }}}}{}{{% endfor %}}",
                "text ".repeat(10_000)
            ),
            "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}".to_owned(),
            "{{ [1]|batch(1000000000000, 2) }}".to_owned(),
            "{{ [1]|slice(1000000000000, 2) }}".to_owned(),
        ] {
            assert_rejected(&source, "too much");
        }
        assert_rejected(
            "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}\
             {% endfor %}",
            "levels deep",
        );
    }

    #[test]
    fn giant_format_widths_are_rejected() {
        for source in [
            "{{ '%999999999d'|format(1) }}",
            "{{ '%.999999999f'|format(1.5) }}",
            "{{ '{:>999999999}'.format('x') }}",
            "{{ '{:999999999999999999999}'.format(1) }}",
        ] {
            assert_rejected(source, "width");
        }
        for (source, text) in [
            ("{{ '%5d|%s'|format(1, 'a') }}", "    1|a"),
            ("{{ '{:>3}'.format('x') }}", "  x"),
            ("{{ 2 * 3 + 1 }}{{ 'a' * 3 + 'b' }}{{ -2 * 3 }}", "7aaab-6"),
            ("{{ (1 + 2) ~ 3 }}{{ [1] + [2] }}{{ 'x'|upper }}", "33[1, 2]X"),
        ] {
            assert_eq!(render_template(source).as_deref(), Ok(text), "{source}");
        }
    }

    /// Filters that read their value take time proportional to its length. The byte limit must end
    /// the rendering long before the loop does.
    #[test]
    fn reading_long_values_counts_as_render_work() {
        for reads in [
            "s|wordcount",
            "s|trim",
            "s|striptags",
            "s|int",
            "s|float",
            "s|length",
            "s|truncate(5)",
            "s|split('z')",
            "s|map('upper')|list",
            "s|pprint",
            "s|safe",
            "s|title",
            "s|reverse",
            "s|join",
            "s|tojson",
            "s is lower",
            "s is upper",
            "s[::-1]",
            "s[1:]",
            "s[-1]",
            "s[3999999]",
            "'zz' in s",
            "s == t",
            "s != t",
            "s < t",
            "(s, t) == (t, s)",
            "s in [t]",
            "s not in d",
            "s.find('z')",
            "d.get(s)",
            "d[s]",
            "{s: 1}",
            "{s: 1}[t]",
            "l == k",
            "l|min",
            "l|max",
            "l|sum",
            "9 in l",
            "l[1:]",
            "l|reject('odd')|first",
            "l|groupby('x')",
            "l|sort",
            "l|unique|list",
            "l.count(9)",
            "strftime_now(s)",
            "loop.changed(s)",
        ] {
            let times = |rounds: u32| {
                format!(
                    "{{% set s = 'ab' * 400000 %}}{{% set t = 'ab' * 400000 %}}{{% set d = {{'a': 1}} %}}\
                     {{% set l = range(500)|list %}}{{% set k = range(500)|list %}}\
                     {{% for i in range({rounds}) %}}{{% if {reads} %}}{{% endif %}}{{% endfor %}}"
                )
            };
            assert!(render_template(&times(0)).is_ok(), "{reads}");
            assert_rejected(&times(99_999), "too much");
        }
    }

    #[test]
    fn loop_bodies_count_as_render_work() {
        assert_rejected(
            "{% set s = 'ab' * 400000 %}{% for i in range(99999) %}{% for c in s %}{% break %}\
             {% endfor %}{% endfor %}",
            "too much",
        );
    }
}
