"""Memory of streams whose clients do not read.

    python3 tests/python/slow_readers.py target/release/vllm-sim [READERS]

Starts the server on a free port of 127.0.0.1, opens READERS streams (2,000) of 30,000 tokens
without delay, reads nothing, and prints what the server's memory grows by; then leaves and prints
what remains. Fails when the growth is above 75 KiB for each stream, or when more than 20 % of a
fresh server's memory remains beyond it. A fresh server is one that has answered one such request.
"""

import json
import resource
import socket
import subprocess
import sys
import time
import urllib.request

TOKENS = 30_000
MOST_PER_STREAM = 75 * 1024


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rss(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("the server has ended")


def settled(pid, seconds=60):
    """Memory once it has changed by less than 1 % for five seconds."""
    last, deadline, quiet = rss(pid), time.time() + seconds, 0
    while time.time() < deadline and quiet < 5:
        time.sleep(1)
        now = rss(pid)
        quiet = quiet + 1 if abs(now - last) < last / 100 else 0
        last = now
    return last


def main():
    binary, readers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * readers + 100)), hard))
    port = free_port()
    command = [binary, "--model", "m", "--port", str(port), "--max-model-len", str(2 * TOKENS)]
    command += ["--max-num-seqs", str(readers)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
                break
            except OSError:
                time.sleep(0.05)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        body |= {"max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        body = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        # A server that has answered once has all its pages of code and its corpus in memory.
        with socket.create_connection(("127.0.0.1", port)) as first:
            first.sendall(request)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer = answer[-8:] + first.recv(1 << 16)
        fresh = settled(server.pid)
        clients = []
        for _ in range(readers):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(request)
            clients.append(client)
        full = settled(server.pid)
        for client in clients:
            client.close()
        after = settled(server.pid)
    finally:
        server.kill()
    each = (full - fresh) / readers
    mib = 1 << 20
    print(f"fresh {fresh / mib:.1f} MiB; {readers} streams unread: {full / mib:.1f} MiB, "
          f"{each / 1024:.1f} KiB each; after they left: {after / mib:.1f} MiB")
    if each > MOST_PER_STREAM or after > 1.2 * fresh:
        raise SystemExit("too much")


main()
