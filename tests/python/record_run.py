#!/usr/bin/env python3
"""Sends load to a vLLM server and writes what was measured as a run that `vllm-sim validate` reads.

    record_run.py --url http://127.0.0.1:8000 --model-folder DIR --hardware H100 --tp 1 \\
        --max-num-seqs 256 --max-num-batched-tokens 8192 --rate 4 --requests 400 --out run.json

Prompts are random tokens, so that nothing hits the prefix cache; lengths are drawn between 0.8 and 1
of `--input` and `--output`, replies are forced to their length (`ignore_eos`), and requests leave at
an even rate whether earlier ones are done or not. Warm-up requests come first and are not recorded.
Block size, number of blocks and the like are read from the server's /metrics; sizes of the model
from `config.json` and sampling from `generation_config.json` in `--model-folder` (a copy of the two
files is enough). What only the server's command line says (`--tp`, batch limits) is asked for.
Needs nothing but Python.
"""
import argparse
import http.client
import json
import os
import random
import re
import statistics
import sys
import threading
import time
import urllib.parse
import urllib.request

WARM_UP = 8
QUANTIZATIONS = ["fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4", "nvfp4", "mxfp4", "awq", "awq_marlin",
                 "gptq", "gptq_marlin", "bitsandbytes", "compressed-tensors"]


def model_config(folder):
    """The config.json, which validate reads itself; a method of quantisation that it would take for
    none is refused."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    text = config.get("text_config", config)
    method = (text.get("quantization_config") or config.get("quantization_config") or {}).get("quant_method", "")
    if method and method not in QUANTIZATIONS:
        sys.exit(f"quant_method {method!r} is not known to vllm-sim, there are {', '.join(QUANTIZATIONS)}")
    return {"config": config}, text["vocab_size"]


def truncates(folder):
    try:
        with open(os.path.join(folder, "generation_config.json")) as file:
            config = json.load(file)
    except FileNotFoundError:
        return False
    return config.get("top_p", 1.0) < 1.0 or config.get("top_k", 0) > 0


def cache_config(url):
    """Labels of vllm:cache_config_info."""
    with urllib.request.urlopen(url + "/metrics") as reply:
        text = reply.read().decode()
    found = re.search(r"^vllm:cache_config_info\{(.*)\} ", text, re.M)
    if not found:
        sys.exit("the server's /metrics has no vllm:cache_config_info")
    return dict(re.findall(r'(\w+)="([^"]*)"', found[1]))


def version(url):
    with urllib.request.urlopen(url + "/version") as reply:
        return json.load(reply)["version"]


def send(url, model, prompt, output, seen):
    """Fills `seen` with seconds on the monotonic clock; `error` instead where it fails."""
    place = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(place.hostname, place.port, timeout=300)
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": output, "stream": True,
                           "ignore_eos": True, "stream_options": {"include_usage": True}})
        seen["sent"] = time.monotonic()
        connection.request("POST", place.path.rstrip("/") + "/v1/completions", body,
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise OSError(f"{reply.status}: {reply.read(300)!r}")
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            now, event = time.monotonic(), json.loads(line[6:])
            if event.get("choices"):
                seen.setdefault("first", now)
                seen["last"] = now
            if event.get("usage"):
                seen["usage"] = event["usage"]
        connection.close()
        if seen["usage"]["completion_tokens"] != output or seen["usage"]["prompt_tokens"] != len(prompt):
            raise OSError(f"lengths are not as asked for: {seen['usage']}")
    except (OSError, KeyError, ValueError, http.client.HTTPException) as error:
        seen["error"] = str(error) or repr(error)


def play(args, vocabulary, draw):
    def prompt():
        length = draw.randint(max(1, round(0.8 * args.input)), args.input)
        return [draw.randrange(vocabulary // 10, vocabulary * 9 // 10) for _ in range(length)]

    def length():
        return draw.randint(max(2, round(0.8 * args.output)), args.output)

    for _ in range(WARM_UP):
        seen = {}
        send(args.url, args.model, prompt(), length(), seen)
        if "error" in seen:
            sys.exit(f"a warm-up request failed: {seen['error']}")
    work = [(prompt(), length(), {}) for _ in range(args.requests)]
    begin, threads = time.monotonic() + 0.5, []
    for number, (tokens, output, seen) in enumerate(work):
        seen["asked"] = begin + number / args.rate
        time.sleep(max(0.0, seen["asked"] - time.monotonic()))
        thread = threading.Thread(target=send, args=(args.url, args.model, tokens, output, seen))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    failed = [seen["error"] for *_, seen in work if "error" in seen]
    if failed:
        sys.exit(f"{len(failed)} of {len(work)} requests failed: {failed[0]}")
    return work


def percentile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    low = values[int(at)]
    return low + (values[min(int(at) + 1, len(values) - 1)] - low) * (at % 1)


def summary(requests):
    said = {"completed": len(requests), "failed": 0}
    for key in ("ttft", "itl", "e2e"):
        values = [request[f"{key}_ms"] for request in requests]
        said[f"{key}_mean"] = round(statistics.mean(values), 4)
        for share in (50, 90, 95, 99):
            said[f"{key}_p{share}"] = round(percentile(values, share / 100), 4)
    return said


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--url", default="http://127.0.0.1:8000")
    args.add_argument("--model", help="as the server calls it; its first model")
    args.add_argument("--model-folder", required=True)
    args.add_argument("--id", default="own")
    args.add_argument("--source", default="own recording")
    args.add_argument("--hardware", required=True, help="as vllm-sim's --gpu takes it")
    args.add_argument("--tp", type=int, default=1)
    args.add_argument("--dp", type=int, default=1)
    args.add_argument("--expert-parallel", action="store_true")
    args.add_argument("--max-num-seqs", type=int, required=True)
    args.add_argument("--max-num-batched-tokens", type=int, required=True)
    args.add_argument("--max-model-len", type=int)
    args.add_argument("--no-async-scheduling", action="store_true")
    args.add_argument("--no-chunked-prefill", action="store_true")
    args.add_argument("--rate", type=float, default=4.0, help="requests a second")
    args.add_argument("--requests", type=int, default=400)
    args.add_argument("--input", type=int, default=1024)
    args.add_argument("--output", type=int, default=256)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--overload", action="store_true", help="the rate is more than the server can do")
    args.add_argument("--out", required=True)
    args = args.parse_args()
    args.url = args.url.rstrip("/")
    shape, vocabulary = model_config(args.model_folder)
    if not args.model:
        with urllib.request.urlopen(args.url + "/v1/models") as reply:
            args.model = json.load(reply)["data"][0]["id"]
    cache, served = cache_config(args.url), version(args.url)
    work = play(args, vocabulary, random.Random(args.seed))
    start = work[0][2]["sent"]
    trace, requests = [], []
    for tokens, output, seen in work:
        trace.append({"t": round(seen["sent"] - start, 6), "asked_t": round(seen["asked"] - start, 6), "input": len(tokens), "output": output})
        ms = [1e3 * (seen[key] - seen["sent"]) for key in ("first", "last")]
        requests.append({"ttft_ms": round(ms[0], 4), "e2e_ms": round(ms[1], 4),
                         "itl_ms": round((ms[1] - ms[0]) / (output - 1), 4)})
    blocks = cache.get("num_gpu_blocks", "None")
    run = {
        "id": args.id, "source": f"{args.source} (vLLM {served})", "model": args.model,
        "model_config": shape, "hardware": args.hardware, "tp": args.tp, "dp": args.dp,
        "ep": args.expert_parallel, "regime": "overload" if args.overload else "stable",
        "vllm": {
            "version": served, "max_num_seqs": args.max_num_seqs,
            "max_num_batched_tokens": args.max_num_batched_tokens,
            "block_size": int(cache["block_size"]),
            "gpu_memory_utilization": float(cache.get("gpu_memory_utilization", 0.9)),
            "max_model_len": args.max_model_len,
            "enable_prefix_caching": cache.get("enable_prefix_caching") == "True",
            "enable_chunked_prefill": not args.no_chunked_prefill,
            "async_scheduling": not args.no_async_scheduling,
            "kv_cache_dtype": cache.get("cache_dtype", "auto"),
            "num_gpu_blocks": int(blocks) if blocks.isdigit() else None,
        },
        "workload": {"kind": "trace", "api": "completions, streaming", "client_timeout_s": None,
                     "client_max_concurrency": None, "first_use_stall_s": 0, "trace": trace},
        "sampling": {"truncated_sampling": truncates(args.model_folder)},
        "actual": {"summary": summary(requests), "stages": [], "requests": requests},
    }
    with open(args.out, "w") as file:
        json.dump(run, file, indent=1)
        file.write("\n")
    means = ", ".join(f"{key} {run['actual']['summary'][key + '_mean']:.1f} ms" for key in ("ttft", "itl", "e2e"))
    print(f"{len(requests)} requests: mean {means}; {args.out}")


if __name__ == "__main__":
    main()
