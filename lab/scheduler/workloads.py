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
    "remote-interval": {"load_ms": 1700, "prefill_schedule_interval": 4}, "tight-remote-interval": {"load_ms": 2300, "prefill_schedule_interval": 3, "tight": True},
    "remote-aborts": {"load_ms": 2300, "aborts": True}, "tight-producer": {"load_ms": 2300, "kv_role": "kv_producer", "tight": True},
    "tight-consumer": {"load_ms": 2300, "kv_role": "kv_consumer", "tight": True},
    "remote-eagle": {"load_ms": 1700, "speculation": {"method": "eagle", "k": 3}},
    "tight-remote-priority": {"load_ms": 2300, "tight": True, "policy": "priority"},
    "reset": {"resets": "reset"}, "reset-running": {"resets": "reset-running"}, "pause": {"resets": "pause"},
    "media": {"media": True}, "tight-media": {"media": True, "tight": True}, "media-aborts": {"media": True, "aborts": True},
    "media-whole": {"media": True, "disable_chunked_mm_input": True}, "media-no-cache": {"media": True, "enable_prefix_caching": False},
    "media-long-prefill": {"media": True, "long_prefill_token_threshold": 24}, "media-eagle": {"media": True, "speculation": {"method": "eagle", "k": 3}},
    "media-whole-eagle": {"media": True, "disable_chunked_mm_input": True, "speculation": {"method": "eagle", "k": 3}},
    "media-ngram": {"media": True, "speculation": {"method": "ngram", "k": 4}}, "media-reset": {"media": True, "resets": "reset-encoder"},
    "media-reset-running": {"media": True, "resets": "reset-running"}, "media-hybrid": {"media": True, "groups": ["64", "full"], "retention": 0},
    "media-mamba": {"media": True, "groups": ["mamba", "full"], "retention": 0}, "media-lora": {"media": True, "max_loras": 2, "adapters": 4},
    "media-priority": {"media": True, "policy": "priority"},
    "grammar": {"grammars": True}, "tight-grammar": {"grammars": True, "tight": True}, "grammar-aborts": {"grammars": True, "aborts": True},
    "grammar-priority": {"grammars": True, "policy": "priority", "tight": True}, "grammar-eagle": {"grammars": True, "speculation": {"method": "eagle", "k": 3}},
    "grammar-interval": {"grammars": True, "prefill_schedule_interval": 3}, "grammar-media": {"grammars": True, "media": True},
    "load-failures": {"load_ms": 1700, "load_failures": "recompute"}, "load-failures-fail": {"load_ms": 1700, "load_failures": "fail"},
    "tight-load-failures": {"load_ms": 2300, "load_failures": "recompute", "tight": True},
    "tight-load-failures-fail": {"load_ms": 2300, "load_failures": "fail", "tight": True},
    "load-failures-aborts": {"load_ms": 2300, "load_failures": "recompute", "aborts": True},
    "load-failures-priority": {"load_ms": 2300, "load_failures": "recompute", "tight": True, "policy": "priority"},
    "load-failures-eagle": {"load_ms": 1700, "load_failures": "recompute", "speculation": {"method": "eagle", "k": 3}},
    "pause-wait": {"resets": "pause-new"}, "pause-wait-remote": {"resets": "pause-new", "load_ms": 1700}, "tight-pause-wait": {"resets": "pause-new", "tight": True},
    "ranks": {"ranks": True}, "ranks-interval": {"ranks": True, "prefill_schedule_interval": 4},
    "tight-ranks-interval": {"ranks": True, "prefill_schedule_interval": 3, "tight": True},
    "ranks-aborts": {"ranks": True, "aborts": True, "prefill_schedule_interval": 3},
    "ranks-remote": {"ranks": True, "load_ms": 1700}, "tight-ranks-remote": {"ranks": True, "load_ms": 2300, "tight": True},
    "ranks-remote-interval": {"ranks": True, "load_ms": 1700, "prefill_schedule_interval": 4},
    "ranks-remote-aborts": {"ranks": True, "load_ms": 2300, "aborts": True},
    "ranks-load-failures": {"ranks": True, "load_ms": 1700, "load_failures": "recompute"},
    "ranks-grammar": {"ranks": True, "grammars": True}, "ranks-nixl": {"ranks": True, "load_ms": 1700, "lease_ms": 3000},
    "tight-ranks-nixl": {"ranks": True, "load_ms": 2300, "lease_ms": 3000, "tight": True},
    "ranks-nixl-aborts": {"ranks": True, "load_ms": 2300, "lease_ms": 3000, "aborts": True},
    "nixl": {"load_ms": 1700, "lease_ms": 3000}, "tight-nixl": {"load_ms": 2300, "lease_ms": 3000, "tight": True},
    "nixl-aborts": {"load_ms": 2300, "lease_ms": 3000, "aborts": True}, "nixl-pause": {"load_ms": 1700, "lease_ms": 3000, "resets": "pause"},
    "tight-nixl-producer": {"load_ms": 1700, "lease_ms": 3000, "kv_role": "kv_producer", "tight": True},
    "tight-nixl-consumer": {"load_ms": 1700, "lease_ms": 3000, "kv_role": "kv_consumer", "tight": True},
    "nixl-push": {"load_ms": 1700, "lease_ms": 3000, "push": True}, "tight-nixl-push": {"load_ms": 2300, "lease_ms": 3000, "push": True, "tight": True},
    "nixl-push-aborts": {"load_ms": 2300, "lease_ms": 3000, "push": True, "aborts": True},
    "tight-nixl-push-producer": {"load_ms": 1700, "lease_ms": 3000, "push": True, "kv_role": "kv_producer", "tight": True},
    "tight-nixl-push-consumer": {"load_ms": 1700, "lease_ms": 3000, "push": True, "kv_role": "kv_consumer", "tight": True},
    "offload": {"offload": True}, "tight-offload": {"offload": True, "tight": True}, "offload-aborts": {"offload": True, "aborts": True, "tight": True},
    "offload-priority": {"offload": True, "tight": True, "policy": "priority"}, "offload-salts": {"offload": True, "tight": True, "salts": True},
    "offload-no-cache": {"offload": True, "enable_prefix_caching": False},
    "sleep": {"resets": "sleep"}, "pause-remote": {"resets": "pause", "load_ms": 1700},
}
ASYNC = ["plain", "no-prefix-cache", "long-prefill", "watermark", "priority", "tight", "tight-priority", "tight-no-cache", "aborts",
         "tight-aborts", "few-seqs", "small-budget", "tight-watermark", "lora-1", "lora-2", "tight-lora", "lora-aborts", "interval",
         "tight-interval", "window", "window-sparse", "tight-window", "hybrid", "hybrid-sparse", "tight-hybrid",
         "mamba", "tight-mamba", "hybrid-eagle", "mamba-mtp", "eagle-aborts", "eagle-priority", "ngram-long-prefill",
         "draft-small-budget", "ngram", "eagle", "mtp",
         "draft-model", "tight-ngram", "tight-eagle", "tight-draft-model", "remote", "tight-remote", "remote-aborts", "tight-producer",
         "remote-interval", "tight-remote-interval", "tight-consumer", "remote-eagle", "tight-remote-priority", "reset",
         "reset-running", "pause", "media", "tight-media", "media-aborts", "media-whole", "media-no-cache", "media-long-prefill",
         "media-eagle", "media-whole-eagle", "media-ngram", "media-reset", "media-reset-running", "media-hybrid", "media-mamba", "media-priority",
         "grammar", "tight-grammar", "grammar-aborts", "grammar-priority", "grammar-eagle", "grammar-interval",
         "load-failures", "load-failures-fail", "tight-load-failures", "tight-load-failures-fail", "load-failures-aborts",
         "load-failures-priority", "load-failures-eagle", "pause-wait", "pause-wait-remote", "tight-pause-wait", "sleep", "pause-remote", "nixl", "tight-nixl", "nixl-aborts",
         "nixl-pause", "tight-nixl-producer", "tight-nixl-consumer", "nixl-push", "tight-nixl-push", "nixl-push-aborts",
         "tight-nixl-push-producer", "tight-nixl-push-consumer"]
CLASSES = {**SYNC, **{f"async-{name}": {**SYNC[name], "async_scheduling": True} for name in ASYNC}}
# The engine does not take vLLM's steps in these classes; README.md has the reasons. They are made only by name.
UNEQUAL = {
    "simple-offload": {"offload": "simple"}, "tight-simple-offload": {"offload": "simple", "tight": True},
    "simple-offload-aborts": {"offload": "simple", "aborts": True, "tight": True},
}


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


def place_items(rng, items, most):
    """Places some of the items (identifier, length) one after another into `most` tokens: [identifier, start, length]."""
    placed, end = [], 0
    for identifier, length in rng.sample(items, min(len(items), rng.randrange(4))):
        start = end + rng.choice([0, 0, 1, rng.randrange(12)])
        end = start + length
        if end <= most:
            placed.append([identifier, start, length])
    return placed


def add_media(rng, config, prefixes, requests):
    """Puts images into the prompts. Requests with the same prefix have the same images in it."""
    items = [(f"image{i}", rng.randrange(1, 41)) for i in range(rng.randrange(2, 9))]
    config["encoder"] = {"budget": rng.choice([40, 48, 64, 128]), "cache": rng.choice([40, 56, 80, 160])}
    shared = {first: place_items(rng, items, 96) for first in prefixes}
    for request in requests:
        (first, count), (_, own) = request["prompt"]
        media = [item for item in shared[first] if item[1] + item[2] <= count]
        media += [[identifier, start + count, length] for identifier, start, length in place_items(rng, items, own)]
        if media:
            request["media"] = media


def workload(name, seed):
    rng = random.Random(f"{name}-{seed}")
    # Choices of newer settings, which must not change the others.
    more = random.Random(f"{name}-{seed}-more")
    special = dict({**CLASSES, **UNEQUAL}[name])
    tight, aborts, salts, adapters, resets = (special.pop(k, None) for k in ("tight", "aborts", "salts", "adapters", "resets"))
    media, grammars, failures, offload = (special.pop(k, None) for k in ("media", "grammars", "load_failures", "offload"))
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
        if grammars and more.random() < 0.6:
            request["grammar_ms"] = more.choice([0, more.randrange(300), more.randrange(8000)])
            if more.random() < 0.1:
                request["grammar_fails"] = True
        if failures and request.get("remote") and more.random() < 0.5:
            request["load_fails"] = True
        if "lease_ms" in config and not request.get("remote") and more.random() < 0.6:
            # A prompt for another engine, which reads it in time or not.
            request["send_ms"] = more.randrange(100, 5000)
            request["output"] = 1 if more.random() < 0.8 else output
        requests.append(request)
    if offload:
        # Chunks of one block, and the time to copy one to host memory and back.
        config["offload"] = {"chunks": more.choice([12, 30, 100]), "store_ms": more.choice([3, 40, 300]), "load_ms": more.choice([3, 40, 300])}
        if offload == "simple":
            config["offload"]["simple"] = True
    if failures:
        config["load_failure_policy"] = failures
    if media:
        add_media(more, config, prefixes, requests)
    work = {"config": config, "requests": requests}
    if resets:
        work["commands"] = []
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(50_000)
            work["commands"].append({"at": at, "do": resets})
            if resets in ("pause", "pause-new", "sleep"):
                work["commands"].append({"at": at + rng.randrange(1, 8000), "do": "resume"})
    return work


if __name__ == "__main__":
    folder, count, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    for name in sys.argv[4:] or CLASSES:
        for seed in range(first, first + count):
            json.dump(workload(name, seed), open(f"{folder}/{name}-{seed}.json", "w"))
