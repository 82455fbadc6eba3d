"""Adds what a vLLM has to src/vllm_serve_flags.txt, from its own help.

    vllm serve --help=all | python3 vllm_serve_flags.py

Flags that a release no longer has stay, and get `until=` by hand: `--vllm-version` takes them. Of a
flag whose words changed, the newer form counts.
"""

import re
import sys
from pathlib import Path

LIST = Path(__file__).parent.parent / "src/vllm_serve_flags.txt"

# One flag: `  --name NAME, -n NAME`, `  --name, --no-name`, `  --name NAME [NAME ...]`.
FLAG = re.compile(r"^  (-\S.*?)(?:\s{2,}\S.*)?$")


def flags(text):
    """Name, what it takes, and its names after one dash, for each flag of a help text."""
    for line in text.splitlines():
        if not (found := FLAG.match(line)):
            continue
        # Choices hold commas and dashes of their own.
        shown = re.sub(r"\{[^}]*\}", "VALUE", found[1])
        names = re.findall(r"(?:^|, )(--?[A-Za-z][\w.-]*)", shown)
        long = [name[2:] for name in names if name.startswith("--")]
        shorts = [name[1:] for name in names if not name.startswith("--")]
        long = [name for name in long if name.removeprefix("no-") == name or name[3:] not in long]
        takes = re.sub(r"(?:^|, )--?[A-Za-z][\w.-]*", "", shown).strip()
        form = "list" if "..." in takes else "value" if takes else "switch"
        for name in long:
            if name != "help":
                yield name, [form, *shorts]


def main():
    lines = LIST.read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    known = {name: rest for name, *rest in (line.split() for line in lines if line not in head)}
    before = dict(known)
    found = dict(flags(sys.stdin.read()))
    if len(found) < 100:
        sys.exit(f"that is no help of `vllm serve`: {len(found)} flags")
    for name, words in found.items():
        felt = ["felt"] if "felt" in known.get(name, []) else []
        known[name] = words + felt
    body = [" ".join([name, *rest]) for name, rest in sorted(known.items())]
    LIST.write_text("\n".join(head + body) + "\n")
    for name in found:
        if before.get(name) != known[name]:
            print(name, *known[name])


if __name__ == "__main__":
    main()
