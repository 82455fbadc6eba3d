#!/usr/bin/env python3
"""Random workloads by class: workloads.py FOLDER COUNT [FIRST_SEED [CLASS...]]. Writes CLASS-SEED.json.

Seeds from 1,000,000 on are for judging, not for mending.
"""
import json
import random
import sys

SYNC = {
    "plain": {}, "no-prefix-cache": {"enable_prefix_caching": False}, "no-chunks": {"enable_chunked_prefill": False},
    "long-prefill": {"long_prefill_token_threshold": 40}, "watermark": {"watermark": 0.1}, "priority": {"policy": "priority"},
    "adaptive-prefill": {"long_prefill_token_threshold": 20, "long_prefill_token_threshold_adaptive": True},
    "tight": {"tight": True}, "tight-priority": {"policy": "priority", "tight": True},
    "tight-no-cache": {"enable_prefix_caching": False, "tight": True}, "aborts": {"aborts": True},
    "tight-aborts": {"aborts": True, "tight": True}, "salts": {"salts": True}, "few-seqs": {"max_num_seqs": 2},
    "small-budget": {"max_num_batched_tokens": 24}, "block-32": {"block_size": 32},
    "tight-watermark": {"tight": True, "watermark": 0.15}, "no-reserve": {"scheduler_reserve_full_isl": False, "tight": True},
    "scheduled-tokens": {"max_num_scheduled_tokens": 40},
    "lora-1": {"max_loras": 1, "adapters": 3}, "lora-2": {"max_loras": 2, "adapters": 4},
    "lora-many": {"max_loras": 8, "adapters": 12, "max_num_seqs": 16}, "tight-lora": {"max_loras": 2, "adapters": 4, "tight": True},
    "lora-aborts": {"max_loras": 2, "adapters": 4, "aborts": True},
    "interval": {"prefill_schedule_interval": 4}, "tight-interval": {"prefill_schedule_interval": 3, "tight": True},
    "window": {"groups": ["64"], "retention": None}, "window-sparse": {"groups": ["64"], "retention": 0},
    "tight-window": {"groups": ["64"], "retention": None, "tight": True}, "hybrid-aborts": {"groups": ["64", "full"], "retention": 0, "aborts": True},
    "hybrid-interval": {"groups": ["64", "full"], "retention": 64}, "hybrid-full": {"groups": ["64", "64", "full", "full"], "retention": 0},
    "hybrid": {"groups": ["64", "full"], "retention": None},
    "hybrid-sparse": {"groups": ["64", "full"], "retention": 0}, "hybrid-many": {"groups": ["32", "32", "32", "full"], "retention": 0},
    "tight-hybrid": {"groups": ["48", "full"], "retention": 0, "tight": True},
    "mamba": {"groups": ["mamba", "full"], "retention": 0}, "mamba-dense": {"groups": ["mamba", "full"], "retention": None},
    "tight-mamba": {"groups": ["mamba", "full"], "retention": 0, "tight": True},
    "ngram": {"speculation": {"method": "ngram", "k": 4}}, "eagle": {"speculation": {"method": "eagle", "k": 3}},
    "eagle-plain-hashes": {"speculation": {"method": "eagle", "k": 3, "plain_hashes": True}},
    "mtp": {"speculation": {"method": "mtp", "k": 1}}, "draft-model": {"speculation": {"method": "draft_model", "k": 4}},
    "tight-ngram": {"speculation": {"method": "ngram", "k": 4}, "tight": True},
    "tight-eagle": {"speculation": {"method": "eagle", "k": 3}, "tight": True},
    "tight-draft-model": {"speculation": {"method": "draft_model", "k": 4}, "tight": True},
    "mamba-many": {"groups": ["mamba", "mamba", "mamba", "full"], "retention": 0}, "mamba-aborts": {"groups": ["mamba", "full"], "retention": 0, "aborts": True},
    "hybrid-eagle": {"groups": ["64", "full"], "retention": 0, "speculation": {"method": "eagle", "k": 3}},
    "mamba-mtp": {"groups": ["mamba", "full"], "retention": 0, "speculation": {"method": "mtp", "k": 1}},
    "eagle-aborts": {"speculation": {"method": "eagle", "k": 3}, "aborts": True},
    "eagle-priority": {"speculation": {"method": "eagle", "k": 3}, "tight": True, "policy": "priority"},
    "ngram-long-prefill": {"speculation": {"method": "ngram", "k": 4}, "long_prefill_token_threshold": 24},
    "draft-small-budget": {"speculation": {"method": "draft_model", "k": 4}, "max_num_batched_tokens": 24},
    "remote": {"load_ms": 1700}, "tight-remote": {"load_ms": 2300, "tight": True},
    "remote-aborts": {"load_ms": 2300, "aborts": True}, "tight-producer": {"load_ms": 2300, "kv_role": "kv_producer", "tight": True},
    "tight-consumer": {"load_ms": 2300, "kv_role": "kv_consumer", "tight": True},
    "remote-eagle": {"load_ms": 1700, "speculation": {"method": "eagle", "k": 3}},
    "tight-remote-priority": {"load_ms": 2300, "tight": True, "policy": "priority"},
    "reset": {"resets": "reset"}, "reset-running": {"resets": "reset-running"}, "pause": {"resets": "pause"},
}
ASYNC = ["plain", "no-prefix-cache", "long-prefill", "watermark", "priority", "tight", "tight-priority", "tight-no-cache", "aborts",
         "tight-aborts", "few-seqs", "small-budget", "tight-watermark", "lora-1", "lora-2", "tight-lora", "lora-aborts", "interval",
         "tight-interval", "window", "window-sparse", "tight-window", "hybrid", "hybrid-sparse", "tight-hybrid",
         "mamba", "tight-mamba", "hybrid-eagle", "mamba-mtp", "eagle-aborts", "eagle-priority", "ngram-long-prefill",
         "draft-small-budget", "ngram", "eagle", "mtp",
         "draft-model", "tight-ngram", "tight-eagle", "tight-draft-model", "remote", "tight-remote", "remote-aborts", "tight-producer",
         "tight-consumer", "remote-eagle", "tight-remote-priority", "reset",
         "reset-running", "pause"]
CLASSES = {**SYNC, **{f"async-{name}": {**SYNC[name], "async_scheduling": True} for name in ASYNC}}


def drafts(rng, output, k, method):
    """For each output token the drafts after it: proposed, accepted."""
    made = []
    for _ in range(output):
        proposed = rng.choice([0, 0, k, k, rng.randrange(k + 1)]) if method == "ngram" else k
        accepted = 0
        while accepted < proposed and rng.random() < 0.6:
            accepted += 1
        made.append([proposed, accepted])
    return made


def workload(name, seed):
    rng = random.Random(f"{name}-{seed}")
    special = dict(CLASSES[name])
    tight, aborts, salts, adapters, resets = (special.pop(k, None) for k in ("tight", "aborts", "salts", "adapters", "resets"))
    groups = len(special.get("groups", ["full"]))
    blocks = rng.randrange(13, 22) if tight else rng.randrange(60, 200)
    config = {"num_gpu_blocks": blocks * (groups if groups > 1 else 1) + 3 * (groups - 1), "block_size": 16,
              "max_num_seqs": rng.choice([3, 6, 16]), "max_num_batched_tokens": rng.choice([64, 128, 512]), "max_model_len": 192, **special}
    if not config.get("enable_chunked_prefill", True):
        config["max_num_batched_tokens"] = max(192, config["max_num_batched_tokens"])
    # A prompt is a list of runs of tokens: the first token and their number.
    prefixes = [rng.randrange(30_000) for _ in range(3)]
    spec = config.get("speculation")
    requests = []
    for i in range(rng.randrange(4, 30)):
        shared = rng.choice([0, 7, 16, 48, 64, 96])
        prompt = [[rng.choice(prefixes), shared], [rng.randrange(30_000), rng.randrange(1, 60)]]
        length = shared + prompt[1][1]
        # A third arrives in bursts, the rest within a step.
        at = rng.randrange(0, 40) * 1000 + (0 if rng.random() < 0.3 else rng.randrange(1000))
        output = rng.randrange(1, 192 - length if rng.random() < 0.2 else 30)
        request = {"id": f"r{i}", "at": at, "prompt": prompt, "output": output}
        if config.get("policy") == "priority":
            request["priority"] = rng.randrange(-2, 3)
        if salts and rng.random() < 0.5:
            request["salt"] = rng.choice("ab")
        if adapters and rng.random() < 0.9:
            request["lora"] = rng.randrange(1, adapters + 1)
        if aborts and rng.random() < 0.4:
            request["abort_at"] = at + rng.randrange(20_000)
        if spec:
            request["drafts"] = drafts(rng, output, spec["k"], spec["method"])
        if config.get("load_ms") is not None and rng.random() < 0.6:
            request["remote"] = True
        requests.append(request)
    work = {"config": config, "requests": requests}
    if resets:
        work["commands"] = []
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(50_000)
            work["commands"].append({"at": at, "do": resets})
            if resets == "pause":
                work["commands"].append({"at": at + rng.randrange(1, 8000), "do": "resume"})
    return work


if __name__ == "__main__":
    folder, count, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    for name in sys.argv[4:] or CLASSES:
        for seed in range(first, first + count):
            json.dump(workload(name, seed), open(f"{folder}/{name}-{seed}.json", "w"))
