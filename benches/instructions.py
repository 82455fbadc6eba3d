#!/usr/bin/env python3
"""Instructions that a chat costs: 10 words, 16 tokens, not streamed, on one connection.

    benches/instructions.py BINARY [--check NAME | --stream TOKENS]

Runs BINARY under callgrind twice for each command-line mode, for 100 and for 600 requests, and prints the
difference per request, which a busy machine changes little. `--check` compares with the line NAME of
instructions.json and fails at more than a twentieth above it: runs of one binary differ by less. `--stream`
counts streams of so many tokens without delays instead.
"""
import argparse, http.client, json, pathlib, re, signal, socket, subprocess, sys, tempfile, time

MODES = {"plain": ["--model", "m"], "serve": ["serve", "m"]}
FEW, MANY = 100, 600


def body(tokens, stream):
    counted = {"stream_options": {"include_usage": True}} if stream else {}
    return json.dumps({"model": "m", "max_tokens": tokens, "stream": stream, "ignore_eos": True, **counted,
                       "messages": [{"role": "user", "content": "lorem " * 10}]})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask_once(port, said):
    """Sends one chat on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", said, {"content-type": "application/json"})
    reply = connection.getresponse()
    answer = reply.read()
    connection.close()
    if reply.status != 200:
        sys.exit(f"{reply.status}: {answer[:200]}")


def ask(port, times, tokens, stream):
    said = body(tokens, stream)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(times):
        connection.request("POST", "/v1/chat/completions", said, {"content-type": "application/json"})
        reply = connection.getresponse()
        answer = reply.read()
        if reply.status != 200 or b'"completion_tokens":%d' % tokens not in answer:
            sys.exit(f"{reply.status}: {answer[:200]}")


def wait_up(port, server, log):
    end = time.time() + 120
    while time.time() < end and server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    sys.exit(f"did not start: {server.args}\n{log.read().decode(errors='replace')[-2000:]}")


def under_callgrind(binary, flags, out, options, times, *asked):
    """Asks a server under callgrind, which writes to `out`, so many times; what it said."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options, binary, *flags,
                   "--host", "127.0.0.1", "--port", str(port), "--seed", "1"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            wait_up(port, server, log)
            ask(port, times, *asked)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        log.seek(0)
        return log.read().decode(errors="replace")


def collected(binary, flags, times, *asked):
    """Instructions of a whole run with so many requests."""
    said = under_callgrind(binary, flags, "/dev/null", [], times, *asked)
    found = re.search(r"Collected : (\d+)", said)
    if not found:
        sys.exit("valgrind counted nothing")
    return int(found[1])


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--check", metavar="NAME", help="a line of instructions.json")
    parser.add_argument("--stream", metavar="TOKENS", type=int, help="count streams of so many tokens")
    args = parser.parse_args()
    asked = (args.stream, True) if args.stream else (16, False)
    kind = f"stream of {args.stream} tokens" if args.stream else "chat"
    budget = json.loads(pathlib.Path(__file__).with_name("instructions.json").read_text())
    over = False
    for mode, flags in MODES.items():
        many, few = (collected(args.binary, flags, times, *asked) for times in (MANY, FEW))
        each = (many - few) / (MANY - FEW)
        line = f"{mode}: {each:,.0f} instructions a {kind}"
        if args.check:
            allowed = budget[args.check][mode]
            line += f", {each / allowed - 1:+.1%} of the budget of {allowed:,}"
            over |= each > 1.05 * allowed
        print(line, flush=True)
    if over:
        sys.exit("over the budget: see benches/instructions.json")


if __name__ == "__main__":
    main()
