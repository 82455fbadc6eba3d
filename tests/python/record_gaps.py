"""Records streams of the simulator, plays the recording, and compares the gaps between tokens.

    python3 tests/python/record_gaps.py target/release/vllm-sim

Starts a server with a constant gap, `vllm-sim record` in front of it, and a server that plays what
was recorded (`--replay-timing`), and shows how far apart lie

- the recorded gaps and the upstream's schedule,
- the gaps of the second playing and the recorded ones,
- the gaps that a client saw the first time and the second,

and beside them by how much a bare thread oversleeps on this machine at that time. Ends with an
error when a text differs, or when the 99th percentile of a difference is above the bound. Give it
real-time priority on a busy machine: `chrt -f 10 python3 tests/python/record_gaps.py …`.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import select
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request


def read():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("binary")
    words.add_argument("--streams", type=int, default=8, help="at the same time")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--tokens", type=int, default=100)
    words.add_argument("--gap", type=float, default=20.0, help="ms between tokens")
    words.add_argument("--bound", type=float, default=1.0, help="ms at the 99th percentile")
    return words.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def oversleep(stop, result):
    """How late a thread wakes that sleeps 2 ms at a time."""
    late, due = [], time.monotonic()
    while not stop.is_set():
        due += 0.002
        time.sleep(max(0.0, due - time.monotonic()))
        late.append((time.monotonic() - due) * 1e3)
        due = max(due, time.monotonic() - 0.002)
    result.put(late)


class Stream:
    """One streamed completion; pieces are stamped as they are read and taken apart at the end."""

    def __init__(self, port, prompt, tokens):
        self.prompt, self.pieces = prompt, []
        body = {"model": "demo", "prompt": prompt, "max_tokens": tokens}
        body = json.dumps(body | {"ignore_eos": True, "stream": True}).encode()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)

    def read(self):
        """Whether there is more to come."""
        data = self.socket.recv(65536)
        self.pieces.append((time.monotonic() * 1e3, data))
        return bool(data)

    def said(self):
        """The instant of each token, ms, and the text."""
        times, text, rest = [], "", b""
        for at, data in self.pieces:
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                event = event[event.find(b"data: ") + 6 :]
                for choice in [] if event == b"[DONE]" else json.loads(event)["choices"]:
                    times += [at] * bool(choice["text"])
                    text += choice["text"]
        return times, text


def ask(port, options):
    """All prompts, some at a time; by prompt."""
    prompts = [f"Question {n}" for n in range(options.streams * options.rounds)]
    poll, open_, over = select.epoll(), {}, {}
    while prompts or open_:
        while prompts and len(open_) < options.streams:
            stream = Stream(port, prompts.pop(), options.tokens)
            open_[stream.socket.fileno()] = stream
            poll.register(stream.socket.fileno(), select.EPOLLIN)
        for number, _ in poll.poll(30):
            if not open_[number].read():
                poll.unregister(number)
                stream = open_.pop(number)
                over[stream.prompt] = stream
    return {prompt: stream.said() for prompt, stream in over.items()}


def gaps(times):
    return [after - before for before, after in zip(times, times[1:])]


class Program:
    """A program with its log, that answers on a port."""

    def __init__(self, folder, port, *words):
        self.log = open(folder / f"{port}.log", "w")
        words = [str(word) for word in words]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"does not start: {' '.join(words)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)


def play(folder, options):
    """What was said first and again, and the recorded instants in ms; by prompt."""
    up, proxy, again = free_port(), free_port(), free_port()
    common = ["--model", "demo", "--force-dummy-tokenizer"]
    server = [options.binary, *common, "--host", "127.0.0.1", "--max-num-seqs", "1000"]
    delays = ["--time-to-first-token", "50ms", "--inter-token-latency", f"{options.gap}ms"]
    file = folder / "talk.sqlite3"
    record = [options.binary, "record", *common, "--out", file, "--port", proxy]
    with Program(folder, up, *server, "--port", up, *delays):
        with Program(folder, proxy, *record, "--upstream", f"http://127.0.0.1:{up}"):
            first = ask(proxy, options)
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT request, token_us FROM llmd_recording").fetchall()
    kept = {json.loads(row)["prompt"]: [us / 1e3 for us in json.loads(times)] for row, times in rows}
    replay = ["--dataset-path", file, "--replay-timing"]
    with Program(folder, again, *server, "--port", again, *replay):
        return first, kept, ask(again, options)


def show(name, values):
    values = sorted(values)
    share = lambda part: values[round((len(values) - 1) * part)]
    marks = "  ".join(f"p{part * 100:g} {share(part):.3f}" for part in (0.5, 0.9, 0.99))
    print(f"{name:40} {marks}  max {values[-1]:.3f} ms", flush=True)
    return share(0.99)


def main():
    options = read()
    stop, result = multiprocessing.Event(), multiprocessing.Queue()
    sleeper = multiprocessing.Process(target=oversleep, args=(stop, result), daemon=True)
    sleeper.start()
    with tempfile.TemporaryDirectory() as folder:
        first, kept, second = play(pathlib.Path(folder), options)
    stop.set()
    slept = result.get()
    for prompt, (times, text) in first.items():
        if text != second[prompt][1] or not len(times) == len(kept[prompt]) == options.tokens:
            sys.exit(f"{prompt}: the replies differ")
    tokens = len(kept) * options.tokens
    print(f"{len(kept)} replies, {tokens} tokens; load average {os.getloadavg()[0]:.1f}")
    show("a bare thread oversleeps by", slept)
    off = lambda a, b: [abs(x - y) for x, y in zip(gaps(a), gaps(b))]
    planned = [options.gap * n for n in range(options.tokens)]
    apart = {
        "recorded gap, upstream's schedule": [x for k in kept.values() for x in off(k, planned)],
        "played gap, recorded gap": [x for p, k in kept.items() for x in off(second[p][0], k)],
        "client's gap, first and second time": [
            x for p, f in first.items() for x in off(f[0], second[p][0])
        ],
    }
    worst = max(show(name, values) for name, values in apart.items())
    if worst > options.bound:
        sys.exit(f"the 99th percentile is {worst:.3f} ms, allowed are {options.bound} ms")


if __name__ == "__main__":
    main()
