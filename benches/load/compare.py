#!/usr/bin/env python3
"""The table of docs/performance.md: this program against a bare hyper server, an older build and peers.

    cargo build --release && python3 benches/load/compare.py

Builds the load client and the limit server, starts every server afresh in every round, one after the
other, and prints for each scenario the medians, their ratio to `hyper`, and the range. CPU is that of
the server and its children. Loads 127.0.0.1 only and ends by itself: a round of all scenarios takes about two minutes.

With --check only the scenarios of bounds.json run, and the exit code is 1 if the ratio of the program to `hyper` in the
same run exceeds a bound: memory of an idle stream, CPU of a paced token.
"""
import argparse, json, os, pathlib, shlex, signal, socket, statistics, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What the load is, and what of it is shown.
COST = [("server us/request", "server.us_per_req"), ("requests/s", "req_per_s")]
CHUNK = [("server us/chunk", "server.us_per_chunk"), ("chunks/s", "chunks_per_s")]
PACE = CHUNK + [("mean gap ms", "itl_ms.mean"), ("gap error p50 ms", "itl_abs_err_ms.p50"),
                ("schedule error p50 ms", "schedule_abs_err_ms.p50"),
                ("schedule error p99 ms", "schedule_abs_err_ms.p99"),
                ("sleeping thread p99 ms", "machine_wake_late_ms.p99")]
SCENARIOS = {
    "json": (dict(tokens=16), COST, "a chat of 16 tokens, not streamed"),
    "stream": (dict(stream=True, tokens=100), CHUNK, "streams without delays"),
    "paced": (dict(stream=True, conns=2000, ttft=100, itl=20, tokens=500, ramp=2, secs=6), PACE,
              "2,000 streams, a token each 20 ms"),
    "paced5000": (dict(stream=True, conns=5000, ttft=100, itl=20, tokens=800, ramp=4, secs=6), PACE,
                  "5,000 streams, a token each 20 ms"),
    "idle": (dict(stream=True, conns=10000, ttft=60000, itl=1000, tokens=2, ramp=5, secs=2),
             [("KiB/stream", "server.rss_kib_per_open_stream"), ("open streams", "server.max_open_streams")],
             "10,000 streams that wait for their first token"),
    "start": (dict(times=10), [("ms to the first 200", "median_ms"), ("KiB then", "rss_kib_at_ready")],
              "from the start to the first 200 on /health"),
}
BASE = dict(conns=32, secs=4, warm=1, ramp=0, ttft=0, itl=0, tokens=100, times=10, stream=False)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_up(port, server, seconds=60):
    end = time.time() + seconds
    while time.time() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            time.sleep(0.3)
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"did not start: {shlex.join(server.args)}")


def stop(server):
    try:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(5)
    except (subprocess.TimeoutExpired, ProcessLookupError):
        server.kill()
        server.wait(5)


def one_run(load, scenario, options, argv, port):
    url = ["--url", f"127.0.0.1:{port}"]
    if scenario == "start":
        command = [load, "startup", *url, "--times", str(options["times"]), "--", *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(argv, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        wait_up(port, server)
        asked = {"conns": options["conns"], "seconds": options["secs"], "warmup": options["warm"],
                 "ramp": options["ramp"], "stream": str(options["stream"]).lower(),
                 "max-tokens": options["tokens"], "expect-ttft-ms": options["ttft"],
                 "expect-itl-ms": options["itl"], "server-pid": server.pid}
        flags = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
        return subprocess.run([load, *url, *flags], capture_output=True, text=True, timeout=600)
    finally:
        stop(server)


def value(result, path):
    for key in path.split("."):
        result = result.get(key) if isinstance(result, dict) else None
    return result


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--binary", default=ROOT / "target/release/vllm-sim", help="the program")
    parser.add_argument("--old", help="an older build of it")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND",
                        help="another server; {port}, {ttft}, {itl} (ms) and {tokens} are filled in; its model is m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail above the ratios of bounds.json")
    parser.add_argument("--json", help="append the raw results to this file, one line each")
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    args = parser.parse_args()
    bounds = json.loads((HERE / "bounds.json").read_text()) if args.check else {}
    exceeded = []
    if args.check:
        args.scenarios = [name for name in args.scenarios if name in bounds]
    build = ["cargo", "build", "--release", "--quiet", "--manifest-path", str(HERE / "Cargo.toml")]
    target = os.environ.get("LOAD_TARGET_DIR", str(HERE / "target"))
    subprocess.run(build + ["--target-dir", target], check=True)
    load, limit = f"{target}/release/load", f"{target}/release/limit --port {{port}} --tokens {{tokens}}"
    pace = "--ttft-ms {ttft} --itl-ms {itl}"
    flags = "--port {port} --max-num-seqs 100000 --time-to-first-token {ttft} --inter-token-latency {itl}"
    served = "--port {port} --max-num-seqs 100000 --max-num-batched-tokens 1000000 --enable-prefix-caching"
    for scenario in args.scenarios:
        changed, rows, about = SCENARIOS[scenario]
        options = {**BASE, **changed}
        batch = " --batch 1000" if scenario == "stream" else ""
        servers = {"hyper": f"{limit} {pace}{batch}"}
        if options["itl"]:
            servers["epoll"] = f"{limit} {pace} --engine epoll"
        servers["vllm-sim"] = f"{args.binary} --model m {flags}"
        if not options["itl"]:
            servers["vllm-sim serve"] = f"{args.binary} serve m {served}"
        if args.old:
            servers["old"] = f"{args.old} --model m {flags}"
            if not options["itl"]:
                servers["old serve"] = f"{args.old} serve m {served}"
        servers.update(peer.split("=", 1) for peer in args.peer)
        results = {name: [] for name in servers}
        for number in range(args.rounds):
            # A machine gets slower or faster meanwhile: each other round begins at the other end.
            for name, command in list(servers.items())[:: 1 if number % 2 == 0 else -1]:
                port = free_port()
                run = one_run(load, scenario, options, shlex.split(command.format(port=port, **options)), port)
                if run.returncode:
                    sys.exit(f"{name}: the load client failed: {run.stderr[-400:]}")
                result = json.loads(run.stdout)
                if result.get("errors"):
                    print(f"{name}: {result['errors']} requests failed: {result['error_kinds']}", file=sys.stderr)
                results[name].append(result)
                if args.json:
                    with open(args.json, "a") as raw:
                        raw.write(json.dumps({"scenario": scenario, "round": number, "server": name, **result}) + "\n")
        print(f"\n{scenario}: {about}; {args.rounds} rounds, median (ratio to hyper) [range]\n")
        print("| | " + " | ".join(servers) + " |\n" + "|---" * (len(servers) + 1) + "|")
        for title, path in rows:
            cells, bound = [], bounds.get(scenario, {}).get(path)
            for name in servers:
                found = [value(result, path) for result in results[name]]
                base = statistics.median(value(result, path) for result in results["hyper"])
                middle = statistics.median(found)
                ratio = f" ({middle / base:.2f}x)" if base else ""
                cells.append(f"{middle:g}{ratio} [{min(found):g}..{max(found):g}]")
                if bound and name == "vllm-sim" and not middle <= bound * base:
                    exceeded.append(f"{scenario}, {title}: {middle / base:.2f} times hyper, at most {bound}")
            print(f"| {title} | " + " | ".join(cells) + " |", flush=True)
    if exceeded:
        sys.exit("\n".join(["", *exceeded]))


if __name__ == "__main__":
    main()
