#!/usr/bin/env python3
"""Refused requests with bodies on connections that are kept; needs nothing but Python.

    refusals_keep_alive.py BINARY [requests of all kinds together, 10,000]

Each of twenty kinds of request has a connection of its own. Bodies of 0 B to 1 MB follow their head in a
second write, some of them a moment later. Every request must be answered with the status of its kind, and no
connection may be cut, reset or closed.
"""

import itertools
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

BINARY = sys.argv[1]
REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
SIZES = [0, 1, 100, 3_000, 16_384, 65_536, 100_000, 300_000, 1_000_000]
PAUSES = [0, 0, 0, 0.0003, 0.002]  # between head and body, seconds
PATIENCE = 30  # for an answer, seconds
KEY = "authorization: Bearer k"
JSON = "content-type: application/json"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

# Name, method, path, headers, status.
KINDS = [
    ("no key, chat", "POST", CHAT, [JSON], 401),
    ("wrong key, completion", "POST", COMPLETION, [JSON, "authorization: Bearer x"], 401),
    ("no key, models", "GET", "/v1/models", [], 401),
    ("unknown path", "POST", "/nowhere", [JSON, KEY], 404),
    ("unknown path below /v1", "PUT", "/v1/nowhere", [JSON, KEY], 404),
    ("wrong method, chat", "GET", CHAT, [KEY], 405),
    ("wrong method, models", "POST", "/v1/models", [JSON, KEY], 405),
    ("wrong method, health", "DELETE", "/health", [KEY], 405),
    ("body that nobody reads, models", "GET", "/v1/models", [KEY], 200),
    ("body that nobody reads, metrics", "POST", "/metrics", [KEY], 200),
    ("body that nobody reads, ping", "POST", "/ping", [KEY], 200),
    ("body that nobody reads, reset", "POST", "/reset_prefix_cache", [KEY], 200),
    ("no JSON, chat", "POST", CHAT, [JSON, KEY], 400),
    ("no JSON, completion", "POST", COMPLETION, [JSON, KEY], 400),
    ("no JSON, tokenize", "POST", "/tokenize", [JSON, KEY], 400),
    ("no JSON, responses", "POST", "/v1/responses", [JSON, KEY], 400),
    ("no JSON, messages", "POST", "/v1/messages", [JSON, KEY], 400),
    ("another media type, chat", "POST", CHAT, ["content-type: text/plain", KEY], 400),
    ("wrong method, completion", "OPTIONS", COMPLETION, [KEY], 405),
    ("another origin", "POST", "/admin/config", [JSON, KEY, "origin: http://elsewhere.example"], 403),
]


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def ask(self, method, path, headers, body, pause):
        """Status and headers of the answer to a request sent in two parts."""
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        if pause:
            time.sleep(pause)
        self.socket.sendall(body)
        status = self.file.readline()
        if not status.startswith(b"HTTP/1.1 "):
            raise ConnectionError(f"no answer: {status!r}")
        told = dict(iter(self.header, None))
        self.body(told)
        return int(status.split()[1]), told

    def header(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("cut within the head")
        name, colon, value = line.decode("latin-1").partition(":")
        return (name.lower(), value.strip()) if colon else None

    def body(self, told):
        if told.get("transfer-encoding") == "chunked":
            while size := int(self.file.readline(), 16):
                self.read(size + 2)
            self.read(2)
        else:
            self.read(int(told.get("content-length", 0)))

    def read(self, size):
        if len(self.file.read(size)) != size:
            raise ConnectionError("cut within the body")


def lost(port, kind, count, draw):
    """Returns the failures of the requests of one kind, counted by text."""
    name, method, path, headers, wanted = kind
    wrong, connection = {}, Connection(port)
    for size in itertools.islice(itertools.cycle(SIZES), count):
        try:
            status, told = connection.ask(method, path, headers, b"x" * size, draw.choice(PAUSES))
            problem = None if status == wanted else f"status {status}"
            if told.get("connection", "").lower() == "close":
                problem = "the server closes the connection"
        except (OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            wrong[problem] = wrong.get(problem, 0) + 1
            connection = Connection(port)
    return wrong


def main():
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "ready")
        server = subprocess.Popen(
            [BINARY, "serve", "demo", "--host", "127.0.0.1", "--port", "0", "--ready-file", str(ready),
             "--api-key", "k", "--dev-mode", "--log-level", "error"])
        try:
            while not ready.exists() or not ready.read_text().strip():
                if server.poll() is not None:
                    sys.exit("the server did not start")
                time.sleep(0.02)
            port = urlsplit(json.loads(ready.read_text())["servers"][0]["url"]).port
            draw, bad, each = random.Random(1), 0, max(1, REQUESTS // len(KINDS))
            for kind in KINDS:
                wrong = lost(port, kind, each, draw)
                bad += sum(wrong.values())
                print(f"{kind[0]:34} {each} requests, {sum(wrong.values())} lost {wrong or ''}")
            print(f"{each * len(KINDS)} requests of {len(KINDS)} kinds: {bad} lost")
            sys.exit(bad > 0)
        finally:
            server.terminate()
            server.wait()


main()
