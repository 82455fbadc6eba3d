#!/usr/bin/env python3
"""Holds the shape of the product's Rust against a budget that only goes down.

    tests/python/shape.py [--list] [FOLDER...]

Counts functions of more than 80 lines (from `fn` to the closing brace), boolean parameters, calls of our
functions with a bare true or false, and structs of more than 25 fields (those of `wire`, rows of reports and generated files may
have as many as they need). Tests are left out. `--list` shows where they are, in the folders that are named.
"""
import argparse, pathlib, re, subprocess, sys
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUDGET = {"long functions": 0, "boolean parameters": 45, "bare booleans": 5, "large structs": 0}
LONGEST, MOST_FIELDS = 80, 25
# Records of a report: a field for each column.
ROWS = {"RequestRecord", "ReplayRequest", "ReportCollector"}
NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""", re.S)
FUNCTION = re.compile(r"\bfn\s+(\w+)")
CALL = re.compile(r"(?<!fn )(?<!Atomic)(?<!AtomicBool::)\b([A-Za-z_]\w*)(?:::<[^()]*>)?\(")


def blank(match):
    """A comment or literal as blanks, so that places stay."""
    return re.sub(r"[^\n]", " ", match[0])


def closing(code, at):
    """Where the bracket that opens at a place closes."""
    depth = 0
    for at in range(at, len(code)):
        if code[at] in "([{":
            depth += 1
        elif code[at] in ")]}":
            depth -= 1
            if not depth:
                return at
    return len(code) - 1


def parts(code):
    """What commas part, outside of brackets."""
    depth, start, found = 0, 0, []
    for at, char in enumerate(code):
        depth += (char in "([{<") - (char in ")]}" or char == ">" and code[at - 1] not in "-=")
        if char == "," and depth == 0:
            found.append(code[start:at])
            start = at + 1
    return [part.strip() for part in [*found, code[start:]] if part.strip()]


def product():
    """Rust files that ship, without tests and without what is generated."""
    listed = subprocess.run(["git", "ls-files", ":(glob)src/**", ":(glob)crates/*/src/**"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if not name.endswith(".rs") or not path.exists() or re.search(r"(^|/)tests?(\.rs|/)|_tests\.rs$", name):
            continue
        text = path.read_text()
        if "@generated" not in "".join(text.splitlines(True)[:5]):
            code = NO_CODE.sub(blank, text)
            while found := re.search(r"#\[cfg\((?:all\()?test[^\]]*\]\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{", code):
                end = closing(code, found.end() - 1)
                code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end + 1]) + code[end + 1 :]
            yield name, code


def switched(codes):
    """Names of our functions that take a boolean."""
    found = ((one[1], code[code.find("(", one.end()) :]) for code in codes for one in FUNCTION.finditer(code))
    return {name for name, rest in found if re.search(r":\s*bool\s*[,)]", rest[: closing(rest, 0) + 1])}


def findings(name, code, ours):
    """Kind, line and name of what is counted in a file; `ours` are the functions that take a boolean."""
    line = lambda at: code.count("\n", 0, at) + 1
    for found in FUNCTION.finditer(code):
        opening = code.find("(", found.end())
        end = closing(code, opening)
        for one in parts(code[opening + 1 : end]):
            if re.search(r":\s*bool$", one):
                yield "boolean parameters", line(found.start()), f"{found[1]}({one})"
        body = re.compile(r"[;{]").search(code, end)
        if body and body[0] == "{":
            lines = line(closing(code, body.start())) - line(found.start()) + 1
            if lines > LONGEST:
                yield "long functions", line(found.start()), f"{found[1]}: {lines} lines"
    for found in CALL.finditer(code):
        if found[1] not in ours:
            continue
        given = parts(code[found.end() : closing(code, found.end() - 1)])
        if any(one in ("true", "false") for one in given):
            yield "bare booleans", line(found.start()), f"{found[1]}({', '.join(given)})"[:90].replace("\n", " ")
    for found in re.finditer(r"\bstruct (\w+)[^;{(]*\{", code):
        fields = [one for one in parts(code[found.end() : closing(code, found.end() - 1)]) if re.search(r"\w+\s*:", one)]
        if len(fields) > MOST_FIELDS and found[1] not in ROWS and not name.startswith("crates/wire/"):
            yield "large structs", line(found.start()), f"{found[1]}: {len(fields)} fields"


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--list", action="store_true", help="show each")
    parser.add_argument("folders", nargs="*", default=[""], help="count in these alone, without the budget")
    args = parser.parse_args()
    seen = Counter()
    codes = dict(product())
    ours = switched(codes.values())
    for name, code in codes.items():
        if not name.startswith(tuple(args.folders)):
            continue
        for kind, line, what in findings(name, code, ours):
            seen[kind] += 1
            if args.list:
                print(f"{kind[:-1]} {name}:{line} {what}")
    over = False
    for kind, most in BUDGET.items():
        print(f"{kind}: {seen[kind]}" + ("" if args.folders != [""] else f" of {most}"))
        if args.folders == [""] and seen[kind] != most:
            over |= seen[kind] > most
            print("  " + ("make it less: --list shows where" if seen[kind] > most else f"write {seen[kind]} into BUDGET"))
    return over


if __name__ == "__main__":
    sys.exit(main())
