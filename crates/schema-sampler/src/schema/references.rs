//! Resolves JSON schema references: `$id`, anchors, JSON pointers.

use std::collections::HashMap;

use jsonschema::Draft;
use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Returns whether a JSON Schema draft ignores keywords next to `$ref` (before 2019-09).
pub(super) fn ignores_ref_siblings(draft: Draft) -> bool {
    matches!(draft, Draft::Draft4 | Draft::Draft6 | Draft::Draft7)
}

#[derive(Debug)]
pub(super) struct ReferenceIndex {
    /// Base URI and JSON pointer of each part of the schema document with an `$id`; the document
    /// itself is first.
    resources: Vec<(String, String)>,
    /// Maps each anchor of the schema document to its JSON pointer. The key is the index in
    /// `resources` of the part with the anchor, and the anchor's name.
    anchors: HashMap<(usize, String), String>,
}

impl ReferenceIndex {
    /// Indexes a schema document by `$id` and anchors; in old drafts `$ref` hides its sibling
    /// keywords.
    pub(super) fn new(root_schema: &Value, draft: Draft) -> Self {
        let id_key = if draft == Draft::Draft4 { "id" } else { "$id" };
        let mut index =
            Self { resources: vec![(String::new(), String::new())], anchors: HashMap::new() };
        index.index_ids(root_schema, String::new(), 0, (id_key, ignores_ref_siblings(draft)));
        index
    }

    fn index_ids(
        &mut self,
        value: &Value,
        path: String,
        mut resource: usize,
        dialect: (&str, bool),
    ) {
        match value {
            Value::Object(map) => {
                let (id_key, is_old) = dialect;
                let hidden = is_old && map.get("$ref").is_some_and(Value::is_string);
                let id = map.get(id_key).and_then(Value::as_str);
                if let Some(id) = id.filter(|_| !hidden) {
                    resource = self.add_id(id, &path, resource);
                }
                for key in ["$anchor", "$dynamicAnchor"] {
                    if let Some(name) = map.get(key).and_then(Value::as_str) {
                        self.anchors.insert((resource, name.to_owned()), path.clone());
                    }
                }
                for (key, value) in map {
                    if matches!(key.as_str(), "enum" | "const" | "default" | "examples")
                        || !(value.is_object() || value.is_array())
                    {
                        continue;
                    }
                    let escaped = key.replace('~', "~0").replace('/', "~1");
                    self.index_ids(value, format!("{path}/{escaped}"), resource, dialect);
                }
            }
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    if item.is_object() || item.is_array() {
                        self.index_ids(item, format!("{path}/{i}"), resource, dialect);
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds the part of a schema document with an `$id` to the index; an `$id` that is only a
    /// fragment is an anchor (drafts 4 to 7).
    fn add_id(&mut self, id: &str, path: &str, resource: usize) -> usize {
        if let Some(anchor) = id.strip_prefix('#') {
            if !anchor.is_empty() {
                self.anchors.insert((resource, anchor.to_owned()), path.to_owned());
            }
            return resource;
        }
        let base = join_uri(&self.resources[resource].0, id);
        let base = base.split('#').next().unwrap_or("").to_owned();
        if path.is_empty() {
            self.resources[0].0 = base;
            return 0;
        }
        self.resources.push((base, path.to_owned()));
        self.resources.len() - 1
    }

    /// Returns the index of the document's innermost part with an `$id` that contains `path`.
    fn resource_containing(&self, path: &str) -> usize {
        (0..self.resources.len())
            .filter(|&i| {
                let own = &self.resources[i].1;
                path.strip_prefix(own.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
            .max_by_key(|&i| self.resources[i].1.len())
            .unwrap_or(0)
    }

    /// Returns the JSON pointer to the target of the `$ref` value `reference` in the schema at
    /// `path`.
    pub(super) fn resolve_reference(&self, reference: &str, path: &str) -> Option<String> {
        let from = self.resource_containing(path);
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = if address.is_empty() {
            from
        } else {
            let wanted = join_uri(&self.resources[from].0, address);
            self.resources.iter().position(|(base, _)| !base.is_empty() && *base == wanted)?
        };
        let fragment = percent_decode_str(fragment).decode_utf8_lossy().into_owned();
        let base = &self.resources[resource].1;
        if fragment.is_empty() {
            Some(base.clone())
        } else if fragment.starts_with('/') {
            Some(format!("{base}{fragment}"))
        } else {
            self.anchors.get(&(resource, fragment)).cloned()
        }
    }
}

/// Resolves the URI `reference` against `base` (RFC 3986 section 5.2, without queries).
fn join_uri(base: &str, reference: &str) -> String {
    let scheme = |text: &str| {
        text.split_once(':')
            .is_some_and(|(scheme, _)| !scheme.is_empty() && !scheme.contains(['/', '#', '?']))
    };
    if scheme(reference) || base.is_empty() {
        return reference.to_owned();
    }
    let start = base.find("://").map_or(0, |at| at + 3);
    let root = base[start..].find('/').map_or(base.len(), |at| start + at);
    let path = if reference.starts_with('/') {
        reference.to_owned()
    } else {
        let folder = base[root..].rfind('/').map_or("/", |at| &base[root..=root + at]);
        format!("{folder}{reference}")
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    format!("{}/{}", &base[..root], parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_resolve_to_json_pointers() {
        let schema = json!({
            "$id": "https://example.com/root.json",
            "$defs": {
                "a": {"$anchor": "top"},
                "b": {"$id": "nested/b.json", "$defs": {"c": {"$anchor": "deep"}}},
                "odd/name": {}
            }
        });
        let index = ReferenceIndex::new(&schema, Draft::Draft202012);
        for (reference, path, pointer) in [
            ("#", "/x", Some("")),
            ("#/$defs/a", "/x", Some("/$defs/a")),
            ("#top", "/x", Some("/$defs/a")),
            ("root.json#top", "/x", Some("/$defs/a")),
            ("#deep", "/$defs/b/items", Some("/$defs/b/$defs/c")),
            ("#deep", "/x", None),
            ("nested/b.json#/$defs/c", "/x", Some("/$defs/b/$defs/c")),
            ("../root.json", "/$defs/b", Some("")),
            ("#/$defs/odd~1name", "/x", Some("/$defs/odd~1name")),
            ("#/$defs/odd%7E1name", "/x", Some("/$defs/odd~1name")),
            ("https://example.com/other.json", "/x", None),
        ] {
            assert_eq!(
                index.resolve_reference(reference, path).as_deref(),
                pointer,
                "{reference} at {path}"
            );
        }
    }
}
