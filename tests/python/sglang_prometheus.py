#!/usr/bin/env python3
"""Has Prometheus scrape `vllm-sim sglang` and asks what dashboards, autoscalers and schedulers ask.

    sglang_prometheus.py BINARY PROMETHEUS

PROMETHEUS is the program of Prometheus 2.42 or later. Prints a line per query; exit code 1 when one failed.
"""

import concurrent.futures
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

HOST = "127.0.0.1"
HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
              "queue_time_seconds", "request_time_per_output_token_seconds", "prompt_tokens_histogram",
              "generation_tokens_histogram"]
COUNTERS = ["prompt_tokens_total", "generation_tokens_total", "num_requests_total", "cached_tokens_total"]
GAUGES = ["num_running_reqs", "num_queue_reqs", "token_usage", "num_used_tokens", "gen_throughput", "cache_hit_rate",
          "max_total_num_tokens", "page_size", "num_pages", "context_len"]
SCHEDULERS = ["avg(sglang:num_queue_reqs) + sum(sglang:num_running_reqs)", "max(sglang:token_usage)",
              "sum(rate(sglang:cached_tokens_total[30s])) / sum(rate(sglang:prompt_tokens_total[30s]))"]


def free_port():
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]


def get(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def until(seconds, holds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit("not within the time")


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sglang-prometheus-"))
    port, own = free_port(), free_port()
    server, prometheus = f"http://{HOST}:{port}", f"http://{HOST}:{own}"
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [
        {"job_name": "sglang", "static_configs": [{"targets": [f"{HOST}:{port}"]}]}]}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    commands = [[sys.argv[1], "sglang", "--model-path", "demo", "--port", str(port), "--enable-metrics",
                 "--enable-cache-report", "--inter-token-latency", "5ms"],
                [sys.argv[2], f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={HOST}:{own}"]]
    log = open(folder / "log", "w")
    processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]

    def query(text):
        answer = json.loads(get(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": text})))
        return [(found["metric"], float(found["value"][1])) for found in answer["data"]["result"]]

    def ask(number):
        body = {"messages": [{"role": "user", "content": f"A question, {number % 3}"}], "max_tokens": 12, "ignore_eos": True}
        return get(f"{server}/v1/chat/completions", body)

    failed = False
    try:
        until(20, lambda: get(f"{server}/health") == "" and get(f"{prometheus}/-/ready"))
        until(20, lambda: query("up == 1"))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            until(20, lambda: list(pool.map(ask, range(8))) and len(query("count_over_time(up[1m]) >= 6")) > 0)
        checks = [(f"histogram_quantile(0.95, sum by (le, model_name) (rate(sglang:{name}_bucket[30s])))", ">= 0")
                  for name in HISTOGRAMS]
        checks += [(f"sum by (model_name) (rate(sglang:{name}[30s]))", "> 0") for name in COUNTERS]
        checks += [(f"sglang:{name}", ">= 0") for name in GAUGES] + [(text, ">= 0") for text in SCHEDULERS]
        for text, wanted in checks:
            good = query(f"({text}) {wanted}")
            failed |= not good
            print("ok  " if good else "FAIL", text, good[0][1] if good else query(text), flush=True)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    sys.exit(failed)


if __name__ == "__main__":
    main()
