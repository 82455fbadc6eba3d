"""A front end of vLLM and vllm-sim's engine core behind it, as processes. Standard library only.

The front end is `vllm-rs` or `vllm`, the Python server: both take the same flags.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.realpath(os.path.join(HERE, "..", "fixtures", "tiny-llama"))
# Only a failure takes that long, in seconds.
PATIENCE = 60
# The Python server imports torch first, which takes a minute on a busy machine.
START_PATIENCE = 300
# Routes of development, and adapters at run time.
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES": MODEL,
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(condition, what, patience=PATIENCE):
    """Looks until a condition holds; what it gave."""
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience} s: {what}")
        time.sleep(0.005)


def start(command, log, **changed):
    environment = os.environ | ENVIRONMENT | changed
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def end(process, sign=signal.SIGTERM, patience=20):
    """Ends a process; its exit code."""
    if process.poll() is None:
        process.send_signal(sign)
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError("it did not end") from None


class Pair:
    """A front end with vllm-sim behind it, until it is closed."""

    def __init__(self, front, sim, front_flags=(), sim_flags=(), ranks=1, model=MODEL):
        self.port, rpc = free_port(), free_port()
        self.log = tempfile.TemporaryFile()
        address = ["--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(rpc), "--data-parallel-size", str(ranks)]
        command = [front, "serve", model, "--host", "127.0.0.1", "--port", str(self.port), "--data-parallel-size-local", "0", *address, *front_flags]
        # The Python server starts an API server for each rank, and several take no adapters at run time.
        changed = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"} if ranks > 1 else {}
        self.front = start(command, self.log, **changed)
        self.engine = start([sim, "serve", model, "--headless", "--seed", "7", *address, *sim_flags], self.log)
        try:
            self.ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for process in (self.front, self.engine):
            if process.poll() is None:
                process.kill()
            process.wait()
        self.log.close()

    def said(self):
        """The end of what both wrote."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def ready(self):
        def healthy():
            for process in (self.front, self.engine):
                if process.poll() is not None:
                    raise AssertionError(f"it ended: {self.said()}")
            try:
                return self.ask("GET", "/health", timeout=2)[0] == 200
            except OSError:
                return False

        until(healthy, "the front end serves", START_PATIENCE)

    def ask(self, method, path, body=None, headers=None, timeout=PATIENCE):
        """Status and body, as JSON where it is some."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = {"content-type": "application/json"} | (headers or {})
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def chat(self, text="Say something about routers.", headers=None, timeout=PATIENCE, **fields):
        body = {"model": self.model(), "messages": [{"role": "user", "content": text}], "temperature": 0} | fields
        status, answer = self.ask("POST", "/v1/chat/completions", body, headers, timeout)
        return status, answer

    def said_to(self, text="Say something about routers.", **fields):
        """The one choice of a chat that has to work."""
        status, answer = self.chat(text, **fields)
        assert status == 200, (status, answer)
        return answer["choices"][0]

    def model(self):
        if not hasattr(self, "name"):
            self.name = self.ask("GET", "/v1/models")[1]["data"][0]["id"]
        return self.name

    def stream(self, **fields):
        """Of each chunk that has tokens: seconds from the request, and the tokens so far."""
        body = {"model": self.model(), "messages": [{"role": "user", "content": "Say something."}], "stream": True, "ignore_eos": True}
        body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}} | fields
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        times = []
        while line := answer.readline():
            if not line.startswith(b"data: {"):
                continue
            tokens = json.loads(line[6:])["usage"]["completion_tokens"]
            if tokens > (times[-1][1] if times else 0):
                times.append((time.perf_counter() - begun, tokens))
        connection.close()
        return times

    def metrics(self):
        """Values by name and labels, as they stand there."""
        _, text = self.ask("GET", "/metrics")
        found = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name] = float(value)
        return found

    def metric(self, name, label=""):
        """The sum of the series of a name that have a label."""
        of = re.compile(re.escape(f"vllm:{name}") + r"(\{|$)")
        return sum(value for series, value in self.metrics().items() if of.match(series) and label in series)
