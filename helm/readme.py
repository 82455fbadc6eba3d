#!/usr/bin/env python3
"""Writes helm/vllm-sim/README.md from values.yaml: readme.py [--check]

Each key gets its default and the comment above it. `--check` only tells whether the page is up to date.
Needs nothing but Python: values.yaml is read line by line, for the shapes that it has.
"""

import pathlib
import re
import sys

CHART = pathlib.Path(__file__).resolve().parent / "vllm-sim"
HEAD = """# vllm-sim

Deploys [vllm-sim](https://github.com/vllm-sim/vllm-sim) on Kubernetes: vLLM servers without GPU and model.

```sh
helm install sim oci://ghcr.io/vllm-sim/charts/vllm-sim --set config.model=demo
helm test sim
```

Unknown keys are refused. The values of llm-d-inference-sim's chart keep their names and meaning. docs/kubernetes.md
of the repository shows how to use the chart; docs/flags.md lists the keys of `config`.

`helm/readme.py` writes this page from values.yaml.
"""
SECTION = re.compile(r"^# -{4} (.*?) -+$")
KEY = re.compile(r"^( *)([\w.-]+):(?: (.*))?$")


def rows(lines):
    """Sections, and the path, default and comment of each key, in their order."""
    parents, comment, inside = [], [], None
    for at, line in enumerate(lines):
        if found := SECTION.match(line):
            yield found[1], None, None
            comment = []
        elif line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif not line.strip():
            comment = []
        elif found := KEY.match(line):
            indent, key, value = len(found[1]), found[2], found[3]
            if inside is not None and indent > inside:
                continue
            inside = None
            parents = [parent for parent in parents if parent[0] < indent]
            path = ".".join([*(name for _, name in parents), key])
            following = lines[at + 1].strip() if value is None else ""
            if following.startswith("- "):
                value, inside = "a list", indent
            if value is not None or comment:
                yield path, value or "", " ".join(comment)
            parents.append((indent, key))
            comment = []
        elif inside is None:
            sys.exit(f"values.yaml:{at + 1}: not a shape that helm/readme.py reads: {line}")


def cell(words):
    return words.replace("|", "\\|")


def page(lines):
    body, table = [HEAD], False
    for path, default, comment in rows(lines):
        if default is None:
            body.append(f"\n## {path}\n")
            table = False
            continue
        if not table:
            if len(body) == 1:
                body.append("\n## Image and names\n")
            body.append("\n| Key | Default | Meaning |\n|---|---|---|\n")
            table = True
        shown = default if default in ("", "a list") else f"`{cell(default)}`"
        body.append(f"| `{path}` | {shown} | {cell(comment)} |\n")
    return "".join(body)


def main():
    path = CHART / "README.md"
    wanted = page((CHART / "values.yaml").read_text().splitlines())
    if sys.argv[1:] == ["--check"]:
        if not path.exists() or path.read_text() != wanted:
            sys.exit(f"{path} is old: run helm/readme.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        path.write_text(wanted)


if __name__ == "__main__":
    main()
