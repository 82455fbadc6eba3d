#!/usr/bin/env python3
"""Runs the commands of README.md and docs/*.md as a reader would, in a network of their own.

    doc_commands.py BINARY [FILE…]

Every `sh` block is taken, command by command. One that starts a server is left running (the one
before it is stopped) and waited for; `record` runs beside it until the next one starts; `curl` must get an answer below 400; anything else must exit
with 0. Where nothing runs yet, `curl` finds `vllm-sim --model demo`; `cargo run --release --` is the
program. A YAML block whose first line is `# name.yaml` becomes that file. What needs a cluster, a
container engine or a compiler is skipped by its name, and so is a block behind the comment
`<!-- not run: why -->`; behind `<!-- answers 503 -->` that status is wanted, behind `<!-- exits 18 -->`
that exit code. A line `NAME="words"` counts in the commands after it. Commands whose program is not
installed are skipped too.
"""

import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Slow, or not to be had on every machine.
ELSEWHERE = re.compile(r"^(\w+=\S+ )*(cargo|docker|kubectl|make|git|rustup|pip|npm|helm (install|upgrade|test|uninstall)|perf|xdg-open)\b")
ASSIGNS = re.compile(r"""^(\w+)=("[^"]*"|'[^']*'|\S+)$""")
CONVERSATIONS = '[{"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good day."}]}]'
TRACE = '{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [1, 2]}\n'
BESIDE = re.compile(r"^vllm-sim record\b")
SERVES = re.compile(r"^(?P<env>(\w+=\S+ )*)(vllm-sim|vllm|llm-d-inference-sim)( +(--(?!help|version)|serve\b|sglang\b))")


def own_network():
    """Starts this script again where all ports are free and nothing is outside."""
    if os.environ.get("OWN_NETWORK"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo".ljust(16, b"\0"), 1))
        return
    user = [] if os.getuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", "--net", *user]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode:
        sys.exit(print("SKIP: the commands of the pages, no network namespace of their own is allowed here"))
    os.environ["OWN_NETWORK"] = "1"
    os.execvp("unshare", [*unshare, sys.executable, *sys.argv])


def blocks(text):
    """(language, remark before it, lines, number of the first line) of each code block."""
    why, language, lines, first = None, None, [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if language is None:
            if found := re.match(r"<!-- ((?:not run:|answers|exits) .*) -->", line):
                why = found[1]
            elif found := re.match(r"```(\w*)", line):
                language, lines, first = found[1], [], number + 1
            elif line.strip():
                why = None
        elif line.startswith("```"):
            yield language, why, lines, first
            language, why = None, None
        else:
            lines.append(line)


def commands(lines):
    """Commands of a block: continued lines and open quotes belong together."""
    command = ""
    for line in lines:
        command = f"{command}\n{line}" if command else line
        plain = re.sub(r"\\.", "", command)
        if line.endswith("\\") or plain.count("'") % 2 or plain.count('"') % 2:
            continue
        stripped = command.strip()
        if stripped and not stripped.startswith("#"):
            yield stripped
        command = ""
    if command.strip():
        yield command.strip()


class Reader:
    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = folder
        self.server = None
        self.beside = None
        self.counts = {"ok": 0, "skipped": 0, "failed": 0}
        for entry in REPOSITORY.iterdir():
            if entry.name not in (".git", "target"):
                (folder / entry.name).symlink_to(entry)
        # Files of the reader: a trace, recorded runs, and conversations.
        (folder / "RUNS").symlink_to(REPOSITORY / "tests/fixtures/fidelity")
        (folder / "trace.jsonl").write_text(TRACE)
        (folder / "FOLDER").mkdir()
        (folder / "FOLDER/conversations.json").write_text(CONVERSATIONS)
        programs = folder / ".bin"
        programs.mkdir()
        for name in ("vllm-sim", "vllm", "llm-d-inference-sim"):
            (programs / name).symlink_to(binary)
        (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\nmax-time = 20\n")
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CURL_HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
        }

    def say(self, what, where, command, more=""):
        self.counts[what] += 1
        print(f"{what:7} {where}: {command.splitlines()[0][:100]}{more}", flush=True)

    def stop(self):
        # What listens in front ends first: it writes its file then.
        for process in (self.beside, self.server):
            if process and process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
        self.beside = self.server = None

    def start(self, command):
        log = open(self.folder / ".log", "w+")
        return subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def record(self, command):
        """Starts a recorder of the server, and has it record a chat."""
        if not self.server:
            self.serve("vllm-sim --model demo")
        self.beside = self.start(command)
        chat = b'{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}'
        ask = urllib.request.Request("http://127.0.0.1:8001/v1/chat/completions", chat, {"Content-Type": "application/json"})
        until = time.monotonic() + 10
        while time.monotonic() < until and self.beside.poll() is None:
            try:
                urllib.request.urlopen(ask, timeout=5).read()
                return None
            except OSError:
                time.sleep(0.05)
        return (self.folder / ".log").read_text()[-600:]

    def serve(self, command):
        """Starts a server and waits until it answers; why it does not, or nothing."""
        self.stop()
        self.server = self.start(command.removesuffix("&").rstrip())
        files = [command] + [(self.folder / name).read_text() for name in re.findall(r"--config (\S+)", command) if (self.folder / name).exists()]
        port = next((found[1] for text in files for found in [re.search(r"port[ :=]+(\d+)", text)] if found), "30000" if "vllm-sim sglang " in command else "8000")
        secure = "--self-signed-certs" in command or "--ssl-certfile" in command
        told = re.search(r"--ready-file (\S+)", command)
        url = f"http{'s' if secure else ''}://127.0.0.1:{port}/health"
        until = time.monotonic() + 15
        while time.monotonic() < until:
            try:
                if port == "0" and told:
                    url = json.loads((self.folder / told[1]).read_text())["servers"][0]["url"] + "/health"
                urllib.request.urlopen(url, timeout=2, context=ssl._create_unverified_context()).read()
                return None
            except OSError:
                if self.server.poll() is not None:
                    break
                time.sleep(0.05)
        return (self.folder / ".log").read_text()[-600:]

    def run(self, command, where, status=None):
        command = re.sub(r"^cargo run --release -- ", "vllm-sim ", command)
        command = re.sub(r"\btarget/(release|debug)/vllm-sim\b", str(self.binary), command)
        if found := ASSIGNS.match(command):
            self.environment[found[1]] = found[2].strip("\"'")
            return self.say("ok", where, command)
        first = command.split("\n", 1)[0]
        program = re.sub(r"^(\w+=\S+ )*", "", first).split()[0]
        if ELSEWHERE.match(first) or re.search(r"\b(BINARY|score\.py)\b", command):
            return self.say("skipped", where, command)
        if not shutil.which(program, path=self.environment["PATH"]) and not (self.folder / program).is_file():
            return self.say("skipped", where, command, f" ({program} is not installed)")
        if SERVES.match(first):
            problem = self.serve(command)
        elif BESIDE.match(first):
            problem = self.record(command)
        else:
            if program == "curl" and not self.server:
                self.serve("vllm-sim --model demo")
            done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)
            match (status or "").split():
                case ["answers", code]:
                    failed = f"error: {code}" not in done.stderr
                case ["exits", code]:
                    failed = done.returncode != int(code)
                case _:
                    failed = done.returncode
            problem = (done.stdout[-300:] + done.stderr[-600:]) if failed else None
        self.say("failed" if problem else "ok", where, command, f"\n{problem}" if problem else "")

    def read(self, file):
        name = file.relative_to(REPOSITORY)
        for language, why, lines, first in blocks(file.read_text()):
            if language == "yaml" and lines and (found := re.match(r"# (\S+\.yaml)$", lines[0])):
                (self.folder / found[1]).write_text("\n".join(lines) + "\n")
            if language != "sh":
                continue
            for command in commands(lines):
                if why and why.startswith("not run"):
                    self.say("skipped", f"{name}:{first}", command, f" ({why})")
                else:
                    self.run(command, f"{name}:{first}", why)
        self.stop()


def main():
    own_network()
    binary = pathlib.Path(sys.argv[1]).resolve()
    files = [pathlib.Path(name).resolve() for name in sys.argv[2:]]
    files = files or [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    counts = {}
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            reader = Reader(binary, pathlib.Path(folder))
            reader.read(file)
            for what, count in reader.counts.items():
                counts[what] = counts.get(what, 0) + count
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
