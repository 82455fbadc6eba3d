"""Adds the flags of a vLLM release to src/vllm_serve_flags.txt, from its help text.

    vllm serve --help=all | python3 vllm_serve_flags.py

Removed flags stay in the list for `--vllm-version`; add `until=` to them by hand. If the kind of a
flag changed, the newer one counts.
"""

import re
import sys
from pathlib import Path

LIST = Path(__file__).parent.parent / "src/vllm_serve_flags.txt"

# One flag: `  --name NAME, -n NAME`, `  --name, --no-name`, `  --name NAME [NAME ...]`.
FLAG = re.compile(r"^  (-\S.*?)(?:\s{2,}\S.*)?$")


def flags(text):
    """Yields the name, kind and short names of each flag in a help text."""
    for line in text.splitlines():
        if not (found := FLAG.match(line)):
            continue
        # Choices contain commas and dashes.
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
