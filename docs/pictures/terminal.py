#!/usr/bin/env python3
"""docs/pictures/terminal.svg anew, from a real run: terminal.py BINARY

Starts a server, asks it by curl, and draws what a terminal shows; nothing is made up but the breaks
of long lines. Needs curl and grep.
"""

import html
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import time

COLUMNS = 104
MOST = 6  # lines of an answer
LINE, LEFT, TOP = 18, 16, 44
TIME = re.compile(r"^(\S+Z)\s+(INFO|WARN)\s+(.*)$")

START = "vllm-sim --model demo --time-to-first-token 200ms --inter-token-latency 20ms"
ASK = [
    """curl -sN localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"model": "demo", "stream": true, "max_tokens": 24, "ignore_eos": true, "messages": [{"role": "user", "content": "Hello"}]}' | grep -o '"delta".*'""",
    "curl -s localhost:8000/metrics | grep -E '^vllm:(generation_tokens_total|time_to_first_token_seconds_(sum|count)|kv_cache_usage_perc)'",
]


def run(binary):
    """(kind, text) of each line of the session."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(binary), f"{folder}/vllm-sim")
        ready, log = pathlib.Path(folder, "ready.json"), pathlib.Path(folder, "log")
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": folder}
        with log.open("wb") as stderr:
            command = [*START.split(), "--ready-file", str(ready), "--host", "127.0.0.1", "--seed", "1"]
            server = subprocess.Popen(command, env=environment, stderr=stderr)
        try:
            while not ready.exists():
                if server.poll() is not None:
                    sys.exit(log.read_text())
                time.sleep(0.01)
            yield "ask", START
            # What the picture's own arguments add is left out.
            for line in log.read_text().replace(folder, "~").splitlines():
                yield "log", re.sub(r" --(ready-file|host|seed) \S+", "", line)
            for command in ASK:
                yield "ask", command
                answer = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
                if answer.returncode != 0:
                    sys.exit(f"{command}: {answer.stderr}")
                lines = [line for line in answer.stdout.splitlines() if line]
                for line in lines[:MOST]:
                    yield "answer", line
                if len(lines) > MOST:
                    yield "more", f"… {len(lines) - MOST} more lines"
        finally:
            server.terminate()
            server.wait()


def spans(kind, text):
    """One line as SVG text."""
    if kind == "ask":
        return f'<tspan class="prompt">$</tspan> <tspan class="ask">{html.escape(text)}</tspan>'
    if kind == "log" and (found := TIME.match(text)):
        when, level, rest = (html.escape(part) for part in found.groups())
        return f'<tspan class="dim">{when}</tspan> <tspan class="prompt">{level}</tspan> {rest}'
    return f'<tspan class="dim">{html.escape(text)}</tspan>' if kind == "more" else html.escape(text)


def wrapped(kind, text):
    """Lines that fit; of an answer only the first."""
    if kind == "answer":
        return [text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"]
    return textwrap.wrap(text, COLUMNS - 2, subsequent_indent="    ", break_on_hyphens=False)


def picture(lines):
    """The SVG."""
    rows = []
    for kind, text in lines:
        if kind == "ask" and rows:
            rows.append("")
        first, *rest = wrapped(kind, text)
        rows.append(spans(kind, first))
        rows += [spans("ask" if kind == "ask" else "answer", part).replace('<tspan class="prompt">$</tspan> ', "") for part in rest]
    height, width = TOP + LINE * len(rows) + 12, LEFT * 2 + round(COLUMNS * 7.83)
    body = "\n".join(
        f'<text x="{LEFT}" y="{TOP + LINE * at}" xml:space="preserve">{row}</text>' for at, row in enumerate(rows, 1) if row
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="A terminal: vllm-sim is started, streams a chat and shows vLLM's metrics">
<style>
text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #1f2328 }}
.frame {{ fill: #f6f8fa; stroke: #d0d7de }} .dim {{ fill: #6e7781 }} .prompt {{ fill: #1a7f37 }} .ask {{ font-weight: 600 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }} .frame {{ fill: #161b22; stroke: #30363d }} .dim {{ fill: #8b949e }} .prompt {{ fill: #3fb950 }}
}}
</style>
<rect class="frame" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>
<circle cx="22" cy="20" r="6" fill="#ff5f57"/><circle cx="42" cy="20" r="6" fill="#febc2e"/><circle cx="62" cy="20" r="6" fill="#28c840"/>
{body}
</svg>
"""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = pathlib.Path(__file__).with_name("terminal.svg")
    target.write_text(picture(list(run(sys.argv[1]))))
    print(target)
