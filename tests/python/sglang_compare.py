#!/usr/bin/env python3
"""Compares `vllm-sim sglang` with SGLang's own HTTP application, request by request.

    sglang_compare.py BINARY SOURCES [--python PROGRAM] [--group WORD] [--show] [--hostile]

SOURCES is the folder that holds the package `sglang` of SGLang's wheel, unpacked; PROGRAM is the
Python that can import it (`sglang_app.py` starts the application). Both servers load
`tests/fixtures/tiny-llama`. Equal means: status, content type, members and their order, types, texts
of errors and constants, token counts, and the events of a stream. Texts, ids, times and probabilities
may differ, and the folder of SGLang's files. The program replies with the text of the script and has
no prefix cache, because the script has none. `--hostile` sends wrong and unusual requests. Prints a table by group, and the differences with `--show`.
"""

import argparse
import collections
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import sglang_app_cases as cases
import sglang_app_hostile as hostile
from sglang_app import WORDS

MODEL = pathlib.Path(__file__).parent.parent / "fixtures" / "tiny-llama"

# Members whose value may differ: texts of the model, ids and times.
FREE = {
    "id", "rid", "text", "content", "reasoning_content", "arguments", "token", "bytes", "logprob", "created",
    "created_at", "completed_at", "e2e_latency", "item_id", "call_id", "delta", "partial_json", "response",
    "output_ids", "response_token_ids", "token_ids", "tokens", "top_logprobs", "token_logprobs", "timestamp",
    "embedding", "input", "model_path", "root", "modified_at", "digest", "size", "sequence_number", "normal_text",
    "total_duration", "load_duration", "eval_duration", "prompt_eval_duration", "matched_stop", "matched", "tokenizer_path",
    "input_top_logprobs", "output_top_logprobs", "label", "num_classes", "probs", "score", "scores", "choice", "version", "data_parallel_rank", "request_id", "system_fingerprint",
}


class Server:
    """A running server with its address."""

    def __init__(self, command, port, seconds):
        self.port = port
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        until = time.monotonic() + seconds
        while self.ask("GET", "/ready", None)[0] != 200:
            if time.monotonic() > until or self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"no server: {self.log.read().decode()[-3000:]}")
            time.sleep(0.1)

    def ask(self, method, path, body):
        """Returns status, content type and body of a response."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        is_form = data is not None and data.startswith(b"--b")
        headers = {"content-type": "multipart/form-data; boundary=b" if is_form else "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.headers.get("content-type", ""), response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("content-type", ""), error.read().decode()
        except OSError as error:
            return 0, "", str(error)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            # SGLang's application waits for its scheduler, which is a script.
            self.process.kill()
            self.process.wait()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# Numbers that may differ where the reply is a generated call, and the argument of that call.
FREE_OF_CALLS = {"completion_tokens", "total_tokens", "output_tokens", "end", "a"}


def shape(value, name=""):
    """Returns a value with the free parts replaced by their types."""
    if isinstance(value, dict) and name == "top_logprobs":
        return {"<token>": [shape(of, name) for of in value.values()]}
    if isinstance(value, dict):
        return {key: shape(of, key) for key, of in value.items()}
    if isinstance(value, list):
        items = [shape(item, name) for item in value]
        return [item for at, item in enumerate(items) if at == 0 or item != items[at - 1] or name not in FREE]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return "<number>"
    if name in FREE:
        return f"<{type(value).__name__}>" if value != "" else "<str>"
    return value


def read(text, kind):
    """Returns the comparable form of a body."""
    if "event-stream" in kind or "ndjson" in kind:
        events = []
        for event in text.split("\n\n" if "event-stream" in kind else "\n"):
            lines = []
            for line in event.splitlines():
                field, _, rest = line.partition(": ")
                lines.append(line if field == "event" else [field, parse(rest)] if field == "data" else parse(line))
            if lines:
                events.append(lines)
        # Outputs of a stream with several of them alternate as their tokens come.
        events.sort(key=output_index)
        return [lines for at, lines in enumerate(events) if at == 0 or lines != events[at - 1]]
    return parse(text)


def output_index(lines):
    """Returns the index of the output of an event; events of none come last."""
    for line in lines:
        data = line[1] if isinstance(line, list) else line
        if isinstance(data, dict):
            choices = data.get("choices")
            index = choices[0].get("index", 0) if choices else data.get("index", 0)
            return index if choices or "meta_info" in data else 10**6 if choices == [] else 0
    return 10**7 if any(line == ["data", "[DONE]"] for line in lines) else 0


def parse(text):
    text = re.sub(r'"[0-9a-f]{32}"', '"<id>"', text)
    text = re.sub(r'File (\\*)"[^"]*?sglang/srt', r'File \1"sglang/srt', text)
    # The texts of grammar compilers and of jsonschema are not imitated.
    text = re.sub(r'(Failed to compile \w+ grammar: |invalid \'parameters\' schema: [^"\\]*)(\\.|[^"\\])*', r"\1", text)
    try:
        return shape(json.loads(text))
    except ValueError:
        return text


def compare(show, groups, ours, theirs, listed):
    """Sends the cases to both servers and counts by group."""
    for group, method, path, body in listed:
        answers = []
        for server in (ours, theirs):
            status, kind, text = server.ask(method, path, body)
            read_text = json.dumps(read(text, kind), indent=1 if show > 1 else None)
            if "Call it" in str(body):
                read_text = re.sub(f'"({"|".join(FREE_OF_CALLS)})": \\d+', r'"\1": "<int>"', read_text)
            answers.append((status, kind.partition(";")[0], read_text))
        equal = answers[0] == answers[1]
        groups[group][0] += 1
        groups[group][1] += answers[0][0] == answers[1][0]
        groups[group][2] += equal
        if show and not equal:
            shown = body if isinstance(body, bytes) or body is None else json.dumps(body)
            print(f"\n{group}: {method} {path} {str(shown)[:300]}")
            for name, (status, kind, text) in zip(("ours  ", "SGLang"), answers):
                print(f"  {name} {status} {kind} {text[:1800]}")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("binary")
    options.add_argument("sources")
    options.add_argument("--python", default=sys.executable)
    options.add_argument("--group", default="")
    options.add_argument("--show", action="count", default=0)
    options.add_argument("--hostile", action="store_true")
    given = options.parse_args()
    groups = collections.defaultdict(lambda: [0, 0, 0])
    app = pathlib.Path(__file__).with_name("sglang_app.py")
    replies = tempfile.NamedTemporaryFile("w", suffix=".yaml")
    rule = {"when": {"matches": "ello|^[absx]$|^[0-9, ]+$"}, "say": WORDS * 40}
    json.dump([rule], replies)
    replies.flush()
    for flags, listed in [
        ([], hostile.all_cases() if given.hostile else cases.generating_cases()),
        (["--tool-call-parser", "qwen25", "--enable-cache-report"], cases.parser_cases()),
        (["--is-embedding"], cases.embedding_cases("pooling of an embedding model")),
    ]:
        listed = [case for case in listed if given.group in case[0]]
        if not listed or flags and given.hostile:
            continue
        named = ["--model-path", str(MODEL), "--served-model-name", "tiny-llama", *flags]
        port = free_port()
        theirs = Server([given.python, str(app), given.sources, str(port), *named], port, 400)
        port = free_port()
        own = ["--random-seed", "7", "--disable-radix-cache", "--replies", replies.name]
        ours = Server([given.binary, "sglang", "--port", str(port), *own, *named], port, 20)
        try:
            compare(given.show, groups, ours, theirs, listed)
        finally:
            theirs.stop()
            ours.stop()
    print("\n| Group | Requests | Status equal | All equal |\n|---|---|---|---|")
    for group, (count, status, equal) in groups.items():
        print(f"| {group} | {count} | {status} | {equal} |")
    totals = [sum(column) for column in zip(*groups.values())]
    print("| all | {} | {} | {} |".format(*totals))


if __name__ == "__main__":
    main()
