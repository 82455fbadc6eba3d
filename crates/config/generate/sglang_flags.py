"""Writes src/other_command_line/sglang/flags.txt, the flags of an SGLang release, from the sources in its wheel.

    pip download sglang==0.5.23 --no-deps && unzip -q sglang-*.whl 'sglang/*' -d sources
    python3 sglang_flags.py sources/sglang

SGLang declares a flag as an annotated field of a class in srt/arg_groups/fields, or as a call of
`add_argument` in srt/server_args.py. The sources are parsed, not imported.
"""

import ast
import re
import sys
from pathlib import Path

LIST = Path(__file__).parent.parent / "src/other_command_line/sglang/flags.txt"
HEAD = """\
# Flags of `python -m sglang.launch_server`, SGLang {version}, one per line: name, kind of value, other names.
# Source: SGLang's srt/arg_groups/fields and srt/server_args.py; generate/sglang_flags.py writes the list.
"""


def constant(node):
    """Returns the value of a literal, or None."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def kind(annotation, options):
    """Returns the kind of value of a field: switch, value or list."""
    action = ast.unparse(options["action"]) if "action" in options else ""
    if action:
        if "BooleanOptional" in action or "Deprecated" in action or "store_" in action:
            return "switch"
        return "list" if "nargs" in options else "value"
    nargs = constant(options["nargs"]) if "nargs" in options else None
    if nargs in ("+", "*"):
        return "list"
    kind = re.sub(r"^Optional\[(.*)\]$", r"\1", annotation)
    if kind == "bool":
        return "switch"
    return "list" if kind.startswith("List[") and "type_parser" not in options else "value"


def fields(tree):
    """Yields the names and kind of each flag that an annotated field declares."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.annotation, ast.Subscript):
            continue
        if ast.unparse(node.annotation.value) != "A":
            continue
        annotation, *notes = node.annotation.slice.elts
        calls = [note for note in notes if isinstance(note, ast.Call) and ast.unparse(note.func) == "Arg"]
        options = {word.arg: word.value for word in calls[0].keywords} if calls else {}
        texts = [note for note in notes if isinstance(note, (ast.Constant, ast.JoinedStr))]
        if not calls and not texts or constant(options.get("no_cli", ast.Constant(False))):
            continue
        if "action_kwargs" in options:
            extra = options["action_kwargs"]
            if isinstance(extra, ast.Dict):
                pairs = zip(extra.keys, extra.values)
                options |= {constant(key): value for key, value in pairs}
        name = constant(options["cli_name"]) if "cli_name" in options else None
        name = name or "--" + node.target.id.replace("_", "-")
        aliases = constant(options["aliases"]) if "aliases" in options else None
        yield [name, *(aliases or [])], kind(ast.unparse(annotation), options)


def calls(tree):
    """Yields the names and kind of each flag that a call of `add_argument` declares."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(".add_argument"):
            continue
        names = [constant(arg) for arg in node.args]
        names = [name for name in names if isinstance(name, str) and name.startswith("--")]
        options = {word.arg: word.value for word in node.keywords}
        if names:
            deprecated = "DeprecatedStore" in ast.unparse(options.get("action", ast.Constant("")))
            valued = deprecated and "nargs" in options and constant(options["nargs"]) is None
            yield names, "value" if valued else kind("str", options)


def main():
    root = Path(sys.argv[1])
    version = re.search(r"\d+\.\d+\.\d+", (root / "_version.py").read_text())[0]
    flags = {}
    for path in sorted((root / "srt/arg_groups/fields").glob("*.py")):
        for names, form in fields(ast.parse(path.read_text())):
            flags[names[0][2:]] = [form, *(name.lstrip("-") for name in names[1:])]
    for names, form in calls(ast.parse((root / "srt/server_args.py").read_text())):
        flags.setdefault(names[0][2:], [form, *(name.lstrip("-") for name in names[1:])])
    if len(flags) < 200:
        sys.exit(f"these are not the sources of SGLang: {len(flags)} flags")
    lines = [" ".join([name, *rest]) for name, rest in sorted(flags.items())]
    LIST.write_text(HEAD.format(version=version) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
