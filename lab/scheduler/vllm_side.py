#!/usr/bin/env python3
"""Plays workloads on vLLM's own scheduler, without GPU, weights or clock, and writes WORKLOAD.vllm.jsonl beside each.

    VLLM_SRC=<folder with vllm/> MODEL=<folder of a small model> vllm_side.py WORKLOAD.json...

Time is simulated as vLLM's engine core would pass it: a step that computes tokens takes one second after the step before it,
a step without tokens takes none. With asynchronous scheduling two steps are in flight, as in `step_with_batch_queue`
(`vllm/v1/engine/core.py`). README.md describes workloads and logs.
"""
import heapq
import json
import os
import sys
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# The model runner that a GPU server uses.
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")
sys.path.insert(0, os.environ["VLLM_SRC"])
# vLLM looks at the model's class in a process of its own.
os.environ["PYTHONPATH"] = os.environ["VLLM_SRC"]

import vllm.platforms as platforms  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402

platforms._current_platform = CpuPlatform()

import torch  # noqa: E402
from vllm.config import (CacheConfig, DeviceConfig, KVTransferConfig, LoRAConfig, ModelConfig, ParallelConfig,  # noqa: E402
                         SchedulerConfig, VllmConfig)
from vllm.config.kv_events import KVEventsConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from vllm.sampling_params import SamplingParams, StructuredOutputsParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec  # noqa: E402
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.interface import PauseState  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine import FinishReason  # noqa: E402
from vllm.v1.kv_cache_interface import (FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor,  # noqa: E402
                                        MambaSpec, SlidingWindowSpec)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

STEP = 1000
# Steps between two checks of data-parallel ranks whether any has requests (`dp_sync_interval`).
SYNC_INTERVAL = 16
OUTPUT_TOKEN = 7


class Drafts:
    """Stands in for `SpeculativeConfig`, which needs the files of a draft model: what the scheduler reads of it."""

    disable_eagle_block_drop = False
    num_speculative_tokens_per_batch_size = None

    def __init__(self, c):
        self.method, self.num_speculative_tokens = c["method"], c["k"]
        self.disable_lookahead_block_hashes = c.get("plain_hashes", False)
        self.max_num_new_slots_for_drafting = 1 if self.method == "draft_model" else 0

    def use_eagle(self):
        return self.method in ("eagle", "mtp")

    needs_eagle_block_drop = use_eagle_block_drop = use_eagle

    def use_multi_module_mtp(self):
        return False

    def uses_draft_model(self):
        return self.method == "draft_model"

    def use_dspark(self):
        return False

    use_dflash = use_dspark


class Loads(KVConnectorBase_V1):
    """Fetches the whole prompt of requests with `remote`, as NIXL's scheduler side does, in a given time.

    Of a request with `load_fails`, all fetched blocks are reported as invalid when the time is over.
    """

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.begun = []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill"):
            return 0, False
        count = request.num_prompt_tokens - num_computed_tokens
        return (count, True) if count > 0 else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):
            params["do_remote_prefill"] = False
            if num_external_tokens > 0:
                missing = {b for b in blocks.get_unhashed_block_ids_all_groups()[0]} if params.get("load_fails") else set()
                self.begun.append((request.request_id, missing))

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished(self, request, block_ids):
        return False, None

    def start_load_kv(self, *a, **k):
        pass

    def wait_for_layer_load(self, *a):
        pass

    def save_kv_layer(self, *a, **k):
        pass

    def wait_for_save(self):
        pass


KVConnectorFactory.register_connector("Loads", __name__, "Loads")


def layer_groups(c):
    size = c["block_size"]
    head = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = []
    for kind in c.get("groups", ["full"]):
        if kind == "full":
            specs.append(FullAttentionSpec(block_size=size, **head))
        elif kind == "mamba":
            k = c["speculation"]["k"] if c.get("speculation") else 0
            specs.append(MambaSpec(block_size=size, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align",
                                   num_speculative_blocks=k))
        else:
            specs.append(SlidingWindowSpec(block_size=size, sliding_window=int(kind), **head))
    return [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]


def make_scheduler(c):
    model = ModelConfig(model=os.environ["MODEL"], tokenizer=os.environ["MODEL"], skip_tokenizer_init=True,
                        dtype="float16", seed=0, max_model_len=c["max_model_len"])
    cache = CacheConfig(block_size=c["block_size"], enable_prefix_caching=c.get("enable_prefix_caching", True))
    cache.num_gpu_blocks = c["num_gpu_blocks"]
    if "mamba" in c.get("groups", []):
        cache.mamba_cache_mode = "align"
    known = ("policy", "async_scheduling", "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive", "watermark",
             "enable_chunked_prefill", "prefill_schedule_interval", "scheduler_reserve_full_isl", "max_num_scheduled_tokens",
             "max_num_active_seqs", "disable_chunked_mm_input")
    sched = SchedulerConfig(
        max_num_seqs=c["max_num_seqs"], max_num_batched_tokens=c["max_num_batched_tokens"], max_model_len=model.max_model_len,
        is_encoder_decoder=False, **{"async_scheduling": False, **{k: c[k] for k in known if k in c}})
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null") if c.get("kv_events", True) else None
    transfer = None
    if "offload" in c and c["offload"].get("simple"):
        transfer = KVTransferConfig(kv_connector="SimpleCPUOffloadConnector", kv_role="kv_both", kv_connector_extra_config={
            "cpu_bytes_to_use": c["offload"]["chunks"]})
    elif "offload" in c:
        transfer = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config={
            "cpu_bytes_to_use": c["offload"]["chunks"] * CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT})
    elif c.get("load_ms") is not None:
        name = "Loads" if "lease_ms" not in c else "NixlPushConnector" if c.get("push") else "NixlConnector"
        transfer = KVTransferConfig(kv_connector=name, kv_role=c.get("kv_role", "kv_both"),
                                    kv_load_failure_policy=c.get("load_failure_policy", "fail"))
    config = VllmConfig(model_config=model, cache_config=cache, scheduler_config=sched, parallel_config=ParallelConfig(),
                        device_config=DeviceConfig("cpu"), kv_events_config=events, kv_transfer_config=transfer,
                        lora_config=LoRAConfig(max_loras=c["max_loras"]) if c.get("max_loras") else None)
    # VllmConfig turns it off for executors that this process does not have.
    config.scheduler_config.async_scheduling = bool(c.get("async_scheduling"))
    if c.get("speculation"):
        config.speculative_config = Drafts(c["speculation"])
    # A block has one byte, as far as sizes matter.
    tensors = [KVCacheTensor(c["num_gpu_blocks"], ["layer0"], c["num_gpu_blocks"], 1)]
    kv = KVCacheConfig(num_blocks=c["num_gpu_blocks"], kv_cache_tensors=tensors if "offload" in c else [], kv_cache_groups=layer_groups(c),
                       prefix_cache_retention_interval=c.get("retention"))
    cls = AsyncScheduler if c.get("async_scheduling") else Scheduler
    scheduler = cls(vllm_config=config, kv_cache_config=kv, structured_output_manager=StructuredOutputManager(config),
                    block_size=c["block_size"], log_stats=True)
    if c.get("encoder"):
        # The model has no encoder, so that nothing needs its processor.
        scheduler.max_num_encoder_input_tokens = c["encoder"]["budget"]
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=c["encoder"]["cache"])
    if c.get("ranks"):
        # The engine core of a data-parallel rank tells the scheduler when to hold prefills back.
        scheduler.local_prefill_interval = 1
    scheduler.published = []
    if events:
        keep = {"publish": staticmethod(scheduler.published.append), "shutdown": lambda self: None}
        scheduler.kv_event_publisher = type("Keep", (), keep)()
    return scheduler, config


class HostCopies:
    """Stands in for the workers of `OffloadingConnector`: copies of one direction run one after another."""

    def __init__(self, c):
        self.each = {True: c["store_ms"], False: c["load_ms"]}
        self.tails, self.jobs, self.waiting = {True: 0, False: 0}, [], {}

    def submit(self, job, entry, is_store, at):
        spec = entry.src_spec if is_store else entry.dst_spec
        self.tails[is_store] = max(self.tails[is_store], at) + len(spec.block_ids) * self.each[is_store]
        heapq.heappush(self.jobs, (self.tails[is_store], job, None if is_store else entry.req_id))

    def begin_step(self, metadata, at):
        """Returns when the step may compute: after copies from blocks that it writes."""
        flushed = set(metadata.jobs_to_flush or ())
        stores = {job: entry for job, entry in metadata.store_jobs.items() if job not in flushed}
        self.waiting |= {job: entry for job, entry in metadata.store_jobs.items() if job in flushed}
        # Stores of a step begin with the next one.
        for job, entry in self.waiting.items():
            self.submit(job, entry, True, at)
        self.waiting = stores
        at = max([at] + [end for end, job, _ in self.jobs if job in flushed])
        for job, entry in metadata.load_jobs.items():
            self.submit(job, entry, False, at)
        return at

    def finished(self, now):
        meta, arrived = OffloadingWorkerMetadata(), set()
        while self.jobs and self.jobs[0][0] <= now:
            _, job, rid = heapq.heappop(self.jobs)
            meta.mark_completed(job)
            arrived |= {rid} - {None}
        return meta, arrived


class SimpleHostCopies:
    """Stands in for the workers of `SimpleCPUOffloadConnector`: one copy each way per step, one after another."""

    def __init__(self, c):
        self.each = {True: c["store_ms"], False: c["load_ms"]}
        self.tails, self.jobs, self.waiting = {True: 0, False: 0}, [], []

    def submit(self, blocks, job, is_store, at):
        self.tails[is_store] = max(self.tails[is_store], at) + len(blocks) * self.each[is_store]
        heapq.heappush(self.jobs, (self.tails[is_store], is_store, job))

    def begin_step(self, metadata, at):
        """Returns when the step may compute: after all copies, if it uses blocks of a preempted request."""
        if metadata.need_flush:
            at = max([at] + [end for end, *_ in self.jobs])
        if metadata.load_event >= 0:
            self.submit(metadata.load_gpu_blocks, metadata.load_event_to_reqs[metadata.load_event], False, at)
        if metadata.store_event >= 0:
            # A store waits for the step that it was planned with.
            self.waiting.append((metadata.store_gpu_blocks, metadata.store_event))
        return at

    def end_step(self, at):
        for blocks, job in self.waiting:
            self.submit(blocks, job, True, at)
        self.waiting = []

    def finished(self, now):
        stored, arrived = {}, set()
        while self.jobs and self.jobs[0][0] <= now:
            _, is_store, job = heapq.heappop(self.jobs)
            if is_store:
                stored[job] = 1
            else:
                arrived |= set(job)
        return SimpleCPUOffloadWorkerMetadata(stored), arrived


class Player:
    """Runs the loop of vLLM's engine core in simulated time."""

    def __init__(self, work, out):
        self.c, self.out = work["config"], out
        hash_fn = get_hash_fn_by_name(self.c.get("hash", "sha256"))
        init_none_hash(hash_fn)
        self.scheduler, config = make_scheduler(self.c)
        self.hasher = get_request_block_hasher(self.c["block_size"], hash_fn, config.num_hash_lookahead_tokens)
        self.k = config.num_speculative_tokens
        self.depth = 2 if self.c.get("async_scheduling") else 1
        self.requests = {r["id"]: r for r in work["requests"]}
        inputs = [(r["at"], 1, n, "add", r) for n, r in enumerate(work["requests"])]
        inputs += [(r["abort_at"], 2, n, "abort", r) for n, r in enumerate(work["requests"]) if "abort_at" in r]
        inputs += [(x["at"], 0, n, x["do"], x) for n, x in enumerate(work.get("commands", []))]
        self.inputs = deque(sorted(inputs, key=lambda i: i[:3]))
        self.now, self.gpu_free, self.queue, self.loads, self.sends = 0, 0, deque(), [], []
        self.copies = None
        if "offload" in self.c:
            self.copies = (SimpleHostCopies if self.c["offload"].get("simple") else HostCopies)(self.c["offload"])
        # Grammars in the making: time, number, future and whether it fails.
        self.grammars = []
        self.sleeping = self.freed = False
        self.added, self.over, self.begun_sends = [], [], 0
        self.finish_requests, self.scheduler.finish_requests = self.scheduler.finish_requests, self.finish_in_order

    def finish_in_order(self, ids, status):
        """Ends requests that vLLM has in a set, and so frees their blocks, in the order in which they were added."""
        if ids is None or isinstance(ids, str):
            return self.finish_requests(ids, status)
        return [one for rid in sorted(ids, key=self.added.index) for one in self.finish_requests(rid, status)]

    def log(self, **line):
        print(json.dumps({"t": self.now, **line}, separators=(",", ":")), file=self.out)

    def used(self):
        pool = self.scheduler.kv_cache_manager.block_pool
        return self.c["num_gpu_blocks"] - 1 - pool.get_num_free_blocks()

    def add(self, number, r):
        extra = None
        if r.get("remote"):
            # NIXL needs to know where the blocks are; nothing reads them.
            extra = {"kv_transfer_params": {
                "do_remote_prefill": True, "do_remote_decode": False, "load_fails": r.get("load_fails", False), "tp_size": 1,
                "remote_block_ids": [[1]], "remote_engine_id": "other", "remote_request_id": r["id"], "remote_host": "other",
                "remote_port": 1}}
        elif "send_ms" in r:
            extra = {"kv_transfer_params": {"do_remote_prefill": False, "do_remote_decode": True}}
        outputs = StructuredOutputsParams(json_object=True) if "grammar_ms" in r else None
        params = SamplingParams(ignore_eos=True, max_tokens=r["output"], extra_args=extra, structured_outputs=outputs)
        media = [MultiModalFeatureSpec(data=None, modality="image", identifier=identifier,
                                       mm_position=PlaceholderRange(offset=start, length=length))
                 for identifier, start, length in r.get("media", [])]
        lora = LoRARequest(f"a{r['lora']}", r["lora"], f"/a{r['lora']}") if r.get("lora") else None
        request = Request(
            request_id=r["id"], prompt_token_ids=[first + i for first, count in r["prompt"] for i in range(count)],
            sampling_params=params, pooling_params=None, arrival_time=r["at"] + number * 1e-6, priority=r.get("priority", 0),
            cache_salt=r.get("salt"), mm_features=media, lora_request=lora, block_hasher=self.hasher)
        if outputs:
            request.structured_output_request.grammar = grammar = Future()
            heapq.heappush(self.grammars, (r["at"] + r["grammar_ms"], number, grammar, r.get("grammar_fails", False)))
        self.added.append(r["id"])
        self.scheduler.add_request(request)

    def finish_grammars(self):
        while self.grammars and self.grammars[0][0] <= self.now:
            _, _, grammar, fails = heapq.heappop(self.grammars)
            if fails:
                grammar.set_exception(ValueError("unsupported"))
            else:
                grammar.set_result(SimpleNamespace(accept_tokens=lambda *a: True, validate_tokens=lambda tokens: tokens))

    def take_inputs(self, kinds):
        later = deque()
        while self.inputs and self.inputs[0][0] <= self.now:
            item = self.inputs.popleft()
            _, _, number, kind, x = item
            if kind not in kinds or kinds == ("abort",) and x["id"] not in self.scheduler.requests:
                later.append(item)
            elif kind == "add":
                self.add(number, x)
            elif kind == "abort":
                self.over.append(x["id"])
                self.scheduler.finish_requests(x["id"], RequestStatus.FINISHED_ABORTED)
            elif kind in ("pause", "pause-new", "resume"):
                state = {"pause": "PAUSED_ALL", "pause-new": "PAUSED_NEW", "resume": "UNPAUSED"}[kind]
                self.scheduler.set_pause_state(PauseState[state])
                self.sleeping = False
            elif kind == "sleep":
                # The caches are reset when the steps in flight have ended.
                self.scheduler.set_pause_state(PauseState.PAUSED_ALL)
                self.sleeping = True
            elif kind == "reset-encoder":
                self.scheduler.reset_encoder_cache()
            else:
                self.scheduler.reset_prefix_cache(reset_running_requests=kind == "reset-running")
        self.inputs.extendleft(reversed(later))

    def plan(self, throttle_prefills=False):
        s = self.scheduler
        # vLLM has the requests that ended since the last plan in a set, without an order.
        s.finished_req_ids = sorted(s.finished_req_ids, key=self.over.index)
        out = s.schedule(throttle_prefills)
        step = {"out": out, "samples": {}, "padded": set()}
        new, resumed, work = [], [], []
        for rid, count in out.num_scheduled_tokens.items():
            request = s.requests[rid]
            work.append([rid, request.num_computed_tokens - count, count])
            step["samples"][rid] = not request.is_prefill_chunk
            if rid in {n.req_id for n in out.scheduled_new_reqs}:
                (resumed if request.num_preemptions else new).append(rid)
                if out.scheduled_spec_decode_tokens.get(rid):
                    step["padded"].add(rid)
        if s.connector is not None:
            self.begin_transfers(s.connector, out.kv_connector_metadata)
        preempted = sorted(out.preempted_req_ids or [])
        if work or preempted:
            encoded = [[rid, items] for rid, items in out.scheduled_encoder_inputs.items()]
            encoded = {"encoded": encoded} if encoded else {}
            self.log(scheduled=work, admitted=new, resumed=resumed, preempted=preempted, used=self.used(), **encoded)
        return step

    def begin_transfers(self, connector, metadata):
        """Does what the workers of the connector would do, in a given time."""
        if self.copies:
            return
        if isinstance(connector, Loads):
            begun = connector.begun[:]
            connector.begun.clear()
        else:
            # With push mode, all requests that have blocks wait for the other engine's writes.
            begun = [(rid, set()) for rid, meta in metadata.reqs_to_recv.items() if meta.awaiting_kvs or any(meta.local_block_ids)]
            for rid in metadata.reqs_to_send:
                # Blocks that the other engine has not read in time are freed.
                takes = min(self.requests[rid]["send_ms"], self.c["lease_ms"])
                # vLLM reports ends of one moment as a set, without an order.
                self.begun_sends += 1
                heapq.heappush(self.sends, (self.now + takes, self.begun_sends, rid))
        for rid, missing in begun:
            heapq.heappush(self.loads, (self.now + self.c["load_ms"], rid, missing))

    def output(self, step):
        """Returns the model's output: the sampled tokens, and the drafts after them."""
        out, sampled, drafts = step["out"], [], []
        for rid in out.num_scheduled_tokens:
            request = self.scheduler.requests.get(rid)
            if request is None or not step["samples"][rid]:
                sampled.append([])
                continue
            planned = len(out.scheduled_spec_decode_tokens.get(rid) or [])
            script = self.requests[rid].get("drafts") or []
            at = request.num_output_tokens - 1
            accepted = script[at][1] if planned and rid not in step["padded"] and 0 <= at < len(script) else 0
            sampled.append([OUTPUT_TOKEN] * (1 + min(accepted, planned)))
            if planned and not request.is_finished():
                drafts.append([rid, planned, min(accepted, planned)])
        arrived, invalid, self.sent = set(), set(), []
        while self.sends and self.sends[0][0] <= self.now:
            self.sent.append(heapq.heappop(self.sends)[2])
        while self.loads and self.loads[0][0] <= self.now:
            _, rid, missing = heapq.heappop(self.loads)
            arrived.add(rid)
            invalid |= missing
        ids = list(out.num_scheduled_tokens)
        connector = None
        if self.copies:
            meta, arrived = self.copies.finished(self.now)
            connector = KVConnectorOutput(finished_recving=arrived, kv_connector_worker_meta=meta)
        elif arrived or self.sent:
            connector = KVConnectorOutput(finished_recving=arrived, finished_sending=self.sent, invalid_block_ids=invalid)
        return ModelRunnerOutput(req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=sampled,
                                 logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
                                 kv_connector_output=connector), drafts

    def propose(self, step):
        """Without asynchronous scheduling, drafts are known before the next step is planned."""
        ids, tokens = [], []
        for rid in step["out"].num_scheduled_tokens:
            request = self.scheduler.requests.get(rid)
            if request is None or not step["samples"][rid] or not request.num_output_tokens:
                continue
            script = self.requests[rid].get("drafts") or []
            at = request.num_output_tokens - 1
            ngram = self.c["speculation"]["method"] == "ngram"
            count = (script[at][0] if at < len(script) else 0) if ngram else self.k
            ids.append(rid)
            tokens.append([OUTPUT_TOKEN] * count)
        self.scheduler.update_draft_token_ids(DraftTokenIds(ids, tokens))

    def update(self, step):
        result, drafts = self.output(step)
        ended, failed = [], []
        for outputs in self.scheduler.update_from_output(step["out"], result).values():
            for o in outputs.outputs:
                if o.finish_reason is not None:
                    (failed if o.finish_reason == FinishReason.ERROR else ended).append(o.request_id)
        # vLLM has failed requests in sets, without an order.
        ended += sorted(failed, key=self.added.index)
        self.over += ended
        if self.k and self.depth == 1:
            self.propose(step)
        events = []
        # Hashes are the last eight bytes as an integer, as vLLM sends them.
        for batch in self.scheduler.published:
            for e in batch.events:
                kind = type(e).__name__
                if kind == "AllBlocksCleared":
                    events.append([kind, [], None, None, None])
                else:
                    events.append([kind, list(e.block_hashes), getattr(e, "parent_block_hash", None), e.group_idx, e.medium])
        self.scheduler.published.clear()
        self.freed = bool(ended or self.sent)
        if step["out"].total_num_scheduled_tokens or events or ended:
            self.log(drafts=drafts, ended=ended, events=events, used=self.used())

    def take_all_inputs(self):
        self.take_inputs(("add", "abort", "pause", "pause-new", "sleep", "resume", "reset", "reset-running", "reset-encoder"))
        self.finish_grammars()

    def step(self, throttle_prefills=False):
        """Does `step` or `step_with_batch_queue` of the engine core. Returns the planned step, the end of the processed one, and
        whether the queue has room for another."""
        planned = None
        if self.scheduler.has_requests():
            planned = self.plan(throttle_prefills)
            total = planned["out"].total_num_scheduled_tokens
            begun = max(self.gpu_free, self.now)
            if self.copies:
                begun = self.copies.begin_step(planned["out"].kv_connector_metadata, begun)
            if total:
                self.gpu_free = begun + STEP
            if isinstance(self.copies, SimpleHostCopies):
                self.copies.end_step(self.gpu_free if total else begun)
            self.queue.append((planned, self.gpu_free if total else 0))
            if len(self.queue) < self.depth and (total or self.scheduler.has_requests()):
                return planned, None, True
        elif not self.queue:
            return None, None, False
        step, end = self.queue.popleft()
        self.now = max(self.now, end)
        # Requests that were aborted while the step ran.
        self.take_inputs(("abort",))
        self.update(step)
        return planned, end, False

    def run(self, most=200_000):
        for _ in range(most):
            self.take_all_inputs()
            if self.sleeping and not self.queue and not self.scheduler.has_requests():
                self.sleeping = False
                self.scheduler.reset_prefix_cache(reset_running_requests=True)
                self.scheduler.reset_encoder_cache()
            planned, end, has_room = self.step()
            if has_room:
                continue
            if end is None:
                if not self.inputs:
                    return
                self.now = max(self.now, self.inputs[0][0])
                continue
            arrived = self.scheduler.connector is not None and self.scheduler.finished_recving_kv_req_ids
            arrived = arrived and self.scheduler.pause_state != PauseState.PAUSED_ALL
            idle = planned is not None and not planned["out"].total_num_scheduled_tokens and not arrived
            # The next plan may use the blocks of those that this one preempted, or that failed.
            idle = idle and not planned["out"].preempted_req_ids and not self.freed
            if idle and not end and not any(e for _, e in self.queue) and self.scheduler.has_requests():
                coming = [i[0] for i in list(self.inputs)[:1]] + [at for at, *_ in self.loads[:1] + self.sends[:1] + self.grammars[:1]]
                coming += [at for at, *_ in self.copies.jobs[:1]] if self.copies else []
                coming = [at for at in coming if at > self.now]
                if not coming:
                    if self.inputs:
                        continue
                    self.log(stuck=sorted(self.scheduler.requests))
                    return
                self.now = min(coming)
        raise RuntimeError("too many steps")

    def run_rank(self, most=200_000):
        """Runs the loop of a data-parallel rank, whose other ranks have no requests (`DPEngineCoreProc.run_busy_loop`).

        Without asynchronous scheduling, ranks wait for each other in every step, those without requests too.
        """
        interval, counter, running = self.c.get("prefill_schedule_interval", 1), 0, False
        for _ in range(most):
            if not (running or self.queue or self.scheduler.has_requests()):
                if not self.inputs:
                    return
                self.now = max(self.now, self.inputs[0][0])
            self.take_all_inputs()
            # A new request starts a wave.
            running = running or self.scheduler.has_unfinished_requests()
            planned, *_ = self.step(throttle_prefills=interval > 1 and counter % interval != 0)
            unfinished = self.scheduler.has_unfinished_requests()
            if planned is None or not planned["out"].total_num_scheduled_tokens:
                if not unfinished and not running:
                    transfers = [at for at, *_ in self.loads[:1] + self.sends[:1]]
                    if transfers and self.scheduler.has_requests():
                        # Only blocks of ended requests are left.
                        self.now = max(self.now, min(transfers + [i[0] for i in list(self.inputs)[:1]]))
                    continue
                # The rank computes with the others.
                self.now = self.gpu_free = max(self.gpu_free, self.now) + STEP
            counter += 1
            if counter == 1 or counter % SYNC_INTERVAL == 0:
                running = unfinished
                counter = counter if running else 0
        raise RuntimeError("too many steps")


def play(work, out):
    player = Player(work, out)
    player.run_rank() if work["config"].get("ranks") else player.run()


if __name__ == "__main__":
    for path in sys.argv[1:]:
        try:
            with open(path.removesuffix(".json") + ".vllm.jsonl", "w") as file:
                play(json.load(open(path)), file)
        except Exception as e:  # One workload that vLLM refuses does not end the others.
            print(f"{path}: {type(e).__name__}: {e}", file=sys.stderr)
            if os.environ.get("TRACE"):
                raise
