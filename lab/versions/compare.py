"""Compares the facts of two vLLM releases, topic by topic."""
import json
import re

TOPICS = ("flags", "environment", "openapi", "metrics", "errors", "settings", "engine core", "kv events")
# Texts that differ without meaning: suffixes that FastAPI adds when a schema is both read and written.
SPLIT = re.compile(r"-(Input|Output)\b")


def without_texts(schema):
    """Returns a JSON schema without titles and descriptions."""
    if isinstance(schema, dict):
        kept = {name: without_texts(value) for name, value in schema.items()
                if name not in ("title", "description", "summary") or isinstance(value, dict)}
        return kept
    return [without_texts(value) for value in schema] if isinstance(schema, list) else schema


def flat_openapi(document):
    """Returns an OpenAPI document as one text per operation and per field of a schema."""
    flat = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            parameters = {one["name"]: without_texts(one.get("schema")) for one in operation.get("parameters", [])}
            body = without_texts(operation.get("requestBody", {}).get("content", {}))
            answers = {status: without_texts(answer.get("content", {})) for status, answer in operation.get("responses", {}).items()}
            text = json.dumps({"parameters": parameters, "body": body, "responses": answers}, sort_keys=True)
            flat[f"{method.upper()} {path}"] = SPLIT.sub("", text)
    for name, schema in document["components"]["schemas"].items():
        name = SPLIT.sub("", name)
        fields = schema.get("properties", {})
        flat.setdefault(name, "")
        for field, kind in fields.items():
            mark = "required " if field in schema.get("required", []) else ""
            flat[f"{name}.{field}"] = mark + SPLIT.sub("", json.dumps(without_texts(kind), sort_keys=True))
        rest = {key: value for key, value in without_texts(schema).items() if key not in ("properties", "required")}
        flat[name] = SPLIT.sub("", json.dumps(rest, sort_keys=True))
    return flat


def flat_topic(topic, facts):
    """Returns a topic as texts that can be compared; what only moved within vLLM is left out."""
    if topic == "openapi":
        return flat_openapi(facts)
    if topic == "errors":
        return dict.fromkeys(facts, "")
    if topic in ("settings", "engine core"):
        # Positions matter only in arrays; a new field would shift all that follow it.
        return {name: re.sub(r"^#\d+ ", "", text) for name, text in facts.items()}
    if topic in ("flags", "metrics"):
        return {name: {key: value for key, value in fact.items() if key != "source"} for name, fact in facts.items()}
    return facts


def difference(old, new):
    """Returns what differs between two values, short."""
    if isinstance(old, dict):
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return "; ".join(f"{key} {difference(old.get(key), new.get(key))}" for key in keys)
    if isinstance(old, list) and isinstance(new, list):
        gone, came = [x for x in old if x not in new], [x for x in new if x not in old]
        return " ".join([*(f"-{x}" for x in gone), *(f"+{x}" for x in came)])
    old, new = str(old), str(new)
    if len(old) + len(new) > 160:
        parts = re.compile(r", |\n")
        return difference(parts.split(old), parts.split(new))
    return f"{old} -> {new}"


def compare(old, new, topic):
    """Returns the names that came, those that went, and those that changed, each with a text."""
    old, new = flat_topic(topic, old[topic]), flat_topic(topic, new[topic])
    came = {name: new[name] for name in sorted(new) if name not in old}
    went = {name: old[name] for name in sorted(old) if name not in new}
    changed = {name: difference(old[name], new[name]) for name in sorted(old) if name in new and old[name] != new[name]}
    return came, went, changed


def report(old, new, names, topics=TOPICS):
    """Yields the lines of the report of two releases, `names` their numbers."""
    yield f"# vLLM {names[0]} -> {names[1]}"
    for topic in topics:
        came, went, changed = compare(old, new, topic)
        yield f"\n## {topic}: {len(came)} came, {len(went)} went, {len(changed)} changed"
        for name, fact in came.items():
            yield f"+ {name}: {short(fact)}" if fact else f"+ {name}"
        for name in went:
            yield f"- {name}"
        for name, text in changed.items():
            yield f"~ {name}: {short(text)}"


def short(fact):
    text = json.dumps(fact) if isinstance(fact, dict) else str(fact)
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:297] + "..."
