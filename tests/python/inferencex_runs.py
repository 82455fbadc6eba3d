#!/usr/bin/env python3
"""Turns measured points of InferenceX (InferenceMAX) into runs that `vllm-sim validate` reads, or
judges the predictions made of them.

    inferencex_runs.py POINTS.jsonl RUNS_DIR          one run per point into RUNS_DIR
    inferencex_runs.py --judge RUNS_DIR PREDICTIONS   errors of TPOT by model, GPU, precision, TP

A point names model, GPU, precision, tensor parallelism, concurrency and lengths, and what was
measured: TTFT and TPOT. How servers and clients were set is what the benchmark's public scripts
say on the day of the measurement (`server`): a closed loop of ten requests per place, lengths drawn
between 0.8 and 1 of the nominal ones, random prompts, no prefix cache, greedy sampling. Experts that
are spread whole over the tensor-parallel GPUs are played as if each were split, which reads as many
bytes. Points without a version are of October and November 2025, before vLLM 0.12. NVIDIA's own
servers sample as the model's generation_config.json says.

`attention_dp` of a point is its expert-parallel size, and `concurrency` is divided by it
(`is_attention_dp`): most of these servers were one engine with tensor and expert parallelism.
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
        # The cache is quantised, too: vLLM reads it so since 0.14 unless a flag says otherwise
        # (`resolve_kv_cache_dtype_string`).
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
                                "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
                                "ignore": ["model.layers.*.self_attn*", "lm_head"]},
    },
}
GPUS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
# Whose weights are stored with a scale per block.
BLOCK_SCALES = {"Qwen3-235B-A22B-FP8", "MiniMax-M2.5"}
# First day of the scripts of InferenceX with an fp8 cache and large CUDA graphs, by model.
TUNED_SCRIPTS = {"MiniMax-M2.5": "2026-04-03", "Kimi-K2.5": "2026-04-20"}
# First day of the scripts of MiniMax M2.5 on Blackwell that let its router, whose weights are fp32, compute in TF32.
TF32_SCRIPTS = "2026-04-21"
REQUESTS_PER_PLACE = 10  # as measured: the first wave waits, which the mean TTFT shows


def is_attention_dp(point):
    """Returns whether the server of a point had one engine per attention rank.

    The points of InferenceX name the expert-parallel size as attention_dp. Its configuration
    (nvidia-master.yaml) asks for data-parallel attention only for MiniMax in fp4, from 256 requests on
    as of 2026-04-21. The engines then have one GPU each. All others were one tensor-parallel engine:
    those of MiniMax in fp8 on two B200 equal those on two B300 at twice the concurrency within 3 %.
    """
    requests = point["concurrency"] * (point.get("attention_dp") or 1)
    late, short = (point["measured"] or "") >= "2026-04-21", point["isl"] == 1024
    return point["model"].endswith("MiniMax-M2.5") and point["precision"] == "fp4" and (late or short) and (
        requests >= (256 if late and short else 512))


def server(name, point):
    """Returns the settings of the server of a point that differ from those of most servers.

    **Source:** InferenceX `benchmarks/single_node/*.sh` of the day of the measurement.
    """
    if not point["source"].startswith("InferenceMAX"):
        return {}
    blackwell = point["system"].startswith("b")
    measured, nightly = point["measured"] or "", point["vllm"].startswith("nightly")
    largest = {"max_cudagraph_capture_size": 2048}
    if name.startswith("MiniMax") and measured >= TF32_SCRIPTS:
        largest["float32_matmul_precision"] = "high"
    if "Llama" in name:
        return {"kv_cache_dtype": "fp8", **({"max_num_seqs": 512} if blackwell else {})}
    if name.startswith("gpt-oss"):
        settings = {"kv_cache_dtype": "fp8"} if blackwell and point["vllm"] else {}
        return {**largest, **settings, **({"max_num_seqs": 512} if blackwell else {})}
    if not blackwell:
        return {"max_num_seqs": 256}
    if nightly:
        return {"version": "0.19.0", "kv_cache_dtype": "fp8", "max_num_seqs": 1024, "gpu_memory_utilization": 0.95}
    if measured < TUNED_SCRIPTS[name] or (name.startswith("Kimi") and point["system"] == "b300_sxm"):
        return {"kv_cache_dtype": "fp8"} if "kv_cache_scheme" in CONFIGS.get(name, {}).get("quantization_config", {}) else {}
    return {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 2 * point["isl"], **largest,
            **({} if name.startswith("Kimi") else {"max_num_seqs": 1024})}


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
                 "fp32_router": name.startswith("MiniMax"),
                 "qk_norm": name.startswith(("Qwen3", "MiniMax"))}
    draw = random.Random(number)
    between = lambda most: draw.randint(max(1, round(0.8 * most)), most)
    shards = point.get("attention_dp") or 1
    places = point["concurrency"] * shards
    ranks = shards if shards > 1 and is_attention_dp(point) else 1
    tp = point["tp"] // ranks
    trace = [{"t": 0.0, "input": between(point["isl"]), "output": between(point["osl"])}
             for _ in range(places * REQUESTS_PER_PLACE)]
    inferencemax = point["source"].startswith("InferenceMAX")
    parallel = f"tp{tp}" + (f" dp{ranks}" if ranks > 1 else "")
    group = " ".join([name, GPUS[point["system"]], point["precision"] or "bf16", parallel])
    vllm = {"version": point["vllm"] or "0.11.0", "block_size": 16, "max_num_seqs": places if inferencemax else 1024,
            "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": False, "enable_chunked_prefill": True,
            # The default of vLLM since 0.14; the benchmark's scripts ask for it.
            "async_scheduling": inferencemax, "num_gpu_blocks": None, "max_model_len": None,
            "kv_cache_dtype": "auto"}
    return {
        "id": f"x{number:03d}", "group": group, "model": point["model"],
        "hardware": GPUS[point["system"]], "tp": tp, "dp": ranks, "ep": ranks > 1,
        "regime": "stable", "source": point["source"],
        "model_config": shape,
        "vllm": {**vllm, **server(name, point)},
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
