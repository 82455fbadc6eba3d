//! Detects whether a chat template expects message content as text or as a list of parts.
//!
//! vLLM searches the template's syntax tree for a loop over `message.content`. This module finds
//! such a loop in the tags: it follows assignments of `messages`, loops over it, and macros with a
//! message's content as argument.
//!
//! **Source:** `vllm/renderers/hf.py`, `_detect_content_format`.

use super::lexer::{
    JinjaTag, JinjaToken, JinjaTokenKind, bracket_depth_after, closing_bracket, lex_jinja_tags,
    loop_targets_and_iterable,
};

/// Format of message content that a chat template expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChatTemplateContentFormat {
    /// The template expects message content as one string; the parts of a content list are joined
    /// by newlines.
    #[default]
    String,
    /// The template expects message content as a list of content parts, as in OpenAI's API.
    Openai,
}

impl ChatTemplateContentFormat {
    /// Returns the content format that `template` expects; `String` if it cannot be determined.
    pub(super) fn detect_content_format(template: &str) -> Self {
        let found = lex_jinja_tags(template)
            .and_then(|tags| TemplateStatements::parse(&tags).iterates_content());
        if found == Some(true) { Self::Openai } else { Self::String }
    }
}

#[derive(Default)]
struct TemplateStatements<'t> {
    assignments: Vec<SetStatement<'t>>,
    loops: Vec<ForLoop<'t>>,
    macros: Vec<MacroDefinition<'t>>,
    calls: Vec<(&'t str, Vec<CallArgument<'t>>)>,
}

/// Template statement `{% set name = value %}`; the target is `name.attribute` for a namespace.
struct SetStatement<'t> {
    target: String,
    value: Option<AttributePath<'t>>,
    namespace: Vec<CallArgument<'t>>,
}

/// Template statement `{% for item in iter %}`.
struct ForLoop<'t> {
    item: Option<&'t str>,
    iter: Option<AttributePath<'t>>,
    within: Vec<usize>,
}

struct MacroDefinition<'t> {
    name: &'t str,
    parameters: Vec<&'t str>,
}

struct CallArgument<'t> {
    name: Option<&'t str>,
    value: Option<AttributePath<'t>>,
}

struct AttributePath<'t> {
    path: Vec<PathSegment<'t>>,
    /// Whether the template expression is only a path of attributes and keys, without a filter,
    /// test or slice after it.
    whole: bool,
    bare: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum PathSegment<'t> {
    Attribute(&'t str),
    Key(&'t str),
}

impl<'t> AttributePath<'t> {
    /// Parses a template expression as a path of attributes; `None` if it is not a path.
    fn parse(tokens: &'t [JinjaToken<'t>]) -> Option<Self> {
        let (first, rest) = tokens.split_first()?;
        let (mut access, mut rest) = if first.is_operator("(") {
            let end = closing_bracket(tokens)?;
            (Self::parse(&tokens[1..end])?, &tokens[end + 1..])
        } else if first.kind == JinjaTokenKind::Name && first.text != "not" {
            (Self { path: vec![PathSegment::Attribute(first.text)], whole: true, bare: true }, rest)
        } else {
            return None;
        };
        while !rest.is_empty() {
            access.bare = false;
            rest = match rest {
                [dot, name, rest @ ..] if dot.is_operator(".") && access.whole => {
                    access.path.push(PathSegment::Attribute(name.text));
                    rest
                }
                [open, ..] if open.is_operator("[") => {
                    let end = closing_bracket(rest)?;
                    match &rest[1..end] {
                        [key] if key.kind == JinjaTokenKind::Str && access.whole => {
                            access.path.push(PathSegment::Key(key.text.trim_matches(['"', '\''])));
                        }
                        inner if has_top_level_colon(inner) => access.whole = false,
                        _ => return None,
                    }
                    &rest[end + 1..]
                }
                [pipe, _, rest @ ..] if pipe.is_operator("|") => {
                    access.whole = false;
                    after_arguments(rest)?
                }
                [is, name, rest @ ..]
                    if is.is_identifier_named("is") && !name.is_identifier_named("not") =>
                {
                    access.whole = false;
                    after_arguments(rest)?
                }
                _ => return None,
            };
        }
        Some(access)
    }

    /// Returns whether the template path is `name` (dots allowed); with a key, whether it is
    /// `name.key` or `name['key']`.
    fn is_path(&self, name: &str, key: Option<&str>) -> bool {
        let mut path = self.path.as_slice();
        if let Some(key) = key {
            let Some((last, before)) = path.split_last() else {
                return false;
            };
            if !matches!(last, PathSegment::Attribute(text) | PathSegment::Key(text) if *text == key)
            {
                return false;
            }
            path = before;
        }
        let mut names = name.split('.');
        path.iter()
            .all(|step| names.next().is_some_and(|name| *step == PathSegment::Attribute(name)))
            && names.next().is_none()
    }
}

impl<'t> TemplateStatements<'t> {
    fn parse(tags: &'t [JinjaTag<'t>]) -> Self {
        let mut template = Self::default();
        let mut within: Vec<usize> = Vec::new();
        for tag in tags {
            let mut tokens = tag.tokens.as_slice();
            if tag.is_statement_tag() {
                match tokens {
                    [word, rest @ ..] if word.is_identifier_named("set") => {
                        template.add_assignment(rest)
                    }
                    [word, rest @ ..] if word.is_identifier_named("for") => {
                        template.add_loop(rest, &within)
                    }
                    [word, name, rest @ ..] if word.is_identifier_named("macro") => {
                        within.push(template.macros.len());
                        let parameters = parse_call_arguments(rest)
                            .iter()
                            .filter_map(|argument| {
                                argument.name.or_else(|| Some(argument.value.as_ref()?.path_name()))
                            })
                            .collect();
                        template.macros.push(MacroDefinition { name: name.text, parameters });
                        // A macro definition is not a call.
                        tokens = &[];
                    }
                    [word, ..] if word.is_identifier_named("endmacro") => {
                        within.pop();
                    }
                    _ => {}
                }
            }
            template.add_calls(tokens);
        }
        template
    }

    fn add_assignment(&mut self, tokens: &'t [JinjaToken<'t>]) {
        let Some(equals) = tokens.iter().position(|token| token.is_operator("=")) else {
            return;
        };
        let (target, value) = (&tokens[..equals], &tokens[equals + 1..]);
        let target = match target {
            [name] => name.text.to_owned(),
            [.., name]
                if name.kind == JinjaTokenKind::Name
                    && !target.iter().any(|t| t.is_operator(",")) =>
            {
                target.iter().map(|token| token.text).collect()
            }
            _ => return,
        };
        let namespace = match value {
            [name, rest @ ..] if name.is_identifier_named("namespace") => {
                parse_call_arguments(rest)
            }
            _ => Vec::new(),
        };
        self.assignments.push(SetStatement {
            target,
            value: AttributePath::parse(value),
            namespace,
        });
    }

    fn add_loop(&mut self, tokens: &'t [JinjaToken<'t>], within: &[usize]) {
        let Some((targets, iter)) = loop_targets_and_iterable(tokens) else {
            return;
        };
        let item = match targets {
            [name] => Some(name.text),
            _ => None,
        };
        let iter = AttributePath::parse(iter);
        self.loops.push(ForLoop { item, iter, within: within.to_vec() });
    }

    fn add_calls(&mut self, tokens: &'t [JinjaToken<'t>]) {
        for (index, pair) in tokens.windows(2).enumerate() {
            let [name, open] = pair else { continue };
            let method = index > 0 && [".", "|"].iter().any(|op| tokens[index - 1].is_operator(op));
            if name.kind == JinjaTokenKind::Name && open.is_operator("(") && !method {
                self.calls.push((name.text, parse_call_arguments(&tokens[index + 1..])));
            }
        }
    }

    /// Returns the template variables, dots included, that hold `messages` or a part of it.
    fn variables_holding_messages(&self) -> Vec<String> {
        let mut holders = vec!["messages".to_owned()];
        let mut next = 0;
        while let Some(holder) = holders.get(next).cloned() {
            next += 1;
            let mut found = Vec::new();
            for assignment in &self.assignments {
                let held = |access: &Option<AttributePath<'_>>| {
                    access.as_ref().is_some_and(|access| access.is_path(&holder, None))
                };
                if held(&assignment.value) {
                    found.push(assignment.target.clone());
                }
                for argument in &assignment.namespace {
                    if let (Some(name), true) = (argument.name, held(&argument.value)) {
                        found.push(format!("{}.{name}", assignment.target));
                    }
                }
            }
            for name in found {
                // The limit is larger than in any real template; each name costs a pass.
                if holders.len() < MAX_MESSAGE_VARIABLES && !holders.contains(&name) {
                    holders.push(name);
                }
            }
        }
        holders
    }

    /// Returns whether a loop of the template iterates over a message's content.
    ///
    /// `None` where vLLM gives up: the deciding loop has several targets.
    fn iterates_content(&self) -> Option<bool> {
        let holders = self.variables_holding_messages();
        let mut messages = Vec::new();
        for each in &self.loops {
            let over =
                |holder: &String| each.iter.as_ref().is_some_and(|i| i.is_path(holder, None));
            if holders.iter().any(over) {
                messages.push(each.item?);
            }
        }
        let content = |access: &Option<AttributePath<'_>>| {
            let access = access.as_ref();
            access.is_some_and(|a| messages.iter().any(|name| a.is_path(name, Some("content"))))
        };
        let bound: Vec<Vec<&str>> =
            self.macros.iter().map(|m| self.parameters_bound_to_content(m, &content)).collect();
        for each in &self.loops {
            let name =
                each.iter.as_ref().filter(|access| access.bare).map(AttributePath::path_name);
            let by_macro = |name| each.within.iter().any(|&m| bound[m].contains(&name));
            if content(&each.iter)
                || name.is_some_and(by_macro)
                || (each.within.is_empty() && name == Some("content"))
            {
                return each.item.map(|_| true);
            }
        }
        Some(false)
    }

    /// Returns those parameters of a template macro to which some call passes a message's content.
    fn parameters_bound_to_content(
        &self,
        of: &MacroDefinition<'t>,
        content: &dyn Fn(&Option<AttributePath<'_>>) -> bool,
    ) -> Vec<&'t str> {
        let mut bound = Vec::new();
        for (_, arguments) in self.calls.iter().filter(|(name, _)| *name == of.name) {
            for (index, argument) in arguments.iter().enumerate() {
                let parameter = match argument.name {
                    Some(name) => of.parameters.iter().find(|parameter| **parameter == name),
                    None => of.parameters.get(index),
                };
                if let (Some(parameter), true) = (parameter, content(&argument.value)) {
                    bound.push(*parameter);
                }
            }
        }
        bound
    }
}

impl<'t> AttributePath<'t> {
    fn path_name(&self) -> &'t str {
        match self.path.first() {
            Some(PathSegment::Attribute(name) | PathSegment::Key(name)) => name,
            None => "",
        }
    }
}

const MAX_MESSAGE_VARIABLES: usize = 64;

/// Parses the arguments of a call in a template; `tokens` starts with the opening parenthesis.
fn parse_call_arguments<'t>(tokens: &'t [JinjaToken<'t>]) -> Vec<CallArgument<'t>> {
    let Some(end) = closing_bracket(tokens) else {
        return Vec::new();
    };
    let mut depth = 0usize;
    tokens[1..end]
        .split(|token| {
            depth = bracket_depth_after(depth, token);
            depth == 0 && token.is_operator(",")
        })
        .filter_map(parse_call_argument)
        .collect()
}

fn parse_call_argument<'t>(tokens: &'t [JinjaToken<'t>]) -> Option<CallArgument<'t>> {
    Some(match tokens {
        [] => return None,
        [name, equals, value @ ..] if equals.is_operator("=") => {
            CallArgument { name: Some(name.text), value: AttributePath::parse(value) }
        }
        value => CallArgument { name: None, value: AttributePath::parse(value) },
    })
}

/// Returns the template tokens that follow the arguments of a filter or test; all tokens if it has
/// no arguments.
fn after_arguments<'t>(tokens: &'t [JinjaToken<'t>]) -> Option<&'t [JinjaToken<'t>]> {
    match tokens {
        [open, ..] if open.is_operator("(") => Some(&tokens[closing_bracket(tokens)? + 1..]),
        rest => Some(rest),
    }
}

fn has_top_level_colon(inner: &[JinjaToken<'_>]) -> bool {
    let mut depth = 0usize;
    inner.iter().any(|token| {
        depth = bracket_depth_after(depth, token);
        depth == 0 && token.is_operator(":")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(template: &str) -> bool {
        ChatTemplateContentFormat::detect_content_format(template)
            == ChatTemplateContentFormat::Openai
    }

    #[test]
    fn a_loop_over_content_selects_content_parts() {
        for template in [
            "{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
            "{% for m in messages[1:] %}{% for c in m.content | list %}{% endfor %}{% endfor %}",
            "{% set rest = messages[1:] %}{% for m in rest %}{% for c in m.content if c %}",
            "{% set ns = namespace(rest=messages, n=1) %}{% for m in ns.rest %}\
             {% for c in m.content %}",
            "{% set ns.all = messages %}{% for m in ns.all %}{% for c in m[\"content\"] %}",
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}",
            "{% macro show(parts, n) %}{% for p in parts %}{% endfor %}{% endmacro %}\
             {% for m in messages %}{{ show(m.content, 1) }}{% endfor %}",
            "{% macro show(n, parts=none) %}{% for p in parts %}{% endfor %}{% endmacro %}\
             {% for m in messages %}{{ 'x' + show(1, parts=m['content']) }}{% endfor %}",
            "{% for m in (messages | reverse)[:2] %}{% for c in (m.content) %}",
        ] {
            assert!(detect(template), "{template}");
        }
    }

    #[test]
    fn templates_without_content_loop_get_text() {
        for template in [
            "",
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for c in m.content.parts %}{% endfor %}{% endfor %}",
            "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}\
             {% for m in messages %}{{ show(m.tools) }}{% endfor %}",
            "{% for k, m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for k, c in m.content %}{% endfor %}{% endfor %}",
            "{% for m in messages + x %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% for c in m.content",
        ] {
            assert!(!detect(template), "{template}");
        }
    }
}
