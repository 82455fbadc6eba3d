"""Writes what vLLM's own CPU tier does with `eviction_policy: arc`, step by step.

    python tests/python/kv_arc_vectors.py vllm-0.33.0.whl > tests/fixtures/kv_arc.jsonl

Nothing but the manager, its policies and the key helpers of the wheel runs; the rest of vLLM is
replaced by empty names. One JSON object per line: `prompts`, the keys of each request, and `steps`:

- `{"offer": [request, end, evicted]}`: its chunks up to `end` are offered; `evicted` is null where
  the offer failed;
- `{"load": [request, end]}`: its first chunks are read;
- `"complete"`: all copies end;
- `{"finish": request}`: the request is over.
"""
import importlib, json, random, sys, tempfile, types, zipfile
from dataclasses import dataclass, field

CPU = "vllm/v1/kv_offload/cpu/"
REAL = [CPU + "manager.py", *(f"{CPU}policies/{name}.py" for name in ("base", "arc", "lru", "factory"))]


class Empty(types.ModuleType):
    """A module whose every name is an empty class."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__init__": lambda self, *args, **named: None})
        setattr(self, name, value)
        return value


@dataclass
class ReqContext:
    """The two things that the manager asks a request for."""

    states: dict = field(default_factory=dict)
    positions: dict = field(default_factory=dict)

    def set_state(self, state):
        self.states[type(state)] = state

    def get_state(self, cls):
        return self.states.get(cls)

    def get_offload_key_position(self, key):
        return self.positions.get(key)


def manager_class(wheel, folder):
    with zipfile.ZipFile(wheel) as file:
        for path in REAL:
            file.extract(path, folder)
    for path in ("vllm", "vllm/v1", "vllm/v1/kv_offload", "vllm/v1/kv_offload/cpu", CPU + "policies"):
        package = Empty(path.strip("/").replace("/", "."))
        package.__path__ = [f"{folder}/{path}"]
        sys.modules[package.__name__] = package
    base = Empty("vllm.v1.kv_offload.base")
    base.ReqContext = ReqContext
    base.PrepareStoreOutput = types.SimpleNamespace
    base.get_offload_group_idx = lambda key: 0
    sys.modules[base.__name__] = base
    for name in (
        "vllm.logger",
        "vllm.distributed",
        "vllm.distributed.kv_transfer",
        "vllm.distributed.kv_transfer.kv_connector",
        "vllm.distributed.kv_transfer.kv_connector.v1",
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading",
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics",
        "vllm.v1.kv_offload.cpu.common",
        "vllm.v1.metrics",
        "vllm.v1.metrics.cache_hit_source",
    ):
        sys.modules[name] = Empty(name)
    base.Medium.CPU = "CPU"
    return importlib.import_module("vllm.v1.kv_offload.cpu.manager").CPUOffloadingManager


def prompts_of(rng, capacity, count):
    """Prompts that share beginnings; a key stands for all before it too."""
    heads = [[1000 * (head + 1) + at for at in range(rng.randint(1, capacity // 2))] for head in range(4)]
    tails = [[10_000 + 100 * tail + at for at in range(rng.randint(1, capacity // 2))] for tail in range(24)]
    out = []
    for request in range(count):
        kind = rng.random()
        if kind < (0.6 if request // 20 % 2 else 0.1):
            own = [100_000 + 100 * request + at for at in range(rng.randint(1, capacity))]
            out.append(own)
        else:
            tail = rng.randrange(8) + (request // 30 * 8) % 24
            head = heads[tail % len(heads)]
            out.append((head + (tails[tail] if kind < 0.9 else []))[:capacity])
    return out


def case(manager_class, seed, capacity, count):
    rng = random.Random(seed)
    manager = manager_class(num_chunks=capacity, cache_policy="arc")
    prompts = prompts_of(rng, capacity, count)
    steps, active, stores, loads, waiting = [], {}, [], [], list(range(count))
    while waiting or active:
        if waiting and len(active) < 3:
            request = waiting.pop(0)
            positions = {key: at + 1 for at, key in enumerate(prompts[request])}
            active[request] = [ReqContext(positions=positions), 0, 0]
        request = rng.choice(list(active))
        context, offered, tries = active[request]
        keys = prompts[request]
        act = rng.random()
        busy = any(request == other for other, _ in stores + loads)
        if act < 0.35 and offered < len(keys):
            end = rng.randint(offered + 1, len(keys))
            result = manager.prepare_store(keys[offered:end], context)
            evicted = None if result is None else result.evicted_keys
            steps.append({"offer": [request, end, evicted]})
            if result is not None:
                active[request][1] = end
                if result.keys_to_store:
                    stores.append((request, result.keys_to_store))
        elif act < 0.6 and not busy:
            ready = 0
            while ready < len(keys) and (chunk := manager._policy.get(keys[ready])) and chunk.is_ready:
                ready += 1
            if ready:
                end = rng.randint(1, ready)
                manager.prepare_load(keys[:end], context)
                steps.append({"load": [request, end]})
                active[request][1] = max(offered, end)
                loads.append((request, keys[:end]))
        elif act < 0.8 and stores + loads:
            for other, copied in stores:
                manager.complete_store(copied, active[other][0] if other in active else None)
            for other, copied in loads:
                manager.complete_load(copied, active[other][0] if other in active else None)
            stores, loads = [], []
            steps.append("complete")
        elif act >= 0.8 and (offered == len(keys) or tries > 4):
            manager.on_request_finished(context)
            steps.append({"finish": request})
            del active[request]
        else:
            active[request][2] += 1
    return {"capacity": capacity, "prompts": prompts, "steps": steps}


def main():
    with tempfile.TemporaryDirectory() as folder:
        manager = manager_class(sys.argv[1], folder)
        for seed, (capacity, count) in enumerate([(4, 60), (8, 80), (12, 80), (20, 120)]):
            made = case(manager, seed, capacity, count)
            print(json.dumps(made, separators=(",", ":")))


main()
