#!/usr/bin/env python3
"""Turns measured points of InferenceX (InferenceMAX) into runs that `vllm-sim validate` reads, or
judges the predictions made of them.

    inferencex_runs.py POINTS.jsonl RUNS_DIR          one run per point into RUNS_DIR
    inferencex_runs.py --judge RUNS_DIR PREDICTIONS   errors of TPOT by model, GPU, precision, TP

A point names model, GPU, precision, tensor parallelism, concurrency and lengths, and what was
measured: TTFT and TPOT. How servers and clients were set is what the benchmark's public scripts
say: a closed loop of ten requests per place, lengths drawn between 0.8 and 1 of the nominal ones,
random prompts, no prefix cache, --max-num-seqs of the concurrency, 8192 tokens a step, greedy
sampling, and for Llama an fp8 cache. Experts that are spread whole over the tensor-parallel GPUs
are played as if each were split, which reads as many bytes. Points without a version are of October
and November 2025, before vLLM 0.12. NVIDIA's own servers sample as the model's generation_config.json
says. Points with attention data parallelism are one engine per rank, with experts spread over all.
"""
import json
import os
import random
import statistics
import sys

# hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, experts, per token, expert width
MODELS = {
    "Llama-3.1-70B": (8192, 80, 64, 8, 128, 28672, 128256, 0, 0, 0),
    "Llama-3.1-8B-Instruct-FP8": (4096, 32, 32, 8, 128, 14336, 128256, 0, 0, 0),
    "Qwen3-32B": (5120, 64, 64, 8, 128, 25600, 151936, 0, 0, 0),
    "Qwen3-235B-A22B-FP8": (4096, 94, 64, 4, 128, 12288, 151936, 128, 8, 1536),
    "MiniMax-M2.5": (3072, 62, 48, 8, 128, 1536, 200064, 256, 8, 1536),
}
# What the list above cannot say, as config.json says it: windows, compressed attention, dense
# layers before those with experts, what is quantised.
CONFIGS = {
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 128,
        "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4",
                                "modules_to_not_convert": ["model.layers.*.self_attn"]},
    },
    "Kimi-K2.5": {
        "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 18432,
        "vocab_size": 163840, "n_routed_experts": 384, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
                                "ignore": ["model.layers.*.self_attn*", "lm_head"]},
    },
}
GPUS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
# Whose weights are stored with a scale per block.
BLOCK_SCALES = {"Qwen3-235B-A22B-FP8", "MiniMax-M2.5"}
REQUESTS_PER_PLACE = 10  # as measured: the first wave waits, which the mean TTFT shows


def run(number, point):
    name = point["model"].split("/")[-1]
    if name not in MODELS and name not in CONFIGS:
        return None
    weights = {"": "none", "fp8": "fp8", "fp4": "fp4", "int4": "int4"}.get(point["precision"])
    # The configurations in full hold the quantisation of one precision each, none of them int4.
    if weights is None or (weights == "int4" and name in CONFIGS):
        return None
    if weights == "fp8" and name in BLOCK_SCALES:
        weights = "fp8_block"
    if name in CONFIGS:
        shape = {"config": CONFIGS[name]}
    else:
        sizes = zip(("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab",
                     "experts", "experts_per_token", "moe_intermediate"), MODELS[name])
        shape = {**dict(sizes), "shared_expert_intermediate": 0, "tie_word_embeddings": False,
                 "weight_quantization": weights, "quantized_modules": None, "gated_mlp": True,
                 "qk_norm": name.startswith(("Qwen3", "MiniMax"))}
    draw = random.Random(number)
    between = lambda most: draw.randint(max(1, round(0.8 * most)), most)
    places = point["concurrency"]
    trace = [{"t": 0.0, "input": between(point["isl"]), "output": between(point["osl"])}
             for _ in range(places * REQUESTS_PER_PLACE)]
    inferencemax = point["source"].startswith("InferenceMAX")
    ranks = point.get("attention_dp") or 1
    parallel = f"tp{point['tp']}" + (f" dp{ranks}" if ranks > 1 else "")
    group = " ".join([name, GPUS[point["system"]], point["precision"] or "bf16", parallel])
    return {
        "id": f"x{number:03d}", "group": group, "model": point["model"],
        "hardware": GPUS[point["system"]], "tp": point["tp"], "dp": ranks, "ep": ranks > 1,
        "regime": "stable", "source": point["source"],
        "model_config": shape,
        "vllm": {"version": point["vllm"] or "0.11.0", "block_size": 16, "max_num_seqs": places if inferencemax else 1024,
                 "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9,
                 "enable_prefix_caching": False, "enable_chunked_prefill": True,
                 # The default of vLLM since 0.14; the benchmark's scripts ask for it.
                 "async_scheduling": inferencemax, "num_gpu_blocks": None, "max_model_len": None,
                 "kv_cache_dtype": "fp8" if inferencemax and "Llama" in name else "auto"},
        "workload": {"kind": "trace", "api": "completions, streaming", "client_timeout_s": None,
                     "client_max_concurrency": places, "trace": trace},
        "sampling": {"truncated_sampling": not inferencemax and name.startswith("Qwen3")},
        "actual": {"summary": {"ttft_mean": point["ttft_ms"], "itl_mean": point["tpot_ms"]}},
    }


def write(points, folder):
    os.makedirs(folder, exist_ok=True)
    left_out = 0
    with open(points) as lines:
        for number, line in enumerate(lines):
            made = run(number, json.loads(line))
            if made is None:
                left_out += 1
                continue
            with open(os.path.join(folder, made["id"] + ".json"), "w") as file:
                json.dump(made, file)
    print(f"{number + 1 - left_out} runs, {left_out} points left out")


def judge(folder, predictions):
    groups = {}
    for file in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file)) as text:
            made = json.load(text)
        with open(os.path.join(predictions, made["id"] + ".json")) as text:
            said = json.load(text)["summary"]
        off = 100 * (said["itl_mean"] / made["actual"]["summary"]["itl_mean"] - 1)
        groups.setdefault(made["group"], []).append(off)
    print(f"{'TPOT, percent off':44} {'n':>4} {'median':>7} {'size':>6}  (signed median, median size)")
    for group, off in sorted(groups.items()):
        print(f"{group:44} {len(off):4} {statistics.median(off):7.1f} "
              f"{statistics.median(map(abs, off)):6.1f}")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--judge":
        judge(*sys.argv[2:])
    elif len(sys.argv) == 3:
        write(*sys.argv[1:])
    else:
        sys.exit(__doc__)
