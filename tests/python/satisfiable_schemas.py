r"""Tricky schemas that something satisfies: none may be refused, every call must satisfy its own.

    pip install jsonschema
    vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000 \
        --enable-auto-tool-choice --tool-call-parser hermes
    python3 tests/python/satisfiable_schemas.py http://127.0.0.1:8000

Each line is a schema and a value that proves it satisfiable (checked first).
"""

import http.client
import json
import sys
import urllib.parse

from jsonschema import Draft202012Validator as Validator

URL = urllib.parse.urlparse((sys.argv + ["http://127.0.0.1:8000"])[1])
STR, INT = {"type": "string"}, {"type": "integer"}
NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": INT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
        }
    }
}
CASES = [
    ({}, 1),
    (True, None),
    ({"not": {}, "type": "string"} and {"not": INT}, "a"),
    ({"not": {"type": ["string", "number", "object", "array", "boolean"]}}, None),
    ({"type": ["integer", "null"]}, None),
    ({"type": "number", "multipleOf": 0.01, "minimum": 0.005, "maximum": 0.015}, 0.01),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9}, 5e-10),
    ({"type": "number", "exclusiveMinimum": 1, "maximum": 1.0000001}, 1.0000001),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, 4),
    ({"type": "integer", "multipleOf": 7, "minimum": 15, "maximum": 21}, 21),
    ({"type": "integer", "multipleOf": 0.5, "minimum": 2, "maximum": 2}, 2),
    ({"type": "integer", "minimum": 1.5, "maximum": 2.5}, 2),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer", "minimum": 1, "maximum": 12}, 12),
    ({"type": "integer", "minimum": -(2**53), "maximum": -(2**53)}, -(2**53)),
    ({"type": "integer", "minimum": 10**18}, 10**18),
    ({"type": "number", "enum": [1.5, 2]}, 2),
    ({"enum": [1, "a", None, [1], {"b": 2}], "type": ["array", "object"]}, [1]),
    ({"const": {"a": [1, 2, {"b": None}]}}, {"a": [1, 2, {"b": None}]}),
    ({"const": 1.0, "type": "integer"}, 1),
    ({"enum": [1, 2, 3], "not": {"enum": [1, 2]}}, 3),
    ({"enum": ["a", "bb", "ccc"], "minLength": 2, "maxLength": 2}, "bb"),
    ({"enum": ["x1", "y2"], "pattern": "^y"}, "y2"),
    ({"type": "string", "minLength": 3, "maxLength": 3}, "abc"),
    ({"type": "string", "maxLength": 0}, ""),
    ({"type": "string", "pattern": "^$"}, ""),
    ({"type": "string", "pattern": "b"}, "b"),
    ({"type": "string", "pattern": "^a*$", "minLength": 5, "maxLength": 6}, "aaaaa"),
    ({"type": "string", "pattern": "^(ab)+$", "minLength": 5, "maxLength": 7}, "ababab"),
    ({"type": "string", "pattern": "^(a|b)*c$", "minLength": 2}, "ac"),
    ({"type": "string", "pattern": "^\\d{3}-\\d{4}$", "maxLength": 8}, "123-4567"),
    ({"type": "string", "pattern": "^[^a-z]+$", "minLength": 2}, "AA"),
    ({"type": "string", "pattern": "^\\p{L}+$"}, "é") if False else ({"type": "string", "pattern": "^[é-ü]+$"}, "é"),
    ({"type": "string", "pattern": "^(?!foo)[a-z]{3}$"}, "bar"),
    ({"type": "string", "pattern": "^(?=.*\\d)[a-z0-9]{4}$"}, "abc1"),
    ({"type": "string", "pattern": "\\bcat\\b"}, "cat"),
    ({"type": "string", "pattern": "^\\S+@\\S+\\.com$"}, "a@b.com"),
    ({"type": "string", "pattern": "^[\\w.-]+$", "minLength": 10, "maxLength": 10}, "aaaaaaaaaa"),
    ({"type": "string", "pattern": "^\\u0041\\x42$"}, "AB"),
    ({"allOf": [{"pattern": "^a"}, {"pattern": "z$"}], "type": "string"}, "az"),
    ({"allOf": [{"pattern": "^[a-m]+$"}, {"pattern": "^[h-z]+$"}], "type": "string"}, "h"),
    ({"type": "string", "not": {"pattern": "^a"}}, "b"),
    ({"type": "string", "not": {"const": ""}}, "x"),
    ({"type": "string", "not": {"maxLength": 4}}, "aaaaa"),
    ({"type": "string", "format": "date"}, "2024-01-01"),
    ({"type": "string", "format": "uuid", "maxLength": 36}, "00000000-0000-4000-8000-000000000000"),
    ({"type": "string", "format": "ipv4", "pattern": "^10\\."}, "10.0.0.1"),
    ({"type": "string", "format": "unheard-of"}, "x"),
    ({"type": "array"}, []),
    ({"type": "array", "maxItems": 0, "minItems": 0}, []),
    ({"type": "array", "items": False}, []),
    ({"type": "array", "items": {"not": {}}, "maxItems": 3}, []),
    ({"type": "array", "prefixItems": [INT, STR], "items": False, "minItems": 2}, [1, "a"]),
    ({"type": "array", "prefixItems": [INT, False]}, [1]),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3}, [1, 2, 2]),
    ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 2}, [True, False]),
    ({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3}, [1, 2, 3]),
    ({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 5}, "uniqueItems": True, "minItems": 5}, [1, 2, 3, 4, 5]),
    ({"type": "array", "contains": {"const": 5}, "items": INT}, [5]),
    ({"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxContains": 2, "minItems": 3}, ["a", "b", 1]),
    ({"type": "array", "contains": STR, "minContains": 0}, []),
    ({"type": "array", "contains": STR, "maxContains": 1, "minItems": 2}, ["a", 1]),
    ({"type": "array", "not": {"minItems": 1}}, []),
    ({"type": "array", "items": {"type": "array", "items": INT, "minItems": 1}, "minItems": 1}, [[1]]),
    ({"type": "array", "prefixItems": [STR], "unevaluatedItems": False, "minItems": 1}, ["a"]),
    ({"allOf": [{"prefixItems": [INT]}], "type": "array", "unevaluatedItems": {"const": "x"}, "minItems": 2}, [1, "x"]),
    ({"type": "object"}, {}),
    ({"type": "object", "additionalProperties": False}, {}),
    ({"type": "object", "maxProperties": 0}, {}),
    ({"type": "object", "required": ["a"]}, {"a": 1}),
    ({"type": "object", "required": ["a"], "additionalProperties": INT}, {"a": 1}),
    ({"type": "object", "required": ["ab"], "patternProperties": {"^a": INT}, "additionalProperties": False}, {"ab": 1}),
    ({"type": "object", "minProperties": 3, "additionalProperties": {"type": "null"}}, {"a": None, "b": None, "c": None}),
    ({"type": "object", "minProperties": 2, "propertyNames": {"enum": ["a", "b"]}}, {"a": 1, "b": 2}),
    ({"type": "object", "minProperties": 2, "propertyNames": {"pattern": "^x[0-9]$"}}, {"x1": 1, "x2": 2}),
    ({"type": "object", "propertyNames": False}, {}),
    ({"type": "object", "patternProperties": {"^[a-z]$": INT}, "additionalProperties": False, "minProperties": 2}, {"a": 1, "b": 2}),
    ({"type": "object", "properties": {"a": False}}, {}),
    ({"type": "object", "properties": {"a": False, "b": STR}, "required": ["b"]}, {"b": ""}),
    ({"type": "object", "properties": {"a": INT}, "patternProperties": {"^a": {"minimum": 5}}, "required": ["a"]}, {"a": 5}),
    ({"type": "object", "dependentRequired": {"a": ["b"]}, "required": ["a"]}, {"a": 1, "b": 1}),
    ({"type": "object", "dependentSchemas": {"a": {"required": ["c"], "properties": {"c": INT}}}, "required": ["a"]}, {"a": 1, "c": 1}),
    ({"type": "object", "not": {"required": ["a"]}}, {}),
    ({"type": "object", "not": {"required": ["a"]}, "required": ["b"]}, {"b": 1}),
    ({"type": "object", "allOf": [{"required": ["a"], "properties": {"a": INT}}, {"required": ["b"], "properties": {"b": STR}}]}, {"a": 1, "b": ""}),
    ({"type": "object", "allOf": [{"properties": {"a": INT}}], "unevaluatedProperties": False, "required": ["a"]}, {"a": 1}),
    ({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": False}}, {"b": 1}),
    ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": INT, "b": INT}}, {"a": 1}),
    ({"type": "object", "properties": {"k": {"enum": ["x", "y"]}}, "required": ["k"], "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["p"]}, "else": {"required": ["q"]}}, {"k": "x", "p": 1}),
    ({"if": {"type": "string"}, "then": {"minLength": 3}, "else": {"const": 7}}, 7),
    ({"if": {"type": "integer"}, "then": False}, "x"),
    ({"if": True, "then": {"const": 1}}, 1),
    ({"anyOf": [False, INT]}, 1),
    ({"anyOf": [{"type": "string", "minLength": 5, "maxLength": 2}, {"const": 3}]}, 3),
    ({"anyOf": [{"minimum": 5}, {"maximum": 2}], "type": "integer"}, 5),
    ({"oneOf": [INT, {"minimum": 2}], "type": "number"}, 1),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer", "minimum": 1, "maximum": 6}, 2),
    ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "a"),
    ({"oneOf": [{"const": 1}, {"const": 1}, {"const": 2}]}, 2),
    ({"oneOf": [False, True]}, 1),
    ({"allOf": [INT, {"minimum": 3}, {"maximum": 3}]}, 3),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 4]}]}, 3),
    ({"allOf": [{"anyOf": [INT, STR]}, {"anyOf": [STR, {"type": "null"}]}]}, "a"),
    ({"allOf": [{"oneOf": [{"const": 1}, {"const": 2}]}, {"oneOf": [{"const": 2}, {"const": 3}]}]}, 2),
    ({"not": {"not": {"const": 4}}}, 4),
    ({"not": {"anyOf": [STR, {"type": "object"}, {"type": "array"}]}}, 1),
    ({"not": {"allOf": [{"type": "integer"}, {"minimum": 0}]}, "type": "integer"}, -1),
    ({"type": "integer", "not": {"multipleOf": 2}, "minimum": 2, "maximum": 4}, 3),
    ({"type": "number", "not": INT, "minimum": 0, "maximum": 1}, 0.5),
    ({"type": "object", "not": {"properties": {"a": INT}}}, {"a": "x"}),
    ({"type": "array", "not": {"items": INT}}, ["x"]),
    ({"type": "array", "not": {"uniqueItems": True}}, [1, 1]),
    ({"type": "array", "not": {"contains": STR}, "minItems": 1}, [1]),
    ({**NODE, "$ref": "#/$defs/node"}, {"v": 1, "next": None}),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer", "minimum": 2}}, "$ref": "#/$defs/a", "maximum": 2}, 2),
    ({"$defs": {"t/x": {"const": 1}, "u~y": {"const": 2}}, "anyOf": [{"$ref": "#/$defs/t~1x"}, {"$ref": "#/$defs/u~0y"}]}, 1),
    ({"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"}, []),
    ({"$defs": {"e": {"$anchor": "here", "type": "string", "maxLength": 1}}, "$ref": "#here"}, "a"),
    ({"$defs": {"e": {"type": "object", "properties": {"c": {"$ref": "#/$defs/e"}}, "additionalProperties": False}}, "$ref": "#/$defs/e"}, {}),
    ({"type": "object", "properties": {"$ref": STR}, "required": ["$ref"]}, {"$ref": "x"}),
    ({"type": "object", "properties": {"a\"b\\c\n": INT, "": STR, "ü💥": {"type": "null"}}, "required": ["a\"b\\c\n", "", "ü💥"], "additionalProperties": False}, {"a\"b\\c\n": 1, "": "", "ü💥": None}),
    ({"type": "object", "properties": {"__proto__": INT, "constructor": INT}, "required": ["__proto__"]}, {"__proto__": 1}),
    ({"minLength": 2, "minimum": 3, "minItems": 1, "minProperties": 1}, 3),
    ({"type": "string", "title": "t", "description": "d", "default": 5, "examples": [1], "deprecated": True, "$comment": "c", "x-own": {"y": 1}}, "a"),
    ({"type": "string", "contentEncoding": "base64", "contentMediaType": "application/json"}, "e30="),
    ({"type": "object", "properties": {"a": {"type": "string", "nullable": True}}, "required": ["a"]}, {"a": ""}),
    ({"type": "array", "items": {"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": INT}, "required": ["kind", "x"]}, {"type": "object", "properties": {"kind": {"const": "b"}, "y": STR}, "required": ["kind", "y"]}]}, "minItems": 2}, [{"kind": "a", "x": 1}, {"kind": "b", "y": ""}]),
]


def rooted(schema):
    """The schema as the member `v` of an object; its references still point into itself."""
    if not isinstance(schema, dict):
        return schema, {}
    schema = json.loads(json.dumps(schema))
    return schema, {"$defs": schema.pop("$defs")} if "$defs" in schema else {}


server = http.client.HTTPConnection(URL.hostname, URL.port, timeout=30)
failed = 0
for schema, witness in CASES:
    inner, outer = rooted(schema)
    parameters = {"type": "object", "properties": {"v": inner}, "required": ["v"], "additionalProperties": False, **outer}
    validator = Validator(parameters)
    assert validator.is_valid({"v": witness}), ("the witness is wrong", schema, witness)
    for seed in range(3):
        body = {
            "model": "tiny-llama",
            "messages": [{"role": "user", "content": "Call it."}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
            "tool_choice": "required",
            "max_tokens": 2000,
            "seed": seed,
        }
        server.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = json.loads(server.getresponse().read())
        if "error" in answer:
            failed += 1
            print("refused:", json.dumps(schema), answer["error"]["message"])
            break
        said = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        problem = next(validator.iter_errors(json.loads(said)), None)
        if problem:
            failed += 1
            print("wrong:", json.dumps(schema), said, problem.message)
            break
print(f"satisfiable_schemas: {len(CASES)} schemas, {failed} failed")
sys.exit(failed > 0)
