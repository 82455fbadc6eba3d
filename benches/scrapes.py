#!/usr/bin/env python3
"""CPU time and memory of scrapes of many replicas with adapters: scrapes.py BINARY... [--flags FLAG...]

Each of 200 servers in one process answers one request for each of 50 adapters, then scrapes in turn. The builds
alternate; the last lines have the median of each. `--replicas 1 --flags --data-parallel-size 200` is one large page.
"""
import argparse, http.client, json, os, socket, statistics, subprocess, time

TICKS = os.sysconf("SC_CLK_TCK")


def free_ports(count):
    """The first of so many free ports in a row."""
    for base in range(20000, 60000, count):
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
        except OSError:
            pass
    raise SystemExit("no free ports")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def mebibytes(pid, name):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024


def connect(port, server):
    """A connection to a server that is up."""
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/health")
            connection.getresponse().read()
            return connection
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"did not start: {server.args}")


def scrape(connections):
    size = 0
    for connection in connections:
        connection.request("GET", "/metrics")
        size += len(connection.getresponse().read())
    return size


def measure(binary, args):
    base = free_ports(args.replicas)
    adapters = [f"adapter-{number}" for number in range(args.adapters)]
    words = [binary, "serve", "demo", "--port", str(base), "--replicas", str(args.replicas), "--stagger-delay", "0",
             "--enable-lora", "--max-loras", "8", *args.flags, "--lora-modules", *[f"{name}=/tmp/{name}" for name in adapters]]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**os.environ, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600"})
    try:
        connections = [connect(base + number, server) for number in range(args.replicas)]
        for connection in connections:
            for name in adapters:
                body = json.dumps({"model": name, "prompt": "one two", "max_tokens": 2})
                connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
                connection.getresponse().read()
        time.sleep(3)
        idle = mebibytes(server.pid, "VmRSS")
        with open(f"/proc/{server.pid}/clear_refs", "w") as refs:
            refs.write("5")  # VmHWM starts again.
        size, before = scrape(connections), cpu_seconds(server.pid)
        for _ in range(args.rounds):
            scrape(connections)
        pages = args.rounds * args.replicas
        peak = mebibytes(server.pid, "VmHWM")
        return {"us a scrape": (cpu_seconds(server.pid) - before) / pages * 1e6, "MiB at peak": peak,
                "MiB more than before": peak - idle, "KiB a page": size / args.replicas / 1024}
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("binaries", nargs="+", metavar="BINARY")
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--adapters", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of the servers, last")
    args = parser.parse_args()
    runs = {binary: [] for binary in args.binaries}
    for _ in range(args.repeats):
        for binary, measured in runs.items():
            measured.append(measure(binary, args))
    for binary, measured in runs.items():
        medians = {name: statistics.median(run[name] for run in measured) for name in measured[0]}
        print(binary, ", ".join(f"{value:,.1f} {name}" for name, value in medians.items()))


if __name__ == "__main__":
    main()
