#!/usr/bin/env python3
"""Compares the pages of /metrics of two builds line by line, for 35 configurations: compare_metrics.py OLD NEW

Both servers get the same requests. Of measured times only the values are masked: names, labels, buckets,
order and HELP texts must be equal. `--ignore-help` compares all but the HELP texts.
"""
import http.client, json, pathlib, subprocess, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from compare_answers import TIMED  # noqa: E402

ALONE, SERVE = ["--model", "demo"], ["serve", "demo"]
OFFLOAD = ["serve", "meta-llama/Llama-3.1-8B-Instruct", "--served-model-name", "demo", "--gpu", "H100",
           "--kv-offloading-size", "64"]
LORA = ["--enable-lora", "--max-loras", "4", "--lora-modules", "a=/tmp/a", "b=/tmp/b"]
SPEC = ["--speculative-config", '{"method":"ngram","num_speculative_tokens":3}']
NIXL = ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
SGLANG = ["sglang", "--model-path", "demo", "--enable-metrics"]
FAKE = ["--fake-metrics", json.dumps({
    "running-requests": 3, "waiting-requests": "ramp:1:1:1s", "kv-cache-usage": 0.5, "ttft-buckets-values": [1, 2],
    "request-prompt-tokens": [1, 2, 3], "request-success-total": {"stop": 4, "tool_calls": 1},
    "loras": [{"running": "a", "waiting": "", "timestamp": 5}]})]
CONFIGURATIONS = [
    ALONE, SERVE, [*SERVE, "--data-parallel-size", "3"], [*SERVE, "--data-parallel-size", "3", "--api-server-count", "1"],
    [*SERVE, "--api-server-count", "2", "--dev-mode"], [*SERVE, *LORA], [*SERVE, *LORA, "--data-parallel-size", "12"],
    [*ALONE, *LORA], [*ALONE, "--compat", "llm-d", *LORA], [*ALONE, "--legacy-metrics"], [*ALONE, "--compat", "llm-d", "--legacy-metrics"],
    [*SERVE, *SPEC], [*SERVE, *SPEC, "--data-parallel-size", "2", "--api-server-count", "2"], [*SERVE, *NIXL],
    OFFLOAD, [*OFFLOAD, "--simple-kv-offload", "--data-parallel-size", "2"],
    [*SERVE, "--kv-cache-metrics", "--kv-cache-metrics-sample", "1", "--enable-mfu-metrics", "--dev-mode"],
    [*SERVE, "--disable-log-stats"], [*ALONE, *FAKE], [*ALONE, "--compat", "llm-d", *FAKE],
    [*SERVE, "--data-parallel-size", "4"], [*SERVE, "--vllm-version", "0.26"], [*SERVE, "--vllm-version", "0.31", *NIXL],
    [*SERVE, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"], [*SERVE, "--max-num-queued-reqs", "1", "--max-num-seqs", "1"],
    ["serve", "meta-llama/Llama-3.1-8B-Instruct", "--served-model-name", "demo", "--gpu", "H100", "--enable-mfu-metrics"],
    [*SERVE, "--runner", "pooling"], [*SERVE, "--vllm-version", "0.32", *NIXL, *LORA], [*SERVE, "--vllm-version", "0.33", *SPEC, "--legacy-metrics"],
    [*SERVE, *LORA, "--preview", "lora-adapter-loaded,kv-cache-token-usage"],
    SGLANG, [*SGLANG, "--dp-size", "2"], [*SGLANG, "--is-embedding"], [*SGLANG, "--enable-lora", "--lora-paths", "a=/tmp/a"], [*SGLANG, "--schedule-policy", "lpm", "--page-size", "16"],
]
IMAGE = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
         "rkJggg==")
CHAT = {"messages": [{"role": "user", "content": "Where is the key? " * 20}], "max_tokens": 9, "seed": 1}
REQUESTS = [
    ("POST", "/v1/chat/completions", {"model": "demo", **CHAT}),
    ("POST", "/v1/chat/completions", {"model": "demo", **CHAT, "stream": True}),
    ("POST", "/v1/completions", {"model": "a", "prompt": "one", "max_tokens": 3, "n": 2}),
    ("POST", "/v1/completions", {"model": "demo", "prompt": "two", "max_tokens": 10**9}),
    ("GET", "/v1/models", None), ("GET", "/nowhere", None), ("POST", "/sleep", None), ("POST", "/wake_up", None),
    ("POST", "/admin/config", {"failure-injection-rate": 100, "failure-types": ["rate_limit"]}),
    ("POST", "/v1/completions", {"model": "demo", "prompt": "three"}),
    ("POST", "/v1/chat/completions", {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]}]}),
    ("POST", "/generate", {"text": "one two three", "sampling_params": {"max_new_tokens": 5}}),
    ("POST", "/generate", {"text": "one two three", "sampling_params": {"max_new_tokens": 5}, "stream": True}),
    ("POST", "/v1/embeddings", {"model": "demo", "input": ["one", "two three"]}), ("GET", "/metrics/", None),
]


def ask(port, method, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"content-type": "application/json"})
    return connection.getresponse().read().decode()


def idle_page(port):
    """The page once no request runs; that of fake metrics after a second."""
    for _ in range(20):
        text = ask(port, "GET", "/metrics", None)
        running = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")]
        if all(line.endswith(" 0.0") for line in running):
            break
        time.sleep(0.05)
    return text


def mask(line):
    """Masks the value of a measured time, and the sizes of answers, which other changes may change."""
    masked = TIMED.match(line) or line.startswith("http_response_size_bytes_sum")
    return line.rsplit(" ", 1)[0] + " *" if masked else line


def pages(binary, flags, port, skips_help):
    command = [binary, *flags, "--port", str(port), "--seed", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline, texts = time.time() + 30, []
            while not texts:
                try:
                    texts.append(ask(port, "GET", "/metrics", None))
                except OSError:
                    if time.time() > deadline or server.poll() is not None:
                        raise SystemExit(f"{' '.join(command)} does not answer")
                    time.sleep(0.05)
            for request in REQUESTS:
                ask(port, *request)
            texts.append(idle_page(port))
        finally:
            server.terminate()
    lines = [mask(line) for text in texts for line in text.splitlines()]
    return [line for line in lines if not (skips_help and line.startswith("# HELP"))]


def main():
    old, new = [word for word in sys.argv[1:] if not word.startswith("--")]
    differing = total = 0
    for number, flags in enumerate(CONFIGURATIONS):
        before, after = (pages(binary, flags, 23000 + 50 * number + 25 * k, "--ignore-help" in sys.argv)
                         for k, binary in enumerate((old, new)))
        total += len(before)
        different = [pair for pair in zip(before, after) if pair[0] != pair[1]]
        if different or len(before) != len(after):
            differing += 1
            print(f"{' '.join(flags)}: {len(before)} and {len(after)} lines, {len(different)} differ")
            for pair in different[:5]:
                print("  - {}\n  + {}".format(*pair))
    print(f"{len(CONFIGURATIONS)} configurations, {total} lines: {differing} differ")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
