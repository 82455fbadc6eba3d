#!/usr/bin/env python3
"""Holds the English of comments and pages against a budget that only goes down.

    tests/python/plain_words.py [--list] [FILE...]

Documentation comments of the product's Rust, without tests and generated files; each counts once per kind:
  clause   the first sentence has no main verb: it opens with What, How, Where, ..., with a preposition and
           has no comma, or with "Tokens that ..." above anything but a function; Whether is for booleans
  pronoun  the first sentence opens with It, They, Its, ..., or with This and no noun behind it
  dialect  the prose has a word that this project uses in a sense of its own (DIALECT)
Pages (README.md, ARCHITECTURE.md, CONTRIBUTING.md, docs, READMEs), without code:
  long     sentences of more than 30 words; `code` is one word, a cell of a table is a paragraph
  wall     paragraphs, items of a list or cells of more than 90 words
  history  words about the project's past

`--list` shows where they are, in the files or folders that are named.
"""
import argparse, pathlib, re, subprocess, sys
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUDGET = {"clause": 15, "pronoun": 0, "dialect": 0, "long": 0, "wall": 0, "history": 0}
SENTENCE, PARAGRAPH = 30, 90

QUESTIONS = "What Who Whom Whose How Where Why Which That".split()
PREPOSITIONS = """By Of From In For To As At On With Without Beside Behind Before After Among Between Within Beyond
    Until While So Because Since When If Through Under Over""".split()
PRONOUNS = "It They He She Those Its Their Them".split()
# This, These, Such and One are pronouns when no noun can follow: before a verb, a relative or a preposition.
VERBS = """is are was were has have had can may must will does do did says takes of that which who whose after by
    for in from to at with as behind before whom also holds gives makes goes""".split()

# What to write instead, and the words of the dialect (a regular expression).
DIALECT = {
    "the caller, thread or client": r"nobody|somebody|anybody|whoever|for who|of who|to who|by who|who asks|who waits",
    "returns, reports, receives": r"says|said|tells?|told|heard|hears",
    "is, is stored, is located": r"stands?(?! for)|lies?|lie",
    "next to, in addition to": r"besides?",
    "a count, size or duration by name": r"(?:so many|so much|so long|so often)(?! that)",
    "runs, simulates, replays": r"plays?|played",
    "immediately, at the same time": r"at once|meanwhile",
    "injected, effective, synthetic": r"on purpose|in force|made up|makes? up",
    "again": r"anew",
    "reasoning": r"thoughts?",
    "whitespace": r"blanks|a blank(?! line)",
    "path, route, test, peer, steady": r"roads?|doors?|desks?|drills?|mercy|neighbours?|cruis\w+",
    "single": r"lone",
    "corrupts, injects a fault": r"spoils?|spoiled|hurts?|wound\w*",
    "drops, evicts, aborts": r"lets? go of|had enough",
    "uses, bypasses": r"goes by|go by|passes? by",
    "image": r"pictures?",
    "expired timers": r"what is due|falls? due",
    "what the code does": r"takes turns|steps? back|gets? to feel|worth its while|slip of the pen|good enough for",
    "a fraction of": r"a share of|an even share",
}
DIALECT_WORD = re.compile(rf"\b(?:{'|'.join(DIALECT.values())})\b", re.I)
HISTORY = re.compile(
    r"\b(?:formerly|previously|originally|no longer|any ?more|until recently|in the past|since turn|as before"
    r"|(?<!is )(?<!are )(?<!be )(?<!was )(?<!been )used to(?= [a-z]+\b)|(?:has been|was) (?:added|renamed|removed|replaced)"
    r"|has been moved|(?:is|are) now (?:possible|available|supported|called))\b", re.I)

COMMENT = re.compile(r"(?:^[ \t]*///(?!/).*\n)+|(?:^[ \t]*//!(?!/).*\n)+", re.M)
TEST_MODULE = re.compile(r"^([ \t]*)#\[cfg\([^\n]*\btest\b[^\n]*\)\]\n\1(?:pub(?:\(\w+\))? )?mod \w+ \{\n.*?^\1\}", re.M | re.S)
NO_ITEM = re.compile(r"(?:[ \t]*(?:#!?\[|//).*\n|[ \t]*\n)*")
ITEM = r"\s*(?:pub(?:\([\w:]+\))? )?(?:(?:const|static|async|unsafe|extern \"C\") )*"
FUNCTION = re.compile(ITEM + r"fn\b|\s*macro_rules")
BOOLEAN = re.compile(ITEM + r"(?:fn\b.*->[^{;]*\bbool\b|\w+\s*:\s*(?:Option<|Cell<|Arc<)*(?:Atomic)?[bB]ool\b)")
RELATIVE = re.compile(r"(?!(?:A|An|The|Each|Every|All|Any|No)\b)[A-Z][\w`-]*(?: [\w`-]+)? (?:that|which|who|whose|whom)\b")
# A point ends a sentence before a capital, a number, code or a bracket.
END = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z0-9`\[(*\"'])")
SHORT = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx)\.")
FENCED = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.M | re.S)


def files(*globs):
    command = ["git", "ls-files", *(f":(glob){one}" for one in globs)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).exists()]


def sources():
    for name in files("src/**/*.rs", "crates/*/**/*.rs", "*.rs"):
        if not re.search(r"(^|/)(tests|benches|examples|fuzz)/|(^|/)tests?\.rs$", name):
            text = (ROOT / name).read_text()
            if "@generated" not in "".join(text.splitlines(True)[:10]):
                yield name, TEST_MODULE.sub(lambda found: re.sub(r"[^\n]", "", found[0]), text)


def sentences(text):
    return [one for one in END.split(SHORT.sub(r"\1", text)) if one.strip()]


def comments(text):
    """Line, first sentence, prose and the item below of each documentation comment."""
    for found in COMMENT.finditer(text):
        lines = [re.sub(r"^\s*//[/!] ?", "", line) for line in found[0].splitlines()]
        prose = FENCED.sub("", "\n".join(lines))
        first = re.search(r"^[ \t]*[^\s#].*(?:\n[ \t]*[^\s#].*)*", prose, re.M)
        first = sentences(" ".join(first[0].split()))[0] if first else ""
        module = found[0].lstrip().startswith("//!")
        below = NO_ITEM.match(text, found.end()).end()
        item = "" if module else re.split(r"[{;]", text[below : below + 600], maxsplit=1)[0].replace("\n", " ")
        yield text.count("\n", 0, found.start()) + 1, first, re.sub(r"`[^`]*`|\]\([^)]*\)|\*\*Source:\*\*.*", " ", prose), item


def comment_kinds(first, prose, item):
    words = [word.strip("*_,:;.()") for word in first.split()] + ["", ""]
    if (words[0] in QUESTIONS or words[0] == "Whether" and not BOOLEAN.match(item)
            or words[0] in PREPOSITIONS and "," not in first
            or item and not FUNCTION.match(item) and RELATIVE.match(first)):
        yield "clause"
    if words[0] in PRONOUNS or words[0] in ("This", "These", "Such", "One") and words[1] in [*VERBS, ""]:
        yield "pronoun"
    if DIALECT_WORD.search(prose):
        yield "dialect"


def paragraphs(text):
    """Line and text of each paragraph, item of a list and cell of a table."""
    text = FENCED.sub(lambda found: re.sub(r"[^\n]", "", found[0]), text)
    block, begin = [], 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        apart = not bare or bare.startswith(("#", "|", "<", "[!["))
        if block and (apart or re.match(r"(?:[-*+]|\d+\.) ", bare)):
            yield begin, " ".join(block)
            block = []
        if bare.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", bare) if cell.strip(" -:"))
        elif not apart:
            begin = begin if block else number
            block.append(re.sub(r"^(?:[-*+]|\d+\.) ", "", bare))


def findings():
    """File, line, kind and text of everything that counts."""
    for name, text in sources():
        for line, first, prose, item in comments(text):
            for kind in comment_kinds(first, prose, item):
                hit = DIALECT_WORD.search(prose) if kind == "dialect" else None
                yield name, line, kind, f"{hit[0]}: {first}" if hit else first
    for name in files("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/**/*.md", "SECURITY.md",
                      "crates/**/README.md", "python/**/README.md", "npm/README.md", "examples/README.md", "helm/**/README.md"):
        for line, text in paragraphs((ROOT / name).read_text()):
            text = re.sub(r"`[^`]*`", "`x`", re.sub(r"\]\([^)]*\)", "]", text))
            if len(text.split()) > PARAGRAPH:
                yield name, line, "wall", text
            for one in sentences(text):
                if len(one.split()) > SENTENCE:
                    yield name, line, "long", one
                if HISTORY.search(one):
                    yield name, line, "history", one


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--list", action="store_true", help="show each")
    parser.add_argument("files", nargs="*", default=[""], help="count in these alone, without the budget")
    args = parser.parse_args()
    seen = Counter()
    for name, line, kind, text in findings():
        if name.startswith(tuple(args.files)):
            seen[kind] += 1
            if args.list:
                print(f"{kind} {name}:{line} {text[:140]}")
    wrong = False
    for kind, most in BUDGET.items():
        print(f"{kind}: {seen[kind]}" + ("" if args.files != [""] else f" of {most}"))
        if args.files == [""] and seen[kind] != most:
            wrong = True
            print("  " + ("rewrite some: --list shows where" if seen[kind] > most else f"write {seen[kind]} into BUDGET"))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
