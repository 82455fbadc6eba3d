"""Drafts of a real server: counters, log lines and replies tell the same, and what was configured.

    python tests/python/speculation_live.py --sim target/debug/vllm-sim [--tokens 100000]

For each of vLLM's synthetic settings a server makes so many tokens; the mean acceptance length by its
counters must be the configured one within 1 %, the lines `SpecDecoding metrics: …` must add up to the
counters, and a step that accepts more must shorten the time per output token. Exit code 1 with the reason.
"""
import argparse, concurrent.futures, json, os, pathlib, re, socket, subprocess, sys, tempfile, time
import urllib.request

HOST = "127.0.0.1"
SETTINGS = [
    ("eagle3", 4, {"synthetic_acceptance_length": 3.24}, 3.24),
    ("mtp", 3, {"synthetic_acceptance_length": 2.83}, 2.83),
    ("eagle3", 3, {"synthetic_acceptance_rates": [0.73, 0.521, 0.355]}, 2.606),
    ("mtp", 3, {"synthetic_acceptance_length": 1.0}, 1.0),
]
LINE = re.compile(
    r"SpecDecoding metrics: Mean acceptance length: ([\d.]+), Accepted throughput: [\d.]+ tokens/s, "
    r"Drafted throughput: [\d.]+ tokens/s, Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    r"Per-position acceptance rate: ((?:[\d.]+, )+)Avg Draft acceptance rate: ([\d.]+)%")


def call(port, path, body=None):
    request = urllib.request.Request(f"http://{HOST}:{port}{path}",
                                     None if body is None else json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def metric(page, name, label=""):
    lines = [line for line in page.splitlines() if line.startswith(f"vllm:{name}") and label in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def run(args, method, drafts, synthetic, expected):
    with socket.socket() as s:
        s.bind((HOST, 0))
        port = s.getsockname()[1]
    config = {"method": method, "num_speculative_tokens": drafts, "rejection_sample_method": "synthetic",
              **synthetic, **({"model": "d"} if method == "eagle3" else {})}
    log = tempfile.NamedTemporaryFile(prefix="vllm-sim-", suffix=".log")
    sim = subprocess.Popen(
        [args.sim, "serve", "demo", "--host", HOST, "--port", str(port), "--max-model-len", "20000",
         "--inter-token-latency", "1ms", "--speculative-config", json.dumps(config)],
        env={**os.environ, "VLLM_LOG_STATS_INTERVAL": "1"}, stdout=log, stderr=subprocess.STDOUT)
    text = pathlib.Path(log.name)
    try:
        while True:
            try:
                call(port, "/health")
                break
            except OSError:
                assert sim.poll() is None, text.read_text()
                time.sleep(0.05)
        clients = 20
        body = {"model": "demo", "prompt": "one two three", "max_tokens": args.tokens // clients,
                "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            answers = list(pool.map(lambda _: json.loads(call(port, "/v1/completions", body)),
                                    range(clients)))
        page = call(port, "/metrics")
        steps = metric(page, "spec_decode_num_drafts_total")
        accepted = metric(page, "spec_decode_num_accepted_tokens_total")
        proposed = metric(page, "spec_decode_num_draft_tokens_total")
        # The last line comes an interval after the last draft.
        deadline = time.monotonic() + 30
        while True:
            lines = LINE.findall(text.read_text())
            logged, drafted = (sum(int(line[at]) for line in lines) for at in (1, 2))
            if drafted >= proposed or time.monotonic() > deadline:
                break
            time.sleep(0.2)
    finally:
        sim.kill()
        sim.wait()
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    length = 1 + accepted / steps
    positions = [metric(page, "spec_decode_num_accepted_tokens_per_pos_total", f'position="{at}"')
                 for at in range(drafts)]
    per_token = metric(page, "request_time_per_output_token_seconds_sum") / len(answers)
    faults = []
    if tokens != args.tokens // clients * clients:
        faults.append(f"{tokens} tokens")
    if abs(length / expected - 1) > 0.01:
        faults.append(f"mean length {length:.4f} where {expected} is configured")
    if sum(positions) != accepted or proposed != drafts * steps:
        faults.append(f"positions {positions}, {accepted} accepted, {proposed} proposed in {steps} steps")
    if (logged, drafted) != (accepted, proposed):
        faults.append(f"the log has {logged} of {drafted}, the counters {accepted} of {proposed}")
    if any(len(line[3].split(", ")) != drafts + 1 for line in lines):
        faults.append("not a rate for each position")
    if any(abs(float(line[0]) - (1 + int(line[1]) * drafts / int(line[2]))) > 0.006 for line in lines):
        faults.append("a line's mean is not that of its numbers")
    print(json.dumps({"method": method, **synthetic, "tokens": tokens, "steps": steps,
                      "mean_length": round(length, 4), "lines": len(lines),
                      "ms_per_token": round(per_token * 1000, 4), "faults": faults}), flush=True)
    return faults, per_token


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sim", required=True)
    parser.add_argument("--tokens", type=int, default=100_000)
    args = parser.parse_args()
    results = [run(args, *setting) for setting in SETTINGS]
    wrong = [words for faults, _ in results for words in faults]
    plain = results[-1][1]
    for (_, per_token), (*_, expected) in zip(results, SETTINGS):
        if abs(plain / per_token / expected - 1) > 0.1:
            wrong.append(f"{expected} tokens a step, but {plain / per_token:.2f} times as fast")
    for words in wrong:
        print("FAIL", words)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
