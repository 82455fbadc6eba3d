#!/usr/bin/env python3
"""Runs the steps of action.yml as GitHub's runner would, with BINARY: action.py BINARY

Files and variables of the runner are made up, and `curl` gets the release's files from what .ci/dist makes
of BINARY. Linux alone.
"""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CURL = """#!/bin/bash
# Answers with the files of a folder in place of the release.
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
case "$1" in https://github.com/vllm-sim/vllm-sim/releases/download/v*/*) ;; *) echo "curl: $1" >&2; exit 22 ;; esac
cp "$RELEASE/${1##*/}" "$out"
"""


def steps(text):
    """Steps of the composite action: condition, id, command and variables of each."""
    for block in re.split(r"^    - ", text.partition("\n  steps:\n")[2], flags=re.M)[1:]:
        fields = dict(re.findall(r"^ {0,6}(if|id|run|shell): (.*)$", block, re.M))
        variables = dict(re.findall(r"^        (\w+): (.*)$", block, re.M))
        command = fields["run"][1:-1] if fields["run"].startswith("'") else fields["run"]
        assert "${{" not in command, "an expression becomes part of a command"
        yield fields.get("if", ""), fields.get("id", ""), command, variables


def defaults(text):
    """Inputs with their defaults."""
    block = text.partition("\ninputs:\n")[2].partition("\noutputs:\n")[0]
    inputs = {}
    for name, body in re.findall(r"^  ([\w-]+):\n((?:    .*\n)+)", block, re.M):
        found = re.search(r"^    default: (.*)$", body, re.M)
        inputs[name] = found[1].strip('"') if found else ""
    return inputs


class Job:
    """A job whose one step uses the action."""

    def __init__(self, folder, release, **inputs):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
        self.text = (REPOSITORY / "action.yml").read_text()
        known = defaults(self.text)
        assert set(inputs) <= set(known), f"no such input: {set(inputs) - set(known)}"
        self.values = {f"inputs.{name}": value for name, value in (known | inputs).items()}
        self.values["github.action_repository"] = ""
        (self.folder / "bin").mkdir()
        (self.folder / "bin/curl").write_text(CURL)
        (self.folder / "bin/curl").chmod(0o755)
        for name in ("temp", "work"):
            (self.folder / name).mkdir()
        # Nothing that this machine has set reaches the steps.
        self.variables = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "RUNNER_TEMP": str(self.folder / "temp"),
            "GITHUB_ACTION_PATH": str(REPOSITORY),
            "RELEASE": str(release),
        }
        self.log = ""

    def value(self, name):
        return self.values.get(name, "")

    def wanted(self, condition, failed):
        """Whether a step with a condition runs."""
        if failed and "always()" not in condition:
            return False
        terms = [term for term in condition.split(" && ") if term and term != "always()"]
        for term in terms:
            name, nothing = re.fullmatch(r"([\w.-]+) != ('')", term).groups()
            assert nothing == "''"
            if not self.value(name):
                return False
        return True

    def run(self):
        """Runs the steps; whether all of them passed."""
        failed = False
        for condition, step, command, named in steps(self.text):
            if not self.wanted(condition, failed):
                continue
            files = {name: self.folder / name for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH")}
            for path in files.values():
                path.write_text("")
            own = {name: self.value(re.fullmatch(r"\$\{\{ (.*) \}\}", text)[1]) for name, text in named.items()}
            environment = self.variables | own | {name: str(path) for name, path in files.items()}
            with open(self.folder / "log", "w+") as log:
                words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
                code = subprocess.run(words, env=environment, cwd=self.folder / "work", stdout=log, stderr=log).returncode
                log.seek(0)
                self.log += log.read()
            failed |= code != 0
            for line in files["GITHUB_OUTPUT"].read_text().splitlines():
                name, _, value = line.partition("=")
                self.values[f"steps.{step}.outputs.{name}"] = value
            self.variables |= dict(line.split("=", 1) for line in files["GITHUB_ENV"].read_text().splitlines())
            for line in files["GITHUB_PATH"].read_text().splitlines():
                self.variables["PATH"] = f"{line}:{self.variables['PATH']}"
        return not failed

    def output(self, name):
        """An output of the action."""
        block = self.text.partition("\noutputs:\n")[2]
        expression = re.search(rf"^  {name}:\n    .*\n    value: \$\{{\{{ (.*) \}}\}}$", block, re.M)[1]
        return self.value(expression)

    def end(self):
        """What the runner does at the end of a job."""
        os.kill(int(self.value("steps.start.outputs.pid")), signal.SIGKILL)


def runs(pid):
    """Whether a process runs; one that nobody waits for may stay as a zombie."""
    try:
        return not re.search(r"^State:\s+Z", pathlib.Path("/proc", pid, "status").read_text(), re.M)
    except FileNotFoundError:
        return False


def check(binary, folder):
    release = folder / "release"
    subprocess.run([REPOSITORY / ".ci/dist", binary, release], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = release.glob("*.whl")
    (tarball,) = release.glob("*-linux.tar.gz")
    job = lambda **inputs: Job(folder, release, **inputs)

    # A release; the server runs on for the steps behind it.
    one = job(args="--model demo --port 0")
    assert one.run(), one.log
    base = one.variables["OPENAI_BASE_URL"]
    assert base == one.output("base-url") == one.output("url") + "/v1"
    assert one.variables["ANTHROPIC_BASE_URL"] == one.output("url")
    assert one.variables["OPENAI_API_KEY"] == "none"
    with urllib.request.urlopen(f"{base}/models") as answer:
        assert answer.status == 200
    version = subprocess.run(["vllm-sim", "--version"], env=one.variables, capture_output=True, text=True, check=True)
    assert version.stdout.startswith("vllm-sim "), version.stdout
    one.end()

    # A wheel by a pattern, commands, and the server's end after them; a key of the job's own stays.
    one = job(path=f"{release}/*.whl", args="--model demo --port 0", run='curl() { command -p curl "$@"; }\ncurl -fsS "$OPENAI_BASE_URL/models"')
    one.variables["OPENAI_API_KEY"] = "own"
    assert one.run(), one.log
    assert '"id":"demo"' in one.log and "listening on" in one.log and "shutting down" in one.log
    assert one.variables["OPENAI_API_KEY"] == "own"
    assert not runs(one.value("steps.start.outputs.pid"))

    # Quotes keep words together; nothing else of a shell is done.
    one = job(path=str(binary), args="""--model "$(touch made) `touch made`;&" --served-model-name 'two words'\n  --port 0""", run=':')
    assert one.run(), one.log
    assert "two words" in one.log and "$(touch made)" in one.log, one.log
    assert not list(one.folder.rglob("made"))

    # Failures: each with its words.
    for wanted, inputs in [
        ("has the digest", {"sha256": "0" * 64}),
        ("cannot download https://github.com/vllm-sim/vllm-sim/releases/download/v9.9.9/", {"version": "9.9.9"}),
        ("version: ../x is not a version", {"version": "../x"}),
        ("path: nothing-there names 0 files", {"path": "nothing-there"}),
        ("has an unclosed quote", {"path": str(wheel), "args": "--model 'demo"}),
        ("--no-such-flag", {"path": str(tarball), "args": "--model demo --no-such-flag"}),
        ("timeout: soon is not a number", {"path": str(binary), "timeout": "soon"}),
        ("does not listen", {"path": shlex.quote("/bin/true")}),
    ]:
        one = job(**inputs)
        assert not one.run(), f"{inputs} passed"
        assert "::error title=vllm-sim::" in one.log and wanted in one.log, one.log

    # Commands that fail fail the step, and the server ends all the same.
    one = job(path=str(binary), args="--model demo --port 0", run="false")
    assert not one.run()
    assert "shutting down" in one.log, one.log
    # A server that ended by itself while they ran is one too.
    kill = """kill -9 "$(sed 's/.*"pid":\\([0-9]*\\).*/\\1/' "$RUNNER_TEMP"/*/ready.json)" """
    one = job(path=str(binary), args="--model demo --port 0", run=kill)
    assert not one.run()
    assert "the server ended before it was stopped" in one.log, one.log


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as work:
        check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(work))
    print("action.yml: passed")
