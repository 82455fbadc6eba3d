#!/usr/bin/env python3
"""docs/pictures/dashboard.png anew, from a real run: dashboard.py BINARY [FILE]

Starts a server of two ranks, lets 14 clients chat, and takes a picture of its page after a minute. Needs
Chromium (or CHROMIUM); Python's own library speaks with it, over its pipe.
"""

import base64
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 60
SERVE = "serve demo --host 127.0.0.1 --port 0 --scheduler vllm --latency-model polynomial --max-num-seqs 8"
MORE = "--num-gpu-blocks-override 600 --data-parallel-size 2 --failure-injection-rate 4 --dashboard-control"
BROWSER = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
]


def chats(url, seed, end):
    """One client until the end."""
    draw = random.Random(seed)
    while time.monotonic() < end:
        text = " ".join(["word"] * draw.randint(20, 600))
        body = {"model": "demo", "stream": True, "max_tokens": draw.randint(30, 150), "ignore_eos": True,
                "messages": [{"role": "user", "content": text}]}
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), kind)
        try:
            urllib.request.urlopen(request, timeout=30).read()
        except OSError:
            pass  # a failure on purpose, or the end
        time.sleep(1.5 * draw.random())


class Browser:
    """Chromium, over file descriptors 3 and 4."""

    def __init__(self, folder):
        (their_in, self.out), (self.back, their_out) = os.pipe(), os.pipe()

        def place():
            # Above 4 first: the pipes may be where they are to go.
            a, b = os.dup(their_in), os.dup(their_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        program = os.environ.get("CHROMIUM", "chromium")
        command = [program, *BROWSER, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=place, close_fds=False, stderr=subprocess.DEVNULL)
        self.number, self.rest = 0, b""

    def call(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                self.rest += os.read(self.back, 1 << 16)
            text, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                return answer.get("result", {})


def main(binary, file):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ready = pathlib.Path(folder, "ready.json")
        words = [*SERVE.split(), *MORE.split(), "--ready-file", str(ready), "--disable-uvicorn-access-log"]
        server = subprocess.Popen([binary, *words], stderr=subprocess.DEVNULL)
        browser = None
        try:
            while not ready.exists():
                if server.poll() is not None:
                    sys.exit("the server ended")
                time.sleep(0.01)
            url = json.loads(ready.read_text())["servers"][0]["url"]
            end = time.monotonic() + SECONDS + 10
            for seed in range(14):
                threading.Thread(target=chats, args=(url, seed, end), daemon=True).start()
            browser = Browser(f"{folder}/profile")
            target = browser.call("Target.createTarget", url=f"{url}/dashboard")
            session = browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
            size = {"width": 1280, "height": 1440, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", session, **size)
            time.sleep(SECONDS)
            picture = browser.call("Page.captureScreenshot", session, format="png", optimizeForSpeed=False)
            file.write_bytes(base64.b64decode(picture["data"]))
            print(f"{file}: {file.stat().st_size} bytes")
        finally:
            server.kill()
            if browser:
                browser.process.kill()
                browser.process.wait()
            server.wait()


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
main(os.path.abspath(sys.argv[1]), pathlib.Path(*sys.argv[2:]) if sys.argv[2:] else HERE / "dashboard.png")
