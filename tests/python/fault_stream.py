"""Whether a fault inside a stream looks to the openai SDK as the real thing does.

    vllm-sim --model demo --port 8000
    pip install openai
    python3 tests/python/fault_stream.py http://127.0.0.1:8000

For each fault the SDK reads a stream twice: from vllm-sim with the header X-Sim-Fault, and from a
small TCP server in this file that sends the same events and then really closes, resets, stalls or
garbles. Both must give as many pieces of text and end in the same exception with the same cause. What is
said may differ from request to request (a server without a seed), its number of tokens may not.
Prints a Markdown table.
"""

import json
import socket
import struct
import sys
import threading
import time
import urllib.request

import openai

BASE = (sys.argv + ["http://127.0.0.1:8000"])[1]
SAID = [{"role": "user", "content": "one two three four five six seven eight"}]
TOKENS = 3
LENGTH = {"max_tokens": 8, "ignore_eos": True}
FAULTS = {
    f"cut_after={TOKENS}": "cut",
    f"reset_after={TOKENS}": "reset",
    f"stall={TOKENS}:30s": "stall",
    f"malformed_after={TOKENS}": "malformed",
    "missing_done": "missing",
    "duplicate_done": "duplicate",
    "slow_first_byte=30s": "slow",
    "wrong_content_length=600": "length",
}


def client(base):
    # The timeout is what ends a stall: it bounds the wait for the next bytes.
    return openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=1.5)


def outcome(base, **extra):
    """Pieces of text that were read, and how it ended."""
    pieces, begin = 0, time.monotonic()
    try:
        stream = client(base).chat.completions.create(
            model=MODEL, messages=SAID, stream=True, extra_body=LENGTH, **extra
        )
        for part in stream:
            pieces += bool(part.choices and part.choices[0].delta.content)
    except Exception as error:
        cause = error.__cause__
        name = f"{type(error).__module__.split('.')[0]}.{type(error).__name__}"
        return pieces, name, type(cause).__name__ if cause else "", time.monotonic() - begin
    return pieces, "none", "", time.monotonic() - begin


def events():
    """The events of a whole stream, as bytes."""
    body = json.dumps({"model": MODEL, "messages": SAID, "stream": True, **LENGTH}).encode()
    request = urllib.request.Request(
        BASE + "/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    text = urllib.request.urlopen(request).read()
    return [event + b"\n\n" for event in text.split(b"\n\n") if event]


class Real:
    """A server whose streams break as real ones do."""

    def __init__(self, whole):
        self.whole, self.kind = whole, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection):
        try:
            self.speak(connection)
        except OSError:
            pass  # The client went away while it was kept waiting.

    def speak(self, connection):
        text = b""
        while b"\r\n\r\n" not in text:
            text += connection.recv(65536)
        head, _, body = text.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += connection.recv(65536)
        kind = self.kind
        if kind == "slow":
            time.sleep(30)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        if kind == "length":
            text = b"".join(self.whole)[:600]
            connection.sendall(head + b"content-length: 600\r\n\r\n" + text)
            connection.close()
            return
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        send = lambda event: connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        # The first event says who speaks.
        for event in self.whole[: 1 + TOKENS]:
            send(event)
        time.sleep(0.05)
        if kind == "cut":
            connection.close()
            return
        if kind == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            return
        if kind == "stall":
            time.sleep(30)
        if kind == "malformed":
            send(b'data: {"id":"garbled","object":\n\n')
        rest = self.whole[1 + TOKENS :]
        rest = rest[:-1] if kind == "missing" else rest
        rest = rest + rest[-1:] if kind == "duplicate" else rest
        for event in rest:
            send(event)
        connection.sendall(b"0\r\n\r\n")
        connection.close()


def main():
    real = Real(events())
    print("| Fault | Pieces read | Exception | Cause |")
    print("|---|---|---|---|")
    for fault, kind in FAULTS.items():
        real.kind = kind
        ours = outcome(BASE, extra_headers={"X-Sim-Fault": fault})
        theirs = outcome(real.base)
        # Where a length lies, how much came before depends on the length of ids.
        same = slice(1 if kind == "length" else 0, 3)
        assert ours[same] == theirs[same], f"{fault}: {ours} instead of {theirs}"
        if kind in ("stall", "slow"):
            assert abs(ours[3] - theirs[3]) < 0.75, f"{fault}: {ours} instead of {theirs}"
        print(f"| `{fault}` | {ours[0]} | {ours[1]} | {ours[2]} |")


MODEL = client(BASE).models.list().data[0].id
main()
