"""Runs of the peer's offline replay that ours is held against: name -> (args.json, trace rows).

Every case is made from its name and a seed, so the peer and ours get the same files.
"""

import random


def synthetic(isl, osl, n, /, **kwargs):
    """A workload of equal requests."""
    return {
        "api": "run_synthetic_trace_replay",
        "positional": [isl, osl, n],
        "kwargs": {**kwargs, "capture_per_request": True},
    }, None


def traced(rows, /, **kwargs):
    """Requests of a trace file."""
    return {
        "api": "run_trace_replay",
        "positional": ["trace.jsonl"],
        "kwargs": {**kwargs, "capture_per_request": True},
    }, rows


def vllm(around=None, /, **engine):
    """Arguments of a vLLM-like worker."""
    return {"engine": {"block_size": 64, **engine}, **(around or {})}


def sglang(around=None, /, **engine):
    """Arguments of an SGLang-like worker."""
    return {"engine": {"backend": "sglang", "num_gpu_blocks": 200000, **engine}, **(around or {})}


def mooncake(n, seed, *, gap=200.0, blocks=(1, 12), out=(5, 120), groups=6, block=512, extra=None):
    """Single requests whose prompts share prefixes by group."""
    draw = random.Random(seed)
    rows, at, fresh = [], 0.0, 10_000
    for i in range(n):
        group, shared = draw.randrange(groups), draw.randint(0, 4)
        own = draw.randint(*blocks)
        ids = [group * 100 + k for k in range(shared)] + list(range(fresh, fresh + own))
        fresh += own
        length = len(ids) * block - draw.randint(0, block - 1)
        row = {"timestamp": round(at), "input_length": length, "output_length": draw.randint(*out), "hash_ids": ids}
        if extra:
            row.update(extra(i, draw))
        rows.append(row)
        at += 1 + draw.expovariate(1 / gap)
    return rows


def sessions(n, seed, *, turns=(1, 5), gap=300.0, think=(0, 2000), block=512, out=(5, 60), delta=False, stamps=False):
    """Sessions whose prompts grow."""
    draw = random.Random(seed)
    rows, at, fresh = [], 0.0, 10_000
    for s in range(n):
        ids = [draw.randrange(3) * 50 + k for k in range(draw.randint(0, 3))]
        clock = at
        for t in range(draw.randint(*turns)):
            own = draw.randint(1, 4)
            new = list(range(fresh, fresh + own))
            fresh += own
            ids = new if delta and t else ids + new
            length = len(ids) * block - draw.randint(0, block // 2)
            row = {"session_id": f"s{s}", "input_length": length, "output_length": draw.randint(*out), "hash_ids": list(ids)}
            if t == 0:
                row["timestamp"] = round(clock)
            elif stamps:
                clock += draw.randint(*think)
                row["timestamp"] = round(clock)
            else:
                row["delay"] = draw.randint(*think)
            rows.append(row)
        at += draw.expovariate(1 / gap)
    return rows


def priorities(i, draw):
    """Priorities of a request."""
    return {"priority": draw.choice([0, 0, 3, -2]), "strict_priority": draw.choice([0, 0, 0, 1])}


def agentic(n):
    """Sessions in the form of Applied Compute."""
    draw = random.Random(n)
    rows = []
    for _ in range(n):
        turns = draw.randint(1, 4)
        rows.append({
            "num_turns": turns,
            "input_prompt_length": draw.randint(200, 2000),
            "assistant_response_length": [draw.randint(5, 50) for _ in range(turns)],
            "tool_call_output_length": [draw.randint(5, 400) for _ in range(turns)],
            "tool_call_latency": [round(draw.uniform(0, 2), 3) for _ in range(turns)],
            "final_assistant_response_length": draw.randint(5, 60),
        })
    return rows


def plays(n, seed):
    """Sessions of requests that wait for each other, with the header of the format."""
    draw = random.Random(seed)
    rows = [{"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local",
             "source": {"format": "made", "digest": "sha256:" + "0" * 64}}]
    for p in range(n):
        ids, made = [], []
        for r in range(draw.randint(1, 5)):
            ids = ids + [p * 1000 + r * 10 + k for k in range(draw.randint(1, 6))]
            name = f"p{p}r{r}"
            needs = []
            if made:
                trigger = draw.choice(["completion", "completion", "dispatch"])
                relation = "spawn" if trigger == "dispatch" else "sequence"
                needs = [{"request_id": made[-1], "trigger": trigger, "delay_ms": draw.randint(0, 800), "relation": relation}]
            side = needs and needs[0]["trigger"] == "dispatch"
            rows.append({"request_id": name, "play_id": f"p{p}", "session_id": f"p{p}s{r}" if side else f"p{p}", "model": "m",
                         "input_length": len(ids) * 64 - 5, "output_length": draw.randint(3, 40), "hash_ids": list(ids),
                         "not_before_ms": 0.0 if made else p * 150.0, "dependencies": needs})
            made.append(name)
    return rows


V, S = vllm, sglang
SMALL = {"num_gpu_blocks": 120}
TIGHT = {"num_gpu_blocks": 60}
XFER = {"kv_transfer_bytes_per_token": 131072, "kv_transfer_bandwidth": 64.0}


def split(prefill, decode, p=1, d=1, **more):
    """Arguments of split pools."""
    return {"prefill_engine_args": prefill, "decode_engine_args": decode, "num_prefill_workers": p,
            "num_decode_workers": d, **more}


def pd(p=1, d=1, both=None, make=vllm, **more):
    """Split pools of equal engines."""
    both = both or {}
    return split(make(worker_type="prefill", **both), make(worker_type="decode", **both), p, d, **more)


CASES = {
    # The vLLM-like scheduler, one worker.
    "v-closed": synthetic(512, 64, 40, extra_engine_args=V(), replay_concurrency=8),
    "v-closed-odd": synthetic(777, 33, 50, extra_engine_args=V(block_size=16), replay_concurrency=7),
    "v-default-args": synthetic(300, 20, 20, replay_concurrency=3),
    "v-one-token": synthetic(300, 1, 20, extra_engine_args=V(), replay_concurrency=3),
    "v-two-tokens": synthetic(300, 2, 20, extra_engine_args=V(), replay_concurrency=3),
    "v-burst": synthetic(1000, 50, 60, extra_engine_args=V(), arrival_interval_ms=0.0),
    "v-interval": synthetic(700, 80, 100, extra_engine_args=V(), arrival_interval_ms=35.0),
    "v-poisson": synthetic(800, 100, 150, extra_engine_args=V(), request_rate=12.0),
    "v-poisson-seed": synthetic(800, 100, 150, extra_engine_args=V(), request_rate=20.0, arrival_seed=7),
    "v-poisson-speedup": synthetic(800, 100, 80, extra_engine_args=V(), request_rate=5.0, arrival_speedup_ratio=2.5),
    "v-seqs": synthetic(600, 40, 60, extra_engine_args=V(max_num_seqs=4), replay_concurrency=16),
    "v-seqs-null": synthetic(600, 40, 60, extra_engine_args=V(max_num_seqs=None), arrival_interval_ms=0.0),
    "v-batched-512": synthetic(1500, 40, 40, extra_engine_args=V(max_num_batched_tokens=512), replay_concurrency=8),
    "v-batched-null": synthetic(1500, 40, 40, extra_engine_args=V(max_num_batched_tokens=None), replay_concurrency=20),
    "v-unchunked": synthetic(1500, 40, 40, extra_engine_args=V(max_num_batched_tokens=2048, enable_chunked_prefill=False), request_rate=15.0),
    "v-unchunked-never": synthetic(1500, 40, 4, extra_engine_args=V(max_num_batched_tokens=1024, enable_chunked_prefill=False), replay_concurrency=2),
    "v-pressure-lifo": synthetic(512, 200, 40, extra_engine_args=V(**SMALL), replay_concurrency=16),
    "v-pressure-fifo": synthetic(512, 200, 40, extra_engine_args=V(preemption_mode="fifo", **SMALL), replay_concurrency=16),
    "v-pressure-open": synthetic(700, 300, 60, extra_engine_args=V(num_gpu_blocks=200, block_size=32), request_rate=10.0),
    "v-pressure-small-budget": synthetic(900, 250, 40, extra_engine_args=V(num_gpu_blocks=260, block_size=16, max_num_batched_tokens=256), request_rate=6.0),
    "v-pressure-nocache": synthetic(512, 200, 40, extra_engine_args=V(enable_prefix_caching=False, **SMALL), replay_concurrency=16),
    "v-pressure-one-token-blocks": synthetic(100, 60, 40, extra_engine_args=V(num_gpu_blocks=700, block_size=2), replay_concurrency=16),
    "v-prefix-groups": synthetic(1024, 40, 80, extra_engine_args=V(), replay_concurrency=8, shared_prefix_ratio=0.5, num_prefix_groups=4),
    "v-prefix-evict": synthetic(1024, 60, 120, extra_engine_args=V(num_gpu_blocks=150), replay_concurrency=6, shared_prefix_ratio=0.6, num_prefix_groups=8),
    "v-prefix-all": synthetic(1024, 40, 40, extra_engine_args=V(), replay_concurrency=4, shared_prefix_ratio=1.0, num_prefix_groups=2),
    "v-prefix-ratio-nogroups": synthetic(1000, 40, 40, extra_engine_args=V(), replay_concurrency=4, shared_prefix_ratio=0.5),
    "v-turns": synthetic(500, 30, 20, extra_engine_args=V(), replay_concurrency=4, turns_per_session=3, inter_turn_delay_ms=250.0),
    "v-turns-open": synthetic(500, 30, 30, extra_engine_args=V(), request_rate=8.0, turns_per_session=4, inter_turn_delay_ms=100.0, shared_prefix_ratio=0.4, num_prefix_groups=3),
    "v-turns-speedup": synthetic(500, 30, 30, extra_engine_args=V(), request_rate=8.0, turns_per_session=4, inter_turn_delay_ms=900.0, arrival_speedup_ratio=3.0),
    "v-turns-interval": synthetic(500, 30, 30, extra_engine_args=V(), arrival_interval_ms=120.0, turns_per_session=2, inter_turn_delay_ms=40.0),
    "v-delay-single": synthetic(500, 30, 12, extra_engine_args=V(), arrival_interval_ms=20.0, inter_turn_delay_ms=40.0),
    "v-speedup": synthetic(512, 64, 30, extra_engine_args=V(speedup_ratio=4.0), replay_concurrency=5),
    "v-speedup-zero": synthetic(512, 64, 10, extra_engine_args=V(speedup_ratio=0.0), replay_concurrency=5),
    "v-decode-speedup": synthetic(512, 64, 30, extra_engine_args=V(decode_speedup_ratio=2.0, speedup_ratio=1.5), replay_concurrency=5),
    "v-fixed": synthetic(512, 64, 30, extra_engine_args=V(timing_model={"type": "fixed", "prefill_ms": 31.25, "decode_ms": 7.5}), request_rate=9.0),
    "v-fixed-zero": synthetic(512, 64, 10, extra_engine_args=V(timing_model={"type": "fixed", "prefill_ms": 0.0, "decode_ms": 5.0}), replay_concurrency=3),
    "v-max-len": synthetic(500, 100, 20, extra_engine_args=V(max_model_len=560), replay_concurrency=5),
    "v-max-len-reject": synthetic(500, 100, 20, extra_engine_args=V(max_model_len=500), replay_concurrency=5),
    "v-too-big": synthetic(5000, 20, 10, extra_engine_args=V(**TIGHT), replay_concurrency=4),
    "v-grows-too-big": synthetic(3800, 200, 6, extra_engine_args=V(**TIGHT), replay_concurrency=2),
    "v-mtp": synthetic(512, 100, 30, extra_engine_args=V(aic_nextn=2), replay_concurrency=6),
    "v-mtp-rates": synthetic(512, 100, 30, extra_engine_args=V(aic_nextn=3, aic_nextn_accept_rates="0.9,0.6,0.4", aic_mtp_seed=7), request_rate=8.0),
    "v-mtp-pressure": synthetic(512, 200, 30, extra_engine_args=V(aic_nextn=1, aic_nextn_accept_rates="0.7", **SMALL), replay_concurrency=16),
    "v-mtp-prefix": synthetic(1024, 60, 40, extra_engine_args=V(aic_nextn=5, aic_nextn_accept_rates="0.9,0.8,0.7,0.6,0.5"), replay_concurrency=6, shared_prefix_ratio=0.5, num_prefix_groups=2),
    "v-mtp-workers": synthetic(512, 60, 60, extra_engine_args=V(aic_nextn=2), replay_concurrency=12, num_workers=3),
    "v-workers": synthetic(512, 64, 80, extra_engine_args=V(), replay_concurrency=20, num_workers=4),
    "v-workers-open": synthetic(900, 120, 150, extra_engine_args=V(num_gpu_blocks=300), request_rate=30.0, num_workers=3),
    "v-workers-groups": synthetic(1024, 40, 100, extra_engine_args=V(), replay_concurrency=16, num_workers=4, shared_prefix_ratio=0.5, num_prefix_groups=8),
    "v-sla": synthetic(800, 100, 100, extra_engine_args=V(), request_rate=12.0, sla_ttft_ms=60.0, sla_itl_ms=14.0),
    "v-sla-e2e": synthetic(800, 100, 100, extra_engine_args=V(), request_rate=12.0, sla_e2e_ms=1500.0),
    "v-sla-ttft-only": synthetic(800, 100, 10, extra_engine_args=V(), request_rate=12.0, sla_ttft_ms=60.0),
    "v-sla-both": synthetic(800, 100, 10, extra_engine_args=V(), request_rate=12.0, sla_ttft_ms=60.0, sla_itl_ms=14.0, sla_e2e_ms=1500.0),
    "v-dp2": synthetic(512, 64, 60, extra_engine_args=V({"dp_size": 2}), replay_concurrency=12),
    "v-dp4-workers": synthetic(700, 64, 100, extra_engine_args=V({"dp_size": 4}), request_rate=30.0, num_workers=2),
    "v-dp2-pressure": synthetic(512, 200, 60, extra_engine_args=V({"dp_size": 2}, **SMALL), replay_concurrency=30),
    "v-dp2-cadence": synthetic(900, 64, 60, extra_engine_args=V({"dp_size": 2}, prefill_schedule_interval=3), request_rate=20.0),
    "v-cadence": synthetic(900, 64, 60, extra_engine_args=V(prefill_schedule_interval=3), request_rate=20.0),
    "v-tp": synthetic(512, 64, 20, extra_engine_args=V({"tensor_parallel_size": 4}), replay_concurrency=4, num_workers=2),
    "v-startup": synthetic(512, 64, 20, extra_engine_args=V({"startup_time": 2.0}), arrival_interval_ms=50.0, num_workers=2),
    "v-trtllm": synthetic(512, 64, 60, extra_engine_args={"engine": {"backend": "trtllm"}}, replay_concurrency=12),
    "v-trtllm-pressure": synthetic(512, 200, 60, extra_engine_args={"engine": {"backend": "trtllm", "num_gpu_blocks": 200}}, replay_concurrency=20),
    "v-trtllm-prefix": synthetic(1024, 40, 60, extra_engine_args={"engine": {"backend": "trtllm", "num_gpu_blocks": 300}}, replay_concurrency=6, shared_prefix_ratio=1.0, num_prefix_groups=3),
    "v-flat-args": synthetic(512, 64, 4, extra_engine_args={"block_size": 64}, replay_concurrency=2),
    "v-unknown-key": synthetic(512, 64, 4, extra_engine_args=V(watermark=0.1), replay_concurrency=2),
    "v-both-loads": synthetic(512, 64, 4, extra_engine_args=V(), replay_concurrency=2, request_rate=3.0),
    "v-no-load": synthetic(512, 64, 4, extra_engine_args=V()),
    "v-zero-output": synthetic(300, 0, 10, extra_engine_args=V(), replay_concurrency=3),
    "v-tiny": synthetic(1, 5, 10, extra_engine_args=V(), replay_concurrency=3),
    "v-block-exact": synthetic(640, 64, 20, extra_engine_args=V(), replay_concurrency=3, shared_prefix_ratio=1.0, num_prefix_groups=1),
    "v-named-defaults": synthetic(300, 20, 6, extra_engine_args=V(), replay_concurrency=2, num_prefill_workers=1, num_decode_workers=1, router_mode="round_robin", replay_mode="offline", model_name="m"),
    "v-pool-of-no-kind": synthetic(300, 20, 6, extra_engine_args=V(), replay_concurrency=2, num_prefill_workers=2),
    "v-block-one": synthetic(300, 20, 6, extra_engine_args=V(block_size=1), replay_concurrency=2),
    "v-sla-zero": synthetic(300, 20, 6, extra_engine_args=V(), replay_concurrency=2, sla_ttft_ms=0.0),
    "v-lag": synthetic(300, 20, 6, extra_engine_args=V(), replay_concurrency=2, kv_event_lag_ms=5.0),
    "v-mtp-speedup": synthetic(300, 20, 6, extra_engine_args=V(aic_nextn=2, decode_speedup_ratio=2.0), replay_concurrency=2),
    "v-mtp-rates-alone": synthetic(300, 20, 6, extra_engine_args=V(aic_nextn_accept_rates="0.5"), replay_concurrency=2),
    "v-telemetry": synthetic(800, 100, 60, extra_engine_args=V(), request_rate=12.0, telemetry_options={"sample_interval_ms": 500.0}),
    "v-events": synthetic(800, 100, 60, extra_engine_args=V(emit_kv_events=True, emit_kv_token_ids=True), request_rate=12.0),
    "v-host-offload": synthetic(1024, 60, 80, extra_engine_args=V(num_gpu_blocks=150, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 2000}), replay_concurrency=6, shared_prefix_ratio=0.6, num_prefix_groups=8),
    "v-host-slow": synthetic(1024, 60, 80, extra_engine_args=V(num_gpu_blocks=150, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 2000, "d2h_bandwidth_gbps": 2.0, "h2d_bandwidth_gbps": 1.0, "latency_to_first_byte_ms": 3.0}), replay_concurrency=6, shared_prefix_ratio=0.6, num_prefix_groups=8),
    "v-host-instant": synthetic(1024, 60, 80, extra_engine_args=V(num_gpu_blocks=150, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 2000, "d2h_bandwidth_gbps": 0, "h2d_bandwidth_gbps": 0}), replay_concurrency=6, shared_prefix_ratio=0.6, num_prefix_groups=8),
    "v-host-pressure": synthetic(700, 300, 60, extra_engine_args=V(num_gpu_blocks=60, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 3000, "d2h_bandwidth_gbps": 4.0}), replay_concurrency=8, shared_prefix_ratio=0.6, num_prefix_groups=5),
    "v-host-whole": synthetic(1024, 40, 60, extra_engine_args=V(num_gpu_blocks=80, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 3000}), replay_concurrency=4, shared_prefix_ratio=1.0, num_prefix_groups=9),
    "v-host-small": synthetic(1024, 60, 80, extra_engine_args=V(num_gpu_blocks=150, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 60}), replay_concurrency=6, shared_prefix_ratio=0.6, num_prefix_groups=8),
    "v-host-tiny": synthetic(1024, 60, 40, extra_engine_args=V(num_gpu_blocks=150, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 8}), replay_concurrency=6, shared_prefix_ratio=0.6, num_prefix_groups=8),
    # Traces.
    "t-mooncake": traced(mooncake(120, 1), extra_engine_args=V()),
    "t-mooncake-fast": traced(mooncake(120, 1), extra_engine_args=V(), arrival_speedup_ratio=3.0),
    "t-mooncake-closed": traced(mooncake(120, 2), extra_engine_args=V(), replay_concurrency=6),
    "t-mooncake-small": traced(mooncake(120, 3), extra_engine_args=V(num_gpu_blocks=400), arrival_speedup_ratio=1.5),
    "t-mooncake-block16": traced(mooncake(100, 4), extra_engine_args=V(block_size=16, num_gpu_blocks=3000)),
    "t-mooncake-block512": traced(mooncake(100, 4), extra_engine_args=V(block_size=512, num_gpu_blocks=80)),
    "t-mooncake-block-odd": traced(mooncake(80, 4, block=100), extra_engine_args=V(block_size=48), trace_block_size=100),
    "t-mooncake-workers": traced(mooncake(150, 5, gap=60), extra_engine_args=V(num_gpu_blocks=600), num_workers=4),
    "t-mooncake-limit": traced(mooncake(120, 6), extra_engine_args=V(), max_sim_time_ms=6000.0),
    "t-mooncake-prefix": traced(mooncake(80, 7), extra_engine_args=V(), trace_shared_prefix_ratio=0.5, trace_num_prefix_groups=3),
    "t-mooncake-prio": traced(mooncake(80, 8, extra=priorities), extra_engine_args=V(num_gpu_blocks=400)),
    "t-mooncake-seqs": traced(mooncake(120, 9, gap=50), extra_engine_args=V(max_num_seqs=8, max_num_batched_tokens=1024)),
    "t-sessions": traced(sessions(30, 1), extra_engine_args=V()),
    "t-sessions-stamps": traced(sessions(30, 2, stamps=True), extra_engine_args=V()),
    "t-sessions-closed": traced(sessions(30, 3), extra_engine_args=V(), replay_concurrency=4),
    "t-sessions-fast": traced(sessions(30, 4), extra_engine_args=V(), arrival_speedup_ratio=4.0),
    "t-sessions-workers": traced(sessions(40, 5, gap=80), extra_engine_args=V(num_gpu_blocks=300), num_workers=3),
    "t-delta": traced(sessions(30, 6, delta=True), extra_engine_args=V(), trace_format="mooncake-delta"),
    "t-delta-closed": traced(sessions(30, 6, delta=True), extra_engine_args=V(), trace_format="mooncake-delta", replay_concurrency=4),
    "t-applied": traced(agentic(25), extra_engine_args=V(), trace_format="applied_compute_agentic", replay_concurrency=5),
    "t-applied-open": traced(agentic(5), extra_engine_args=V(), trace_format="applied_compute_agentic"),
    "t-agentic": traced(plays(20, 1), extra_engine_args=V(), trace_format="agentic_mooncake", execution_model="m"),
    "t-agentic-lanes": traced(plays(20, 2), extra_engine_args=V(), trace_format="agentic_mooncake", execution_model="m", agentic_lanes=3),
    "t-agentic-lane": traced(plays(12, 4), extra_engine_args=V(), trace_format="agentic_mooncake", execution_model="m", agentic_lanes=1),
    "t-agentic-lanes-fast": traced(plays(30, 5), extra_engine_args=V(num_gpu_blocks=300), trace_format="agentic_mooncake", execution_model="m", agentic_lanes=5, num_workers=2, arrival_speedup_ratio=2.0),
    "t-host-mooncake": traced(mooncake(120, 3), extra_engine_args=V(num_gpu_blocks=400, kv_cache_bytes_per_token=65536, native_host_offload={"num_host_blocks": 20000}), arrival_speedup_ratio=1.5),
    "t-host-sessions": traced(sessions(40, 5, gap=80), extra_engine_args=V(num_gpu_blocks=300, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 20000, "h2d_bandwidth_gbps": 8.0}), num_workers=3),
    "t-host-block16": traced(mooncake(100, 4), extra_engine_args=V(block_size=16, num_gpu_blocks=1600, max_num_seqs=12, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 90000, "latency_to_first_byte_ms": 0.5})),
    "t-agentic-workers": traced(plays(30, 3), extra_engine_args=V(), trace_format="agentic_mooncake", execution_model="m", num_workers=3),
    # The SGLang-like scheduler.
    "s-page16": synthetic(512, 64, 40, extra_engine_args=S(block_size=16, num_gpu_blocks=4000), replay_concurrency=8),
    "s-poisson": synthetic(700, 100, 100, extra_engine_args=S(), request_rate=15.0),
    "s-retract": synthetic(512, 300, 40, extra_engine_args=S(num_gpu_blocks=6000), replay_concurrency=16),
    "s-retract-page16": synthetic(512, 300, 40, extra_engine_args=S(num_gpu_blocks=400, block_size=16), replay_concurrency=16),
    "s-retract-loose": synthetic(512, 300, 40, extra_engine_args=S(num_gpu_blocks=6000, sglang={"schedule_conservativeness": 0.3}), replay_concurrency=16),
    "s-chunks": synthetic(3000, 40, 30, extra_engine_args=S(sglang={"chunked_prefill_size": 1024}), request_rate=5.0),
    "s-chunks-page": synthetic(3000, 40, 30, extra_engine_args=S(block_size=64, num_gpu_blocks=2000, sglang={"chunked_prefill_size": 1024, "max_prefill_tokens": 2048}), request_rate=5.0),
    "s-clip": synthetic(512, 300, 40, extra_engine_args=S(num_gpu_blocks=6000, sglang={"clip_max_new_tokens": 50}), replay_concurrency=16),
    "s-groups": synthetic(1024, 40, 80, extra_engine_args=S(), replay_concurrency=8, shared_prefix_ratio=0.5, num_prefix_groups=4),
    "s-groups-page": synthetic(1024, 40, 80, extra_engine_args=S(block_size=32, num_gpu_blocks=500), replay_concurrency=8, shared_prefix_ratio=0.5, num_prefix_groups=4),
    "s-lpm": synthetic(1024, 40, 80, extra_engine_args=S(block_size=32, num_gpu_blocks=500, sglang={"schedule_policy": "lpm"}), arrival_interval_ms=5.0, shared_prefix_ratio=0.5, num_prefix_groups=4),
    "s-lpm-trace": traced(mooncake(100, 21, gap=60), extra_engine_args=S(num_gpu_blocks=40000, sglang={"schedule_policy": "lpm"})),
    "s-nocache": synthetic(1024, 40, 40, extra_engine_args=S(enable_prefix_caching=False), replay_concurrency=8, shared_prefix_ratio=0.5, num_prefix_groups=4),
    "s-interval": synthetic(700, 60, 60, extra_engine_args=S(prefill_decode_interval=3), request_rate=15.0),
    "s-seqs": synthetic(600, 40, 60, extra_engine_args=S(max_num_seqs=4), replay_concurrency=16),
    "s-max-len": synthetic(500, 100, 20, extra_engine_args=S(max_model_len=560), replay_concurrency=5),
    "s-reject": synthetic(500, 100, 20, extra_engine_args=S(max_model_len=500), replay_concurrency=5),
    "s-too-big": synthetic(5000, 20, 6, extra_engine_args=S(num_gpu_blocks=3000), replay_concurrency=3),
    "s-trace": traced(mooncake(120, 22), extra_engine_args=S()),
    "s-trace-small": traced(mooncake(120, 23), extra_engine_args=S(num_gpu_blocks=14000)),
    "s-trace-page64": traced(mooncake(120, 24, gap=80), extra_engine_args=S(num_gpu_blocks=400, block_size=64)),
    "s-sessions": traced(sessions(30, 25), extra_engine_args=S(num_gpu_blocks=30000)),
    "s-workers": synthetic(700, 60, 90, extra_engine_args=S(), request_rate=40.0, num_workers=3),
    "s-mtp": synthetic(512, 100, 30, extra_engine_args=S(aic_nextn=2), replay_concurrency=6),
    "s-mtp-pressure": synthetic(512, 200, 30, extra_engine_args=S(num_gpu_blocks=6000, aic_nextn=2), replay_concurrency=16),
    "s-dp2": synthetic(512, 64, 60, extra_engine_args=S({"dp_size": 2}), replay_concurrency=12),
    "s-fcfs": synthetic(512, 64, 6, extra_engine_args=S(sglang={"schedule_policy": "fcfs"}), replay_concurrency=2),
    "s-unchunked": synthetic(512, 64, 6, extra_engine_args=S(enable_chunked_prefill=False), replay_concurrency=2),
    "s-one-token": synthetic(300, 1, 20, extra_engine_args=S(), replay_concurrency=3),
    "s-prefill-tokens": synthetic(900, 30, 30, extra_engine_args=S(sglang={"max_prefill_tokens": 2048}), arrival_interval_ms=10.0),
    "s-fixed": synthetic(512, 64, 30, extra_engine_args=S(timing_model={"type": "fixed", "prefill_ms": 31.25, "decode_ms": 7.5}), request_rate=9.0),
    "s-speedup": synthetic(512, 64, 30, extra_engine_args=S(speedup_ratio=3.0, decode_speedup_ratio=2.0), replay_concurrency=5),
    # Split pools.
    "d-basic": synthetic(1024, 64, 30, **pd(), replay_concurrency=6),
    "d-two-two": synthetic(1024, 64, 60, **pd(2, 2), replay_concurrency=12),
    "d-open": synthetic(900, 100, 80, **pd(2, 1), request_rate=12.0),
    "d-transfer": synthetic(1024, 64, 40, **pd(1, 1, XFER), replay_concurrency=6),
    "d-transfer-slow": synthetic(1024, 64, 40, **pd(2, 2, {**XFER, "kv_transfer_bandwidth": 1.0}), request_rate=10.0),
    "d-missing": synthetic(1024, 64, 60, **pd(1, 1, {**XFER, "kv_transfer_timing_mode": "destination_missing", "kv_transfer_bandwidth": 2.0}), replay_concurrency=6, shared_prefix_ratio=0.5, num_prefix_groups=2),
    "d-groups": synthetic(1024, 64, 60, **pd(2, 2), replay_concurrency=8, shared_prefix_ratio=0.5, num_prefix_groups=4),
    "d-decode-pressure": synthetic(512, 200, 40, **split(V(worker_type="prefill"), V(worker_type="decode", **SMALL)), replay_concurrency=16),
    "d-prefill-pressure": synthetic(1024, 60, 40, **split(V(worker_type="prefill", num_gpu_blocks=40), V(worker_type="decode")), replay_concurrency=16),
    "d-both-pressure": synthetic(700, 150, 60, **split(V(worker_type="prefill", num_gpu_blocks=50, **XFER), V(worker_type="decode", num_gpu_blocks=90, **XFER), 2, 2), request_rate=15.0),
    "d-seqs": synthetic(512, 60, 40, **split(V(worker_type="prefill"), V(worker_type="decode", max_num_seqs=4)), replay_concurrency=16),
    "d-batched": synthetic(1500, 60, 40, **split(V(worker_type="prefill", max_num_batched_tokens=1024), V(worker_type="decode")), request_rate=6.0),
    "d-one-token": synthetic(512, 1, 20, **pd(1, 1), replay_concurrency=4),
    "d-trace": traced(mooncake(100, 31), **pd(2, 2, {"num_gpu_blocks": 1000, **XFER})),
    "d-sessions": traced(sessions(30, 32), **pd(1, 2, XFER)),
    "d-speed": synthetic(1024, 64, 40, **pd(1, 1, {"speedup_ratio": 2.0, **XFER}), replay_concurrency=6),
    "d-max-len": synthetic(500, 100, 20, **pd(1, 1, {"max_model_len": 560}), replay_concurrency=5),
    "d-reject": synthetic(500, 100, 20, **pd(1, 1, {"max_model_len": 500}), replay_concurrency=5),
    "d-blocks-differ": synthetic(512, 60, 4, **split(V(worker_type="prefill"), V(worker_type="decode", block_size=16)), replay_concurrency=2),
    "d-no-worker-type": synthetic(512, 60, 10, **split(V(), V()), replay_concurrency=2),
    "d-sglang": synthetic(1024, 64, 40, **pd(1, 1, make=sglang), replay_concurrency=6),
    "d-sglang-transfer": synthetic(1024, 64, 60, **pd(2, 2, XFER, make=sglang), request_rate=10.0),
    "d-sglang-pressure": synthetic(512, 200, 40, **split(S(worker_type="prefill", num_gpu_blocks=3000), S(worker_type="decode", num_gpu_blocks=6000)), replay_concurrency=16),
    "d-trtllm": synthetic(512, 64, 40, **split({"engine": {"backend": "trtllm", "worker_type": "prefill"}}, {"engine": {"backend": "trtllm", "worker_type": "decode"}}), replay_concurrency=6),
    "d-mtp": synthetic(512, 64, 40, **split(V(worker_type="prefill"), V(worker_type="decode", aic_nextn=2)), replay_concurrency=6),
    "d-limit": synthetic(900, 100, 80, **pd(2, 1, XFER), request_rate=12.0),
    # Dynamo's router.
    "k-one": synthetic(1024, 64, 60, extra_engine_args=V(), replay_concurrency=8, router_mode="kv_router"),
    "k-groups": synthetic(1024, 64, 300, extra_engine_args=V(), replay_concurrency=32, num_workers=4, router_mode="kv_router", shared_prefix_ratio=0.5, num_prefix_groups=16),
    "k-groups-small": synthetic(1024, 64, 300, extra_engine_args=V(num_gpu_blocks=400), replay_concurrency=32, num_workers=4, router_mode="kv_router", shared_prefix_ratio=0.75, num_prefix_groups=16),
    "k-unique": synthetic(1024, 64, 300, extra_engine_args=V(), request_rate=40.0, num_workers=4, router_mode="kv_router"),
    "k-trace": traced(mooncake(300, 41, gap=40), extra_engine_args=V(), num_workers=4, router_mode="kv_router"),
    "k-trace-small": traced(mooncake(300, 42, gap=60), extra_engine_args=V(num_gpu_blocks=500), num_workers=4, router_mode="kv_router"),
    "k-sessions": traced(sessions(80, 43, gap=60), extra_engine_args=V(), num_workers=4, router_mode="kv_router"),
    "k-lag": traced(sessions(80, 43, gap=60), extra_engine_args=V(), num_workers=4, router_mode="kv_router", kv_event_lag_ms=400.0),
    "k-queue": synthetic(1024, 64, 300, extra_engine_args=V(max_num_batched_tokens=2048), replay_concurrency=64, num_workers=4, router_mode="kv_router", router_config={"router_queue_threshold": 1.0}),
    "k-queue-wspt": traced(mooncake(300, 44, gap=20, extra=priorities), extra_engine_args=V(), num_workers=4, router_mode="kv_router", router_config={"router_queue_threshold": 1.0, "router_queue_policy": "wspt"}),
    "k-queue-lcfs": traced(mooncake(300, 44, gap=20, extra=priorities), extra_engine_args=V(), num_workers=4, router_mode="kv_router", router_config={"router_queue_threshold": 1.0, "router_queue_policy": "lcfs"}),
    "k-credit": traced(mooncake(300, 45, gap=40), extra_engine_args=V(), num_workers=4, router_mode="kv_router", router_config={"overlap_score_credit": 0.5, "prefill_load_scale": 2.0}),
    "k-decay": traced(mooncake(300, 45, gap=40), extra_engine_args=V(), num_workers=4, router_mode="kv_router", router_config={"overlap_score_credit_decay": 1.0, "decode_active_request_weight": 3.0}),
    "k-temp": traced(mooncake(300, 46, gap=40), extra_engine_args=V(), num_workers=4, router_mode="kv_router", router_config={"router_temperature": 0.5}),
    "k-noreuse": traced(mooncake(300, 46, gap=40), extra_engine_args=V(), num_workers=4, router_mode="kv_router", router_config={"router_assume_kv_reuse": False}),
    "k-notrack": traced(mooncake(300, 46, gap=40), extra_engine_args=V(), num_workers=4, router_mode="kv_router", router_config={"router_track_active_blocks": False, "router_track_prefill_tokens": False}),
    "k-sglang": traced(mooncake(300, 47, gap=40), extra_engine_args=S(block_size=64, num_gpu_blocks=3000), num_workers=4, router_mode="kv_router"),
    "k-sglang-page1": traced(mooncake(200, 47, gap=60, blocks=(1, 4)), extra_engine_args=S(), num_workers=3, router_mode="kv_router"),
    "k-disagg": traced(mooncake(200, 48, gap=60), **pd(3, 3, XFER), router_mode="kv_router"),
    "k-disagg-groups": synthetic(1024, 64, 300, **pd(2, 4, XFER), replay_concurrency=32, router_mode="kv_router", shared_prefix_ratio=0.5, num_prefix_groups=8),
    "k-dp2": synthetic(1024, 64, 200, extra_engine_args=V({"dp_size": 2}), replay_concurrency=32, num_workers=2, router_mode="kv_router", shared_prefix_ratio=0.5, num_prefix_groups=8),
    "k-turns": synthetic(1024, 40, 80, extra_engine_args=V(), request_rate=10.0, num_workers=4, router_mode="kv_router", turns_per_session=3, inter_turn_delay_ms=300.0, shared_prefix_ratio=0.5, num_prefix_groups=8),
}

# Where the peer gives up the whole run, ours rejects the one request that can never run; and the
# arguments of 1.4, without the object around them, are still read.
LENIENT = {"v-unchunked-never", "v-grows-too-big", "s-too-big", "v-flat-args"}

# Small runs that are kept as tests in tests/fixtures/dynamo.
GOLDEN = {
    "30-pressure-fifo": synthetic(200, 120, 14, extra_engine_args=V(num_gpu_blocks=24, block_size=32, preemption_mode="fifo"), replay_concurrency=6),
    "31-pressure-budget": synthetic(300, 90, 14, extra_engine_args=V(num_gpu_blocks=90, block_size=16, max_num_batched_tokens=128), request_rate=12.0),
    "32-groups-evict": synthetic(512, 30, 24, extra_engine_args=V(num_gpu_blocks=40), replay_concurrency=4, shared_prefix_ratio=0.5, num_prefix_groups=4),
    "33-turns-poisson": synthetic(300, 20, 8, extra_engine_args=V(), request_rate=8.0, turns_per_session=3, inter_turn_delay_ms=80.0),
    "34-drafts": synthetic(300, 60, 12, extra_engine_args=V(aic_nextn=3, aic_nextn_accept_rates="0.9,0.6,0.4"), replay_concurrency=4, num_workers=2),
    "35-ranks": synthetic(400, 30, 20, extra_engine_args=V({"dp_size": 2}), request_rate=30.0, num_workers=2),
    "36-no-evict": synthetic(256, 100, 16, extra_engine_args={"engine": {"backend": "trtllm", "num_gpu_blocks": 60}}, replay_concurrency=8),
    "37-host": synthetic(400, 120, 24, extra_engine_args=V(num_gpu_blocks=70, block_size=16, kv_cache_bytes_per_token=131072, native_host_offload={"num_host_blocks": 2000, "d2h_bandwidth_gbps": 4.0, "latency_to_first_byte_ms": 0.5}), replay_concurrency=4, shared_prefix_ratio=0.6, num_prefix_groups=5),
    "40-split": synthetic(600, 40, 16, **pd(2, 1, XFER), request_rate=12.0),
    "41-split-pressure": synthetic(300, 100, 14, **split(V(worker_type="prefill", num_gpu_blocks=16, **XFER), V(worker_type="decode", num_gpu_blocks=30, **XFER)), replay_concurrency=8),
    "42-split-missing": synthetic(512, 30, 20, **pd(1, 2, {**XFER, "kv_transfer_timing_mode": "destination_missing", "kv_transfer_bandwidth": 2.0}), replay_concurrency=5, shared_prefix_ratio=0.5, num_prefix_groups=2),
    "43-split-sglang": synthetic(300, 100, 14, **split(S(worker_type="prefill", num_gpu_blocks=1000), S(worker_type="decode", num_gpu_blocks=1600)), replay_concurrency=8),
    "50-mooncake-small": traced(mooncake(20, 51, gap=60, out=(5, 60)), extra_engine_args=V(num_gpu_blocks=300), num_workers=2),
    "51-sessions-closed": traced(sessions(8, 52), extra_engine_args=V(), replay_concurrency=3),
    "52-applied": traced(agentic(6), extra_engine_args=V(), trace_format="applied_compute_agentic", replay_concurrency=2),
    "53-lanes": traced(plays(8, 53), extra_engine_args=V(), trace_format="agentic_mooncake", execution_model="m", agentic_lanes=2),
    "60-sglang-retract": synthetic(200, 150, 14, extra_engine_args=S(num_gpu_blocks=140, block_size=16), replay_concurrency=8),
    "61-sglang-lpm": synthetic(512, 20, 20, extra_engine_args=S(block_size=32, num_gpu_blocks=120, sglang={"schedule_policy": "lpm", "chunked_prefill_size": 1024}), arrival_interval_ms=5.0, shared_prefix_ratio=0.5, num_prefix_groups=3),
    "62-sglang-drafts": synthetic(300, 60, 10, extra_engine_args=S(aic_nextn=2, num_gpu_blocks=1500), replay_concurrency=5),
}


def tables(system, model, tp, **config):
    """A timing model of NVIDIA's kernel tables."""
    return {"type": "external", "provider": "ais", "config": {
        "backend": "vllm", "system": system, "model": model, "worker_type": "aggregated", "tp": tp, **config}}


# Runs by kernel tables, which are not shipped.
TABLES = {
    "70-llama-closed": synthetic(700, 40, 16, extra_engine_args=V(num_gpu_blocks=400, timing_model=tables("h100_sxm", "meta-llama/Meta-Llama-3.1-8B", 1)), replay_concurrency=6),
    "71-experts-mooncake": traced(mooncake(14, 71, gap=90, blocks=(1, 4), out=(5, 50)), extra_engine_args=V(num_gpu_blocks=600, timing_model=tables("h200_sxm", "Qwen/Qwen3-30B-A3B", 2, moe_tp_size=2, moe_ep_size=1)), num_workers=2),
}
