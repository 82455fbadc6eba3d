"""Compares the answers of vllm-sim for each imitated release with the facts of the release's wheel."""
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import compare
import product

HERE = Path(__file__).resolve().parent
MODEL = str(product.ROOT / "tests/fixtures/tiny-llama")
# Command lines that together show every family that the program has.
CONFIGURATIONS = (
    "--enable-lora --enable-auto-tool-choice --tool-call-parser hermes --kv-cache-metrics --enable-mfu-metrics",
    '--speculative-config {"method":"ngram","num_speculative_tokens":2}',
    '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}',
    "--kv-offloading-size 1",
    '--kv-transfer-config {"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":1073741824}}',
    "--task realtime",
)
# Values that flags need to be read at all; others take "1".
VALUES = {"list": ["1"], "value": ["1"], "switch": []}


def explanations():
    """Returns the reasons of left_out: topic and pattern to reason."""
    rows = [line.split(" | ") for line in (HERE / "left_out").read_text().splitlines() if line and not line.startswith("#")]
    return {(topic, re.compile(pattern)): reason for topic, pattern, reason in rows}


class Server:
    """A server of the program that imitates a release."""

    def __init__(self, binary, version, words):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [binary, *words, "--vllm-version", version, "--port", str(self.port), "--host", "127.0.0.1"]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}, stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(200):
            try:
                self.get("/health")
                return self
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None:
                    self.log.seek(0)
                    raise SystemExit(f"lab/upstream: the server ended: {self.log.read().decode()[-800:]}") from None
                time.sleep(0.05)
        raise SystemExit("lab/upstream: the server does not answer")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()


def families(page):
    """Returns the families of a page of /metrics: type, HELP text, labels and buckets."""
    found = {}
    for line in page.splitlines():
        if line.startswith("# HELP "):
            _, _, name, text = line.split(" ", 3)
            found[name] = {"type": "", "help": text, "labels": set(), "buckets": []}
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            found[name]["type"] = kind.upper()
        elif line.startswith("vllm:"):
            sample = re.match(r"([\w:]+)(?:\{(.*)\})? ", line)
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2] or ""))
            name = next((n for n in (sample[1], re.sub(r"_(bucket|sum|count)$", "", sample[1])) if n in found), None)
            bound = labels.pop("le", None)
            if name and bound not in (None, "+Inf"):
                found[name]["buckets"].append(float(bound))
            if name:
                found[name]["labels"] |= set(labels)
    return {name: one for name, one in found.items() if name.startswith("vllm:") and not name.endswith("_created")}


def metric_differences(binary, version, facts):
    pages = {}
    for words in CONFIGURATIONS:
        with Server(binary, version, ["serve", MODEL, *words.split(" ")]) as server:
            for path in ("/sleep", "/wake_up"):
                server.post(path, {})
            if facts["openapi"]["paths"].get("/weight_info"):
                server.post("/init_weight_transfer_engine", {"init_info": {}})
            for name, one in families(server.get("/metrics")).items():
                old = pages.setdefault(name, one)
                old["labels"] |= one["labels"]
                old["buckets"] = old["buckets"] or one["buckets"]
    for name, fact in facts["metrics"].items():
        ours = pages.pop(name, None)
        if ours is None:
            yield name, "vLLM has it, vllm-sim shows it in no configuration"
            continue
        kind = fact["type"]
        if (ours["type"], ours["help"]) != (kind, fact["help"].replace("\n", "\\n").strip()):
            yield name, f"{ours['type']} {ours['help']!r}, vLLM: {kind} {fact['help']!r}"
        # A family without series shows no labels; an information family has labels that only its values name.
        if ours["labels"] and not set(fact["labels"]) <= ours["labels"]:
            yield name, f"labels {sorted(ours['labels'])}, vLLM: {fact['labels']}"
        bounds = sorted(set(ours["buckets"]))
        if isinstance(fact["buckets"], list) and bounds and bounds != [b for b in fact["buckets"] if b != float("inf")]:
            yield name, f"buckets {bounds}, vLLM: {fact['buckets']}"
    yield from ((name, "vllm-sim has it, vLLM does not") for name in pages)


def cache_label_differences(binary, version, facts):
    fields = {name.split(".")[1] for name in facts["settings"] if name.startswith("CacheConfig.")}
    fields = {name for name in fields if not name.isupper()}
    with Server(binary, version, ["serve", MODEL]) as server:
        ours = families(server.get("/metrics"))["vllm:cache_config_info"]["labels"] - {"engine"}
    yield from ((name, "a field of CacheConfig, no label of cache_config_info") for name in sorted(fields - ours))
    yield from ((name, "a label of cache_config_info, no field of CacheConfig") for name in sorted(ours - fields))


def flag_differences(binary, version, facts):
    theirs = facts["flags"]
    known = {line.split()[0]: line.split()[1] for line in product.FLAGS.read_text().splitlines() if not line.startswith("#")}
    for name in sorted({*theirs, *known}):
        kind = theirs[name]["kind"] if name in theirs else known[name]
        values = [theirs.get(name, {}).get("choices", VALUES[kind])[0]] if VALUES[kind] else []
        done = subprocess.run([binary, "config", "serve", "demo", "--vllm-version", version, f"--{name}", *values], capture_output=True, text=True)
        unknown = "unrecognized arguments" in done.stderr or "unknown flag" in done.stderr.lower()
        if unknown == (name in theirs):
            yield f"--{name}", done.stderr.strip().splitlines()[-1][:200] if unknown else "accepted, but vLLM does not have it"


def openapi_differences(binary, version, facts):
    # llm-d's command line serves every route.
    words = ["--model", MODEL, "--dev-mode", "--enable-fault-tolerance", "--enable-tokenizer-info-endpoint", "--task", "auto",
             "--profiler-config", '{"profiler":"torch","torch_profiler_dir":"/tmp"}']
    with Server(binary, version, words) as server:
        ours = json.loads(server.get("/openapi.json"))
    own = [path for path, item in ours["paths"].items() if all(one.get("tags") == ["vllm-sim"] for one in item.values())]
    for path in own:
        del ours["paths"][path]
    for item in [*ours["paths"].values(), *facts["openapi"]["paths"].values()]:
        for operation in item.values():
            # Errors that FastAPI does not derive are described here, too.
            operation["responses"] = {}
    used = compare.flat_openapi(ours)
    theirs = compare.flat_openapi(facts["openapi"])
    for name in sorted({*used, *theirs}):
        if name not in used and not is_operation(name):
            # Schemas that no remaining operation uses are left out.
            continue
        if used.get(name) != theirs.get(name):
            yield name, compare.short(compare.difference(theirs.get(name), used.get(name)))


def is_operation(name):
    return re.match(r"[A-Z]+ /", name)


CHECKS = {"flags": flag_differences, "metrics": metric_differences, "cache labels": cache_label_differences, "openapi": openapi_differences}


def check(binary, facts):
    """Prints every difference, with its reason, and returns 1 if one has none."""
    reasons, unexplained = explanations(), 0
    for version, fact in facts.items():
        for topic, differences in CHECKS.items():
            found = list(differences(str(Path(binary).resolve()), version, fact))
            count = 0
            for name, text in found:
                reason = next((reason for (of, pattern), reason in reasons.items() if of == topic and pattern.fullmatch(name)), None)
                count += reason is None
                print(f"{version} {topic} {name}: {text} [{reason or 'UNEXPLAINED'}]")
            print(f"{version} {topic}: {len(found)} differences, {count} unexplained")
            unexplained += count
    return int(unexplained > 0)
